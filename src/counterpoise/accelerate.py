"""A step of training as one CUDA graph: recorded once, then replayed, so that its many small kernels cost one launch.

On a GPU a step on a small log is some hundred kernels of a few microseconds, and launching them takes longer than
running them. What is recorded reads and writes the same memory each time: batches are copied into that of the first,
the learning rate and Adam's count of steps become tensors. Where recording fails, training goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from counterpoise.training.loop import Batch, Learner, Training
from counterpoise.training.optimizer import Adam, Rate

WARM = 3  # steps before the first is recorded: libraries make their workspaces in them


class CudaGraphLearner:
    """A learner whose step is replayed, once it has been recorded."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.steps = learner, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fails = False
        self.batch: Batch
        self.rate: Tensor
        self.loss: Tensor

    def begin_epoch(self, epoch: int) -> None:
        """The learner's."""
        self.learner.begin_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """The learner's, replayed where a step on a batch of this shape was recorded."""
        self.steps += 1
        if self.graph is None and self.steps > WARM and not self.fails and batch.labels.is_cuda:
            self._record(batch, rate)
        if self.graph is None or not _alike(self.batch, batch):
            return self.learner.step(batch, rate)
        for own, given in zip(self.batch, batch, strict=True):
            if isinstance(own, Tensor) and isinstance(given, Tensor):
                own.copy_(given)
        self.rate.copy_(torch.as_tensor(rate))
        self.graph.replay()
        return self.loss

    def risk(self, batch: Batch) -> Tensor:
        """The learner's."""
        return self.learner.risk(batch)

    def state(self) -> list[Tensor]:
        """The learner's."""
        return self.learner.state()

    def _record(self, batch: Batch, rate: Rate) -> None:
        device, graph = batch.labels.device, torch.cuda.CUDAGraph()
        counts = [optimizer.steps for optimizer in optimizers(self.learner)]
        self.batch = Batch(*(field.clone() if isinstance(field, Tensor) else field for field in batch))  # type: ignore[arg-type]
        self.rate = torch.as_tensor(rate, dtype=torch.float64).to(device, copy=True)
        for optimizer, count in zip(optimizers(self.learner), counts, strict=True):
            optimizer.steps = torch.tensor(float(count), dtype=torch.float64, device=device)
        try:
            with torch.cuda.graph(graph):
                self.loss = self.learner.step(self.batch, self.rate)
            self.graph = graph
        except RuntimeError:  # something in the step asks the host, or is not allowed in a graph
            self.fails = True
            for optimizer, count in zip(optimizers(self.learner), counts, strict=True):
                optimizer.steps = count
            with suppress(RuntimeError):
                torch.cuda.synchronize(device)


def with_cuda_graphs(learner: Any, training: Training) -> Any:
    """The learner, replayed on a GPU where it can be and `training.graph` allows it."""
    return CudaGraphLearner(learner) if training.graph and learner.still and torch.cuda.is_available() else learner


def _alike(batch: Batch, other: Batch) -> bool:
    """Whether two batches have the same shapes."""
    shapes = [[getattr(field, "shape", None) for field in each] for each in (batch, other)]
    return shapes[0] == shapes[1]


def optimizers(part: Any, seen: set[int] | None = None) -> Iterator[Adam]:
    """The optimisers of a learner and its parts, in the order in which they are kept."""
    seen = set() if seen is None else seen
    ours = type(part).__module__.startswith("counterpoise.") and hasattr(part, "__dict__")
    if id(part) in seen or not (ours or isinstance(part, list | tuple)):
        return
    seen.add(id(part))
    if isinstance(part, Adam):
        yield part
        return
    for value in vars(part).values() if ours else part:
        yield from optimizers(value, seen)
