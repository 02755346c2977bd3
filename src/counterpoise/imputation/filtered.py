"""Imputed errors that are dropped where they are not reliable: CDR."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.imputation.base import Learned, LearnedLabel
from counterpoise.imputation.targeted import check_parts
from counterpoise.models.base import Scorer
from counterpoise.training.contracts import (
    FitContext,
    FittedImputation,
    FittedWeights,
    Imputation,
    LogErrors,
    StepInputs,
)
from counterpoise.training.optimizer import Rate

NODES = 7  # of the Gauss-Hermite rule: with logits of deviation 2 moments are right to 0.005


def label_moments(logits: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation) of sigmoid(s), s normal with mean `logits` and `variance`, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    deviation, first, second = variance.sqrt(), torch.zeros_like(logits), torch.zeros_like(logits)
    for node, weight in zip(nodes.tolist(), (weights / math.sqrt(2 * math.pi)).tolist(), strict=True):
        label = torch.sigmoid(logits + node * deviation)
        first, second = first + weight * label, second + weight * label.square()
    return first, (second - first.square()).clamp(min=0).sqrt()


def dropout_variance(scorer: Scorer, share: float) -> tuple[Tensor, Tensor]:
    """Tables of users and items whose inner products are the variances of the logits <x_u, y_i> under dropout.

    Each learned number l of a user's or item's vector is 0 with the chance `share`, else l / (1 - share): it varies by
    t l^2, t = share / (1 - share). The variance of a product of independent numbers is t l_u^2 y^2 + t l_i^2 x^2 +
    t^2 l_u^2 l_i^2, summed over the columns; l is 0 in columns that were not learned.
    """
    vectors, t, learned = scorer.vectors(), share / (1 - share), []
    assert vectors is not None
    for side, table in zip(("user", "item"), vectors, strict=True):
        own = torch.zeros_like(table)
        for name, columns in scorer.row_columns(side).items():
            own[:, columns] = scorer.get_parameter(name)
        learned.append(t * own.square())
    users, items = (table.square() for table in vectors)
    return torch.cat([learned[0], users], 1), torch.cat([items + learned[1], learned[1]], 1)


def is_reliable(logits: Tensor, mean: Tensor, deviation: Tensor, max_variation: float) -> Tensor:
    """Whether sd(e^) / mean(e^) < `max_variation`, from the moments of the imputed label and the predictor's logits s.

    e^ = -log(1 - prediction) - label s is linear in the label: its mean is softplus(s) - mean s, its sd |s| deviation.
    """
    reliable: Tensor = logits.abs() * deviation < max_variation * (softplus(logits) - mean * logits)
    return reliable


@dataclass
class Filtered(Imputation):
    """The imputed errors e^ of `base` where they are reliable, sd(e^) / mean(e^) < `max_variation`, and 0 elsewhere.

    With the risk `dr` that is CDR, mean over D of g e^ + (1/|D|) sum over O of w (e - g e^) with g = 1 where e^ is
    kept: where it is not, that is `ips`. With the right w it is unbiased for any g, since g stands in both terms.
    (Song et al. 2023.)
    The moments are those of the base's model when a share `dropout` of what it learned of user and of item, factors and
    biases, is left out at random and the rest scaled up. The paper takes ten such passes; here the logit, a sum over
    all of these, is taken for normal with its exact variance (`dropout_variance`), and nothing is drawn. The variance
    of e^ in place of sd / mean, as in the released code, keeps nearly all: it is at most logit^2 / 4.
    """

    base: Imputation = field(default_factory=Learned)
    max_variation: float = 0.1
    dropout: float = 0.5

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The base, ready: a model with factors."""
        check_number("max_variation", self.max_variation, at_least=0, advice="0 drops every imputed error.")
        check_number("dropout", self.dropout, above=0, at_most=0.95, advice="It is the share of factors left out.")
        check_parts("base", (self.base,), Imputation)
        base = self.base.init(context, weights)
        if not isinstance(base, LearnedLabel) or base.scorer.vectors() is None:
            raise ConfigError(
                "`base` of Filtered must be learned by a model whose logits are inner products: Learned() or "
                "CalibratedLabels() with the `backbone` 'mf'. Set imputation__base__backbone=mf."
            )
        return FilteredErrors(self, base)


class FilteredErrors(FittedImputation):
    """The errors of a model of the label, where they are reliable."""

    def __init__(self, part: Filtered, base: LearnedLabel) -> None:
        self.part, self.base, self.scorer = part, base, base.scorer
        self.kept: Tensor | None = None  # the share of the pairs of D in the last step that keep their imputed error

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        self.base.refresh(on_log)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        self.base.step(inputs, ratio, rate, shift)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed, imputed_on_pairs = self.base.errors(batch, logits, pair_logits, errors)
        of_rows, of_pairs = self._reliable(batch, logits.detach(), pair_logits.detach())
        if len(pair_logits):
            self.kept = of_pairs.float().mean()
        return of_rows * imputed, of_pairs * imputed_on_pairs

    @torch.no_grad()
    def _reliable(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> tuple[Tensor, Tensor]:
        """g of the rows, and of the pairs of D."""
        own, on_pairs = self.scorer.rows_and_pairs(batch.users, batch.items, batch.pair_users, batch.pair_items)
        variance, variance_on_pairs = self._variance(batch)
        return (
            is_reliable(logits, *label_moments(own, variance), self.part.max_variation),
            is_reliable(pair_logits, *label_moments(on_pairs, variance_on_pairs), self.part.max_variation),
        )

    def _variance(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(variances of the logits of the rows, those of the pairs of D)."""
        users, items = dropout_variance(self.scorer, self.part.dropout)
        if batch.pair_users is None or batch.pair_items is None:
            everywhere = (users @ items.T).flatten()
            return everywhere[self.scorer.position(batch.users, batch.items)], everywhere
        rows = (users[batch.users.long()] * items[batch.items.long()]).sum(1)
        return rows, (users[batch.pair_users.long()] * items[batch.pair_items.long()]).sum(1)

    def state(self) -> list[Tensor]:
        return self.base.state()

    def facts(self) -> dict[str, Any]:
        kept = {} if self.kept is None else {"kept_share": float(self.kept)}
        return {"base": self.base.facts()} | kept
