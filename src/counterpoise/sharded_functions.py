"""Balancing functions at the pairs of any shard, from two tables; and the weights that balance them over all shards."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.engines import Engine, Local
from counterpoise.errors import ConfigError, DataError
from counterpoise.fitted_functions import FittedFunctions, FittedKernels
from counterpoise.functions import LOOK_AT_ROWS, WITNESS_ROWS, Functions, KernelFunctions
from counterpoise.kernels import Gaussian, pair_tables
from counterpoise.population import ObservedPairs, Pairs
from counterpoise.results import BalanceResult
from counterpoise.rows import Rows, ShardedRows, pair_rows
from counterpoise.shards import Shard, ShardColumn, Shards, as_bytes
from counterpoise.threads import one_thread

Table = NDArray[np.float64]
TABLES_SHARE = 0.5  # of the memory, that two tables of kernels may take


@dataclass(eq=False)
class ShardFunctions:
    """What a worker keeps: two tables, one row for each user and each item.

    Of a Gaussian kernel at all centres, so that a pair's values are a product; of features where that takes too much
    memory, or where the functions do not factorise. numpy arrays: the workers of one machine share them.
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
        factorised = isinstance(fitted, FittedKernels) and isinstance(fitted.kernel, Gaussian)
        if factorised and _size_of_tables(fitted, pairs) <= TABLES_SHARE * memory:
            tables = pair_tables(fitted.kernel, fitted.centres.double(), *tables)  # type: ignore[attr-defined]
        else:
            factorised = False
        users, items = (table.cpu().numpy() for table in tables)
        return cls(users, items, fitted, factorised, str(pairs.users.device))

    def rows(self, shard: Shard) -> Rows:
        """The functions at the pairs of a shard."""
        users, items = (
            torch.from_numpy(np.array(shard.column(name))).to(self.device, torch.int64) for name in ("users", "items")
        )
        user_table, item_table = self._tables()
        if not self.factorised:
            return self.fitted.rows(_Features(user_table, item_table, users, items))
        mixing = self.fitted.mixing if isinstance(self.fitted, FittedKernels) else None
        mixed = None if mixing is None else mixing.to(user_table)
        return pair_rows(user_table, item_table, users, items, mixed)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """The tables as tensors, which share their memory on the CPU."""
        if not hasattr(self, "_kept"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # nobody writes to what is shared
                users, items = (torch.from_numpy(table).to(self.device) for table in (self.users, self.items))
            self._kept = users, items
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        """Without the tensors: workers make their own, of arrays that they share."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}


def _size_of_tables(fitted: FittedFunctions, pairs: Pairs) -> int:
    """Bytes of the kernels at all users and all items."""
    count = len(fitted.centres) if isinstance(fitted, FittedKernels) else 0
    return 8 * count * (len(pairs.users) + len(pairs.items))


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
    tolerance: float = 0.0,
    strength: float | None = None,
    engine: Engine | None = None,
    memory: str | float = "4GB",
    seed: int | torch.Generator = 0,
    **options: Any,
) -> BalanceResult:
    """Weights on the rows of a log in shards under which every function averages to its mean over all pairs.

    `pairs`: the features of all users and items, in the order of their codes. `functions`: by default 50 kernel
    functions; rules that look at errors do not apply, those that look at rows look at some of them (`some_pairs`).
    `engine`: who works on the shards, by default threads.
    `tolerance`, `strength` and `options` (`accuracy`, `max_passes`) as in `FittedFunctions.balance`.
    The weights of the result are a `ShardColumn`: a file beside each shard, and `numpy.asarray` of it where they fit.
    """
    shape = len(pairs.users), len(pairs.items)
    if shape != shards.shape:
        raise DataError(f"the features are for {shape[0]} x {shape[1]} pairs, the log for {shards.shape}.")
    recipe, budget = functions or KernelFunctions(), as_bytes(memory)
    select = getattr(recipe, "select", "")
    if select.startswith("adaptive"):
        raise ConfigError(
            f'`select` must be "spectral", "witness", "random" or "worst_case" for a log in shards, got "{select}".'
        )
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)

    def fitted_tables() -> ShardFunctions:
        observed = some_pairs(shards, pairs, generator) if select in LOOK_AT_ROWS else None
        with one_thread():  # blocks of a few rows
            return ShardFunctions.of(recipe.fit(pairs, observed, generator=generator), pairs, budget)

    with (engine or Local()).over(shards, fitted_tables) as (each, source):
        fitted = source.fitted
        rows = ShardedRows(shards.n_rows, len(fitted.targets), each, lambda name: ShardColumn(shards, name))
        return fitted.balance(rows, tolerance, strength, **options)


def some_pairs(shards: Shards, pairs: Pairs, generator: torch.Generator) -> ObservedPairs:
    """The rows of a log in shards, or a draw of as many as `witness` looks at in memory."""
    rows = torch.arange(shards.n_rows)
    if shards.n_rows > WITNESS_ROWS:
        rows = torch.randint(shards.n_rows, (WITNESS_ROWS,), generator=generator)
    codes = [shards.take(name, rows.numpy()).astype(np.int64) for name in ("users", "items")]
    return pairs.at(*(torch.from_numpy(code).to(pairs.users.device) for code in codes))
