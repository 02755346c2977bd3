"""The ids of one side of a log (users or items) and their codes 0, 1, 2, ...

Ids may be integers, text or anything hashable. Numbers and text are handled as columns; other types, which no column
type can hold, go through a dictionary.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Hashable
from datetime import date
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.data.parquet import check_decoded, check_parquet, hidden_panics
from counterpoise.errors import ConfigError, DataError, short_repr

Codes = NDArray[np.int32]
Column = pl.Series | list[Hashable]
PLAIN = (bool, int, float, str, bytes, date)
SAVED_IDS = "only numbers, text and dates can be saved as ids"
STARTED_IN: list[int] = []  # the process in which polars has started its threads, which do not survive a fork
UNKNOWN_TYPES = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError)  # values that polars does not know
TABLE_TYPES = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


class Vocabulary:
    """Distinct ids in a fixed order; the position of an id is its code."""

    def __init__(self, ids: Any) -> None:
        _check_not_forked()
        self.column = as_column(ids)  # all ids, in the order of their codes
        distinct = self.column.n_unique() if isinstance(self.column, pl.Series) else len(set(self.column))
        if distinct != len(self.column):
            raise DataError(f"the ids of a vocabulary must be distinct, got {len(self.column) - distinct} repetitions.")

    @classmethod
    def of(cls, *columns: Any) -> Vocabulary:
        """The distinct ids of all columns, sorted, so that the codes do not depend on the order of rows."""
        parts = [as_column(column) for column in columns]
        if all(isinstance(part, pl.Series) for part in parts) and len({part.dtype for part in parts}) == 1:  # type: ignore[union-attr]
            return cls(distinct_values(pl.concat([distinct_values(part) for part in parts])).sort())  # type: ignore[arg-type]
        distinct: Any = dict.fromkeys(value for part in parts for value in part)
        try:
            return cls(sorted(distinct))
        except TypeError:  # ids that have no order stay in the order of their first appearance
            return cls(list(distinct))

    @classmethod
    def distinct(cls, ids: Any) -> Column:
        """The distinct ids of a column, in the order of their first appearance."""
        column = as_column(ids)
        return column.unique(maintain_order=True) if isinstance(column, pl.Series) else list(dict.fromkeys(column))

    def extended(self, ids: Any) -> Vocabulary:
        """These ids, and behind them those that are new, sorted; known ids keep their codes."""
        column = as_column(ids)
        new = self.of(gather(column, np.flatnonzero(self.encode(column) < 0)))
        if isinstance(self.column, pl.Series) and isinstance(new.column, pl.Series):
            cast = cast_or_keep(new.column, self.column.dtype)  # the text "7" is the integer 7, "007" is not
            if cast.dtype == self.dtype and as_text(cast).eq_missing(as_text(new.column)).all():
                return Vocabulary(pl.concat([self.column, cast]))
        return Vocabulary([*self.column, *new.column])

    @classmethod
    def numbered(cls, size: int) -> Vocabulary:
        return cls(np.arange(size))

    @property
    def dtype(self) -> pl.DataType:
        """The column type of the ids; `Object` where no column type can hold them."""
        return self.column.dtype if isinstance(self.column, pl.Series) else pl.Object()

    def encode(self, ids: Any) -> Codes:
        """The code of each id; -1 where the id is unknown.

        A column of another type is compared by how its ids are written: the text "7" is the integer 7, "007" is not.
        """
        _check_not_forked()
        column = as_column(ids)
        if len(column) == 0 or len(self) == 0:
            return np.full(len(column), -1, dtype=np.int32)
        if not isinstance(column, pl.Series) or not isinstance(self.column, pl.Series):
            return np.fromiter((self._index.get(value, -1) for value in column), np.int32, len(column))
        if column.dtype != self.column.dtype:
            return _joined(as_text(column), self._text_table)
        if self._lookup is None:
            return _joined(column, self._table)
        low, codes = self._lookup  # several times faster than a join
        places = column.fill_null(low).to_numpy() - low
        outside = places.view(np.uint64) >= len(codes)  # also those below 0
        if column.has_nulls():
            outside |= column.is_null().to_numpy()
        return np.where(outside, np.int32(-1), codes[np.where(outside, 0, places)]) if outside.any() else codes[places]

    def decode(self, codes: Any) -> pl.Series:
        return gather(self.column, codes)

    def require(self, ids: Any, kind: str, advice: str = "") -> Codes:
        """The code of each id; an error that names the first unknown one, and ends with the advice."""
        codes = self.encode(ids)
        missing = np.flatnonzero(codes < 0)
        if missing.size:
            first = short_repr(as_column(ids)[int(missing[0])])
            others = f" (and {missing.size - 1} more)" if missing.size > 1 else ""
            raise DataError(f"unknown {kind} {first}{others}: this log has {self.describe(kind)}. {advice}".rstrip())
        return codes

    def describe(self, kind: str) -> str:
        """For messages: how many ids, and what they look like."""
        return f"{len(self)} {kind}s" + (f" with ids such as {short_repr(self.column[0])}" if len(self) else "")

    def to_frame(self) -> pl.DataFrame:
        """The ids as a frame `id` that can be written."""
        if not isinstance(self.column, pl.Series):
            kinds = ", ".join(sorted({type(value).__name__ for value in self.column}))
            raise DataError(f"{SAVED_IDS}, got {kinds}. Convert them to text.")
        if not _is_stored(self.dtype):
            raise DataError(f"{SAVED_IDS}, got {type_name(self.dtype)}. Convert them to text.")
        return self.column.alias("id").to_frame()

    def to_parquet(self) -> bytes:
        """The ids as the content of a Parquet file."""
        buffer = io.BytesIO()
        self.to_frame().write_parquet(buffer)
        return buffer.getvalue()

    @classmethod
    def from_parquet(cls, content: bytes) -> Vocabulary:
        return cls(stored_ids(read_stored(content, "the ids"), "id", "the ids"))

    def __len__(self) -> int:
        return len(self.column)

    def __contains__(self, value: Hashable) -> bool:
        return bool(self.encode([value])[0] >= 0)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Vocabulary):
            return self is other
        if isinstance(self.column, pl.Series) and isinstance(other.column, pl.Series):
            return self.dtype == other.dtype and self.column.equals(other.column)
        return list(self.column) == list(other.column)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.describe('id')}>"

    @cached_property
    def _table(self) -> pl.DataFrame:
        return pl.DataFrame({"id": self.column, "code": np.arange(len(self), dtype=np.int32)})

    @cached_property
    def _text_table(self) -> pl.DataFrame:
        return self._table.with_columns(as_text(self._table["id"]))

    @cached_property
    def _lookup(self) -> tuple[int, Codes] | None:
        """(smallest id, code of each integer from there on) for integers close together; None for other ids."""
        if not isinstance(self.column, pl.Series) or self.column.dtype != pl.Int64 or self.column.has_nulls():
            return None
        ids = self.column.to_numpy()
        low, high = int(ids.min()), int(ids.max())
        if not _close(low, high, len(ids)):
            return None
        codes = np.full(high - low + 1, -1, dtype=np.int32)
        codes[ids - low] = np.arange(len(ids))
        return low, codes

    @cached_property
    def _index(self) -> dict[Hashable, int]:
        return {value: code for code, value in enumerate(self.column)}


def _check_not_forked() -> None:
    """Raise `ConfigError` in a process that was forked after ids were used: there, polars would wait for ever."""
    if not STARTED_IN:
        STARTED_IN.append(os.getpid())
    elif STARTED_IN[0] != os.getpid():
        raise ConfigError(
            "a model or log cannot be used in a process forked from one that used it: its threads do not survive. "
            'Start processes by "spawn", such as DataLoader(..., multiprocessing_context="spawn").'
        )


def _close(low: int, high: int, count: int) -> bool:
    """Whether a table of all integers in a range takes little more memory than so many ids."""
    return high - low <= 4 * count + 1000


def distinct_values(column: pl.Series) -> pl.Series:
    """The distinct values; integers close together are marked in a table, which is several times faster."""
    if column.dtype not in TABLE_TYPES or column.is_empty() or column.has_nulls():
        return column.unique()
    low, high = int(column.min()), int(column.max())  # type: ignore[arg-type]
    if not _close(low, high, len(column)):
        return column.unique()
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[np.subtract(column.to_numpy(), low, dtype=np.int64)] = True
    return pl.Series(column.name, np.flatnonzero(seen) + low).cast(column.dtype)


def from_native(values: Any) -> Any:
    """A pandas or pyarrow column as numpy, or as a list with None for nulls; anything else as it came."""
    if hasattr(values, "to_pylist"):  # pyarrow
        return series(values)
    if isinstance(values, pl.Series) or not nw.dependencies.is_into_series(values):
        return values
    column = nw.from_native(values, series_only=True)
    if column.null_count() == 0:
        return column.to_numpy()
    return [None if missing else value for value, missing in zip(column.to_list(), column.is_null(), strict=True)]


def read_stored(content: bytes, what: str) -> pl.DataFrame:
    """A Parquet file of a run, unless it unpacks to far more than its size."""
    check_parquet(what, io.BytesIO(content))
    try:
        with hidden_panics():
            return check_decoded(what, pl.read_parquet(io.BytesIO(content)), len(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DataError(f"{what} cannot be read: {error}.") from None


def series(values: Any, name: str = "", strict: bool = True) -> pl.Series:
    """A column of polars; `DataError` where it has no type for the values."""
    try:
        if isinstance(values, np.ndarray) and values.dtype.kind == "c":
            raise TypeError("they are complex")  # polars would drop their imaginary part
        with hidden_panics():
            return pl.Series(name, values, strict=strict)
    except UnicodeEncodeError as error:
        raise DataError(f"{short_repr(error.object)} cannot be written in UTF-8. Correct the text.") from None
    except (*UNKNOWN_TYPES, pl.exceptions.PanicException) as error:
        kind = getattr(values, "type", None) or getattr(values, "dtype", None) or type(values).__name__
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        what = f"column {name!r}" if name else "a column"
        raise DataError(f"{what} of {kind} cannot be read ({reason}). Convert it to numbers, text or dates.") from None


def type_name(dtype: Any) -> str:
    """The type of a column in a message: Int64, List(String), Duration without its unit."""
    return re.sub(r"\(time_unit=[^)]*\)", "", str(dtype))


def _is_stored(dtype: pl.DataType) -> bool:
    """Whether ids of this type can be saved and loaded."""
    return not dtype.is_nested() and dtype not in (pl.Binary, pl.Duration, pl.Object, pl.Null)


def stored_ids(frame: pl.DataFrame, name: str, what: str) -> pl.Series:
    """The column of ids of a stored frame: numbers, text or dates, none missing."""
    if name not in frame.columns:
        raise DataError(f"{what} must be in a column {name!r}.")
    column = frame.get_column(name)
    if not _is_stored(column.dtype):
        raise DataError(f"{what} must be numbers, text or dates, got {type_name(column.dtype)}.")
    if column.has_nulls() or (column.dtype.is_float() and column.is_nan().any()):
        raise DataError(f"{what} must all be there, and some are missing.")
    return column


def as_text(column: pl.Series) -> pl.Series:
    """Ids as they are written; whole numbers that became floats lose their decimal point."""
    if column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        column = whole if (whole.cast(column.dtype) == column).all() else column
    return column.cast(pl.String, strict=False)


def same_type(columns: list[Any]) -> list[Any]:
    """Id columns of several files or frames in one type: text where they differ; lists stay as they are."""
    if not all(isinstance(column, pl.Series) for column in columns):
        return columns
    plain = [as_plain_ids(column) for column in columns]
    return [as_text(column) for column in plain] if len({column.dtype for column in plain}) > 1 else plain


def as_plain_ids(column: pl.Series) -> pl.Series:
    """Integers in 64 bits, also those that a missing id once turned into floats; categories as text."""
    if column.dtype in (pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String)
    if not column.dtype.is_numeric():
        return column
    integers = column.cast(pl.Int64, strict=False)
    return integers if integers.eq_missing(column).all() else column


def cast_or_keep(column: pl.Series, dtype: Any) -> pl.Series:
    """The column in another type, or as it is where that type cannot hold all values."""
    cast = column.cast(dtype, strict=False)
    return cast if cast.null_count() == column.null_count() else column


def _joined(column: pl.Series, table: pl.DataFrame) -> Codes:
    found = column.alias("id").to_frame().join(table, on="id", how="left", maintain_order="left")
    return found["code"].fill_null(-1).to_numpy(writable=True)


def gather(column: Column, positions: Any) -> pl.Series:
    """Entries of a column by position, as a column."""
    if isinstance(column, pl.Series):
        return column.gather(np.asarray(positions))
    return pl.Series([column[position] for position in positions], dtype=pl.Object)


def as_column(values: Any) -> Column:
    """Ids as a column of 64-bit integers, text or another plain type; a list where no column type can hold them."""
    values = from_native(values)
    if isinstance(values, pl.Series):
        column = values
    elif isinstance(values, np.ndarray) and values.dtype != object:
        column = series(values)
    else:
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            raise DataError(f"expected a list or column of ids, got {short_repr(values)}. Wrap a single id in a list.")
        listed = [value.item() if isinstance(value, np.generic) else value for value in values]
        kinds = {type(value) for value in listed if value is not None}
        # one plain type: a column must not quietly turn 1 and "1" into the same id
        if len(kinds) > 1 or not all(issubclass(kind, PLAIN) for kind in kinds):
            return listed
        try:
            column = pl.Series(listed)
        except (OverflowError, TypeError):  # integers past 64 bits
            return listed
        except UnicodeEncodeError:
            column = series(listed)  # says what is wrong
    if column.dtype.is_nested() or column.dtype == pl.Object:
        return [tuple(value) if isinstance(value, list) else value for value in column.to_list()]
    if column.dtype.is_integer():
        return cast_or_keep(column, pl.Int64)
    if column.dtype in (pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String)
    return column
