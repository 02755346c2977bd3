"""The progress of workers, in a process of its own: nothing heavy is imported."""

from __future__ import annotations

from counterpoise.errors import CounterpoiseError

Epoch = tuple[int, int, float]  # epochs done, epochs planned, loss


class ProgressActor:
    """Epochs that are done, and the error that ended all; Ray makes an actor of it."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.error: CounterpoiseError | None = None

    def report(self, done: int, planned: int, loss: float) -> None:
        """An epoch is done."""
        self.epochs.append((done, planned, loss))

    def fail(self, error: CounterpoiseError) -> None:
        """The first error counts."""
        self.error = self.error or error

    def failure(self) -> CounterpoiseError | None:
        """The error, if there was one."""
        return self.error

    def news(self) -> list[Epoch]:
        """The epochs since this was asked last."""
        new, self.epochs = self.epochs, []
        return new
