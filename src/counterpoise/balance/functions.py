"""What is balanced: moments of the features, or kernel functions and the rules that choose them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Protocol, get_args

import torch
from torch import Tensor

from counterpoise.balance.fitted_functions import (
    FittedCustom,
    FittedFunctions,
    FittedKernels,
    FittedPowers,
    standard_scores,
)
from counterpoise.balance.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.balance.population import Pairs, Points, Population, Sample, kernel_rows, matrix_rows
from counterpoise.balance.selection import (
    drawn_rows,
    greedy_worst_case,
    largest,
    ridge_coefficients,
    spectral_basis,
    worst_function,
    worth,
)
from counterpoise.config import Configurable, Select
from counterpoise.errors import ConfigError, DataError, check_choice, check_number

FEW = 2**10  # points, observed or of the population, whose kernel values are all computed at once
GRAM_PAIRS = 2**14  # pairs from which the Gram of kernels that do not factorise is taken
GREEDY_ROWS = 2**17  # observed rows among which witnesses are sought
LOOK_AT_ROWS = ("adaptive", "adaptive_spectral", "worst_case_top", "greedy")  # rules that choose by the observed rows


class Functions(Protocol):
    """A recipe for balancing functions."""

    @property
    def adaptive(self) -> bool:
        """Whether the choice depends on errors or weights, so that it is worth making again when those change."""

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
        mean = population.column_mean(lambda x, part: x)
        deviation = population.column_mean(lambda x, part: (x - mean[part]).square_()).sqrt()
        deviation = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)

        def raised(power: int, around: float | Tensor = 0.0) -> Callable[[Tensor, slice], Tensor]:
            middle = torch.as_tensor(around, dtype=torch.float64, device=mean.device).expand(columns)
            return lambda x, part: standard_scores(x, mean[part], deviation[part]) ** power - middle[part]

        targets, spread = [], []
        for power in range(1, order + 1):
            targets.append(population.column_mean(raised(power)))
            centred = raised(power, targets[-1])
            spread.append(population.column_mean(lambda x, part, h=centred: h(x, part).square_()).sqrt())  # type: ignore[misc]
        names = [f"x{column}" for column in range(columns)]
        names += [f"x{column}^{power}" for power in range(2, order + 1) for column in range(columns)]
        means, scale = torch.cat(targets), torch.cat(spread)
        return FittedPowers(targets=means, scale=scale, names=names, mean=mean, deviation=deviation, order=order)


@dataclasses.dataclass
class CustomFunctions(Configurable):
    """Your own functions: `function` takes features (rows, columns) as a tensor and gives (rows, functions)."""

    function: Callable[[Tensor], Tensor]
    adaptive: ClassVar[bool] = False

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
        names = [f"h{j}" for j in range(len(targets))]
        return FittedCustom(targets=targets, scale=spread, names=names, function=self.function)


@dataclasses.dataclass
class KernelFunctions(Configurable):
    """`n` functions made of kernels at `candidates` rows drawn from the population, chosen by `select`.

    "random": kernels at n of the candidates (RKB).
    "spectral": the n leading eigenfunctions of the kernel over the population, orthonormal there: whatever the error
    is, they carry the most of it. The default.
    When not all of them can be balanced, the leading ones are given up last: one standard deviation of eigenfunction j
    is worth sqrt(s_j / s_0) of the leading one's `strength`, s the eigenvalues of the kernels' Gram matrix.
    "adaptive_spectral": of these eigenfunctions, the n with the largest coefficients of the error.
    "adaptive": the n kernels with the largest |alpha| in the ridge regression of the error (AKB as printed).
    "worst_case": all candidates, in the quadratic problem that minimises the bias of the worst function (WKB);
    n counts only for the default of `candidates`, and the problem has no tolerance.
    "worst_case_top": the n kernels with the largest |alpha| of the worst function (WKB as printed).
    "greedy": the worst functions in turn, each under the weights that balance those before it; n at most, fewer where
    a tenth of the imbalance that a random sample of the population has is left sooner (see `greedy`).
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
        if self.select == "adaptive":
            assert observed is not None
            assert errors is not None
            return self._adaptive(kernel, centres, population, observed, errors, weights)
        between = kernel(centres.double(), centres.double())
        mean = population.kernel_mean(kernel, centres)
        gram = _gram(kernel, centres, population, mean, generator)
        if self.select in ("spectral", "adaptive_spectral"):
            return self._spectral(kernel, centres, gram, mean, observed, errors, weights)
        if self.select == "greedy":
            assert observed is not None
            return self._witness(kernel, centres, gram, mean, observed, weights, generator)
        norm = gram + self.ridge * gram.diagonal().mean() * between
        if self.select == "worst_case":
            return _kernels(kernel, centres, population, norm)
        assert observed is not None
        alpha = worst_function(kernel_rows(kernel, centres, observed), mean, norm, weights)
        centres = centres[largest(alpha, self.n)]
        return _kernels(kernel, centres, population)

    @property
    def adaptive(self) -> bool:
        """Whether the rule looks at errors or weights."""
        return self.select in ("adaptive", "adaptive_spectral", "worst_case_top")

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
        if self.select.startswith("adaptive") and errors is None:
            raise ConfigError(f'`errors` must be given for select="{self.select}". Or use "spectral".')
        if self.select in LOOK_AT_ROWS and observed is None:
            raise ConfigError(f'`observed` must be given for select="{self.select}". Or use "spectral".')

    def _adaptive(
        self,
        kernel: Kernel,
        centres: Tensor,
        population: Population,
        observed: Points,
        errors: Tensor,
        weights: Tensor | None,
    ) -> FittedFunctions:
        if (
            isinstance(population, Sample)
            and population.weights is None
            and observed.n_rows <= FEW >= population.n_rows
        ):
            points = [centres, observed.features(slice(None)), population.matrix]
            return self._adaptive_at_once(kernel, points, errors, weights)
        between, rows = kernel(centres.double(), centres.double()), kernel_rows(kernel, centres, observed)
        centres = centres[largest(ridge_coefficients(rows, errors, between, self.ridge, weights), self.n)]
        return _kernels(kernel, centres, population)

    def _adaptive_at_once(
        self, kernel: Kernel, points: list[Tensor], errors: Tensor, weights: Tensor | None
    ) -> FittedFunctions:
        """The same for few points, as in a batch: all values that are asked for come from one block.

        `points`: the centres, those observed, and a population in which each counts the same.
        """
        centres, sizes = points[0], [len(part) for part in points]
        block = kernel(torch.cat(points).double(), centres.double())
        between, known, _ = torch.split_with_sizes(block, sizes)
        chosen = largest(ridge_coefficients(matrix_rows(known), errors, between, self.ridge, weights), self.n)
        _, known, over = torch.split_with_sizes(block.index_select(1, chosen), sizes)
        scale, mean = torch.std_mean(over, 0, correction=0)
        return FittedKernels.plain(kernel, centres.index_select(0, chosen), mean, scale, known=known)

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
        mixing, values = spectral_basis(gram, mean)
        worths = (values / values[0]).sqrt()
        if self.select == "adaptive_spectral":
            assert observed is not None
            assert errors is not None
            mixing = mixing[:, : 4 * self.n + 20]
            rows = kernel_rows(kernel, centres, observed, mixing)
            norm = mixing.T @ kernel(centres.double(), centres.double()) @ mixing  # rough functions cost more
            alpha = ridge_coefficients(rows, errors, norm, self.ridge, weights)
            chosen = largest(alpha, self.n)
            mixing, worths = mixing[:, chosen], worths[chosen]
        mixing, worths = mixing[:, : self.n].contiguous(), worths[: self.n]
        return FittedKernels.mixtures("eigenfunction", kernel, centres, gram, mean, mixing, worths)

    def _witness(
        self,
        kernel: Kernel,
        centres: Tensor,
        gram: Tensor,
        mean: Tensor,
        observed: Points,
        weights: Tensor | None,
        generator: torch.Generator,
    ) -> FittedFunctions:
        rows = kernel_rows(kernel, centres, observed)
        if rows.n_rows > GREEDY_ROWS:
            rows, weights = rows.at(drawn_rows(rows, weights, GREEDY_ROWS, generator)), None
        mixing = greedy_worst_case(rows.kept(), mean, gram - torch.outer(mean, mean), self.n, weights)
        return FittedKernels.mixtures("greedy", kernel, centres, gram, mean, mixing, worth(mixing))


def _gram(kernel: Kernel, centres: Tensor, population: Population, mean: Tensor, generator: torch.Generator) -> Tensor:
    """The kernels' Gram over the population; over a draw of it where a kernel that does not factorise meets many pairs.

    The Gram says which functions to take and how to scale them. Their means, which are what is balanced, stay exact:
    a draw gives the covariance alone.
    """
    many = isinstance(population, Pairs) and len(population.users) * len(population.items) > GRAM_PAIRS
    if not many or isinstance(kernel, Gaussian):
        return population.kernel_gram(kernel, centres)
    drawn = Sample(population.draw(GRAM_PAIRS, generator))
    around = drawn.kernel_mean(kernel, centres)
    return drawn.kernel_gram(kernel, centres) - torch.outer(around, around) + torch.outer(mean, mean)


def _kernels(kernel: Kernel, centres: Tensor, population: Population, matrix: Tensor | None = None) -> FittedFunctions:
    """Kernels at centres, as they are."""
    mean, mean_square = population.kernel_moments(kernel, centres)
    return FittedKernels.plain(kernel, centres, mean, (mean_square - mean**2).clamp(min=0).sqrt(), matrix)
