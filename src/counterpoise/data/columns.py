"""Columns of frames and matrices, checked: an error names the column and its first bad row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.data.ids import as_column, from_native
from counterpoise.errors import DataError, RowError, did_you_mean, short_repr

CORRECT = "Correct or drop the row."


def frame_columns(frame: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The columns of a pandas, polars or pyarrow frame, by role: {role: what the frame calls it}."""
    try:
        table: Any = nw.from_native(frame)
    except (TypeError, ValueError, nw.exceptions.NarwhalsError) as error:
        came = f"{type(frame).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"`frame` must be a pandas, polars or pyarrow frame, got {came}") from None
    table = table.collect() if isinstance(table, nw.LazyFrame) else table
    for column in names.values():
        if column not in table.columns:
            listed, hint = ", ".join(map(repr, table.columns)), did_you_mean(column, table.columns)
            raise DataError(f"there is no column {column!r}; the columns are {listed}.{hint}")
    return {role: table[column].to_native() for role, column in names.items()}


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
    nulls = (
        column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
        if isinstance(column, pl.Series)
        else pl.Series([value is None or value != value for value in column], dtype=pl.Boolean)
    )
    if nulls.any():
        raise RowError(name, int(nulls.arg_max() or 0), "the id is missing. Fill it in or drop the row.")
    return column


def finite_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A column as finite floats; an error that names the first row without one."""
    column = _numeric(values, name)
    if column.dtype.is_temporal():
        raise DataError(f"column {name!r}: expected numbers, got {column.dtype}.")
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
        raise DataError(f"`{name}` must be a table of numbers.") from None
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
    column = values if isinstance(values, pl.Series) else pl.Series(name, values, strict=False)
    if column.dtype == pl.Object:  # a numpy array of mixed objects
        column = pl.Series(name, list(values), strict=False)
    if column.dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
        raise DataError(f"column {name!r}: expected one number in each row, got {column.dtype}.")
    return column
