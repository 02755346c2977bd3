"""Balancing of logs that do not fit in memory: `balance_shards` for a log in shards, `balance_log` for files.

`ShardFunctions` are the balancing functions at the pairs of any shard, from one table of users and one of items.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.exponential_family import Rows, pair_rows
from counterpoise.balance.features import standardised
from counterpoise.balance.functions import (
    MAX_GREEDY_ROWS,
    RULES_BY_OBSERVED,
    FittedFunctions,
    FittedKernels,
    Functions,
    KernelFunctions,
)
from counterpoise.balance.kernels import Gaussian, pair_tables
from counterpoise.balance.path import balance_keeping
from counterpoise.balance.population import ObservedPairs, Pairs
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import Units
from counterpoise.data.files import PARQUET, Header, column_names, files_of, kind_of, layout_of
from counterpoise.data.frames import is_frame
from counterpoise.data.reading import AnyPath, read_all_columns, read_part, read_side_table
from counterpoise.data.side_tables import as_polars, check_names
from counterpoise.errors import ConfigError, DataError
from counterpoise.out_of_core.encoding import batches, shard_log
from counterpoise.out_of_core.engines import Engine, ThreadEngine
from counterpoise.out_of_core.family import ShardedRows
from counterpoise.out_of_core.shards import Shard, Shards, as_bytes
from counterpoise.storage import ScratchFolder, expanded, sweep, write_table
from counterpoise.threads import one_thread

Table = NDArray[np.float64]
MAX_TABLE_MEMORY_SHARE = 0.5  # of `memory`, for the two tables of kernel values; features are kept instead above it


@dataclass(eq=False)
class ShardFunctions:
    """The functions at a worker: two tables, one row for each user and each item.

    They hold a Gaussian kernel at all centres, so that a pair's values are a product; or features, where that takes too
    much memory or the functions do not factorise. They are numpy arrays, which the workers of one machine share.
    """

    users: Table
    items: Table
    fitted: FittedFunctions
    factorised: bool
    device: str = "cpu"

    @classmethod
    def of(cls, fitted: FittedFunctions, pairs: Pairs, memory: int) -> ShardFunctions:
        """The tables of functions that were fitted to all pairs."""
        tables = pairs.users.double(), pairs.items.double()
        factorised = False
        if isinstance(fitted, FittedKernels) and isinstance(fitted.kernel, Gaussian):
            size = 8 * len(fitted.centres) * (len(pairs.users) + len(pairs.items))  # bytes
            if size <= MAX_TABLE_MEMORY_SHARE * memory:
                tables = pair_tables(fitted.kernel, fitted.centres.double(), *tables)
                factorised = True
        users, items = (table.cpu().numpy() for table in tables)
        return cls(users, items, fitted, factorised, str(pairs.users.device))

    def rows(self, shard: Shard) -> Rows:
        """The functions at the pairs of a shard."""
        users, items = (
            torch.from_numpy(np.array(shard.column(name))).to(self.device, torch.int64) for name in ("users", "items")
        )
        user_table, item_table = self._tables
        if not self.factorised or not isinstance(self.fitted, FittedKernels):
            return self.fitted.rows(_Features(user_table, item_table, users, items))
        mixing = self.fitted.mixing
        return pair_rows(user_table, item_table, users, items, None if mixing is None else mixing.to(user_table))

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """The tables as tensors, which share their memory on the CPU."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only arrays: nothing writes to them
            return torch.from_numpy(self.users).to(self.device), torch.from_numpy(self.items).to(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Without the tensors: workers make their own from the shared arrays."""
        return {name: value for name, value in self.__dict__.items() if name != "_tables"}


@dataclass(frozen=True, eq=False)
class _Features:
    """Pairs of a shard with the features of both sides."""

    user_table: Tensor
    item_table: Tensor
    users: Tensor
    items: Tensor

    @property
    def n_rows(self) -> int:
        return len(self.users)

    @property
    def device(self) -> torch.device:
        return self.users.device

    def features(self, rows: slice | Tensor) -> Tensor:
        return torch.cat([self.user_table[self.users[rows]], self.item_table[self.items[rows]]], 1)


def balance_shards(
    shards: Shards,
    pairs: Pairs,
    functions: Functions | None = None,
    *,
    tolerance: float | None = None,
    strength: float | None = None,
    kept: float | None = None,
    units: Units = "sd",
    engine: Engine | None = None,
    memory: str | float = "4GB",
    seed: int | torch.Generator = 0,
    **options: Any,
) -> BalanceResult:
    """Weights on the rows of a log in shards under which every function averages to its mean over all pairs.

    `pairs`: the features of all users and items, in the order of their codes. `functions`: by default 50 kernel
    functions; the rule "adaptive" does not apply, "greedy" looks at a sample of the rows (`sample_pairs`).
    `engine`: where the passes over shards run, by default in threads.
    `tolerance`, `strength`, `units` and `options` (`accuracy`, `max_passes`) as in `FittedFunctions.balance`.
    `kept`: in place of `strength`, the share of the effective sample to keep: the strength is then found on a draw of
    the rows, the population is that of the log's users, each as often as in the log, and the default of `tolerance` is
    that of chance (`Balancing`).
    The weights of the result are a `ShardColumn`: a file beside each shard, and `numpy.asarray` of it where they fit.
    """
    shape = len(pairs.users), len(pairs.items)
    if shape != shards.shape:
        raise DataError(f"the features are for {shape[0]} x {shape[1]} pairs, the log for {shards.shape}.")
    recipe, budget = functions or KernelFunctions(), as_bytes(memory)
    select = getattr(recipe, "select", "")
    if select == "adaptive":
        raise ConfigError(
            f'`select` must be "spectral", "greedy", "random" or "worst_case" for a log in shards, got "{select}".'
        )
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def fitted_tables() -> ShardFunctions:
        observed = sample_pairs(shards, pairs, generator) if select in RULES_BY_OBSERVED else None
        shares = None if kept is None else _user_shares(shards).to(pairs.users.device)
        population = replace(pairs, user_shares=shares)
        with one_thread():  # blocks of a few rows
            return ShardFunctions.of(recipe.fit(population, observed, generator=generator), pairs, budget)

    with (engine or ThreadEngine()).over(shards, fitted_tables) as (each, source):
        fitted = source.fitted
        rows = ShardedRows(shards.n_rows, len(fitted.targets), each, shards.new_column)
        if kept is not None:
            drawn = sample_pairs(shards, pairs, generator)
            path = balance_keeping(fitted, drawn, kept, tolerance, None, generator, shards.n_rows)
            tolerance, strength = path.tolerance, path.strength
            options |= {"start": path.result.dual}
        return fitted.balance(rows, tolerance or 0.0, strength, units=units, **options)


def _user_shares(shards: Shards) -> Tensor:
    """The share of the log's rows of each user."""
    counts = sum(np.bincount(shard.column("users"), minlength=shards.shape[0]) for shard in shards)
    return torch.from_numpy(np.asarray(counts, dtype=np.float64) / shards.n_rows)


def sample_pairs(shards: Shards, pairs: Pairs, generator: torch.Generator) -> ObservedPairs:
    """The rows of a log in shards, or a draw of as many as `greedy` looks at in memory."""
    rows = torch.arange(shards.n_rows)
    if shards.n_rows > MAX_GREEDY_ROWS:
        rows = torch.randint(shards.n_rows, (MAX_GREEDY_ROWS,), generator=generator)
    codes = [shards.take(name, rows.numpy()).astype(np.int64) for name in ("users", "items")]
    return pairs.at(*(torch.from_numpy(code).to(pairs.users.device) for code in codes))


@dataclass(frozen=True)
class BalancedLog:
    """The certificate of a balanced log, and the effective sample size of its weights."""

    result: BalanceResult
    rows: int
    shape: tuple[int, int]
    effective_sample_size: float
    tables: tuple[str, ...] = ()  # what became of the columns of users and of items

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the weights."""
        own: dict[str, Any] = {
            "users": self.shape[0],
            "items": self.shape[1],
            "effective_sample_size": self.effective_sample_size,
        }
        own |= {"tables": list(self.tables)}
        return self.result.to_dict() | own

    def summary(self) -> str:
        """A few lines."""
        result, before = self.result, abs(self.result.imbalance_before / self.result.scale).max()
        after, relaxed = abs(result.imbalance / result.scale).max(), int(result.relaxed.sum())
        return "".join(f"{table}\n" for table in self.tables) + (
            f"{self.rows:,} rows of {self.shape[0]:,} users x {self.shape[1]:,} items, {len(result.dual)} functions: "
            f"largest imbalance {before:.3f} SD before, {after:.2g} SD after ({relaxed} relaxed).\n"
            f"Effective sample size {self.effective_sample_size:,.0f}; {result.status} in {result.passes} passes, "
            f"duality gap {result.gap:.1e}."
        )


def _frames_as_files(function: Callable[..., BalancedLog]) -> Callable[..., BalancedLog]:
    """Write frames that are given for files to Parquet, in a folder that is there while the function runs."""
    parameters = signature(function)

    @wraps(function)
    def with_files(*args: Any, **options: Any) -> BalancedLog:
        bound = parameters.bind(*args, **options)
        given = bound.arguments
        frames = {name: given[name] for name in ("log", "users", "items") if is_frame(given[name])}
        if not frames:
            return function(*args, **options)
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / f"{name}.parquet" for name in frames}
            for name, file in files.items():
                as_polars(frames[name]).write_parquet(file)
            given |= {**files, "cache": given.get("cache") or folder}
            try:
                return function(*bound.args, **bound.kwargs)
            except DataError as error:
                message = str(error)
                for name, file in files.items():
                    message = message.replace(str(file), f"`{name}`")
                raise DataError(message) from None

    return with_files


@_frames_as_files
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
    header: Header | None = None,
    memory: str | float = "4GB",
    cache: AnyPath | None = None,
    engine: Engine | None = None,
    categorical: Sequence[str] = (),
    **options: Any,
) -> BalancedLog:
    """Weight the rows of `log` (a file, a folder or a glob) so that they resemble all pairs of `users` and `items`.

    All three may be frames too.

    The two files have a column of ids, named as in the log, and features of any kind (`TableEncoder`); `categorical`
    names numbers that are codes. The folder `out` gets Parquet
    files with all columns and rows of the log, in order, and `weight` (sum 1). `options`: those of `balance_shards`.
    """
    target = expanded(out)
    if target.parent.is_dir():
        sweep(target.parent, re.escape(target.name))  # of a process that was killed when its result was complete
    if target.suffix or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ConfigError(f"`out` must be a folder that is new or empty, got {str(out)!r}.")
    sides = [read_side_table(path, id_col, separator) for path, id_col in ((users, user_col), (items, item_col))]
    check_names("categorical", categorical, [name for side in sides for name in side.frame.columns])
    encoded = [side.encoded(side.ids(), categorical) for side in sides]
    layout: dict[str, Any] = {"separator": separator, "header": header}
    columns = {"user_col": user_col, "item_col": item_col, "rating_col": None} | layout
    ids = {"user_ids": sides[0].ids(), "item_ids": sides[1].ids()}
    for file in files_of(log):
        if file.stat().st_size and "weight" in column_names(file, **layout, columns=(user_col, item_col)):
            raise DataError(f"{file}: the column 'weight' has the name of the result. Rename it.")
    sharded = shard_log(log, **columns, **ids, memory=memory, cache=cache, engine=engine)  # type: ignore[arg-type]
    pairs = Pairs(*(torch.from_numpy(standardised(table)) for _, table in encoded))
    result = balance_shards(sharded.shards, pairs, functions, engine=engine, memory=memory, **options)
    try:
        squares = sum(float(values @ values) for values in result.weights)
        frames = _frames(files_of(log), (user_col, item_col), separator, header)
        _write(target, frames, iter(result.weights))
    finally:
        result.weights.remove()
    notes = tuple(encoder.summary() for encoder, _ in encoded)
    return BalancedLog(result, len(sharded), sharded.shape, 1 / squares, notes)


def _write(folder: Path, frames: Iterator[pl.DataFrame], weights: Iterator[Any]) -> None:
    """The rows of all frames with their weights, in a folder that appears when it is complete."""
    with ScratchFolder.make(folder.parent, folder.name) as place:
        rest = np.empty(0)
        for number, frame in enumerate(frames):
            while len(rest) < len(frame):
                rest = np.concatenate([rest, next(weights)])
            write_table(frame.with_columns(weight=rest[: len(frame)]), place / f"part-{number:06d}.parquet")
            rest = rest[len(frame) :]
        if folder.exists():
            folder.rmdir()
        place.rename(folder)


def _frames(
    files: list[Path], columns: tuple[str, ...], separator: str | None, header: Header | None
) -> Iterator[pl.DataFrame]:
    """All columns of all files, in parts, without those that are empty; `columns` are there."""
    for file in files:
        if kind_of(file) in PARQUET:
            yield from batches(file, {name: name for name in column_names(file)})
        elif file.stat().st_size:  # else there is not even a header
            layout = layout_of(file, columns, separator, header)
            first = column_names(file, layout.separator, layout.header, columns)[0]
            if len(read_part(file, {first: first}, layout.separator, layout.header)):
                yield read_all_columns(file, separator=layout.separator, header=layout.header)
