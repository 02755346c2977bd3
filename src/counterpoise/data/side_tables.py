"""Tables of users, items or rows as people have them, encoded as matrices of numbers.

`TableEncoder` learns from one table how each of its columns becomes numbers, and does the same to other tables. What it
has learned is plain JSON: loading it executes nothing. Values stay in their own units, so that means can be read; who
needs one scale standardises (`TableEncoder.standardise`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, TypeVar, get_args

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.config import Configurable, MissingValues
from counterpoise.data.columns import whole_ids
from counterpoise.data.ids import Vocabulary, as_text, cast_or_keep, from_native, series, type_name
from counterpoise.errors import (
    ConfigError,
    DataError,
    NotFittedError,
    ReadingWarning,
    RowError,
    check_choice,
    check_number,
    did_you_mean,
    short_repr,
)

Kind = Literal["number", "date", "category", "list"]
Matrix = NDArray[np.float64]
T = TypeVar("T")
MISSING_WORDS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "<NA>", "\\N")  # as in pandas
LIKE_A_CODE = r"^[-+]?(?:0[0-9]|[0-9]{16,}$)"  # leading zeros, or more digits than a float keeps
LIKE_AN_ID_NAME = r"(?i)^(?:.*[_\W])?(?:id|uuid|guid|zip|zip_?code|postcode|postal_?code|url)$|^.*[a-z]Id$"
DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d.%m.%Y")
AMBIGUOUS_DATES = ("%d/%m/%Y", "%m/%d/%Y")  # taken where only one of the two fits all values
LIST_SEPARATORS = ("|", ";", ",")
MIN_LIST_SHARE = 0.05  # of the values that hold the separator, so that a column is one of lists
MAX_ID_SHARE = 0.5  # of distinct texts among the values, above which they are names rather than levels
MAX_ODD_SHARE = 0.1  # of the different values that are no numbers, in a column that was meant to hold them
MAX_NUMBER_LEVELS = 20  # different texts of which most are numbers; more are measured, not counted off
MIN_CODE_DIGITS = 5  # whole numbers in text that are all as long, and not shorter, are codes
MIN_COUNTED_ROWS = 20  # from which on integers that rise by 1 from row to row count rows
DAYS_A_YEAR = 365.2425


class NoFeatures(DataError):
    """No column of a table says anything."""


@dataclass(frozen=True)
class EncodedColumn:
    """The learned encoding of one column.

    A level is a text, or one of several in a list. `fill` is what stands for a value that is not known: the mean of
    each feature.
    """

    name: str
    kind: Kind
    fill: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    separator: str = ""  # of a list in text; empty for lists of Parquet and "['a', 'b']"
    pattern: str = ""  # of dates in text
    other: bool = False  # rare levels are pooled
    missing: bool = False  # missing values have a feature of their own

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        marks = [f"{self.name} (other)", f"{self.name} (missing)"]
        if self.kind in ("number", "date"):
            return [self.name if self.kind == "number" else f"{self.name} (year)", *marks[1 : 1 + self.missing]]
        names = [f"{self.name}={level}" for level in self.levels] + marks
        return [names[place] for place in self._kept]

    @property
    def _kept(self) -> list[int]:
        """Places among levels, other and missing; where there are two of them, one has all that there is to know."""
        rest = len(self.levels)
        kept = [*range(rest), *([rest] if self.other else []), *([rest + 1] if self.missing else [])]
        if self.kind == "category" and len(kept) == 2:
            return kept[1:] if rest == 2 else kept[:1]
        return kept

    def values(self, column: pl.Series) -> Matrix:
        """(rows, features); nan where nothing is known."""
        if self.kind in ("number", "date"):
            numbers = as_numbers(column) if self.kind == "number" else as_years(column, self.pattern)
            unknown = np.isnan(numbers)
            return np.column_stack([numbers, unknown.astype(float)]) if self.missing else numbers[:, None]
        split = self.kind == "list"
        tokens = as_lists(column, self.separator) if split else as_levels(column)
        missing = tokens.is_null().to_numpy()
        rows = pl.DataFrame({"row": np.arange(len(tokens)), "level": tokens})
        rows = (rows.explode("level") if split else rows).drop_nulls()
        table = pl.DataFrame({"level": pl.Series(self.levels, dtype=pl.String), "code": np.arange(len(self.levels))})
        found = rows.join(table, on="level", how="left", maintain_order="left")["code"].to_numpy()
        rest, row = len(self.levels), rows["row"].to_numpy()
        unseen = np.isnan(found) if found.dtype.kind == "f" else np.zeros(len(found), bool)
        codes = np.where(unseen, rest, found).astype(np.int64)
        values = np.zeros((len(tokens), rest + 2))
        values[row, codes] = 1
        if not self.missing:
            values[missing] = np.nan
        values[missing, rest + 1] = 1
        if not (self.other or split):
            values[row[unseen]] = np.nan
        return values[:, self._kept]


@dataclass(eq=False)
class TableEncoder(Configurable):
    """Columns of text, numbers, dates, lists and missing values as features.

    - Numbers and booleans stay as they are; what is missing is the mean, and has a feature of its own (`missing`).
    - Text has a feature for each level; levels in fewer than `min_rows` rows, and those after the `max_levels` most
      frequent, are pooled as "other"; missing values are a level. `min_rows` is by default a hundredth of the rows,
      and at least 2.
    - Lists (`Action|Comedy`, "['a', 'b']", lists of Parquet) have a feature for each level that they may hold.
    - Dates are years, as numbers with a fraction.
    - Columns of one value, texts of which most occur once (names, addresses), integers that count rows, columns named
      like an id, and columns without a value are left out (`left_out_`), unless `columns` names them.

    `columns`: those to encode; None for all. `categorical`: numbers that are codes of levels. `missing`: "indicator",
    "mean" (no feature of their own) or "error". A level that the fitted table did not have counts as "other", or where
    there is none as the average.
    """

    columns: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    missing: MissingValues = "indicator"
    min_rows: int | None = None
    max_levels: int = 30

    def fit(self, table: Any, id_col: str | None = None, beside: Any = None) -> Self:
        """Learn from a pandas, polars or pyarrow frame how its columns are encoded; `id_col` is none of them.

        `beside`: a second table that is encoded alike, such as the population of a sample. What a column is shows in
        the larger of the two, its levels and its mean in both. A column that only one has is left out.
        """
        frame = as_polars(table)
        second = None if beside is None else as_polars(beside)
        check_choice("missing", self.missing, get_args(MissingValues))
        check_number("max_levels", self.max_levels, at_least=1, integer=True)
        if self.min_rows is not None:
            check_number("min_rows", self.min_rows, at_least=1, integer=True)
        for argument, names in (("columns", self.columns or ()), ("categorical", self.categorical)):
            check_names(argument, names, frame.columns)
        self.id_col_, self.columns_, self.left_out_ = id_col, [], {}
        self.without_row_, self.rows_, self.source_ = 0, len(frame), "the table"
        means, deviations = [], []
        masks: set[bytes] = set()  # of missing rows: columns that lack the same rows have one feature for it
        for name in frame.columns:
            if name == id_col or (self.columns is not None and name not in map(str, self.columns)):
                continue
            if second is not None and name not in second.columns:
                found: Any = self._left_out(name, "not in the population")
            elif second is None:
                found = self._learn(frame[name], frame[name], masks)
            else:
                larger = frame if len(frame) >= len(second) else second
                found = self._learn(larger[name], stacked(frame[name], second[name]), masks)
            if isinstance(found, str):
                self.left_out_[name] = found
                continue
            column, values = found
            self.columns_.append(column)
            filled = np.where(np.isnan(values), column.fill, values)
            with np.errstate(over="ignore"):
                means.append(filled.mean(0))
                deviations.append(filled.std(0))
        self.means_ = np.concatenate([np.empty(0), *means])
        self.deviations_ = np.concatenate([np.empty(0), *deviations])
        return self

    @property
    def feature_names_(self) -> list[str]:
        """The names of all features, such as "genre=Comedy", "age" and "age (missing)"."""
        return [name for column in self._learned() for name in column.features]

    def encode(self, table: Any) -> Matrix:
        """The features (rows, features) of a table, in their own units."""
        frame, columns = as_polars(table), self._learned()
        if not columns:
            return np.empty((len(frame), 0))
        parts = []
        for column in columns:
            if column.name not in frame.columns:
                listed, hint = ", ".join(map(short_repr, frame.columns)), did_you_mean(column.name, frame.columns)
                raise DataError(f"there is no column {column.name!r}; the columns are {listed}.{hint}")
            values = column.values(frame[column.name])
            parts.append(np.where(np.isnan(values), column.fill, values))
        return np.hstack(parts)

    def transform(self, table: Any) -> tuple[Vocabulary, Matrix]:
        """(the ids, their features) of a table of users or items, as in `FeedbackLog.item_features`."""
        frame = as_polars(table)
        if not hasattr(self, "id_col_") or self.id_col_ is None:
            raise NotFittedError("this encoder is not fitted to a table with ids. Call fit(table, id_col).")
        return ids_of(frame, self.id_col_), self.encode(frame)

    def fit_rows(self, table: Any, id_col: str, ids: Vocabulary) -> Matrix:
        """Learn from the rows of these ids, and return their features in the order of codes.

        An id without a row counts as missing in all columns; rows of other ids are left out.
        """
        frame = as_polars(table)
        known = ids_of(frame, id_col)
        if len(frame.columns) == 1:
            raise DataError(f"there is no column of features besides {id_col!r}. Add one, or leave the table out.")
        codes = known.encode(ids.column)
        absent = codes < 0
        if absent.all():
            first = [short_repr(column[0]) for column in (known.column, ids.column)]
            raise DataError(
                f"no id of the log has a row: those here are such as {first[0]}, those of the log such as "
                f"{first[1]}. The column {id_col!r} must hold the ids of the log."
            )
        rows = pl.Series(np.where(absent, 0, codes)).set(pl.Series(absent), None)
        own = frame.select(pl.all().gather(rows))
        try:
            self.fit(own, id_col)
        except RowError as error:
            raise RowError(error.column, int(rows[error.row]), error.reason) from None
        self.without_row_, self.rows_ = int(absent.sum()), len(absent)
        if not self.columns_:
            raise NoFeatures(f"there is no feature beside {id_col!r}: {'; '.join(self.notes())}.")
        matrix = self.encode(own)
        if np.abs(matrix).max() > np.finfo(np.float32).max:
            raise DataError(f"the largest feature is {np.abs(matrix).max():.2g}, past float32. Scale it.")
        return matrix

    @property
    def is_partial_(self) -> bool:
        """Whether columns were left out, or ids have no row."""
        return bool(self.left_out_ or self.without_row_)

    def summary(self) -> str:
        """A paragraph on the columns that are encoded, and on those that are left out."""
        columns = self._learned()
        words = [f"{self.source_}: {len(columns)} columns as {len(self.feature_names_)} features"]
        words += [f"Left out: {'; '.join(self.notes())}"] if self.left_out_ else []
        if self.without_row_:
            counts = f"{self.without_row_:,} of {self.rows_:,} ids"
            words.append(f"{counts} have no row: they count as missing in all columns")
        return ". ".join(words) + "."

    def standardise(self, matrix: Any) -> Matrix:
        """Encoded features minus their means over their standard deviations, both over the fitted rows."""
        self._learned()
        scaled: Matrix = (np.asarray(matrix, float) - self.means_) / np.where(
            self.deviations_ > 0, self.deviations_, 1.0
        )
        return scaled

    def notes(self) -> list[str]:
        """Sentences that say which columns were left out, and why."""
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left_out_.items():
            reasons.setdefault(reason, []).append(name)
        return [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the settings and all that was learned."""
        learned = {name: getattr(self, f"{name}_") for name in ("id_col", "left_out", "without_row", "rows", "source")}
        scales = {"means": self.means_.tolist(), "deviations": self.deviations_.tolist()}
        settings = self.get_params() | {"categorical": list(self.categorical)}
        settings["columns"] = None if self.columns is None else list(self.columns)
        return {"settings": settings, **learned, "columns": [asdict(column) for column in self._learned()], **scales}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """The encoder that `to_dict` described, checked."""
        encoder = cls(**facts["settings"])
        encoder.id_col_, encoder.left_out_ = facts["id_col"], dict(facts["left_out"])
        encoder.without_row_, encoder.rows_ = int(facts["without_row"]), int(facts["rows"])
        encoder.source_ = str(facts["source"])
        encoder.columns_ = [_checked(EncodedColumn(**column)) for column in facts["columns"]]
        scales = [np.asarray(facts[name], dtype=np.float64) for name in ("means", "deviations")]
        names = [*encoder.left_out_, *encoder.left_out_.values(), *([encoder.id_col_] if encoder.id_col_ else [])]
        width = len(encoder.feature_names_)
        fits = all(scale.shape == (width,) and np.isfinite(scale).all() for scale in scales)
        if not fits or not all(isinstance(name, str) for name in names):
            raise DataError("a side table's encoder must hold names and finite means, one for each feature.")
        encoder.means_, encoder.deviations_ = scales
        return encoder

    def _learned(self) -> list[EncodedColumn]:
        if not hasattr(self, "columns_"):
            raise NotFittedError("this encoder is not fitted. Call fit(table) first.")
        return self.columns_

    def _left_out(self, name: str, reason: str) -> str:
        """Why a column is left out; an error where it was named."""
        if self.columns is not None:
            raise DataError(f"column {name!r} cannot be encoded: {reason}. Leave it out of the columns that you name.")
        return reason

    def _learn(self, sample: pl.Series, column: pl.Series, masks: set[bytes]) -> tuple[EncodedColumn, Matrix] | str:
        """(how a column is encoded, its features), or why it is left out; what it is shows in `sample`."""
        name, named = column.name, self.columns is not None
        categorical = name in map(str, self.categorical)
        found = _recognised(sample, categorical, named or categorical)
        if isinstance(found, str):
            return self._left_out(name, found)
        if found.kind in ("category", "list"):
            found = self._with_levels(found, column)
            if not found.levels:
                return self._left_out(name, "no level is frequent")
        missing = _missing(column)
        if missing.any():
            if self.missing == "error":
                row = int(missing.arg_max() or 0)
                raise RowError(name, row, 'the value is missing. Fill it in, or choose missing="indicator".')
            mask = np.packbits(missing.to_numpy()).tobytes()
            marked = self.missing == "indicator" and mask not in masks
            masks.add(mask)
            found = replace(found, missing=marked)
        values = found.values(column)
        known = ~np.isnan(values)
        with np.errstate(over="ignore"):
            fill = np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1)
        if not named and bool((np.ptp(np.where(known, values, fill), axis=0) == 0).all()):
            return "one value only"
        return replace(found, fill=tuple(fill.tolist())), values

    def _with_levels(self, found: EncodedColumn, column: pl.Series) -> EncodedColumn:
        """The levels that are frequent enough, the most frequent first; others are pooled."""
        tokens = as_lists(column, found.separator).list.unique() if found.kind == "list" else as_levels(column)
        level = tokens.explode() if found.kind == "list" else tokens
        counts = (
            level.drop_nulls()
            .alias("level")
            .value_counts(name="rows")
            .sort(["rows", "level"], descending=[True, False])
        )
        least = max(2, math.ceil(len(column) / 100)) if self.min_rows is None else self.min_rows
        kept = counts.filter(pl.col("rows") >= least).head(self.max_levels)
        other = len(kept) < len(counts)
        return replace(found, levels=tuple(kept["level"].to_list()), other=other)


@dataclass(frozen=True, eq=False)
class SideTable:
    """A table of users or items: where its ids are, what it is called, and the number of its first row in messages.

    `source` says in brackets what was guessed about a file.
    """

    frame: pl.DataFrame
    id_col: str
    source: str
    first_row: int = 0

    def ids(self) -> Vocabulary:
        """The ids of its rows, in their order."""
        return self._located(lambda: ids_of(self.frame, self.id_col))

    def encoded(self, ids: Vocabulary, categorical: Sequence[str] = ()) -> tuple[TableEncoder, Matrix]:
        """(an encoder, the features of these ids); `categorical` may name columns of other tables."""
        own = tuple(name for name in map(str, categorical) if name in self.frame.columns)
        encoder = TableEncoder(categorical=own)
        matrix = self._located(lambda: encoder.fit_rows(self.frame, self.id_col, ids))
        encoder.source_ = self.source
        return encoder, matrix

    def _located(self, step: Callable[[], T]) -> T:
        """The result of `step`; its errors name the table."""
        name = self.source.split(" (")[0]
        try:
            return step()
        except RowError as error:
            raise error.located(name, self.first_row) from None
        except DataError as error:
            raise type(error)(f"{name}: {error}") from None


def side_fields(
    tables: Mapping[str, SideTable], ids: Mapping[str, Vocabulary], categorical: Sequence[str] = ()
) -> dict[str, Any]:
    """The features and the encoders of a `FeedbackLog` with these ids, by the names of its fields.

    A `ReadingWarning` says which columns are left out, and how many ids have no row.
    """
    if categorical and not tables:
        raise ConfigError("`categorical` names columns of `users` or `items`, and neither is given.")
    check_names("categorical", categorical, [name for table in tables.values() for name in table.frame.columns])
    fields: dict[str, Any] = {}
    for side, table in tables.items():
        encoder, matrix = table.encoded(ids[side], categorical)
        if encoder.is_partial_ or table.source.endswith(")"):
            warnings.warn(ReadingWarning(encoder.summary()), stacklevel=3)
        fields |= {f"{side}_features": matrix.astype(np.float32), f"{side}_encoder": encoder}
    return fields


def check_names(argument: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise `DataError` for the first name that is no column."""
    if isinstance(names, str):
        raise DataError(f"`{argument}` must be a list of names, got {names!r}. Write [{names!r}].")
    known = list(dict.fromkeys(known))
    for name in names:
        if str(name) not in known:
            listed = ", ".join(map(short_repr, known[:20])) + (", ..." if len(known) > 20 else "")
            raise DataError(f"`{argument}` names {name!r}; the columns are {listed}.{did_you_mean(name, known)}")


def as_polars(table: Any) -> pl.DataFrame:
    """A pandas, polars or pyarrow frame, or a mapping of columns, as a polars frame; columns are named by text."""
    if isinstance(table, pl.DataFrame):
        return table
    try:
        frame: Any = nw.from_native(
            table if not isinstance(table, Mapping) else pl.DataFrame(dict(table), strict=False)
        )
        names = list(map(str, frame.collect_schema().names()))
    except (TypeError, ValueError, nw.exceptions.NarwhalsError) as error:
        came = f"{type(table).__name__}: {' '.join(str(error).split())}"
        raise DataError(
            f"expected a pandas, polars or pyarrow frame with columns of different names, got {came}"
        ) from None
    frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"the table has two columns {twice!r}. Rename one.")
    return pl.DataFrame(
        [as_series(name, frame.get_column(label).to_native()) for name, label in zip(names, frame.columns, strict=True)]
    )


def stacked(first: pl.Series, second: pl.Series) -> pl.Series:
    """One column above the other, of one name, in a type that holds both."""
    if first.dtype != second.dtype:
        for column in (first, second):
            if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Duration, pl.Object):
                kinds = f"{type_name(first.dtype)} in one table and {type_name(second.dtype)} in the other"
                raise DataError(f"column {first.name!r}: is {kinds}. Convert one of them.")
        plain = all(column.dtype.is_numeric() or column.dtype == pl.Boolean for column in (first, second))
        first, second = (c.cast(pl.Float64) if plain else as_levels(c) for c in (first, second))
    return pl.concat([first, second])


def ids_of(frame: pl.DataFrame, id_col: str) -> Vocabulary:
    """The ids of a table, each in one row."""
    if id_col not in frame.columns:
        listed, hint = ", ".join(map(short_repr, frame.columns)), did_you_mean(id_col, frame.columns)
        raise DataError(f"there is no column {id_col!r}; the columns are {listed}.{hint}")
    ids: pl.Series = whole_ids(frame[id_col], id_col)
    repeated = ids.filter(ids.is_duplicated())
    if len(repeated):
        raise DataError(f"column {id_col!r}: {repeated[0]!r} is in more than one row. Keep one of them.")
    return Vocabulary(ids)


def as_numbers(column: pl.Series) -> NDArray[np.float64]:
    """A column of numbers or booleans, or of their text; nan where a value is missing."""
    if column.dtype == pl.String:
        logical = _as_boolean(column)
        numbers = (_stripped(column) if logical is None else logical).cast(pl.Float64, strict=False)
    else:
        numbers = column.cast(pl.Float64, strict=False)
    numbers = numbers.fill_nan(None)
    bad = (numbers.is_null() & ~_missing(column)) | numbers.is_infinite().fill_null(False)
    if bad.any():
        row = int(bad.arg_max() or 0)
        came = short_repr(column[row])
        raise RowError(column.name, row, f"expected a finite number, got {came}. Correct it or leave it empty.")
    return numbers.fill_null(math.nan).to_numpy().copy()


def as_years(column: pl.Series, pattern: str) -> NDArray[np.float64]:
    """Dates as years with a fraction; nan where one is missing."""
    column = column.cast(pl.String) if column.dtype == pl.Null else column
    if column.dtype == pl.String:
        dates = _parsed_dates(column, pattern)
        bad = dates.is_null() & ~_missing(column)
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise RowError(column.name, row, f"expected a date, got {short_repr(column[row])}. Correct it.")
    elif column.dtype.is_temporal() and column.dtype not in (pl.Time, pl.Duration):
        dates = column.cast(pl.Datetime("us"))
    else:
        raise DataError(f"column {column.name!r}: expected dates, got {type_name(column.dtype)}.")
    microseconds = dates.dt.epoch("us").cast(pl.Float64)
    years = 1970 + microseconds / (86_400e6 * DAYS_A_YEAR)
    return years.fill_null(math.nan).to_numpy().copy()


def as_levels(column: pl.Series) -> pl.Series:
    """Levels as text; null where one is missing."""
    text = column if column.dtype == pl.String else as_text(_without_nan(column))
    text = _stripped(text)
    return text.set(_missing(text), None)


def as_lists(column: pl.Series, separator: str) -> pl.Series:
    """Lists of texts; null where one is missing."""
    if isinstance(column.dtype, pl.List | pl.Array):
        lists = column.cast(pl.List(pl.String), strict=False)
    else:
        text = _stripped(column.cast(pl.String))
        text = text.set(_missing(text), None)
        bracketed = text.str.strip_chars("[](){}")
        lists = bracketed.str.split(separator or ",")
    cleaned = pl.element().str.strip_chars(" \t\"'")
    return lists.list.eval(cleaned.filter(cleaned.str.len_bytes() > 0))


def _recognised(column: pl.Series, categorical: bool, named: bool) -> EncodedColumn | str:
    """The kind of a column, without levels; or why it is left out."""
    name, dtype = column.name, column.dtype
    known = column.filter(~_missing(column))
    if known.is_empty():
        return "no values"
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        if inner == pl.String or getattr(inner, "is_integer", lambda: False)():
            return EncodedColumn(name, "list")
        return f"lists of {inner}"
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Time, pl.Duration):
        return f"values of the type {dtype}"
    if categorical:
        return EncodedColumn(name, "category")
    if dtype in (pl.Date, pl.Datetime):
        return EncodedColumn(name, "date")
    if dtype == pl.Boolean or dtype.is_numeric():
        return "an id" if not named and _is_id(known) else EncodedColumn(name, "number")
    text = _stripped(known.cast(pl.String))
    return _recognised_text(name, text, named)


def _recognised_text(name: str, text: pl.Series, named: bool) -> EncodedColumn | str:
    """The kind of a column of text without missing values; or why it is left out."""
    if _as_boolean(text) is not None:
        return EncodedColumn(name, "number")
    if not text.str.contains(LIKE_A_CODE).any() and cast_or_keep(text, pl.Float64).dtype == pl.Float64:
        return "an id" if not named and _is_id(cast_or_keep(text, pl.Int64)) else EncodedColumn(name, "number")
    if not named and _is_id(text):
        return "an id"
    pattern = _date_pattern(text)
    if pattern is not None:
        return EncodedColumn(name, "date", pattern=pattern)
    if (text.str.starts_with("[") & text.str.ends_with("]")).all():
        return EncodedColumn(name, "list")
    for separator in LIST_SEPARATORS:
        if float(text.str.contains(separator, literal=True).mean() or 0) < MIN_LIST_SHARE:  # type: ignore[arg-type]
            continue
        tokens = as_lists(text, separator).explode().drop_nulls().n_unique()
        a_list = separator != "," or tokens < text.n_unique()  # there are commas in other texts
        if a_list and tokens <= MAX_ID_SHARE * len(text):
            return EncodedColumn(name, "list", separator=separator)
    many = text.n_unique() > max(2, MAX_ID_SHARE * len(text))
    odd = "" if named else _odd_value(text, many)
    if odd:
        return odd
    return "most values occur once" if many and not named else EncodedColumn(name, "category")


def _odd_value(text: pl.Series, many: bool) -> str:
    """The first value that is none in a column of numbers or dates, as a reason to leave it out; empty without one.

    `many`: most values differ. Where they do not, few different numbers are levels, such as "1", "2" and "3+".
    """
    values = text.unique(maintain_order=True)
    if not many and len(values) <= MAX_NUMBER_LEVELS:
        return ""
    readings = [("dates", _parsed_dates(values, pattern)) for pattern in DATE_FORMATS]
    digits = values.filter(values.str.contains("^[0-9]+$"))
    codes = digits.str.len_bytes().n_unique() == 1 and len(digits[0]) >= MIN_CODE_DIGITS  # postal codes, say
    if not codes and not text.str.contains(LIKE_A_CODE).any():
        readings.append(("numbers", values.cast(pl.Float64, strict=False)))
    for what, read in readings:
        if 0 < read.null_count() <= MAX_ODD_SHARE * len(values):
            odd = short_repr(values.filter(read.is_null())[0])
            return f"{what} but for {odd}: correct it, leave it empty, or name the column as categorical"
    return ""


def _is_id(column: pl.Series) -> bool:
    """Whether a column is named like one of ids, or counts its rows."""
    if not column.dtype.is_integer() and column.dtype != pl.String:
        return False
    if pl.Series([column.name]).str.contains(LIKE_AN_ID_NAME).item():
        return True
    counts = column.dtype.is_integer() and len(column) >= MIN_COUNTED_ROWS and (column.diff().drop_nulls() == 1).all()
    return bool(counts)


def _date_pattern(text: pl.Series) -> str | None:
    """The format of dates; empty for ISO 8601 with a time, None where the values are no dates."""
    fitting = [pattern for pattern in DATE_FORMATS if _parses(text, pattern)]
    fitting = fitting or [pattern for pattern in AMBIGUOUS_DATES if _parses(text, pattern)]
    if len(fitting) == 1:
        return fitting[0]
    return "" if not fitting and _parses(text, "") else None


def _parses(text: pl.Series, pattern: str) -> bool:
    first = text.head(1)
    return all(_parsed_dates(part, pattern).null_count() == 0 for part in (first, text))


def _parsed_dates(text: pl.Series, pattern: str) -> pl.Series:
    text = _stripped(text)
    try:
        if pattern:
            return text.str.to_date(pattern, strict=False).cast(pl.Datetime("us"))
        return text.str.to_datetime(strict=False, time_unit="us")
    except pl.exceptions.PolarsError:  # not a way of writing dates
        return pl.Series(text.name, [None] * len(text), dtype=pl.Datetime("us"))


def _as_boolean(text: pl.Series) -> pl.Series | None:
    """True and False, as they are written; None where there is anything else."""
    lower = _stripped(text).str.to_lowercase()
    lower = lower.set(_missing(text), None)
    if not lower.drop_nulls().is_in(["true", "false"]).all() or lower.null_count() == len(lower):
        return None
    return lower == "true"


def _missing(column: pl.Series) -> pl.Series:
    if column.dtype == pl.String:
        return column.is_null() | _stripped(column).is_in(MISSING_WORDS).fill_null(True)
    return column.is_null() | (column.is_nan().fill_null(True) if column.dtype.is_float() else False)


def _without_nan(column: pl.Series) -> pl.Series:
    return column.fill_nan(None) if column.dtype.is_float() else column


def _stripped(text: pl.Series) -> pl.Series:
    return text.str.strip_chars()


def as_series(name: str, values: Any) -> pl.Series:
    """A column of a pandas, polars or pyarrow frame, an array or a list, as one of polars."""
    values = from_native(values)
    if isinstance(values, pl.Series):
        return values.alias(name)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    if isinstance(values, np.ndarray) and values.dtype != object:
        return series(values, name)
    return series([_plain(value) for value in values], name, strict=False)


def _plain(value: Any) -> Any:
    """A value of a column of objects, as polars knows it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _checked(column: EncodedColumn) -> EncodedColumn:
    """A column from a file, whose values have the right types."""
    texts = [column.name, column.separator, column.pattern, *column.levels]
    flags, width = (column.other, column.missing), len(column.features)
    numbers = len(column.fill) == width and all(
        isinstance(value, float | int) and math.isfinite(value) for value in column.fill
    )
    right = column.kind in get_args(Kind) and all(isinstance(text, str) for text in texts)
    if not (right and numbers and all(isinstance(flag, bool) for flag in flags)):
        raise DataError(f"the encoding of column {short_repr(column.name)} cannot be read.")
    return replace(column, levels=tuple(column.levels), fill=tuple(column.fill))
