"""Six predictions of a known rating matrix, each wrong in its own way: what estimators of the error are tried on.

Schnabel et al. 2016 (Recommendations as Treatments, section 6) have ONE, FOUR, ROTATE, SKEW and CRS; THREE, between
the first two, came with Wang et al. 2019 (Doubly Robust Joint Learning). Sources differ in two details. Here SKEW is
clipped to the scale of the ratings, and CRS says 3 up to a true 3 and 4 above.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ratings = NDArray[np.int64]  # (users, items), 1 to 5
Predictions = NDArray[np.float64]  # (users, items)


def flipped(ratings: Ratings, stars: int, rng: np.random.Generator) -> Predictions:
    """The truth, but as many ratings of `stars`, drawn at random, as there are of 5 are predicted as 5 (or all)."""
    predicted, places = ratings.astype(np.float64), np.flatnonzero(ratings == stars)
    count = min(int((ratings == 5).sum()), len(places))
    predicted.flat[rng.choice(places, count, replace=False)] = 5
    return predicted


def rotated(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """rating - 1, and 5 where the rating is 1."""
    return np.where(ratings >= 2, ratings - 1.0, 5.0)


def skewed(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """Normal around the rating with standard deviation (6 - rating) / 2, clipped to [1, 5]: surest of what is liked."""
    return np.clip(rng.normal(ratings, (6 - ratings) / 2), 1, 5)


def coarsened(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """3 where the rating is at most 3, else 4."""
    return np.where(ratings <= 3, 3.0, 4.0)


MATRICES: dict[str, Callable[[Ratings, np.random.Generator], Predictions]] = {
    "one": lambda ratings, rng: flipped(ratings, 1, rng),
    "three": lambda ratings, rng: flipped(ratings, 3, rng),
    "four": lambda ratings, rng: flipped(ratings, 4, rng),
    "rotate": rotated,
    "skew": skewed,
    "crs": coarsened,
}
