"""Causal embeddings (CausE): a second table of items that learns from the probe, kept near that of the log.

(Bonner and Vasile 2018, Causal Embeddings for Recommendation.) Differences from the released code: log losses of
probabilities, where it has squared errors of labels -1 and 1; items have biases in both tables; the penalty is a
squared distance that moves both tables, where it has absolute differences that move that of the log alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.models.base import Scorer
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, StepInputs
from counterpoise.training.optimizer import Adam, Rate


def squared_distance(tables: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """The sum over all entries of (table - other table)^2."""
    pairs = zip(tables, others, strict=True)
    return torch.stack([(table - other).square().sum() for table, other in pairs]).sum()


def probe_loss(errors: Tensor, distance: Tensor, l2_distance: float, rows: int) -> Tensor:
    """(1 / |O|) (sum over S of e + l2_distance / 2 x the squared distance of the tables): a row of the probe S counts
    as one of the log.
    """
    return (errors.sum() + l2_distance / 2 * distance) / rows


@dataclass
class CausalEmbeddings(Imputation):
    """Beside the risk, the error on the probe of the predictor with other items, whose distance is penalised.

    Users, intercept and all else are shared, and learn from both; the tables of items (factors and biases) are two. The
    predictor's own learns from the log and from the distance to the other. `l2_distance`: the precision of a Gaussian
    prior on the difference of both tables, as `l2` in `MatrixFactorization`. 0: items learn from one sample each; a
    large one: both tables are one, and the probe's rows are rows of the log.
    """

    imputes_errors: ClassVar[bool] = False
    l2_distance: float = 4.0

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The tables are copied once there is a predictor."""
        check_number("l2_distance", self.l2_distance, at_least=0)
        context.need_probe("causal embeddings", "Without one, train by 'mf'.")
        return FittedCausalEmbeddings(self.l2_distance, context)


class FittedCausalEmbeddings(FittedImputation):
    """The predictor with a table of items for the probe."""

    scorer: Scorer  # that of the probe: the predictor, but for its items
    optimizer: Adam  # of the probe's items

    def __init__(self, l2_distance: float, context: FitContext) -> None:
        assert context.probe is not None
        self.l2_distance, self.rows, self.learning_rate = l2_distance, len(context.log), context.training.learning_rate
        self.probe: Batch = context.on(context.probe).batches().whole()

    def start(self, scorer: Scorer) -> None:
        self.scorer = deepcopy(scorer)
        parameters = dict(scorer.named_parameters())
        items = [name for name in parameters if scorer.side(name) == "item"]
        for name in parameters.keys() - set(items):
            module, _, own_name = name.rpartition(".")
            setattr(self.scorer.get_submodule(module), own_name, parameters[name])
        self.of_log, self.of_probe = [parameters[n] for n in items], [self.scorer.get_parameter(n) for n in items]
        precisions = [scorer.precision(name) / self.rows for name in items]
        self.optimizer = Adam(self.of_probe, self.learning_rate, precisions)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        self.optimizer.step(self._loss(), rate)

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        return self._loss()

    def _loss(self) -> Tensor:
        """Users and the log's items learn from it with the predictor, the probe's items in `step`."""
        errors = error(self.probe.labels, self.scorer(self.probe.users, self.probe.items))
        return probe_loss(errors, squared_distance(self.of_log, self.of_probe), self.l2_distance, self.rows)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.of_probe]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """How far apart both tables are: the root of the mean over items of the squared distance."""
        return {"item_distance": float(squared_distance(self.of_log, self.of_probe) / self.scorer.n_items) ** 0.5}
