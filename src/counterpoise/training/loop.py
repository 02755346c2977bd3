"""The one training loop: batches of observed pairs beside uniform pairs of D, early stopping, history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, CounterpoiseError, check_flag, check_number
from counterpoise.out_of_core.process_group import ALONE, WHOLE, BatchShard, ProcessGroup
from counterpoise.training.optimizer import Rate

# What was learned when training last went well: a stop or a divergence loses an epoch, not the fit.

LIMIT = 1 << 27  # numbers: beyond, two more copies would take more memory than they are worth


class LastFiniteState:
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


FULL_BATCH_LIMIT = 1 << 18  # rows up to which "auto" takes the whole log as one batch
BATCHES = 10  # an epoch on a larger log: as many steps for a log of any size, since each touches all parameters
SMALLEST_BATCH, LARGEST_BATCH = 1 << 15, 1 << 19  # rows that "auto" takes then
FINAL_PAIRS = 1 << 20  # uniform pairs of D that the risk of the whole log is taken from at most, when all is done
ALL_PAIRS_LIMIT = 10**6  # pairs of D up to which a full-batch step looks at all of them
PAIRS_A_ROW = 2  # uniform pairs of D for each observed row, where not all are looked at
THREADS_PAY = 1 << 17  # rows a step from which a second thread pays

Progress = Callable[[int, int, float], None]  # (epochs done, epochs planned, loss)


class DivergenceError(CounterpoiseError):
    """The loss stopped being a number. `history`: up to the last good epoch, None where there is none."""

    history: History | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while training, with `history` as above."""

    history: History | None = None


@dataclass
class Training(Configurable):
    """How a model is trained.

    `batch_size`: rows a step, "full" for the whole log, or "auto": full up to 262,144 rows, beyond
    that ten batches an epoch, of 32,768 to 524,288 rows.
    `learning_rate`: Adam's, at the start; it falls to 0 along a half cosine, so the last epochs settle.
    `patience`: stop when the held-out risk has not improved for so many epochs, and restore the best epoch; None
    trains all epochs on the whole log. `validation` is the share of the log held out, only when there is patience.
    `pairs`: the uniform pairs of D a step for each observed row, for methods that look at unobserved pairs; "all" for
    D itself, so that means over D are exact; or "auto": all up to a million pairs if the batch is full, else 2 a row.
    `graph`: replay steps as a CUDA graph where the device is a GPU and the method allows it.
    """

    epochs: int = 150
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

    def rows_a_step(self, rows: int) -> int:
        """The batch size for a log of so many rows."""
        if self.batch_size == "full" or (self.batch_size == "auto" and rows <= FULL_BATCH_LIMIT):
            return rows
        if self.batch_size == "auto":
            return min(max(math.ceil(rows / BATCHES), SMALLEST_BATCH), LARGEST_BATCH)
        return min(rows, int(self.batch_size))

    def pairs_a_row(self, log: FeedbackLog) -> int | None:
        """The uniform pairs of D for each row of a step on this log; None for all of D."""
        if self.pairs != "auto":
            return None if self.pairs == "all" else int(self.pairs)
        exact = log.n_pairs <= ALL_PAIRS_LIMIT and self.rows_a_step(len(log)) == len(log)
        return None if exact else PAIRS_A_ROW

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


class Batch(NamedTuple):
    """Some observed rows and, where a method asks for them, uniform pairs of D."""

    rows: Tensor  # positions in the log
    users: Tensor
    items: Tensor
    labels: Tensor
    pair_users: Tensor | None  # None: all pairs of D, user by user
    pair_items: Tensor | None
    share: BatchShard = WHOLE  # whether there are more of its rows in other processes

    def without_pairs(self) -> Self:
        """Its rows alone."""
        return self._replace(pair_users=self.users[..., :0], pair_items=self.items[..., :0])


class Batches:
    """Epochs of batches from a log on a device: every row once an epoch, `pairs_a_row` uniform pairs of D for each.

    With `pairs_a_row` None every batch stands beside all of D.
    """

    ranks: ProcessGroup = ALONE

    def __init__(
        self,
        log: FeedbackLog,
        batch_size: int,
        device: torch.device,
        generator: torch.Generator,
        pairs_a_row: int | None = 0,
    ) -> None:
        self.users = torch.from_numpy(log.users).to(device)
        self.items = torch.from_numpy(log.items).to(device)
        self.labels = torch.from_numpy(log.labels).to(device)
        self.shape, self.batch_size, self.device = log.shape, batch_size, device
        self.generator, self.pairs_a_row = generator, pairs_a_row

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.labels) / self.batch_size)

    def whole(self) -> Batch:
        """All rows, in the order of the log."""
        return self._whole(len(self.labels) * (self.pairs_a_row or 0))

    def final(self) -> Batch:
        """All rows, beside no more than a million pairs of D unless they are all of it."""
        return self._whole(min(len(self.labels) * (self.pairs_a_row or 0), FINAL_PAIRS))

    def _whole(self, pairs: int) -> Batch:
        rows = torch.arange(len(self.labels), device=self.device)
        return Batch(rows, self.users, self.items, self.labels, *self._uniform_pairs(pairs))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log; in random order unless one batch holds everything."""
        if len(self) == 1:
            yield self.whole()
            return
        order = torch.randperm(len(self.labels), generator=self.generator).to(self.device)
        for rows in torch.tensor_split(order, len(self)):  # of nearly equal size: no last one of a few rows
            pairs = self._uniform_pairs(len(rows) * (self.pairs_a_row or 0))
            users, items, labels = (column.index_select(0, rows) for column in (self.users, self.items, self.labels))
            yield Batch(rows, users, items, labels, *pairs)

    def _uniform_pairs(self, count: int) -> tuple[Tensor | None, Tensor | None]:
        """Pairs drawn uniformly, with replacement, from all of D; D itself is never listed."""
        if self.pairs_a_row is None:
            return None, None
        users, items = (
            torch.randint(high, (count,), generator=self.generator, dtype=torch.int32).to(self.device)
            for high in self.shape
        )
        return users, items


class Learner(Protocol):
    """What the loop trains."""

    def begin_epoch(self, epoch: int) -> None:
        """Before the batches of an epoch, counted from 1."""

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """Learn from a batch; the loss before the step, by the weight of its share, detached."""

    def risk(self, batch: Batch) -> Tensor:
        """The risk on held-out rows."""

    def state(self) -> list[Tensor]:
        """The tensors that make up what was learned, to keep a copy of the best epoch."""


@dataclass
class History:
    """One record an epoch."""

    loss: list[Any] = field(default_factory=list)  # a number; of fits side by side a list of them
    held_out_risk: list[float] = field(default_factory=list)  # empty without patience
    seconds: float = 0.0
    best_epoch: int = 0  # the epoch whose parameters were kept, counted from 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def half_cosine(step: int, total: int | Tensor) -> Rate:
    """(1 + cos(pi step / total)) / 2, and 0 from the end on."""
    if isinstance(total, Tensor):
        return (1 + torch.cos(math.pi * (step / total).clamp(max=1))) / 2
    return (1 + math.cos(math.pi * step / total)) / 2


def train(
    learner: Learner, batches: Batches, held_out: Batch | None, training: Training, progress: Progress | None = None
) -> History:
    """Train for `epochs`, or until the held-out risk stops improving, and leave the best parameters in the learner.

    A divergence or Ctrl-C leaves those of the last good epoch there, and its history on the error.
    """
    history, good = History(), LastFiniteState(learner.state)
    try:
        _train(learner, batches, held_out, training, progress, history, good)
    except (DivergenceError, KeyboardInterrupt) as stop:
        error = stop if isinstance(stop, DivergenceError) else Interrupted()
        if good.restore():
            epochs = slice(good.epochs)
            kept = History(history.loss[epochs], history.held_out_risk[epochs], history.seconds, good.epochs)
            error.history = kept
        raise error from None
    return history


def _train(
    learner: Learner,
    batches: Batches,
    held_out: Batch | None,
    training: Training,
    progress: Progress | None,
    history: History,
    good: LastFiniteState,
) -> None:
    started = time.perf_counter()
    epochs, step = int(torch.as_tensor(training.epochs).max()), 0
    best, best_state = math.inf, [tensor.clone() for tensor in learner.state()] if held_out is not None else []
    for epoch in range(1, epochs + 1):
        good.begin()
        learner.begin_epoch(epoch)
        losses = torch.zeros((), device=batches.device)
        for batch in batches.epoch():
            losses = losses + learner.step(batch, half_cosine(step, training.epochs * len(batches)))
            step += 1
        losses = batches.ranks.averaged(losses / len(batches))
        history.loss.append(losses.tolist())
        mean = float(np.mean(history.loss[-1]))
        if not math.isfinite(mean):
            raise DivergenceError(
                f"training diverged in epoch {epoch}: the loss is {mean}. "
                f"Lower `learning_rate` (now {training.learning_rate}) or raise `l2`."
            )
        good.confirm(epoch)
        history.seconds = time.perf_counter() - started
        if progress is not None:
            progress(epoch, epochs, mean)
        if held_out is None or training.patience is None:
            history.best_epoch = epoch
            continue
        with torch.no_grad():
            history.held_out_risk.append(learner.risk(held_out).item())
        if not math.isfinite(history.held_out_risk[-1]):
            raise DivergenceError(
                f"the risk on held-out rows is {history.held_out_risk[-1]} in epoch {epoch}. Are there too few? "
                f"Raise `validation` (now {training.validation:g}), or train without `patience`."
            )
        if history.held_out_risk[-1] < best:
            best, history.best_epoch = history.held_out_risk[-1], epoch
            torch._foreach_copy_(best_state, learner.state())
            good.best(best_state, epoch)
        elif epoch - history.best_epoch >= training.patience:
            break
    if held_out is not None:
        torch._foreach_copy_(learner.state(), best_state)
    history.seconds = time.perf_counter() - started
