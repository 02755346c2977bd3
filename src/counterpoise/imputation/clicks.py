"""The product click model: a click is a pair that was exposed and is relevant, both with models of their own.

    P(click) = gamma mu,   gamma = sigmoid(predictor), mu = sigmoid(exposure model)

By maximum likelihood, the mean over D of CE(click -> gamma mu). As a risk `dr` with weights of 1 and label 1 of clicked
pairs it is mean_D e^ + density x mean over clicks of (e - e^), with e = -log gamma and e^ = -log(1 - gamma mu). Only
what the exposure model cannot express is identified as relevance: it has one number for each item by default, and the
priors decide how much of an item's clicks is its exposure. (Lin et al. 2024, ReCRec: Reasoning the Causes of Implicit
Feedback for Debiased Recommendation, whose posterior targets have the gradient of this likelihood.)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.models.base import Backbone, as_backbone
from counterpoise.models.item_popularity import ItemPopularity
from counterpoise.training.contracts import (
    FitContext,
    FittedImputation,
    FittedWeights,
    Imputation,
    LogErrors,
    StepInputs,
    Weights,
)
from counterpoise.training.optimizer import Rate

MAX_EXPOSURE = 1 - 1e-6  # so that its log odds are finite


def no_click_error(logits: Tensor, exposure_logits: Tensor) -> Tensor:
    """-log(1 - gamma mu), of each pair: 1 - gamma mu = (1 - gamma) + gamma (1 - mu)."""
    return -torch.logaddexp(logsigmoid(-logits), logsigmoid(logits) + logsigmoid(-exposure_logits))


@dataclass
class ClickModel(Imputation):
    """The imputed error of a pair is that of not being clicked, -log(1 - gamma mu).

    `exposure`: mu is that of these weights, density / ratio, such as that of `RelativeExposure`; None for a model of
    mu that is learned beside the predictor: `backbone`, or None for one number for each item. `start`: the mean of mu
    before training.
    """

    exposure: Weights | None = None
    backbone: Backbone | str | None = None
    start: float = 0.5

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """A fresh model of exposure."""
        check_number("start", self.start, above=0, at_most=0.99)
        if self.exposure is not None:
            return _KnownClickModel(self.exposure.init(context), context.log.density)
        return _ClickModel(self, context)


class _KnownClickModel(FittedImputation):
    """With exposure that weights say."""

    def __init__(self, weights: FittedWeights, density: float) -> None:
        self.weights, self.density, self.epoch = weights, density, 0
        self._everywhere: Tensor | None = None

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        """The weights are solved at the start of the first epoch."""
        self.epoch += 1
        self.weights.refresh(self.epoch, lambda: torch.zeros_like(self.weights.ratio))

    @torch.no_grad()
    def _exposure_logits(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None and self._everywhere is not None:
            return self._everywhere
        theta = (self.density / self.weights.at(users, items)).clamp(max=MAX_EXPOSURE)
        logits = torch.log(theta) - torch.log1p(-theta)
        self._everywhere = logits if users is None else None
        return logits

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._exposure_logits(batch.users, batch.items)
        if not len(pair_logits):
            return no_click_error(logits, rows), pair_logits
        pairs = self._exposure_logits(batch.pair_users, batch.pair_items)
        return no_click_error(logits, rows), no_click_error(pair_logits, pairs)

    def state(self) -> list[Tensor]:
        return self.weights.state()

    def facts(self) -> dict[str, Any]:
        return self.weights.facts()


class _ClickModel(FittedImputation):
    def __init__(self, part: ClickModel, context: FitContext) -> None:
        own = ItemPopularity() if part.backbone is None else deepcopy(as_backbone(part.backbone))
        self.density = context.log.density
        self.scorer = context.build(own, part.start)
        self.optimizer = context.optimizer(self.scorer)

    def _both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        """A step of mu on the likelihood of the clicks, counted by click, with gamma held fixed."""
        rows, pairs = self._both(inputs.batch)
        clicked = -logsigmoid(rows) - no_click_error(inputs.logits, rows)
        loss = no_click_error(inputs.pair_logits, pairs).mean() / self.density + clicked.mean()
        self.optimizer.step(loss, rate)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            rows, pairs = self._both(batch)
        return no_click_error(logits, rows), no_click_error(pair_logits, pairs)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        mu = torch.sigmoid(
            self.scorer.grid(torch.zeros(1, dtype=torch.long, device=self.scorer.embeddings()[0].device))
        )
        return {"exposure": {"mean": float(mu.mean()), "largest": float(mu.max())}}
