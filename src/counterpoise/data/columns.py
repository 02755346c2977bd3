"""Columns of frames and matrices, checked: an error names the column and its first bad row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.config import Feedback
from counterpoise.data.frames import as_frame, column_of, is_frame
from counterpoise.data.ids import as_column, from_native, series, type_name
from counterpoise.errors import DataError, RowError, short_repr

CORRECT = "Correct or drop the row."
CLICKED = ("clicked", "click", "is_click")  # columns that say what was clicked
DEFAULT_NAMES = {"user": "user_id", "item": "item_id"}
DEFAULT_NAMES |= {role: role for role in ("rating", "timestamp", "propensity")}


def frame_columns(frame: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a pandas, polars or pyarrow frame, by role: {role: what the frame calls it}."""
    table = as_frame(frame, "frame")
    return {role: column_of(table, column, f"Name it: `{role}_col`.") for role, column in names.items()}


def rating_column(there: Collection[str], feedback: Feedback | None) -> str:
    """The usual column of ratings; where there is none, but one that says what was clicked, that one."""
    found = [name for name in there if name in CLICKED]
    return found[0] if "rating" not in there and len(found) == 1 and feedback != "ratings" else "rating"


def names_in(columns: Collection[str], own: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """The names of columns: {role: as in the log, or as usual where the columns have that name alone}."""
    names = {role: (own.get(role, DEFAULT_NAMES[role]), DEFAULT_NAMES[role]) for role in roles}
    return {role: usual if name not in columns and usual in columns else name for role, (name, usual) in names.items()}


def rating_columns(ratings: Any, own: Mapping[str, str], clicks: bool) -> tuple[Any, Any, Any]:
    """(users, items, ratings) of new users: of a frame, of {item: rating}, or of a list of (item, rating).

    Without a column of users they are those of one user, "new". `own`: the names of columns in the log. A frame of
    `clicks` needs no column of ratings.
    """
    if is_frame(ratings):
        present = as_frame(ratings, "ratings").columns
        names = names_in(present, own, ("user", "item", "rating"))
        names = {
            role: name
            for role, name in names.items()
            if name in present or not (role == "user" or (clicks and role == "rating"))
        }
        columns = named_columns(ratings, names)
        size = len(columns["item"])
        return columns.get("user", ["new"] * size), columns["item"], columns.get("rating", np.ones(size))
    try:
        pairs = list(ratings.items() if isinstance(ratings, Mapping) else ratings)
        items, values = [item for item, _ in pairs], [value for _, value in pairs]
    except (TypeError, ValueError):
        raise DataError(
            "`ratings` must be {item: rating}, a list of (item, rating), or a frame with columns item_id and rating, "
            f"got {short_repr(ratings)}."
        ) from None
    if not pairs:
        raise DataError("`ratings` must hold at least one rating, got none. Without ratings there is nothing to learn.")
    return ["new"] * len(pairs), items, values


def pair_columns(given: Any, own: Mapping[str, str]) -> tuple[Any, Any] | None:
    """(users, items) of a frame of pairs, named as in the log (`own`) or as usual; None for what is no frame."""
    if not is_frame(given):
        return None
    columns = named_columns(given, names_in(as_frame(given, "exclude").columns, own, ("user", "item")))
    return columns["user"], columns["item"]


def named_columns(frame: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a frame by role, which cannot be named otherwise."""
    what = {"user": "the ids of users", "item": "the ids of items", "rating": "the ratings"}
    table = as_frame(frame, "frame")
    return {role: column_of(table, name, f"It must hold {what[role]}.") for role, name in names.items()}


def feature_rows(given: Any, side: str) -> tuple[Any, NDArray[np.float32]]:
    """(ids, features) of users or items, from (ids, array) or a frame: `user_id` or `item_id` and the features."""
    name = f"new_{side}s"
    if is_frame(given):
        frame = as_frame(given, name)
        columns = frame_columns(given, {column: column for column in (f"{side}_id", *frame.columns)})
        ids = whole_ids(columns.pop(f"{side}_id"), f"{side}_id")
        values: Any = [finite_numbers(column, label) for label, column in columns.items()]
        table = np.stack(values, 1) if values else np.empty((len(ids), 0))
    else:
        try:
            ids, table = given
        except (TypeError, ValueError):
            came = short_repr(given)
            raise DataError(f"`{name}` must be (ids, array) or a frame with a column {side}_id, got {came}.") from None
        ids = whole_ids(ids, f"{side}_id")
    found = feature_table(table, len(ids), name)
    assert found is not None
    return ids, found


def observed_entries(ratings: Any, mask: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """Rows, columns and values of a matrix where the mask is not 0, and its shape."""
    from scipy import sparse

    if mask is None:
        raise DataError("`mask` must mark the observed entries: in a sparse matrix 0 and missing are the same.")
    try:
        matrix, observed = sparse.csr_array(ratings), sparse.coo_array(mask)
    except (TypeError, ValueError) as error:
        raise DataError(f"`ratings` and `mask` must be matrices of numbers: {error}.") from None
    if matrix.ndim != 2:
        raise DataError(f"`ratings` must be a matrix users x items, got {matrix.ndim} dimension.")
    if matrix.shape != observed.shape:
        raise DataError(f"`mask` must have the shape of the ratings {matrix.shape}, got {observed.shape}.")
    rows, columns = (places[observed.data != 0] for places in observed.coords)
    values = np.asarray(matrix[rows, columns]).ravel() if len(rows) else np.empty(0)
    return rows, columns, values, matrix.shape


def whole_ids(values: Any, name: str) -> Any:
    """A column of ids; an error that names the first row without one."""
    column = as_column(values)
    if isinstance(column, pl.Series):
        nulls = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
    else:
        odd = next((row for row, value in enumerate(column) if not _is_hashable(value)), None)
        if odd is not None:
            came = short_repr(column[odd])
            raise RowError(name, odd, f"expected an id, such as a number or a text, got {came}. Convert it to text.")
        nulls = pl.Series([value is None or value != value for value in column], dtype=pl.Boolean)
    if nulls.any():
        raise RowError(name, int(nulls.arg_max() or 0), "the id is missing. Fill it in or drop the row.")
    return column


def _is_hashable(value: Any) -> bool:
    """Whether it can be looked up: no dict, no set, no array, and no tuple of these."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def finite_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A column as finite floats; an error that names the first row without one."""
    column = _numeric(values, name)
    if column.dtype.is_temporal():
        raise DataError(f"column {name!r}: expected numbers, got {type_name(column.dtype)}. Convert or name another.")
    numbers = column.cast(pl.Float64, strict=False)
    bad = numbers.is_null() | ~numbers.is_finite().fill_null(False)
    if bad.any():
        row = int(bad.arg_max() or 0)
        raise RowError(name, row, f"expected a finite number, got {short_repr(column[row])}. {CORRECT}")
    return numbers.to_numpy().copy()


def whole_times(values: Any, name: str) -> NDArray[np.int64]:
    """Whole numbers as they come, dates as microseconds since 1970."""
    column = _numeric(values, name)
    is_date = column.dtype == pl.Date or column.dtype == pl.Datetime
    times = column.dt.epoch("us") if is_date else column.cast(pl.Int64, strict=False)
    if times.has_nulls():
        row = int(times.is_null().arg_max() or 0)
        came = column.to_physical()[row] if is_date else column[row]  # a date out of range cannot be written
        raise RowError(name, row, f"expected a whole number or a date, got {short_repr(came)}. {CORRECT}")
    return times.to_numpy().copy()


def propensity_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A column of numbers in (0, 1]."""
    numbers = finite_numbers(values, name)
    wrong = (numbers <= 0) | (numbers > 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise RowError(name, row, f"expected a propensity in (0, 1], got {numbers[row]:g}. {CORRECT}")
    return numbers


def feature_table(values: ArrayLike | None, rows: int, name: str) -> NDArray[np.float32] | None:
    """A finite table with a row for each id."""
    if values is None:
        return None
    try:
        with np.errstate(over="ignore"):
            table = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise DataError(f"`{name}` must be a table of numbers. Give text as a frame of ids and features.") from None
    if table.ndim != 2 or len(table) != rows:
        raise DataError(f"`{name}` must be a table with {rows} rows, one for each id, got shape {table.shape}.")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise DataError(f"`{name}` must be finite, got {table[row, column]} in row {row}, column {column}.")
    return table


def _numeric(values: Any, name: str) -> pl.Series:
    values = from_native(values)
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    if not hasattr(values, "__iter__"):
        came = short_repr(values)
        raise DataError(f"column {name!r}: expected a column of numbers, got {came}. Wrap a single one in a list.")
    column = values if isinstance(values, pl.Series) else series(values, name, strict=False)
    if column.dtype == pl.Object:  # a numpy array of mixed objects
        column = series(list(values), name, strict=False)
    if column.dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
        raise DataError(
            f"column {name!r}: expected one number in each row, got {type_name(column.dtype)}. Name another."
        )
    return column
