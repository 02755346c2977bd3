"""The data model: a log of ratings with coded users and items, and a dataset made of three logs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict, Unpack, get_args

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.config import Duplicates, Feedback, Sample, takes_options
from counterpoise.data.columns import (
    DEFAULT_NAMES,
    feature_table,
    finite_numbers,
    frame_columns,
    names_in,
    observed_entries,
    propensity_numbers,
    rating_column,
    whole_ids,
    whole_times,
)
from counterpoise.data.frames import POLARS, as_frame, is_frame, kind_of_frame, to_kind
from counterpoise.data.ids import Codes, Vocabulary, as_column, same_type
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import ConfigError, DataError, RowError, check_choice, check_number, short_repr

if TYPE_CHECKING:
    from counterpoise.data.batches import Batches
    from counterpoise.data.side_tables import TableEncoder


class ColumnOptions(TypedDict, total=False):
    """The names of the columns of a frame or a file."""

    user_col: str
    item_col: str
    rating_col: str | None
    timestamp_col: str | None
    propensity_col: str | None


class LogOptions(ColumnOptions, total=False):
    """The options with which a frame is read: the names of its columns, and those of `FeedbackLog.from_arrays`."""

    feedback: Feedback | None
    threshold: float | None
    duplicates: Duplicates
    sample: Sample | None
    user_ids: Any
    item_ids: Any
    user_features: ArrayLike | None
    item_features: ArrayLike | None


DEFAULTS = {"user_col": "user_id", "item_col": "item_id", "rating_col": "rating", "duplicates": "auto"}
HEAD_ROWS = 5  # shown in a notebook
OPTIONAL_ROLES = ("timestamp", "propensity")  # columns that a frame may lack where another frame has them


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
    choices of users or a recommender), or None where that is not known. Only a uniform log gives unbiased metrics.
    `feedback`: what a row is: a rating (labels of both kinds), a click (positives alone: every label is 1, `ratings`
    are counts), or an impression (a pair that was shown, with label 1 if it was clicked, else 0).
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
    column_names: Mapping[str, str] | None = None  # by role, as they were called where the log came from
    frame_kind: str = POLARS  # of the frame it was made of: that of results
    user_encoder: TableEncoder | None = None  # what made `user_features` of a table
    item_encoder: TableEncoder | None = None
    feedback: Feedback = "ratings"

    def __post_init__(self) -> None:
        """Check what was collected, and how."""
        check_choice("feedback", self.feedback, get_args(Feedback))
        if self.sample is not None:
            check_choice("sample", self.sample, get_args(Sample))

    @classmethod
    def from_arrays(
        cls,
        users: Any,
        items: Any,
        ratings: Any = None,
        *,
        feedback: Feedback | None = None,
        timestamps: Any = None,
        propensities: Any = None,
        threshold: float | None = None,
        duplicates: Duplicates = "auto",
        user_ids: Any = None,
        item_ids: Any = None,
        user_features: ArrayLike | None = None,
        item_features: ArrayLike | None = None,
        names: Mapping[str, str] | None = None,
        sample: Sample | None = None,
    ) -> FeedbackLog:
        """A log from two columns of clicks or three of ratings, all of equal length.

        `feedback`: "ratings", "clicks" (every row is a click; with a `threshold`, every row at or above it) or
        "impressions" (label 1 where what was shown was clicked, else 0). None: clicks where there are no ratings or
        every label is 1, impressions where they are 0 or 1 in a column named after clicks, else ratings.
        `threshold`: ratings at or above it are positive labels; None takes the ratings themselves as labels.
        `duplicates`: what to do with a pair that occurs twice: "error", keep the "last" (by timestamp where there is
        one, then by row), or the "mean" or the "sum" of its ratings (and the last timestamp). "auto" is "error" for
        ratings and impressions. Clicks are counted: one row a pair with the sum, or the last if there is a threshold.
        `propensities`: the known chance of each row of being observed, in (0, 1], for weights that use it.
        `user_ids`, `item_ids`: all ids, as a `Vocabulary` or a sequence of distinct ids; by default those that occur.
        `names`: what the columns are called, for error messages.
        `sample`: how the pairs were collected, "uniform" or "biased"; None where it is not known.
        """
        check_choice("duplicates", duplicates, get_args(Duplicates))
        if threshold is not None:
            check_number("threshold", threshold, advice="Ratings at or above it count as positive.")
        name = {role: str(column) for role, column in (DEFAULT_NAMES | dict(names or {})).items()}
        user_column, item_column = whole_ids(users, name["user"]), whole_ids(items, name["item"])
        values = np.ones(len(user_column)) if ratings is None else finite_numbers(ratings, name["rating"])
        if ratings is None and (feedback in ("ratings", "impressions") or threshold is not None):
            what = f"feedback={feedback!r}" if threshold is None else "a `threshold`"
            raise DataError(
                f'`ratings` must be given for {what}: without them every row is a click (feedback="clicks").'
            )
        times = None if timestamps is None else whole_times(timestamps, name["timestamp"])
        chances = None if propensities is None else propensity_numbers(propensities, name["propensity"])
        sizes = {len(column) for column in (user_column, item_column, values, times, chances) if column is not None}
        if len(sizes) > 1:
            columns = "users, items, ratings, timestamps and propensities"
            raise DataError(f"{columns} must have equal lengths, got {sorted(sizes)}.")
        if sizes == {0}:
            raise DataError("a log needs at least one row, got none. Were all rows filtered out?")
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
            column_names=names and dict(names),
        )
        feedback = _inferred_feedback(log, name["rating"]) if feedback is None else feedback
        if feedback == "clicks":
            log = log.positives()
            duplicates = ("sum" if threshold is None else "last") if duplicates == "auto" else duplicates
        return _one_row_a_pair(replace(log, feedback=feedback), "error" if duplicates == "auto" else duplicates, name)

    @classmethod
    @takes_options(LogOptions, DEFAULTS)
    def from_frame(cls, frame: Any, **options: Unpack[LogOptions]) -> FeedbackLog:
        """A log from a pandas, polars or pyarrow frame.

        `user_col`, `item_col`, `rating_col`, `timestamp_col`, `propensity_col`: the names of its columns.
        `rating_col`: None for a frame of clicks; that is also what a frame without `rating` is if `feedback` says so,
        or if it has no columns but those that are named here. Without `rating`, a column `clicked`, `click` or
        `is_click` is taken for it.
        `threshold`, `duplicates`, `sample` and all others: as in `from_arrays`.
        """
        given: dict[str, Any] = {**DEFAULTS, **options}
        columns = {role: given.pop(f"{role}_col", None) for role in DEFAULT_NAMES}
        if "rating_col" not in options:
            columns["rating"] = rating_column(as_frame(frame, "frame").columns, given.get("feedback"))
        if "rating_col" not in options and _has_clicks_alone(as_frame(frame, "frame").columns, columns, given):
            columns["rating"] = None
        for role in ("user", "item"):
            if columns[role] is None:
                raise ConfigError(f"`{role}_col` must be the name of a column, got None. Leave it out for {role}_id.")
        names = {role: column for role, column in columns.items() if column is not None}
        found = frame_columns(frame, names)
        given |= {"timestamps": found.get("timestamp"), "propensities": found.get("propensity"), "names": names}
        log = cls.from_arrays(found["user"], found["item"], found.get("rating"), **given)
        return replace(log, frame_kind=kind_of_frame(frame) or POLARS)

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
        """1 where rating >= threshold, else 0; the ratings themselves where there is no threshold; 1 for a click."""
        if self.feedback == "clicks":
            return np.ones(len(self), dtype=np.float32)
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
        """(number of side features of users, of items)."""
        users, items = self.user_features, self.item_features
        return 0 if users is None else users.shape[1], 0 if items is None else items.shape[1]

    @property
    def user_feature_names(self) -> list[str]:
        """The names of the columns of `user_features`."""
        return _feature_names(self.user_encoder, self.feature_columns[0])

    @property
    def item_feature_names(self) -> list[str]:
        """The names of the columns of `item_features`."""
        return _feature_names(self.item_encoder, self.feature_columns[1])

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Each row's pair as one number, user * |I| + item."""
        return self.users.astype(np.int64) * self.shape[1] + self.items

    def keep(self, rows: NDArray[np.bool_]) -> FeedbackLog:
        """The log of the rows of a mask, kept as this one is: in memory or in shards."""
        return self.take(rows)

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

    def with_side_tables(
        self,
        users: Any = None,
        items: Any = None,
        *,
        user_col: str | None = None,
        item_col: str | None = None,
        categorical: Sequence[str] = (),
    ) -> FeedbackLog:
        """The same log with features from tables of users and of items: frames with a column of ids.

        `user_col`, `item_col`: the columns of ids, by default called as in the log, or else user_id and item_id.
        Columns may hold text, dates, lists and gaps; `TableEncoder` says how they are encoded, and `categorical` names
        numbers that are codes. A user or item without a row counts as missing in all columns; rows of others are left
        out. `user_encoder.summary()` says what became of the columns.
        """
        from counterpoise.data.side_tables import SideTable, as_polars, side_fields

        tables = {}
        for side, table, id_col in (("user", users, user_col), ("item", items, item_col)):
            if table is not None:
                frame = as_polars(table)
                own = {role: str(name) for role, name in (self.column_names or {}).items()}
                id_col = names_in(frame.columns, own, (side,))[side] if id_col is None else str(id_col)
                tables[side] = SideTable(frame, id_col, f"the table of {side}s")
        return replace(self, **side_fields(tables, {"user": self.user_ids, "item": self.item_ids}, categorical))

    def split(self, fraction: float, rng: np.random.Generator) -> tuple[FeedbackLog, FeedbackLog]:
        """Two logs: a uniformly drawn share of round(fraction * rows) rows, and the rest; both in the order of rows."""
        check_number("fraction", fraction, at_least=0, at_most=1)
        drawn = np.zeros(len(self), dtype=bool)
        drawn[rng.choice(len(self), round(fraction * len(self)), replace=False)] = True
        return self.take(drawn), self.take(~drawn)

    def batches(
        self, batch_size: int, device: Any, generator: Any, pairs_per_row: int | None = 0, own_users: bool = False
    ) -> Batches:
        """Epochs of batches on a torch device, drawn from a torch generator (see `Batches`)."""
        from counterpoise.data.batches import Batches

        return Batches(self, batch_size, device, generator, pairs_per_row, own_users)

    def to_frame(self) -> Any:
        """The rows in original ids: `user_id, item_id, rating[, timestamp][, propensity]`.

        In the kind of frame that the log was made of, polars by default.
        """
        columns = {
            "user_id": self.user_ids.decode(self.users),
            "item_id": self.item_ids.decode(self.items),
            "rating": pl.Series(self.ratings),
        }
        further = {"timestamp": self.timestamps, "propensity": self.propensities}
        rows = pl.DataFrame(columns | {name: values for name, values in further.items() if values is not None})
        return to_kind(rows, self.frame_kind)

    def positives(self) -> FeedbackLog:
        """The rows with positive labels as a log of clicks: all of them, or those at or above the threshold."""
        if self.threshold is None and not bool((self.ratings > 0).all()):
            raise DataError(
                f'every row must be a click for feedback="clicks", got {int((self.ratings <= 0).sum()):,} of '
                f"{len(self):,} rows with a rating of 0 or less. Give a `threshold` to keep the rows at or above it, "
                'or choose feedback="impressions".'
            )
        kept = self if self.threshold is None else self.take(self.ratings >= self.threshold)
        if len(kept) == 0:
            raise DataError(
                f"no row is a click: no rating is at or above the `threshold` of {self.threshold:g}. Lower it."
            )
        return replace(kept, feedback="clicks")

    def __len__(self) -> int:
        """The number of rows, |O|."""
        return len(self.users)

    def __repr__(self) -> str:
        (users, items), rate = self.shape, f", mean label {self.labels.mean():.3f}" if len(self) else ""
        kind = "rows" if self.feedback == "ratings" else self.feedback
        rate = "" if self.feedback == "clicks" else rate
        return f"<FeedbackLog: {len(self):,} {kind}, {users:,} users x {items:,} items{rate}>"

    def _repr_html_(self) -> str:
        """For notebooks: counts, and the first rows."""
        rows = self.take(np.arange(min(HEAD_ROWS, len(self))))
        table = replace(rows, frame_kind=POLARS).to_frame()
        facts = {"density": f"{self.density:.2%}"}
        if len(self):
            rule = "" if self.threshold is None else f" (rating >= {self.threshold:g} is positive)"
            facts["mean label"] = f"{self.labels.mean():.3f}{rule}"
        facts["pairs"] = {"uniform": "drawn uniformly", "biased": "biased"}.get(str(self.sample), "how is not known")
        if any(self.feature_columns):
            facts["side features"] = "{} of users, {} of items".format(*self.feature_columns)
        return notebook_html(repr(self).strip("<>"), facts, [table.columns, *table.rows()])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A log to learn from, a small uniform sample that methods may use (the probe), and a test (see `test.sample`)."""

    train: FeedbackLog
    probe: FeedbackLog | None = None
    test: FeedbackLog | None = None
    name: str = "unnamed"
    description: dict[str, Any] = field(default_factory=dict)  # where it came from, and what was removed and why
    item_names: pl.DataFrame | None = None  # `item_id` and `name`, the title of each item; ids as those of the log

    @property
    def ranked(self) -> bool:
        """Whether the test has clicks alone, as the log: they can be ranked among all items, and have no AUC."""
        return self.test is not None and self.test.feedback == self.train.feedback == "clicks"

    def _repr_html_(self) -> str:
        """For notebooks: the three logs."""
        parts = {"train": self.train, "probe": self.probe, "test": self.test}
        facts = {part: "none" if log is None else repr(log).strip("<>") for part, log in parts.items()}
        return notebook_html(f"Dataset {self.name}", facts)

    def __post_init__(self) -> None:
        """All three logs must have the same users and items."""
        for part in (self.probe, self.test):
            if part is not None and (part.user_ids, part.item_ids) != (self.train.user_ids, self.train.item_ids):
                raise DataError(
                    "train, probe and test must share their vocabularies. Build all three with the same `user_ids` and "
                    "`item_ids`, or read them together with `read_logs`."
                )


def _feature_names(encoder: TableEncoder | None, columns: int) -> list[str]:
    unnamed = [f"feature {column + 1}" for column in range(columns)]
    return encoder.feature_names_ if encoder is not None and columns else unnamed


def as_log(name: str, value: Any, like: Any = None, **options: Unpack[LogOptions]) -> FeedbackLog:
    """One log with rows, as `as_logs` makes it of a log or a frame."""
    log: FeedbackLog = as_logs({name: value}, like, **options)[0]
    return log


def as_logs(values: Mapping[str, Any], like: Any = None, **options: Unpack[LogOptions]) -> list[Any]:
    """Logs with rows, in the order of `values`: every entry that takes a log calls it.

    `values`: argument -> log or frame, or None for all but the first.

    A frame is read with `options`, else as the frame of `like` (a fitted model or a log), of which column names and
    threshold are known, else as the first log among the values. Several frames get the same users and items: those of
    a log among the values, or those of all frames. `sample` and columns that are named go with the first frame; others
    may lack timestamps and propensities.
    """
    logs = {name: value for name, value in values.items() if isinstance(value, FeedbackLog)}
    needed = next(iter(values))
    rest = {name: value for name, value in values.items() if name not in logs}
    frames = {name: value for name, value in rest.items() if value is not None or name == needed}
    for name, value in frames.items():
        if not is_frame(value):
            came = f"got {type(value).__name__}"
            raise DataError(f"`{name}` must be a FeedbackLog or a frame of pandas, polars or pyarrow, {came}.")
    for name, log in logs.items():
        if len(log) == 0:
            raise DataError(f"`{name}` must have at least one row, got none.")
    if options and not frames:
        listed = ", ".join(f"`{option}`" for option in options)
        raise ConfigError(f"{listed}: such options are for frames. Give them where the log is made.")
    known: dict[str, Any] = _remembered(next(iter(logs.values()), None) if like is None else like)
    if logs:
        given = next(iter(logs.values()))
        known |= {"user_ids": given.user_ids, "item_ids": given.item_ids}
    elif len(frames) > 1:
        known |= _common_ids(frames, {**DEFAULTS, **known, **options})
    for number, (name, frame) in enumerate(frames.items()):
        own = _options_of(frame, name, known, options, first=number == 0)
        try:
            logs[name] = FeedbackLog.from_frame(frame, **own)
        except DataError as error:
            raise DataError(f"`{name}`: {error}") from None
    return [logs.get(name) for name in values]


def _options_of(
    frame: Any, name: str, known: Mapping[str, Any], options: Mapping[str, Any], *, first: bool
) -> dict[str, Any]:
    """The options of one frame: those that are given, else those that are known, of columns that it has."""
    own = {**known, **options}
    for role in OPTIONAL_ROLES:
        named = first and options.get(f"{role}_col") is not None
        if not named and own.get(f"{role}_col") not in as_frame(frame, name).columns:
            own.pop(f"{role}_col", None)
    if "rating_col" not in options and own.get("rating_col") is None:
        own.pop("rating_col", None)  # clicks were known without ratings; this frame may have some
    if not first:
        own.pop("sample", None)
    return own


def _has_clicks_alone(there: Sequence[str], columns: Mapping[str, str | None], options: Mapping[str, Any]) -> bool:
    """Whether a frame with the columns `there` has no ratings, so that its rows are clicks."""
    if columns["rating"] in there or options.get("feedback") in ("ratings", "impressions"):
        return False
    return options.get("feedback") == "clicks" or set(there) <= {*columns.values(), "timestamp"}


def _remembered(like: Any) -> dict[str, Any]:
    """The options of the frame that a log was made of, or that a model was fitted to."""
    if isinstance(like, FeedbackLog):
        names, threshold = like.column_names or {}, like.threshold
    else:
        facts = getattr(like, "log_facts_", {})
        names, threshold = facts.get("columns", {}), facts.get("threshold")
        if not facts:
            return {}
    if "user" not in names:
        names = {role: DEFAULT_NAMES[role] for role in ("user", "item", "rating")} | dict(names)
    return {f"{role}_col": names.get(role) for role in DEFAULT_NAMES} | {"threshold": threshold}


def _common_ids(frames: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Vocabulary]:
    """The users and the items of all frames."""
    found = {}
    for role in ("user", "item"):
        columns = []
        for name, frame in frames.items():
            try:
                columns.append(as_column(frame_columns(frame, {role: options[f"{role}_col"]})[role]))
            except DataError as error:
                raise DataError(f"`{name}`: {error}") from None
        found[f"{role}_ids"] = Vocabulary.of(*same_type(columns))
    return found


def table(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns)


def _vocabulary(given: Any, column: Any) -> Vocabulary:
    if given is None:
        return Vocabulary.of(column)
    return given if isinstance(given, Vocabulary) else Vocabulary(given)


def _inferred_feedback(log: FeedbackLog, rating_name: str) -> Feedback:
    """The kind of feedback, by the labels and the name of their column."""
    labels = log.labels
    if (labels == 1).all():
        return "clicks"
    is_click = log.threshold is None and "click" in rating_name.lower() and bool(((labels == 0) | (labels == 1)).all())
    return "impressions" if is_click else "ratings"


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
        user, item = (
            short_repr(log.user_ids.decode(log.users[[row]])[0]),
            short_repr(log.item_ids.decode(log.items[[row]])[0]),
        )
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
        raise DataError(f'the {rule} of repeated ratings is past the range of numbers. Choose duplicates="last".')
    values = totals / (ends - starts) if rule == "mean" else totals
    return replace(kept, ratings=values[np.argsort(last)])


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
