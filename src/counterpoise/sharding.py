"""Files to shards: a log too long for memory is scanned once for its ids and once for its rows, and kept as codes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterpoise.columns import finite_numbers, whole_ids
from counterpoise.errors import DataError, RowError
from counterpoise.ingest import AnyPath, as_plain_ids, read_part, same_type
from counterpoise.log_files import files_of, fingerprint
from counterpoise.shards import MANIFEST, SHARD_ROWS, Shards, ShardWriter, as_bytes
from counterpoise.tables import (
    FAILURES,
    PARQUET,
    broken_parquet,
    check_columns,
    check_plain_types,
    column_names,
    first_row,
    kind_of,
)
from counterpoise.vocabulary import Vocabulary

BATCH_ROWS = 2**18  # rows of a Parquet file that are looked at together
TEXT_IN_MEMORY = 6  # a text file takes so many times its size while it is read


@dataclass(frozen=True)
class ShardedLog:
    """A log as shards of codes and ratings, and what the codes stand for."""

    shards: Shards
    user_ids: Vocabulary
    item_ids: Vocabulary

    @property
    def shape(self) -> tuple[int, int]:
        """(|U|, |I|)."""
        return self.shards.shape

    def __len__(self) -> int:
        """The number of rows, |O|."""
        return self.shards.n_rows

    def __repr__(self) -> str:
        """Rows, users, items and shards."""
        users, items = self.shape
        return f"<ShardedLog: {len(self):,} rows, {users:,} users x {items:,} items, {len(self.shards)} shards>"


def shard_log(
    path: AnyPath,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    rating_col: str | None = "rating",
    separator: str | None = None,
    user_ids: Vocabulary | None = None,
    item_ids: Vocabulary | None = None,
    beside: Sequence[AnyPath] = (),
    memory: str | float = "4GB",
    cache: AnyPath | None = None,
    shard_rows: int = SHARD_ROWS,
) -> ShardedLog:
    """The log in a file, a folder of files or a glob, as shards in a folder of `cache`, which a second start reuses.

    The files may have any schema as long as the named columns are there; without a `rating_col` every rating is 1.
    Every row counts: a pair that occurs twice was observed twice. `user_ids`, `item_ids`: all ids, by default those
    that occur here and in the files `beside` it. `memory`: Parquet files are scanned in parts that fit; a text file is
    read whole, so that each must be well below it.
    """
    names = {"user": user_col, "item": item_col} | ({} if rating_col is None else {"rating": rating_col})
    files, budget = files_of(path), as_bytes(memory)
    others = [file for place in beside for file in files_of(place)]
    given = {role: ids.to_parquet() for role, ids in (("user", user_ids), ("item", item_ids)) if ids is not None}
    hashes = {role: hashlib.sha256(content).hexdigest() for role, content in given.items()}
    folder = cache_folder(cache) / fingerprint(files + others, len(files), names, separator, shard_rows, hashes)
    if (folder / MANIFEST).exists():
        return open_log(folder)
    files = [file for file in files if file.stat().st_size]  # a file without a header has no rows either
    for file in files + others:
        _check_schema(file, names, separator, budget)
    users = user_ids or _vocabulary(files + others, "user", names["user"], separator)
    items = item_ids or _vocabulary(files + others, "item", names["item"], separator)
    with ShardWriter(folder, shard_rows) as writer:
        for file in files:
            for first, frame in batches(file, names, separator):
                try:
                    writer.append(**_coded(frame, names, users, items))
                except RowError as error:
                    raise error.located(str(file), first_row(file) + first) from None
                except DataError as error:
                    raise DataError(f"{file}: {error}") from None
        if not writer.n_rows + writer.waiting:
            raise DataError(f"{path}: there are no rows of data in any of the {len(files)} files.")
        facts = {"files": [str(file) for file in files], "columns": names}
        content = {"user_ids": users.to_parquet(), "item_ids": items.to_parquet()}
        return ShardedLog(writer.finish((len(users), len(items)), facts, **content), users, items)


def open_log(folder: str | Path) -> ShardedLog:
    """The log that `shard_log` has put into a folder."""
    shards = Shards.open(folder)
    ids = [
        Vocabulary.from_parquet((shards.folder / f"{side}.parquet").read_bytes()) for side in ("user_ids", "item_ids")
    ]
    return ShardedLog(shards, *ids)


def cache_folder(given: AnyPath | None = None) -> Path:
    """Where shards are kept: as given, or the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(cache) / "counterpoise" / "shards" if given is None else Path(given)).expanduser().absolute()


def batches(file: Path, columns: Mapping[str, str], separator: str | None = None) -> Iterator[tuple[int, pl.DataFrame]]:
    """(the number of its first row, some rows) of a file, in order: Parquet in parts, text at once."""
    if kind_of(file) not in PARQUET:
        yield 0, read_part(file, columns, separator)
        return
    scan = pl.scan_parquet(file, glob=False)
    chosen = scan.select(pl.col(name).alias(role) for role, name in columns.items())
    for first in range(0, _collected(file, scan.select(pl.len())).item(), BATCH_ROWS):
        yield first, _collected(file, chosen.slice(first, BATCH_ROWS))


def _check_schema(file: Path, names: Mapping[str, str], separator: str | None, memory: int) -> None:
    """Raise `DataError` for a file that cannot be part of this log, before anything is written."""
    check_columns(file, names, column_names(file, separator))
    if kind_of(file) in PARQUET:
        check_plain_types(file, names, pl.read_parquet_schema(file))
    elif file.stat().st_size * TEXT_IN_MEMORY > memory:
        size = file.stat().st_size * TEXT_IN_MEMORY
        raise DataError(
            f"{file}: a text file of this size takes about {size / 1e9:.1f} GB to read, more than the `memory` of "
            f"{memory / 1e9:.1f} GB. Split it, convert it to Parquet, or raise --memory."
        )


def _vocabulary(files: list[Path], role: str, name: str, separator: str | None) -> Vocabulary:
    """The distinct ids of all files, in one type."""
    found = map(partial(_distinct, role=role, name=name, separator=separator), files)
    parts = same_type([ids for ids in found if len(ids)])
    return Vocabulary.of(*parts) if parts else Vocabulary([])


def _distinct(file: Path, role: str, name: str, separator: str | None) -> pl.Series:
    if kind_of(file) not in PARQUET:
        return read_part(file, {role: name}, separator)[role].drop_nulls().unique()
    return _collected(file, pl.scan_parquet(file, glob=False).select(pl.col(name).unique())).to_series().drop_nulls()


def _collected(file: Path, query: pl.LazyFrame) -> pl.DataFrame:
    try:
        return query.collect(engine="streaming")
    except FAILURES as error:
        raise broken_parquet(file, error) from None


def _coded(frame: pl.DataFrame, names: Mapping[str, str], users: Vocabulary, items: Vocabulary) -> dict[str, Any]:
    """Codes and ratings of some rows, checked."""
    ratings = finite_numbers(frame["rating"], names["rating"]) if "rating" in names else np.ones(len(frame))
    codes = {
        f"{role}s": ids.require(as_plain_ids(whole_ids(frame[role], names[role])), role)
        for role, ids in (("user", users), ("item", items))
    }
    return {**codes, "ratings": ratings}
