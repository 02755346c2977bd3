"""How far a cause of selection that was not measured could move a weighted estimate.

If it changes the odds of being observed by at most a factor of Gamma either way, the right weight of a row lies in
[w / Gamma, Gamma w] (the marginal sensitivity model; Tan 2006, A Distributional Approach for Causal Inference Using
Propensity Scores; Zhao, Small and Bhattacharya 2019, Sensitivity Analysis for Inverse Probability Weighting Estimators
via the Percentile Bootstrap). The range of an estimate over all such weights has a closed form: at its ends every
weight is at one of its two bounds, and a threshold on the values says which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_BINS = 512  # of the score: thresholds at 512 quantiles give the ends of the range to 1e-5


def mean_range(values: Floats, weights: Floats, gamma: float) -> tuple[float, float]:
    """The least and the greatest sum v_i x_i / sum v_i with w_i / gamma <= v_i <= gamma w_i.

    The greatest gives gamma w to all values above a threshold and w / gamma to those below: with values in ascending
    order and W_t, S_t the sums of w and w x over the first t of n rows, it is the maximum over t of
    (S_t / gamma + gamma (S_n - S_t)) / (W_t / gamma + gamma (W_n - W_t)).
    """
    order = np.argsort(values)
    total = np.r_[0, np.cumsum(weights[order])]
    product = np.r_[0, np.cumsum((weights * values)[order])]

    def means(below: float, above: float) -> Floats:
        top, bottom = (below * sums + above * (sums[-1] - sums) for sums in (product, total))
        return np.asarray(top / bottom)

    return float(means(gamma, 1 / gamma).min()), float(means(1 / gamma, gamma).max())


def auc_range(labels: Floats, scores: Floats, weights: Floats, gamma: float) -> tuple[float, float]:
    """The least and the greatest weighted AUC with w_i / gamma <= v_i <= gamma w_i.

    For given weights of the negatives it is a weighted mean over the positives of the share of negatives below, which
    grows with the score, so by `mean_range` the positives above some score weigh gamma w at the greatest AUC, and so do
    the negatives below some score. Both thresholds are searched together: all of them up to `MAX_BINS`
    different scores, and as many quantiles of the weight where there are more.
    """
    positive = np.asarray(labels) > 0
    bins = _bins(scores, weights)
    p, q = (np.bincount(bins[which], weights[which], bins.max() + 1) for which in (positive, ~positive))
    wins = np.tril(np.outer(p, q), -1) + np.diag(
        _wins_within(bins, positive, scores, weights)
    )  # (positives, negatives)
    corner = np.pad(wins.cumsum(0).cumsum(1), ((1, 0), (1, 0)))  # of the first bins of both classes
    rows, columns = corner[:, -1:], corner[-1:]
    low = [np.r_[0, np.cumsum(sums)] for sums in (p, q)]
    high = [sums[-1] - sums for sums in low]

    def aucs(g: float) -> Floats:
        """At all pairs of thresholds: positives weigh w / g below theirs and g w above, negatives the reverse."""
        top = corner + (rows - corner) / g**2 + (columns - corner) * g**2 + corner[-1, -1] - rows - columns + corner
        return np.asarray(top / np.outer(low[0] / g + g * high[0], g * low[1] + high[1] / g))

    return float(aucs(1 / gamma).min()), float(aucs(gamma).max())


def _bins(scores: Floats, weights: Floats) -> NDArray[np.int64]:
    """The number of each row's bin of the score; equal scores share one."""
    different, code = np.unique(scores, return_inverse=True)
    if len(different) <= MAX_BINS:
        return code
    share = np.cumsum(np.bincount(code, weights))
    return np.unique(
        np.minimum(share / share[-1] * MAX_BINS, MAX_BINS - 1).astype(np.int64)[code], return_inverse=True
    )[1]


def _wins_within(bins: NDArray[np.int64], positive: NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """For each bin, the sum over its positives a and negatives b of w_a w_b ([s_a > s_b] + [s_a = s_b] / 2)."""
    order = np.argsort(scores)
    by_score, w = scores[order], weights[order]
    negatives = np.r_[0, np.cumsum(np.where(positive[order], 0, w))]
    below = (
        negatives[np.searchsorted(by_score, by_score)] + negatives[np.searchsorted(by_score, by_score, "right")]
    ) / 2
    own = bins[order]
    first = np.searchsorted(own, own)  # bins ascend with the score
    wins = np.where(positive[order], w, 0) * (below - negatives[first])
    return np.asarray(np.bincount(own, wins), np.float64)
