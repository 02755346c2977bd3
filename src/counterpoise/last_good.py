"""What was learned when training last went well: a stop or a divergence loses an epoch, not the fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LIMIT = 1 << 27  # numbers: beyond, two more copies would take more memory than they are worth


class LastGood:
    """A copy of the state at the beginning of the last epoch whose loss was a number.

    The loss of an epoch is taken before its steps, so that it speaks of the state at its beginning.
    """

    def __init__(self, state: Callable[[], list[Tensor]]) -> None:
        self.state = state
        now = state()
        kept = sum(tensor.numel() for tensor in now) <= LIMIT
        self.start, self.good = ([tensor.clone() for tensor in now] if kept else [] for _ in range(2))
        self.epochs, self.judged = 0, False  # epochs that the good state has seen

    def begin(self) -> None:
        """At the beginning of an epoch."""
        if self.start:
            torch._foreach_copy_(self.start, self.state())

    def confirm(self, epoch: int) -> None:
        """The loss of this epoch is a number."""
        if not self.judged:
            self.start, self.good, self.epochs = self.good, self.start, epoch - 1

    def best(self, state: list[Tensor], epoch: int) -> None:
        """From here on held-out rows say which state is good: this one, which its owner keeps up to date."""
        self.start, self.good, self.epochs, self.judged = [], state, epoch, True

    def restore(self) -> bool:
        """Put the good state back; False where nothing was learned in it."""
        if not self.good or self.epochs == 0:
            return False
        torch._foreach_copy_(self.state(), self.good)
        return True
