"""The contracts of weights and imputations: what a part is given in a fit, and what it must answer.

`FitContext` is one fit: its data, its settings, its randomness, and first models on the way. `Weights` and `Imputation`
are configurations; `init(context)` makes of them what lives for one fit. In each step the imputation learns first, then
the weights, then the predictor; each part moves its own parameters alone, and sees detached values of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.data.batches import Batch, Batches
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.models.base import Backbone, Scorer
from counterpoise.risks import ErrorOf, error, exposure_cross_entropy
from counterpoise.training.loop import Training, train
from counterpoise.training.optimizer import Adam, Rate

PRETRAINING_STEPS = 60  # of a first model: features and propensities need no last digit
MIN_PRETRAINING_EPOCHS = 5
LossOf = Callable[[Scorer, Batch], Tensor]
Wrap = Callable[[Any, Training], Any]


@dataclass(frozen=True, eq=False)
class FitContext:
    """One fit: its data, its predictor's backbone, how it is trained, and the generator of all its randomness."""

    log: FeedbackLog  # the rows that are trained on
    probe: FeedbackLog | None
    backbone: Backbone
    training: Training
    device: torch.device
    generator: torch.Generator
    wrap: Wrap = lambda learner, training: learner  # around every learner that is trained, such as CUDA graphs
    error: ErrorOf = error  # of the predictor; first models have log loss

    def batches(self, pairs: bool = False, own_users: bool = False) -> Batches:
        """Batches of the log, with pairs of D beside them where asked for: uniform ones, or of the rows' own users."""
        size = self.training.rows_per_step(len(self.log))
        pairs_per_row = self.training.pairs_per_row(self.log, own_users) if pairs else 0
        return self.log.batches(size, self.device, self.generator, pairs_per_row, own_users)

    @property
    def unit(self) -> float:
        """The divisor of a mean over D: the density for clicks, so that a loss is one for each click, else 1.

        Information on a rare label is that of its positives. Without it the prior would grow with the unclicked pairs.
        """
        return self.log.density if self.log.feedback == "clicks" else 1.0

    def build(self, backbone: Backbone, rate: float | None = None) -> Scorer:
        """A fresh scorer on the device, which starts near the probability `rate`: by default the share of clicks in D,
        or the mean label.
        """
        rate = self.log.density if rate is None and self.log.feedback == "clicks" else rate
        scorer = backbone.build(self.log, self.generator, rate).to(self.device)
        backbone.pretrain(scorer, self)
        return scorer

    def optimizer(self, *models: Any) -> Adam:
        """The optimiser of models whose loss is a mean over the rows of the log."""
        return Adam.of(models, self.training.learning_rate, len(self.log))

    def on(self, log: FeedbackLog) -> FitContext:
        """The context of the same fit on other rows."""
        return replace(self, log=log)

    def with_default_training(self) -> FitContext:
        """The context of the same fit with the default training, for models that do not follow the predictor's."""
        return replace(self, training=Training(graph=self.training.graph))

    def k_fold(self, folds: int) -> Iterator[tuple[Tensor, FitContext]]:
        """The folds of cross-fitting: (positions of the rows of a fold, the fit on all other rows) for each.

        With one fold, or fewer rows than folds, all rows and the fit on all rows. Pairs are drawn, not positions: the
        order of the log's rows does not matter. First models of a large log's folds are trained as those of the log, in
        as many batches and epochs.
        """
        rows = torch.arange(len(self.log))
        if folds == 1 or folds > len(rows):
            yield rows.to(self.device), self
            return
        pairs = torch.from_numpy(np.lexsort((self.log.items, self.log.users)))
        order, of_folds = pairs[torch.randperm(len(rows), generator=self.generator)], self
        if self.training.counts_steps(len(rows)):
            size = math.ceil(self.training.rows_per_step(len(rows)) * (folds - 1) / folds)
            of_folds = replace(self, training=replace(self.short().training, batch_size=size))
        for start in range(folds):
            chosen, others = order[start::folds].sort()[0], np.ones(len(rows), dtype=bool)
            others[chosen.numpy()] = False
            yield chosen.to(self.device), of_folds.on(self.log.take(others))

    def need_probe(self, who: str, otherwise: str) -> FeedbackLog:
        """The probe, or an error with the part that needs it and the way out."""
        if self.probe is None or len(self.probe) == 0:
            uniform = 'a small uniformly collected sample, or a part of a test that is one (test_kind="uniform")'
            raise ConfigError(f"`probe` must be given for {who}: {uniform}. {otherwise}")
        return self.probe

    def train(self, learner: Any, pairs: bool = False) -> None:
        """Train a learner for all epochs."""
        train(self.wrap(learner, self.training), self.batches(pairs), None, self.training)

    def fit_scorer(self, backbone: Backbone, loss_of: LossOf, pairs: bool = False, rate: float | None = None) -> Scorer:
        """A scorer trained by itself on `loss_of(scorer, batch)` and its prior, with the settings of the fit."""
        scorer = self.build(backbone, rate)
        self.train(_ScorerLearner(scorer, loss_of, self.optimizer(scorer)), pairs)
        return scorer.requires_grad_(False)

    def short(self, steps: int = 0) -> FitContext:
        """The context of a fit with fewer epochs, for first models; of `steps` where the predictor's are counted."""
        batches = math.ceil(len(self.log) / self.training.rows_per_step(len(self.log)))
        steps = steps if self.training.counts_steps(len(self.log)) else PRETRAINING_STEPS
        epochs = min(max(MIN_PRETRAINING_EPOCHS, math.ceil(steps / batches)), self.training.epochs)
        return replace(self, training=replace(self.training, epochs=epochs, steps=None))

    def fit_labels(self, backbone: Backbone) -> Scorer:
        """A first model of the labels: plain training on the observed rows."""
        return self.short().fit_scorer(backbone, mean_error)

    def fit_exposure(self, backbone: Backbone) -> Scorer:
        """A first model of being observed, sigmoid(logit) = P(observed), by cross-entropy over D."""
        density = self.log.density

        def loss(scorer: Scorer, batch: Batch) -> Tensor:  # counted by observed row: 1 / density x the mean over D
            on_rows, on_pairs = scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)
            return exposure_cross_entropy(on_pairs, on_rows, density) / density

        return self.short().fit_scorer(backbone, loss, pairs=True, rate=density)


def mean_error(scorer: Scorer, batch: Batch) -> Tensor:
    """The mean error over observed rows, which plain matrix factorisation minimises."""
    return error(batch.labels, scorer(batch.users, batch.items)).mean()


@dataclass
class _ScorerLearner:
    """A scorer that is trained by itself, on a loss of its own."""

    scorer: Scorer
    loss_of: LossOf
    optimizer: Adam

    def start_epoch(self, epoch: int) -> None:
        pass

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        loss = self.loss_of(self.scorer, batch)
        self.optimizer.step(loss, rate)
        return loss.detach()

    def risk(self, batch: Batch) -> Tensor:
        return self.loss_of(self.scorer, batch)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]


class StepInputs(NamedTuple):
    """The inputs of a part's step, detached, so that no part moves another."""

    batch: Batch
    logits: Tensor  # (rows,) of the predictor on the batch's rows
    pair_logits: Tensor  # (pairs,) and on its pairs of D; empty where no part asks for pairs
    errors: Tensor  # (rows,)


class LogErrors(NamedTuple):
    """The predictor on the whole log, detached."""

    batch: Batch  # all rows, and no pairs of D
    logits: Tensor
    errors: Tensor


@dataclass(frozen=True)
class InterceptShift:
    """The shift of an intercept, in log odds, and the standard error of the distance before it was shrunken."""

    shift: float
    standard_error: float


class FittedWeights:
    """Weights during one fit. Those that never change set `ratio` and answer `at`; others learn in training."""

    changes: bool = False  # whether training changes them
    learns_from_probe: bool = False  # from its rows, not from its label rate alone
    needs_pairs: bool = False  # whether `step` looks at pairs of D
    needs_pair_logits: bool = True  # and at what is predicted there
    user_vectors: Tensor | None = None  # (|U|, d) what a model of being observed learned of each user, if there is one
    ratio: Tensor  # (rows,) of the log that is trained on, on the device of the fit

    def start(self, scorer: Scorer) -> None:
        """Meet the predictor before its first step, for weights that look at more of it than its logits."""

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> bool:
        """Update the ratios at the start of an epoch, counted from 1; returns whether they changed.

        `residuals()`: error - imputed error of every row of the log.
        """
        return False

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        """Learn from a batch, at `rate` times the learning rate; imputed errors of its rows and of its pairs of D."""

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """The loss of the predictor besides the risk, or None; gradients reach the predictor alone."""
        return None

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """The ratio of any pairs, all of D where they are None; `labels` where they are known."""
        raise NotImplementedError

    def finalize(self) -> None:
        """After training: the ratio of all rows, where it was learned batch by batch."""

    def intercept_shift(self, backbone: Backbone | None = None) -> InterceptShift | None:
        """After training: what to add to all logits, where weights know better than training with them.

        `backbone`: of a model like the one that was trained; None for the predictor's.
        """
        return None

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

    learns_from_probe: bool = False  # from its rows, not from its label rate alone
    active: bool = True  # whether it acts on this fit at all
    needs_pairs: bool = False  # whether `extra_loss` looks at pairs of D
    backbone: Backbone | None = None  # of the model that the predictor learns from, where there is one
    correction: float = 1.0  # the share of the correction that counts in the risk `dr`
    prior_scale: float = 1.0  # factor of the predictor's prior
    floor: float = math.inf  # a term of the risk `pairwise` is at least minus this
    offset: float = (
        0.0  # the log odds ratio c of labels, log against all pairs: P(label | observed) = sigmoid(logit + c)
    )

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        """Update it at the start of an epoch, after the weights; `on_log()`: the predictor on the whole log."""

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        """Learn from a batch whose rows count by `ratio`, at `rate` times the learning rate.

        `shift`: what another part will add to the imputed errors of the rows, and is not to be learned.
        """

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """(imputed errors on the batch's rows, and on its pairs of D); gradients reach the predictor's logits alone."""
        return torch.zeros_like(logits), torch.zeros_like(pair_logits)

    def start(self, scorer: Scorer) -> None:
        """Meet the predictor before its first step, and give it what was learned already of a model like it."""

    def targets(self, batch: Batch) -> Tensor:
        """The labels that the predictor learns from on the batch's rows."""
        return batch.labels

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        """The loss of the predictor besides the risk, or None; gradients reach the predictor alone.

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
    any_error: ClassVar[bool] = False  # whether it imputes whatever error the predictor has, not log loss alone

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Ready to be trained beside the weights of the same fit."""
        raise NotImplementedError
