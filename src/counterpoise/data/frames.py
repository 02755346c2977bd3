"""Frames and columns of pandas, polars, pyarrow and others that narwhals knows; results in the kind that came in."""

from __future__ import annotations

from typing import Any, Literal, cast

import narwhals as nw
import polars as pl

from counterpoise.errors import DataError, did_you_mean, short_repr

POLARS = "polars"  # the kind of frames where nothing says otherwise


def is_frame(value: Any) -> bool:
    """Whether it is a frame; polars may be lazy."""
    return isinstance(_narwhals(value), nw.DataFrame | nw.LazyFrame)


def _narwhals(value: Any) -> Any:
    """The narwhals frame or column of a frame or a column; anything else as it came."""
    try:
        return nw.from_native(value, pass_through=True, allow_series=True)
    except nw.exceptions.NarwhalsError as error:
        raise DataError(f"a frame cannot be read: {' '.join(str(error).split())}. Rename its columns.") from None


def as_frame(value: Any, name: str) -> Any:
    """The narwhals frame of a frame; a lazy one is collected."""
    try:
        frame: Any = nw.from_native(value)
        return frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    except (TypeError, ValueError, nw.exceptions.NarwhalsError) as error:
        came = f"{type(value).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"`{name}` must be a pandas, polars or pyarrow frame, got {came}") from None


def kind_of_frame(value: Any) -> str | None:
    """The library of a frame or a column, such as "pandas"; None for anything else."""
    native = _narwhals(value)
    if isinstance(native, nw.LazyFrame) and native.implementation.is_polars():
        return POLARS
    if isinstance(native, nw.DataFrame | nw.Series):
        return str(native.implementation.value)
    return None


def to_kind(table: pl.DataFrame, kind: str) -> Any:
    """A polars frame as one of another library, without pyarrow where that library does without."""
    if kind == POLARS:
        return table
    columns = {column.name: column.to_numpy() if is_plain(column) else column.to_list() for column in table}
    return nw.from_dict(columns, backend=cast("Literal['pandas']", kind)).to_native()


def is_plain(column: pl.Series) -> bool:
    """Whether it holds numbers and none is missing."""
    return column.dtype.is_numeric() and not column.has_nulls()


def score_column(frame: Any, values: Any) -> Any:
    """Scores as a column of the kind of a narwhals frame; that of pandas has the frame's index."""
    column = nw.new_series("score", values, backend=frame.implementation)
    return frame.with_columns(column)["score"].to_native()


def column_of(frame: Any, column: str, way_out: str = "") -> Any:
    """A column of a narwhals frame, in its library; an error that lists the columns and suggests the nearest.

    A column that is called by a number, as in a pandas frame without header, is also found by its text.
    """
    names = [str(name) for name in frame.columns]
    if column not in frame.columns and str(column) in names:
        column = frame.columns[names.index(str(column))]
    if column not in frame.columns:
        listed = ", ".join(map(short_repr, frame.columns[:20])) + (", ..." if len(names) > 20 else "")
        hint = did_you_mean(column, names)
        raise DataError(f"there is no column {column!r}; the columns are {listed}.{hint}{way_out and f' {way_out}'}")
    return frame.get_column(column).to_native()
