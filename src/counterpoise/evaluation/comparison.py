"""Several models on the same rows of a log: their metrics side by side, and paired differences from the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
import polars as pl

from counterpoise.config import takes_options
from counterpoise.data.frames import POLARS, to_kind
from counterpoise.data.log import DEFAULTS, LogOptions, as_logs
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import ConfigError, DataError
from counterpoise.evaluation.evaluate import (
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
    that is paired over users. Empty for weighted evaluations of a biased hold-out.
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
        first = next(iter(self.evaluations.values()))
        names = [row["metric"] for row in first.rows()][: len(METRIC_NAMES)]
        head = ["metric", *self.evaluations]
        table = [
            [name, *(self._cell(model, metric) for model in self.evaluations)]
            for metric, name in zip(METRIC_NAMES, names, strict=True)
        ]
        note = "* the interval of the paired difference from the first model excludes 0." if self.differences else ""
        return notebook_html(f"Comparison on {first.n_rows:,} rows of {first.n_users:,} users", [head, *table], note)

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
    `evaluate`: a biased hold-out is weighted, and has no paired differences.
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
    if isinstance(weights, str) and weights == "auto" and log.sample != "biased":
        weights = None
    if weights is not None:
        found = {
            name: evaluate(model, log, k, weights=weights, train=train, probe=probe, seed=seed)
            for name, model in models.items()
        }
        return Comparison(found, frame_kind=log.frame_kind)
    resampled = {name: resampled_evaluation(model, log, k, seed=seed) for name, model in models.items()}
    (_, reference), *others = resampled.items()
    differences = {name: paired_differences(other, reference) for name, other in others}
    return Comparison({name: one.evaluation for name, one in resampled.items()}, differences, log.frame_kind)
