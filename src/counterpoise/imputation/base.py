"""What the error would be where nothing was observed: a label is imputed, and scored by the same loss as real ones."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.config import Configurable, Weighting
from counterpoise.errors import check_choice, check_number
from counterpoise.models.base import Backbone
from counterpoise.models.matrix_factorization import as_backbone
from counterpoise.out_of_core.process_group import WHOLE, BatchShard
from counterpoise.risks import error
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Adam, Rate
from counterpoise.training.stacks import NotAlikeError, stack_numbers, stack_scorers
from counterpoise.weights.base import FittedWeights, StepInputs


class FittedImputation:
    """An imputation during one fit."""

    needs_pairs: bool = False  # whether `extra_loss` looks at pairs of D
    still: bool = False  # whether all that steps change are tensors, changed in place
    speaks: bool = True  # whether it says anything of pairs that were not observed
    offset: float | Tensor = (
        0.0  # P(label | observed) = sigmoid(logit + offset): by how much the log's labels are better
    )

    def step(self, view: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        """Learn from a batch whose rows count by `ratio`, at `rate` times the learning rate.

        `shift`: what something else will add to the imputed errors of the rows, and is not to be learned.
        """

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """(imputed errors on the batch's rows, and on its pairs of D); gradients reach the predictor's logits alone."""
        raise NotImplementedError

    def has_closed_form(self, codes: Tensor) -> bool:
        """Whether `step` does without autograd for so many pairs, `errors` are those of `labels` or 0, and no more."""
        return False

    def labels(self, users: Tensor, items: Tensor) -> Tensor | None:
        """The imputed labels of these pairs, if it has a closed form; None for errors of 0."""
        return None

    def extra_loss(self, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """What the predictor minimises besides the risk, if anything; gradients reach the predictor alone.

        From its logits on rows and on pairs of D, without what it was told of exposure (`Scorer.own`).
        """
        return None

    def stack(self, members: Sequence[Any], device: torch.device) -> FittedImputation:
        """The `members`, of which this is the first, as one with a leading axis, or `NotAlikeError` if they cannot."""
        raise NotAlikeError

    def state(self) -> list[Tensor]:
        """The tensors that it learns."""
        return []

    def facts(self) -> dict[str, Any]:
        """JSON-able: what there is to know about it."""
        return {}


@dataclass
class Imputation(Configurable):
    """The configuration of an `FittedImputation`."""

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """Ready to be trained beside the weights of the same fit."""
        raise NotImplementedError


@dataclass
class NoImputation(Imputation):
    """No imputation: errors of 0, with which `dr` is `ips`."""

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """Nothing to learn."""
        return ZeroErrors()


class ZeroErrors(FittedImputation):
    """Imputed errors of 0."""

    still, speaks = True, False

    def has_closed_form(self, codes: Tensor) -> bool:
        return True

    def stack(self, members: Sequence[Any], device: torch.device) -> FittedImputation:
        return self

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(logits), torch.zeros_like(pair_logits)


@dataclass
class Constant(Imputation):
    """The same label for every pair: `label`, or None for the label rate of the probe."""

    label: float | None = None

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """The label is fixed before training."""
        if self.label is not None:
            check_number("label", self.label, at_least=0, at_most=1)
            return _Constant(float(self.label))
        probe = context.need_probe("a constant imputed label", "Or give the `label` as a number in [0, 1].")
        return _Constant(float(probe.labels.mean()))


@dataclass
class _Constant(FittedImputation):
    label: float | Tensor
    still = True

    def stack(self, members: Sequence[Any], device: torch.device) -> FittedImputation:
        return _Constant(torch.tensor([[member.label] for member in members], device=device))

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return _error_of(self.label, logits), _error_of(self.label, pair_logits)

    def facts(self) -> dict[str, Any]:
        return {"label": self.label}


def _error_of(label: float | Tensor, logits: Tensor) -> Tensor:
    return error(label if isinstance(label, Tensor) else logits.new_full((), label), logits)


def residual_weights(weighting: Weighting, weight: Tensor, mix: float = 0.5, share: BatchShard = WHOLE) -> Tensor:
    """How much (error - imputed error)^2 of an observed pair counts in training the imputation; mean 1.

    With w = 1 / propensity: "error" w, an estimate of the mean over D (Wang et al. 2019); "variance" w (w - 1), of the
    variance of `dr` (MRDR, Guo et al. 2021); "bias" w (w - 1)^2, of the squared bias (Dai et al. 2022); "mse" mixes the
    last two, each scaled to mean 1, `mix` of the bias. Weights below 1, which no propensity has, count as 1 in w - 1.
    `share`: of the batch whose mean is 1, by default all of it.
    """
    if weighting == "mse":
        bias, variance = (residual_weights(part, weight, share=share) for part in ("bias", "variance"))
        return mix * bias + (1 - mix) * variance
    if weighting == "error":
        return _mean_one(weight, share)
    excess = (weight - 1).clamp(min=0)
    return _mean_one(weight * (excess if weighting == "variance" else excess.square()), share)


def residual_slope(own: Tensor, logits: Tensor, errors: Tensor, importance: Tensor) -> Tensor:
    """The slope in the imputation's logits `own` of the mean of importance x (error - imputed error)^2.

    The imputed error of label p = sigmoid(own) has slope -logit x p (1 - p), so that it is
    2 / rows x importance x (error - imputed error) x logit x p (1 - p).
    """
    labels = torch.sigmoid(own)
    residual = errors - error(labels, logits)
    return (importance * residual * logits * labels * (1 - labels) * (2 / own.shape[-1])).to(own.dtype)


def _mean_one(values: Tensor, share: BatchShard) -> Tensor:
    return values / share.mean(values).clamp(min=1e-30)


@dataclass
class Learned(Imputation):
    """A model of the label, trained so that the imputed error matches the observed one: mean of v (error - imputed)^2.

    `weighting` and `mix`: v, see `residual_weights`. `backbone`: the model, None for one like the predictor's.
    """

    weighting: Weighting = "error"
    mix: float = 0.5
    backbone: Backbone | str | None = None

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """A fresh model."""
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_number("mix", self.mix, at_least=0, at_most=1)
        return _Learned(self, context)


class _Learned(FittedImputation):
    still = True

    def __init__(self, part: Learned, context: FitContext) -> None:
        self.part, self.rows, self.density = part, len(context.log), context.log.density
        self.scorer = context.build(deepcopy(as_backbone(part.backbone or context.backbone)))
        self.optimizer = Adam.of(self.scorer, context.training.learning_rate, self.rows)

    @torch.no_grad()
    def step(self, view: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        share = view.batch.share
        importance = residual_weights(self.part.weighting, ratio / self.density, self.part.mix, share)
        own, pull_back = self.scorer.traced(view.batch.users, view.batch.items)
        slope = share.weighed(residual_slope(own, view.logits, view.errors - shift, importance))
        self.optimizer.follow(pull_back(slope), rate)

    def has_closed_form(self, codes: Tensor) -> bool:
        return self.scorer.has_closed_form(codes)

    def labels(self, users: Tensor, items: Tensor) -> Tensor:
        return torch.sigmoid(self.scorer(users, items))

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            own, own_on_pairs = self.scorer.rows_and_pairs(batch.users, batch.items, batch.pair_users, batch.pair_items)
        return error(torch.sigmoid(own), logits), error(torch.sigmoid(own_on_pairs), pair_logits)

    def stack(self, members: Sequence[Any], device: torch.device) -> FittedImputation:
        if any((member.part.weighting, member.part.mix) != (self.part.weighting, self.part.mix) for member in members):
            raise NotAlikeError
        stacked = copy(self)
        stacked.scorer = stack_scorers([member.scorer for member in members])
        rates = stack_numbers([member.optimizer.learning_rate for member in members], device)
        stacked.optimizer = Adam.of(stacked.scorer, rates, self.rows)
        return stacked

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]
