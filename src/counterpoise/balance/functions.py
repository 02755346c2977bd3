"""Balancing functions: what is balanced, and the weights that balance it.

`Moments`, `CustomFunctions` and `KernelFunctions` are configurations; `fit` to a population gives `FittedFunctions`,
which hold the exact population means and balance observed points against them. The rules that choose kernels are in
`selection`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.exponential_family import FunctionRows, Rows, matrix_rows
from counterpoise.balance.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.balance.penalties import HINGE_STRENGTH, WORST_CASE_STRENGTH
from counterpoise.balance.population import Pairs, Points, Population, Sample, kernel_rows
from counterpoise.balance.selection import (
    adaptive,
    draw_rows,
    greedy_worst_case,
    spectral,
    worst_case_matrix,
    worst_case_variance,
)
from counterpoise.balance.solver import BalanceResult, ConstantFunctions, entropy_balance, worst_case_balance
from counterpoise.config import Configurable, Select, Units
from counterpoise.errors import ConfigError, DataError, check_choice, check_number

MAX_SINGLE_BLOCK_POINTS = 2**10  # observed or population points whose kernel values are all computed in one block
GRAM_SAMPLE_PAIRS = 2**14  # pairs drawn for the Gram of kernels that do not factorise
MAX_GREEDY_ROWS = 2**17  # observed rows that the greedy rule looks at; a draw of as many where there are more
RULES_BY_OBSERVED = ("adaptive", "greedy")  # rules of `KernelFunctions` that look at the observed rows
CUSTOM_WIDTH = 64  # values a row that a custom function is assumed to hold, for the size of blocks


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFunctions:
    """Functions with their population means: what the solver needs, and `values(x)` for rows that come later."""

    targets: Tensor  # (functions,) population means
    scale: Tensor  # (functions,) population standard deviations
    names: list[str]
    matrix: Tensor | None = None  # of the worst-case problem; None for the hinge
    worst_case_variance: float | None = None  # of the worst function's squared bias: what one random row has on average
    relative_strength: Tensor | None = None  # (functions,) at most 1: shares of `strength`, where functions differ
    known: Tensor | None = None  # (rows, functions) at the observed points they were fitted to, where those are few

    @property
    def sd(self) -> Tensor:
        """The unit of each function's imbalance: its standard deviation, or 1 where it is constant."""
        return torch.where(self.scale > 1e-12, self.scale, 1.0)

    def values(self, x: Tensor) -> Tensor:
        """Features (rows, columns) -> (rows, functions)."""
        raise NotImplementedError

    def rows(self, points: Points) -> Rows:
        """The functions at some points, computed when needed."""
        return Rows(points.n_rows, len(self.targets), points.device, lambda part: self.values(points.features(part)))

    def balance(
        self,
        points: Points | FunctionRows,
        tolerance: float = 0.0,
        strength: float | None = None,
        *,
        units: Units = "sd",
        **options: Any,
    ) -> BalanceResult:
        """Weights on `points`, or on these functions at rows elsewhere, under which functions average to their targets.

        `tolerance` (the paper's C) and `strength` (gamma) are in population standard deviations of each function, with
        `units="raw"` in its own units as in the paper; the default strength is 100 in either, or 10,000 for the
        worst-case problem, whose strength is that of a squared bias and the same in both units. Where functions have a
        `relative_strength`, `strength` is that of the leading one. `options` are those of `entropy_balance`.
        """
        check_penalty(tolerance, strength, units)
        rows, scale = points if isinstance(points, FunctionRows) else self.rows(points).kept(), self.sd.cpu()
        if self.matrix is not None:
            strength = WORST_CASE_STRENGTH if strength is None else strength
            return worst_case_balance(rows, self.targets, self.matrix, strength, scale=scale, **options)
        tolerances, strengths = (values.cpu() for values in self.penalties(tolerance, strength, units))
        try:
            return entropy_balance(rows, self.targets, tolerances, strengths, scale=scale, **options)
        except ConstantFunctions as error:
            raise ConstantFunctions(error.places, self.names) from None

    def penalties(
        self, tolerance: float = 0.0, strength: float | None = None, units: Units = "sd"
    ) -> tuple[Tensor, Tensor]:
        """(tolerance, strength) of every function in its own units, from those in `units`."""
        unit = self.sd if units == "sd" else torch.ones_like(self.sd)
        strength = HINGE_STRENGTH if strength is None else strength
        relative = strength if self.relative_strength is None else strength * self.relative_strength
        return tolerance * unit, relative / unit


def check_penalty(tolerance: Any, strength: Any, units: Any = "sd") -> None:
    """Raise `ConfigError` unless each is one number >= 0; the strength may be infinite or None."""
    check_choice("units", units, get_args(Units))
    for name, value in (("tolerance", tolerance), ("strength", strength)):
        if np.ndim(value):
            raise ConfigError(f"`{name}` must be one number, got shape {np.shape(value)}. It holds for every function.")
    check_number("tolerance", tolerance, at_least=0, advice="It is an absolute imbalance.")
    if strength is not None and strength != float("inf"):
        check_number("strength", strength, at_least=0, advice="Or inf, for exact balance.")


class Functions(Protocol):
    """A configuration of balancing functions."""

    @property
    def adaptive(self) -> bool:
        """Whether the choice depends on the errors, so that it is worth making again when those change."""

    def fit(
        self,
        population: Population,
        observed: Points | None = None,
        errors: Tensor | None = None,
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> FittedFunctions:
        """The functions for this population."""


@dataclasses.dataclass
class Moments(Configurable):
    """Every feature, standardised over the population, to the powers 1 .. `order` (MB in the paper)."""

    order: int = 1
    adaptive: ClassVar[bool] = False

    def fit(self, population: Population, *_: Any, **__: Any) -> FittedFunctions:
        """Means and standard deviations of the powers over the population."""
        check_number("order", self.order, at_least=1, integer=True)
        order, columns = int(self.order), population.n_columns
        sides = [_moments_of(sample, order) for sample in population.marginals()]
        mean, deviation, targets, scale = (torch.cat(values, -1) for values in zip(*sides, strict=True))
        names = [f"x{column}" for column in range(columns)]
        names += [f"x{column}^{power}" for power in range(2, order + 1) for column in range(columns)]
        return FittedMoments(
            targets=targets.flatten(), scale=scale.flatten(), names=names, mean=mean, deviation=deviation, order=order
        )


def _moments_of(sample: Sample, order: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mean, deviation) of every column x, and those of ((x - mean) / deviation)^m, (order, columns)."""
    width = sample.n_columns
    mean = sample.mean(lambda x: x, width)
    deviation = sample.mean(lambda x: (x - mean).square_(), width).sqrt()
    deviation = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)
    targets, spread = [], []
    for m in range(1, order + 1):
        targets.append(sample.mean(lambda x, m=m: ((x - mean) / deviation) ** m, width))  # type: ignore[misc]
        squares = sample.mean(lambda x, m=m: (((x - mean) / deviation) ** m - targets[-1]).square_(), width)  # type: ignore[misc]
        spread.append(squares.sqrt())
    return mean, deviation, torch.stack(targets), torch.stack(spread)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedMoments(FittedFunctions):
    """((x - mean) / deviation)^m for every column, m = 1 .. order."""

    mean: Tensor
    deviation: Tensor
    order: int

    def values(self, x: Tensor) -> Tensor:
        standard = (x - self.mean.to(x)) / self.deviation.to(x)
        return torch.cat([standard**power for power in range(1, self.order + 1)], 1)


@dataclasses.dataclass
class CustomFunctions(Configurable):
    """Your own functions: `function` takes features (rows, columns) as a tensor and gives (rows, functions)."""

    function: Callable[[Tensor], Tensor]
    adaptive: ClassVar[bool] = False

    def fit(self, population: Population, *_: Any, **__: Any) -> FittedFunctions:
        """Their means over the population, by enumeration in blocks."""
        targets = population.mean(self.function, CUSTOM_WIDTH)
        if targets.ndim != 1:
            raise DataError("`function` must give a matrix (rows, functions).")
        spread = population.mean(lambda x: (self.function(x) - targets).square_(), CUSTOM_WIDTH).sqrt()
        names = [f"h{j}" for j in range(len(targets))]
        return FittedCustom(targets=targets, scale=spread, names=names, function=self.function)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedCustom(FittedFunctions):
    """A caller's own functions."""

    function: Callable[[Tensor], Tensor]

    def values(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclasses.dataclass
class KernelFunctions(Configurable):
    """`n` functions made of kernels at `candidates` rows drawn from the population, chosen by the rule `select`.

    "random": kernels at n of the candidates (RKB).
    "spectral": the n leading eigenfunctions of the kernel over the population, orthonormal there: whatever the error
    is, they carry the most of it. The default. When not all of them can be balanced, the leading ones are relaxed
    last: the strength of eigenfunction j is sqrt(s_j / s_0) of the leading one's, s the eigenvalues of the kernels'
    Gram matrix.
    "adaptive": the n kernels with the largest |alpha| in the ridge regression of the error (AKB as printed).
    "worst_case": all candidates, in the quadratic problem that minimises the bias of the worst function (WKB);
    n counts only for the default of `candidates`, and the problem has no tolerance.
    "greedy": the worst functions in turn, each under the weights that balance those before it; n at most, fewer where
    a tenth of the imbalance that a random sample of the population has is left sooner (`selection.greedy_worst_case`).
    `ridge` is the penalty of the regression and of the worst function's norm, relative to the mean of the diagonal.
    """

    kernel: Kernel = dataclasses.field(default_factory=Gaussian)
    n: int = 50  # 10 to 100 change the AUC of `skb-ips` at strength 0.3 by 0.0001 (benchmarks/constants.py)
    select: Select = "spectral"
    candidates: int | None = None
    ridge: float = 0.1

    def fit(
        self,
        population: Population,
        observed: Points | None = None,
        errors: Tensor | None = None,
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> FittedFunctions:
        """Draw candidates, compute their exact population means, choose.

        "adaptive" needs `errors` at the `observed` points, where `weights` (default uniform) are those of the
        regression; "greedy" needs the observed points, where they are the weights to start from.
        """
        self._check(observed, errors)
        generator = generator or torch.Generator().manual_seed(0)
        kernel = self.kernel.with_bandwidth(population.draw(2 * BANDWIDTH_PAIRS, generator))
        centres = population.draw(self.n_candidates, generator)
        if self.select == "random":
            return FittedKernels.at_centres(kernel, centres[: self.n], population)
        if self.select == "adaptive":
            assert observed is not None
            assert errors is not None
            return self._adaptive(kernel, centres, population, observed, errors, weights)
        mean = population.kernel_mean(kernel, centres)
        gram = _gram(kernel, centres, population, mean, generator)
        if self.select == "worst_case":
            matrix = worst_case_matrix(gram, kernel(centres.double(), centres.double()), self.ridge)
            variance = worst_case_variance(gram - torch.outer(mean, mean), matrix)
            fitted = FittedKernels.at_centres(kernel, centres, population, matrix)
            return dataclasses.replace(fitted, worst_case_variance=variance)
        if self.select == "spectral":
            name, chosen = "eigenfunction", spectral(gram, mean, self.n)
        else:
            assert observed is not None
            rows = kernel_rows(kernel, centres, observed)
            if rows.n_rows > MAX_GREEDY_ROWS:
                rows, weights = rows.at(draw_rows(rows, weights, MAX_GREEDY_ROWS, generator)), None
            covariance = gram - torch.outer(mean, mean)
            name, chosen = "greedy", greedy_worst_case(rows.kept(), mean, covariance, self.n, weights)
        mixing, relative = chosen
        targets = mean @ mixing
        return FittedKernels(
            targets=targets,
            scale=((mixing * (gram @ mixing)).sum(0) - targets**2).clamp(min=0).sqrt(),
            names=[f"{name} {j}" for j in range(mixing.shape[1])],
            relative_strength=relative,
            kernel=kernel,
            centres=centres,
            mixing=mixing,
        )

    @property
    def adaptive(self) -> bool:
        return self.select == "adaptive"

    @property
    def n_candidates(self) -> int:
        """M: by default four for each function, at least 300; 200 where all of them are balanced ("worst_case")."""
        least = 200 if self.select == "worst_case" else 300
        return max(least, 4 * self.n) if self.candidates is None else self.candidates

    def _check(self, observed: Points | None, errors: Tensor | None) -> None:
        check_number("n", self.n, at_least=1, integer=True)
        check_number("candidates", self.n_candidates, at_least=self.n, integer=True, advice="It must be at least `n`.")
        check_number("ridge", self.ridge, above=0)
        check_choice("select", self.select, get_args(Select))
        if self.adaptive and errors is None:
            raise ConfigError(f'`errors` must be given for select="{self.select}". Or use "spectral".')
        if self.select in RULES_BY_OBSERVED and observed is None:
            raise ConfigError(f'`observed` must be given for select="{self.select}". Or use "spectral".')

    def _adaptive(
        self, kernel: Kernel, centres: Tensor, population: Population, observed: Points, errors: Tensor, weights: Any
    ) -> FittedFunctions:
        """Kernels chosen by the error; for few points, as in a batch, all kernel values come from one block."""
        if (
            isinstance(population, Sample)
            and population.weights is None
            and max(observed.n_rows, population.n_rows) <= MAX_SINGLE_BLOCK_POINTS
        ):
            points = [centres, observed.features(slice(None)), population.matrix]
            sizes = [len(part) for part in points]
            block = kernel(torch.cat(points).double(), centres.double())
            between, known, _ = torch.split_with_sizes(block, sizes)
            chosen = adaptive(matrix_rows(known), errors, between, self.ridge, self.n, weights)
            _, known, over = torch.split_with_sizes(block.index_select(1, chosen), sizes)
            scale, mean = torch.std_mean(over, 0, correction=0)
            return FittedKernels.plain(kernel, centres.index_select(0, chosen), mean, scale, known=known)
        between, rows = kernel(centres.double(), centres.double()), kernel_rows(kernel, centres, observed)
        chosen = adaptive(rows, errors, between, self.ridge, self.n, weights)
        return FittedKernels.at_centres(kernel, centres[chosen], population)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedKernels(FittedFunctions):
    """Kernels at centres, or the mixtures k(x)' mixing of them."""

    kernel: Kernel
    centres: Tensor  # (candidates, columns)
    mixing: Tensor | None = None  # (candidates, functions)

    @classmethod
    def plain(cls, kernel: Kernel, centres: Tensor, mean: Tensor, scale: Tensor, **others: Any) -> FittedKernels:
        """The kernels themselves, from their population means and standard deviations."""
        names = [f"kernel {j}" for j in range(len(centres))]
        return cls(targets=mean, scale=scale, names=names, kernel=kernel, centres=centres, **others)

    @classmethod
    def at_centres(
        cls, kernel: Kernel, centres: Tensor, population: Population, matrix: Tensor | None = None
    ) -> FittedKernels:
        """The kernels themselves, with their moments over the population."""
        return cls.plain(kernel, centres, *population.kernel_moments(kernel, centres), matrix=matrix)

    def values(self, x: Tensor) -> Tensor:
        values = self.kernel(x.to(self.centres), self.centres)
        return values if self.mixing is None else values @ self.mixing.to(values)

    def rows(self, points: Points) -> Rows:
        """The kernel functions at points; of pairs, with a Gaussian kernel, from two tables and a gather."""
        return kernel_rows(self.kernel, self.centres, points, self.mixing)


def _gram(kernel: Kernel, centres: Tensor, population: Population, mean: Tensor, generator: torch.Generator) -> Tensor:
    """The kernels' Gram over the population; over a draw of it where a kernel that does not factorise meets many pairs.

    The Gram decides which functions to take and how to scale them. Their means, which are what is balanced, stay exact:
    a draw gives the covariance alone.
    """
    many = isinstance(population, Pairs) and len(population.users) * len(population.items) > GRAM_SAMPLE_PAIRS
    if not many or isinstance(kernel, Gaussian):
        return population.kernel_gram(kernel, centres)
    drawn = Sample(population.draw(GRAM_SAMPLE_PAIRS, generator))
    around = drawn.kernel_mean(kernel, centres)
    return drawn.kernel_gram(kernel, centres) - torch.outer(around, around) + torch.outer(mean, mean)
