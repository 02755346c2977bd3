"""Covariate balance: means, standardised mean differences and distributions of features before and after weighting.

`balance_table` and `log_balance` give one `FeatureBalance` for each feature; `imbalances` is what a love plot shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import narwhals as nw
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise.balance.features import activity, observed_pairs, side_features, side_names
from counterpoise.balance.population import Pairs, Points, Population
from counterpoise.balance.solver import BalanceResult
from counterpoise.data.log import FeedbackLog, as_log
from counterpoise.errors import ConfigError, DataError

Vector = NDArray[np.float64]
BALANCED_SMD = 0.1  # |standardised mean difference| up to which a feature is usually called balanced (Austin 2009)
CONSTANT_SHARE = 1e-12  # standard deviations below this share of the mean are rounding: the feature is constant
MEAN_ROUNDING = 1e-8  # relative difference up to which two means of a constant feature are equal
ACCEPTED = (
    "a BalanceResult, a fitted balancer, a BalanceReport, a Diagnosis, a balance table, or a fitted model and its log"
)


def standardised_difference(weighted_mean: float, mean: float, deviation: float) -> float | None:
    """(weighted mean - population mean) / population standard deviation.

    For a feature that is constant in the population: 0 where the means are equal, None where they differ.
    """
    if deviation > 0:
        return (weighted_mean - mean) / deviation
    return 0.0 if abs(weighted_mean - mean) <= MEAN_ROUNDING * max(abs(weighted_mean), abs(mean)) else None


def kolmogorov_smirnov(first: Vector, first_weights: Vector, second: Vector, second_weights: Vector) -> float:
    """The largest distance of two weighted distribution functions."""
    points = np.unique(np.concatenate([first, second]))
    return float(abs(_distribution(first, first_weights, points) - _distribution(second, second_weights, points)).max())


def _distribution(values: Vector, weights: Vector, points: Vector) -> Vector:
    order = np.argsort(values)
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    return total[np.searchsorted(values[order], points, side="right")] / total[-1]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FeatureBalance:
    """One feature under the base weights and under the weights found, against the population.

    Standardised differences (SMD) are in population standard deviations, or in those of the sample before weighting
    where only the population's mean is known. They are None, and so are the ratios of
    standard deviations, where the feature is constant in the population and has another mean in the sample.
    """

    name: str
    population_mean: float
    population_sd: float | None  # None where only the population's mean is known
    mean_before: float
    mean_after: float
    smd_before: float | None
    smd_after: float | None
    ks_before: float | None = None
    ks_after: float | None = None
    sd_ratio_before: float | None = None
    sd_ratio_after: float | None = None


def feature_balance(
    name: str, observed: Vector, before: Vector, after: Vector, population: Vector, population_weights: Vector
) -> FeatureBalance:
    """Means, standardised differences, Kolmogorov-Smirnov distances and ratios of standard deviations."""
    mean, deviation = _moments(population, population_weights)
    moments = [_moments(observed, weights) for weights in (before, after)]
    means = [moment for moment, _ in moments]
    differences = [standardised_difference(value, mean, deviation) for value in means]
    distances = [kolmogorov_smirnov(observed, w, population, population_weights) for w in (before, after)]
    ratios = [spread / deviation if deviation > 0 else None for _, spread in moments]
    return FeatureBalance(name, mean, deviation, *means, *differences, *distances, *ratios)


def known_mean_balance(name: str, observed: Vector, before: Vector, after: Vector, target: float) -> FeatureBalance:
    """The balance of a feature of which only the population's mean is known, in observed standard deviations."""
    (mean_before, deviation), (mean_after, _) = _moments(observed, before), _moments(observed, after)
    differences = [standardised_difference(value, target, deviation) for value in (mean_before, mean_after)]
    return FeatureBalance(name, target, None, mean_before, mean_after, *differences)


def balance_table(
    observed: Points,
    weights: ArrayLike,
    population: Population,
    names: Sequence[str] | None = None,
    base_weights: ArrayLike | None = None,
) -> list[FeatureBalance]:
    """A row for each feature; over all pairs, the columns of users and of items have the tables' own distributions."""
    after = np.asarray(weights, dtype=np.float64)
    before = np.ones(len(after)) if base_weights is None else np.asarray(base_weights, dtype=np.float64)
    if len(after) != observed.n_rows:
        raise DataError(f"`weights` must have one value for each of the {observed.n_rows} rows, got {len(after)}.")
    columns = [
        (column.astype(np.float64), np.ones(side.n_rows) if side.weights is None else side.weights.cpu().numpy())
        for side in population.marginals()
        for column in side.matrix.cpu().numpy().T
    ]
    names = list(names) if names is not None else [f"x{column}" for column in range(len(columns))]
    features = observed.features(slice(None)).cpu().numpy().astype(np.float64)
    return [
        feature_balance(name, features[:, column], before, after, *columns[column]) for column, name in enumerate(names)
    ]


def _moments(values: Vector, weights: Vector) -> tuple[float, float]:
    """The weighted mean and standard deviation; 0 where that is rounding, as in a column of one value."""
    share = weights / weights.sum()
    mean = float(share @ values)
    deviation = float(share @ (values - mean) ** 2) ** 0.5
    return mean, deviation if deviation > CONSTANT_SHARE * abs(mean) else 0.0


@dataclass(frozen=True)
class Imbalance:
    """|weighted mean - population mean| of one feature or function, in standard deviations."""

    name: str
    before: float
    after: float


def imbalances(source: Any, log: FeedbackLog | None = None, names: Sequence[str] | None = None) -> list[Imbalance]:
    """Imbalance before and after weighting of each feature or function, the largest before weighting first.

    `source`: a BalanceResult (its functions), a fitted balancer, a BalanceReport, a Diagnosis or a balance table (their
    features), or a fitted recommender with the `log` it was fitted to (activity, popularity and side features).
    `names` are those of the rows, in the order of the source. Features without a difference to measure are left out.
    """
    if isinstance(source, BalanceResult):
        sizes = zip(abs(source.imbalance_before) / source.scale, abs(source.imbalance) / source.scale, strict=True)
        rows = [Imbalance(f"h{j}", float(before), float(after)) for j, (before, after) in enumerate(sizes, 1)]
    else:
        rows = [
            Imbalance(row.name, abs(row.smd_before), abs(row.smd_after))
            for row in _table(source, log)
            if row.smd_before is not None and row.smd_after is not None
        ]
    if names is not None:
        if len(names) != len(rows):
            raise DataError(f"`names` must have {len(rows)} names, one for each row, got {len(names)}.")
        rows = [Imbalance(str(name), row.before, row.after) for name, row in zip(names, rows, strict=True)]
    return sorted(rows, key=lambda row: -row.before)


def log_balance(log: FeedbackLog, weights: ArrayLike | None = None) -> list[FeatureBalance]:
    """The balance table of a log against all pairs, before and after weighting (None: equal weights).

    Features: log(1 + ratings) of the user and of the item, and the side features that vary.
    """
    log = as_log("log", log)
    tables, names = [], []
    words = ("user activity", "item popularity")
    for word, counts, side, own in zip(words, activity(log), side_features(log), side_names(log), strict=True):
        table, labels = np.hstack([counts, side]), [word, *own]
        varying = np.ptp(table, axis=0) > 0
        tables.append(torch.from_numpy(table[:, varying]))
        names += [label for label, varies in zip(labels, varying, strict=True) if varies]
    pairs = Pairs(*tables)
    after: NDArray[Any] = np.ones(len(log)) if weights is None else np.asarray(weights)
    return balance_table(observed_pairs(log, pairs), after, pairs, names)


def _table(source: Any, log: FeedbackLog | None) -> Iterable[FeatureBalance]:
    """The balance table of anything but a BalanceResult."""
    if hasattr(source, "ratio_"):
        if log is None:
            raise ConfigError(
                "`log` must be given for a fitted recommender: its weights belong to the pairs of that log."
            )
        log = as_log("log", log, source)
        if len(source.ratio_) != len(log):
            counts = f"{len(source.ratio_):,} rows that the weights belong to, got {len(log):,}"
            raise DataError(f"`log` must be the {counts}. Rows that `patience` held out have no weight.")
        return log_balance(log, source.ratio_)
    if callable(getattr(source, "feature_balances", None)):
        return list(source.feature_balances())
    table = getattr(getattr(source, "diagnosis", source), "table", source)
    if "smd_before" in getattr(table, "columns", ()):
        rows: list[Any] = nw.from_native(table).select([field.name for field in fields(FeatureBalance)]).rows()
        values: list[list[Any]] = [[None if value != value else value for value in row] for row in rows]
        table = [FeatureBalance(*row) for row in values]
    if isinstance(table, Sequence) and all(isinstance(row, FeatureBalance) for row in table):
        return table
    raise ConfigError(f"`result` must be {ACCEPTED}, got {type(source).__name__}.")
