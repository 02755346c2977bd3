"""How far a cause of selection that was not measured could move a weighted estimate.

If it changes the odds of being observed by at most a factor of Gamma either way, the right weight of a row lies in
[w / Gamma, Gamma w] (the marginal sensitivity model; Tan 2006, A Distributional Approach for Causal Inference Using
Propensity Scores; Zhao, Small and Bhattacharya 2019, Sensitivity Analysis for Inverse Probability Weighting Estimators
via the Percentile Bootstrap). The range of a mean, of a ratio of sums and of an AUC over all such weights has a closed
form: at its ends every weight is at one of its two bounds, and a threshold on the values decides which. The range of an
NDCG has none here; it is bounded from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Range = tuple[float, float]
MAX_BINS = 512  # of the score: thresholds at 512 quantiles give the ends of the range to 1e-5
MAX_CELLS = 64  # of the share of positives: in each of them the NDCG is bounded by itself


def mean_ranges(values: Floats, weights: Floats, gammas: Sequence[float]) -> list[Range]:
    """For each gamma the least and the greatest sum v_i x_i / sum v_i with w_i / gamma <= v_i <= gamma w_i.

    The greatest gives gamma w to all values above a threshold and w / gamma to those below: with values in ascending
    order and W_t, S_t the sums of w and w x over the first t of n rows, it is the maximum over t of
    (S_t / gamma + gamma (S_n - S_t)) / (W_t / gamma + gamma (W_n - W_t)).
    """
    order = np.argsort(values)
    weights = weights[order]
    total, product = (np.r_[0, np.cumsum(part)] for part in (weights, weights * values[order]))

    def means(below: float, above: float) -> Floats:
        top, bottom = ((below - above) * sums + above * sums[-1] for sums in (product, total))
        return np.asarray(top / bottom)

    return [(float(means(gamma, 1 / gamma).min()), float(means(1 / gamma, gamma).max())) for gamma in gammas]


def ratio_ranges(top: Floats, bottom: Floats, weights: Floats, gammas: Sequence[float]) -> list[Range]:
    """The ranges of sum v a / sum v b with b >= 0, and a = 0 where b = 0: the mean of a / b with the weights w b."""
    counted = bottom > 0
    return mean_ranges(top[counted] / bottom[counted], weights[counted] * bottom[counted], gammas)


def auc_ranges(labels: Floats, scores: Floats, weights: Floats, gammas: Sequence[float]) -> list[Range]:
    """For each gamma the least and the greatest weighted AUC with w_i / gamma <= v_i <= gamma w_i.

    For given weights of the negatives it is a weighted mean over the positives of the share of negatives below, which
    grows with the score, so by `mean_ranges` the positives above some score weigh gamma w at the greatest AUC, and so
    do the negatives below some score. Both thresholds are searched together: all of them up to `MAX_BINS`
    different scores, and as many quantiles of the weight where there are more.
    """
    order = np.argsort(scores)
    score, w = scores[order], weights[order]
    of_positive = np.where(labels[order] > 0, w, 0.0)
    of_negative = w - of_positive
    starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])  # of equal scores
    p, q = (np.add.reduceat(part, starts) for part in (of_positive, of_negative))
    bins = _bins(p + q)
    first = np.flatnonzero(np.r_[True, np.diff(bins) > 0])
    below = np.cumsum(q) - q / 2  # of the negatives, half of those of the same score
    start = (np.cumsum(q) - q)[first]  # where each bin begins
    within = np.add.reduceat(p * (below - start[bins]), first)
    p, q = (np.add.reduceat(part, first) for part in (p, q))
    wins = np.tril(np.outer(p, q), -1) + np.diag(within)  # (positives, negatives)
    corner = np.pad(wins.cumsum(0).cumsum(1), ((1, 0), (1, 0)))  # of the first bins of both classes
    rows, columns = corner[:, -1:], corner[-1:]
    low = [np.r_[0, np.cumsum(sums)] for sums in (p, q)]
    high = [sums[-1] - sums for sums in low]

    def aucs(g: float) -> Floats:
        """At all pairs of thresholds: positives weigh w / g below theirs and g w above, negatives the reverse."""
        top = corner + (rows - corner) / g**2 + (columns - corner) * g**2 + corner[-1, -1] - rows - columns + corner
        return np.asarray(top / np.outer(low[0] / g + g * high[0], g * low[1] + high[1] / g))

    return [(float(aucs(1 / gamma).min()), float(aucs(gamma).max())) for gamma in gammas]


def _bins(weights: Floats) -> NDArray[np.int64]:
    """The number of each different score's bin, ascending, from the weight of each score."""
    if len(weights) <= MAX_BINS:
        return np.arange(len(weights))
    share = np.cumsum(weights)
    quantile = np.minimum(share / share[-1] * MAX_BINS, MAX_BINS - 1).astype(np.int64)
    return np.cumsum(np.r_[False, np.diff(quantile) > 0]).astype(np.int64)


def ndcg_ranges(
    labels: Floats,
    gains: Floats,
    weights: Floats,
    both: float,
    ideal: Callable[[float, float], float],
    gammas: Sequence[float],
) -> list[Range]:
    """For each gamma bounds of sum v y c / sum v c / ideal(r, q), which hold for all w / gamma <= v <= gamma w.

    r = sum v y / sum v is the share of positives, and q, now `both`, that of pairs of rows of a user which are both
    positive. With a and b the means of c over the positives and over the negatives, the gain is
    r a / (r a + (1 - r) b). For each of 64 cells of r it is bounded by the ranges of a and b, and overall by its own. A
    pair of rows weighs up to gamma^2 as much, so the odds of q are within a factor of gamma^4. `ideal` grows with r and
    falls with q. One set of weights cannot reach all these ends: the bounds are wider than the range.
    """
    positive = labels > 0
    means = [mean_ranges(gains[rows], weights[rows], gammas) for rows in (positive, ~positive)]
    rates, overall = mean_ranges(labels, weights, gammas), ratio_ranges(labels * gains, gains, weights, gammas)
    found = []
    for place, gamma in enumerate(gammas):
        of_positive, of_negative = means[0][place], means[1][place]
        ends = np.linspace(*rates[place], MAX_CELLS + 1)
        odds = both / max(1 - both, 1e-12)
        pairs = [odds * factor / (1 + odds * factor) for factor in (gamma**-4, gamma**4)]

        def gain(r: float, a: float, b: float) -> float:
            return r * a / (r * a + (1 - r) * b)

        low, high = [], []
        for r, s in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            least = max(gain(r, of_positive[0], of_negative[1]), overall[place][0])
            most = min(gain(s, of_positive[1], of_negative[0]), overall[place][1])
            low.append(least / ideal(s, max(pairs[0], r**2)))
            high.append(most / ideal(r, pairs[1]))
        found.append((min(low), min(max(high), 1.0)))
    return found
