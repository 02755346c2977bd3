"""Arrays as callers pass them, checked and converted to what the balancing solver works on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import CounterpoiseError, DataError


def as_matrix(name: str, values: Any) -> Tensor:
    """A two-dimensional float tensor; numpy arrays are shared, not copied."""
    if not isinstance(values, Tensor):
        array = _numbers(name, values, DataError)
        writable = array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()
        values = torch.from_numpy(writable)
    if values.is_complex():
        raise DataError(f"`{name}` must hold numbers only, got {values.dtype}.")
    if values.ndim != 2:
        raise DataError(f"`{name}` must have two dimensions (rows, columns), got shape {tuple(values.shape)}.")
    matrix: Tensor = values.detach() if values.is_floating_point() else values.double()
    return matrix


def as_float64(values: Any, name: str = "values", error: type[CounterpoiseError] = DataError) -> NDArray[np.float64]:
    """A float64 copy on the CPU; `error`, with the argument's name, if it holds anything but real numbers."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.array(_numbers(name, array, error), dtype=np.float64)


def _numbers(name: str, values: Any, error: type[CounterpoiseError]) -> NDArray[Any]:
    """An array of float32 or float64, shared where `values` is one. Text, dates and complex numbers are refused."""
    try:
        array = np.asarray(values)
        if array.dtype in (np.float32, np.float64):
            return array
        if array.dtype.kind not in "biufO":
            raise TypeError(f"got {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as reason:
        raise error(f"`{name}` must hold numbers only: {reason}.") from reason


def as_weights(name: str, values: Any, count: int, device: torch.device | str = "cpu") -> Tensor | None:
    """(count,) weights of any scale as float64: finite, >= 0 and not all 0; None stays None."""
    if values is None:
        return None
    weights = values.detach() if isinstance(values, Tensor) else torch.from_numpy(as_float64(values, name))
    if weights.is_complex():
        raise DataError(f"`{name}` must hold numbers only, got {weights.dtype}.")
    if weights.shape != (count,):
        raise DataError(f"`{name}` must have one value for each of the {count} rows, got shape {tuple(weights.shape)}.")
    weights = weights.to(device=device, dtype=torch.float64)
    if not bool(weights.isfinite().all()) or float(weights.min()) < 0 or float(weights.sum()) <= 0:
        raise DataError(f"`{name}` must be finite, >= 0 and not all 0.")
    return weights


def base_shares(values: Any, count: int, device: torch.device) -> Tensor | None:
    """`base_weights` (count,) to start from, with sum 1; None stays None."""
    weights = as_weights("base_weights", values, count, device)
    return None if weights is None else weights / weights.sum()
