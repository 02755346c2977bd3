"""Ranges of weighted estimates over all weights within a factor: against all corners."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from counterpoise.evaluation import sensitivity
from counterpoise.evaluation.metrics import Comparison, weighted_auc
from counterpoise.evaluation.sensitivity import auc_ranges, mean_ranges, ndcg_ranges, ratio_ranges
from counterpoise.evaluation.weighted import Lists, positives_of_two


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
    assert mean_ranges(scores, weights, [gamma])[0] == pytest.approx((means.min(), means.max()))
    aucs = weighted_auc(Comparison.of(labels, scores, np.arange(8)), all_weights)
    assert auc_ranges(labels, scores, weights, [gamma])[0] == pytest.approx((aucs.min(), aucs.max()))


@pytest.mark.parametrize("seed", range(5))
def test_range_of_a_ratio_of_sums_is_that_over_all_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    top, bottom, weights = rng.random(8) * (rng.random(8) < 0.7), rng.random(8), rng.exponential(size=8)
    top, bottom = np.r_[top, 0], np.r_[bottom, 0]  # a row that is in neither
    weights = np.r_[weights, 1.0]
    all_weights = corners(weights, 2.0)
    ratios = all_weights @ top / (all_weights @ bottom)
    assert ratio_ranges(top, bottom, weights, [2.0])[0] == pytest.approx((ratios.min(), ratios.max()))


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_the_ndcg_hold_at_all_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, gains = np.r_[1.0, 1.0, 0.0, rng.integers(2, size=7)], rng.random(10)
    weights, users = rng.exponential(size=10), rng.integers(3, size=10)
    lists = Lists(8, 1 / np.log2([2.0, 3.0, 4.0]), gains, gains)

    def ndcg(w):
        gain, rate = (w * labels) @ gains / (w @ gains), w @ labels / w.sum()
        return min(1.0, gain / lists.ideal(rate, positives_of_two(labels, w, users).value))

    both = positives_of_two(labels, weights, users).value
    low, high = ndcg_ranges(labels, gains, weights, both, lists.ideal, [1.5])[0]
    values = [ndcg(w) for w in corners(weights, 1.5)]
    assert low <= min(values) < ndcg(weights) < max(values) <= high


def test_no_unmeasured_cause_leaves_the_estimate() -> None:
    values, weights = np.random.default_rng(0).random((2, 50))
    assert mean_ranges(values, weights, [1.0])[0] == pytest.approx((np.average(values, weights=weights),) * 2)


def test_bins_of_the_score_hardly_narrow_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, weights = rng.random(3000), rng.exponential(size=3000)
    labels = (rng.random(3000) < scores).astype(float)
    binned = auc_ranges(labels, scores, weights, [2.0])[0]
    monkeypatch.setattr(sensitivity, "MAX_BINS", 3000)
    assert binned == pytest.approx(auc_ranges(labels, scores, weights, [2.0])[0], abs=1e-4)
