"""Weight one sample so that it resembles another: from two tables of numbers to weights and all facts about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.arguments import as_matrix, base_shares
from counterpoise.balance_table import balance_table
from counterpoise.diagnostics import Diagnosis, diagnose
from counterpoise.errors import DataError, RowError
from counterpoise.fitted_functions import FittedFunctions
from counterpoise.functions import Functions, KernelFunctions
from counterpoise.population import Sample
from counterpoise.results import BalanceResult

LARGEST = 1e150  # of a feature


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
        _check_size(observed, population)
        whole = Sample(population, weights)
        mean = whole.mean(lambda x: x, whole.n_columns)
        spread = whole.mean(lambda x: (x - mean).square_(), whole.n_columns).sqrt()
        spread = torch.where(spread > 1e-12 * mean.abs(), spread, 1.0)
        tables = [(matrix.double() - mean) / spread for matrix in (observed, population)]
        return cls(Sample(tables[0]), Sample(tables[1], weights), mean, spread)

    def choose(self, functions: Functions, base_weights: Any, seed: int) -> FittedFunctions:
        """What is balanced, chosen under the weights that balancing starts from."""
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
    def given_up(self) -> list[str]:
        """The names of the functions whose balance cost too much."""
        return [self.function_names[j] for j in np.flatnonzero(self.result.given_up)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values, without the weights."""
        return {"solver": self.result.to_dict(), "given_up": self.given_up, "diagnosis": self.diagnosis.to_dict()}

    def summary(self) -> str:
        """In words."""
        before, after = (abs(v / self.result.scale) for v in (self.result.imbalance_before, self.result.imbalance))
        lost = f"Given up: {_first_names(self.given_up)}." if self.given_up else "No function was given up."
        lines = [
            f"{len(self.function_names)} functions balanced ({self.result.status} in {self.result.passes} passes, "
            f"duality gap {self.result.gap:.1e}): largest imbalance {before.max():.3f} SD before, "
            f"{after.max():.2e} SD after. {lost}",
            self.diagnosis.summary(),
        ]
        if self.diagnosis.grew:
            lines.append(
                "The largest imbalance of a feature ROSE: the sample is too small or too different for them. "
                "Balance fewer functions, or moments."
            )
        return "\n".join(lines)


def balance_samples(
    observed: Any,
    population: Any,
    functions: Functions | None = None,
    *,
    tolerance: float = 1e-3,
    strength: float | None = None,
    base_weights: Any = None,
    population_weights: Any = None,
    max_weight: float | None = None,
    seed: int = 0,
    **options: Any,
) -> BalanceReport:
    """Weights on the rows of `observed` that make it resemble `population`; both are numeric frames or arrays.

    Frames are matched by column names. `functions` is what is balanced (default: 50 leading kernel functions);
    `tolerance` and `strength` are in population standard deviations of each function. `options`: `entropy_balance`.
    """
    names, columns = shared_columns(observed, population)
    tables = [numbers(name, table, columns) for name, table in (("observed", observed), ("population", population))]
    if tables[0].shape[1] != tables[1].shape[1]:
        widths = f"got {tables[0].shape[1]} and {tables[1].shape[1]} columns"
        raise DataError(f"`observed` and `population` must have the same features, {widths}.")
    weights = population_mass(population_weights, len(tables[1]))
    scaled = Standardised.of(tables[0], tables[1], weights)
    fitted = scaled.choose(functions or KernelFunctions(), base_weights, seed)
    result = fitted.balance(
        scaled.observed, tolerance, strength, base_weights=base_weights, max_weight=max_weight, **options
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


def population_mass(weights: Any, count: int) -> Tensor | None:
    """Weights of the population's rows: one for each, finite, >= 0 and not all 0; None stays None."""
    if weights is None:
        return None
    try:
        values = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"`population_weights` must hold numbers only: {error}.") from error
    if values.shape != (count,):
        raise DataError(f"`population_weights` must have {count} values, got shape {values.shape}.")
    if not np.isfinite(values).all() or values.min() < 0 or values.sum() <= 0:
        raise DataError("`population_weights` must be finite, >= 0 and not all 0.")
    return torch.from_numpy(values)


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


def _check_size(*tables: Tensor) -> None:
    """Raise `DataError` for numbers whose squares no float holds."""
    for table in tables:
        large = table.abs().amax(0) > LARGEST
        if bool(large.any()):
            column = int(large.nonzero()[0])
            raise DataError(
                f"feature {column} (counted from 0) has numbers past {LARGEST:g}. Divide it by its largest."
            )


def _first_names(names: list[str], count: int = 10) -> str:
    """The first `count` names, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


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
