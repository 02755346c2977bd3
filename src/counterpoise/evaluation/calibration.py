"""Calibration: predicted probabilities in bins against the rate of positive labels in each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import DataError, check_number


@dataclass(frozen=True)
class CalibrationBin:
    """Rows with similar predictions: their number, mean prediction and mean label with its 95 % interval (Wilson)."""

    rows: int
    predicted: float  # the mean prediction
    observed: float  # the mean label
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def calibration_bins(scores: ArrayLike, labels: ArrayLike, bins: int = 10) -> list[CalibrationBin]:
    """At most `bins` bins of nearly equal size, in ascending order of the predicted probability.

    Equal predictions stay together, so that a bin does not depend on the order of rows: there may be fewer bins.
    """
    check_number("bins", bins, at_least=1, integer=True)
    p, y = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
    if p.ndim != 1 or p.shape != y.shape or p.size == 0:
        raise DataError(f"`scores` and `labels` must be two columns of one length, got {p.shape} and {y.shape}.")
    if not (p.min() >= 0 and p.max() <= 1 and y.min() >= 0 and y.max() <= 1):
        raise DataError("`scores` and `labels` must lie in [0, 1]: only probabilities can be calibrated.")
    order = np.argsort(p, kind="stable")
    p, y = p[order], y[order]
    cuts = np.searchsorted(p, p[np.arange(1, bins) * p.size // bins])  # moved to the first of equal predictions
    found = []
    for low, high in pairwise(np.unique([0, *cuts, p.size]).tolist()):
        rows, rate = high - low, float(y[low:high].mean())
        found.append(CalibrationBin(rows, float(p[low:high].mean()), rate, *wilson_interval(rate, rows)))
    return found


def calibration_error(bins: list[CalibrationBin]) -> float:
    """sum_b n_b / n |observed_b - predicted_b|: the expected calibration error."""
    rows = sum(one.rows for one in bins)
    return sum(one.rows * abs(one.observed - one.predicted) for one in bins) / rows


def wilson_interval(rate: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a rate p of n rows (Wilson, 1927), with z = 1.96:

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    z = 1.96
    centre = rate + z**2 / (2 * rows)
    half = z * np.sqrt(rate * (1 - rate) / rows + z**2 / (4 * rows**2))
    low, high = (centre - half) / (1 + z**2 / rows), (centre + half) / (1 + z**2 / rows)
    return max(0.0, float(low)), min(1.0, float(high))
