"""What may be fitted: which settings go together, and which labels a log may have."""

from __future__ import annotations

from typing import Any

from counterpoise.errors import ConfigError, DataError, check_choice, check_flag
from counterpoise.feedback import FeedbackLog
from counterpoise.imputation import Imputation, Nothing
from counterpoise.risks import RISKS
from counterpoise.silence import Silence
from counterpoise.training import Training
from counterpoise.weights import Weights


def check_parts(weights: Any, risk: Any, imputation: Any, training: Any, hedge: Any, grades: Any) -> None:
    """Raise the first error of the settings of a recommender."""
    given = {"weights": (weights, Weights), "imputation": (imputation, Imputation), "training": (training, Training)}
    for name, (part, kind) in given.items():
        if not isinstance(part, kind):
            raise ConfigError(f"`{name}` must be a {kind.__name__} part, got {part!r}.")
    training.check()
    check_flag("hedge", hedge)
    check_flag("grades", grades)
    check_choice("risk", risk, RISKS)
    if risk == "direct" and isinstance(imputation, Nothing | Silence):
        raise ConfigError(f"`imputation` must be one of errors for risk={risk!r}: it is all that is learned from.")
    if risk == "direct" and hedge:
        raise ConfigError("`hedge` must be false for risk='direct': without imputation there is nothing to learn.")


def check_labels(log: FeedbackLog, what: str = "labels") -> None:
    """Raise `DataError` unless they are probabilities."""
    values = log.ratings if log.threshold is None else log.labels
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise DataError(
            f"{what} must lie in [0, 1], got values from {low:g} to {high:g}. "
            "Give the log a `threshold` (--threshold): ratings at or above it become 1, others 0."
        )
