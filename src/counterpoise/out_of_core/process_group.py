"""One model trained by several processes: each has its share of every batch, and their gradients are averaged.

With n_r of the n rows of a batch in process r of R, and the loss of the batch a mean over its rows,

    loss = mean over r of weight_r x loss_r,   weight_r = R n_r / n

so that steps against averaged gradients are those of one process that has all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as group
from torch import Tensor, nn


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together, and which of them this is."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_this_process(cls) -> ProcessGroup:
        """Its place in torch's process group."""
        return cls(group.get_rank(), group.get_world_size())

    def cut(self, first: int, last: int) -> tuple[int, int]:
        """The positions between `first` and `last` that are of this process: nearly as many as of any other."""
        rows = last - first
        return first + rows * self.rank // self.size, first + rows * (self.rank + 1) // self.size

    def share(self, first: int, last: int) -> BatchShard:
        """How its positions count among them all."""
        start, stop = self.cut(first, last)
        return BatchShard(self, self.size * (stop - start) / (last - first))

    def averaged(self, values: Tensor) -> Tensor:
        """The mean over processes, without gradients."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        group.all_reduce(total)
        return total / self.size


ALONE = ProcessGroup()


@dataclass(frozen=True)
class BatchShard:
    """Which part of a batch its rows are: all of it, unless several processes share it."""

    ranks: ProcessGroup = ALONE
    weight: float = 1.0  # of the loss of these rows, in the mean over processes

    @property
    def whole(self) -> bool:
        """Whether it is all of the batch."""
        return self.ranks.size == 1

    def weighed(self, loss: Tensor) -> Tensor:
        """weight x loss."""
        return loss if self.whole else self.weight * loss

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all rows of the batch of what is here for those of this process. (..., 1)"""
        return self.ranks.averaged(self.weighed(values.mean(-1, keepdim=True)))


WHOLE = BatchShard()


class AveragedGradients:
    """Gradients averaged over processes by torch's DistributedDataParallel.

    It averages what arrives at the parameters of a module between its forward and the end of backward. Our losses are
    made of more than one forward (a penalty, rows and pairs at once, two models), so what it wraps holds the parameters
    and hands the loss through; its hooks stand at the parameters, also behind gradients in closed form, and send
    the first ones off while backward still works on the others. Backward goes to these parameters alone.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.parameters = list(parameters)
        self.module = DistributedDataParallel(_Through(self.parameters), gradient_as_bucket_view=True)

    def __call__(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Of a loss whose mean over processes is to be minimised."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(self.module(loss), inputs=self.parameters)
        return tuple(torch.zeros_like(own) if own.grad is None else own.grad for own in self.parameters)

    def given(self, gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The same where they are known: of the sum of parameter x gradient, whose gradients they are."""
        with torch.enable_grad():
            products = [(own * known).sum() for own, known in zip(self.parameters, gradients, strict=True)]
            return self(torch.stack(products).sum())


class _Through(nn.Module):
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self, loss: Tensor) -> Tensor:
        return loss
