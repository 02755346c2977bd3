"""Log odds, and the shrinkage of an estimate by its standard error."""

from __future__ import annotations

from typing import Any

import numpy as np

SHRINKAGE_FACTOR = 2.0  # an estimate counts only where its square exceeds this many times its variance (Akaike's 2)


def log_odds(probability: Any) -> Any:
    """log(p / (1 - p)) of a number or an array."""
    return np.log(probability / (1 - probability))


def shrink_by_error(estimate: float, variance: float) -> float:
    """estimate x [1 - 2 variance / estimate^2]+: 0 where the estimate is within its error, near itself far beyond."""
    square, least = estimate**2, SHRINKAGE_FACTOR * variance
    return estimate * (1 - least / square) if square > least else 0.0
