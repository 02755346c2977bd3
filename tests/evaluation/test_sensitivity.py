"""Ranges of weighted estimates over all weights within a factor: against all corners."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from counterpoise.evaluation import sensitivity
from counterpoise.evaluation.metrics import Comparison, weighted_auc
from counterpoise.evaluation.sensitivity import auc_range, mean_range


def corners(weights, gamma: float):
    """Every choice of bounds: both ratios have their extremes at one of them."""
    return weights * np.array(list(product([1 / gamma, gamma], repeat=len(weights))))


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_over_all_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, scores = np.r_[1.0, 0.0, rng.integers(2, size=6)], rng.integers(5, size=8).astype(float)
    weights, gamma = rng.exponential(size=8), float(rng.choice([1.5, 2, 5]))
    all_weights = corners(weights, gamma)
    means = all_weights @ scores / all_weights.sum(1)
    assert mean_range(scores, weights, gamma) == pytest.approx((means.min(), means.max()))
    aucs = weighted_auc(Comparison.of(labels, scores, np.arange(8)), all_weights)
    assert auc_range(labels, scores, weights, gamma) == pytest.approx((aucs.min(), aucs.max()))


def test_no_unmeasured_cause_leaves_the_estimate() -> None:
    values, weights = np.random.default_rng(0).random((2, 50))
    assert mean_range(values, weights, 1.0) == pytest.approx((np.average(values, weights=weights),) * 2)


def test_bins_of_the_score_hardly_narrow_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, weights = rng.random(3000), rng.exponential(size=3000)
    labels = (rng.random(3000) < scores).astype(float)
    binned = auc_range(labels, scores, weights, 2.0)
    monkeypatch.setattr(sensitivity, "MAX_BINS", 3000)
    assert binned == pytest.approx(auc_range(labels, scores, weights, 2.0), abs=1e-4)
