"""What a Parquet file takes when it is decoded, found in the headers of its pages before any of them is.

A few kilobytes may hold gigabytes: a long string compresses to nothing, and a dictionary repeats it for every row. What
the file says of its size as a whole may be a lie, so the pages are counted as a reader finds them: one after the other,
each behind a header (Thrift's compact protocol) that has its size, which readers allocate. How long a dictionary's
strings become is seen after decoding only, where polars keeps each of them once (`check_decoded`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, Any

import polars as pl

from counterpoise.errors import HIDING, DataError

MAGIC = b"PAR1"
MIN_CHECKED_SIZE = 1 << 26  # bytes; a smaller table is read, whatever the size of its file
MAX_UNPACKED_RATIO = 100  # decoded size / file size; logs of ratings shrink to a tenth or a twentieth of their size
MIN_CHECKED_ROWS = 1 << 20
MAX_COLUMNS = 10_000
MAX_ROWS_A_BYTE = 2  # of a compressed file; a row takes some 160 bytes while it becomes one of a log
MAX_FOOTER = 1 << 26  # bytes; one with a million column chunks
HEADER_PIECE = 1 << 12  # bytes that are read for the header of a page; statistics can make it longer
MAX_DEPTH = 16  # of structures within structures
TRUSTED = "If you trust it, write it as plain CSV."
_hidden, _lock = [0, -1], threading.Lock()  # how many blocks hide it now, and where it was


def check_amount(name: str, size: int, rows: int, packed: int) -> None:
    """Raise `DataError` for content that is far more than a file of `packed` bytes should hold."""
    if size > max(MIN_CHECKED_SIZE, MAX_UNPACKED_RATIO * packed):
        raise DataError(f"{name}: unpacks to more than {MAX_UNPACKED_RATIO} times its size. {TRUSTED}")
    if rows > max(MIN_CHECKED_ROWS, MAX_ROWS_A_BYTE * packed):
        raise DataError(f"{name}: unpacks to more than {MAX_ROWS_A_BYTE} rows for each of its bytes. {TRUSTED}")


def check_parquet(name: str, stream: IO[bytes], columns: Collection[str] | None = None) -> None:
    """Raise `DataError` where some columns (by default all) are too much for the size of the file, or not to be found.

    `columns`: the names of top-level columns.
    """
    packed = stream.seek(0, os.SEEK_END)
    try:
        size, rows = _amount(stream, packed, columns)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        reason = "a page is not where it should be"
        raise DataError(f"{name}: not a whole Parquet file ({reason}). Write or copy it again.") from None
    check_amount(name, size, rows, packed)


def check_decoded(name: str, frame: pl.DataFrame, packed: int) -> pl.DataFrame:
    """The frame, unless its strings are far more than a file of `packed` bytes should hold."""
    check_amount(name, int(frame.estimated_size()), 0, packed)
    return frame


def _amount(stream: IO[bytes], packed: int, columns: Collection[str] | None) -> tuple[int, int]:
    """(bytes of all pages unpacked, most values of any column) of some columns."""
    stream.seek(packed - 8)
    ending = stream.read(8)
    length = int.from_bytes(ending[:4], "little")
    if ending[4:] != MAGIC or not 0 < length <= min(packed - 12, MAX_FOOTER):
        raise ValueError("no footer")
    stream.seek(packed - 8 - length)
    footer = _structure(_Bytes(stream.read(length)))
    values: dict[bytes, int] = {}
    size, left = 0, packed
    for group in footer.get(4, ()):
        for chunk in group[1]:
            facts = chunk[3]
            path = b".".join(facts[3])
            if columns is None or facts[3][0].decode(errors="replace") in columns:
                start = min(place for place in (facts[9], facts.get(11) or facts[9]) if place > 0)
                left -= facts[7]
                if facts[7] < 0 or left < 0:
                    raise ValueError("columns that overlap")
                unpacked, count = _pages(stream, start, min(start + facts[7], packed), facts[5])
                size, values[path] = size + unpacked, values.get(path, 0) + count
    return size, max([int(footer[3]), *values.values()])


def _pages(stream: IO[bytes], start: int, stop: int, expected: int) -> tuple[int, int]:
    """(bytes unpacked, values) of the pages of a column chunk that lie between two places of the file."""
    size, values = 0, 0
    while start < stop and values < expected:
        stream.seek(start)
        piece = HEADER_PIECE
        while True:
            source = _Bytes(stream.read(min(piece, stop - start)))
            try:
                header = _structure(source)
                break
            except IndexError:
                if piece >= stop - start:
                    raise
                piece *= 16
                stream.seek(start)
        if header[2] < 0 or header[3] < 0:
            raise ValueError("a page of negative size")
        size += header[2]
        values += sum(max(0, header[kind][1]) for kind in (5, 8) if kind in header)
        start += source.place + header[3]
    return size, max(values, expected)


class _Bytes:
    """Bytes that are read from the front; `IndexError` at their end."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def take(self, count: int) -> bytes:
        found = self.content[self.place : self.place + count]
        if len(found) < count:
            raise IndexError
        self.place += count
        return found

    def unsigned(self) -> int:
        found, shift = 0, 0
        while True:
            byte = self.byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def signed(self) -> int:
        found = self.unsigned()
        return (found >> 1) ^ -(found & 1)


def _structure(source: _Bytes, depth: int = 0) -> dict[int, Any]:
    """A Thrift structure: {number of a field: value}."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := source.byte():
        number = number + (head >> 4) if head >> 4 else source.signed()
        fields[number] = _value(source, head & 15, depth)
    return fields


def _value(source: _Bytes, kind: int, depth: int) -> Any:
    """A value of a Thrift type."""
    if kind in (1, 2):
        return kind == 1
    if kind == 3:
        return source.byte()
    if kind in (4, 5, 6):
        return source.signed()
    if kind == 7:
        return source.take(8)
    if kind == 8:
        return source.take(source.unsigned())
    if kind in (9, 10):
        head = source.byte()
        count, of = (head >> 4 if head >> 4 < 15 else source.unsigned()), head & 15
        return [source.byte() if of in (1, 2) else _value(source, of, depth + 1) for _ in range(count)]
    if kind == 12:
        return _structure(source, depth + 1)
    raise ValueError("an unknown type")


@contextmanager
def hidden_panics() -> Iterator[None]:
    """Where `HIDING` is set, nothing that is written to standard error inside the block is seen.

    Threads of polars print a backtrace there before the error arrives here as an exception.
    """
    if not HIDING[0]:
        yield
        return
    with _lock:
        if _hidden[0] == 0:
            _hidden[1] = _redirected()
        _hidden[0] += 1
    try:
        yield
    finally:
        with _lock:
            _hidden[0] -= 1
            if _hidden[0] == 0 and _hidden[1] >= 0:
                os.dup2(_hidden[1], 2)
                os.close(_hidden[1])


def _redirected() -> int:
    """Lead standard error to nowhere; where it led before, -1 where it is closed."""
    try:
        before = os.dup(2)
    except OSError:
        return -1
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    return before
