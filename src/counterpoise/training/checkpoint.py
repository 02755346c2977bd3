"""Checkpoints: what was learned after an epoch, in one file beside the run to come, to resume a fit that was stopped.

Everything before the first epoch is made again, and so are the draws of the epochs that were done: from the same seed
they are the same. So a checkpoint holds what steps have changed, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, DataError
from counterpoise.storage import check_file, write_file
from counterpoise.training.loop import Learner
from counterpoise.training.optimizer import Rate, optimizers_of

SECONDS_BETWEEN = 30.0  # between two checkpoints, so that short fits write none


@dataclass(frozen=True)
class Checkpoint:
    """The file of a fit. `key`: what decides its result; a file of another key is refused."""

    file: Path
    key: str
    resume: bool = False  # whether to go on from what is there
    writes: bool = True  # where several processes train together, one writes
    every: float | None = None  # seconds between two of them, by default `SECONDS_BETWEEN`

    def of(self, learner: Learner) -> Resumable:
        """The learner, saved now and then, and resumed where it was."""
        return Resumable(learner, self)

    def write(self, learner: Learner, losses: Sequence[Tensor]) -> None:
        """Save what a learner has learned in epochs of these mean losses."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _changing(learner).items()}
        tensors["losses"] = torch.stack(list(losses))
        tensors["steps"] = torch.tensor([int(optimizer.steps) for optimizer in optimizers_of(learner)])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.file, save(tensors, {"key": self.key}))

    def read(self, learner: Learner) -> list[Tensor]:
        """Put what was saved into a fresh learner; the losses of its epochs."""
        from safetensors import SafetensorError, safe_open

        try:
            check_file(self.file, links=False)
            with safe_open(self.file, framework="pt") as found:
                if found.metadata().get("key") != self.key:
                    raise ConfigError(f"{self.file} is of another fit: other data or settings. Fit without --resume.")
                for name, tensor in _changing(learner).items():
                    tensor.detach().copy_(found.get_tensor(name))
                losses, steps = list(found.get_tensor("losses")), found.get_tensor("steps").tolist()
        except (SafetensorError, DataError, OSError, RuntimeError) as error:
            raise ConfigError(f"{self.file} cannot be read ({error}). Fit without --resume.") from None
        for optimizer, count in zip(optimizers_of(learner), steps, strict=True):
            optimizer.steps = count
        return losses


class Resumable:
    """A learner that is saved after an epoch, and skips the epochs that its checkpoint has seen."""

    def __init__(self, learner: Learner, checkpoint: Checkpoint) -> None:
        self.learner, self.checkpoint = learner, checkpoint
        self.losses: list[Tensor] = []  # the mean loss of every epoch done
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, 0
        self.saved = time.monotonic()
        if checkpoint.resume and checkpoint.file.exists():
            self.losses = checkpoint.read(learner)
        self.epochs_done = len(self.losses)

    def start_epoch(self, epoch: int) -> None:
        """Close the epoch before, and start the learner's, also one that is skipped: weights may draw numbers in it."""
        if self.epoch > self.epochs_done:
            self.losses.append((self.sum / self.steps).cpu())
            every = SECONDS_BETWEEN if self.checkpoint.every is None else self.checkpoint.every
            if self.checkpoint.writes and time.monotonic() - self.saved >= every:
                self.checkpoint.write(self.learner, self.losses)
                self.saved = time.monotonic()
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, epoch
        if 0 < self.epochs_done == epoch - 1:  # epochs that were skipped may have changed the prior since it was read
            self.checkpoint.read(self.learner)
        self.learner.start_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """A step of the learner; in an epoch that is skipped, the loss that it had."""
        if self.epoch <= self.epochs_done:
            return self.losses[self.epoch - 1].to(batch.labels.device)
        loss = self.learner.step(batch, rate)
        self.sum, self.steps = self.sum.to(loss.device) + loss, self.steps + 1
        return loss

    def risk(self, batch: Batch) -> Tensor:
        """The learner's."""
        return self.learner.risk(batch)

    def state(self) -> list[Tensor]:
        """The learner's."""
        return self.learner.state()


def _changing(learner: Learner) -> dict[str, Tensor]:
    """Every tensor that steps change."""
    optimizers = list(optimizers_of(learner))
    moments = [moment for optimizer in optimizers for moment in (*optimizer.first, *optimizer.second)]
    priors = {
        f"prior-{number}-{place}": values
        for number, optimizer in enumerate(optimizers)
        for place, values in optimizer.row_precisions.items()
    }
    return {f"{number:04d}": tensor for number, tensor in enumerate([*learner.state(), *moments])} | priors
