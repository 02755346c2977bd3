"""Shards: the columns of a log that does not fit in memory, as numpy files of a fixed number of rows each.

Codes and ratings are kept. The borders of shards do not depend on the files of the log (`encoding.py` reads them), so
neither does anything computed shard by shard. `permuted` gives a random order of rows that takes no memory.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from counterpoise.data.hashing import splitmix64
from counterpoise.data.ids import Vocabulary
from counterpoise.errors import ConfigError, DataError
from counterpoise.storage import MAX_TEXT_FILE, PARTIAL, ScratchFolder, expanded, open_file, parse_json, read_file

SHARD_ROWS = 2**20  # 16 MB of codes and ratings
MANIFEST = "shards.json"
FORMAT_VERSION = 1
COLUMNS = {"users": np.int32, "items": np.int32, "ratings": np.float64}
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
MIN_MEMORY = 2**26  # bytes
FOLDER_NAME = r"[0-9a-f]{16}(?:-[0-9a-f]{16})?"  # of shards in a cache
FEISTEL_ROUNDS = 6  # four are enough for a pseudo-random permutation (Luby and Rackoff 1988)
Integers = NDArray[np.uint64]


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """The values at these positions of a pseudo-random permutation of 0 .. size - 1; every `key` gives another.

    A Feistel network permutes the next power of 4; values outside are permuted again until they fall inside, which is a
    permutation again (cycle walking).
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    values = _feistel(positions.astype(np.uint64), half, key)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _feistel(values[outside], half, key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: Integers, half: np.uint64, key: int) -> Integers:
    """(left, right) -> (right, left xor hash(right)), several times, on numbers of 2 x `half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(FEISTEL_ROUNDS):
        round_key = np.uint64((key + number * 0x9E3779B97F4A7C15) % 2**64)
        left, right = right, left ^ (splitmix64(right + round_key) & mask)
    return (left << half) | right


def as_bytes(memory: str | float) -> int:
    """A budget such as "4GB", "512MiB" or a number of bytes."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(memory).upper())
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (ValueError, KeyError):
        size = 0
    if size < MIN_MEMORY:
        raise ConfigError(f"`memory` must be a size of at least 64 MiB, such as 4GB or 512MiB, got {memory!r}.")
    return size


@dataclass(frozen=True)
class Shard:
    """Rows `first` to `first + n_rows` of a log of so many users and items."""

    folder: Path
    number: int
    first: int
    n_rows: int
    shape: tuple[int, int]

    def column(self, name: str) -> NDArray[Any]:
        """The values of a column, memory-mapped: pages are read when they are used."""
        path = self.path(name)
        if not path.exists():
            raise DataError(
                f"{path}: this part of the log is not there. Workers on other machines must see the folder: "
                "put the cache on a shared disk (--cache)."
            )
        dtype = np.dtype(COLUMNS.get(name, np.float64))
        header = array_header(dtype, self.n_rows)
        try:
            with open_file(path, links=False) as stream:
                if stream.read(len(header)) != header:
                    raise ValueError(f"it does not hold {self.n_rows} values of type {dtype}")
            values: NDArray[Any] = np.memmap(path, dtype, "r", len(header), (self.n_rows,))
            self._check(name, values)
        except (DataError, OSError, ValueError) as error:  # of a file that somebody has changed
            reason = str(error).partition("\n")[0]
            raise DataError(f"{path}: cannot be read ({reason}). Remove {self.folder}; it is made again.") from None
        return values

    def _check(self, name: str, values: NDArray[Any]) -> None:
        """Raise `ValueError` unless these may be in a column: codes below the number of ids, finite ratings."""
        if name in ("users", "items") and not 0 <= values.min() <= values.max() < self.shape[name == "items"]:
            raise ValueError("it holds codes of no id")
        if name == "ratings" and not np.isfinite(values).all():
            raise ValueError("it holds ratings that are not finite")

    def write(self, name: str, values: NDArray[Any]) -> None:
        """A further column of these rows, written beside and renamed."""
        path = self.path(name)
        partial = path.with_name(path.name + PARTIAL)
        write_array(partial, values)
        partial.replace(path)

    def path(self, name: str) -> Path:
        """The file of a column."""
        return self.folder / f"{name}-{self.number:06d}.npy"


def array_header(dtype: np.dtype[Any], rows: int) -> bytes:
    """The header of numpy's file of so many values; compared, not parsed: Python 3.11's parsers may fail in threads."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array as `numpy.save` does, which loses errors of a full disk, and with them the end of the file."""
    with path.open("wb") as stream:
        stream.write(array_header(values.dtype, len(values)))
        stream.write(np.ascontiguousarray(values).data)


@dataclass(frozen=True)
class Shards:
    """All shards of a log in a folder, and how many users and items there are."""

    folder: Path
    n_rows: int
    shape: tuple[int, int]
    shard_rows: int

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """The shards that a `ShardWriter` wrote to a folder."""
        folder = expanded(folder)
        try:
            facts = parse_json(read_file(folder / MANIFEST, links=False, limit=MAX_TEXT_FILE))
            if facts["format_version"] != FORMAT_VERSION:
                raise KeyError("format_version")
            sizes = [facts[name] for name in ("rows", "users", "items", "shard_rows")]
            if not all(isinstance(size, int) and 0 < size < 2**62 for size in sizes):
                raise ValueError("its sizes are no whole numbers")
            found = cls(folder, sizes[0], (sizes[1], sizes[2]), sizes[3])
            if len(found) > sum(1 for _ in folder.iterdir()):
                raise ValueError("it has fewer files than shards")
            return found
        except (DataError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: not a folder of shards ({error}). Remove it; it is made again.") from None

    def __len__(self) -> int:
        return -(-self.n_rows // self.shard_rows)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._all)

    @cached_property
    def _all(self) -> list[Shard]:
        starts = range(0, self.n_rows, self.shard_rows)
        size = self.shard_rows
        return [Shard(self.folder, k, at, min(size, self.n_rows - at), self.shape) for k, at in enumerate(starts)]

    def new_column(self) -> ShardColumn:
        """A column to be written, in a folder of its own: another process may weight the same log meanwhile."""
        scratch = ScratchFolder.make(self.folder, "weights")
        return ShardColumn(self, f"{scratch.path.relative_to(self.folder)}/weights", scratch)

    def whole(self, name: str) -> NDArray[Any]:
        """A column in memory."""
        return np.concatenate([shard.column(name) for shard in self])

    def take(
        self, name: str, rows: NDArray[np.int64], column: Callable[[int, str], NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        """The values of some rows, in the order of `rows`; `column(shard, name)` may keep columns open."""
        column = column or (lambda number, name: self._all[number].column(name))
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.searchsorted(ordered, [shard.first for shard in self._all[1:]])
        result: NDArray[Any] | None = None
        for shard, places, found in zip(self, np.split(order, cuts), np.split(ordered, cuts), strict=True):
            if len(found):
                values = column(shard.number, name)[found - shard.first]
                result = np.empty(len(rows), values.dtype) if result is None else result
                result[places] = values
        return np.empty(0, COLUMNS.get(name, np.float64)) if result is None else result


@dataclass(frozen=True)
class ShardColumn:
    """One column of a log in shards, such as its weights; `numpy.asarray` has it in memory."""

    shards: Shards
    name: str
    scratch: ScratchFolder | None = None  # that holds it, where it is to be removed

    def __len__(self) -> int:
        return self.shards.n_rows

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The values, shard by shard."""
        return (shard.column(self.name) for shard in self.shards)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.shards.whole(self.name).astype(dtype or np.float64, copy=False)

    def remove(self) -> None:
        """Remove what `Shards.new_column` made."""
        if self.scratch is not None:
            self.scratch.close()


class NewShards:
    """A folder of shards that appears when all is written.

    Use it in a `with` block and call `finish` at its end: without that, or after an error, nothing is left behind.
    """

    def __init__(self, folder: str | Path, shard_rows: int = SHARD_ROWS) -> None:
        self.folder, self.shard_rows = expanded(folder), shard_rows

    def __enter__(self) -> Self:
        try:
            self.scratch = ScratchFolder.make(self.folder.parent, self.folder.name, FOLDER_NAME)
            self.place = self.scratch.path
        except OSError as error:
            raise DataError(f"{self.folder} cannot be written: {error.strerror}. Choose another --cache.") from None
        return self

    def __exit__(self, *error: object) -> None:
        self.scratch.close()

    def unwritten(self, rows: int, shape: tuple[int, int]) -> Shards:
        """So many rows, whose columns are to be written."""
        return Shards(self.place, rows, shape, self.shard_rows)

    def finish(self, rows: int, shape: tuple[int, int], facts: Mapping[str, Any] | None = None) -> Shards:
        """Write the facts and give the folder its name."""
        own = {"format_version": FORMAT_VERSION, "rows": rows, "shard_rows": self.shard_rows}
        text = json.dumps({**own, "users": shape[0], "items": shape[1], **(facts or {})}, indent=2)
        (self.place / MANIFEST).write_text(text + "\n", encoding="utf-8")
        try:
            self.place.rename(self.folder)
        except OSError:
            if not (self.folder / MANIFEST).exists():  # else another process was quicker, with the same content
                shutil.rmtree(self.folder, ignore_errors=True)  # shards whose facts are gone
                self.place.rename(self.folder)
        return Shards.open(self.folder)


class ShardWriter:
    """Writes columns of any length as `NewShards`."""

    def __init__(self, folder: str | Path, shard_rows: int = SHARD_ROWS) -> None:
        self.new, self.shard_rows = NewShards(folder, shard_rows), shard_rows
        self.n_rows = self.waiting = 0
        self._waiting: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMNS}

    def __enter__(self) -> Self:
        self.new.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.new.__exit__(*error)

    def append(self, **columns: NDArray[Any]) -> None:
        """Some rows: `users` and `items` (codes) and `ratings`."""
        for name, values in columns.items():
            self._waiting[name].append(np.asarray(values, COLUMNS[name]))
        self.waiting += len(columns["users"])
        while self.waiting >= self.shard_rows:
            self._write(self.shard_rows)

    def _write(self, rows: int) -> None:
        shard = Shard(self.new.place, self.n_rows // self.shard_rows, self.n_rows, rows, (0, 0))
        for name, parts in self._waiting.items():
            values = np.concatenate(parts)
            write_array(shard.path(name), values[:rows])
            self._waiting[name] = [values[rows:].copy()]
        self.n_rows, self.waiting = self.n_rows + rows, self.waiting - rows

    def finish(self, shape: tuple[int, int]) -> Shards:
        """Write what is left, and the facts."""
        if self.waiting:
            self._write(self.waiting)
        return self.new.finish(self.n_rows, shape)


@dataclass(frozen=True)
class ShardedLog:
    """A log as shards of codes and ratings, with the ids that the codes stand for."""

    shards: Shards
    user_ids: Vocabulary
    item_ids: Vocabulary

    @property
    def shape(self) -> tuple[int, int]:
        return self.shards.shape

    def __len__(self) -> int:
        return self.shards.n_rows

    def __repr__(self) -> str:
        users, items = self.shape
        return f"<ShardedLog: {len(self):,} rows, {users:,} users x {items:,} items, {len(self.shards)} shards>"
