"""Are the parts of a saved run those of one model? Asked when it is loaded, so that nothing breaks later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import DataError
from counterpoise.feedback import FeedbackLog
from counterpoise.ranking import Seen
from counterpoise.training import History


def check_numbers(name: str, values: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Finite floats, of this shape where it is known."""
    if not values.is_floating_point() or not bool(values.isfinite().all()):
        raise DataError(f"{name!r} must hold finite numbers.")
    if shape is not None and tuple(values.shape) != shape:
        raise DataError(f"{name!r} must have shape {shape}, got {tuple(values.shape)}.")
    return values


def check_seen(name: str, starts: Tensor, items: Tensor, shape: tuple[int, int]) -> Seen:
    """Compressed rows of item codes, one for each user."""
    if (starts.dtype, items.dtype) != (torch.int64, torch.int64) or (starts.ndim, items.ndim) != (1, 1):
        raise DataError(f"{name!r} must be two columns of integers.")
    ends = len(starts) == shape[0] + 1 and int(starts[0]) == 0 and int(starts[-1]) == len(items)
    if not ends or bool((starts[1:] < starts[:-1]).any()):
        raise DataError(f"{name!r} must have a row for each of {shape[0]} users.")
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < shape[1]:
        raise DataError(f"{name!r} must name items by codes below {shape[1]}.")
    return Seen(starts, items)


def check_history(facts: Mapping[str, Any]) -> History:
    """One number an epoch."""
    history = History(**facts)
    numbers = [*history.loss, *history.held_out_risk, history.seconds, history.best_epoch]
    if not all(isinstance(number, float | int) for number in numbers):
        raise DataError("'history' must hold numbers.")
    return history


def facts_of_log(log: FeedbackLog) -> dict[str, Any]:
    """JSON-able: what a run keeps of the log that it was fitted on."""
    return {
        "rows": len(log),
        "users": log.shape[0],
        "items": log.shape[1],
        "threshold": log.threshold,
        "mean_label": float(log.labels.mean()),
        "feature_columns": log.feature_columns,
    }


def check_log_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What later steps ask of the log: its threshold, its rows, the columns of its features."""
    threshold, rows, columns = facts["threshold"], facts["rows"], facts["feature_columns"]
    if not isinstance(threshold, float | int | None) or not isinstance(rows, int):
        raise DataError("'log' must tell the threshold and the rows in numbers.")
    if len(columns) != 2 or not all(isinstance(count, int) and 0 <= count < 2**31 for count in columns):
        raise DataError("'log' must tell how many features users and items have.")
    return dict(facts)


def check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the weights and the imputation said of themselves."""
    tables, numbers = (facts["weights"], facts["imputation"]), (facts["risk"], facts["error_on_log"])
    if not all(isinstance(table, dict) for table in tables):
        raise DataError("'parts' must have tables of weights and imputation.")
    if not all(isinstance(number, float | int) for number in numbers):
        raise DataError("'parts' must tell the risk in numbers.")
    return dict(facts)
