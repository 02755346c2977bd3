"""CUDA graphs: a step of training is recorded once, then replayed, so that its many small kernels cost one launch.

On a GPU a step on a small log is some hundred kernels of a few microseconds, and launching them takes longer than
running them. What is recorded reads and writes the same memory each time: batches are copied into that of the first,
the learning rate and Adam's count of steps become tensors. Where recording fails, training goes on without it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.imputation.base import ConstantLabel, LearnedLabel
from counterpoise.imputation.filtered import FilteredErrors
from counterpoise.imputation.mnar import FittedMNAR
from counterpoise.imputation.outcome import OutcomeLabel
from counterpoise.training.contracts import FittedImputation
from counterpoise.training.ensemble import EnsembleLearner
from counterpoise.training.learner import Learner
from counterpoise.training.loop import Learner as AnyLearner
from counterpoise.training.loop import Training
from counterpoise.training.optimizer import Rate, optimizers_of
from counterpoise.weights.balancing import BalancedWeights
from counterpoise.weights.base import ConstantWeights, InversePropensity, LabelWeights
from counterpoise.weights.capping import CappedWeights

WARM_UP_STEPS = 3  # before the first step is recorded: libraries allocate their workspaces in them
# Parts whose steps change nothing but tensors in place, and ask nothing of the host.
REPLAYABLE_WEIGHTS = (ConstantWeights, LabelWeights, InversePropensity, BalancedWeights)
REPLAYABLE_IMPUTATIONS = (FittedImputation, ConstantLabel, LearnedLabel, FittedMNAR, OutcomeLabel)


def with_cuda_graphs(learner: Any, training: Training) -> Any:
    """The learner, its steps replayed where there is a GPU, the parts allow it and `training.graph` is on."""
    if not (training.graph and torch.cuda.is_available() and is_replayable(learner)):
        return learner
    return CudaGraphLearner(learner)


def is_replayable(learner: Any) -> bool:
    """Whether each step does the same to any batch, with no number that the host must know."""
    learner = learner.main if isinstance(learner, EnsembleLearner) else learner
    if not isinstance(learner, Learner):
        return True  # a scorer that is trained by itself
    if type(learner) is not Learner:
        return False  # solved in closed form
    weights = learner.weights.inner if isinstance(learner.weights, CappedWeights) else learner.weights
    imputation = learner.imputation.base if isinstance(learner.imputation, FilteredErrors) else learner.imputation
    return type(weights) in REPLAYABLE_WEIGHTS and type(imputation) in REPLAYABLE_IMPUTATIONS


class CudaGraphLearner:
    """A learner whose step is replayed, once it has been recorded."""

    def __init__(self, learner: AnyLearner) -> None:
        self.learner, self.steps = learner, 0
        self.layout: tuple[Any, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        self.batch: Batch
        self.rate: Tensor
        self.loss: Tensor

    def start_epoch(self, epoch: int) -> None:
        """The learner's; what was recorded is forgotten where a step is made of something else from here on."""
        self.learner.start_epoch(epoch)
        # The members of an ensemble who learn, and the parameters whose rows have precisions of their own.
        learning = len(getattr(self.learner, "learning", ()))
        layout = learning, *(tuple(optimizer.row_precisions) for optimizer in optimizers_of(self.learner))
        if layout != self.layout:
            self.graph, self.steps, self.layout = None, 0, layout

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """The learner's, replayed where a step on a batch of this shape was recorded."""
        self.steps += 1
        if self.graph is None and self.steps > WARM_UP_STEPS and not self.failed and batch.labels.is_cuda:
            self._record(batch, rate)
        if self.graph is None or _shapes(self.batch) != _shapes(batch):
            return self.learner.step(batch, rate)
        for name, own in _tensors(self.batch).items():
            own.copy_(getattr(batch, name))
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
        optimizers = list(optimizers_of(self.learner))
        counts = [optimizer.steps for optimizer in optimizers]
        self.batch = replace(batch, **{name: tensor.clone() for name, tensor in _tensors(batch).items()})
        self.rate = torch.as_tensor(rate, dtype=torch.float64).to(device, copy=True)
        for optimizer, count in zip(optimizers, counts, strict=True):
            optimizer.steps = torch.tensor(float(count), dtype=torch.float64, device=device)
        try:
            with torch.cuda.graph(graph):
                self.loss = self.learner.step(self.batch, self.rate)
            self.graph = graph
        except RuntimeError:  # something in the step asks the host, or is not allowed in a graph
            self.failed = True
            for optimizer, count in zip(optimizers, counts, strict=True):
                optimizer.steps = count
            with suppress(RuntimeError):
                torch.cuda.synchronize(device)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _shapes(batch: Batch) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in _tensors(batch).items()}
