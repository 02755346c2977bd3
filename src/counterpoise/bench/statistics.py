"""Comparisons over seeds and over users: pure functions of arrays that return nan where a value is not defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from counterpoise.evaluation.evaluate import percentile_interval

Floats = NDArray[np.float64]
Interval = tuple[float, float]
MIN_SEEDS = 5  # of a test: with fewer, a few lucky seeds look like significance
DECIMALS = 12  # metrics that differ by less are equal up to rounding


def mean_and_deviation(values: ArrayLike) -> tuple[float, float]:
    """Mean m and sqrt(sum (x - m)^2 / (n - 1)). Without values both are nan, with a single one the deviation is."""
    x = np.asarray(values, np.float64)
    if not x.size:
        return math.nan, math.nan
    return float(x.mean()), float(x.std(ddof=1)) if x.size > 1 else math.nan


def paired_t_test(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p of t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom, d = first - second."""
    return _p_value(first, second, lambda d: stats.ttest_1samp(d, 0.0))


def wilcoxon_test(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; pairs that are equal are left out, ties share their mean rank."""
    return _p_value(first, second, lambda d: stats.wilcoxon(d[d != 0]))


def _p_value(first: ArrayLike, second: ArrayLike, test: Callable[[Floats], Any]) -> float:
    """p of a test of the paired differences: nan for fewer than `MIN_SEEDS` pairs, 1 if all differences are 0.

    nan if all are the same other number: there is no spread to judge them by, and p = 0 would be wrong.
    """
    differences = np.round(np.asarray(first, np.float64) - np.asarray(second, np.float64), DECIMALS)
    if len(differences) < MIN_SEEDS:
        return math.nan
    if not differences.any():
        return 1.0
    return math.nan if np.ptp(differences) == 0 else float(test(differences).pvalue)


def holm(p_values: ArrayLike) -> Floats:
    """Holm's (1979) correction for m tests: the i-th smallest p becomes max over j <= i of min(1, (m - j + 1) p_(j)).

    nan stays nan, and does not count as a test.
    """
    p = np.asarray(p_values, np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested])]
    corrected = np.full_like(p, np.nan)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(order), 0, -1)))
    return corrected


def interval_over_users(replicates: ArrayLike, level: float = 0.95) -> Interval:
    """The percentile interval of the mean over seeds, from replicates (seeds, replicates) over resampled users.

    Replicate r of the mean is the mean over seeds of replicate r. Give differences of two methods for the interval of
    their difference: replicate r of one seed has drawn the same users for both.
    """
    values = np.asarray(replicates, np.float64)
    if not values.size:
        return math.nan, math.nan
    return percentile_interval(values.mean(axis=0), level)
