"""Imbalance before and after weighting, one row for each feature or function: what a love plot shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise.balance_table import FeatureBalance, balance_table
from counterpoise.errors import ConfigError, DataError
from counterpoise.features import activity, observed_pairs, side_features
from counterpoise.feedback import FeedbackLog, check_log
from counterpoise.population import Pairs
from counterpoise.results import BalanceResult

TAKES = (
    "a BalanceResult, a fitted balancer, a BalanceReport, a Diagnosis, a balance table, or a fitted model and its log"
)


@dataclass(frozen=True)
class Imbalance:
    """|weighted mean - population mean| of one feature or function, in standard deviations."""

    name: str
    before: float
    after: float


def imbalances(source: Any, log: FeedbackLog | None = None, names: Sequence[str] | None = None) -> list[Imbalance]:
    """The rows of anything that knows its balance, the largest before weighting first.

    `source`: a BalanceResult (its functions), a fitted balancer, a BalanceReport, a Diagnosis or a balance table (their
    features), or a fitted recommender with the `log` it was fitted to (activity, popularity and side features).
    `names` are those of the rows, in the order of the source. Features without a difference to measure are left out.
    """
    rows = _of_functions(source) if isinstance(source, BalanceResult) else _of_features(_table(source, log))
    if names is not None:
        if len(names) != len(rows):
            raise DataError(f"`names` must have {len(rows)} names, one for each row, got {len(names)}.")
        rows = [Imbalance(str(name), row.before, row.after) for name, row in zip(names, rows, strict=True)]
    return sorted(rows, key=lambda row: -row.before)


def log_balance(log: FeedbackLog, weights: ArrayLike | None = None) -> list[FeatureBalance]:
    """How the pairs of a log differ from all pairs, before and after weighting, in what the log itself tells.

    Features: log(1 + ratings) of the user and of the item, and the side features that vary; None: equal weights.
    """
    check_log("log", log)
    tables, names = [], []
    words = (("user", "user activity"), ("item", "item popularity"))
    for (who, word), counts, side in zip(words, activity(log), side_features(log), strict=True):
        table = np.hstack([counts, side])
        labels = [word, *(f"{who} feature {column}" for column in range(1, table.shape[1]))]
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
            raise ConfigError("`log` must be given for a fitted recommender: which pairs do its weights belong to?")
        if len(source.ratio_) != len(log):
            counts = f"{len(source.ratio_):,} rows that the weights belong to, got {len(log):,}"
            raise DataError(f"`log` must be the {counts}. Rows that `patience` held out have no weight.")
        return log_balance(log, source.ratio_)
    if callable(getattr(source, "balance_table", None)):
        return list(source.balance_table())
    table = getattr(getattr(source, "diagnosis", source), "table", source)
    if isinstance(table, Sequence) and all(isinstance(row, FeatureBalance) for row in table):
        return table
    raise ConfigError(f"`result` must be {TAKES}, got {type(source).__name__}.")


def _of_functions(result: BalanceResult) -> list[Imbalance]:
    before, after = (abs(values) / result.scale for values in (result.imbalance_before, result.imbalance))
    return [Imbalance(f"h{j}", float(b), float(a)) for j, (b, a) in enumerate(zip(before, after, strict=True), 1)]


def _of_features(table: Iterable[FeatureBalance]) -> list[Imbalance]:
    return [
        Imbalance(row.name, abs(row.smd_before), abs(row.smd_after))
        for row in table
        if row.smd_before is not None and row.smd_after is not None
    ]
