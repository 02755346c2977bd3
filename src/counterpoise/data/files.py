"""CSV, TSV and Parquet files as columns, plain or compressed, and the files that a folder or a glob names.

Errors are one line with the file, the column and the row. Rows are counted as a spreadsheet counts them: the header of
a text file is row 1. Parquet has no header, so its first row of data is row 1. Text files are read as text and typed
later, so that messages can show every value as it is written.

A few kilobytes may unpack to more than memory holds. So the unpacked size of a compressed file is found first, in small
pieces (`check_unpacked`). Logs of ratings shrink to a tenth or a twentieth of their size; what shrinks to less than a
hundredth was made to do harm.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import mmap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

import polars as pl

from counterpoise.errors import ConfigError, DataError, did_you_mean, short_repr

SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
TABLES = (*SEPARATORS, *PARQUET)  # endings, before that of the compression
COMPRESSED = (".gz", ".zst")
ROLES = ("user", "item", "rating", "timestamp")  # of columns that the caller can name
FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
BLANK, SHORT, BREAKS = "\0blank", "\0short", "\0breaks"  # names that no file gives to a column
NOT_UTF8 = "the text is not UTF-8. Save the file with the encoding UTF-8."
BAD_QUOTE = "a quote is not closed or not doubled. Correct the row."
MIN_TEXT_ROW = 12  # bytes; nearly every row of a text file has more
TEXT_COMPRESSION = 4  # a compressed text file is roughly so many times smaller
MAX_UNPACKED_RATIO = 100  # unpacked size / file size; checked above `MIN_CHECKED_SIZE`
MIN_CHECKED_SIZE = 1 << 28  # bytes
CHUNK = 1 << 20
GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
ZSTANDARD_BLOCK = 1 << 17  # the most bytes that one block holds


def check_unpacked(file: Path) -> None:
    """Raise `DataError` for a file that unpacks to far more than its size. Looks at its first bytes, not its name."""
    with file.open("rb") as stream:
        start = stream.read(4)
        stream.seek(0)
        if start == ZSTANDARD:
            sizes = _zstandard_blocks(stream)
        elif start[:2] == GZIP or start[:2] in ZLIB:
            sizes = _deflated_pieces(stream)
        else:
            return
        check_size(str(file), sizes, file.stat().st_size)


def check_size(name: str, sizes: Iterator[int], packed: int) -> None:
    """Add up the pieces, and stop where they are too much for a file of `packed` bytes."""
    total = 0
    for size in sizes:
        total += size
        if total > max(MIN_CHECKED_SIZE, MAX_UNPACKED_RATIO * packed):
            found = f"unpacks to more than {MAX_UNPACKED_RATIO} times its size"
            raise DataError(f"{name}: {found}. If you trust it, write it as plain CSV.")


def _deflated_pieces(stream: IO[bytes]) -> Iterator[int]:
    """The sizes of the pieces of gzip or zlib data, up to damaged data, which the reader of the file will report."""
    unpacker, held = zlib.decompressobj(wbits=47), b""
    while held := held or stream.read(CHUNK):
        try:
            yield len(unpacker.decompress(held, CHUNK))
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


def read_table(
    file: Path,
    columns: Mapping[str, str],
    separator: str | None = None,
    header: Sequence[str] | None = None,
    *,
    nested: bool = False,
    empty: bool = False,
) -> pl.DataFrame:
    """Some columns of a file, named by their role. {"user": "user_id"} reads `user_id` into the column `user`.

    `nested`: also lists, structures and bytes, which Parquet may hold. `empty`: a file may have no rows.
    """
    kind = kind_of(file)
    if kind not in TABLES and separator is None:
        known = ", ".join(TABLES)
        raise DataError(f"{file}: the format is not known from the name. Use one of {known}, or give a `separator`.")
    _check_readable(file)
    if kind in PARQUET:
        frame = _read_parquet(file, columns, nested)
    else:
        frame = _read_text(file, columns, _separator(file, separator), header)
    if frame.is_empty() and not empty:
        raise DataError(f"{file}: there are no rows of data.")
    return frame


def first_row(file: Path, header: Sequence[str] | None = None) -> int:
    """The number of the first row of data: see the top of this module."""
    if kind_of(file) in PARQUET:
        return 1
    above = int(_lines(file, 1000).is_not_null().arg_max() or 0)  # blank lines above the header
    return above + (2 if header is None else 1)


def first_fields(file: Path, separator: str) -> list[str]:
    """The fields of the first row of a text file, be it a header or not."""
    _check_readable(file)
    try:
        return next(csv.reader(_lines(file, 1000).drop_nulls(), delimiter=separator), [])
    except (*FAILURES, csv.Error) as error:
        raise DataError(f"{file}: cannot be read ({_first_line(error)}).") from None


def column_names(file: Path, separator: str | None = None) -> list[str]:
    """The names of a file's columns."""
    if kind_of(file) not in PARQUET:
        return first_fields(file, _separator(file, separator))
    _check_readable(file)
    try:
        return list(pl.read_parquet_schema(file))
    except FAILURES as error:
        raise broken_parquet(file, error) from None


def _separator(file: Path, separator: str | None) -> str:
    if separator is None:
        return SEPARATORS.get(kind_of(file), ",")
    if len(separator.encode()) != 1:
        raise ConfigError(f"`separator` must be one character, for example ',' or a tab, got {separator!r}.")
    return separator


def _check_readable(file: Path) -> None:
    if file.is_dir():
        raise DataError(f"{file}: is a folder, expected a file.")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device may never end
            raise DataError(f"{file}: is not a regular file. Copy its content into one first.")
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file.") from None
    except PermissionError:
        raise DataError(f"{file}: no permission to read it. Change its permissions or copy it.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be opened ({_first_line(error)}).") from None
    if empty:
        raise DataError(f"{file}: the file is empty.")
    check_unpacked(file)


def _read_parquet(file: Path, columns: Mapping[str, str], nested: bool) -> pl.DataFrame:
    try:
        scan = pl.scan_parquet(file, glob=False)
        schema = scan.collect_schema()
        check_columns(file, columns, schema.names())
        if not nested:
            check_plain_types(file, columns, schema)
        rows = scan.select(pl.len()).collect().item()
        check_size(str(file), iter([8 * rows * len(columns)]), file.stat().st_size)
        return scan.select(pl.col(name).alias(role) for role, name in columns.items()).collect()
    except FAILURES as error:
        raise broken_parquet(file, error) from None


def check_plain_types(file: Path, columns: Mapping[str, str], schema: Mapping[str, pl.DataType]) -> None:
    """Raise `DataError` for a column of lists, structures or bytes."""
    for name in columns.values():
        if schema[name].is_nested() or schema[name] == pl.Binary:
            raise DataError(f"{file}: column {name!r}: expected numbers, text or dates, got {schema[name]}.")


def broken_parquet(file: Path, error: BaseException) -> DataError:
    """The error of a file that no reader of Parquet understands."""
    return DataError(f"{file}: not a whole Parquet file ({_first_line(error)}). Write or copy it again.")


def _read_text(file: Path, columns: Mapping[str, str], separator: str, header: Sequence[str] | None) -> pl.DataFrame:
    """The columns as text, after a look for what polars forgives.

    It overlooks fields in excess where it may skip columns: here all columns take part in the query. It fills missing
    fields with nulls: where the last column has one, the fields of every row are counted. A quote inside a field
    swallows the lines up to the next such quote: where a row spans lines, Python's reader must agree.
    """
    try:
        scan = _scan_text(file, separator, header)
        present = scan.collect_schema().names()
        check_columns(file, columns, present)
        breaks = pl.all().str.count_matches("\n", literal=True) if _may_hold_quotes(file) else pl.lit(0)
        frame = scan.select(
            *(pl.col(name).alias(role) for role, name in columns.items()),
            pl.all_horizontal(pl.all().is_null()).alias(BLANK),
            pl.last().is_null().alias(SHORT),
            pl.sum_horizontal(breaks).alias(BREAKS),
        ).collect()
    except pl.exceptions.NoDataError:
        raise DataError(f"{file}: the file is empty.") from None
    except FAILURES as error:
        raise _explain(file, separator, error) from None
    filled = frame[BLANK].not_()
    frame = frame.head(len(frame) - int(filled.reverse().arg_max() or 0) if filled.any() else 0)  # blank at the end
    spans_lines = bool((frame[BREAKS] > 0).any())
    if spans_lines or frame[SHORT].any():
        above = [] if header is not None else ["".join(present).count("\n")]
        wrong = _first_ragged(_lines(file), separator, above + frame[BREAKS].to_list() if spans_lines else [])
        if wrong is not None:
            raise DataError(f"{file}: {wrong}")
    return frame.drop(BLANK, SHORT, BREAKS)


def _scan_text(file: Path, separator: str, header: Sequence[str] | None) -> pl.LazyFrame:
    """All columns as text, by the names in the first row or by those given."""
    scan = pl.scan_csv(file, separator=separator, has_header=header is None, infer_schema=False, glob=False)
    if header is None:
        return scan
    present = scan.collect_schema().names()
    if len(present) < len(header):
        raise DataError(f"{file}: row 1: expected {len(header)} fields, got {len(present)}.")
    return scan.rename(dict(zip(present, header, strict=False)))


def _may_hold_quotes(file: Path) -> bool:
    """Whether there is a quote in the file; True for a compressed one, which is not looked into."""
    if file.suffix.lower() in COMPRESSED:
        return True
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0


def check_columns(file: Path, columns: Mapping[str, str], present: Sequence[str]) -> None:
    """Raise `DataError` for the first column that is not there, or there twice."""
    if any(mark in name for name in present for mark in "\0\ufffd"):
        raise DataError(f"{file}: row 1: {NOT_UTF8}")
    for role, name in columns.items():
        if f"{name}_duplicated_0" in present:
            raise DataError(f"{file}: column {name!r}, row 1: the header has this name twice. Rename one.")
        if name not in present:
            listed = ", ".join(map(short_repr, present[:20])) + (", ..." if len(present) > 20 else "")
            way_out = f"Name yours with `{role}_col` (--{role}-col)." if role in ROLES else "Name columns that it has."
            if len(present) == 1 and any(mark in present[0] for mark in ",;|\t "):
                way_out = "Give the `separator` (--separator) that the file uses."
            hint = did_you_mean(name, present)
            raise DataError(f"{file}: there is no column {name!r}; the columns are {listed}.{hint} {way_out}")


def _lines(file: Path, limit: int | None = None) -> pl.Series:
    """All lines, unparsed; null where a line is blank. Bytes that are no UTF-8 become U+FFFD."""
    unparsed: dict[str, Any] = {"has_header": False, "infer_schema": False, "separator": "\0", "quote_char": None}
    frame = pl.read_csv(file, **unparsed, encoding="utf8-lossy", truncate_ragged_lines=True, glob=False, n_rows=limit)
    return frame.to_series()


def _explain(file: Path, separator: str, error: BaseException) -> DataError:
    """The error of a file that polars cannot read: the cause, found line by line."""
    try:
        lines = _lines(file)
    except FAILURES as again:
        return DataError(f"{file}: cannot be read ({_first_line(again)}). Is the file whole?")
    wrong = lines.str.contains("\ufffd", literal=True).fill_null(False)
    if "utf-8" in str(error) and wrong.any():
        return DataError(f"{file}: row {int(wrong.arg_max() or 0) + 1}: {NOT_UTF8}")
    ragged = _first_ragged(lines, separator)
    if ragged is not None:
        return DataError(f"{file}: {ragged}")
    odd = lines.str.count_matches('"', literal=True).fill_null(0) % 2 == 1
    if odd.any():
        return DataError(f"{file}: row {int(odd.arg_max() or 0) + 1}: {BAD_QUOTE}")
    return DataError(f"{file}: cannot be read ({_first_line(error)}). Is the file whole?")


def _first_ragged(lines: pl.Series, separator: str, breaks: Sequence[int] = ()) -> str | None:
    """A message about the first row whose number of fields differs from that of the first row; None without one."""
    filled = lines.is_not_null().arg_true()
    start = filled[0]
    lines = lines[start : filled[-1] + 1]
    if lines.str.contains('"', literal=True).any():
        return _first_ragged_quoted(lines, separator, start, breaks)
    counts = lines.str.count_matches(separator, literal=True).cast(pl.Int64).fill_null(-1) + 1
    differs = counts != counts[0]
    row = int(differs.arg_max() or 0)
    return _ragged(row + start, counts[0], counts[row]) if differs.any() else None


def _first_ragged_quoted(lines: pl.Series, separator: str, start: int, breaks: Sequence[int]) -> str | None:
    """The same for text with quotes, where a row may span lines; `breaks`: how many line ends polars saw in each."""
    width, row = 0, -1
    try:
        reader = csv.reader((f"{line or ''}\n" for line in lines), delimiter=separator, strict=True)
        for row, fields in enumerate(reader):
            width = width or len(fields)
            if len(fields) != width:
                return _ragged(row + start, width, len(fields))
            if row < len(breaks) and breaks[row] != sum(value.count("\n") for value in fields):
                return f"row {row + start + 1}: {BAD_QUOTE}"
    except csv.Error:
        return f"row {row + start + 2}: {BAD_QUOTE}"
    return None


def _ragged(row: int, expected: int, found: int) -> str:
    what = f"expected {expected} fields as in the first row, got {found}" if found else "the row is blank"
    return f"row {row + 1}: {what}. Correct or drop the row."


def _first_line(error: Any) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def is_many(path: str | PathLike[str]) -> bool:
    """Whether a path names a folder, or is a glob and not the name of a file."""
    place = Path(path).expanduser()
    return place.is_dir() or (glob.has_magic(str(place)) and not place.exists())


def title_of(path: str | PathLike[str]) -> str:
    """What a log is called: its file or folder without ending; of a glob, the last part that is no pattern."""
    place = Path(path).expanduser()
    plain = [part for part in place.parts if not glob.has_magic(part)] if is_many(place) else [place.name]
    return plain[-1].split(".")[0].strip("/") or "log" if plain else "log"


def files_of(path: str | PathLike[str]) -> list[Path]:
    """The files of a log in the order of their names; of a folder those at any depth, but none that begin with . or _.

    Files that are not tables by their ending, such as Spark's _SUCCESS, are not looked at.
    """
    place = Path(path).expanduser()
    if not is_many(place):
        return [place]
    found = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))  # noqa: PTH207
    files = sorted(file for file in found if kind_of(file) in TABLES and file.is_file() and file.name[0] not in "._")
    if not files:
        where = "in this folder" if place.is_dir() else "of that name"
        raise DataError(f"{path}: there is no file {where} that ends in {', '.join(TABLES)}.")
    return files


def count_rows(files: list[Path]) -> int:
    """The rows of all files: exact for Parquet, an upper bound (nearly always) for text."""
    total = 0
    for file in files:
        if kind_of(file) in PARQUET:
            try:
                total += int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())
            except FAILURES as error:
                raise broken_parquet(file, error) from None
        else:
            packed = file.suffix.lower() in COMPRESSED
            total += file.stat().st_size * (TEXT_COMPRESSION if packed else 1) // MIN_TEXT_ROW
    return total


def fingerprint(files: list[Path], *facts: Any) -> str:
    """A short hash of the names, sizes and times of the files and of how they are read."""
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, *facts]).encode()).hexdigest()[:16]
