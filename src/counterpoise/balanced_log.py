"""A log of any length balanced against all pairs of two feature tables: files in, files with a column `weight` out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from counterpoise.engines import Engine
from counterpoise.errors import ConfigError, DataError
from counterpoise.features import standardised
from counterpoise.functions import Functions
from counterpoise.ingest import AnyPath, read_beside
from counterpoise.log_files import files_of
from counterpoise.persistence import write_table
from counterpoise.population import Pairs
from counterpoise.results import BalanceResult
from counterpoise.sharded_functions import balance_shards
from counterpoise.sharding import batches, shard_log
from counterpoise.side_tables import read_side
from counterpoise.tables import PARQUET, column_names, kind_of


@dataclass(frozen=True)
class BalancedLog:
    """What balancing reached, and how many equal weights the weights are worth."""

    result: BalanceResult
    rows: int
    shape: tuple[int, int]
    effective_sample_size: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the weights."""
        own = {"users": self.shape[0], "items": self.shape[1], "effective_sample_size": self.effective_sample_size}
        return self.result.to_dict() | own

    def summary(self) -> str:
        """A few lines."""
        result, before = self.result, abs(self.result.imbalance_before / self.result.scale).max()
        after, lost = abs(result.imbalance / result.scale).max(), int(result.given_up.sum())
        return (
            f"{self.rows:,} rows of {self.shape[0]:,} users x {self.shape[1]:,} items, {len(result.dual)} functions: "
            f"largest imbalance {before:.3f} SD before, {after:.2g} SD after ({lost} given up).\n"
            f"Effective sample size {self.effective_sample_size:,.0f}; {result.status} in {result.passes} passes, "
            f"duality gap {result.gap:.1e}."
        )


def balance_log(
    log: AnyPath,
    users: AnyPath,
    items: AnyPath,
    out: AnyPath,
    functions: Functions | None = None,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    separator: str | None = None,
    memory: str | float = "4GB",
    cache: AnyPath | None = None,
    engine: Engine | None = None,
    **options: Any,
) -> BalancedLog:
    """Weight the rows of `log` (a file, a folder or a glob) so that they resemble all pairs of `users` and `items`.

    The two files have a column of ids, named as in the log, and numbers for features. The folder `out` gets Parquet
    files with all columns and rows of the log, in order, and `weight` (sum 1). `options`: those of `balance_shards`.
    """
    target = checked_folder(out)
    sides = [read_side(users, user_col, separator), read_side(items, item_col, separator)]
    columns = {"user_col": user_col, "item_col": item_col, "rating_col": None, "separator": separator}
    ids = {"user_ids": sides[0][0], "item_ids": sides[1][0]}
    for file in files_of(log):
        if file.stat().st_size and "weight" in column_names(file, separator):
            raise DataError(f"{file}: the column 'weight' has the name of the result. Rename it.")
    sharded = shard_log(log, **columns, **ids, memory=memory, cache=cache)  # type: ignore[arg-type]
    pairs = Pairs(*(torch.from_numpy(standardised(table)) for _, table in sides))
    result = balance_shards(sharded.shards, pairs, functions, engine=engine, memory=memory, **options)
    try:
        squares = sum(float(values @ values) for values in result.weights)
        _write(target, files_of(log), separator, iter(result.weights))
    finally:
        result.weights.remove()
    return BalancedLog(result, len(sharded), sharded.shape, 1 / squares)


def checked_folder(out: AnyPath) -> Path:
    """The folder to write to, which must not hold anything yet: worth asking before long work."""
    folder = Path(out).expanduser()
    if folder.suffix or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"`out` must be a folder that is new or empty, got {str(out)!r}.")
    return folder


def _write(folder: Path, files: list[Path], separator: str | None, weights: Iterator[Any]) -> None:
    """The rows of all files with their weights, in a folder that appears when all of it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        inside, rest = Path(place) / "out", np.empty(0)
        inside.mkdir()
        for number, frame in enumerate(_frames(files, separator)):
            while len(rest) < len(frame):
                rest = np.concatenate([rest, next(weights)])
            write_table(frame.with_columns(weight=rest[: len(frame)]), inside / f"part-{number:06d}.parquet")
            rest = rest[len(frame) :]
        if folder.exists():
            folder.rmdir()
        inside.rename(folder)


def _frames(files: list[Path], separator: str | None) -> Iterator[pl.DataFrame]:
    """All columns of all files, in parts, without those that are empty."""
    for file in files:
        if kind_of(file) in PARQUET:
            names = {name: name for name in column_names(file)}
            yield from (frame for _, frame in batches(file, names))
        elif any(len(frame) for _, frame in _rows_of_text(file, separator)):
            yield read_beside(file, pl.DataFrame(), separator=separator)


def _rows_of_text(file: Path, separator: str | None) -> Iterator[tuple[int, pl.DataFrame]]:
    """The first column of a text file, or nothing where there is not even a header."""
    if file.stat().st_size:
        name = column_names(file, separator)[0]
        yield from batches(file, {name: name}, separator)
