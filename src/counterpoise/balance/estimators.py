"""Estimators for two samples: weights on observed rows that make them resemble a population, no recommender needed.

`balance_samples` takes two tables to weights and a diagnosis. `KernelBalancer` and `MomentBalancer` are scikit-learn
estimators; `balance_frontier` balances again at several tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from math import comb
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from counterpoise.balance.covariate_balance import FeatureBalance, balance_table, known_mean_balance
from counterpoise.balance.diagnostics import Diagnosis, diagnose, effective_sample_size
from counterpoise.balance.functions import FittedFunctions, Functions, KernelFunctions, Moments, check_penalty
from counterpoise.balance.kernels import KERNELS
from counterpoise.balance.population import Sample, as_float64, as_matrix, as_weights, base_shares
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import KernelName, SelectForSamples, Units
from counterpoise.errors import ConfigError, DataError, RowError, check_choice, check_number

MAX_FEATURE = 1e150  # absolute value of a feature: larger squares overflow float64
MAX_LISTED = 10  # names of relaxed functions in a summary
FLOATS = [np.float64, np.float32]
TOLERANCES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of a frontier, in standard deviations


@dataclass(frozen=True, eq=False)
class Standardised:
    """Two samples on one scale: every column minus its population mean, over its population standard deviation."""

    observed: Sample
    population: Sample
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, observed: Tensor, population: Tensor, weights: Tensor | None = None) -> Standardised:
        """By the (weighted) moments of the population; a constant column becomes 0."""
        for table in (observed, population):
            large = (table.abs().amax(0) > MAX_FEATURE).nonzero()
            if len(large):
                column, advice = int(large[0]), "Divide it by its largest value."
                raise DataError(f"feature {column} (counted from 0) has values beyond {MAX_FEATURE:g}. {advice}")
        whole = Sample(population, weights)
        mean = whole.mean(lambda x: x, whole.n_columns)
        spread = whole.mean(lambda x: (x - mean).square_(), whole.n_columns).sqrt()
        spread = torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
        tables = [(matrix.double() - mean) / spread for matrix in (observed, population)]
        return cls(Sample(tables[0]), Sample(tables[1], weights), mean, spread)

    def choose(self, functions: Functions, base_weights: Any, seed: int) -> FittedFunctions:
        """The functions for this population, chosen under the weights that balancing starts from."""
        base, generator = base_shares(base_weights, self.observed.n_rows, self.observed.device), torch.Generator()
        return functions.fit(self.population, self.observed, None, base, generator.manual_seed(seed))


@dataclass(frozen=True, eq=False)
class BalanceReport:
    """Weights for the observed rows (sum 1) with their certificate and diagnosis."""

    weights: NDArray[np.float64]
    result: BalanceResult
    diagnosis: Diagnosis
    function_names: list[str]

    @property
    def relaxed(self) -> list[str]:
        """The names of the relaxed functions, which stay out of balance."""
        return [self.function_names[j] for j in np.flatnonzero(self.result.relaxed)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values, without the weights."""
        return {"solver": self.result.to_dict(), "relaxed": self.relaxed, "diagnosis": self.diagnosis.to_dict()}

    def summary(self) -> str:
        """A few lines of text."""
        before, after = (abs(v / self.result.scale) for v in (self.result.imbalance_before, self.result.imbalance))
        names = ", ".join(self.relaxed[:MAX_LISTED])
        more = f" and {len(self.relaxed) - MAX_LISTED} more" if len(self.relaxed) > MAX_LISTED else ""
        relaxed = f"Relaxed: {names}{more}." if self.relaxed else "No function was relaxed."
        lines = [
            f"{len(self.function_names)} functions balanced ({self.result.status} in {self.result.passes} passes, "
            f"duality gap {self.result.gap:.1e}): largest imbalance {before.max():.3f} SD before, "
            f"{after.max():.2e} SD after. {relaxed}",
            self.diagnosis.summary(),
        ]
        if self.diagnosis.grew:
            lines.append(
                "The largest imbalance of a feature ROSE: the sample is too small or too different for these "
                "functions. Balance fewer functions, or moments."
            )
        return "\n".join(lines)


def balance_samples(
    observed: Any,
    population: Any,
    functions: Functions | None = None,
    *,
    tolerance: float = 1e-3,
    strength: float | None = None,
    units: Units = "sd",
    base_weights: Any = None,
    population_weights: Any = None,
    max_weight: float | None = None,
    seed: int = 0,
    **options: Any,
) -> BalanceReport:
    """Weights on the rows of `observed` that make it resemble `population`; both are numeric frames or arrays.

    Frames are matched by column names. `functions` is what is balanced (default: 50 leading kernel functions);
    `tolerance` and `strength` are in population standard deviations of each function, with `units="raw"` in its own
    units, which are the paper's. `options`: `entropy_balance`.
    """
    names, columns = shared_columns(observed, population)
    tables = [numbers(name, table, columns) for name, table in (("observed", observed), ("population", population))]
    if tables[0].shape[1] != tables[1].shape[1]:
        widths = f"got {tables[0].shape[1]} and {tables[1].shape[1]} columns"
        raise DataError(f"`observed` and `population` must have the same features, {widths}.")
    weights = as_weights("population_weights", population_weights, len(tables[1]))
    scaled = Standardised.of(tables[0], tables[1], weights)
    fitted = scaled.choose(functions or KernelFunctions(), base_weights, seed)
    result = fitted.balance(
        scaled.observed,
        tolerance,
        strength,
        units=units,
        base_weights=base_weights,
        max_weight=max_weight,
        **options,
    )
    mass = result.weights.cpu().numpy()
    diagnosis = diagnose(
        scaled.observed,
        mass,
        scaled.population,
        base_weights=base_weights,
        balanced_at=getattr(fitted, "centres", None),
        table=balance_table(Sample(tables[0]), mass, Sample(tables[1], weights), names, base_weights),
    )
    return BalanceReport(mass, result, diagnosis, fitted.names)


def shared_columns(observed: Any, population: Any) -> tuple[list[str], list[Any] | None]:
    """(names of the features, columns to take): those of the observed frame, which the population must have too."""
    first, second = (_labels(name, table) for name, table in (("observed", observed), ("population", population)))
    if first is None and second is None:
        width = np.shape(observed)[1] if np.ndim(observed) == 2 else 0
        return [f"x{column}" for column in range(width)], None
    if first is None or second is None:
        named, bare = ("population", "observed") if first is None else ("observed", "population")
        raise DataError(f"`{named}` has column names and `{bare}` has none. Give two frames, or two arrays.")
    missing = [label for label in first if label not in second]
    if missing:
        listed = ", ".join(map(repr, missing))
        raise DataError(f"`population` has no column {listed}. Both samples must have the same features.")
    return [str(label) for label in first], first


def numbers(name: str, table: Any, columns: Sequence[Any] | None = None) -> Tensor:
    """A finite float matrix; an error names the column and the row of the first value that is none."""
    matrix = as_matrix(name, table[list(columns)] if columns is not None else table)
    if len(matrix) == 0:
        raise DataError(f"`{name}` must have at least one row, got none.")
    bad = ~matrix.isfinite()
    if bool(bad.any()):
        row, column = (int(index) for index in bad.nonzero()[0])
        label = str(columns[column]) if columns is not None else f"{name}[:, {column}]"
        value = float(matrix[row, column])
        raise RowError(label, row, f"expected a finite number in `{name}`, got {value}. Fill it in or drop the row.")
    return matrix


def _labels(name: str, table: Any) -> list[Any] | None:
    """The column labels of a frame, each of which must be there once; None for an array."""
    columns = getattr(table, "columns", None)
    if columns is None:
        return None
    labels = list(columns)
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise DataError(f"`{name}` has two columns {twice!r}. Rename one.")
    return labels


@dataclass(eq=False, repr=False, kw_only=True)
class _Balancer(BaseEstimator):  # type: ignore[misc]
    """Shared by both balancers: `fit` learns `weights_`, `result_` and what `predict_weights` needs."""

    tolerance: float = 0.0
    strength: float | None = None
    units: Units = "sd"
    max_weight: float | None = None
    accuracy: float = 1e-8
    max_passes: int = 200
    random_state: Any = None
    _takes_means: ClassVar[bool] = False  # whether `fit` takes means instead of a population

    def fit(
        self,
        X_observed: ArrayLike,
        X_population: ArrayLike | None = None,
        target_means: ArrayLike | None = None,
        *,
        base_weights: ArrayLike | None = None,
        population_weights: ArrayLike | None = None,
    ) -> Self:
        """Find weights on the rows of `X_observed` under which it resembles `X_population`.

        `target_means` takes the place of a population whose means only are known (`MomentBalancer`); a dict, a Series
        or a frame of them is matched by feature names.
        """
        if (X_population is None) == (target_means is None):
            raise DataError("give either `X_population` or `target_means`: what the observed rows should resemble.")
        if target_means is not None and population_weights is not None:
            raise DataError(
                "`population_weights` must be None where `target_means` are given: these are weighted already."
            )
        check_penalty(self.tolerance, self.strength, self.units)
        observed = self._numbers(X_observed, reset=True)
        if X_population is not None:
            population = self._numbers(X_population)
            weights = as_weights("population_weights", population_weights, len(population))
        elif self._takes_means:
            population, weights = observed, None  # for the scale alone
            target_means = aligned_means(target_means, getattr(self, "feature_names_in_", None))
        else:
            raise ConfigError(
                f"`target_means` must be None for {type(self).__name__}: kernels need the population itself. "
                "Give `X_population`, or use MomentBalancer."
            )
        scaled = Standardised.of(observed, population, weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fitted = scaled.choose(self._recipe(), base_weights, seed)
        if target_means is not None:
            fitted = known_moments(fitted, scaled, target_means, self.order)
        self.result_ = self._balance(fitted, scaled.observed, self.tolerance, base_weights)
        self.weights_: NDArray[np.float64] = self.result_.weights.numpy()
        self._mean, self._deviation, self._functions = scaled.mean, scaled.deviation, fitted
        self._samples = Sample(observed), Sample(population, weights), base_weights, target_means
        return self

    def predict_weights(self, X_new: ArrayLike) -> NDArray[np.float64]:
        """The weight w(x) = exp(-l'h(x) - offset) / n of new rows, on the scale of `weights_`.

        New rows have no base weights: theirs count as 1 / n, the uniform ones. After a fit with `base_weights` q (sum
        1), a fitted row has n q_i times what is predicted for its features.
        """
        check_is_fitted(self, "weights_")
        rows = (self._numbers(X_new).double() - self._mean) / self._deviation
        scores = self._functions.values(rows) @ torch.from_numpy(self.result_.dual) + self.result_.offset
        weights: NDArray[np.float64] = (torch.exp(-scores) / len(self.weights_)).numpy()
        return weights if self.max_weight is None else weights.clip(max=self.max_weight)

    def balance_table(self) -> list[FeatureBalance]:
        """Every feature before and after, against the population."""
        check_is_fitted(self, "weights_")
        observed, population, base, means = self._samples
        names = list(getattr(self, "feature_names_in_", [f"x{column}" for column in range(population.n_columns)]))
        if means is None:
            return balance_table(observed, self.weights_, population, names, base)
        before = np.ones(observed.n_rows) if base is None else np.asarray(base, dtype=np.float64)
        columns = zip(names, observed.matrix.numpy().T, np.ravel(means)[: len(names)], strict=True)
        return [known_mean_balance(name, values, before, self.weights_, float(mean)) for name, values, mean in columns]

    def _recipe(self) -> Functions:
        raise NotImplementedError

    def _balance(self, fitted: FittedFunctions, observed: Sample, tolerance: float, base_weights: Any) -> BalanceResult:
        options = {name: getattr(self, name) for name in ("units", "max_weight", "accuracy", "max_passes")}
        return fitted.balance(observed, tolerance, self.strength, base_weights=base_weights, **options)

    def _numbers(self, X: Any, reset: bool = False) -> torch.Tensor:
        return as_matrix("X", validate_data(self, X, reset=reset, dtype=FLOATS))


@dataclass(eq=False, repr=False)
class KernelBalancer(_Balancer):
    """Balances kernel functions: all smooth functions of the features, without naming any.

    `n_functions`, `select`, `candidates`, `ridge`: see `KernelFunctions`; without a recommender there is no error to
    adapt to, so `select` is "spectral", "greedy", "random" or "worst_case". "greedy" takes `n_functions` at most, and
    stops by itself. "worst_case" balances all `candidates` at once: it ignores `tolerance` and, but for the default of
    `candidates`, `n_functions`.
    `kernel` "gaussian" or "exponential" and its `bandwidth` act on features standardised over the population.
    `tolerance` (the paper's C): the imbalance allowed, in population standard deviations of each function. `strength`
    (gamma): the penalty of one standard deviation of imbalance; a function whose dual value would exceed it is relaxed
    (None: 100, or 10,000 for "worst_case"). With "spectral" that is the strength of the leading eigenfunction; those of
    the others fall with their eigenvalues, so that rough functions are relaxed first. `units="raw"`: both in units of
    the function itself instead, as in the paper; the strength of "worst_case" has no such units.
    """

    n_functions: int = 50
    select: SelectForSamples = "spectral"
    _: KW_ONLY
    kernel: KernelName = "gaussian"
    bandwidth: float | Literal["median"] = "median"
    candidates: int | None = None
    ridge: float = 0.1
    tolerance: float = 1e-3

    def _recipe(self) -> Functions:
        check_choice("kernel", self.kernel, KERNELS)
        kernel = KERNELS[self.kernel](self.bandwidth)
        return KernelFunctions(kernel, self.n_functions, self.select, self.candidates, self.ridge)


@dataclass(eq=False, repr=False)
class MomentBalancer(_Balancer):
    """Balances the moments of every feature up to `order`; entropy balancing as epidemiologists know it for order 1.

    `tolerance` and `strength` are in population standard deviations of each moment, with `units="raw"` in units of the
    moment of the standardised feature; an infinite strength asks for exact balance. `fit` also takes
    `target_means` (features,) for order 1, or (order, features) raw moments.
    """

    order: int = 1
    _: KW_ONLY
    strength: float | None = float("inf")
    _takes_means: ClassVar[bool] = True

    def _recipe(self) -> Functions:
        return Moments(self.order)


def known_moments(fitted: FittedFunctions, scaled: Standardised, raw: Any, order: int) -> FittedFunctions:
    """The same functions, with targets from known raw moments E[x^m], m = 1 .. order.

    E[((x - a) / b)^m] = sum_k binomial(m, k) E[x^k] (-a)^(m-k) / b^m.
    """
    columns, moments = len(scaled.mean), as_float64(raw, "target_means")
    if order == 1 and moments.ndim == 1:
        moments = moments[None]
    if moments.shape != (order, columns) or not np.isfinite(moments).all():
        raise DataError(
            f"`target_means` must hold {order * columns} finite numbers, one for each of the {columns} features"
            f"{f' in each of {order} rows, one for each power' if order > 1 else ''}, got shape {np.shape(raw)}."
        )
    shift, unit = scaled.mean.numpy(), scaled.deviation.numpy()
    powers = np.vstack([np.ones(columns), moments])
    targets = [
        sum(comb(m, k) * powers[k] * (-shift) ** (m - k) for k in range(m + 1)) / unit**m for m in range(1, order + 1)
    ]
    return replace(fitted, targets=torch.from_numpy(np.concatenate(targets)))


def aligned_means(means: Any, names: Any) -> Any:
    """Known means in the order of the features: a dict, a Series or a frame is matched by `names`, if there are any."""
    if isinstance(means, Mapping):
        given = dict(means)
    elif hasattr(means, "columns"):
        given = {label: np.asarray(means[label]) for label in means.columns}
    elif hasattr(means, "to_dict"):
        given = means.to_dict()
    else:
        return means
    wanted = list(range(len(given))) if names is None else list(names)
    missing = [label for label in wanted if label not in given]
    if missing:
        advice = (
            "Give `X_observed` as a frame, or the means as an array." if names is None else "Every feature needs one."
        )
        raise DataError(f"`target_means` has no value for {', '.join(map(repr, missing))}. {advice}")
    return np.stack([np.asarray(given[label]) for label in wanted], axis=-1)


@dataclass(frozen=True)
class FrontierPoint:
    """Effective sample size and imbalance (of the balanced functions, in standard deviations) at one tolerance."""

    tolerance: float
    rows: int
    effective_sample_size: float
    rms_imbalance: float
    max_imbalance: float
    relaxed: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def balance_frontier(balancer: Any, tolerances: Iterable[float] = TOLERANCES) -> list[FrontierPoint]:
    """What balance costs: the same rows and functions balanced again at each tolerance, in ascending order.

    `balancer`: a fitted KernelBalancer or MomentBalancer, whose `units` the tolerances have; it is left as it is.
    """
    if not isinstance(balancer, _Balancer):
        raise ConfigError(
            f"`balancer` must be a fitted KernelBalancer or MomentBalancer, got {type(balancer).__name__}."
        )
    check_is_fitted(balancer, "weights_")
    if balancer._functions.matrix is not None:
        raise ConfigError("`select` must not be 'worst_case': that has no tolerance. Use 'spectral'.")
    chosen = sorted(set(tolerances))
    for tolerance in chosen:
        check_number("tolerances", tolerance, at_least=0, advice="Each is an absolute imbalance.")
    raw, _, base, _ = balancer._samples
    observed = Sample((raw.matrix.double() - balancer._mean) / balancer._deviation)
    return [_point(value, balancer._balance(balancer._functions, observed, value, base)) for value in chosen]


def _point(tolerance: float, result: BalanceResult) -> FrontierPoint:
    sizes = abs(result.imbalance) / result.scale
    return FrontierPoint(
        tolerance=float(tolerance),
        rows=len(result.weights),
        effective_sample_size=effective_sample_size(result.weights),
        rms_imbalance=float(np.sqrt(np.mean(sizes**2))),
        max_imbalance=float(sizes.max()),
        relaxed=int(result.relaxed.sum()),
    )
