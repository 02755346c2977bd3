"""Adam on a loss and a Gaussian prior.

The same arithmetic as torch.optim.Adam, whose construction imports torch's compiler: longer than a whole fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

Rate = float | Tensor  # a factor of the learning rate; a tensor where steps are replayed as a CUDA graph
Gradients = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]


class Model(Protocol):
    """The contract of what `Adam` trains."""

    def parameters(self) -> Iterator[Tensor]:
        """Its parameters."""

    def precisions(self) -> list[float]:
        """The precision of the Gaussian prior on each; 0 for none."""


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradient of a loss in each parameter; 0 where it does not depend on one."""
    return torch.autograd.grad(loss, list(parameters), materialize_grads=True)


class Adam:
    """Adam (Kingma and Ba 2015) with its default betas, on a loss + 1/2 precision |parameter|^2 for each parameter.

    `gradients` computes the gradients of a loss; training by several processes replaces it.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float, precisions: Sequence[float] = ()) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.precisions = list(precisions) or [0.0] * len(self.parameters)
        self.steps: int | Tensor = 0  # a tensor where steps are replayed as a CUDA graph
        self.gradients: Gradients = gradients_of
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.row_precisions: dict[int, Tensor] = {}  # of the parameters whose rows have their own, (rows, 1, ...)
        self._group()

    def _group(self) -> None:
        self._places: dict[float, list[int]] = {}  # of the parameters of each precision
        whole = [0.0 if place in self.row_precisions else value for place, value in enumerate(self.precisions)]
        for place, precision in enumerate(whole):
            if self.parameters[place].numel():  # CUDA's fused kernel refuses tables without columns
                self._places.setdefault(precision, []).append(place)
        self._whole = [place for place in range(len(whole)) if place not in self.row_precisions]
        self._halves = self.first[0].new_tensor([whole[place] for place in self._whole]) / 2

    def scale_precisions(self, scales: Mapping[int, Tensor]) -> None:
        """Multiply the prior precision of each row of some parameters, given by their places; (rows,) each.

        Later scales take the place of those before, in the same memory.
        """
        known = set(self.row_precisions)
        for place, scale in scales.items():
            shape = (-1, *(1 for _ in self.parameters[place].shape[1:]))
            precision = self.precisions[place] * scale.to(self.parameters[place]).view(shape)
            if place in self.row_precisions:
                self.row_precisions[place].copy_(precision)
            else:
                self.row_precisions[place] = precision
        if any(place not in known for place in scales):
            self._group()

    @classmethod
    def of(cls, models: Sequence[Model], learning_rate: float, rows: int) -> Self:
        """An optimiser of models whose loss is a mean over so many rows: the prior counts as one of their sums."""
        parameters = [parameter for model in models for parameter in model.parameters()]
        precisions = [precision / rows for model in models for precision in model.precisions()]
        return cls(parameters, learning_rate, precisions)

    def step(self, loss: Tensor, rate: Rate = 1.0) -> None:
        """One step against the gradient of `loss` in these parameters alone, at `rate` times the learning rate."""
        gradients = list(self.gradients(loss, self.parameters))
        with torch.no_grad():
            for place, precision in self.row_precisions.items():
                gradients[place] = torch.addcmul(gradients[place], precision, self.parameters[place])
            self._move(gradients, rate * self.learning_rate)

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """The sum of 1/2 precision |parameter|^2."""
        total = self._halves.new_zeros(())
        if self._whole:
            norms = torch._foreach_norm([self.parameters[place] for place in self._whole])
            total = torch.stack(norms).square() @ self._halves
        for place, precision in self.row_precisions.items():
            parameter = self.parameters[place]
            squares = torch.linalg.vector_norm(parameter.view(len(parameter), -1), dim=1).square()
            total = total + squares @ precision.flatten() / 2
        return total

    def _move(self, gradients: Sequence[Tensor], rate: Rate) -> None:
        """One step by torch's fused kernel, one pass over each parameter; it needs contiguous gradients."""
        self.steps += 1
        count, device = self.steps, gradients[0].device
        steps = count.float() if isinstance(count, Tensor) else torch.full((), float(count), device=device)
        rate = rate.float() if isinstance(rate, Tensor) else rate
        for precision, places in self._places.items():
            torch._fused_adam_(
                [self.parameters[place] for place in places],
                [gradients[place].contiguous() for place in places],
                [self.first[place] for place in places],
                [self.second[place] for place in places],
                [],
                [steps] * len(places),
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=precision,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )


def optimizers_of(part: Any, seen: set[int] | None = None) -> Iterator[Adam]:
    """The optimisers of a learner and its parts, in the order of their attributes."""
    seen = set() if seen is None else seen
    ours = type(part).__module__.startswith("counterpoise.") and hasattr(part, "__dict__")
    if id(part) in seen or not (ours or isinstance(part, list | tuple)):
        return
    seen.add(id(part))
    if isinstance(part, Adam):
        yield part
        return
    for value in vars(part).values() if ours else part:
        yield from optimizers_of(value, seen)
