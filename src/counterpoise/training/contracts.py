"""The contracts of weights and imputations: a configuration, and what `init` makes of it for one fit.

In each step the imputation learns first, then the weights, then the predictor; each part moves its own parameters
alone, and sees detached values of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.data.batches import Batch
from counterpoise.training.context import FitContext
from counterpoise.training.optimizer import Rate


class StepInputs(NamedTuple):
    """What a part may look at in a step: all of it detached, so that no part moves another."""

    batch: Batch
    logits: Tensor  # (rows,) of the predictor on the batch's rows
    pair_logits: Tensor  # (pairs,) and on its pairs of D; empty where no part asks for pairs
    errors: Tensor  # (rows,)


class FittedWeights:
    """Weights during one fit. Those that never change set `ratio` and answer `at`; others learn in training."""

    changes: ClassVar[bool] = False  # whether training changes them
    needs_pairs: ClassVar[bool] = False  # whether `step` looks at pairs of D
    needs_pair_logits: ClassVar[bool] = True  # and at what is predicted there
    ratio: Tensor  # (rows,) of the log that is trained on, on the device of the fit

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> None:
        """At the start of an epoch, counted from 1; `residuals()`: error - imputed error of every row of the log."""

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        """Learn from a batch, at `rate` times the learning rate; imputed errors of its rows and of its pairs of D."""

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """What the predictor minimises besides the risk, if anything; gradients reach the predictor alone."""
        return None

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """The ratio of any pairs, all of D where they are None; `labels` where they are known."""
        raise NotImplementedError

    def finalize(self) -> None:
        """After training: the ratio of all rows, where it was learned batch by batch."""

    def state(self) -> list[Tensor]:
        """The tensors that change in training, to keep a copy of the best epoch."""
        return []

    def facts(self) -> dict[str, Any]:
        """JSON-able: what there is to know about these weights besides their values."""
        return {}


@dataclass
class Weights(Configurable):
    """The configuration of `FittedWeights`."""

    def init(self, context: FitContext) -> FittedWeights:
        """Learn what can be learned before training, and be ready for the rest."""
        raise NotImplementedError


class FittedImputation:
    """An imputation during one fit. By itself it imputes errors of 0."""

    needs_pairs: bool = False  # whether `extra_loss` looks at pairs of D
    offset: float = (
        0.0  # the log odds ratio c of labels, log against all pairs: P(label | observed) = sigmoid(logit + c)
    )

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        """Learn from a batch whose rows count by `ratio`, at `rate` times the learning rate.

        `shift`: what another part will add to the imputed errors of the rows, and is not to be learned.
        """

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """(imputed errors on the batch's rows, and on its pairs of D); gradients reach the predictor's logits alone."""
        return torch.zeros_like(logits), torch.zeros_like(pair_logits)

    def extra_loss(self, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """What the predictor minimises besides the risk, if anything; gradients reach the predictor alone.

        From the logits of its base scorer (without an exposure covariate) on rows and on pairs of D.
        """
        return None

    def state(self) -> list[Tensor]:
        """The tensors that it learns."""
        return []

    def facts(self) -> dict[str, Any]:
        """JSON-able: what there is to know about it."""
        return {}


@dataclass
class Imputation(Configurable):
    """The configuration of a `FittedImputation`."""

    imputes_errors: ClassVar[bool] = True  # whether it imputes errors, as the risk "direct" needs

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Ready to be trained beside the weights of the same fit."""
        raise NotImplementedError
