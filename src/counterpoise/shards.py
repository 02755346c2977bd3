"""Columns of a log too long for memory: numpy files of a fixed number of rows each, opened when they are needed.

The borders of shards do not depend on the files that the log came in, so neither does anything computed shard by shard.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import ConfigError, DataError

SHARD_ROWS = 2**20
MANIFEST = "shards.json"
FORMAT_VERSION = 1
COLUMNS = {"users": np.int32, "items": np.int32, "ratings": np.float64}
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def as_bytes(memory: str | float) -> int:
    """A budget such as "4GB", "512MiB" or a number of bytes."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(memory).upper())
    try:
        size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    except (ValueError, KeyError):
        size = 0
    if size < 2**26:
        raise ConfigError(f"`memory` must be a size of at least 64 MiB, such as 4GB or 512MiB, got {memory!r}.")
    return size


@dataclass(frozen=True)
class Shard:
    """Rows `first` to `first + n_rows` of a log."""

    folder: Path
    number: int
    first: int
    n_rows: int

    def column(self, name: str) -> NDArray[Any]:
        """The values of a column, mapped and not read: pages come when they are looked at, and go with the array."""
        path = self.path(name)
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise DataError(
                f"{path}: this part of the log is not there. Workers on other machines must see the folder: "
                "put the cache on a shared disk (--cache)."
            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}). Remove {self.folder} to have it made again.") from None

    def write(self, name: str, values: NDArray[Any]) -> None:
        """A further column of these rows, written beside and renamed."""
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".partial", delete=False) as stream:
            np.save(stream, values, allow_pickle=False)
        Path(stream.name).replace(self.path(name))

    def path(self, name: str) -> Path:
        """The file of a column."""
        return self.folder / f"{name}-{self.number:06d}.npy"


@dataclass(frozen=True)
class Shards:
    """All shards of a log in a folder, and how many users and items there are."""

    folder: Path
    n_rows: int
    shape: tuple[int, int]
    shard_rows: int

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """What a `ShardWriter` wrote."""
        folder = Path(folder)
        try:
            facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if facts["format_version"] != FORMAT_VERSION:
                raise KeyError("format_version")
            return cls(folder, facts["rows"], (facts["users"], facts["items"]), facts["shard_rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: not a folder of shards ({error}). Remove it to have it made again.") from None

    def __len__(self) -> int:
        """How many shards."""
        return -(-self.n_rows // self.shard_rows)

    def __iter__(self) -> Iterator[Shard]:
        """In the order of rows."""
        return iter(self._all)

    @cached_property
    def _all(self) -> list[Shard]:
        starts = range(0, self.n_rows, self.shard_rows)
        return [Shard(self.folder, k, at, min(self.shard_rows, self.n_rows - at)) for k, at in enumerate(starts)]

    def columns(self, *names: str) -> Iterator[tuple[NDArray[Any], ...]]:
        """Some columns, shard by shard."""
        for shard in self:
            yield tuple(shard.column(name) for name in names)

    def whole(self, name: str) -> NDArray[Any]:
        """A column in memory."""
        return np.concatenate([values for (values,) in self.columns(name)])

    def take(
        self, name: str, rows: NDArray[np.int64], column: Callable[[int, str], NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        """The values of some rows, in the order of `rows`; `column` may keep the columns of shards open."""
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

    def __len__(self) -> int:
        """The rows of the log."""
        return self.shards.n_rows

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The values, shard by shard."""
        return (values for (values,) in self.shards.columns(self.name))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All values in memory."""
        return self.shards.whole(self.name).astype(dtype or np.float64, copy=False)

    def remove(self) -> None:
        """Delete the files."""
        for shard in self.shards:
            shard.path(self.name).unlink(missing_ok=True)


class ShardWriter:
    """Writes columns of any length as shards of `shard_rows` rows; the folder appears when all is written.

    Use it in a `with` block and call `finish` at its end: without that, or after an error, nothing is left behind.
    """

    def __init__(self, folder: str | Path, shard_rows: int = SHARD_ROWS) -> None:
        self.folder, self.shard_rows = Path(folder), shard_rows
        self.n_rows = self.waiting = 0
        self._waiting: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMNS}

    def __enter__(self) -> ShardWriter:
        """A folder beside the one to come."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{self.folder.name}."
            self._place = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=self.folder.parent))
        except OSError as error:
            raise DataError(f"{self.folder} cannot be written: {error.strerror}. Choose another --cache.") from None
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing half written."""
        shutil.rmtree(self._place, ignore_errors=True)

    def append(self, **columns: NDArray[Any]) -> None:
        """Some rows: `users` and `items` (codes) and `ratings`."""
        for name, values in columns.items():
            self._waiting[name].append(np.asarray(values, COLUMNS[name]))
        self.waiting += len(columns["users"])
        while self.waiting >= self.shard_rows:
            self._write(self.shard_rows)

    def _write(self, rows: int) -> None:
        shard = Shard(self._place, self.n_rows // self.shard_rows, self.n_rows, rows)
        for name, parts in self._waiting.items():
            values = np.concatenate(parts)
            np.save(shard.path(name), values[:rows], allow_pickle=False)
            self._waiting[name] = [values[rows:].copy()]
        self.n_rows, self.waiting = self.n_rows + rows, self.waiting - rows

    def finish(self, shape: tuple[int, int], facts: Mapping[str, Any] | None = None, **files: bytes) -> Shards:
        """Write what is left, the facts and further files, and give the folder its name."""
        if self.waiting:
            self._write(self.waiting)
        own = {"format_version": FORMAT_VERSION, "rows": self.n_rows, "shard_rows": self.shard_rows}
        text = json.dumps({**own, "users": shape[0], "items": shape[1], **(facts or {})}, indent=2)
        for name, content in files.items():
            (self._place / f"{name}.parquet").write_bytes(content)
        (self._place / MANIFEST).write_text(text + "\n", encoding="utf-8")
        if not (self.folder / MANIFEST).exists():  # another process may have been quicker, with the same content
            self._place.rename(self.folder)
        return Shards.open(self.folder)
