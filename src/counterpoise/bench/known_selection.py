"""A complete rating matrix and the chance of every rating of being observed: a log whose truth is known.

The design of Schnabel et al. 2016: complete a matrix, give it the rating distribution that was measured on items
drawn at random, and let people rate what they like. So selection depends on the rating itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.bench.prediction_matrices import Ratings
from counterpoise.datasets import load
from counterpoise.errors import ConfigError, DataError, check_number
from counterpoise.feedback import FeedbackLog
from counterpoise.making import make
from counterpoise.simulation import simulate
from counterpoise.vocabulary import Vocabulary

MARGINALS = (0.526, 0.242, 0.144, 0.062, 0.026)  # P(1) .. P(5) over all pairs (Marlin and Zemel 2009; Schnabel et al.)
PAIRS_LIMIT = 20_000_000  # pairs of which the whole matrix is held
Floats = NDArray[np.float64]
Features = NDArray[np.float64] | NDArray[np.float32] | None
Data = FeedbackLog | str | Path | None


def random_numbers(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator of its own for each purpose: what one draws does not depend on who else draws."""
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in purpose)])


class Draw(NamedTuple):
    """One log that might have been observed, and a small uniform sample beside it; their ratings lie in [0, 1]."""

    log: FeedbackLog
    probe: FeedbackLog


@dataclass(frozen=True, eq=False)
class KnownSelection:
    """Every rating and every propensity, and the side features where there are any."""

    ratings: Ratings
    propensity: Floats  # (users, items)
    user_features: Features = None
    item_features: Features = None

    @property
    def has_side_features(self) -> bool:
        """Whether there is anything to balance without learning it."""
        return self.user_features is not None or self.item_features is not None

    def fingerprint(self) -> str:
        """A hash of all that is known."""
        arrays = (self.ratings, self.propensity, self.user_features, self.item_features)
        parts = (b"none" if array is None else str(array.shape).encode() + array.tobytes() for array in arrays)
        return hashlib.sha256(b"|".join(parts)).hexdigest()

    def observe(self, rng: np.random.Generator) -> Draw:
        """Every pair is observed with its propensity; the probe has as many uniform pairs as there are users."""
        observed = rng.random(self.ratings.shape) < self.propensity
        probed = rng.choice(self.ratings.size, min(len(self.ratings), self.ratings.size), replace=False)
        if not observed.any():
            raise DataError("no pair was observed in a draw. Take a larger matrix or a larger `density`.")
        return Draw(self._log(np.flatnonzero(observed)), self._log(np.sort(probed)))

    def _log(self, pairs: NDArray[np.int64]) -> FeedbackLog:
        users, items = np.divmod(pairs, self.ratings.shape[1])
        return FeedbackLog.from_arrays(
            users,
            items,
            (self.ratings.flat[pairs] - 1) / 4,
            user_ids=Vocabulary.numbered(self.ratings.shape[0]),
            item_ids=Vocabulary.numbered(self.ratings.shape[1]),
            user_features=self.user_features,
            item_features=self.item_features,
        )


def known_selection(
    data: Data = None,
    seed: int = 0,
    *,
    density: float = 0.05,
    alpha: float = 0.25,
    n_users: int = 500,
    n_items: int = 400,
) -> KnownSelection:
    """The design on `data`: a log of ratings, the name of a dataset or a file; None for a simulated preference.

    A log is completed by matrix factorisation (`completed`); of the simulated one (`n_users` x `n_items`) the
    preference of every pair is known, and side features are what it is made of.
    """
    scores, users, items = _simulated(n_users, n_items, seed) if data is None else _from_log(data, seed)
    ratings = ratings_by_rank(scores)
    return KnownSelection(ratings, selective_propensity(ratings, density, alpha), users, items)


def _simulated(n_users: int, n_items: int, seed: int) -> tuple[Floats, Features, Features]:
    world = simulate(n_users, n_items, seed=seed)
    return np.asarray(world.preference), world.user_features, world.item_features


def _from_log(data: FeedbackLog | str | Path, seed: int) -> tuple[Floats, Features, Features]:
    log = data if isinstance(data, FeedbackLog) else load(data).train
    return completed(log, seed), log.user_features, log.item_features


def completed(log: FeedbackLog, seed: int = 0) -> Floats:
    """A score for every pair, from matrix factorisation of the ratings. Only the order of the scores is used."""
    if log.n_pairs > PAIRS_LIMIT:
        raise DataError(
            f"the study holds all pairs in memory and takes {PAIRS_LIMIT:,} at most, got {log.n_pairs:,}. "
            "Give it a log of fewer users or items."
        )
    low, high = float(log.ratings.min()), float(log.ratings.max())
    if low == high:
        raise DataError(f"the ratings must differ, all of them are {low:g}.")
    scaled = replace(log, ratings=(log.ratings - low) / (high - low), threshold=None)
    scorer = make("mf", seed=seed, device="cpu").fit(scaled).scorer_
    return scorer.grid(torch.arange(log.shape[0])).double().numpy()


def ratings_by_rank(scores: Floats, marginals: tuple[float, ...] = MARGINALS) -> Ratings:
    """1 for the lowest marginals[0] of all scores, 2 for the next marginals[1], and so on; ties by position."""
    last = np.round(np.cumsum(marginals)[:-1] * scores.size).astype(np.int64)
    ratings = np.empty(scores.size, np.int64)
    ratings[np.argsort(scores, axis=None, kind="stable")] = 1 + np.searchsorted(
        last, np.arange(scores.size), side="right"
    )
    return ratings.reshape(scores.shape)


def selective_propensity(ratings: Ratings, density: float = 0.05, alpha: float = 0.25) -> Floats:
    """P(observed) = k alpha^max(0, 4 - rating), with k such that its mean is `density`; alpha = 1 is no selection."""
    check_number("density", density, above=0, at_most=1)
    check_number("alpha", alpha, above=0, at_most=1, advice="1 observes all ratings alike.")
    relative = float(alpha) ** np.maximum(0, 4 - ratings)
    propensity: Floats = relative * (density / relative.mean())
    if propensity.max() > 1:
        raise ConfigError(
            f"`density` must be at most {relative.mean():.3g} for alpha={alpha:g}, got {density:g}: "
            "ratings of 4 and 5 would be observed with a chance above 1."
        )
    return propensity


def noisy_propensity(propensity: Floats, rng: np.random.Generator) -> Floats:
    """1 / noisy = beta / propensity + (1 - beta) / density, beta uniform in [0, 1] for each pair (Wang et al. 2019).

    `density` is the mean propensity. beta = 1 is the truth, beta = 0 no correction.
    """
    beta = rng.random(propensity.shape)
    noisy: Floats = 1 / (beta / propensity + (1 - beta) / propensity.mean())
    return noisy
