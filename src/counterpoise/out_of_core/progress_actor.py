"""The progress of workers, in a process of its own: nothing heavy is imported."""

from __future__ import annotations

from counterpoise.errors import CounterpoiseError
from counterpoise.training.events import FitEvent


class ProgressActor:
    """Epochs that are done, and the error that ended all; Ray makes an actor of it."""

    def __init__(self) -> None:
        self.epochs: list[FitEvent] = []
        self.error: CounterpoiseError | None = None

    def report(self, epoch: FitEvent) -> None:
        """An epoch is done."""
        self.epochs.append(epoch)

    def fail(self, error: CounterpoiseError) -> None:
        """The first error counts."""
        self.error = self.error or error

    def failure(self) -> CounterpoiseError | None:
        """The error, if there was one."""
        return self.error

    def news(self) -> list[FitEvent]:
        """The epochs since the last call."""
        new, self.epochs = self.epochs, []
        return new
