"""Weights from propensities that the caller knows: a table, a function, a column of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.arguments import as_float64
from counterpoise.errors import ConfigError, DataError
from counterpoise.feedback import FeedbackLog
from counterpoise.problems import Problem
from counterpoise.weights import CLIP, Estimated, PropensityOf, Weighing, Weights


@dataclass(eq=False)
class Given(Weights):
    """Propensities that the caller knows: ratio = density / propensity.

    `propensity`: a |U| x |I| matrix or a function of (users, items), both by codes, such as `World.propensity`; an
    array with one value for each row of the log; or None for the log's own column `propensities`. `clip`: see
    `inverse_propensity`. A saved configuration keeps neither array nor function: to fit again, pass it again.
    """

    propensity: Any = None
    clip: float = CLIP

    def begin(self, problem: Problem) -> Weighing:
        """Nothing to learn."""
        training = problem.training
        kept = 1.0 if training.patience is None else 1 - training.validation  # propensities are those of the whole log
        return Estimated(problem, _given(self.propensity, problem), self.clip, problem.log.density / kept)

    def to_config(self) -> dict[str, Any]:
        """The configuration, with null for an array or a function."""
        return {"part": "Given", "propensity": None, "clip": self.clip}

    def __eq__(self, other: object) -> bool:
        """The same clip, and the same function or arrays of equal values."""
        if not isinstance(other, Given) or self.clip != other.clip:
            return False
        functions = callable(self.propensity), callable(other.propensity)
        if any(functions):
            return all(functions) and bool(self.propensity == other.propensity)
        return np.array_equal(self.propensity, other.propensity)


def _given(propensity: Any, problem: Problem) -> PropensityOf:
    """A function of codes from whatever the caller gave."""
    log, device = problem.log, problem.device
    if propensity is None:
        return _from_rows(log, device)
    if callable(propensity):
        return _from_function(propensity, log.shape, device)
    values = as_float64(propensity, "propensity")
    if values.shape == log.shape:
        return _from_matrix(values, device)
    if values.shape == (len(log),):
        _check_propensities(values, lambda row: f"row {row}")
        return _from_rows(replace(log, propensities=values, source=None), device)
    advice = ""
    if values.ndim == 1 and problem.training.patience is not None:
        advice = " With patience some rows are held out and an array cannot follow: give the log its `propensities`."
    raise DataError(
        f"`propensity` must have the shape {log.shape} of all pairs or ({len(log)},) of the rows that are trained on, "
        f"got {values.shape}.{advice}"
    )


def _from_matrix(values: NDArray[np.float64], device: torch.device) -> PropensityOf:
    _check_propensities(values, lambda place: "user code {}, item code {}".format(*divmod(place, values.shape[1])))
    table = torch.from_numpy(values).to(device, torch.float32)
    return lambda users, items: table.flatten() if users is None or items is None else table[users.long(), items.long()]


def _from_function(function: Callable[..., Any], shape: tuple[int, int], device: torch.device) -> PropensityOf:
    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None or items is None:
            users, items = torch.arange(shape[0]).repeat_interleave(shape[1]), torch.arange(shape[1]).repeat(shape[0])
        codes = users.cpu().numpy(), items.cpu().numpy()
        values = as_float64(function(*codes), "propensity")
        if values.shape != (len(users),):
            raise DataError(
                f"`propensity` must give one value for each of the {len(users)} pairs asked for, got {values.shape}."
            )
        _check_propensities(values, lambda place: f"user code {codes[0][place]}, item code {codes[1][place]}")
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _from_rows(log: FeedbackLog, device: torch.device) -> PropensityOf:
    """Propensities known on rows alone: those of the log, and of the log that it was taken from."""
    known = log.known_propensities
    if known is None:
        raise ConfigError(
            "`propensity` must be given: this log has no column of propensities. Pass a matrix, a function or an array "
            "(a saved model keeps none of these), or build the log with `propensities` (`propensity_col`)."
        )

    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        pairs = None if users is None or items is None else users.long() * log.shape[1] + items
        values = np.full(1, np.nan) if pairs is None else known.at(pairs.cpu().numpy())
        if np.isnan(values).any():
            raise ConfigError(
                "these propensities are known for the rows of the log alone, and this method asks for those of other "
                "pairs. Give `propensity` as a |U| x |I| matrix or a function of (users, items)."
            )
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _check_propensities(values: NDArray[np.float64], place_of: Callable[[int], str]) -> None:
    wrong = ~((values > 0) & (values <= 1))  # nan is wrong too
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"`propensity` must lie in (0, 1], got {values.flat[place]:g} for {place_of(place)}. "
            "A pair that can never be observed has no weight: leave its user or item out."
        )
