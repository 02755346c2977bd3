"""The data model: a log of ratings with coded users and items, and a dataset made of three logs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.config import Duplicates, Sample
from counterpoise.data.columns import (
    feature_table,
    finite_numbers,
    frame_columns,
    observed_entries,
    propensity_numbers,
    whole_ids,
    whole_times,
)
from counterpoise.data.ids import Codes, Vocabulary
from counterpoise.errors import DataError, RowError, check_choice, check_number, short_repr

if TYPE_CHECKING:
    from counterpoise.data.batches import Batches

DEFAULT_NAMES = {role: role for role in ("rating", "timestamp", "propensity")} | {"user": "user_id", "item": "item_id"}


class PairValues(NamedTuple):
    """A number for each of some pairs, found by binary search."""

    pairs: NDArray[np.int64]  # as in `FeedbackLog.pairs`, in increasing order
    values: NDArray[np.float64]

    def at(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values of these pairs; nan where there is none."""
        place = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[place] == pairs, self.values[place], np.nan)


@dataclass(frozen=True, eq=False)
class FeedbackLog:
    """Observed (user, item, rating) rows over a known set of users and items.

    `users` and `items` are codes, positions in `user_ids` and `item_ids`. D, all pairs, is `user_ids x item_ids`,
    rated or not.
    `sample`: how the pairs were collected: "uniform" (drawn at random from D, as in a randomised trial), "biased" (by
    choices of users or a recommender), or None where nobody said. Only a uniform log gives unbiased metrics.
    """

    users: Codes  # (rows,)
    items: Codes  # (rows,)
    ratings: NDArray[np.float64]  # (rows,) as they came
    user_ids: Vocabulary
    item_ids: Vocabulary
    threshold: float | None = None
    timestamps: NDArray[np.int64] | None = None  # (rows,)
    user_features: NDArray[np.float32] | None = None  # (|U|, columns)
    item_features: NDArray[np.float32] | None = None  # (|I|, columns)
    propensities: NDArray[np.float64] | None = None  # (rows,) in (0, 1], where the chance of being observed is known
    in_memory: ClassVar[bool] = True
    parent_propensities: PairValues | None = None  # of the log it was taken from, with the rows left out
    sample: Sample | None = None

    def __post_init__(self) -> None:
        """Check how the pairs were collected."""
        if self.sample is not None:
            check_choice("sample", self.sample, get_args(Sample))

    @classmethod
    def from_arrays(
        cls,
        users: Any,
        items: Any,
        ratings: Any,
        *,
        timestamps: Any = None,
        propensities: Any = None,
        threshold: float | None = None,
        duplicates: Duplicates = "error",
        user_ids: Any = None,
        item_ids: Any = None,
        user_features: ArrayLike | None = None,
        item_features: ArrayLike | None = None,
        names: Mapping[str, str] | None = None,
        sample: Sample | None = None,
    ) -> FeedbackLog:
        """A log from three columns of equal length.

        `threshold`: ratings at or above it are positive labels; None takes the ratings themselves as labels.
        `duplicates`: what to do with a pair that occurs twice: "error", keep the "last" (by timestamp where there is
        one, then by row), or the "mean" of its ratings (and the last timestamp).
        `propensities`: the known chance of each row of being observed, in (0, 1], for weights that use it.
        `user_ids`, `item_ids`: all ids, as a `Vocabulary` or a sequence of distinct ids; by default those that occur.
        `names`: what the columns are called, for error messages.
        `sample`: how the pairs were collected, "uniform" or "biased"; None where it is not known.
        """
        check_choice("duplicates", duplicates, get_args(Duplicates))
        if threshold is not None:
            check_number("threshold", threshold, advice="Ratings at or above it count as positive.")
        name = DEFAULT_NAMES | dict(names or {})
        user_column, item_column = whole_ids(users, name["user"]), whole_ids(items, name["item"])
        values = finite_numbers(ratings, name["rating"])
        times = None if timestamps is None else whole_times(timestamps, name["timestamp"])
        chances = None if propensities is None else propensity_numbers(propensities, name["propensity"])
        sizes = {len(column) for column in (user_column, item_column, values, times, chances) if column is not None}
        if len(sizes) > 1:
            columns = "users, items, ratings, timestamps and propensities"
            raise DataError(f"{columns} must have equal lengths, got {sorted(sizes)}.")
        if sizes == {0}:
            raise DataError("a log needs at least one row, got none.")
        user_ids, item_ids = _vocabulary(user_ids, user_column), _vocabulary(item_ids, item_column)
        log = cls(
            users=user_ids.require(user_column, "user"),
            items=item_ids.require(item_column, "item"),
            ratings=values,
            user_ids=user_ids,
            item_ids=item_ids,
            threshold=threshold,
            timestamps=times,
            user_features=feature_table(user_features, len(user_ids), "user_features"),
            item_features=feature_table(item_features, len(item_ids), "item_features"),
            propensities=chances,
            sample=sample,
        )
        return _one_row_a_pair(log, duplicates, name)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user_col: str = "user_id",
        item_col: str = "item_id",
        rating_col: str = "rating",
        timestamp_col: str | None = None,
        propensity_col: str | None = None,
        **options: Any,
    ) -> FeedbackLog:
        """A log from a pandas, polars or pyarrow frame. `options` are those of `from_arrays`."""
        roles = {"user": user_col, "item": item_col, "rating": rating_col, "timestamp": timestamp_col}
        roles["propensity"] = propensity_col
        names = {role: column for role, column in roles.items() if column is not None}
        columns = frame_columns(frame, names)
        options |= {"timestamps": columns.get("timestamp"), "propensities": columns.get("propensity"), "names": names}
        return cls.from_arrays(columns["user"], columns["item"], columns["rating"], **options)

    @classmethod
    def from_csr(cls, ratings: Any, mask: Any, **options: Any) -> FeedbackLog:
        """A log from a sparse or dense |U| x |I| matrix; `mask` (same shape) marks the observed entries.

        The mask is needed because in a sparse matrix a rating of 0 and no rating are the same.
        """
        rows, columns, values, shape = observed_entries(ratings, mask)
        for name, size in zip(("user_ids", "item_ids"), shape, strict=True):
            options[name] = _vocabulary(options.get(name), np.arange(size))
            if len(options[name]) != size:
                raise DataError(f"`{name}` must hold {size} ids, as the matrix has, got {len(options[name])}.")
        return cls.from_arrays(options["user_ids"].decode(rows), options["item_ids"].decode(columns), values, **options)

    @cached_property
    def labels(self) -> NDArray[np.float32]:
        """1 where rating >= threshold, else 0; the ratings themselves where there is no threshold."""
        values = self.ratings if self.threshold is None else self.ratings >= self.threshold
        with np.errstate(over="ignore"):  # a rating past float32 is no label: methods and metrics refuse it
            return values.astype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """(|U|, |I|)."""
        return len(self.user_ids), len(self.item_ids)

    @property
    def n_pairs(self) -> int:
        """|D| = |U| |I|, the number of all pairs."""
        return self.shape[0] * self.shape[1]

    @property
    def density(self) -> float:
        """|O| / |D|: the observed share of all pairs."""
        return len(self) / self.n_pairs

    @property
    def feature_columns(self) -> tuple[int, int]:
        """How many side features users and items have."""
        users, items = self.user_features, self.item_features
        return 0 if users is None else users.shape[1], 0 if items is None else items.shape[1]

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Each row's pair as one number, user * |I| + item."""
        return self.users.astype(np.int64) * self.shape[1] + self.items

    def take(self, rows: Any) -> FeedbackLog:
        """The log of some rows (indices or a mask), over the same users and items."""
        columns = ("users", "items", "ratings", "timestamps", "propensities")
        present = {name: getattr(self, name) for name in columns if getattr(self, name) is not None}
        taken: dict[str, Any] = {name: values[rows] for name, values in present.items()}
        return replace(self, parent_propensities=self.known_propensities, **taken)

    @property
    def known_propensities(self) -> PairValues | None:
        """The known propensities of pairs: of its own rows, and of those of the log it was taken from."""
        if self.parent_propensities is not None or self.propensities is None:
            return self.parent_propensities
        order = np.argsort(self.pairs)
        return PairValues(self.pairs[order], self.propensities[order])

    def split(self, fraction: float, rng: np.random.Generator) -> tuple[FeedbackLog, FeedbackLog]:
        """Two logs: a uniformly drawn share of round(fraction * rows) rows, and the rest; both in the order of rows."""
        check_number("fraction", fraction, at_least=0, at_most=1)
        drawn = np.zeros(len(self), dtype=bool)
        drawn[rng.choice(len(self), round(fraction * len(self)), replace=False)] = True
        return self.take(drawn), self.take(~drawn)

    def batches(self, batch_size: int, device: Any, generator: Any, pairs_per_row: int | None = 0) -> Batches:
        """Epochs of batches on a torch device, drawn from a torch generator (see `Batches`)."""
        from counterpoise.data.batches import Batches

        return Batches(self, batch_size, device, generator, pairs_per_row)

    def to_frame(self) -> pl.DataFrame:
        """The rows in original ids: `user_id, item_id, rating[, timestamp][, propensity]`."""
        columns = {
            "user_id": self.user_ids.decode(self.users),
            "item_id": self.item_ids.decode(self.items),
            "rating": pl.Series(self.ratings),
        }
        further = {"timestamp": self.timestamps, "propensity": self.propensities}
        return pl.DataFrame(columns | {name: values for name, values in further.items() if values is not None})

    def __len__(self) -> int:
        """The number of rows, |O|."""
        return len(self.users)

    def __repr__(self) -> str:
        (users, items), rate = self.shape, f", mean label {self.labels.mean():.3f}" if len(self) else ""
        return f"<FeedbackLog: {len(self):,} rows, {users:,} users x {items:,} items{rate}>"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A log to learn from, a small uniform sample that methods may use (the probe), and a test (see `test.sample`)."""

    train: FeedbackLog
    probe: FeedbackLog | None = None
    test: FeedbackLog | None = None
    name: str = "unnamed"
    description: dict[str, Any] = field(default_factory=dict)  # where it came from, and what was removed and why

    def __post_init__(self) -> None:
        """All three logs must have the same users and items."""
        for part in (self.probe, self.test):
            if part is not None and (part.user_ids, part.item_ids) != (self.train.user_ids, self.train.item_ids):
                raise DataError(
                    "train, probe and test must share their vocabularies. Build all three with the same `user_ids` and "
                    "`item_ids`, or read them together with `read_logs`."
                )


def check_log(name: str, value: Any) -> None:
    """Raise `DataError` unless `value` is a log with rows."""
    if not isinstance(value, FeedbackLog):
        raise DataError(f"`{name}` must be a FeedbackLog, got {type(value).__name__}. Use FeedbackLog.from_frame.")
    if len(value) == 0:
        raise DataError(f"`{name}` must have at least one row, got none.")


def table(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns)


def _vocabulary(given: Any, column: Any) -> Vocabulary:
    if given is None:
        return Vocabulary.of(column)
    return given if isinstance(given, Vocabulary) else Vocabulary(given)


def _one_row_a_pair(log: FeedbackLog, rule: Duplicates, names: Mapping[str, str]) -> FeedbackLog:
    """One row for each pair, where its last row stood; timestamp and propensity are those of the last row."""
    in_order = np.sort(log.pairs)  # ten times faster than the sort of rows below, which few logs need
    if not (in_order[1:] == in_order[:-1]).any():
        return log
    times = () if log.timestamps is None else (log.timestamps,)
    order = np.lexsort((*times, log.pairs))  # by pair, then by time, then by row: the sort is stable
    starts = np.flatnonzero(np.r_[True, np.diff(log.pairs[order]) != 0])  # (pairs,) where each pair begins in `order`
    if rule == "error":
        row = int(np.delete(order, starts).min())
        user, item = (short_repr(log.take([row]).to_frame()[name][0]) for name in ("user_id", "item_id"))
        repeats = f"{len(order) - len(starts)} rows repeat a pair, the first is user {user}, item {item}."
        way_out = 'Choose duplicates="last" or duplicates="mean" to keep one row a pair.'
        raise RowError(names["item"], row, f"{repeats} {way_out}")
    ends = np.r_[starts[1:], len(order)]
    last = order[ends - 1]
    kept = replace(log.take(np.sort(last)), parent_propensities=None)
    if rule == "last":
        return kept
    with np.errstate(over="ignore"):
        totals = np.add.reduceat(log.ratings[order], starts)
    if not np.isfinite(totals).all():
        raise DataError('the mean of repeated ratings is past the range of numbers. Choose duplicates="last".')
    return replace(kept, ratings=(totals / (ends - starts))[np.argsort(last)])


def hash_logs(salt: str, *logs: FeedbackLog | None) -> str:
    """A short hash of `salt` and of everything in the logs that a fit or an evaluation may look at.

    It keeps the results of one log from being taken for those of another.
    """
    digest = hashlib.sha256(salt.encode())
    for log in logs:
        digest.update(repr(log and (log.shape, log.sample)).encode())
        names = ("users", "items", "labels", "user_features", "item_features", "propensities")
        for column in () if log is None else (getattr(log, name) for name in names):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]
