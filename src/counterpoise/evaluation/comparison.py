"""Several models on the same rows of a log: their metrics side by side, and paired differences from the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import polars as pl

from counterpoise.config import takes_options
from counterpoise.data.frames import POLARS, to_kind
from counterpoise.data.log import DEFAULTS, FeedbackLog, LogOptions, as_logs
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import ConfigError, DataError
from counterpoise.evaluation.evaluate import (
    ALIKE,
    Difference,
    Evaluation,
    check_both_labels,
    evaluate,
    none_if_nan,
    paired_differences,
    resampled_evaluation,
)
from counterpoise.evaluation.metrics import METRIC_NAMES


@dataclass(frozen=True)
class Comparison:
    """The evaluations of several models by name, all on the same rows.

    `differences`: of each model but the first, by metric: its value minus that of the first model, with an interval
    that is paired over users; over rows where a biased hold-out is weighted.
    """

    evaluations: dict[str, Evaluation]
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    frame_kind: str = POLARS  # of `to_frame`

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model and metric: value, interval, and the difference from the first model with its own."""
        found = []
        for name, evaluation in self.evaluations.items():
            for metric, row in zip(METRIC_NAMES, evaluation.rows(), strict=False):
                values = {key: row[key] for key in ("value", "low", "high")}
                if self.differences:
                    own = self.differences.get(name, {}).get(metric, Difference(np.nan, np.nan, np.nan))
                    numbers = {"difference": own.value, "difference_low": own.low, "difference_high": own.high}
                    values |= {key: none_if_nan(number) for key, number in numbers.items()}
                found.append({"model": name, "metric": row["metric"], **values})
        return found

    def to_frame(self) -> Any:
        """`rows` as a frame of the kind that was evaluated on, polars by default."""
        return to_kind(pl.DataFrame(self.rows(), infer_schema_length=None), self.frame_kind)

    def _repr_html_(self) -> str:
        """For notebooks: a row for each metric, a column for each model, and clear differences marked."""
        return notebook_html(self._title, self._table(), *self._notes())

    def __str__(self) -> str:
        """The table as text."""
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join(line.rstrip() for line in [*lines, f"{self._title}.", *self._notes()])

    @property
    def _title(self) -> str:
        first = next(iter(self.evaluations.values()))
        return f"Comparison on {first.n_rows:,} rows of {first.n_users:,} users"

    def _table(self) -> list[list[str]]:
        first = next(iter(self.evaluations.values()))
        names = [row["metric"] for row in first.rows()][: len(METRIC_NAMES)]
        return [["metric", *self.evaluations]] + [
            [name, *(self._cell(model, metric) for model in self.evaluations)]
            for metric, name in zip(METRIC_NAMES, names, strict=True)
        ]

    def _notes(self) -> list[str]:
        """Notes on the cells and their assumptions."""
        marked = "* the interval of the paired difference from the first model excludes 0."
        assumption = next(iter(self.evaluations.values())).assumption
        return [marked] * bool(self.differences) + [assumption] * bool(assumption)

    def _cell(self, model: str, metric: str) -> str:
        evaluation = self.evaluations[model]
        value, interval = getattr(evaluation, metric), evaluation.intervals.get(metric)
        span = "" if interval is None or np.isnan(interval[0]) else f" ({interval[0]:.4f} to {interval[1]:.4f})"
        difference = self.differences.get(model, {}).get(metric)
        clear = difference is not None and (difference.low > 0 or difference.high < 0)
        return "–" if np.isnan(value) else f"{value:.4f}{span}{' *' if clear else ''}"


@takes_options(LogOptions, DEFAULTS)
def compare(
    models: Mapping[str, Any],
    log: Any,
    k: int = 5,
    *,
    weights: Any = "auto",
    train: Any = None,
    probe: Any = None,
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> Comparison:
    """The evaluations of several models on the rows of a log that none of them was fitted to.

    `models`: by name, each as in `evaluate`; differences are from the first. The other arguments are those of
    `evaluate`. A biased hold-out is weighted where a model or `train` says what was trained on, for all models alike.
    """
    if not isinstance(models, Mapping) or not models:
        raise ConfigError("`models` must be a table of names and models, such as {'mf': model}.")
    like = next((model for model in models.values() if hasattr(model, "log_facts_")), None)
    log, train, probe = as_logs({"log": log, "train": train, "probe": probe}, like, **options)
    seen = np.zeros(len(log), bool)
    for model in models.values():
        check_both_labels(model, log)
        seen |= model.has_seen(log) if hasattr(model, "has_seen") else False
    if seen.all():
        raise DataError(f"`log`: all {len(seen)} pairs were seen in training, so they are no test. Hold rows out.")
    if seen.any():
        if not all(hasattr(model, "predict_log") or callable(model) for model in models.values()):
            raise DataError("`log` must have no pair that a model was fitted to, where scores are given for its rows.")
        log = log.take(~seen)
        if not isinstance(weights, str) and np.shape(weights) == seen.shape:
            weights = np.asarray(weights)[~seen]
    if isinstance(weights, str) and weights == "auto":
        weights = "balanced" if log.sample == "biased" and (like is not None or train is not None) else None
    if weights is not None:
        return _weighted(models, like, log, k, weights, train, probe, seed)
    resampled = {name: resampled_evaluation(model, log, k, seed=seed) for name, model in models.items()}
    (_, reference), *others = resampled.items()
    differences = {name: paired_differences(other, reference) for name, other in others}
    about = ALIKE.get(log.sample, "")
    found = {name: replace(one.evaluation, assumption=about) for name, one in resampled.items()}
    return Comparison(found, differences, log.frame_kind)


def _weighted(
    models: Mapping[str, Any],
    like: Any,
    log: FeedbackLog,
    k: int,
    weights: Any,
    train: FeedbackLog | None,
    probe: FeedbackLog | None,
    seed: int,
) -> Comparison:
    """All by the same weights, those of `like`, a fitted recommender, or of `train`."""
    from counterpoise.evaluation.holdout_weights import resolve_weights, unseen_holdout
    from counterpoise.evaluation.weighted import weighted_differences

    rows = unseen_holdout(like, log, train, probe)
    shared = resolve_weights(weights, rows, seed)
    found = {
        name: evaluate(model, log, k, weights=shared, train=train, probe=probe, seed=seed)
        for name, model in models.items()
    }
    reference, *others = found.items()
    differences = {name: weighted_differences(other, reference[1]) for name, other in others}
    return Comparison(found, differences, log.frame_kind)
