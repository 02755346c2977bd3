"""A fit that was stopped goes on where it was: what was learned after an epoch, in one file beside the run to come.

Everything before the first epoch is made again, and so are the draws of the epochs that were done: from the same seed
they are the same. So a checkpoint holds what steps have changed, and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.adam import Rate
from counterpoise.errors import ConfigError
from counterpoise.graphs import optimizers
from counterpoise.persistence import write_file
from counterpoise.training import Batch, Learner

FILE = "checkpoint.safetensors"
SECONDS = 30.0  # between two checkpoints, so that short fits write none


@dataclass(frozen=True)
class Checkpoint:
    """The file of a fit. `key`: what decides its result; a file of another key is refused."""

    file: Path
    key: str
    resume: bool = False  # whether to go on from what is there

    def of(self, learner: Learner) -> Resumable:
        """The same learner, written down now and then, and brought to where it was."""
        return Resumable(learner, self)


class Resumable:
    """A learner that is written down after an epoch, and passes by the epochs that its checkpoint has seen."""

    def __init__(self, learner: Learner, checkpoint: Checkpoint) -> None:
        self.learner, self.checkpoint = learner, checkpoint
        self.losses: list[Tensor] = []  # the mean loss of every epoch done
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, 0
        self.saved = time.monotonic()
        if checkpoint.resume and checkpoint.file.exists():
            self._restore()
        self.passed = len(self.losses)

    def begin_epoch(self, epoch: int) -> None:
        """Close the epoch before, and let the learner begin: also an epoch that is passed, for weights draw here."""
        if self.epoch > self.passed:
            self.losses.append(self.sum.cpu() / self.steps)
            if time.monotonic() - self.saved >= SECONDS:
                self._save()
        self.sum, self.steps, self.epoch = torch.zeros(()), 0, epoch
        self.learner.begin_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """A step of the learner; in an epoch that is passed, the loss that it had."""
        if self.epoch <= self.passed:
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

    def _changing(self) -> dict[str, Tensor]:
        """Every tensor that steps change."""
        moments = [moment for optimizer in optimizers(self.learner) for moment in (*optimizer.first, *optimizer.second)]
        return {f"{number:04d}": tensor for number, tensor in enumerate([*self.learner.state(), *moments])}

    def _save(self) -> None:
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._changing().items()}
        tensors["losses"] = torch.stack(self.losses)
        tensors["steps"] = torch.tensor([int(optimizer.steps) for optimizer in optimizers(self.learner)])
        self.checkpoint.file.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.checkpoint.file, save(tensors, {"key": self.checkpoint.key}))
        self.saved = time.monotonic()

    def _restore(self) -> None:
        from safetensors import SafetensorError, safe_open

        file, own = self.checkpoint.file, self._changing()
        try:
            with safe_open(file, framework="pt") as found:
                if found.metadata().get("key") != self.checkpoint.key:
                    raise ConfigError(f"{file} is of another fit: other data or settings. Fit without --resume.")
                for name, tensor in own.items():
                    tensor.detach().copy_(found.get_tensor(name))
                self.losses = list(found.get_tensor("losses"))
                steps = found.get_tensor("steps").tolist()
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ConfigError(f"{file} cannot be read ({error}). Fit without --resume.") from None
        for optimizer, count in zip(optimizers(self.learner), steps, strict=True):
            optimizer.steps = count
