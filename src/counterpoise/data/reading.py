"""Files to logs: the columns of CSV, TSV and Parquet files, typed and checked, and tables of side features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.data.columns import finite_numbers, whole_ids
from counterpoise.data.files import (
    PARQUET,
    check_columns,
    column_names,
    files_of,
    first_row,
    is_many,
    kind_of,
    read_table,
)
from counterpoise.data.ids import Vocabulary, as_text, cast_or_keep
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import DataError, RowError

INTEGER = r"^(?:0|-?[1-9][0-9]*)$"
LIKE_AN_ID = r"^[-+]?(?:0[0-9]|[0-9]{16,}$)"  # leading zeros, or more digits than a float keeps
AnyPath = str | PathLike[str]


def read_log(path: AnyPath, **options: Any) -> FeedbackLog:
    """The log in one file. `options` are those of `read_logs`."""
    return read_logs({"log": path}, **options)["log"]


def read_logs(
    paths: Mapping[str, AnyPath],
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    rating_col: str = "rating",
    timestamp_col: str | None = None,
    propensity_col: str | None = None,
    separator: str | None = None,
    header: Sequence[str] | None = None,
    user_ids: Vocabulary | None = None,
    item_ids: Vocabulary | None = None,
    new_ids: bool = False,
    **options: Any,
) -> dict[str, FeedbackLog]:
    """The logs in several files, over the same users and items: those of all files, unless vocabularies are given.

    Each path is a file, a folder of files (at any depth) or a glob: the rows of all of them, in the order of names.
    `separator`: between the fields of a text file; by default a comma, in .tsv and .tab files a tab.
    `header`: the names of the columns of text files that have no header.
    `propensity_col`: the column of known propensities, in (0, 1]; the first file must have it, others may.
    `new_ids`: ids that `user_ids` or `item_ids` does not have are added to it; by default they are an error.
    `options`: `threshold`, `duplicates`, `sample` and whatever else `FeedbackLog.from_arrays` takes.
    """
    roles = {"user": user_col, "item": item_col, "rating": rating_col, "timestamp": timestamp_col}
    roles["propensity"] = propensity_col
    names = {role: column for role, column in roles.items() if column is not None}
    frames: list[pl.DataFrame] = []
    for path in paths.values():
        wanted = dict(names)
        if frames and propensity_col is not None and propensity_col not in header_of(path, separator, header):
            del wanted["propensity"]  # unbiased ratings need none
        frames.append(read_columns(path, wanted, separator=separator, header=header))
    users = same_type([frame["user"] for frame in frames])
    items = same_type([frame["item"] for frame in frames])
    if new_ids:
        user_ids = None if user_ids is None else user_ids.extended(pl.concat(users))
        item_ids = None if item_ids is None else item_ids.extended(pl.concat(items))
    options |= {
        "names": names,
        "user_ids": user_ids if user_ids is not None else Vocabulary.of(*users),
        "item_ids": item_ids if item_ids is not None else Vocabulary.of(*items),
    }
    logs = {}
    for (part, path), frame, user, item in zip(paths.items(), frames, users, items, strict=True):
        times, chances = (frame.get_column(role, default=None) for role in ("timestamp", "propensity"))
        with _located(path, separator, header):
            logs[part] = FeedbackLog.from_arrays(
                user, item, frame["rating"], timestamps=times, propensities=chances, **options
            )
    return logs


def read_columns(
    path: AnyPath, columns: Mapping[str, str], *, separator: str | None = None, header: Sequence[str] | None = None
) -> pl.DataFrame:
    """Some columns of a file, named by their role: {"user": "user_id"} reads `user_id` into the column `user`.

    Parquet columns keep their type. In text files the roles "user" and "item" become integers where every id is one
    and reads the same when written back ("007" stays text), "timestamp" a number or a date; other roles stay text.
    """
    if is_many(path):
        return _joined([read_part(file, columns, separator, header) for file in files_of(path)], path)
    return read_part(Path(path).expanduser(), columns, separator, header, empty=False)


def read_part(
    file: Path,
    columns: Mapping[str, str],
    separator: str | None = None,
    header: Sequence[str] | None = None,
    *,
    empty: bool = True,
) -> pl.DataFrame:
    """One file of a log, as `read_columns` reads it; it may be `empty`."""
    if empty and file.stat().st_size == 0:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
    frame = read_table(file, columns, separator, header, empty=empty)
    if kind_of(file) in PARQUET:
        return frame
    typed = {"user": _parse_ids, "item": _parse_ids, "timestamp": _parse_times}
    return frame.with_columns(typed[role](frame[role]) for role in columns if role in typed)


def read_pairs(
    path: AnyPath, *, user_col: str = "user_id", item_col: str = "item_id", separator: str | None = None
) -> pl.DataFrame:
    """The pairs in a file as columns `user_id` and `item_id`; no id is missing."""
    frame = read_columns(path, {"user": user_col, "item": item_col}, separator=separator)
    with _located(path, separator):
        whole_ids(frame["user"], user_col)
        whole_ids(frame["item"], item_col)
    return frame.rename({"user": "user_id", "item": "item_id"})


def read_features(path: AnyPath, columns: Sequence[str] | None = None, *, separator: str | None = None) -> pl.DataFrame:
    """Columns of finite numbers, all of them unless some are named."""
    file = Path(path).expanduser()
    names = list(columns) if columns is not None else column_names(file, separator)
    frame = read_table(file, {name: name for name in names}, separator)
    with _located(path, separator):
        return pl.DataFrame({name: finite_numbers(frame[name], name) for name in names})


def read_all_columns(path: AnyPath, features: pl.DataFrame, *, separator: str | None = None) -> pl.DataFrame:
    """All columns of a file in their order; those in `features` are taken from there.

    Text that is written like numbers becomes numbers, but ids such as 007 stay text.
    """
    file = Path(path).expanduser()
    names = {name: name for name in column_names(file, separator)}
    frame = read_table(file, names, separator, nested=True)
    return pl.DataFrame({name: features[name] if name in features else _parse_numbers(frame[name]) for name in names})


def same_type(columns: list[pl.Series]) -> list[pl.Series]:
    """Id columns of several files in one type: text where they differ."""
    plain = [as_plain_ids(column) for column in columns]
    return [as_text(column) for column in plain] if len({column.dtype for column in plain}) > 1 else plain


def _joined(frames: list[pl.DataFrame], path: AnyPath) -> pl.DataFrame:
    """The rows of all files; a column becomes text where its types differ, empty files not counted."""
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        raise DataError(f"{path}: there are no rows of data in any of the {len(frames)} files.")
    columns = {name: same_type([frame[name] for frame in filled]) for name in filled[0].columns}
    return pl.DataFrame({name: pl.concat(parts) for name, parts in columns.items()})


@contextmanager
def _located(path: AnyPath, separator: str | None = None, header: Sequence[str] | None = None) -> Iterator[None]:
    """Errors inside the block name the file; those of a row also its number in the file that holds it."""
    try:
        yield
    except RowError as error:
        row, file = error.row, Path(path).expanduser()
        for file in files_of(path) if is_many(path) else []:
            rows = len(read_part(file, {"rating": header_of(file, separator, header)[0]}, separator, header))
            if row < rows:
                break
            row -= rows
        raise RowError(error.column, row, error.reason).located(str(file), first_row(file, header)) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def as_plain_ids(column: pl.Series) -> pl.Series:
    """Integers in 64 bits, also those that a missing id once turned into floats; categories as text."""
    if column.dtype in (pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String)
    if not column.dtype.is_numeric():
        return column
    integers = column.cast(pl.Int64, strict=False)
    return integers if integers.eq_missing(column).all() else column


def header_of(path: AnyPath, separator: str | None = None, header: Sequence[str] | None = None) -> Sequence[str]:
    """The names of the columns; those of the first file that has some, where there are many."""
    files = [file for file in files_of(path) if not is_many(path) or file.stat().st_size]
    return (column_names(files[0], separator) if files else []) if header is None else header


def _parse_ids(column: pl.Series) -> pl.Series:
    """Text as 64-bit integers where each is written in the one usual way; an empty id becomes a null."""
    column = column.replace("", None)
    return cast_or_keep(column, pl.Int64) if column.str.contains(INTEGER).all() else column


def _parse_numbers(column: pl.Series) -> pl.Series:
    """Text as integers or floats where each value is written as one, and would be written so again."""
    column = _parse_ids(column) if column.dtype == pl.String else column
    if column.dtype != pl.String or column.str.contains(LIKE_AN_ID).any():
        return column
    return cast_or_keep(column, pl.Float64)


def _parse_times(column: pl.Series) -> pl.Series:
    for kind in (pl.Int64, pl.Float64):
        if (numbers := cast_or_keep(column, kind)).dtype == kind:
            return numbers
    try:
        dates = column.str.to_datetime(strict=False, time_unit="us")
    except pl.exceptions.PolarsError:  # not a way of writing dates
        return column
    return dates if dates.null_count() == column.null_count() else column


def read_logs_with_features(
    paths: Mapping[str, AnyPath], users: AnyPath | None = None, items: AnyPath | None = None, **options: Any
) -> dict[str, FeedbackLog]:
    """As `read_logs`, whose options these are, with side features of users and items from two more files.

    Those files have the log's names of the id columns; they may have ids that the logs do not have.
    """
    logs = read_logs(paths, **options)
    first, separator = next(iter(logs.values())), options.get("separator")
    sides: dict[str, Any] = {}
    for side, path, ids in (("user", users, first.user_ids), ("item", items, first.item_ids)):
        if path is not None:
            id_col = options.get(f"{side}_col", f"{side}_id")
            sides[f"{side}_features"] = _features_of(path, ids, id_col, separator, side)
    return {part: replace(log, **sides) for part, log in logs.items()}


def read_side_features(
    path: AnyPath, id_col: str, separator: str | None = None
) -> tuple[Vocabulary, NDArray[np.float64]]:
    """The ids of users or items, and their features: every other column, all of them numbers."""
    frame = read_all_columns(path, pl.DataFrame(), separator=separator)
    check_columns(Path(path).expanduser(), {"id": id_col}, frame.columns)
    repeated = frame[id_col].filter(frame[id_col].is_duplicated()).drop_nulls()
    if len(repeated):
        raise DataError(f"{path}: column {id_col!r}: {repeated[0]!r} is in more than one row. Keep one of them.")
    with _located(path, separator):
        ids = Vocabulary(as_plain_ids(whole_ids(frame[id_col], id_col)))
        values = [finite_numbers(frame[name], name) for name in frame.columns if name != id_col]
    if not values:
        raise DataError(f"{path}: there is no feature beside {id_col!r}. Add columns of numbers.")
    return ids, np.stack(values, 1)


def _features_of(path: AnyPath, ids: Vocabulary, id_col: str, separator: str | None, side: str) -> NDArray[np.float32]:
    """A row of features for each id, in the order of codes."""
    known, values = read_side_features(path, id_col, separator)
    rows = known.encode(ids.column)
    if (rows < 0).any():
        missing = ids.decode(np.flatnonzero(rows < 0)[:1])[0]
        raise DataError(
            f"{path}: there is no row for {int((rows < 0).sum()):,} of {len(rows):,} {side}s of the log, the first is "
            f"{missing!r}. Add them, or leave the file out."
        )
    if np.abs(values).max() > np.finfo(np.float32).max:
        raise DataError(f"{path}: the largest feature is {np.abs(values).max():.2g}, past float32. Scale it.")
    return values[rows].astype(np.float32)
