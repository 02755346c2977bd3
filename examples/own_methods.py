"""Two methods of one's own, to stand in a table beside ours:

counterpoise bench table --datasets coat-like --methods mf own_methods:popularity_snips own_methods:item_rates
"""

from __future__ import annotations

import numpy as np

import counterpoise as cp


def popularity_snips(seed: int) -> cp.DebiasedRecommender:
    """A new combination of parts: self-normalised weights from the popularity of items."""
    return cp.DebiasedRecommender(weights=cp.Popularity(), risk="snips", training=cp.Training(seed=seed))


class ItemRates:
    """Anything with `fit(log, probe)` and `predict_log(log)`: here each item's rate of positive labels."""

    def fit(self, log: cp.FeedbackLog, probe: cp.FeedbackLog | None = None) -> ItemRates:
        """Drawn towards the rate of the whole log by five ratings."""
        positives = np.bincount(log.items, weights=log.labels, minlength=log.shape[1])
        ratings = np.bincount(log.items, minlength=log.shape[1])
        self.rates = (positives + 5 * log.labels.mean()) / (ratings + 5)
        return self

    def predict_log(self, log: cp.FeedbackLog) -> np.ndarray:
        """One score for each row."""
        return self.rates[log.items]


def item_rates(seed: int) -> ItemRates:
    """Nothing random in it, so the seed is not used."""
    return ItemRates()
