"""Pseudo-labels where two models agree: asymmetric tri-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_number
from counterpoise.imputation.base import ips_model
from counterpoise.models.base import Scorer
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, Weights
from counterpoise.training.loop import MAX_EXACT_PAIRS
from counterpoise.weights.base import NaiveBayes
from counterpoise.weights.propensity import KnownPropensity


@dataclass
class TriTraining(Imputation):
    """Labels imputed by one of two models, on the pairs where both agree: |first - second| <= `threshold`.

    Both are trained with the risk `ips` and these `weights`, the first on the log and the second on as many rows drawn
    from it with replacement, so they disagree where the log has few rows: from other starting points alone, the same
    rows lead a regularised model to the same place. The imputed label is the first's probability, and there is none
    where they disagree. With the risk "direct" a third model, the recommender, learns from the mean over the agreeing
    pairs of D: the mean over all pairs of error x [agree] / share of D that agrees.
    (ASIPS, Saito 2020, Asymmetric Tri-training for Debiasing Missing-Not-At-Random Explicit Feedback.)
    """

    weights: Weights = field(default_factory=NaiveBayes)
    threshold: float = 0.1

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Train both models, and see how far they agree."""
        check_number("threshold", self.threshold, at_least=0, advice="1 takes every pair.")
        if not isinstance(self.weights, Weights):
            raise ConfigError(f"`weights` must be a Weights part, got {self.weights!r}.")
        if isinstance(self.weights, KnownPropensity) and np.ndim(self.weights.propensity) == 1:
            raise ConfigError(
                "`propensity` must not be an array by rows here, since rows are drawn again for the second model. "
                "Give the log its `propensities`, or a matrix."
            )
        again = context.on(_resampled(context))
        agreeing = _FittedTriTraining(ips_model(context, self.weights), ips_model(again, self.weights), self.threshold)
        agreeing.measure(context)
        return agreeing


def _resampled(context: FitContext) -> FeedbackLog:
    """As many rows of the log, drawn with replacement."""
    rows = len(context.log)
    return context.log.take(torch.randint(rows, (rows,), generator=context.generator).numpy())


class _FittedTriTraining(FittedImputation):
    def __init__(self, first: Scorer, second: Scorer, threshold: float) -> None:
        self.first, self.second, self.threshold, self.share = first, second, threshold, 1.0
        self._everywhere: tuple[Tensor, Tensor] | None = None

    def measure(self, context: FitContext) -> None:
        """The share of D that agrees: of all pairs, or of a uniform sample of those of a large D."""
        self.prior_scale = context.log.density  # its risk is a mean over D
        everywhere = context.log.n_pairs <= MAX_EXACT_PAIRS
        users, items = (None, None) if everywhere else _sample(context)
        self.share = float(agree(*self._probabilities(users, items), self.threshold).float().mean())
        if self.share == 0:
            raise ConfigError(
                f"`threshold` is {self.threshold:g}, and the two models differ by more on every pair, so none is left "
                "to learn from. Raise it: 1 takes every pair."
            )

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        pair_labels, pair_counts = self._labels(batch.pair_users, batch.pair_items)
        if batch.pair_users is None:
            position = self.first.position(batch.users, batch.items)
            labels, counts = pair_labels[position], pair_counts[position]
        else:
            labels, counts = self._labels(batch.users, batch.items)
        return counts * error(labels, logits), pair_counts * error(pair_labels, pair_logits)

    def _labels(self, users: Tensor | None, items: Tensor | None) -> tuple[Tensor, Tensor]:
        """(label, [agree] / share) of each pair; of all of D, where neither changes, worked out once."""
        if users is None and self._everywhere is not None:
            return self._everywhere
        first, second = self._probabilities(users, items)
        labels = first, agree(first, second, self.threshold) / self.share
        if users is None:
            self._everywhere = labels
        return labels

    @torch.no_grad()
    def _probabilities(self, users: Tensor | None, items: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(self.first.at(users, items)), torch.sigmoid(self.second.at(users, items))

    def facts(self) -> dict[str, Any]:
        return {"share_agreed": self.share}


def agree(first: Tensor, second: Tensor, threshold: float) -> Tensor:
    """Per pair: whether |first - second| <= threshold."""
    return (first - second).abs() <= threshold


def _sample(context: FitContext) -> tuple[Tensor, Tensor]:
    """As many uniform pairs of D as are looked at all together elsewhere."""
    users, items = (torch.randint(high, (MAX_EXACT_PAIRS,), generator=context.generator) for high in context.log.shape)
    return users.to(context.device), items.to(context.device)
