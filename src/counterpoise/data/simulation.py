"""Simulated data, where preferences and propensities are known, and so the ideal loss of any predictor.

    users A (|U| x d), items B (|I| x d) standard normal,  s = A B' / sqrt(d) + main_effects (0.8 B_i2 + 0.4 A_u2)
    preference  R = sigmoid(1.2 s - 0.5 + 0.8 sin(2 A_u0) cos(2 B_i0));  label ~ Bernoulli(R)
    propensity  P = sigmoid(offset + strength S);  observed ~ Bernoulli(P), where S is by `selection`

    mixed       1.2 s + |A_u1| tanh(2 B_i1) + 0.7 sin(2 A_u0): depends on the preference and on features of the pair
    features    |A_u1| tanh(2 B_i1) + 0.7 sin(2 A_u0): depends on features of the pair alone
    popularity  0.5 g_u + h_i, both standard normal: activity of users, popularity of items; independent of preference
    preference  the label alone: missing not at random
    both        popularity + preference

Under "mixed", selection and preference share s. Its main effects make some items better and some users milder than
others; without them there are only interactions to learn. Whether a pair is observed and which label it has are fixed
by a hash of the pair, so nothing of size |U| x |I| is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from counterpoise.config import Feedback, Sample
from counterpoise.data.hashing import GOLDEN_GAMMA, splitmix64
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.splits import apply_protocol, cold_counts, cold_rows
from counterpoise.errors import DataError, check_choice, check_number

BLOCK_PAIRS = 1 << 20  # pairs that are computed at a time, and drawn to estimate a mean over more
Selection = Literal["mixed", "features", "popularity", "preference", "both"]
Floats = NDArray[np.float64]
PairFunction = Callable[[NDArray[np.int64], NDArray[np.int64]], Floats]


@dataclass(frozen=True, eq=False)
class PairTable:
    """A |U| x |I| matrix that is computed on access: `table[users, items]`, or all of it by `np.asarray(table)`."""

    shape: tuple[int, int]
    function: PairFunction

    def __call__(self, users: Any, items: Any) -> Floats:
        """The values of pairs; users and items broadcast."""
        return self.function(np.asarray(users, dtype=np.int64), np.asarray(items, dtype=np.int64))

    def __getitem__(self, pairs: Any) -> Floats:
        """The values of pairs, of rows or of columns, written as those of a matrix."""
        users, items = pairs if isinstance(pairs, tuple) else (pairs, slice(None))
        if isinstance(users, slice) or isinstance(items, slice):
            user, item = (np.arange(size)[which] for size, which in zip(self.shape, (users, items), strict=True))
            return self(user[..., None] if np.ndim(item) else user, item)
        return self(users, items)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole matrix, |U| x |I| values in memory."""
        return np.concatenate([values for _, _, values in self.blocks()]).astype(dtype or np.float64)

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]:
        """(users as a column, items as a row, values) for successive blocks of users."""
        items = np.arange(self.shape[1])[None, :]
        size = max(1, BLOCK_PAIRS // self.shape[1])
        for start in range(0, self.shape[0], size):
            users = np.arange(start, min(start + size, self.shape[0]))[:, None]
            yield users, items, self(users, items)

    def mean(self) -> float:
        return sum(float(values.sum()) for _, _, values in self.blocks()) / (self.shape[0] * self.shape[1])


@dataclass(frozen=True, eq=False)
class SimulatedData:
    """A simulated dataset, with the propensities, preferences and labels of all pairs."""

    dataset: Dataset
    propensity: PairTable  # P(observed)
    preference: PairTable  # P(label = 1)
    labels: PairTable  # 0 or 1, for all pairs
    user_features: Floats
    item_features: Floats

    def ideal_risk(self, scores: Any) -> float:
        """The mean over all pairs of the log loss of `scores` against the labels: what a debiased risk estimates.

        `scores`: predicted probabilities as a |U| x |I| array, a function of (users, items), or a fitted model.
        """
        return _mean_log_loss(scores, self.labels)

    def selection_bias(self, scores: Any, ratio: Any = None) -> float:
        """(mean over the log of ratio x expected log loss) / (its mean over all pairs) - 1: 0 for unbiased weights.

        The expectation is over the labels: a model that has memorised labels of the log gains nothing by it.
        `ratio`: weight x density of every row of the log, as a fitted model's `ratio_`; None for equal weights.
        """
        log = self.dataset.train
        predict = _predictor(scores, self.preference.shape)
        on_log = _log_loss(predict(log.users, log.items), self.preference[log.users, log.items])
        weights = np.ones(len(log)) if ratio is None else np.asarray(ratio, dtype=np.float64)
        return float((weights * on_log).mean() / _mean_log_loss(scores, self.preference) - 1)


def _mean_log_loss(scores: Any, target: PairTable) -> float:
    predict, total = _predictor(scores, target.shape), 0.0
    for users, items, values in target.blocks():
        pairs = [codes.ravel() for codes in np.broadcast_arrays(users, items)]
        total += float(_log_loss(predict(*pairs), values.ravel()).sum())
    return total / (target.shape[0] * target.shape[1])


def _predictor(scores: Any, shape: tuple[int, int]) -> Callable[[Any, Any], Any]:
    """Probabilities by pair, from a fitted model, a function of (users, items), or a |U| x |I| array."""
    predict = scores.predict if hasattr(scores, "predict") else scores
    if callable(predict):
        return predict  # type: ignore[no-any-return]
    table = np.asarray(scores, dtype=np.float64)
    if table.shape != shape:
        raise DataError(f"`scores` must have the shape {shape} of all pairs, got {table.shape}.")
    return lambda users, items: table[users, items]


def _log_loss(scores: Any, target: Floats) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise DataError("`scores` must be probabilities in [0, 1], got others. Apply a sigmoid to logits first.")
    predicted = np.clip(values, 1e-7, 1 - 1e-7)
    loss: Floats = -target * np.log(predicted) - (1 - target) * np.log1p(-predicted)
    return loss


def simulate(
    n_users: int = 500,
    n_items: int = 400,
    density: float = 0.05,
    seed: int = 0,
    *,
    strength: float = 1.0,
    main_effects: float = 1.0,
    selection: Selection = "mixed",
    n_features: int = 3,
    test_rows_a_user: int = 20,
    probe_fraction: float = 0.05,
    feedback: Feedback = "ratings",
) -> SimulatedData:
    """A biased log, an unbiased probe and test, and the propensities, preferences and labels of all pairs.

    `density` is the mean propensity. `strength` of the selection: 0 is missing at random, 1 the standard design.
    `main_effects`: how much better some items and how much milder some users are than others.
    `selection`: what the propensity depends on, see the module; where it is the label, `propensity` is given the label.
    `test_rows_a_user` uniform pairs a user are drawn as unbiased ratings; the honest protocol then takes the probe from
    them and drops those that are also in the log. Ids are the codes.
    `feedback`: "clicks" keeps the observed pairs with label 1: a click is exposed (with probability `propensity`) and
    relevant (with probability `preference`). The test has the relevance of uniform pairs, and there is no probe.
    "impressions" keeps all observed pairs, as shown, with their labels as clicks.
    """
    check_choice("feedback", feedback, get_args(Feedback))
    for name, size in {"n_users": n_users, "n_items": n_items, "test_rows_a_user": test_rows_a_user}.items():
        check_number(name, size, at_least=1, integer=True)
    check_number("seed", seed, at_least=0, integer=True)
    check_number("n_features", n_features, at_least=3, integer=True)
    check_number("density", density, above=0, at_most=0.9)
    check_number("strength", strength, at_least=0, advice="0 is missing at random.")
    check_number("main_effects", main_effects, at_least=0, advice="0 leaves interactions alone.")
    check_choice("selection", selection, get_args(Selection))
    shape, rng = (n_users, n_items), np.random.default_rng(seed)
    users, items = rng.standard_normal((n_users, n_features)), rng.standard_normal((n_items, n_features))

    def score(u: NDArray[np.int64], i: NDArray[np.int64]) -> Floats:
        main: Floats = main_effects * (0.8 * items[i, 2] + 0.4 * users[u, 2])
        return _affinity(users, items, u, i) + main

    def preference(u: NDArray[np.int64], i: NDArray[np.int64]) -> Floats:
        wave = 0.8 * np.sin(2 * users[u, 0]) * np.cos(2 * items[i, 0])
        return np.asarray(expit(1.2 * score(u, i) - 0.5 + wave))

    def feature_effect(u: NDArray[np.int64], i: NDArray[np.int64]) -> Floats:
        return np.asarray(np.abs(users[u, 1]) * np.tanh(2 * items[i, 1]) + 0.7 * np.sin(2 * users[u, 0]))

    labels = PairTable(shape, lambda u, i: (_uniform(u, i, shape, seed, 0) < preference(u, i)).astype(np.float64))
    own_stream = np.random.default_rng([seed, 2])
    activity, popularity = (own_stream.standard_normal(size) for size in shape)
    selections: dict[Selection, PairFunction] = {
        "mixed": lambda u, i: 1.2 * score(u, i) + feature_effect(u, i),
        "features": feature_effect,
        "popularity": lambda u, i: np.asarray(0.5 * activity[u] + popularity[i]),
        "preference": labels,
        "both": lambda u, i: 0.5 * activity[u] + popularity[i] + labels(u, i),
    }
    logit = PairTable(shape, lambda u, i: strength * selections[selection](u, i))
    offset = _offset(logit, density, rng)
    propensity = PairTable(shape, lambda u, i: expit(offset + logit(u, i)))
    log_users, log_items = _observed(propensity, seed)
    test_users = np.repeat(np.arange(n_users), min(test_rows_a_user, n_items))
    test_items = _distinct_items(n_users, n_items, min(test_rows_a_user, n_items), rng)

    sides: dict[str, Any] = {"user_ids": Vocabulary.numbered(n_users), "item_ids": Vocabulary.numbered(n_items)}
    sides |= {"user_features": users, "item_features": items}

    def log_of(u: NDArray[np.int64], i: NDArray[np.int64], sample: Sample, kind: Feedback) -> FeedbackLog:
        return FeedbackLog.from_arrays(u, i, labels[u, i], sample=sample, feedback=kind, **sides)

    if feedback == "clicks":
        relevant = labels[log_users, log_items] == 1
        log_users, log_items, probe_fraction = log_users[relevant], log_items[relevant], 0.0
    train = log_of(log_users, log_items, "biased", feedback)
    unbiased = log_of(test_users, test_items, "uniform", "ratings")
    probe, test, removed = apply_protocol(train, unbiased, "honest", probe_fraction, rng=rng)
    cold = (
        {"feedback": "ratings", "test_sample": "uniform", "test_feedback": "ratings"}
        | cold_counts(test, cold_rows(train, test))
        | {"dropped_rows": 0}
    )
    description = {"source": "simulated", "seed": seed, "strength": strength, "selection": selection}
    description["feedback"] = feedback
    dataset = Dataset(train, probe, test, "simulated", description | {"protocol": "honest"} | removed | cold)
    return SimulatedData(dataset, propensity, PairTable(shape, preference), labels, users, items)


def _affinity(users: Floats, items: Floats, u: NDArray[np.int64], i: NDArray[np.int64]) -> Floats:
    """<A_u, B_i> / sqrt(d) for broadcasting codes; a matrix product where they form a grid."""
    scale = np.sqrt(users.shape[1])
    if u.ndim == 2 and u.shape[1] == 1 and i.ndim == 2 and i.shape[0] == 1:
        return np.asarray(users[u[:, 0]] @ items[i[0]].T / scale)
    return np.asarray(np.einsum("...d,...d->...", users[u], items[i]) / scale)


def _offset(selection: PairTable, density: float, rng: np.random.Generator) -> float:
    """The offset that makes the mean propensity equal `density`: over all pairs, or over `BLOCK_PAIRS` uniform ones."""
    n_users, n_items = selection.shape
    if n_users * n_items <= BLOCK_PAIRS:
        logits = np.asarray(selection)
    else:
        logits = selection(rng.integers(n_users, size=BLOCK_PAIRS), rng.integers(n_items, size=BLOCK_PAIRS))
    widest = 50 + float(np.abs(logits).max())
    return float(brentq(lambda offset: expit(logits + offset).mean() - density, -widest, widest, xtol=1e-10))


def _observed(propensity: PairTable, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found = []
    for users, items, chance in propensity.blocks():
        row, column = np.nonzero(_uniform(users, items, propensity.shape, seed, 1) < chance)
        found.append((users[row, 0], items[0, column]))
    user_parts, item_parts = zip(*found, strict=True)
    return np.concatenate(user_parts), np.concatenate(item_parts)


def _distinct_items(n_users: int, n_items: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` different uniform items for each user, one after another. (users * count,)"""
    size = max(1, BLOCK_PAIRS // n_items)
    sizes = [min(size, n_users - start) for start in range(0, n_users, size)]
    blocks = [rng.random((rows, n_items)).argpartition(count - 1, axis=1)[:, :count].ravel() for rows in sizes]
    return np.concatenate(blocks)


def _uniform(users: Any, items: Any, shape: tuple[int, int], seed: int, stream: int) -> Floats:
    """A number in [0, 1) fixed by (seed, stream, pair): the hash of the pair's number, user * |I| + item."""
    key = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        numbers = (users * np.int64(shape[1]) + items).astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + key
    return np.asarray((splitmix64(numbers) >> np.uint64(11)) * 2.0**-53)
