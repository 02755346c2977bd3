"""The one training loop: epochs of batches, early stopping, history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.data.batches import Batch, Batches
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, CounterpoiseError, check_flag, check_number
from counterpoise.training.events import Callback, FitEvent
from counterpoise.training.optimizer import Rate

MAX_FULL_BATCH = 1 << 18  # rows up to which "auto" takes the whole log as one batch
BATCHES_PER_EPOCH = 5  # on a larger log, of any size: each step touches all parameters
MAX_BATCH = 1 << 19  # rows that "auto" takes then at most
# On such a larger log a step sees a part of the rows, and its gradient is noisy. Six simulated logs of 300,000 to 1.8
# million rows, `mf`, 20 epochs of five batches so, minus 30 epochs of ten: AUC -0.0003, log loss +0.0010. At 0.8 of the
# rate AUC is lower by another 0.0006 on four of them. More steps than planned, of a log of many batches, add up more
# noise: the rate is divided by the root of their number over the plan.
NOISY_RATE, NOISY_HOLD = 0.7, 0.7  # factor of the learning rate, and the share of the steps for which it is held
MIN_EPOCHS = 15  # there, however many steps an epoch has: each row is to be seen some times
MAX_EXACT_PAIRS = 10**6  # pairs of D up to which a full-batch step looks at all of them
PAIRS_PER_ROW = 2  # uniform pairs of D for each observed row, where not all are looked at
MIN_ROWS_FOR_THREADS = 1 << 17  # rows of a step from which a second thread is faster
MAX_COPIED_NUMBERS = 1 << 27  # of the state: beyond, no copies of the last finite state are kept


class DivergenceError(CounterpoiseError):
    """The loss stopped being a number. `history`: up to the last good epoch, None where there is none."""

    history: History | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while training, with `history` as above."""

    history: History | None = None


@dataclass
class Training(Configurable):
    """The settings of training: epochs, batches, learning rate, early stopping, device, seed.

    `batch_size`: rows a step, "full" for the whole log, or "auto": full up to 262,144 rows, beyond
    that five batches an epoch, or more of 524,288 rows.
    `steps`: a log of more than 262,144 rows is trained for fewer epochs than `epochs`: as many as make so many steps,
    but 15 at least. None trains all `epochs`.
    `learning_rate`: Adam's, at the start; it falls to 0 along a half cosine, so the last epochs settle. Where `steps`
    counts, 0.7 of it is held for 70 % of the steps first: each step then sees a part of the rows.
    `patience`: stop when the held-out risk has not improved for so many epochs, and restore the best epoch; None
    trains all epochs on the whole log. `validation` is the share of the log held out, only when there is patience.
    `pairs`: the uniform pairs of D a step for each observed row, for methods that look at unobserved pairs; "all" for
    D itself, so that means over D are exact; or "auto": all up to a million pairs if the batch is full, else 2 a row.
    `graph`: replay steps as a CUDA graph where the device is a GPU and the method allows it.
    """

    epochs: int = 150
    steps: int | None = 100
    batch_size: int | str = "auto"
    learning_rate: float = 0.05
    patience: int | None = None
    validation: float = 0.1
    pairs: int | str = "auto"
    device: str = "auto"
    seed: int = 0
    graph: bool = True

    def check(self) -> None:
        """Raise `ConfigError` for the first setting that breaks its rule."""
        check_number("epochs", self.epochs, at_least=1, integer=True)
        if self.steps is not None:
            check_number("steps", self.steps, at_least=1, integer=True, advice="None trains all epochs.")
        if self.batch_size not in ("full", "auto"):
            check_number("batch_size", self.batch_size, at_least=1, integer=True, advice='Or use "full" or "auto".')
        check_number("learning_rate", self.learning_rate, above=0)
        if self.patience is not None:
            check_number("patience", self.patience, at_least=1, integer=True, advice="Leave it out to train all.")
            check_number("validation", self.validation, above=0, at_most=0.5)
        if self.pairs not in ("all", "auto"):
            check_number("pairs", self.pairs, at_least=1, integer=True, advice='Or use "all" or "auto".')
        check_number("seed", self.seed, at_least=0, at_most=2**63 - 1, integer=True)
        check_flag("graph", self.graph)

    def rows_per_step(self, rows: int) -> int:
        """The batch size for a log of so many rows."""
        if self.batch_size == "full" or (self.batch_size == "auto" and rows <= MAX_FULL_BATCH):
            return rows
        if self.batch_size == "auto":
            return min(math.ceil(rows / BATCHES_PER_EPOCH), MAX_BATCH)
        return min(rows, int(self.batch_size))

    def counts_steps(self, rows: int) -> bool:
        """Whether training on so many rows takes `steps`, and not `epochs`: on a large log in several batches."""
        return self.steps is not None and rows > MAX_FULL_BATCH and self.rows_per_step(rows) < rows

    def planned_epochs(self, rows: int) -> int:
        """The epochs of a log of so many rows."""
        if self.steps is None or not self.counts_steps(rows):
            return self.epochs
        batches = math.ceil(rows / self.rows_per_step(rows))
        return min(self.epochs, max(MIN_EPOCHS, math.ceil(self.steps / batches)))

    def rate(self, step: int, total: int, rows: int) -> float:
        """The factor of the learning rate in a step, counted from 0."""
        if not self.counts_steps(rows):
            return half_cosine(step, total)
        assert self.steps is not None
        held, noise = NOISY_HOLD * total, math.sqrt(max(1.0, total / self.steps))
        return NOISY_RATE / noise * half_cosine(max(0.0, step - held), total - held)

    def pairs_per_row(self, log: FeedbackLog, own_users: bool = False) -> int | None:
        """The uniform pairs of D for each row of a step on this log; None for all of D. `own_users`: with its user."""
        if own_users:
            return PAIRS_PER_ROW if isinstance(self.pairs, str) else int(self.pairs)
        if self.pairs != "auto":
            return None if self.pairs == "all" else int(self.pairs)
        exact = log.n_pairs <= MAX_EXACT_PAIRS and self.rows_per_step(len(log)) == len(log)
        return None if exact else PAIRS_PER_ROW

    def resolve_device(self) -> torch.device:
        """The device that `device` means on this machine."""
        found = torch.cuda.device_count()
        if self.device == "auto":
            return torch.device("cuda" if found else "cpu")
        if self.device not in ("cpu", "cuda", *(f"cuda:{number}" for number in range(found))):
            raise ConfigError(
                f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:0' to the number of devices, {found} here, "
                f"got {self.device!r}."
            )
        if self.device == "cuda" and not found:
            raise ConfigError("`device` is 'cuda', but no such device was found. Use device='cpu' or 'auto'.")
        return torch.device(self.device)


class Learner(Protocol):
    """The contract of what the loop trains."""

    def start_epoch(self, epoch: int) -> None:
        """Before the batches of an epoch, counted from 1."""

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """Learn from a batch; the loss before the step, detached."""

    def risk(self, batch: Batch) -> Tensor:
        """The risk on held-out rows."""

    def state(self) -> list[Tensor]:
        """The tensors that make up what was learned, to keep a copy of the best epoch."""


@dataclass
class History:
    """One record an epoch."""

    loss: list[float] = field(default_factory=list)
    held_out_risk: list[float] = field(default_factory=list)  # empty without patience
    seconds: float = 0.0
    best_epoch: int = 0  # the epoch whose parameters were kept, counted from 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


class LastFiniteState:
    """A copy of the state at the start of the last epoch whose loss was finite: a divergence loses an epoch, not a fit.

    The loss of an epoch is computed before its steps, so it is the loss of the state at its start.
    """

    def __init__(self, state: Callable[[], list[Tensor]]) -> None:
        self.state = state
        now = state()
        copied = sum(tensor.numel() for tensor in now) <= MAX_COPIED_NUMBERS
        self.start, self.good = ([tensor.clone() for tensor in now] if copied else [] for _ in range(2))
        self.epochs, self.validated = 0, False  # epochs that the good state has seen

    def start_epoch(self) -> None:
        """Copy the state."""
        if self.start:
            torch._foreach_copy_(self.start, self.state())

    def confirm(self, epoch: int) -> None:
        """The loss of this epoch is finite."""
        if not self.validated:
            self.start, self.good, self.epochs = self.good, self.start, epoch - 1

    def best(self, state: list[Tensor], epoch: int) -> None:
        """From here on the best state on held-out rows is the good one; its owner keeps it up to date."""
        self.start, self.good, self.epochs, self.validated = [], state, epoch, True

    def restore(self) -> bool:
        """Put the good state back; False where nothing was learned in it."""
        if not self.good or self.epochs == 0:
            return False
        torch._foreach_copy_(self.state(), self.good)
        return True


def half_cosine(step: float, total: float) -> float:
    """(1 + cos(pi step / total)) / 2."""
    return (1 + math.cos(math.pi * step / total)) / 2


def train(
    learner: Learner, batches: Batches, held_out: Batch | None, training: Training, callback: Callback | None = None
) -> History:
    """Train the planned epochs, or until the held-out risk stops improving; leave the best parameters in the learner.

    `callback` is called after each epoch. A divergence or Ctrl-C leaves those of the last good epoch there, and its
    history on the error.
    """
    history, good = History(), LastFiniteState(learner.state)
    try:
        _train(learner, batches, held_out, training, callback, history, good)
    except (DivergenceError, KeyboardInterrupt) as stop:
        error = stop if isinstance(stop, DivergenceError) else Interrupted()
        if good.restore():
            epochs = slice(good.epochs)
            error.history = History(history.loss[epochs], history.held_out_risk[epochs], history.seconds, good.epochs)
        raise error from None
    return history


def _train(
    learner: Learner,
    batches: Batches,
    held_out: Batch | None,
    training: Training,
    callback: Callback | None,
    history: History,
    good: LastFiniteState,
) -> None:
    started, rows = time.perf_counter(), batches.n_rows
    epochs, step = training.planned_epochs(rows), 0
    best, best_state = math.inf, [tensor.clone() for tensor in learner.state()] if held_out is not None else []
    for epoch in range(1, epochs + 1):
        good.start_epoch()
        learner.start_epoch(epoch)
        losses = torch.zeros((), device=batches.device)
        for batch in batches.epoch():
            losses = losses + learner.step(batch, training.rate(step, epochs * len(batches), rows))
            step += 1
        loss = float(losses / len(batches))
        history.loss.append(loss)
        if not math.isfinite(loss):
            raise DivergenceError(
                f"training diverged in epoch {epoch}: the loss is {loss}. "
                f"Lower `learning_rate` (now {training.learning_rate}) or raise `l2`."
            )
        good.confirm(epoch)
        history.seconds = time.perf_counter() - started
        metrics = {"loss": loss}
        if held_out is None or training.patience is None:
            history.best_epoch = epoch
            _report(callback, epoch, epochs, metrics)
            continue
        with torch.no_grad():
            history.held_out_risk.append(learner.risk(held_out).item())
        if not math.isfinite(history.held_out_risk[-1]):
            raise DivergenceError(
                f"the risk on held-out rows is {history.held_out_risk[-1]} in epoch {epoch}. Are there too few? "
                f"Raise `validation` (now {training.validation:g}), or train without `patience`."
            )
        _report(callback, epoch, epochs, metrics | {"held_out_risk": history.held_out_risk[-1]})
        if history.held_out_risk[-1] < best:
            best, history.best_epoch = history.held_out_risk[-1], epoch
            torch._foreach_copy_(best_state, learner.state())
            good.best(best_state, epoch)
        elif epoch - history.best_epoch >= training.patience:
            break
    if held_out is not None:
        torch._foreach_copy_(learner.state(), best_state)
    history.seconds = time.perf_counter() - started


def _report(callback: Callback | None, epoch: int, epochs: int, metrics: dict[str, float]) -> None:
    if callback is not None:
        callback(FitEvent("epoch", epoch, epochs, metrics))
