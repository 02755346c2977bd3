"""Files to logs: the columns of text, JSON lines and Parquet files, typed and checked, and tables of side features."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from counterpoise.config import Feedback, takes_options
from counterpoise.data.columns import finite_numbers, rating_column, whole_ids
from counterpoise.data.files import (
    JSON_LINES,
    NOT_UTF8,
    PARQUET,
    Header,
    Layout,
    as_utf8,
    column_names,
    files_of,
    first_row,
    is_many,
    kind_of,
    layout_of,
    read_split_text,
    read_table,
)
from counterpoise.data.ids import Vocabulary, cast_or_keep, same_type
from counterpoise.data.item_names import ItemNames
from counterpoise.data.log import DEFAULTS, FeedbackLog, LogOptions
from counterpoise.data.side_tables import SideTable, as_polars, side_fields
from counterpoise.errors import DataError, RowError, did_you_mean, short_repr
from counterpoise.storage import check_file, expanded

INTEGER = r"^(?:0|-?[1-9][0-9]*)$"
LIKE_AN_ID = r"^[-+]?(?:0[0-9]|[0-9]{16,}$)"  # leading zeros, or more digits than a float keeps
TIMESTAMP = "timestamp"  # in a given or guessed header, the column of times
AnyPath = str | PathLike[str]


class ReadOptions(LogOptions, total=False):
    """How files become logs: see `read_logs`."""

    separator: str | None
    header: Header | None
    new_ids: bool


@takes_options(ReadOptions, DEFAULTS | {"new_ids": False})
def read_log(path: AnyPath, **options: Unpack[ReadOptions]) -> FeedbackLog:
    """The log in one file, a folder of files or a glob. The options are those of `read_logs`."""
    return read_logs({"log": path}, **options)["log"]


@takes_options(ReadOptions, DEFAULTS | {"new_ids": False})
def read_logs(
    paths: Mapping[str, AnyPath],
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    rating_col: str | None = "rating",
    timestamp_col: str | None = None,
    propensity_col: str | None = None,
    separator: str | None = None,
    header: Header | None = None,
    feedback: Feedback | None = None,
    user_ids: Vocabulary | None = None,
    item_ids: Vocabulary | None = None,
    new_ids: bool = False,
    **options: Any,
) -> dict[str, FeedbackLog]:
    """The logs in several files, over the same users and items: those of all files, unless vocabularies are given.

    Each path is a file, a folder of files (at any depth) or a glob: the rows of all of them, in the order of names.
    `separator`: between the fields of a text file: one or two characters, or a word such as "tab"; by default that of
    the ending, or else guessed from the first rows.
    `header`: the names of the columns of text files that have none, as a sequence or as one text with commas. If it has
    a `timestamp`, that is read too. Without it, a file without names is read as user, item, rating and maybe timestamp
    where its values can be nothing else. A `ReadingWarning` says what was guessed.
    `timestamp_col`: the column of times, whole numbers or dates.
    `propensity_col`: the column of known propensities, in (0, 1]; the first file must have it, others may.
    `new_ids`: ids that `user_ids` or `item_ids` does not have are added to it; by default they are an error.
    In a file without "rating", `clicked`, `click` or `is_click` says what was clicked.
    `feedback`: of the first file, see `FeedbackLog.from_arrays`; the others follow from their labels. A file of
    clicks needs no column of ratings: without a column "rating" every row is a click, if `feedback` says so or there
    are no columns but those that are named here.
    `options`: `threshold`, `duplicates`, `sample` and whatever else `FeedbackLog.from_arrays` takes.
    """
    roles = {"user": user_col, "item": item_col, "rating": rating_col, "timestamp": timestamp_col}
    roles["propensity"] = propensity_col
    names = {role: column for role, column in roles.items() if column is not None}
    if rating_col == "rating":
        names["rating"] = _rating_column(next(iter(paths.values())), names, separator, header, feedback)
    frames: list[pl.DataFrame] = []
    wanted: list[dict[str, str]] = []
    for path in paths.values():
        kind = None if frames else feedback
        wanted.append(_columns_of(path, names, separator, header, kind, first=not frames))
        frames.append(read_columns(path, wanted[-1], separator=separator, header=header))
    users = same_type([frame["user"] for frame in frames])
    items = same_type([frame["item"] for frame in frames])
    if new_ids:
        user_ids = None if user_ids is None else user_ids.extended(pl.concat(users))
        item_ids = None if item_ids is None else item_ids.extended(pl.concat(items))
    options |= {
        "names": {"timestamp": TIMESTAMP} | names,
        "user_ids": user_ids if user_ids is not None else Vocabulary.of(*users),
        "item_ids": item_ids if item_ids is not None else Vocabulary.of(*items),
    }
    logs: dict[str, FeedbackLog] = {}
    for (part, path), columns, frame, user, item in zip(paths.items(), wanted, frames, users, items, strict=True):
        times, chances = (frame.get_column(role, default=None) for role in ("timestamp", "propensity"))
        with _located(path, separator, header, columns):
            ratings = frame.get_column("rating", default=None)
            kind = feedback if not logs else None
            own = options if ratings is not None or kind == "ratings" else options | {"threshold": None}
            logs[part] = FeedbackLog.from_arrays(
                user, item, ratings, feedback=kind, timestamps=times, propensities=chances, **own
            )
    return logs


def _columns_of(
    path: AnyPath,
    names: Mapping[str, str],
    separator: str | None,
    header: Header | None,
    feedback: Feedback | None,
    first: bool,
) -> dict[str, str]:
    """The columns to read from one log of several: those that were named, and the times of a file without header.

    No ratings are read from a file of clicks that has none.
    """
    columns = dict(names)
    if not _has_ratings(path, names, feedback, separator, header):
        del columns["rating"]
    given = [name for role, name in columns.items() if role != "propensity"]
    if not first and "propensity" in columns and columns["propensity"] not in header_of(path, separator, header, given):
        del columns["propensity"]  # unbiased ratings need none
    if "timestamp" not in columns:
        files = [file for file in files_of(path) if not is_many(path) or file.stat().st_size]
        if files and TIMESTAMP in (layout_of(files[0], list(columns.values()), separator, header).header or ()):
            columns["timestamp"] = TIMESTAMP
    return columns


def _rating_column(
    path: AnyPath, names: Mapping[str, str], separator: str | None, header: Header | None, feedback: Feedback | None
) -> str:
    """`rating_column` of a file."""
    try:
        return rating_column(header_of(path, separator, header, [names["user"], names["item"]]), feedback)
    except DataError:  # which reading it will raise
        return "rating"


def _has_ratings(
    path: AnyPath,
    names: Mapping[str, str],
    feedback: Feedback | None,
    separator: str | None,
    header: Header | None,
) -> bool:
    """Whether a file of a log has ratings, or must have them: False only for one of clicks without the usual column."""
    if names.get("rating") != "rating" or feedback in ("ratings", "impressions"):
        return True
    pair = [names["user"], names["item"]]
    try:
        columns = set(header_of(path, separator, header, pair))
    except DataError:  # which reading it will raise
        return True
    clicks = feedback == "clicks" or columns <= {*names.values(), "timestamp"}
    return "rating" in columns or not clicks or not set(pair) <= columns


def read_columns(
    path: AnyPath, columns: Mapping[str, str], *, separator: str | None = None, header: Header | None = None
) -> pl.DataFrame:
    """Some columns of a file, named by their role: {"user": "user_id"} reads `user_id` into the column `user`.

    Parquet columns keep their type. Elsewhere the roles "user" and "item" become integers where every id is one and
    reads the same when written back ("007" stays text), "timestamp" a number or a date; other roles stay text.
    """
    if is_many(path):
        warned: set[str] = set()
        return _joined([read_part(file, columns, separator, header, warned=warned) for file in files_of(path)], path)
    return read_part(expanded(path), columns, separator, header, empty=False)


def read_part(
    file: Path,
    columns: Mapping[str, str],
    separator: str | None = None,
    header: Header | None = None,
    *,
    empty: bool = True,
    warned: set[str] | None = None,
) -> pl.DataFrame:
    """One file of a log, as `read_columns` reads it; it may be `empty`. `warned`: see `read_table`."""
    if empty and file.stat().st_size == 0:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
    frame = read_table(file, columns, separator, header, empty=empty, warned=warned)
    return frame if kind_of(file) in PARQUET else typed(frame)


def typed(frame: pl.DataFrame) -> pl.DataFrame:
    """Text as the types of its roles: see `read_columns`."""
    parsers = {"user": _parse_ids, "item": _parse_ids, "timestamp": _parse_times}
    return frame.with_columns(parsers[role](frame[role]) for role in frame.columns if role in parsers)


def read_pairs(
    path: AnyPath,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    separator: str | None = None,
    header: Header | None = None,
) -> pl.DataFrame:
    """The pairs in a file as columns `user_id` and `item_id`; no id is missing."""
    names = {"user": user_col, "item": item_col}
    frame = read_columns(path, names, separator=separator, header=header)
    with _located(path, separator, header, names):
        whole_ids(frame["user"], user_col)
        whole_ids(frame["item"], item_col)
    return frame.rename({"user": "user_id", "item": "item_id"})


def read_ratings(
    path: AnyPath,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    rating_col: str = "rating",
    separator: str | None = None,
    header: Header | None = None,
    clicks: bool = False,
) -> pl.DataFrame:
    """The ratings of new users in a file: columns `item_id`, `rating` and, where the file has users, `user_id`.

    A file of `clicks` needs no column "rating".
    """
    names = {"item": item_col}
    if not clicks or rating_col != "rating" or rating_col in header_of(path, separator, header, names.values()):
        names["rating"] = rating_col
    if user_col != "user_id" or user_col in header_of(path, separator, header, names.values()):
        names["user"] = user_col
    frame = read_columns(path, names, separator=separator, header=header)
    with _located(path, separator, header, names):
        for role in names.keys() - {"rating"}:
            whole_ids(frame[role], names[role])
        own = {role: finite_numbers(_parse_numbers(frame[role]), rating_col) for role in names if role == "rating"}
    return pl.DataFrame({f"{role}_id": frame[role] for role in names if role != "rating"} | own)


def read_all_columns(path: AnyPath, *, separator: str | None = None, header: Header | None = None) -> pl.DataFrame:
    """All columns of a file in their order; text that is written like numbers becomes numbers, but 007 stays text."""
    file = expanded(path)
    names = {name: name for name in column_names(file, separator, header)}
    frame = read_table(file, names, separator, header, nested=True)
    return pl.DataFrame({name: _parse_numbers(frame[name]) for name in names})


def read_unquoted(file: Path, separator: str, header: Sequence[str]) -> pl.DataFrame:
    """All columns of a Latin-1 text file without header and quotes, as in MovieLens; numbers as such."""
    check_file(file)
    frame = read_split_text(file, {name: name for name in header}, Layout(separator, tuple(header)), "latin-1")
    return frame.select(_parse_numbers(column) for column in frame)


def _joined(frames: list[pl.DataFrame], path: AnyPath) -> pl.DataFrame:
    """The rows of all files; a column becomes text where its types differ, empty files not counted."""
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        raise DataError(f"{path}: there are no rows of data in any of the {len(frames)} files.")
    columns = {name: same_type([frame[name] for frame in filled]) for name in filled[0].columns}
    return pl.DataFrame({name: pl.concat(parts) for name, parts in columns.items()})


@contextmanager
def _located(
    path: AnyPath,
    separator: str | None = None,
    header: Header | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Errors inside the block name the file; those of a row also its number in the file that holds it.

    `columns`: those that were read; of several files it takes them to find the one.
    """
    try:
        yield
    except RowError as error:
        row, file, names = error.row, expanded(path), dict(columns or {})
        for file in files_of(path) if is_many(path) else []:
            rows = len(read_part(file, names, separator, header))
            if row < rows:
                break
            row -= rows
        number = first_row(file, layout_of(file, names.values(), separator, header))
        raise RowError(error.column, row, error.reason).located(str(file), number) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def header_of(
    path: AnyPath, separator: str | None = None, header: Header | None = None, columns: Collection[str] = ()
) -> Sequence[str]:
    """The names of the columns; those of the first file that has some, where there are many."""
    files = [file for file in files_of(path) if not is_many(path) or file.stat().st_size]
    return column_names(files[0], separator, header, columns) if files else []


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
    paths: Mapping[str, AnyPath],
    users: Any = None,
    items: Any = None,
    *,
    categorical: Sequence[str] = (),
    **options: Any,
) -> dict[str, FeedbackLog]:
    """As `read_logs`, whose options these are, with features of users and items from two more files, or frames.

    They have the log's names of the id columns; see `FeedbackLog.with_side_tables`.
    """
    logs = read_logs(paths, **options)
    first, separator, tables = next(iter(logs.values())), options.get("separator"), {}
    for side, table in (("user", users), ("item", items)):
        id_col = options.get(f"{side}_col", f"{side}_id")
        if isinstance(table, str | PathLike):
            tables[side] = read_side_table(table, id_col, separator)
        elif table is not None:
            tables[side] = SideTable(as_polars(table), id_col, f"the table of {side}s")
    fields = side_fields(tables, {"user": first.user_ids, "item": first.item_ids}, categorical)
    return {part: replace(log, **fields) for part, log in logs.items()}


def read_side_table(path: AnyPath, id_col: str, separator: str | None = None) -> SideTable:
    """All columns of a file of users or items, text as it is written; the file may have another layout than the log.

    Its separator and its header are guessed (`sniff_layout`). Without a header the first column has the ids, and the
    others are called column_2 and so on. Text that is not UTF-8 is taken for Western European. `source` says all that.
    """
    file = expanded(path)
    if kind_of(file) in (*PARQUET, *JSON_LINES):
        names = column_names(file)
        _check_id_column(file, id_col, names)
        return SideTable(read_table(file, {name: name for name in names}, nested=True), id_col, str(path), 1)
    try:
        return _read_side_text(file, id_col, separator)
    except DataError as error:
        if NOT_UTF8 not in str(error):
            raise
    with as_utf8(file) as copy:
        found = _read_side_text(copy, id_col, separator)
    guess = found.source.removeprefix(str(copy)).strip(" ()")
    words = "; ".join(filter(None, [guess, "not UTF-8, read as Windows-1252"]))
    return replace(found, source=f"{path} ({words})")


def read_item_names(
    path: AnyPath, item_col: str = "item_id", name_col: str | None = None, separator: str | None = None
) -> ItemNames:
    """The names of items in a file of any layout (`read_side_table`); `name_col` as in `ItemNames.from_frame`."""
    table = read_side_table(path, item_col, separator)
    try:
        names = ItemNames.from_frame(table.frame, item_col, name_col)
    except RowError as error:
        raise error.located(str(path), table.first_row) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return replace(names, source=f"{names.source!r} of {table.source}")


def _read_side_text(file: Path, id_col: str, separator: str | None) -> SideTable:
    try:
        layout = layout_of(file, (id_col,), id_col=id_col)
    except DataError as error:
        if "looks like data" not in str(error):
            raise
        rule = "a file without the names of its columns must have another id in the first field of each row"
        raise DataError(f"{file}: {rule}. Correct the ids, or write the names in a first row.") from None
    if separator is not None:  # that of the log
        given = layout_of(file, (id_col,), separator, id_col=id_col)
        layout = given if len(column_names(file, given.separator, given.header)) > 1 else layout
    names = column_names(file, layout.separator, layout.header, (id_col,))
    _check_id_column(file, id_col, names)
    frame = read_table(file, {name: name for name in names}, layout.separator, layout.header)
    guess = layout.guess
    if guess is not None and layout.header is not None:
        guess = guess.replace(", ".join(layout.header), ", ".join([*layout.header[:2], "...", layout.header[-1]]))
    source = str(file) if guess is None else f"{file} ({guess})"
    return SideTable(frame.with_columns(_parse_ids(frame[id_col])), id_col, source, first_row(file, layout))


def _check_id_column(file: Path, id_col: str, names: Sequence[str]) -> None:
    if id_col not in names:
        listed, hint = ", ".join(map(short_repr, names[:20])), did_you_mean(id_col, names)
        raise DataError(
            f"{file}: there is no column {id_col!r}; the columns are {listed}.{hint} The column of ids must be called "
            "as in the log."
        )
