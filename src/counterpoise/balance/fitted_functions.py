"""Balancing functions with their population means, and the weights that balance them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.kernels import Kernel
from counterpoise.balance.population import Points, Rows, ShardedRows, kernel_rows
from counterpoise.balance.solver import BalanceResult, entropy_balance, worst_case_balance
from counterpoise.errors import ConfigError, check_number

HINGE_STRENGTH = 100.0  # a function is given up when a standard deviation of it costs more than this in divergence
WORST_CASE_STRENGTH = 1e4


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFunctions:
    """Functions with their population means: what the solver needs, and `values(x)` for rows that come later."""

    targets: Tensor  # (functions,) population means
    scale: Tensor  # (functions,) population standard deviations
    names: list[str]
    matrix: Tensor | None = None  # of the worst-case problem; None for the hinge
    worth: Tensor | None = None  # (functions,) of a standard deviation of each, where they differ; at most 1
    known: Tensor | None = None  # (rows, functions) at the observed points they were fitted to, where those are few

    @property
    def units(self) -> Tensor:
        """What the imbalance of each is measured in: its standard deviation, or 1 where it is constant."""
        return torch.where(self.scale > 1e-12, self.scale, 1.0)

    def values(self, x: Tensor) -> Tensor:
        """Features (rows, columns) -> (rows, functions)."""
        raise NotImplementedError

    def rows(self, points: Points) -> Rows:
        """The functions at some points, computed when needed."""
        return Rows(points.n_rows, len(self.targets), points.device, lambda part: self.values(points.features(part)))

    def balance(
        self, points: Points | ShardedRows, tolerance: float = 0.0, strength: float | None = None, **options: Any
    ) -> BalanceResult:
        """Weights on `points`, or on these functions in shards, under which every function averages to its target.

        `tolerance` and `strength` are in population standard deviations of each function; the default strength is
        100, or 10,000 for the worst-case problem. Where functions differ in `worth`, that is the price of the leading
        one, and each costs its share of it. `options` are those of `entropy_balance`.
        """
        check_prices(tolerance, strength)
        scale = self.units.cpu()
        rows = points if isinstance(points, ShardedRows) else self.rows(points).kept()
        if self.matrix is not None:
            price = WORST_CASE_STRENGTH if strength is None else strength
            return worst_case_balance(rows, self.targets, self.matrix, price, scale=scale, **options)
        allowed, prices = self.prices(tolerance, strength)
        return entropy_balance(rows, self.targets, allowed.cpu(), prices.cpu(), scale=scale, **options)

    def prices(self, tolerance: float = 0.0, strength: float | None = None) -> tuple[Tensor, Tensor]:
        """(tolerance, strength) of every function in its own units, from those in standard deviations."""
        scale = self.units
        price = HINGE_STRENGTH if strength is None else strength
        return tolerance * scale, (price if self.worth is None else price * self.worth) / scale


def check_prices(tolerance: Any, strength: Any) -> None:
    """Each is one number >= 0, the strength may be infinite or None: checked before it is rescaled."""
    for name, value in (("tolerance", tolerance), ("strength", strength)):
        if np.ndim(value):
            raise ConfigError(f"`{name}` must be one number, got shape {np.shape(value)}. It holds for every function.")
    check_number("tolerance", tolerance, at_least=0, advice="It is in standard deviations.")
    if strength is not None and strength != float("inf"):
        check_number("strength", strength, at_least=0, advice="Or inf, for exact balance.")


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedPowers(FittedFunctions):
    """((x - mean) / deviation)^m for every column, m = 1 .. order."""

    mean: Tensor
    deviation: Tensor
    order: int

    def values(self, x: Tensor) -> Tensor:
        """Powers side by side."""
        return powers(x, self.mean, self.deviation, self.order)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedCustom(FittedFunctions):
    """A caller's own functions."""

    function: Callable[[Tensor], Tensor]

    def values(self, x: Tensor) -> Tensor:
        """What the function says."""
        return self.function(x)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedKernels(FittedFunctions):
    """Kernels at centres, or the mixtures k(x)' mixing of them."""

    kernel: Kernel
    centres: Tensor  # (candidates, columns)
    mixing: Tensor | None = None  # (candidates, functions)

    @classmethod
    def plain(
        cls,
        kernel: Kernel,
        centres: Tensor,
        mean: Tensor,
        scale: Tensor,
        matrix: Tensor | None = None,
        known: Tensor | None = None,
    ) -> FittedKernels:
        """Kernels as they are, from their means and standard deviations; `known`: values at the observed points."""
        names = [f"kernel {j}" for j in range(len(centres))]
        return cls(targets=mean, scale=scale, names=names, matrix=matrix, known=known, kernel=kernel, centres=centres)

    @classmethod
    def mixtures(
        cls, name: str, kernel: Kernel, centres: Tensor, gram: Tensor, mean: Tensor, mixing: Tensor, worth: Tensor
    ) -> FittedKernels:
        """Mixtures, from the population means of the kernels and of their products."""
        targets = mean @ mixing
        spread = ((mixing * (gram @ mixing)).sum(0) - targets**2).clamp(min=0).sqrt()
        names = [f"{name} {j}" for j in range(mixing.shape[1])]
        return cls(
            targets=targets, scale=spread, names=names, worth=worth, kernel=kernel, centres=centres, mixing=mixing
        )

    def values(self, x: Tensor) -> Tensor:
        """Kernel values, mixed."""
        values = self.kernel(x.to(self.centres), self.centres)
        return values if self.mixing is None else values @ self.mixing.to(values)

    def rows(self, points: Points) -> Rows:
        """By two tables and a gather, where the points are pairs and the kernel is Gaussian."""
        return kernel_rows(self.kernel, self.centres, points, self.mixing)


def powers(x: Tensor, mean: Tensor, deviation: Tensor, order: int) -> Tensor:
    """((x - mean) / deviation)^m, m = 1 .. order, side by side."""
    standard = standard_scores(x, mean, deviation)
    return torch.cat([standard**power for power in range(1, order + 1)], 1)


def standard_scores(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """(x - mean) / deviation, column by column."""
    return (x - mean.to(x)) / deviation.to(x)
