"""What the parts of a method learn from in one fit, and how first models are pretrained on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.data.batches import Batch, Batches
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.models.base import Backbone, Scorer
from counterpoise.risks import error, exposure_cross_entropy
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

    def batches(self, pairs: bool = False) -> Batches:
        """Batches of the log, with pairs of D beside them where asked for."""
        size = self.training.rows_per_step(len(self.log))
        pairs_per_row = self.training.pairs_per_row(self.log) if pairs else 0
        return self.log.batches(size, self.device, self.generator, pairs_per_row)

    def build(self, backbone: Backbone, rate: float | None = None) -> Scorer:
        """A fresh scorer on the device; it starts near the probability `rate`, by default the mean label."""
        scorer = backbone.build(self.log, self.generator, rate).to(self.device)
        backbone.pretrain(scorer, self)
        return scorer

    def optimizer(self, *models: Any) -> Adam:
        """The optimiser of models whose loss is a mean over the rows of the log."""
        return Adam.of(models, self.training.learning_rate, len(self.log))

    def on(self, log: FeedbackLog) -> FitContext:
        """The same fit on other rows."""
        return replace(self, log=log)

    def with_default_training(self) -> FitContext:
        """The same fit with the default training, for models that do not follow the predictor's."""
        return replace(self, training=Training(graph=self.training.graph))

    def k_fold(self, folds: int) -> Iterator[tuple[Tensor, FitContext]]:
        """For cross-fitting: (positions of the rows of a fold, the fit on all other rows) for each of so many folds.

        With one fold, or fewer rows than folds, all rows and the fit on all rows.
        """
        rows = torch.arange(len(self.log))
        if folds == 1 or folds > len(rows):
            yield rows.to(self.device), self
            return
        order = torch.randperm(len(rows), generator=self.generator)
        for start in range(folds):
            chosen = order[start::folds].sort()[0]
            others = np.setdiff1d(rows.numpy(), chosen.numpy())
            yield chosen.to(self.device), self.on(self.log.take(others))

    def need_probe(self, who: str, otherwise: str) -> FeedbackLog:
        """The probe, or an error that says who needs it and what to do without one."""
        if self.probe is None or len(self.probe) == 0:
            raise ConfigError(f"`probe` must be given for {who}: a small uniformly collected sample. {otherwise}")
        return self.probe

    def train(self, learner: Any, pairs: bool = False) -> None:
        """Train a learner for all epochs."""
        train(self.wrap(learner, self.training), self.batches(pairs), None, self.training)

    def fit_scorer(self, backbone: Backbone, loss_of: LossOf, pairs: bool = False, rate: float | None = None) -> Scorer:
        """A scorer trained by itself on `loss_of(scorer, batch)` and its prior, with the settings of the fit."""
        scorer = self.build(backbone, rate)
        self.train(_ScorerLearner(scorer, loss_of, self.optimizer(scorer)), pairs)
        return scorer.requires_grad_(False)

    def short(self) -> FitContext:
        """The same fit with fewer epochs, for first models."""
        epochs = max(MIN_PRETRAINING_EPOCHS, math.ceil(PRETRAINING_STEPS / len(self.batches())))
        return replace(self, training=replace(self.training, epochs=min(epochs, self.training.epochs)))

    def fit_labels(self, backbone: Backbone) -> Scorer:
        """A first model of the labels: plain training on the observed rows."""
        return self.short().fit_scorer(backbone, mean_error)

    def fit_exposure(self, backbone: Backbone) -> Scorer:
        """A first model of being observed, sigmoid(logit) = P(observed), by cross-entropy over D."""
        density = self.log.density

        def loss(scorer: Scorer, batch: Batch) -> Tensor:  # counted by observed row: 1 / density x the mean over D
            on_rows, on_pairs = scorer.rows_and_pairs(batch.users, batch.items, batch.pair_users, batch.pair_items)
            return exposure_cross_entropy(on_pairs, on_rows, density) / density

        return self.short().fit_scorer(backbone, loss, pairs=True, rate=density)


def mean_error(scorer: Scorer, batch: Batch) -> Tensor:
    """What plain matrix factorisation minimises: the mean over observed rows of the error."""
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
