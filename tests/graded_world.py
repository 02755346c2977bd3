"""Ratings 1 to 5 by proportional odds from effects of users and items, or uninformative beyond the label."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from counterpoise import Dataset, FeedbackLog

CUTS = np.array([1.5, 0.0, -1.0, -2.5])  # cutpoints of ratings 2 to 5; 3 is the threshold


def graded(seed: int = 0, n_users: int = 60, n_items: int = 40, density: float = 0.4, noise: bool = False) -> Dataset:
    """A log observed completely at random, and the rest as probe and test; `noise`: ratings uniform given the label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n_users, 1)) + rng.normal(size=(1, n_items))
    draws = rng.random((n_users, n_items, 1))
    ratings = 1.0 + (draws < expit(logits[..., None] + CUTS)).sum(-1)
    if noise:
        ratings = np.where(ratings >= 3, rng.integers(3, 6, ratings.shape), rng.integers(1, 3, ratings.shape))
    seen = rng.random(ratings.shape) < density
    log, others = (FeedbackLog.from_csr(ratings, mask, threshold=3) for mask in (seen, ~seen))
    return Dataset(log, *others.split(0.1, rng))
