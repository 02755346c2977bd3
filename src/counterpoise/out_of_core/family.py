"""The exponential family over shards: each adds up its own rows, and what travels is J to J^2 numbers a shard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.exponential_family import (
    FamilyPoint,
    InMemoryFamily,
    joined,
    mean_and_deviation,
    moments,
    normalised,
    second_moments,
)
from counterpoise.balance.exponential_family import tilted_sums as sums_of_rows
from counterpoise.balance.population import Rows, ShardedRows, matrix_rows
from counterpoise.out_of_core.shards import Shard

SAMPLE = 2**18  # rows that are solved first, in memory; more would take longer and save no pass


class Source(Protocol):
    """What a worker has: the functions, for the rows of any shard."""

    def rows(self, shard: Shard) -> Rows:
        """The functions at the rows of a shard."""


@dataclass(frozen=True)
class ShardedFamily:
    """The rows in shards, and what their functions should average to. Base weights are uniform, there is no cap."""

    rows: ShardedRows
    targets: Tensor
    log_base: ClassVar[None] = None
    max_weight: ClassVar[None] = None
    line_passes: ClassVar[int] = 1

    @property
    def n_rows(self) -> int:
        """How many rows in all shards."""
        return self.rows.n_rows

    @property
    def n_functions(self) -> int:
        """How many functions."""
        return self.rows.n_functions

    @property
    def log_weight(self) -> float:
        """log q = -log n."""
        return -math.log(self.n_rows)

    def at(self, dual: Tensor) -> ShardedPoint:
        """One pass over all shards; no score is kept."""
        parts = self.rows.each(_tilted_sums, dual, self.log_weight)
        sums = joined(*zip(*parts, strict=True))
        return ShardedPoint(self, dual, *normalised(dual, self.targets, *sums), torch.empty(0))  # type: ignore[arg-type]

    def along(self, point: FamilyPoint, trial: FamilyPoint, length: float) -> float:
        """The mean of the change of scores, -(change of the dual)'h, so far along the way; a pass."""
        change = trial.dual - point.dual
        between = self.at(point.dual + length * change)
        return -float(change @ (between.imbalance + self.targets))

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under uniform weights."""

        def around(centre: Tensor | None) -> tuple[Tensor, Tensor]:
            parts = self.rows.each(_moments, 1 / self.n_rows, centre)
            first, second = torch.stack(parts).sum(0)
            return first, second

        return mean_and_deviation(around)

    def sample(self, size: int) -> InMemoryFamily:
        """So many rows, drawn with repetition, in memory; the draw does not depend on the shards."""
        drawn = torch.randint(self.n_rows, (min(size, SAMPLE),), generator=torch.Generator().manual_seed(0)).sort()[0]
        return InMemoryFamily(matrix_rows(torch.from_numpy(np.concatenate(self.rows.each(_some, drawn)))), self.targets)


class ShardedPoint(FamilyPoint):
    """The family at one dual vector, from which everything is computed again where the rows are."""

    @cached_property
    def weights(self) -> Any:
        """Written by every shard for its own rows; a pass."""
        name = f"weights-{uuid4().hex[:12]}"  # another run may weight the same shards meanwhile
        try:
            self._rows.each(_write_weights, self.dual, self._total, name)
        except BaseException:
            self._rows.column(name).remove()
            raise
        return self._rows.column(name)

    def _second_moments(
        self, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[float, Tensor, Tensor]:
        parts = self._rows.each(_second_moments, self.dual, self._total, centre, dtype, transform)
        first, second = (torch.stack(sums).sum(0) for sums in zip(*parts, strict=True))
        return 1.0, first, second

    @property
    def _rows(self) -> ShardedRows:
        return self.tilting.rows  # type: ignore[return-value]

    @property
    def _total(self) -> float:
        """log w_i = -l'h(x_i) - this."""
        return self.offset + math.log(self._rows.n_rows)


def _tilted_sums(source: Source, shard: Shard, dual: Tensor, log_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    top, mass, total = sums_of_rows(source.rows(shard), dual, lambda part: log_weight)
    return top.cpu(), mass.cpu(), total.cpu()


def _moments(source: Source, shard: Shard, weight: float, centre: Tensor | None) -> Tensor:
    rows = source.rows(shard)
    each = torch.full((shard.n_rows,), weight, dtype=torch.float64, device=rows.device)
    return torch.stack(moments(rows, lambda part: each[part], centre, weight)).cpu()


def _second_moments(
    source: Source,
    shard: Shard,
    dual: Tensor,
    total: float,
    centre: Tensor | None,
    dtype: torch.dtype,
    transform: Tensor | None,
) -> tuple[Tensor, Tensor]:
    rows = source.rows(shard)
    negative = -dual.to(rows.device)
    first, second = second_moments(
        rows, lambda _, values: weights_at(values, negative, total), centre, dtype, transform
    )
    return first.cpu(), second.cpu()


def _write_weights(source: Source, shard: Shard, dual: Tensor, total: float, name: str) -> None:
    rows = source.rows(shard)
    negative = -dual.to(rows.device)
    parts = [weights_at(values, negative, total).cpu() for _, values in rows.blocks()]
    shard.write(name, torch.cat(parts).numpy())


def _some(source: Source, shard: Shard, drawn: Tensor) -> NDArray[np.float64]:
    """The values of those of the rows drawn, in order, that lie in this shard; an array, which travels as it is."""
    rows = source.rows(shard)
    ends = torch.tensor([shard.first, shard.first + shard.n_rows])
    first, last = torch.searchsorted(drawn, ends).tolist()
    return rows.take((drawn[first:last] - shard.first).to(rows.device)).double().cpu().numpy()


def weights_at(values: Tensor, negative: Tensor, total: float) -> Tensor:
    """exp(-l'h(x_i) - total), from the negative of l."""
    return (values @ negative).sub_(total).exp_()
