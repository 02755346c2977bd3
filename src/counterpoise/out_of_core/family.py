"""The exponential family over shards: each shard adds up its own rows, and what travels is J to J^2 numbers a shard."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.exponential_family import (
    ExponentialFamily,
    FamilyPoint,
    FunctionRows,
    InMemoryFamily,
    Rows,
    joined,
    matrix_rows,
    mean_and_deviation,
    moments,
    normalised,
    second_moments,
    tilted_sums,
)
from counterpoise.errors import ConfigError
from counterpoise.out_of_core.shards import Shard, ShardColumn

MAX_SAMPLE_ROWS = 2**18  # rows that are solved first, in memory; more would take longer and save no pass


class Source(Protocol):
    """The functions at a worker, for the rows of any shard."""

    def rows(self, shard: Shard) -> Rows:
        """The functions at the rows of a shard."""


@dataclass(frozen=True)
class ShardedRows(FunctionRows):
    """Rows of J functions in shards that are never together in one place.

    `each(work, *arguments)` calls `work(source, shard, *arguments)` for every shard, wherever it lies, and gives the
    results in the order of shards; `source.rows(shard)` there are its `Rows`. Sums over shards are sums over rows.
    """

    n_rows: int
    n_functions: int
    each: Callable[..., list[Any]]
    new_column: Callable[[], ShardColumn]  # for all shards to write
    device: ClassVar[torch.device] = torch.device("cpu")  # type: ignore[misc]  # of sums, wherever the shards are

    def family(self, targets: Tensor, log_base: Tensor | None, max_weight: float | None) -> ShardedFamily:
        """The family over all shards, with uniform base weights and no cap."""
        if log_base is not None or max_weight is not None:
            raise ConfigError(
                "`base_weights` and `max_weight` need all rows in one place; leave them out for a log in shards."
            )
        return ShardedFamily(self, targets)


@dataclass(frozen=True)
class ShardedFamily(ExponentialFamily):
    """The family over rows in shards, with uniform base weights and no cap."""

    rows: ShardedRows
    targets: Tensor
    line_passes: ClassVar[int] = 1
    float32_covariance: ClassVar[bool] = False  # in float32 the result would depend on the borders of shards

    def at(self, dual: Tensor) -> ShardedPoint:
        """One pass over all shards; no score is kept."""
        sums = joined(self.rows.each(_tilted_sums, dual, -math.log(self.rows.n_rows)))
        return ShardedPoint(dual, *normalised(dual, self.targets, *sums), self.targets, self)

    def base_moments(self) -> tuple[Tensor, Tensor]:
        def around(centre: Tensor | None) -> tuple[Tensor, Tensor]:
            first, second = torch.stack(self.rows.each(_moments, 1 / self.rows.n_rows, centre)).sum(0)
            return first, second

        return mean_and_deviation(around)

    def sample(self, size: int) -> InMemoryFamily:
        """The family over `size` rows, drawn with repetition, in memory; the draw does not depend on the shards."""
        size, generator = min(size, MAX_SAMPLE_ROWS), torch.Generator().manual_seed(0)
        drawn = torch.randint(self.rows.n_rows, (size,), generator=generator).sort()[0]
        values = np.concatenate(self.rows.each(_values_at, drawn))
        return InMemoryFamily(matrix_rows(torch.from_numpy(values)), self.targets)


@dataclass(frozen=True)
class ShardedPoint(FamilyPoint):
    """The family at one dual vector; scores and weights are computed again where the rows are."""

    family: ShardedFamily

    @cached_property
    def final_weights(self) -> ShardColumn:
        """Written by every shard for its own rows; a pass."""
        rows = self.family.rows
        column = rows.new_column()
        try:
            rows.each(_write_weights, self.dual, self._total, column.name)
        except BaseException:
            column.remove()
            raise
        return column

    def slope_towards(self, trial: Self, length: float) -> float:
        """The mean change of scores, -(change of the dual)'h, so far along the way; a pass."""
        change = trial.dual - self.dual
        between = self.family.at(self.dual + length * change)
        return -float(change @ (between.imbalance + self.targets))

    def _second_moments(
        self, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[float, Tensor, Tensor]:
        parts = self.family.rows.each(_second_moments, self.dual, self._total, centre, dtype, transform)
        first, second = (torch.stack(sums).sum(0) for sums in zip(*parts, strict=True))
        return 1.0, first, second

    @property
    def _total(self) -> float:
        """log w_i = -l'h(x_i) - this."""
        return self.offset + math.log(self.family.rows.n_rows)


def _tilted_sums(source: Source, shard: Shard, dual: Tensor, log_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    top, mass, total = tilted_sums(source.rows(shard), dual, log_weight)
    return top.cpu(), mass.cpu(), total.cpu()


def _moments(source: Source, shard: Shard, weight: float, centre: Tensor | None) -> Tensor:
    return torch.stack(moments(source.rows(shard), weight, centre)).cpu()


def _second_moments(
    source: Source, shard: Shard, dual: Tensor, total: float, centre: Tensor | None, dtype: torch.dtype, transform: Any
) -> tuple[Tensor, Tensor]:
    first, second = second_moments(
        source.rows(shard), lambda _, values: _weights(dual, total, values), centre, dtype, transform
    )
    return first.cpu(), second.cpu()


def _write_weights(source: Source, shard: Shard, dual: Tensor, total: float, name: str) -> None:
    parts = [_weights(dual, total, values).cpu() for _, values in source.rows(shard).blocks()]
    shard.write(name, torch.cat(parts).numpy())


def _values_at(source: Source, shard: Shard, drawn: Tensor) -> NDArray[np.float64]:
    """The values of those of the (sorted) rows drawn that lie in this shard; Ray sends an array without a copy."""
    rows = source.rows(shard)
    ends = torch.tensor([shard.first, shard.first + shard.n_rows])
    first, last = torch.searchsorted(drawn, ends).tolist()
    return rows.take((drawn[first:last] - shard.first).to(rows.device)).double().cpu().numpy()


def _weights(dual: Tensor, total: float, values: Tensor) -> Tensor:
    """exp(-l'h(x_i) - total)."""
    return (values @ -dual.to(values.device)).sub_(total).exp_()
