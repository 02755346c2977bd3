"""What is balanced: moments of the features, or kernel functions and the rules that choose them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.parts import Part
from counterpoise.population import Points, Population, kernel_rows
from counterpoise.rows import Rows
from counterpoise.selection import largest, ridge_coefficients, spectral_basis, worst_function

Select = Literal["random", "worst_case", "worst_case_top", "adaptive", "spectral", "adaptive_spectral"]


@dataclass(frozen=True, eq=False)
class FittedFunctions:
    """Functions with their population means: what the solver needs, and `values(x)` for rows that come later."""

    values: Callable[[Tensor], Tensor]  # features (rows, columns) -> (rows, functions)
    rows: Callable[[Points], Rows]
    targets: Tensor  # (functions,) population means
    scale: Tensor  # (functions,) population standard deviations
    names: list[str]
    matrix: Tensor | None = None  # of the worst-case problem; None for the hinge


class Functions(Protocol):
    """A recipe for balancing functions."""

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
class Moments(Part):
    """Every feature, standardised over the population, to the powers 1 .. `order` (MB in the paper)."""

    order: int = 1

    def fit(
        self,
        population: Population,
        observed: Points | None = None,
        errors: Tensor | None = None,
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> FittedFunctions:
        """Means and standard deviations of the powers over the population."""
        check_number("order", self.order, at_least=1, integer=True)
        order, columns = int(self.order), population.n_columns
        mean = population.mean(lambda x: x, columns)
        deviation = population.mean(lambda x: (x - mean).square_(), columns).sqrt()
        deviation = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)

        def powers(x: Tensor) -> Tensor:
            standard = (x - mean.to(x)) / deviation.to(x)
            return torch.cat([standard**power for power in range(1, order + 1)], 1)

        targets = population.mean(powers, order * columns)
        spread = population.mean(lambda x: (powers(x) - targets).square_(), order * columns).sqrt()
        names = [
            f"x{column}^{power}" if power > 1 else f"x{column}"
            for power in range(1, order + 1)
            for column in range(columns)
        ]
        return _from_values(powers, targets, spread, names)


@dataclasses.dataclass
class GivenFunctions(Part):
    """Your own functions: `function` takes features (rows, columns) as a tensor and gives (rows, functions)."""

    function: Callable[[Tensor], Tensor]

    def fit(
        self,
        population: Population,
        observed: Points | None = None,
        errors: Tensor | None = None,
        weights: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> FittedFunctions:
        """Their means over the population, by enumeration in blocks."""
        targets = population.mean(self.function, 64)
        if targets.ndim != 1:
            raise DataError("`function` must give a matrix (rows, functions).")
        spread = population.mean(lambda x: (self.function(x) - targets).square_(), 64).sqrt()
        return _from_values(self.function, targets, spread, [f"h{j}" for j in range(len(targets))])


@dataclasses.dataclass
class KernelFunctions(Part):
    """`n` functions made of kernels at `candidates` rows drawn from the population, chosen by `select`.

    "random": kernels at n of the candidates (RKB).
    "spectral": the n leading eigenfunctions of the kernel over the population, orthonormal there: whatever the error
    is, they carry the most of it. The default.
    "adaptive_spectral": of these eigenfunctions, the n with the largest coefficients of the error.
    "adaptive": the n kernels with the largest |alpha| in the ridge regression of the error (AKB as printed).
    "worst_case": all candidates, in the quadratic problem that minimises the bias of the worst function (WKB).
    "worst_case_top": the n kernels with the largest |alpha| of the worst function (WKB as printed).
    `ridge` is the penalty of the regression and of the worst function's norm, relative to the mean of the diagonal.
    """

    kernel: Kernel = dataclasses.field(default_factory=Gaussian)
    n: int = 50
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

        The adaptive rules need `errors` at the observed points; `weights` (default uniform) are those of the
        regression, or those whose worst function is sought.
        """
        self._check(observed, errors)
        generator = generator or torch.Generator().manual_seed(0)
        kernel = self.kernel.with_bandwidth(population.draw(2 * BANDWIDTH_PAIRS, generator))
        centres = population.draw(self.n_candidates, generator)
        if self.select == "random":
            return _kernels(kernel, centres[: self.n], population)
        gram, mean = population.kernel_gram(kernel, centres), population.kernel_mean(kernel, centres)
        if self.select in ("spectral", "adaptive_spectral"):
            return self._spectral(kernel, centres, gram, mean, observed, errors, weights)
        between = kernel(centres.double(), centres.double())
        norm = gram + self.ridge * gram.diagonal().mean() * between
        if self.select == "worst_case":
            return _kernels(kernel, centres, population, gram, mean, norm)
        assert observed is not None
        rows = kernel_rows(kernel, centres, observed)
        if self.select == "adaptive":
            assert errors is not None
            alpha = ridge_coefficients(rows, errors, between, self.ridge, weights)
        else:
            alpha = worst_function(rows, mean, norm, weights)
        return _kernels(kernel, centres[largest(alpha, self.n)], population)

    @property
    def n_candidates(self) -> int:
        """M: by default four for each function, at least 300."""
        return max(300, 4 * self.n) if self.candidates is None else self.candidates

    def _check(self, observed: Points | None, errors: Tensor | None) -> None:
        check_number("n", self.n, at_least=1, integer=True)
        check_number("candidates", self.n_candidates, at_least=self.n, integer=True, advice="It must be at least `n`.")
        check_number("ridge", self.ridge, above=0)
        check_choice("select", self.select, get_args(Select))
        if self.select.startswith("adaptive") and errors is None:
            raise ConfigError(f'`errors` must be given for select="{self.select}". Or use "spectral".')
        if self.select in ("adaptive", "adaptive_spectral", "worst_case_top") and observed is None:
            raise ConfigError(f'`observed` must be given for select="{self.select}". Or use "spectral".')

    def _spectral(
        self,
        kernel: Kernel,
        centres: Tensor,
        gram: Tensor,
        mean: Tensor,
        observed: Points | None,
        errors: Tensor | None,
        weights: Tensor | None,
    ) -> FittedFunctions:
        mixing = spectral_basis(gram, mean)
        if self.select == "adaptive_spectral":
            assert observed is not None
            assert errors is not None
            mixing = mixing[:, : 4 * self.n + 20]
            rows = kernel_rows(kernel, centres, observed, mixing)
            norm = mixing.T @ kernel(centres.double(), centres.double()) @ mixing  # rough functions cost more
            alpha = ridge_coefficients(rows, errors, norm, self.ridge, weights)
            mixing = mixing[:, largest(alpha, self.n)]
        mixing = mixing[:, : self.n].contiguous()
        targets = mean @ mixing
        spread = ((mixing * (gram @ mixing)).sum(0) - targets**2).clamp(min=0).sqrt()
        return FittedFunctions(
            values=lambda x: kernel(x.to(centres), centres) @ mixing.to(centres),
            rows=lambda points: kernel_rows(kernel, centres, points, mixing),
            targets=targets,
            scale=spread,
            names=[f"eigenfunction {j}" for j in range(mixing.shape[1])],
        )


def _from_values(
    values: Callable[[Tensor], Tensor], targets: Tensor, scale: Tensor, names: list[str]
) -> FittedFunctions:
    """Functions given by their values at features."""

    def rows(points: Points) -> Rows:
        def take(part: slice | Tensor) -> Tensor:
            return values(points.features(part))

        return Rows(points.n_rows, len(targets), points.device, take)

    return FittedFunctions(values, rows, targets, scale, names)


def _kernels(
    kernel: Kernel,
    centres: Tensor,
    population: Population,
    gram: Tensor | None = None,
    mean: Tensor | None = None,
    matrix: Tensor | None = None,
) -> FittedFunctions:
    """Kernels at centres, as they are."""
    mean = population.kernel_mean(kernel, centres) if mean is None else mean
    gram = population.kernel_gram(kernel, centres) if gram is None else gram
    return FittedFunctions(
        values=lambda x: kernel(x.to(centres), centres),
        rows=lambda points: kernel_rows(kernel, centres, points),
        targets=mean,
        scale=(gram.diagonal() - mean**2).clamp(min=0).sqrt(),
        names=[f"kernel {j}" for j in range(len(centres))],
        matrix=matrix,
    )


def as_generator(seed: Any) -> torch.Generator:
    """A torch generator from a number, a numpy generator or None (0)."""
    if hasattr(seed, "integers"):
        seed = int(seed.integers(2**62))
    return torch.Generator().manual_seed(0 if seed is None else int(seed))
