"""Imputed labels that are calibrated while they are learned: the imputation of DCE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.config import Weighting
from counterpoise.data.batches import Batch
from counterpoise.errors import check_choice, check_number
from counterpoise.imputation.base import Learned, LearnedLabel
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, LogErrors, StepInputs
from counterpoise.training.optimizer import Rate
from counterpoise.weights.calibration import Experts, Scored, with_ones

STEPS = 10  # of L-BFGS each time: the experts go on from where they were
AS_THEY_ARE = 1.0, 0.0  # slope and intercept around which they have a prior


@dataclass
class CalibratedLabels(Learned):
    """`Learned`, whose labels sigmoid(z) are calibrated on rows that it does not learn from: by `Experts`.

    The share `held_out` of the log's rows is left out of the imputation's training. Every `refresh` epochs the experts
    minimise the sum over these rows of weight x CE(label -> p), p = sum_j k_uj sigmoid(b_j z + c_j); the predictor then
    learns from p in place of sigmoid(z), and the imputation model itself goes on without. (DCE, Kweon and Yu 2024,
    after every epoch. Here an epoch may be a single step.) `weighting`, `mix` and `backbone` as in `Learned`.
    """

    experts: int = 5
    held_out: float = 0.1
    refresh: int = 10

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """A fresh model, and the rows that are held out."""
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_number("mix", self.mix, at_least=0, at_most=1)
        check_number("experts", self.experts, at_least=1, integer=True)
        check_number("held_out", self.held_out, above=0, at_most=0.5)
        check_number("refresh", self.refresh, at_least=1, integer=True)
        return _CalibratedLabel(self, context, weights)


class _CalibratedLabel(LearnedLabel):
    """The errors of calibrated labels."""

    part: CalibratedLabels

    def __init__(self, part: CalibratedLabels, context: FitContext, weights: FittedWeights) -> None:
        super().__init__(part, context)
        self.weights, self.epoch, self.whole = weights, 0, context.batches().whole()
        rows = len(context.log)
        self.held = torch.randperm(rows, generator=context.generator)[: round(part.held_out * rows)].to(context.device)
        self.counts = torch.ones(rows, device=context.device).index_fill_(0, self.held, 0.0)
        vectors = self._vectors()
        self.experts = Experts.of(part.experts, 1, vectors.shape[2])
        self.shares = self.experts.shares(vectors)[0].float().to(context.device)  # (|U|, experts)

    def _vectors(self) -> Tensor:
        return with_ones(self.scorer.features()[0])[None]

    @torch.no_grad()
    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        self.epoch += 1
        if (self.epoch - 1) % self.part.refresh or not len(self.held):
            return
        users, items, labels = (column[self.held] for column in (self.whole.users, self.whole.items, self.whole.labels))
        columns = self.scorer(users, items), labels, self.weights.ratio[self.held]
        logits, targets, ratio = (column.double().cpu() for column in columns)
        who, vectors = users.long().cpu(), self._vectors()
        data = Scored(logits, targets, ratio, who, torch.zeros_like(who))
        self.experts.fit(data, vectors, AS_THEY_ARE, STEPS, fresh=self.epoch == 1)
        self.shares.copy_(self.experts.shares(vectors)[0])

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        super().step(inputs, ratio * self.counts[inputs.batch.rows], rate, shift)

    @torch.no_grad()
    def labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        own, on_pairs = self.scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)
        if batch.pair_users is None:
            everywhere = self.experts.at(on_pairs.view(len(self.shares), -1), self.shares[:, None]).flatten()
            return everywhere[self.scorer.position(batch.users, batch.items)], everywhere
        rows = self.experts.at(own, self.shares[batch.users.long()])
        return rows, self.experts.at(on_pairs, self.shares[batch.pair_users.long()])

    def state(self) -> list[Tensor]:
        return [*super().state(), *self.experts.tensors(), self.shares]

    def facts(self) -> dict[str, Any]:
        return {"slope": self.experts.slope.tolist(), "intercept": self.experts.intercept.tolist()}
