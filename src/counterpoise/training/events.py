"""The events of a fit: its settings, the loss of each epoch, and the facts at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from counterpoise.config import Configurable


@dataclass(frozen=True)
class FitEvent:
    """One call of `fit(callback=...)`, in the form that experiment trackers take: parameters, and numbers by step.

    "start": `parameters` are all settings, nested ones as `part__setting`, and the size of the log. "epoch": `metrics`
    are the loss and, with patience, the held-out risk. "end": `metrics` are the numbers of the model's `facts_`, nested
    ones as `part.number`.
    """

    name: Literal["start", "epoch", "end"]
    epoch: int  # epochs done
    epochs: int  # epochs planned
    metrics: dict[str, float] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


Callback = Callable[[FitEvent], None]
Progress = Callable[[int, int, float], None]  # (steps done, steps planned, loss), for progress bars


def start_event(model: Configurable, epochs: int, rows: int, shape: tuple[int, int]) -> FitEvent:
    """The settings of a model and the size of its log."""
    settings = {name: value for name, value in model.get_params().items() if not isinstance(value, Configurable)}
    return FitEvent("start", 0, epochs, parameters=settings | {"rows": rows, "users": shape[0], "items": shape[1]})


def end_event(epoch: int, epochs: int, facts: Mapping[str, Any]) -> FitEvent:
    """The numbers of a model's facts."""
    return FitEvent("end", epoch, epochs, metrics=dict(_numbers(facts, "")))


def by_epoch(progress: Progress | None) -> Callback | None:
    """A callback that moves a progress bar after each epoch."""
    if progress is None:
        return None

    def callback(event: FitEvent) -> None:
        if event.name == "epoch":
            progress(event.epoch, event.epochs, event.metrics["loss"])

    return callback


def _numbers(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)
