"""What the parts of a method learn from, and how a model of one's own is trained on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from counterpoise.accelerate import with_cuda_graphs
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.models.base import Backbone, Scorer
from counterpoise.out_of_core.log import StreamedBatches, StreamedLog
from counterpoise.risks import error
from counterpoise.training.loop import Batch, Batches, Training, train
from counterpoise.training.optimizer import Adam, Rate

BRIEF_STEPS = 60  # of a model on the way
BRIEF_EPOCHS = 5  # at least
LossOf = Callable[[Scorer, Batch], Tensor]


@dataclass(frozen=True, eq=False)
class FitContext:
    """One fit: its data, its predictor's backbone, how it is trained, and the generator of all its randomness."""

    log: FeedbackLog  # the rows that are trained on
    probe: FeedbackLog | None
    backbone: Backbone
    training: Training
    device: torch.device
    generator: torch.Generator

    def batches(self, pairs: bool = False) -> Batches:
        """Batches of the log, with pairs of D beside them where asked for."""
        size = self.training.rows_a_step(len(self.log))
        pairs_a_row = self.training.pairs_a_row(self.log) if pairs else 0
        kind = StreamedBatches if isinstance(self.log, StreamedLog) else Batches
        return kind(self.log, size, self.device, self.generator, pairs_a_row)  # type: ignore[arg-type]

    def build(self, backbone: Backbone, rate: float | None = None) -> Scorer:
        """A fresh scorer on the device; it starts near the probability `rate`, by default the mean label."""
        scorer = backbone.build(self.log, self.generator, rate).to(self.device)
        backbone.inform(scorer, self)
        return scorer

    def on(self, log: FeedbackLog) -> FitContext:
        """The same fit on other rows."""
        return replace(self, log=log)

    def brief(self) -> FitContext:
        """The same fit with fewer epochs, for models on the way, which need no last digit."""
        epochs = max(BRIEF_EPOCHS, math.ceil(BRIEF_STEPS / len(self.batches())))
        return replace(self, training=replace(self.training, epochs=min(epochs, self.training.epochs)))

    def plainly_trained(self) -> FitContext:
        """The same fit with the default training, for models that do not follow the predictor's."""
        return replace(self, training=Training(graph=self.training.graph))

    def deal(self, folds: int) -> Iterator[tuple[Tensor, FitContext]]:
        """For cross-fitting: (positions of the rows of a fold, the fit on all other rows) for each of so many folds.

        Rows are dealt at random. With one fold, or fewer rows than folds, all rows and the fit on all rows.
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


@dataclass
class _Alone:
    """A scorer that is trained by itself, on a loss of its own."""

    scorer: Scorer
    loss_of: LossOf
    optimizer: Adam
    still: bool = True  # for `graphs`

    def begin_epoch(self, epoch: int) -> None:
        pass

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        loss = self.loss_of(self.scorer, batch)
        self.optimizer.step(loss, rate)
        return loss.detach()

    def risk(self, batch: Batch) -> Tensor:
        return self.loss_of(self.scorer, batch)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]


def fit_alone(
    context: FitContext, backbone: Backbone, loss_of: LossOf, pairs: bool = False, rate: float | None = None
) -> Scorer:
    """A scorer trained for all epochs on `loss_of(scorer, batch)` and its penalty, with the settings of the fit."""
    scorer = context.build(backbone, rate)
    optimizer = Adam.of(scorer, context.training.learning_rate, len(context.log))
    learner = _Alone(scorer, loss_of, optimizer)
    train(with_cuda_graphs(learner, context.training), context.batches(pairs), None, context.training)
    return scorer.requires_grad_(False)


def mean_error(scorer: Scorer, batch: Batch) -> Tensor:
    """What plain matrix factorisation minimises: the mean over observed rows of the error."""
    return error(batch.labels, scorer(batch.users, batch.items)).mean()
