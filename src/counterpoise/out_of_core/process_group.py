"""One model trained by several processes: each has a shard of every batch, and their gradients are averaged.

With n_r of the n rows of a batch in process r of R, and the loss of the batch a mean over its rows,

    loss = mean over r of weight_r x loss_r,   weight_r = R n_r / n

so that steps against averaged gradients are those of one process that has all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from counterpoise.data.batches import Batch
from counterpoise.training.loop import Learner
from counterpoise.training.optimizer import Rate, optimizers_of


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together, and which of them this is."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_this_process(cls) -> ProcessGroup:
        """The rank and the size that torch's process group has here."""
        return cls(distributed.get_rank(), distributed.get_world_size())

    def cut(self, first: int, last: int) -> tuple[int, int]:
        """The positions between `first` and `last` that are of this process: nearly as many as of any other."""
        rows = last - first
        return first + rows * self.rank // self.size, first + rows * (self.rank + 1) // self.size

    def average(self, values: Tensor) -> Tensor:
        """The mean over processes, without gradients."""
        total = values.detach().clone()
        distributed.all_reduce(total)
        return total / self.size


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchShard(Batch):
    """The rows of a batch that are in this process."""

    group: ProcessGroup
    weight: float  # of the loss of these rows, in the mean over processes

    def sum(self, values: Tensor) -> Tensor:
        """len(values) x the mean over all rows of the batch."""
        return len(values) * self.group.average(self.weight * values.mean())


class ProcessGroupLearner:
    """A learner whose optimisers average gradients over processes, and whose loss is that of the whole batch."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.averages = learner, []
        for optimizer in optimizers_of(learner):
            optimizer.gradients = AveragedGradients(optimizer.parameters)
            self.averages.append(optimizer.gradients)

    def start_epoch(self, epoch: int) -> None:
        self.learner.start_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """A step of the learner on a shard; the loss of the batch."""
        assert isinstance(batch, BatchShard)
        for average in self.averages:
            average.weight = batch.weight
        return batch.group.average(batch.weight * self.learner.step(batch, rate))

    def risk(self, batch: Batch) -> Tensor:
        return self.learner.risk(batch)

    def state(self) -> list[Tensor]:
        return self.learner.state()


class AveragedGradients:
    """Gradients of weight x loss averaged over processes by torch's DistributedDataParallel.

    It averages what arrives at the parameters of a module between its forward and the end of backward. Our losses are
    made of more than one forward (rows and pairs at once, two models), so what it wraps holds the parameters and hands
    the loss through; its hooks stand at the parameters and send the first gradients off while backward still works on
    the others. Backward goes to these parameters alone.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.weight = 1.0
        self.module = DistributedDataParallel(_PassThrough(parameters), gradient_as_bucket_view=True)

    def __call__(self, loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The gradients of the mean over processes of weight x loss."""
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(self.module(self.weight * loss), inputs=list(parameters))
        return tuple(torch.zeros_like(own) if own.grad is None else own.grad for own in parameters)


class _PassThrough(nn.Module):
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self, loss: Tensor) -> Tensor:
        return loss
