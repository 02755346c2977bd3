"""Causal embeddings (CausE): items have a second table, which learns from the probe and is kept near that of the log.

(Bonner and Vasile 2018, Causal Embeddings for Recommendation.) Differences from the released code: log losses of
probabilities, where it has squared errors of labels -1 and 1; items have biases in both tables; the penalty is a
squared distance that moves both tables, where it has absolute differences that move that of the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Scorer
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, StepInputs
from counterpoise.training.optimizer import Adam, Rate


def logits_with_items(scorer: Scorer, differences: dict[str, Tensor], users: Tensor, items: Tensor) -> Tensor:
    """The logits of pairs, where a difference is added to each table of items: b' = b + difference."""
    tables = {name: scorer.get_parameter(name) + difference for name, difference in differences.items()}
    logits: Tensor = functional_call(scorer, tables, (users, items))
    return logits


def probe_loss(errors: Tensor, rows: int) -> Tensor:
    """(1 / |O|) sum over the probe of e: a row of the probe counts as one of the log."""
    return errors.sum() / rows


@dataclass
class CausalEmbeddings(Imputation):
    """Beside the risk, the error on the probe of the predictor with other items, whose distance is penalised.

    Users, intercept and all else are shared, and learn from both samples. Items have two tables of factors and biases:
    b learns from the log and predicts, b' from the probe, and both from their distance l2_distance / 2 |b - b'|^2, a
    Gaussian prior that counts as `l2` in `MatrixFactorization`. 0: items learn from one sample each. Large: both tables
    are one, and the rows of the probe are rows of the log.
    """

    imputes_errors: ClassVar[bool] = False
    l2_distance: float = 16.0

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The tables are made once there is a predictor."""
        check_number("l2_distance", self.l2_distance, at_least=0)
        context.need_probe("causal embeddings", "Without one, train by 'mf'.")
        return FittedCausalEmbeddings(self.l2_distance, context)


class FittedCausalEmbeddings(FittedImputation):
    """The differences of both tables, learned beside the predictor."""

    learns_from_probe = True

    scorer: Scorer  # the predictor
    differences: dict[str, Tensor]  # b' - b of each table of items, by its name in the predictor
    optimizer: Adam  # of the differences

    def __init__(self, l2_distance: float, context: FitContext) -> None:
        assert context.probe is not None
        self.l2_distance, self.rows, self.learning_rate = l2_distance, len(context.log), context.training.learning_rate
        self.probe: Batch = context.on(context.probe).batches().whole()

    def start(self, scorer: Scorer) -> None:
        self.scorer = scorer
        items = {name: table for name, table in scorer.named_parameters() if scorer.side(name) == "item"}
        if not items:
            raise ConfigError("`backbone` must have tables of items for causal embeddings, named `item_...`.")
        self.differences = {name: torch.zeros_like(table).requires_grad_() for name, table in items.items()}
        precisions = [self.l2_distance / self.rows] * len(items)
        self.optimizer = Adam(self.differences.values(), self.learning_rate, precisions)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        self.optimizer.step(self._loss(), rate)

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        return self._loss()

    def _loss(self) -> Tensor:
        logits = logits_with_items(self.scorer, self.differences, self.probe.users, self.probe.items)
        return probe_loss(error(self.probe.labels, logits), self.rows)

    def state(self) -> list[Tensor]:
        return [difference.data for difference in self.differences.values()]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """How far apart both tables are: the root of the mean over items of the squared distance."""
        total = sum(float(difference.square().sum()) for difference in self.differences.values())
        return {"item_distance": (total / self.scorer.n_items) ** 0.5}
