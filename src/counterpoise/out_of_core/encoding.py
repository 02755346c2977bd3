"""The files of a log to shards: a first pass over all files finds the ids, a second one writes codes and ratings.

Both passes are run by an engine. The first takes parts of files: it counts their rows and finds their distinct ids,
which are merged here as they come. The second takes shards: the worker of a shard reads the rows of it, wherever they
lie, and writes its columns.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from counterpoise.data.columns import finite_numbers, whole_ids
from counterpoise.data.files import (
    PARQUET,
    Header,
    Layout,
    TextPart,
    check_columns,
    check_plain_types,
    column_names,
    files_of,
    fingerprint,
    first_row,
    kind_of,
    layout_of,
    names_of,
    parquet_length,
    parquet_rows,
    parquet_schema,
    read_text_part,
    text_parts,
    unpacked,
    warn_of_guess,
)
from counterpoise.data.ids import Vocabulary, as_plain_ids, distinct_values, same_type
from counterpoise.data.parquet import check_parquet
from counterpoise.data.reading import AnyPath, typed
from counterpoise.errors import DataError, RowError
from counterpoise.out_of_core.engines import Each, Engine, RayEngine, ThreadEngine
from counterpoise.out_of_core.shards import (
    COLUMNS,
    FOLDER_NAME,
    MANIFEST,
    SHARD_ROWS,
    NewShards,
    Shard,
    ShardedLog,
    Shards,
    as_bytes,
    write_array,
)
from counterpoise.storage import check_file, expanded, open_file, read_file, sweep

PARQUET_PART_ROWS = 2**20  # rows of a Parquet file that are read together
WORKER_MEMORY = 2**28  # bytes that a thread takes at most while it encodes a shard (measured, with ids of text)
MIN_PENDING_IDS = 2**22  # ids that are merged together
Role = str  # "user", "item" or "rating"
Dtypes = Mapping[tuple[Path, Role], pl.DataType]


def shard_log(
    path: AnyPath,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    rating_col: str | None = "rating",
    separator: str | None = None,
    header: Header | None = None,
    user_ids: Vocabulary | None = None,
    item_ids: Vocabulary | None = None,
    beside: Sequence[AnyPath] = (),
    memory: str | float = "4GB",
    cache: AnyPath | None = None,
    shard_rows: int = SHARD_ROWS,
    engine: Engine | None = None,
) -> ShardedLog:
    """The log in a file, a folder of files or a glob, as shards in a folder of `cache`, which a second start reuses.

    The files may have any schema as long as the named columns are there; without a `rating_col` every rating is 1.
    `separator`, `header`: as in `read_logs`. Every row counts: a pair that occurs twice was observed twice. `user_ids`,
    `item_ids`: all ids, by default those that occur here and in the files `beside` it. `memory`: files are read in
    parts by as many threads as fit into it; compressed text is unpacked into the cache first, and removed again.
    `engine`: where files are read, by default in threads. Workers of a Ray cluster must see the files.
    """
    names = {"user": user_col, "item": item_col} | ({} if rating_col is None else {"rating": rating_col})
    files, budget = files_of(path), as_bytes(memory)
    others = [file for place in beside for file in files_of(place)]
    for file in files + others:
        check_file(file)
    given = {role: ids for role, ids in (("user", user_ids), ("item", item_ids)) if ids is not None}
    hashes = {role: hashlib.sha256(ids.to_parquet()).hexdigest() for role, ids in given.items()}
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "counterpoise" / "shards"
    place = expanded(home if cache is None else cache).absolute()
    folder = place / fingerprint(files + others, len(files), names, separator, names_of(header), shard_rows, hashes)
    if (folder / MANIFEST).exists():
        sweep(place, FOLDER_NAME)  # a process that was killed when these were complete left its folder
        found = ShardedLog(Shards.open(folder), *(_read_ids(folder, role) for role in ("user", "item")))
        if (len(found.user_ids), len(found.item_ids)) != found.shape:
            raise DataError(f"{folder}: has other ids than its shards. Remove it; it is made again.")
        return found
    files = [file for file in files if file.stat().st_size]  # a file without a header has no rows either
    layouts: dict[Path, Layout] = {}
    warned: set[str] = set()
    for file in files + others:
        layouts[file] = layout_of(file, names.values(), separator, header)
        warn_of_guess(file, layouts[file], warned)
        _check_schema(file, names, layouts[file])
    with NewShards(folder, shard_rows) as new:
        parts = _parts(layouts, new.place)
        searched = [role for role in ("user", "item") if role not in given]
        with _reader(engine, budget).over(parts, lambda: _Reader(names, given)) as (each, reader):
            rows, dtypes = _first_pass(each, reader, parts, searched, set(files))
            parts = [part for part in parts if part.file in files]
            counts = [rows[part.number] for part in parts]
            if not sum(counts):
                raise DataError(f"{path}: there are no rows of data in any of the {len(files)} files.")
            users, items = (reader.vocabulary(role, new.place) for role in ("user", "item"))
            for role, ids in (("user", users), ("item", items)):
                _ids_file(new.place, role).write_bytes(ids.to_parquet())
            unwritten = new.unwritten(sum(counts), (len(users), len(items)))
            plan = _Plan([replace(part, number=k) for k, part in enumerate(parts)], counts, dtypes)
            for _ in each.stream(_write_shard, list(unwritten), plan):
                pass
        for part in parts:
            if part.place.parent == new.place:
                part.place.unlink(missing_ok=True)
        facts = {"files": [str(file) for file in files], "columns": names}
        return ShardedLog(new.finish(unwritten.n_rows, unwritten.shape, facts), users, items)


def _reader(engine: Engine | None, budget: int) -> Engine:
    """The engine that reads files: threads, as many as the memory is for, or the workers of a Ray that runs already.

    A Ray that would be started for this has the cores of this machine, which threads use at once.
    """
    if isinstance(engine, RayEngine) and not engine.runs_already():
        engine = ThreadEngine(engine.workers)
    if engine is None or isinstance(engine, ThreadEngine):
        threads = (engine and engine.threads) or torch.get_num_threads()
        return ThreadEngine(max(1, min(threads, budget // WORKER_MEMORY)))
    return engine


def _check_schema(file: Path, names: Mapping[Role, str], layout: Layout) -> None:
    """Raise `DataError` for a file that cannot be part of this log, before anything is written."""
    check_columns(file, names, column_names(file, layout.separator, layout.header, names.values()))
    if kind_of(file) in PARQUET:
        check_plain_types(file, names, parquet_schema(file))
        with open_file(file) as stream:
            check_parquet(str(file), stream, set(names.values()))


@dataclass(frozen=True)
class _Part:
    """Rows of a file that are read together."""

    number: int
    file: Path
    layout: Layout
    text: TextPart | None = None
    first: int = 0  # of a Parquet file
    n_rows: int = 0

    @property
    def place(self) -> Path:
        """The file of its rows: the file itself, or what was unpacked from it."""
        return self.file if self.text is None else self.text.place


def _parts(layouts: Mapping[Path, Layout], folder: Path) -> list[_Part]:
    """All files in parts, in order; compressed text is unpacked into the folder."""
    found: list[_Part] = []
    texts = [file for file in layouts if kind_of(file) not in PARQUET]
    with ThreadPoolExecutor() as pool:
        places = dict(
            zip(texts, pool.map(lambda number: unpacked(texts[number], folder, number), range(len(texts))), strict=True)
        )
    for file, layout in layouts.items():
        if file in places:
            found += [_Part(0, file, layout, part) for part in text_parts(file, layout, places[file])]
        else:
            count = parquet_length(file)
            starts = range(0, count, PARQUET_PART_ROWS)
            found += [_Part(0, file, layout, None, at, min(PARQUET_PART_ROWS, count - at)) for at in starts]
    return [replace(part, number=number) for number, part in enumerate(found)]


@dataclass
class _Reader:
    """The reader at a worker: the columns to read, and the ids once they are known."""

    names: Mapping[Role, str]
    ids: dict[Role, Vocabulary]

    def vocabulary(self, role: Role, folder: Path) -> Vocabulary:
        """The ids of users or items; workers of Ray read them from the folder."""
        if role not in self.ids:
            self.ids[role] = _read_ids(folder, role)
        return self.ids[role]

    def frame(self, part: _Part, roles: Sequence[Role], first: int, n_rows: int | None) -> pl.DataFrame:
        """Some columns of some rows of a part, by role."""
        columns = {role: self.names[role] for role in roles}
        if part.text is not None:
            frame = typed(read_text_part(part.text, columns))
            return frame if n_rows is None else frame[first : first + n_rows]
        rows = part.n_rows if n_rows is None else n_rows
        return parquet_rows(part.file, columns, part.first + first, rows)


def _ids_file(folder: Path, role: Role) -> Path:
    return folder / f"{role}_ids.parquet"


def _read_ids(folder: Path, role: Role) -> Vocabulary:
    file = _ids_file(folder, role)
    try:
        content = read_file(file, links=False)
    except DataError:
        raise DataError(
            f"{file}: the ids are not there. Workers on other machines must see the folder: put the cache on a shared "
            "disk (--cache)."
        ) from None
    try:
        return Vocabulary.from_parquet(content)
    except DataError as error:
        raise DataError(f"{file}: {error} Remove {folder}; it is made again.") from None


def _first_pass(
    each: Each, reader: _Reader, parts: Sequence[_Part], searched: Sequence[Role], log: set[Path]
) -> tuple[dict[int, int], Dtypes]:
    """(rows of each part, types of ids in Parquet files); the reader then has the ids."""
    rows = {part.number: part.n_rows for part in parts if part.text is None}
    units = parts if searched else [part for part in parts if part.text is not None and part.file in log]
    waiting = Counter(part.file for part in units)
    of_files: dict[tuple[Path, Role], _DistinctIds] = {}
    merged: dict[Role, _DistinctIds] = {role: _DistinctIds() for role in searched}
    dtypes: dict[tuple[Path, Role], pl.DataType] = {}
    for part, (count, found) in each.stream(_scan, units, tuple(searched)):
        rows[part.number] = count
        waiting[part.file] -= 1
        for role, columns in found.items():
            own = of_files.setdefault((part.file, role), _DistinctIds())
            own.add(columns)
            if not waiting[part.file]:  # an id is a whole number where all of the file are
                for column in map(as_plain_ids, of_files.pop((part.file, role)).columns()):
                    if part.text is None:
                        dtypes[part.file, role] = column.dtype
                    if len(column):
                        merged[role].add(column)
    for role, ids in merged.items():
        columns = same_type(ids.columns())
        reader.ids[role] = Vocabulary.of(*columns) if columns else Vocabulary([])
    return rows, dtypes


def _scan(reader: _Reader, part: _Part, roles: Sequence[Role]) -> tuple[int, dict[Role, pl.Series]]:
    """(number of rows, distinct ids) of a part."""
    frame = reader.frame(part, roles or ["user"], 0, None)
    return len(frame), {role: distinct_values(frame[role].drop_nulls()) for role in roles}


@dataclass
class _DistinctIds:
    """The distinct ids of many columns, of each type apart; they are merged when they have doubled."""

    merged: dict[pl.DataType, pl.Series] = field(default_factory=dict)
    waiting: dict[pl.DataType, list[pl.Series]] = field(default_factory=dict)

    def add(self, column: pl.Series) -> None:
        waiting = self.waiting.setdefault(column.dtype, [])
        waiting.append(column)
        known = self.merged.get(column.dtype)
        if sum(map(len, waiting)) > max(MIN_PENDING_IDS, 0 if known is None else len(known)):
            self._merge(column.dtype)

    def _merge(self, dtype: pl.DataType) -> None:
        columns = [*([self.merged[dtype]] if dtype in self.merged else []), *self.waiting.pop(dtype)]
        self.merged[dtype] = columns[0] if len(columns) == 1 else distinct_values(pl.concat(columns))

    def columns(self) -> list[pl.Series]:
        """The ids of each type."""
        for dtype in list(self.waiting):
            self._merge(dtype)
        return list(self.merged.values())


@dataclass(frozen=True)
class _Plan:
    """The places of a log's rows: in its parts, which have so many, one after the other."""

    parts: Sequence[_Part]
    counts: Sequence[int]
    dtypes: Dtypes

    def pieces(self, shard: Shard) -> Iterator[tuple[_Part, int, int]]:
        """(part, first row in it, number of rows) of a shard."""
        ends = list(accumulate(self.counts))
        last = shard.first + shard.n_rows
        for number in range(int(np.searchsorted(ends, shard.first, side="right")), len(ends)):
            start = ends[number] - self.counts[number]
            if start >= last:
                break
            first = max(shard.first - start, 0)
            if rows := min(last - start, self.counts[number]) - first:
                yield self.parts[number], first, rows

    def row_in_file(self, part: _Part) -> int:
        """The row of its file that a part begins with."""
        return sum(
            count
            for other, count in zip(self.parts[: part.number], self.counts, strict=False)
            if other.file == part.file
        )


def _write_shard(reader: _Reader, shard: Shard, plan: _Plan) -> None:
    """Encode the rows of a shard, wherever they lie, and write them."""
    columns = {name: np.empty(shard.n_rows, dtype) for name, dtype in COLUMNS.items()}
    at = 0
    for part, first, rows in plan.pieces(shard):
        frame = reader.frame(part, list(reader.names), first, rows)
        try:
            for name, values in _coded(frame, part, reader, plan.dtypes, shard.folder):
                columns[name][at : at + rows] = values
        except RowError as error:
            above = first_row(part.file, part.layout) + plan.row_in_file(part) + first
            raise error.located(str(part.file), above) from None
        except DataError as error:
            raise DataError(f"{part.file}: {error}") from None
        at += rows
    for name, column in columns.items():
        try:
            write_array(shard.path(name), column)
        except FileNotFoundError:
            raise DataError(
                f"{shard.folder}: the folder is not there. Workers on other machines must see it: put the cache on a "
                "shared disk (--cache)."
            ) from None


def _coded(
    frame: pl.DataFrame, part: _Part, reader: _Reader, dtypes: Dtypes, folder: Path
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Codes and ratings of some rows, checked."""
    has_ratings = "rating" in reader.names
    yield "ratings", finite_numbers(frame["rating"], reader.names["rating"]) if has_ratings else np.ones(len(frame))
    for role in ("user", "item"):
        ids = whole_ids(frame[role], reader.names[role])
        vocabulary, dtype = reader.vocabulary(role, folder), dtypes.get((part.file, role))
        ids = as_plain_ids(ids) if dtype is None else ids.cast(dtype)
        if dtype is not None and dtype != vocabulary.dtype:
            ids = ids.cast(pl.String)
        yield f"{role}s", vocabulary.require(ids, role)


def batches(file: Path, columns: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file in order, in parts."""
    for first in range(0, parquet_length(file), PARQUET_PART_ROWS):
        yield parquet_rows(file, columns, first, PARQUET_PART_ROWS)
