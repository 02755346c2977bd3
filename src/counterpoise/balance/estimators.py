"""Estimators for two samples: weights on observed rows that make them resemble a population, no recommender needed.

`balance_samples` takes two tables to weights and a diagnosis. `KernelBalancer` and `MomentBalancer` are scikit-learn
estimators; `balance_frontier` balances again at several tolerances. Tables may hold text, dates, lists and gaps, which
`TableEncoder` turns into features.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from math import comb
from typing import Any, ClassVar, Literal, Self, cast, get_args

import narwhals as nw
import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from counterpoise.balance.covariate_balance import FeatureBalance, balance_table, known_mean_balance
from counterpoise.balance.diagnostics import Diagnosis, diagnose, effective_sample_size, held_out_imbalance
from counterpoise.balance.functions import FittedFunctions, Functions, KernelFunctions, Moments
from counterpoise.balance.kernels import KERNELS
from counterpoise.balance.population import Sample, as_float64, as_matrix, as_weights, base_shares
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import KernelName, MissingValues, SelectForSamples, Target, Units
from counterpoise.data.notebook import notebook_html
from counterpoise.data.side_tables import TableEncoder, as_numbers, as_polars, as_series
from counterpoise.errors import ConfigError, DataError, ReadingWarning, RowError, check_choice, check_number, short_repr

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
        """Both tables, standardised by the (weighted) moments of the population; a constant column becomes 0."""
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
    left_out: dict[str, str] = field(default_factory=dict)  # column of the tables: why it was not balanced

    @property
    def relaxed(self) -> list[str]:
        """The names of the relaxed functions, which stay out of balance."""
        return [self.function_names[j] for j in np.flatnonzero(self.result.relaxed)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values, without the weights."""
        facts = {"relaxed": self.relaxed, "left_out": self.left_out, "diagnosis": self.diagnosis.to_dict()}
        return {"solver": self.result.to_dict()} | facts

    def _repr_html_(self) -> str:
        """For notebooks: the summary and the balance of each feature."""
        rows = [[row.name, row.mean_before, row.mean_after, row.population_mean] for row in self.diagnosis.table]
        sizes = [[row.smd_before, row.smd_after] for row in self.diagnosis.table]
        head = ["feature", "mean before", "mean after", "population mean", "SMD before", "SMD after"]
        return notebook_html("BalanceReport", self.summary(), [head, *map(list.__add__, rows, sizes)])

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
        lines += [not_balanced(self.left_out)] if self.left_out else []
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
    encoder: TableEncoder | None = None,
    **options: Any,
) -> BalanceReport:
    """Weights on the rows of `observed` that make it resemble `population`; both are frames, or arrays of numbers.

    Frames are matched by column names; `encoder` says how their columns become features, and which do. By default all
    but ids, names, and columns that one of the tables does not have: `left_out` lists those. `functions` is what is
    balanced (default: 50 leading kernel functions); `tolerance` and `strength` are in population standard deviations of
    each function, with `units="raw"` in its own units, which are the paper's. `options`: `entropy_balance`.
    """
    names, tables, encoder = features(("observed", observed), ("population", population), encoder or TableEncoder())
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
    left_out = {} if encoder is None else encoder.left_out_
    return BalanceReport(mass, result, diagnosis, _named(fitted.names, names), left_out)


def features(
    observed: tuple[str, Any], population: tuple[str, Any], encoder: TableEncoder
) -> tuple[list[str], list[Tensor], TableEncoder | None]:
    """(names of the features, both tables as numbers, the encoder); each table comes with its name for messages.

    Arrays of numbers stay as they are, and there is no encoder.
    """
    named = [hasattr(table, "columns") for _, table in (observed, population)]
    if named[0] != named[1]:
        (has, _), (bare, _) = (observed, population) if named[0] else (population, observed)
        raise DataError(f"`{has}` has column names and `{bare}` has none. Give two frames, or two arrays.")
    if not is_table(observed[1]) and not is_table(population[1]):
        tables = [numbers(name, table) for name, table in (observed, population)]
        check_widths((observed[0], population[0]), [table.shape[1] for table in tables])
        return [f"x{column}" for column in range(tables[0].shape[1])], tables, None
    frames = [table_of(name, table) for name, table in (observed, population)]
    if not named[0]:
        check_widths((observed[0], population[0]), [frame.width for frame in frames])
    try:
        encoder.fit(frames[0], beside=frames[1])
    except RowError as error:
        own = error.row < len(frames[0])
        row, name = (error.row, observed[0]) if own else (error.row - len(frames[0]), population[0])
        raise RowError(error.column, row, f"{error.reason} (`{name}`)") from None
    if not encoder.columns_:
        raise DataError(f"`{observed[0]}` has no column to balance. {not_balanced(encoder.left_out_)}")
    return encoder.feature_names_, [torch.from_numpy(encoder.encode(frame)) for frame in frames], encoder


def check_widths(names: tuple[str, str], widths: Sequence[int]) -> None:
    """Raise `DataError` where two arrays differ in their number of columns."""
    if widths[0] != widths[1]:
        found = f"got {widths[0]} and {widths[1]} columns"
        raise DataError(f"`{names[0]}` and `{names[1]}` must have the same features, {found}.")


def is_table(table: Any) -> bool:
    """Whether columns may hold more than numbers: a frame, or an array of texts or with gaps."""
    if hasattr(table, "columns"):
        return True
    if not isinstance(table, list | tuple | np.ndarray):
        return False
    array = table if isinstance(table, np.ndarray) else np.asarray(table, dtype=object)
    if array.ndim != 2 or array.dtype.kind not in "fOUS":
        return False
    if array.dtype.kind == "f":
        return bool(np.isnan(array).any())
    return any(value is None or isinstance(value, str) or value != value for value in array.flat)


def table_of(name: str, table: Any) -> pl.DataFrame:
    """A frame or an array as a polars frame with at least one row; columns of an array are called x0, x1, ..."""
    try:
        if hasattr(table, "columns"):
            frame = as_polars(table)
        else:
            columns = np.asarray(table, dtype=object).T
            frame = as_polars({f"x{place}": list(column) for place, column in enumerate(columns)})
    except DataError as error:
        raise DataError(f"`{name}`: {error}") from None
    if frame.is_empty():
        raise DataError(f"`{name}` must have at least one row, got none.")
    return frame


def not_balanced(left_out: Mapping[str, str]) -> str:
    """A sentence on the columns that are not balanced."""
    return f"Not balanced: {', '.join(f'{name} ({reason})' for name, reason in left_out.items())}."


def numbers(name: str, table: Any) -> Tensor:
    """A finite float matrix; an error names the column and the row of the first value that is none."""
    matrix = as_matrix(name, table)
    if len(matrix) == 0:
        raise DataError(f"`{name}` must have at least one row, got none.")
    bad = ~matrix.isfinite()
    if bool(bad.any()):
        row, column = (int(index) for index in bad.nonzero()[0])
        value = float(matrix[row, column])
        reason = f"expected a finite number in `{name}`, got {value}. Fill it in or drop the row."
        raise RowError(f"{name}[:, {column}]", row, reason)
    return matrix


def _named(functions: list[str], names: Sequence[str]) -> list[str]:
    """The names of functions; moments have the names of the features in the place of x0, x1, ..."""
    of_feature = r"x([0-9]+)((?:\^[0-9]+)?)"
    return [
        re.sub(of_feature, lambda found: names[int(found[1])] + found[2], f) if re.fullmatch(of_feature, f) else f
        for f in functions
    ]


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
    columns: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    missing: MissingValues = "indicator"
    _takes_means: ClassVar[bool] = False  # whether `fit` takes means instead of a population

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        population: Any = None,
        target_means: Any = None,
        base_weights: ArrayLike | None = None,
        population_weights: ArrayLike | None = None,
    ) -> Self:
        """Find weights on the rows of `X` under which it resembles `population`; both are frames, or arrays.

        `y`: the population, where it is given by position. `target_means` takes the place of a population whose means
        only are known (`MomentBalancer`); a dict, a Series or a frame of them is matched by feature names.
        `base_weights`, `population_weights`: sampling weights of the rows of either.
        """
        if y is not None and population is not None:
            raise DataError("give the population once: as the second argument, or as `population`.")
        population = y if population is None else population
        if (population is None) == (target_means is None):
            raise DataError("give either `population` or `target_means`: what the observed rows should resemble.")
        if target_means is not None and population_weights is not None:
            raise DataError(
                "`population_weights` must be None where `target_means` are given: these are weighted already."
            )
        if target_means is not None and not self._takes_means:
            raise ConfigError(
                f"`target_means` must be None for {type(self).__name__}: kernels need the population itself. "
                "Give `population`, or use MomentBalancer."
            )
        names, (observed, rows) = self._learn_columns(X, population)
        weights = None
        if population is not None:
            weights = as_weights("population_weights", population_weights, len(rows))
        else:
            known = names if self.encoder_ is not None else None
            target_means = aligned_means(target_means, known)
        self._library = nw.from_native(X).implementation.value if hasattr(X, "columns") else "polars"
        return self._fit(names, observed, rows, weights, base_weights, target_means)

    def _learn_columns(self, X: Any, population: Any) -> tuple[list[str], list[Tensor]]:
        """(names of the features, both tables as numbers); without a population the sample stands for its scale."""
        encoder = TableEncoder(self.columns, self.categorical, self.missing)
        tables = [("X", X), ("population", X if population is None else population)]
        if not any(is_table(table) for _, table in tables):
            observed = as_matrix("X", validate_data(self, X, reset=True, dtype=FLOATS))
            target = observed if population is None else numbers("population", population)
            check_widths(("X", "population"), (observed.shape[1], target.shape[1]))
            self.encoder_, self.left_out_ = None, {}
            return [f"x{column}" for column in range(observed.shape[1])], [observed, target]
        validate_data(self, X, reset=True, skip_check_array=True)
        names, matrices, self.encoder_ = features(tables[0], tables[1], encoder)
        self.left_out_ = encoder.left_out_
        if self.left_out_:
            warnings.warn(not_balanced(self.left_out_), ReadingWarning, stacklevel=3)
        return names, matrices

    def _fit(
        self,
        names: list[str],
        observed: Tensor,
        population: Tensor,
        weights: Tensor | None,
        base_weights: Any,
        target_means: Any = None,
    ) -> Self:
        """The fit itself, to tables that are numbers already."""
        scaled = Standardised.of(observed, population, weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fitted = scaled.choose(self._recipe(), base_weights, seed)
        fitted = replace(fitted, names=_named(fitted.names, names))
        if target_means is not None:
            fitted = known_moments(fitted, scaled, target_means, self.order)
        self.result_ = self._balance(fitted, scaled.observed, self.tolerance, base_weights)
        self.weights_: NDArray[np.float64] = self.result_.weights.numpy()
        self._mean, self._deviation, self._functions = scaled.mean, scaled.deviation, fitted
        self._samples = Sample(observed), Sample(population, weights), base_weights, target_means
        self.feature_names_ = names
        return self

    def predict_weights(self, X_new: Any) -> NDArray[np.float64]:
        """The weight w(x) = exp(-l'h(x) - offset) / n of new rows, on the scale of `weights_`.

        New rows have no base weights: theirs count as 1 / n, the uniform ones. After a fit with `base_weights` q (sum
        1), a fitted row has n q_i times what is predicted for its features.
        """
        check_is_fitted(self, "weights_")
        return self._predicted(self._numbers(X_new))

    def _predicted(self, matrix: Tensor) -> NDArray[np.float64]:
        scores = (
            self._functions.values(self._scaled(matrix)) @ torch.from_numpy(self.result_.dual) + self.result_.offset
        )
        weights: NDArray[np.float64] = (torch.exp(-scores) / len(self.weights_)).numpy()
        return weights if self.max_weight is None else weights.clip(max=self.max_weight)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the imbalance of held-out rows under the weights predicted for them, in standard deviations.

        The root mean square over kernel functions of the features that do not depend on the settings, so that all
        settings are judged alike. Few rows that count make it large as well. No predicted weight counts more than the
        largest of the fit: one row where nothing was learned would decide alone. With `target_means`, over the
        features. `y` does not matter.
        """
        check_is_fitted(self, "weights_")
        return -self._held_out(self._numbers(X))

    def _held_out(self, matrix: Tensor) -> float:
        weights = torch.from_numpy(self._predicted(matrix).clip(max=self.weights_.max()))
        weights = weights / weights.sum()
        _, population, _, means = self._samples
        rows = self._scaled(matrix)
        if means is not None:
            first = torch.from_numpy(np.atleast_2d(np.asarray(means, dtype=np.float64))[0])
            return float((weights @ rows - self._scaled(first)).square().mean().sqrt())
        scaled = Sample(self._scaled(population.matrix), population.weights)
        found = held_out_imbalance(Sample(rows), weights, scaled)
        if found is None:
            raise DataError("`population` must have at least 10 rows to score against. Give more.")
        return found["rms_sd"]

    def balance_table(self) -> Any:
        """Every feature before and after, against the population: a frame of the kind of `X`, polars for an array."""
        return as_native([asdict(row) for row in self.feature_balances()], self._library)

    def feature_balances(self) -> list[FeatureBalance]:
        """The same as records."""
        check_is_fitted(self, "weights_")
        observed, population, base, means = self._samples
        names = self.feature_names_
        if means is None:
            return balance_table(observed, self.weights_, population, names, base)
        before = np.ones(observed.n_rows) if base is None else np.asarray(base, dtype=np.float64)
        columns = zip(names, observed.matrix.numpy().T, np.ravel(means)[: len(names)], strict=True)
        return [known_mean_balance(name, values, before, self.weights_, float(mean)) for name, values, mean in columns]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _recipe(self) -> Functions:
        raise NotImplementedError

    def _balance(self, fitted: FittedFunctions, observed: Sample, tolerance: float, base_weights: Any) -> BalanceResult:
        options = {name: getattr(self, name) for name in ("units", "max_weight", "accuracy", "max_passes")}
        return fitted.balance(observed, tolerance, self.strength, base_weights=base_weights, **options)

    def _numbers(self, X: Any) -> Tensor:
        """New rows as the features of the fit."""
        if self.encoder_ is None:
            return as_matrix("X", validate_data(self, X, reset=False, dtype=FLOATS))
        return torch.from_numpy(self.encoder_.encode(table_of("X", X)))

    def _scaled(self, matrix: Tensor) -> Tensor:
        return (matrix.double() - self._mean) / self._deviation


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
    `columns`, `categorical`, `missing`: which columns of a frame are balanced, which numbers are codes, and what stands
    for a missing value (`TableEncoder`). `left_out_` has the columns that are not balanced, and why.
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
    `target_means` (features,) for order 1, or (order, features) raw moments. `columns`, `categorical` and `missing` as
    in `KernelBalancer`.
    """

    order: int = 1
    _: KW_ONLY
    strength: float | None = float("inf")
    _takes_means: ClassVar[bool] = True

    def _recipe(self) -> Functions:
        return Moments(self.order)


@dataclass(eq=False, repr=False)
class TreatmentBalancer(BaseEstimator):  # type: ignore[misc]
    """Weights under which the treated and the controls of one table both resemble the same rows.

    `target`: all rows ("ate", the average treatment effect), the treated ("att") or the controls ("atc"). Differences
    of weighted means then estimate the effect over these rows, as far as the balanced functions explain the outcome and
    nothing else decides about the treatment.
    `balancer`: a `KernelBalancer` or a `MomentBalancer` (the default), which is fitted anew for each group.
    """

    balancer: Any = None
    target: Target = "ate"

    def fit(self, X: Any, treatment: Any = None, *, sample_weight: Any = None) -> Self:
        """Weight the rows of the covariates `X`, with `treatment` of each: 1 and 0, or true and false.

        `sample_weight`: sampling weights, both of the rows that are weighted and of those to resemble.
        """
        check_choice("target", self.target, get_args(Target))
        balancer = MomentBalancer() if self.balancer is None else self.balancer
        if not isinstance(balancer, _Balancer):
            kinds = "a KernelBalancer or a MomentBalancer"
            raise ConfigError(f"`balancer` must be {kinds}, got {type(balancer).__name__}.")
        self._learner = clone(balancer)
        names, (matrix, _) = self._learner._learn_columns(X, None)
        self.encoder_, self.left_out_ = self._learner.encoder_, self._learner.left_out_
        self._library = nw.from_native(X).implementation.value if hasattr(X, "columns") else "polars"
        treated = as_treatment(treatment, len(matrix))
        _check_not_treatment(names, matrix, treated)
        shares = as_weights("sample_weight", sample_weight, len(matrix))
        whom = {"ate": torch.ones_like(treated), "att": treated, "atc": ~treated}[self.target]
        mass = torch.ones(len(matrix), dtype=torch.float64) if shares is None else shares
        weights = torch.zeros_like(mass)
        self.balancers_: dict[str, _Balancer] = {}
        for group, rows in (("treated", treated), ("controls", ~treated)):
            if bool((rows == whom).all()):  # they are the target
                weights[rows] = mass[rows] / mass[rows].sum()
                continue
            base, population = (None if shares is None else shares[part] for part in (rows, whom))
            found = clone(balancer)._fit(names, matrix[rows], matrix[whom], population, base)
            weights[rows] = torch.from_numpy(found.weights_)
            self.balancers_[group] = found
        self.weights_: NDArray[np.float64] = weights.numpy()
        self._treated = treated.numpy()
        return self

    def effect(self, outcome: Any) -> float:
        """The weighted mean outcome of the treated minus that of the controls."""
        check_is_fitted(self, "weights_")
        values = as_float64(outcome, "outcome")
        if values.shape != self.weights_.shape or not np.isfinite(values).all():
            shape = f"got shape {values.shape}" if values.shape != self.weights_.shape else "got one that is missing"
            raise DataError(f"`outcome` must have a finite number for each of the {len(self.weights_)} rows, {shape}.")
        sign = np.where(self._treated, 1.0, -1.0)
        return float(self.weights_ @ (sign * values))

    def predict_weights(self, X_new: Any, treatment: Any) -> NDArray[np.float64]:
        """The weights of new rows, on the scale of `weights_`; the same for all rows of the target."""
        check_is_fitted(self, "weights_")
        matrix = self._learner._numbers(X_new)
        treated = as_treatment(treatment, len(matrix), both=False)
        weights = np.empty(len(matrix))
        for group, rows in (("treated", treated), ("controls", ~treated)):
            size = self._treated.sum() if group == "treated" else (~self._treated).sum()
            found = self.balancers_.get(group)
            weights[rows.numpy()] = 1 / size if found is None else found._predicted(matrix[rows])
        return weights

    def score(self, X: Any, treatment: Any) -> float:
        """Minus the imbalance of held-out rows, as in `KernelBalancer.score`: the mean over the groups."""
        check_is_fitted(self, "weights_")
        matrix = self._learner._numbers(X)
        treated = as_treatment(treatment, len(matrix))
        rows = {"treated": treated, "controls": ~treated}
        return -float(np.mean([found._held_out(matrix[rows[group]]) for group, found in self.balancers_.items()]))

    def balance_table(self) -> Any:
        """Every feature of each weighted group against the target: a frame of the kind of `X`, polars for an array."""
        check_is_fitted(self, "weights_")
        groups = self.balancers_.items()
        rows = [{"group": group} | asdict(row) for group, found in groups for row in found.feature_balances()]
        return as_native(rows, self._library)

    def feature_balances(self) -> list[FeatureBalance]:
        """The same as records, with the group in the name."""
        check_is_fitted(self, "weights_")
        groups = self.balancers_.items()
        return [
            replace(row, name=f"{group}: {row.name}") for group, found in groups for row in found.feature_balances()
        ]

    def summary(self) -> str:
        """A line for each group: effective sample size, and imbalance before and after."""
        lines = []
        for group, found in self.balancers_.items():
            result, size = found.result_, effective_sample_size(found.weights_)
            before, after = (abs(v / result.scale).max() for v in (result.imbalance_before, result.imbalance))
            relaxed = f"{result.relaxed.sum()} relaxed" if result.relaxed.any() else "none relaxed"
            lines.append(
                f"{group}: {len(found.weights_):,} rows count as {size:,.0f}; {len(result.scale)} functions, largest "
                f"imbalance {before:.3f} SD before, {after:.2g} SD after ({relaxed})."
            )
        return "\n".join([*lines, *([not_balanced(self.left_out_)] if self.left_out_ else [])])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags


def as_treatment(treatment: Any, rows: int, both: bool = True) -> Tensor:
    """The treatment of each row as booleans; `both`: there must be treated rows and controls."""
    rule = f"`treatment` must have a value for each of the {rows} rows, treated or not, as 1 and 0 or true and false"
    if treatment is None or np.shape(treatment) != (rows,):
        raise DataError(f"{rule}, got {'None' if treatment is None else f'shape {np.shape(treatment)}'}.")
    column = as_series("treatment", treatment)
    try:
        values = as_numbers(column)
    except RowError as error:
        raise DataError(f"{rule}, got {short_repr(column[error.row])} in row {error.row}.") from None
    wrong = ~np.isin(values, (0.0, 1.0))
    if wrong.any():
        raise DataError(f"{rule}, got {short_repr(column[int(wrong.argmax())])} in row {int(wrong.argmax())}.")
    if both and len(np.unique(values)) < 2:
        raise DataError(f"{rule}; all are {'treated' if values[0] else 'controls'}, and there is nothing to compare.")
    return torch.from_numpy(values == 1)


def _check_not_treatment(names: Sequence[str], matrix: Tensor, treated: Tensor) -> None:
    """Raise `DataError` for a feature that has one value among the treated and another among the controls."""
    first, second = matrix[treated], matrix[~treated]
    constant = (first == first[0]).all(0) & (second == second[0]).all(0) & (first[0] != second[0])
    if bool(constant.any()):
        name = names[int(constant.nonzero()[0])]
        raise DataError(
            f"column {name!r} separates the treated from the controls: no weights can balance it. Leave it out."
        )


def as_native(rows: Sequence[Mapping[str, Any]], library: str) -> Any:
    """Records as a frame of a library: polars, pandas or pyarrow."""
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return nw.from_dict(columns, backend=cast("Any", library)).to_native()


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
        advice = "Give `X` as a frame, or the means as an array." if names is None else "Every feature needs one."
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
    """Effective sample size and imbalance at each tolerance, ascending: the same rows and functions balanced again.

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
    observed = Sample(balancer._scaled(raw.matrix))
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
