"""Text, JSON lines and Parquet files as columns, plain or compressed, and the files that a folder or a glob names.

Errors are one line with the file, the column and the row. Rows are counted as a spreadsheet counts them: the header of
a text file is row 1. Parquet and JSON lines have no header, so their first row of data is row 1. Text files are read as
text and typed later, so that messages can show every value as it is written.

What the caller does not say of a text file, its separator and the names of its columns, is guessed from its first
rows (`layout_of`), and a `ReadingWarning` says what was guessed.

A few kilobytes may unpack to more than memory holds. So the unpacked size of a compressed file and its rows are found
first, in small pieces (`check_unpacked`, `parquet.check_parquet`). Logs of ratings shrink to a tenth or a twentieth of
their size; what shrinks to less than a hundredth was made to do harm.

A long text file is read in parts (`text_parts`), each of whole rows and below the file's first row, by which its fields
are counted and named.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import json
import math
import mmap
import re
import shutil
import tempfile
import warnings
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

import polars as pl

from counterpoise.data.ids import type_name
from counterpoise.data.parquet import (
    MAX_COLUMNS,
    check_amount,
    check_decoded,
    check_parquet,
    hidden_panics,
)
from counterpoise.errors import ConfigError, DataError, ReadingWarning, did_you_mean, short_repr
from counterpoise.storage import expanded, open_file, read_file

Header = str | Sequence[str]  # the names of the columns; as one text they are separated by commas
SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
SEPARATOR_WORDS = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
SEPARATOR_NAMES = {"\t": "tabs", "::": "'::'", ";": "semicolons", "|": "pipes", ",": "commas", " ": "spaces"}  # guessed
RARE_IN_TEXT = {"\t": 2, "::": 2, " ": 0}  # beside 1 of the others: which of two separators that both fit is in titles
LOG_HEADER = ("user_id", "item_id", "rating", "timestamp")  # of a log without header, where the values fit to it
PARQUET = (".parquet", ".pq")
JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (*SEPARATORS, *JSON_LINES[:2], *PARQUET)  # endings of the files of a folder, before that of the compression
COMPRESSED = (".gz", ".zst")
ROLES = ("user", "item", "rating", "timestamp")  # of columns that the caller can name
FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
BLANK, SHORT, BREAKS = "\0blank", "\0short", "\0breaks"  # names that no file gives to a column
NOT_UTF8 = "the text is not UTF-8. Save the file with the encoding UTF-8."
BAD_QUOTE = "a quote is not closed or not doubled. Correct the row."
MIN_TEXT_ROW = 12  # bytes; nearly every row of a text file has more
TEXT_COMPRESSION = 4  # a compressed text file is roughly so many times smaller
CHUNK = 1 << 20
HEAD_SIZE, HEAD_ROWS = 1 << 18, 100  # bytes and rows of a text file that its layout is guessed from
MIN_TIME = 1e8  # seconds since 1970; larger numbers are no ratings, smaller ones no times
MAX_RATING_VALUES = 20  # whole numbers that are more, and more than the items, are no ratings
NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
WHOLE, DATE = re.compile(r"[0-9]+"), re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
UNPARSED: dict[str, Any] = {  # how polars reads lines
    "has_header": False,
    "infer_schema": False,
    "separator": "\0",
    "quote_char": None,
    "truncate_ragged_lines": True,
    "glob": False,
}
ZSTANDARD_BLOCK = 1 << 17  # the most bytes that one block holds
TEXT_PART = 1 << 22  # bytes of a text file that are read together
MAX_TEXT_ROW = 1 << 26  # bytes; where no quote is closed for longer, one is wrong


def check_unpacked(file: Path) -> None:
    """Raise `DataError` for a file that unpacks to far more than its size. Looks at its first bytes, not its name."""
    with open_file(file) as stream:
        start = stream.read(4)
        stream.seek(0)
        if start == ZSTANDARD:
            pieces: Iterator[tuple[int, int]] = ((size, 0) for size in _zstandard_blocks(stream))
        elif start[:2] == GZIP or start[:2] in ZLIB:
            pieces = _deflated_pieces(stream)
        else:
            return
        packed, size, rows = file.stat().st_size, 0, 0
        for more, ends in pieces:
            size, rows = size + more, rows + ends
            check_amount(str(file), size, rows, packed)
    if start == ZSTANDARD:  # of a size that can be unpacked
        with suppress(*FAILURES):  # which the reader of the file will report
            rows = pl.scan_csv(file, **UNPARSED).select(pl.len()).collect(engine="streaming").item()
            check_amount(str(file), 0, rows, packed)


def _deflated_pieces(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """(size, line ends) of pieces of gzip or zlib data, up to damaged data, which the reader of the file reports."""
    unpacker, held = zlib.decompressobj(wbits=47), b""
    while held := held or stream.read(CHUNK):
        try:
            piece = unpacker.decompress(held, CHUNK)
            yield len(piece), piece.count(b"\n")
        except zlib.error:
            return
        held = unpacker.unconsumed_tail
        if unpacker.eof:
            held, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=47)


def _zstandard_blocks(stream: IO[bytes]) -> Iterator[int]:
    """An upper bound of the bytes of each block (RFC 8878), from the headers alone, up to a damaged one."""
    while (magic := stream.read(4)) == ZSTANDARD or magic[1:] == b"\x2a\x4d\x18":
        if magic != ZSTANDARD:  # a frame to skip
            stream.seek(int.from_bytes(stream.read(4), "little"), 1)
            continue
        descriptor = int.from_bytes(stream.read(1), "little")
        single, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
        stream.seek((1 - single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6], 1)
        last = 0
        while not last:
            header = stream.read(3)
            if len(header) < 3:
                return
            word = int.from_bytes(header, "little")
            last, kind, size = word & 1, word >> 1 & 3, word >> 3
            yield size if kind < 2 else ZSTANDARD_BLOCK
            stream.seek(1 if kind == 1 else size, 1)
        stream.seek(4 * has_checksum, 1)


def kind_of(file: Path) -> str:
    """The file ending without compression: .csv for both a.csv and a.csv.gz; empty where there is none."""
    endings = [ending.lower() for ending in file.suffixes]
    if endings and endings[-1] in COMPRESSED:
        endings.pop()
    return endings[-1] if endings else ""


@dataclass(frozen=True)
class Layout:
    """How a text file is read: its separator, the names of its columns, and what of this was guessed."""

    separator: str = ","
    header: tuple[str, ...] | None = None  # None where the first row has the names
    guess: str | None = None  # a sentence; None where nothing was guessed


def layout_of(
    file: Path,
    columns: Collection[str] = (),
    separator: str | None = None,
    header: Header | None = None,
    *,
    id_col: str | None = None,
) -> Layout:
    """How a text file is read; what is not given is guessed from its first rows.

    The separator is that of the file's ending if the first row has it, else the one that cuts the first rows into the
    same number of fields: of several a tab or '::', a space last, then that of the most fields. The first row has the
    names if `columns` are all there, or if it does not look like data. A file without names is read as user, item,
    rating and maybe timestamp where its values can be nothing else; `DataError` shows the `header` to give otherwise.
    `id_col`: the file is a table with a row for each id; without names, these are in its first column.
    """
    if kind_of(file) in (*PARQUET, *JSON_LINES):
        return Layout()
    lines, usual = _head(file), SEPARATORS.get(kind_of(file))
    chosen = _given_separator(separator) or (usual if lines and usual and usual in lines[0] else None)
    guessed = None if chosen else _guess_separator(lines)
    chosen = chosen or guessed or usual or ","
    fields = f"fields separated by {SEPARATOR_NAMES.get(chosen, repr(chosen))}"
    sentence = None if guessed in (None, usual) else fields
    rows = _rows(lines, chosen)
    first, names = (rows[0] if rows else []), names_of(header)
    if lines and lines[0].startswith(("{", "[{")):
        raise DataError(f"{file}: this is JSON. Write one record in each line, to a file that ends in .jsonl.")
    if (columns and set(columns) <= set(first)) or (names is None and not _looks_like_data(rows)):
        unused = "row 1 has the names of columns, so the header that is given is not used"
        told = [sentence, unused if names not in (None, tuple(first)) else None]
        return Layout(chosen, None, "; ".join(filter(None, told)) or None)
    if names is not None:
        shown = ", ".join(map(short_repr, first[:6]))
        odd = f"row 1 looks like names ({shown}) and is read as data, since a header is given"
        guesses = [sentence, odd if _text_above_numbers(rows) else None]
        return Layout(chosen, names, "; ".join(filter(None, guesses)) or None)
    numbered = [f"column_{number + 1}" for number in range(len(first))]
    if id_col is not None:
        fits, names = len({row[0] for row in rows}) == len(rows), (id_col, *numbered[1:])
    else:
        fits, names = _looks_like_log(rows), LOG_HEADER[: len(first)]
    if not fits or not columns or not set(columns) <= set(names):
        example = ",".join([*columns, *numbered[len(columns) :]][:8]) + (",..." if len(first) > 8 else "")
        shown = ", ".join(map(short_repr, first[:6])) + (", ..." if len(first) > 6 else "")
        way_out = f"Name its {len(first)} columns in their order with `header` (--header), for example {example}."
        raise DataError(f"{file}: row 1 looks like data, not like the names of columns: {shown}. {way_out}")
    return Layout(chosen, names, f"{fields}, no header; read as {', '.join(names)}")


def names_of(header: Header | None) -> tuple[str, ...] | None:
    """The names of a header, which must be different."""
    if header is None:
        return None
    names = [name.strip() for name in header.split(",")] if isinstance(header, str) else list(header)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        example = "user_id,item_id,rating"
        raise ConfigError(f"`header` must be different names of columns, such as {example}, got {short_repr(header)}.")
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in name):  # bytes that are no text
        raise ConfigError(f"`header` must be names in UTF-8, got {short_repr(header)}.")
    return tuple(names)


def _given_separator(separator: str | None) -> str | None:
    """The separator that a word such as "tab" means, or the characters themselves."""
    if separator is None or separator in SEPARATOR_WORDS:
        return None if separator is None else SEPARATOR_WORDS[separator]
    size = len(separator.encode())
    if not 1 <= size <= 2 or any(character in '"\r\n\0' for character in separator):
        hint = did_you_mean(separator, SEPARATOR_WORDS)
        listed = ", ".join(word for word in SEPARATOR_WORDS if word.isalpha())
        raise ConfigError(f"`separator` must be one or two characters or one of {listed}, got {separator!r}.{hint}")
    return separator


def _head(file: Path) -> list[str]:
    """The first lines of a text file that are not blank; none where they cannot be read, which its reader reports."""
    _check_there(file)
    with open_file(file) as stream:
        content = stream.read(HEAD_SIZE)
    if content[:4] == ZSTANDARD:
        check_unpacked(file)  # the reader below unpacks all of it
        try:
            return list(_lines(file, 2 * HEAD_ROWS).drop_nulls()[:HEAD_ROWS])
        except FAILURES:
            return []
    if content[:2] == GZIP or content[:2] in ZLIB:
        unpacker = zlib.decompressobj(wbits=47)
        try:
            content = unpacker.decompress(content, HEAD_SIZE)
        except zlib.error:
            return []
        if unpacker.eof and not content and not unpacker.unused_data:
            raise DataError(f"{file}: the file is empty.")
    if kind_of(file) not in TABLES and b"\0" in content:
        known = ", ".join(TABLES)
        raise DataError(f"{file}: neither text nor Parquet by its name. Write it as one of {known}.")
    lines = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").split("\n")
    whole = lines[:-1] if len(content) == HEAD_SIZE and len(lines) > 1 else lines
    return [line for line in whole if line.strip()][:HEAD_ROWS]


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    """The fields of some lines."""
    if len(separator) > 1:
        return [line.split(separator) for line in lines]
    try:
        return list(csv.reader(lines, delimiter=separator))
    except csv.Error:
        return [line.split(separator) for line in lines]


def _guess_separator(lines: Sequence[str]) -> str | None:
    """The separator with which most lines have as many fields as the first; see `layout_of` where several have."""
    best: tuple[float, int, int, str | None] = (0, 0, 1, None)
    for separator in SEPARATOR_NAMES:
        counts = [len(row) for row in _rows(lines, separator)]
        width = counts[0] if counts else 1
        agreement = counts.count(width) / max(1, len(counts))
        rank = RARE_IN_TEXT.get(separator, 1)
        if width > 1 and (agreement, rank, width) > best[:3]:
            best = agreement, rank, width, separator
    return best[3]


def _looks_like_data(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has a number, and no text above a column of numbers."""
    return bool(rows) and any(map(NUMBER.fullmatch, rows[0])) and not _text_above_numbers(rows)


def _text_above_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has text in a column of numbers."""
    below = [row for row in rows[1:] if len(row) == len(rows[0])]
    if not below:
        return False
    texts = [place for place, value in enumerate(rows[0]) if not NUMBER.fullmatch(value)]
    return any(all(NUMBER.fullmatch(row[place]) for row in below) for place in texts)


def _looks_like_log(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows can be user, item, maybe rating, maybe timestamp; a few may be wrong, which their reader reports."""
    width = len(rows[0])
    if not 2 <= width <= len(LOG_HEADER):
        return False
    columns = list(zip(*(row for row in rows if len(row) == width), strict=True))
    if any("." in value and NUMBER.fullmatch(value) for ids in columns[:2] for value in ids):
        return False
    if width == len(LOG_HEADER):
        times = [(WHOLE.fullmatch(value) and float(value) >= MIN_TIME) or DATE.match(value) for value in columns[3]]
        if not _most(times):
            return False
    if width == 2:
        return True
    numbers = [float(value) if NUMBER.fullmatch(value) else None for value in columns[2]]
    if not _most([value is not None and abs(value) < MIN_TIME for value in numbers]):
        return False
    counted = all(value is None or value.is_integer() for value in numbers)
    return not counted or len(set(numbers)) <= max(MAX_RATING_VALUES, len(set(columns[1])))


def _most(flags: Sequence[Any]) -> bool:
    return sum(map(bool, flags)) >= 0.9 * len(flags)


def read_table(
    file: Path,
    columns: Mapping[str, str],
    separator: str | None = None,
    header: Header | None = None,
    *,
    nested: bool = False,
    empty: bool = False,
    warned: set[str] | None = None,
) -> pl.DataFrame:
    """Some columns of a file, named by their role. {"user": "user_id"} reads `user_id` into the column `user`.

    `nested`: also lists, structures and bytes, which Parquet may hold. `empty`: a file may have no rows.
    `warned`: guesses about other files of the same log, which were warned of; that about this one is added.
    """
    _check_readable(file)
    kind = kind_of(file)
    if kind in PARQUET:
        frame = _read_parquet(file, columns, nested)
    elif kind in JSON_LINES:
        frame = _read_json_lines(_Text(file, file), columns)
    else:
        layout = layout_of(file, columns.values(), separator, header)
        warn_of_guess(file, layout, warned)
        frame = _read_text(_Text(file, file), columns, layout)
    if frame.is_empty() and not empty:
        raise DataError(f"{file}: there are no rows of data. Is it the right file?")
    return frame


def warn_of_guess(file: Path, layout: Layout, warned: set[str] | None = None) -> None:
    """Warn of what was guessed, unless it is in `warned`; there it is added."""
    if layout.guess is not None and layout.guess not in (warned or ()):
        warnings.warn(ReadingWarning(f"{file}: {layout.guess}"), stacklevel=3)
        if warned is not None:
            warned.add(layout.guess)


def first_row(file: Path, layout: Layout) -> int:
    """The number of the first row of data: see the top of this module."""
    if kind_of(file) in (*PARQUET, *JSON_LINES):
        return 1
    above = int(_lines(file, 1000).is_not_null().arg_max() or 0)  # blank lines above the header
    return above + (2 if layout.header is None else 1)


@contextmanager
def as_utf8(file: Path) -> Iterator[Path]:
    """A copy of a text file of Western European bytes (Windows-1252, which has those of latin-1) in UTF-8.

    Errors inside the block name the file itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(read_file(file).decode("cp1252", errors="replace").replace("\ufffd", "?").encode())
        try:
            yield copy
        except DataError as error:
            raise DataError(str(error).replace(str(copy), str(file))) from None


def column_names(
    file: Path, separator: str | None = None, header: Header | None = None, columns: Collection[str] = ()
) -> list[str]:
    """The names of a file's columns: those in its first row, or those that `layout_of` finds for it."""
    _check_readable(file)
    if kind_of(file) in JSON_LINES:
        return _json_names(file)
    if kind_of(file) in PARQUET:
        return list(parquet_schema(file))
    layout = layout_of(file, columns, separator, header)
    return list(layout.header or next(iter(_rows(_head(file), layout.separator)), []))


def _check_readable(file: Path) -> None:
    """Raise `DataError` for a file that cannot be opened, is empty, or unpacks to too much."""
    _check_there(file)
    check_unpacked(file)


def _check_there(file: Path) -> None:
    with open_file(file) as stream:
        empty = not stream.read(1)
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise DataError(f"{str(file)!r}: the name of the file is not UTF-8. Rename it.") from None
    if empty:
        raise DataError(f"{file}: the file is empty.")


def _read_parquet(file: Path, columns: Mapping[str, str], nested: bool) -> pl.DataFrame:
    schema = parquet_schema(file)
    check_columns(file, columns, list(schema))
    if not nested:
        check_plain_types(file, columns, schema)
    with open_file(file) as stream:
        check_parquet(str(file), stream, set(columns.values()))
    return collected(file, pl.scan_parquet(file, glob=False).select(_named(columns)))


def parquet_schema(file: Path) -> Mapping[str, pl.DataType]:
    """{name: type} of the columns of a Parquet file."""
    _check_there(file)
    try:
        with hidden_panics():
            return pl.scan_parquet(file, glob=False).collect_schema()
    except FAILURES as error:
        raise broken_parquet(file, error) from None


def parquet_length(file: Path) -> int:
    """How many rows a Parquet file says that it has."""
    _check_there(file)
    return int(collected(file, pl.scan_parquet(file, glob=False).select(pl.len())).item())


def parquet_rows(file: Path, columns: Mapping[str, str], first: int, n_rows: int) -> pl.DataFrame:
    """Some columns of some rows of a Parquet file that `check_parquet` has seen, named by their role."""
    return collected(file, pl.scan_parquet(file, glob=False).select(_named(columns)).slice(first, n_rows), "streaming")


def _named(columns: Mapping[str, str]) -> list[pl.Expr]:
    return [pl.col(name).alias(role) for role, name in columns.items()]


def collected(file: Path, query: pl.LazyFrame, engine: Literal["auto", "streaming"] = "auto") -> pl.DataFrame:
    """The result of a query of a Parquet file."""
    try:
        with hidden_panics():
            found = query.collect(engine=engine)
    except FAILURES as error:
        raise broken_parquet(file, error) from None
    return check_decoded(str(file), found, file.stat().st_size)


def check_plain_types(file: Path, columns: Mapping[str, str], schema: Mapping[str, pl.DataType]) -> None:
    """Raise `DataError` for a column of lists, structures, bytes or lengths of time."""
    for name in columns.values():
        if schema[name].is_nested() or schema[name] in (pl.Binary, pl.Duration, pl.Object):
            raise DataError(f"{file}: column {name!r}: expected numbers, text or dates, got {type_name(schema[name])}.")


def broken_parquet(file: Path, error: BaseException) -> DataError:
    """The error of a file that no reader of Parquet understands."""
    return DataError(f"{file}: not a whole Parquet file ({_first_line(error)}). Write or copy it again.")


def _read_json_lines(text: _Text, columns: Mapping[str, str]) -> pl.DataFrame:
    """The columns of records, one in each line, as text; what a record does not have is null."""
    names = dict.fromkeys(columns.values())
    try:
        with text.opened() as stream:  # its name would be taken for a pattern
            content = _without_byte_order_mark(stream)
            frame = pl.scan_ndjson(content, schema=dict.fromkeys(names, pl.String)).collect()
    except FAILURES as error:
        raise _broken_json(text, error) from None
    if not text.is_part:
        found = [name for name in names if frame[name].count()]
        check_columns(text.file, columns, list(dict.fromkeys([*_json_names(text.file), *found])))
    return frame.select(pl.col(name).alias(role) for role, name in columns.items())


def _without_byte_order_mark(stream: IO[bytes]) -> IO[bytes]:
    """The stream, or a copy of what follows the mark: not every polars begins where a stream stands."""
    if stream.read(len(BOM_UTF8)) == BOM_UTF8:
        return io.BytesIO(stream.read())
    stream.seek(0)
    return stream


def _json_names(file: Path) -> list[str]:
    """The names in the first records of a file."""
    names: dict[str, None] = {}
    for record in map(_record, _head(file)):
        names |= dict.fromkeys(record or ())
    if not names and not _lines(file).is_not_null().any():
        raise DataError(f"{file}: the file is empty.")
    return list(names)


def _record(line: str | None) -> dict[str, Any] | None:
    """The record in a line, empty in a blank one; None where the line is no record."""
    try:
        record = {} if line is None else json.loads(line, parse_constant=int, parse_float=_finite)  # NaN is no JSON
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _finite(number: str) -> float:
    """A number of JSON; `ValueError` for one that no float holds."""
    if math.isinf(value := float(number)):
        raise ValueError(number)
    return value


def _broken_json(text: _Text, error: BaseException) -> DataError:
    """The error of JSON lines that polars cannot read, which names the first line that is no record."""
    try:
        lines = _lines(text.content)
    except FAILURES as again:
        return DataError(f"{text.file}: cannot be read ({_first_line(again)}). Is the file whole?")
    for row, line in enumerate(lines):
        if line is not None and "\ufffd" in line:
            return DataError(f"{text.located(row)}{NOT_UTF8}")
        if _record(line) is None:
            expected = f'expected a record such as {{"user_id": 1}}, got {short_repr(line)}'
            return DataError(f"{text.located(row)}{expected}. Correct or drop the row.")
    return DataError(f"{text.file}: cannot be read as JSON lines ({_first_line(error)}). Is the file whole?")


@dataclass(frozen=True)
class _Text:
    """Text to read: a file, or the rows of a part of it below its first row."""

    file: Path  # that messages name
    content: Path | bytes
    skipped: int = 0  # rows of the file between its first row and those of the part
    is_last: bool = True

    @property
    def is_part(self) -> bool:
        return isinstance(self.content, bytes)

    def opened(self) -> IO[bytes]:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else open_file(self.content)

    def located(self, row: int) -> str:
        """The beginning of a message about a row, counted from 0."""
        return f"{self.file}: row {row + self.skipped + 1}: "


@dataclass(frozen=True)
class TextPart:
    """Some rows of a text file, the bytes from `start` to `stop`."""

    file: Path  # that messages name
    place: Path  # where the text is: this file, or what was unpacked from it
    layout: Layout
    head: int  # bytes up to the end of the first row
    start: int
    stop: int
    is_last: bool

    @property
    def repeats_data(self) -> bool:
        """Whether `content` begins with a row of data that belongs to the first part."""
        return self.start > 0 and self.head > 0 and self.layout.header is not None

    def content(self) -> bytes:
        """The file's first row and the rows of the part."""
        with open_file(self.place) as stream:
            first = stream.read(self.head) if self.start else b""
            stream.seek(self.start)
            return first + stream.read(self.stop - self.start)


def text_parts(file: Path, layout: Layout, place: Path | None = None) -> list[TextPart]:
    """A text file in parts of `TEXT_PART` bytes, each up to the end of a row. `place`: what was unpacked from it."""
    place, is_json = place or file, kind_of(file) in JSON_LINES
    with open_file(place) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        quoted = not is_json and len(layout.separator.encode()) == 1 and content.find(b'"') >= 0
        first = 0
        while not is_json and content[first : first + 1] in (b"\n", b"\r"):  # blank lines above the first row
            first += 1
        filled = len(content)
        while content[filled - 1 : filled] in (b"\n", b"\r"):  # blank lines at the end
            filled -= 1
        head = 0 if is_json else _row_end(content, first, first, quoted)
        stops = [_row_end(content, 0, max(head, TEXT_PART), quoted)]
        while stops[-1] < filled:
            stops.append(_row_end(content, stops[-1], stops[-1] + TEXT_PART, quoted))
        return [
            TextPart(file, place, layout, head, start, stop, stop == stops[-1])
            for start, stop in zip([0, *stops], stops, strict=False)
        ]


def _row_end(content: mmap.mmap, start: int, least: int, quoted: bool) -> int:
    """The end of the first row that ends at `least` or behind it; rows begin at `start`.

    A line end is that of a row where the quotes before it are even in number.
    """
    end = content.find(b"\n", least) + 1 or len(content)
    if not quoted:
        return end
    odd = content[start:end].count(b'"') % 2
    while odd and end < len(content) and end - start < MAX_TEXT_ROW:
        quote = content.find(b'"', end)
        if quote < 0:
            break
        before, end = end, content.find(b"\n", quote) + 1 or len(content)
        odd = (odd + content[before:end].count(b'"')) % 2
    return end


def read_text_part(part: TextPart, columns: Mapping[str, str]) -> pl.DataFrame:
    """Some columns of a part, as text, named by their role; rows in messages are those of the file."""
    try:
        return _read_part(part, columns, 0)
    except DataError:
        if not part.start:
            raise
    earlier = [other for other in text_parts(part.file, part.layout, part.place) if other.start < part.start]
    rows = sum(len(read_text_part(other, columns)) for other in earlier)
    return _read_part(part, columns, rows - part.repeats_data)


def _read_part(part: TextPart, columns: Mapping[str, str], skipped: int) -> pl.DataFrame:
    text = _Text(part.file, part.content(), skipped, part.is_last)
    is_json = kind_of(part.file) in JSON_LINES
    frame = _read_json_lines(text, columns) if is_json else _read_text(text, columns, part.layout)
    return frame[int(part.repeats_data) :]


def unpacked(file: Path, folder: Path, number: int) -> Path:
    """The file itself if its text is not compressed, else a file in the folder with what is unpacked from it."""
    with open_file(file) as stream:
        start = stream.read(4)
    place = folder / f"unpacked-{number:06d}"
    try:
        if start == ZSTANDARD:
            pl.scan_csv(file, **UNPARSED).sink_csv(place, include_header=False, quote_style="never")
        elif start[:2] == GZIP:
            with open_file(file) as raw, gzip.open(raw) as packed, place.open("wb") as stream:
                shutil.copyfileobj(packed, stream, CHUNK)
        elif start[:2] in ZLIB:
            with open_file(file) as packed, place.open("wb") as stream:
                unpacker = zlib.decompressobj()
                while held := packed.read(CHUNK):
                    stream.write(unpacker.decompress(held))
        else:
            return file
    except (*FAILURES, EOFError, zlib.error) as error:
        if "utf-8" in str(error):
            raise _explain(_Text(file, file), ",", error) from None
        raise DataError(f"{file}: cannot be read ({_first_line(error)}). Is the file whole?") from None
    return place


def _read_text(text: _Text, columns: Mapping[str, str], layout: Layout) -> pl.DataFrame:
    """The columns as text, after a look for what polars forgives.

    It overlooks fields in excess where it may skip columns: here all columns take part in the query. It fills missing
    fields with nulls: where the last column has one, the fields of every row are counted. A quote inside a field
    swallows the lines up to the next such quote: where a row spans lines, Python's reader must agree.
    """
    file, separator, header = text.file, layout.separator, layout.header
    if len(separator.encode()) > 1:
        return _read_split_text(text, columns, layout)
    try:
        _check_number_of_columns(text, separator)
        scan = _scan_text(text, separator, header)
        present = scan.collect_schema().names()
        check_columns(file, columns, present)
        breaks = pl.all().str.count_matches("\n", literal=True) if _may_hold_quotes(text) else pl.lit(0)
        frame = scan.select(
            *(pl.col(name).alias(role) for role, name in columns.items()),
            pl.all_horizontal(pl.all().is_null()).alias(BLANK),
            pl.last().is_null().alias(SHORT),
            pl.sum_horizontal(breaks).alias(BREAKS),
        ).collect()
    except pl.exceptions.NoDataError:
        raise DataError(f"{file}: the file is empty.") from None
    except FAILURES as error:
        raise _explain(text, separator, error) from None
    if text.is_last:
        filled = frame[BLANK].not_()
        frame = frame.head(len(frame) - int(filled.reverse().arg_max() or 0) if filled.any() else 0)  # blank at the end
    spans_lines = bool((frame[BREAKS] > 0).any())
    if spans_lines or frame[SHORT].any():
        above = [] if header is not None else ["".join(present).count("\n")]
        wrong = _first_ragged(_lines(text.content), separator, above + frame[BREAKS].to_list() if spans_lines else [])
        if wrong is not None:
            raise DataError(text.located(wrong[0]) + wrong[1])
    return frame.drop(BLANK, SHORT, BREAKS)


def _check_number_of_columns(text: _Text, separator: str) -> None:
    """Raise `DataError` for a first row of very many fields, each of which takes polars a kilobyte."""
    fields, quotes = 1, 0
    for line in _lines(text.content, HEAD_ROWS).drop_nulls():
        fields, quotes = fields + line.count(separator), quotes + line.count('"')
        if quotes % 2 == 0:  # the row ends with this line
            break
    _check_count(text.file, fields)


def _check_count(file: Path, columns: int) -> None:
    if columns > MAX_COLUMNS:
        raise DataError(f"{file}: has {columns:,} columns, and at most {MAX_COLUMNS:,} are read. Leave some out.")


def _scan_text(text: _Text, separator: str, header: Sequence[str] | None) -> pl.LazyFrame:
    """All columns as text, by the names in the first row or by those given."""
    scan = pl.scan_csv(text.content, separator=separator, has_header=header is None, infer_schema=False, glob=False)
    if header is None:
        return scan
    present = scan.collect_schema().names()
    _check_width(text.file, present, header)
    return scan.rename(dict(zip(present, header, strict=False)))


def read_split_text(file: Path, columns: Mapping[str, str], layout: Layout, encoding: str) -> pl.DataFrame:
    """The columns of a text file without quotes, cut line by line; the separator may be longer than a byte."""
    return _read_split_text(_Text(file, file), columns, layout, encoding)


def _read_split_text(
    text: _Text, columns: Mapping[str, str], layout: Layout, encoding: str = "utf8-lossy"
) -> pl.DataFrame:
    file = text.file
    try:
        lines = _lines(text.content, encoding=encoding)
    except FAILURES as error:
        raise DataError(f"{file}: cannot be read ({_first_line(error)}). Is the file whole?") from None
    filled = lines.is_not_null().arg_true()
    if not len(filled):
        raise DataError(f"{file}: the file is empty.")
    lines = lines[: filled[-1] + 1]
    wrong = lines.str.contains("\ufffd", literal=True).fill_null(False)
    if wrong.any():
        raise DataError(text.located(int(wrong.arg_max() or 0)) + NOT_UTF8)
    ragged = _first_ragged(lines, layout.separator, quotes=False)
    first = lines[filled[0]].split(layout.separator)
    present = list(layout.header or first)
    _check_width(file, first, present)
    check_columns(file, columns, present)
    if ragged is not None:
        raise DataError(text.located(ragged[0]) + ragged[1])
    data = lines[filled[0] + (layout.header is None) :]
    fields = data.str.split_exact(layout.separator, len(first) - 1).struct
    return pl.DataFrame({role: fields.field(f"field_{present.index(name)}") for role, name in columns.items()})


def _check_width(file: Path, first: Sequence[str], header: Sequence[str]) -> None:
    """Raise `DataError` for a first row with fewer fields than names."""
    if len(first) < len(header):
        raise DataError(f"{file}: row 1: expected {len(header)} fields, got {len(first)}.")


def _may_hold_quotes(text: _Text) -> bool:
    """Whether there is a quote in the text; True for a compressed file, which is not looked into."""
    with text.opened() as stream:
        start = stream.read(4)
    if start == ZSTANDARD or start[:2] == GZIP or start[:2] in ZLIB:
        return True
    if isinstance(text.content, bytes):
        return b'"' in text.content
    with open_file(text.content) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0


def check_columns(file: Path, columns: Mapping[str, str], present: Sequence[str]) -> None:
    """Raise `DataError` for the first column that is not there, or there twice."""
    _check_count(file, len(present))
    if any(mark in name for name in present for mark in "\0\ufffd"):
        raise DataError(f"{file}: row 1: {NOT_UTF8}")
    for role, name in columns.items():
        if f"{name}_duplicated_0" in present or list(present).count(name) > 1:
            raise DataError(f"{file}: column {name!r}, row 1: the header has this name twice. Rename one.")
        if name not in present:
            if not present:
                raise DataError(f"{file}: there is no column {name!r}, and no other. Is it the right file?")
            listed = ", ".join(map(short_repr, present[:20])) + (", ..." if len(present) > 20 else "")
            way_out = f"Name yours with `{role}_col` (--{role}-col)." if role in ROLES else "Name columns that it has."
            if role == "rating":
                way_out += ' If every row is a click, say feedback="clicks".'
            if len(present) == 1 and any(mark in present[0] for mark in ",;|\t "):
                way_out = "Give the `separator` (--separator) that the file uses."
            hint = did_you_mean(name, present)
            raise DataError(f"{file}: there is no column {name!r}; the columns are {listed}.{hint} {way_out}")


def _lines(content: Path | bytes, limit: int | None = None, encoding: str = "utf8-lossy") -> pl.Series:
    """All lines, unparsed; null where a line is blank. Bytes that are no UTF-8 become U+FFFD."""
    return pl.read_csv(content, **UNPARSED, encoding=encoding, n_rows=limit).to_series()


def _explain(text: _Text, separator: str, error: BaseException) -> DataError:
    """The error of a text that polars cannot read: the cause, found line by line."""
    try:
        lines = _lines(text.content)
    except FAILURES as again:
        return DataError(f"{text.file}: cannot be read ({_first_line(again)}). Is the file whole?")
    wrong = lines.str.contains("\ufffd", literal=True).fill_null(False)
    if "utf-8" in str(error) and wrong.any():
        return DataError(text.located(int(wrong.arg_max() or 0)) + NOT_UTF8)
    ragged = _first_ragged(lines, separator)
    if ragged is not None:
        return DataError(text.located(ragged[0]) + ragged[1])
    odd = lines.str.count_matches('"', literal=True).fill_null(0) % 2 == 1
    if odd.any():
        return DataError(text.located(int(odd.arg_max() or 0)) + BAD_QUOTE)
    return DataError(f"{text.file}: cannot be read ({_first_line(error)}). Is the file whole?")


def _first_ragged(
    lines: pl.Series, separator: str, breaks: Sequence[int] = (), *, quotes: bool = True
) -> tuple[int, str] | None:
    """(row, what is wrong) of the first row with more or fewer fields than the first row; None without one."""
    filled = lines.is_not_null().arg_true()
    start = filled[0]
    lines = lines[start : filled[-1] + 1]
    if quotes and lines.str.contains('"', literal=True).any():
        return _first_ragged_quoted(lines, separator, start, breaks)
    counts = lines.str.count_matches(separator, literal=True).cast(pl.Int64).fill_null(-1) + 1
    differs = counts != counts[0]
    row = int(differs.arg_max() or 0)
    return (row + start, _ragged(counts[0], counts[row])) if differs.any() else None


def _first_ragged_quoted(lines: pl.Series, separator: str, start: int, breaks: Sequence[int]) -> tuple[int, str] | None:
    """The same for text with quotes, where a row may span lines; `breaks`: how many line ends polars saw in each."""
    width, row = 0, -1
    try:
        reader = csv.reader((f"{line or ''}\n" for line in lines), delimiter=separator, strict=True)
        for row, fields in enumerate(reader):
            width = width or len(fields)
            if len(fields) != width:
                return row + start, _ragged(width, len(fields))
            if row < len(breaks) and breaks[row] != sum(value.count("\n") for value in fields):
                return row + start, BAD_QUOTE
    except csv.Error:
        return row + start + 1, BAD_QUOTE
    return None


def _ragged(expected: int, found: int) -> str:
    what = f"expected {expected} fields as in the first row, got {found}" if found else "the row is blank"
    return f"{what}. Correct or drop the row."


def _first_line(error: Any) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def is_many(path: str | PathLike[str]) -> bool:
    """Whether a path names a folder, or is a glob and not the name of a file."""
    place = expanded(path)
    return place.is_dir() or (glob.has_magic(str(place)) and not place.exists())


def title_of(path: str | PathLike[str]) -> str:
    """What a log is called: its file or folder without ending; of a glob, the last part that is no pattern."""
    place = expanded(path)
    plain = [part for part in place.parts if not glob.has_magic(part)] if is_many(place) else [place.name]
    return plain[-1].split(".")[0].strip("/") or "log" if plain else "log"


def files_of(path: str | PathLike[str]) -> list[Path]:
    """The files of a log in the order of their names; of a folder those at any depth, but none that begin with . or _.

    Files that are not tables by their ending, such as Spark's _SUCCESS, are not looked at, unless a glob names no
    others.
    """
    place = expanded(path)
    if not is_many(place):
        return [place]
    found = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))  # noqa: PTH207
    plain = sorted(file for file in found if file.is_file() and file.name[0] not in "._")
    tables = [file for file in plain if kind_of(file) in TABLES]
    files = tables if tables or place.is_dir() else plain
    if not files:
        where = "in this folder" if place.is_dir() else "of that name"
        raise DataError(f"{path}: there is no file {where} that ends in {', '.join(TABLES)}.")
    return files


def count_rows(files: list[Path]) -> int:
    """The rows of all files: exact for Parquet, an upper bound (nearly always) for text."""
    total = 0
    for file in files:
        if kind_of(file) in PARQUET:
            total += parquet_length(file)
        else:
            packed = file.suffix.lower() in COMPRESSED
            total += file.stat().st_size * (TEXT_COMPRESSION if packed else 1) // MIN_TEXT_ROW
    return total


def fingerprint(files: list[Path], *facts: Any) -> str:
    """A short hash of the names, sizes and times of the files and of how they are read."""
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, *facts]).encode()).hexdigest()[:16]
