"""A fit that was stopped goes on where it was: what was learned after an epoch, in one file beside the run to come.

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

from counterpoise.accelerate import optimizers
from counterpoise.errors import ConfigError
from counterpoise.out_of_core.process_group import ALONE
from counterpoise.storage import write_file
from counterpoise.training.loop import Batch, Learner
from counterpoise.training.optimizer import Rate

FILE = "checkpoint.safetensors"
SECONDS = 30.0  # between two checkpoints, so that short fits write none


@dataclass(frozen=True)
class Checkpoint:
    """The file of a fit. `key`: what decides its result; a file of another key is refused."""

    file: Path
    key: str
    resume: bool = False  # whether to go on from what is there
    writes: bool = True  # where several processes train together, one writes
    every: float | None = None  # seconds between two of them, by default `SECONDS`

    def of(self, learner: Learner) -> Resumable:
        """The same learner, written down now and then, and brought to where it was."""
        return Resumable(learner, self)

    def write(self, learner: Learner, losses: Sequence[Tensor]) -> None:
        """Write down what a learner has learned in epochs of these mean losses."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _changing(learner).items()}
        tensors["losses"] = torch.stack(list(losses))
        tensors["steps"] = torch.tensor([int(optimizer.steps) for optimizer in optimizers(learner)])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.file, save(tensors, {"key": self.key}))

    def read(self, learner: Learner) -> list[Tensor]:
        """Put what was written down into a learner that has just begun; the losses of its epochs."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, framework="pt") as found:
                if found.metadata().get("key") != self.key:
                    raise ConfigError(f"{self.file} is of another fit: other data or settings. Fit without --resume.")
                for name, tensor in _changing(learner).items():
                    tensor.detach().copy_(found.get_tensor(name))
                losses, steps = list(found.get_tensor("losses")), found.get_tensor("steps").tolist()
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ConfigError(f"{self.file} cannot be read ({error}). Fit without --resume.") from None
        for optimizer, count in zip(optimizers(learner), steps, strict=True):
            optimizer.steps = count
        return losses


class Resumable:
    """A learner that is written down after an epoch, and passes by the epochs that its checkpoint has seen."""

    def __init__(self, learner: Learner, checkpoint: Checkpoint) -> None:
        self.learner, self.checkpoint, self.ranks = learner, checkpoint, ALONE
        self.losses: list[Tensor] = []  # the mean loss of every epoch done
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, 0
        self.saved = time.monotonic()
        if checkpoint.resume and checkpoint.file.exists():
            self.losses = checkpoint.read(learner)
        self.passed = len(self.losses)

    def begin_epoch(self, epoch: int) -> None:
        """Close the epoch before, and let the learner begin: also an epoch that is passed, for weights draw here."""
        if self.epoch > self.passed:
            self.losses.append(self.ranks.averaged(self.sum / self.steps).cpu())
            every = SECONDS if self.checkpoint.every is None else self.checkpoint.every
            if self.checkpoint.writes and time.monotonic() - self.saved >= every:
                self.checkpoint.write(self.learner, self.losses)
                self.saved = time.monotonic()
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, epoch
        self.learner.begin_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """A step of the learner; in an epoch that is passed, the loss that it had."""
        if self.epoch <= self.passed:
            return self.losses[self.epoch - 1].to(batch.labels.device)
        loss = self.learner.step(batch, rate)
        self.sum, self.steps, self.ranks = self.sum.to(loss.device) + loss, self.steps + 1, batch.share.ranks
        return loss

    def risk(self, batch: Batch) -> Tensor:
        """The learner's."""
        return self.learner.risk(batch)

    def state(self) -> list[Tensor]:
        """The learner's."""
        return self.learner.state()


def _changing(learner: Learner) -> dict[str, Tensor]:
    """Every tensor that steps change."""
    moments = [moment for optimizer in optimizers(learner) for moment in (*optimizer.first, *optimizer.second)]
    return {f"{number:04d}": tensor for number, tensor in enumerate([*learner.state(), *moments])}
