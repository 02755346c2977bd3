"""The optimiser: Adam on a loss and a Gaussian prior.

The same arithmetic as torch.optim.Adam, whose construction imports torch's compiler: longer than a whole fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from counterpoise.models.embedding_ops import gradients_of
from counterpoise.out_of_core.process_group import AveragedGradients

Rate = float | Tensor  # what the learning rate is multiplied with; of each of several fits side by side


class Model(Protocol):
    """What `Adam` trains."""

    def parameters(self) -> Iterator[Tensor]:
        """Its parameters."""

    def precisions(self) -> list[Rate]:
        """Of the Gaussian prior on each; 0 for none."""


class _Group(NamedTuple):
    """The parameters of one precision, with their moments."""

    precision: Any
    places: list[int]  # in all parameters
    parameters: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


class Adam:
    """Adam (Kingma and Ba 2015) with its default betas, on a loss + 1/2 precision |parameter|^2 for each parameter."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: Rate, precisions: Sequence[Rate] = ()) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.precisions = list(precisions) or [0.0] * len(self.parameters)
        self.steps: int | Tensor = 0  # a tensor where steps are replayed (`graphs`)
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.averaged: AveragedGradients | None = None
        places: dict[Any, list[int]] = {}
        for place, precision in enumerate(self.precisions):
            places.setdefault(precision, []).append(place)
        self._groups = [self._group(*group) for group in places.items()]
        plain = not any(isinstance(precision, Tensor) for precision in self.precisions)
        self._halves = self.first[0].new_tensor(self.precisions) / 2 if plain else None

    def _group(self, precision: Rate, places: list[int]) -> _Group:
        columns = self.parameters, self.first, self.second
        return _Group(precision, places, *([column[place] for place in places] for column in columns))

    @classmethod
    def of(cls, model: Model, learning_rate: Rate, rows: int, beside: Model | None = None) -> Self:
        """For a model whose loss is a mean over so many rows: its prior counts as one of their sums.

        `beside`: what else the loss depends on.
        """
        models = [model] if beside is None else [model, beside]
        parameters = [parameter for each in models for parameter in each.parameters()]
        return cls(parameters, learning_rate, [precision / rows for each in models for precision in each.precisions()])

    def step(self, loss: Tensor, rate: Rate = 1.0) -> None:
        """One step against the gradient of `loss` in these parameters alone, at `rate` times the learning rate.

        Fits side by side have a loss each, and a rate each where it is a tensor; their parameters a leading axis.
        """
        loss = loss.sum() if loss.ndim else loss
        found = gradients_of(loss, self.parameters) if self.averaged is None else self.averaged(loss)
        self._follow(found, rate)

    def follow(self, gradients: Sequence[Tensor], rate: Rate = 1.0) -> None:
        """The same from the gradients of a loss."""
        self._follow(gradients if self.averaged is None else self.averaged.given(gradients), rate)

    def average_gradients(self) -> None:
        """From here on steps are against the mean over the processes of torch's process group."""
        self.averaged = AveragedGradients(self.parameters)

    @torch.no_grad()
    def _follow(self, gradients: Sequence[Tensor], rate: Rate) -> None:
        self.steps += 1
        speed = rate * self.learning_rate
        each = (speed, *(group.precision for group in self._groups))
        if any(isinstance(number, Tensor) and number.ndim for number in each):
            self._move_each(gradients, speed)
        else:
            self._move(gradients, speed)

    @torch.no_grad()
    def penalty(self, fits: int = 0) -> Tensor:
        """The sum of 1/2 precision |parameter|^2; of each fit, where there are `fits` = 1 axes of fits side by side."""
        if fits == 0 and self._halves is not None:
            return torch.stack(torch._foreach_norm(self.parameters)).square() @ self._halves
        tables = [parameter.reshape(*parameter.shape[:fits], -1) for parameter in self.parameters]
        each = zip(self.precisions, tables, strict=True)
        squares = [precision * torch.linalg.vecdot(table, table) for precision, table in each]
        return torch.stack(squares).sum(0) / 2

    def _move(self, gradients: Sequence[Tensor], speed: Rate) -> None:
        """By torch's own kernel, one pass over each parameter; it wants gradients that lie in memory as they do."""
        count, device = self.steps, gradients[0].device
        steps = count.float() if isinstance(count, Tensor) else torch.full((), float(count), device=device)
        speed = speed.float() if isinstance(speed, Tensor) else speed
        for group in self._groups:
            torch._fused_adam_(
                group.parameters,
                [gradients[place].contiguous() for place in group.places],
                group.first,
                group.second,
                [],
                [steps] * len(group.places),
                lr=speed,
                beta1=0.9,
                beta2=0.999,
                weight_decay=group.precision,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

    def _move_each(self, gradients: Sequence[Tensor], speed: Rate) -> None:
        """The same where fits side by side differ in speed or precision. (fits,)"""
        scale = (1 - 0.999**self.steps) ** 0.5
        size = speed * scale / (1 - 0.9**self.steps)
        columns = self.parameters, gradients, self.precisions, self.first, self.second
        for parameter, gradient, precision, first, second in zip(*columns, strict=True):
            pull = gradient + _of_each_fit(precision, parameter) * parameter
            first.lerp_(pull, 0.1)
            second.mul_(0.999).addcmul_(pull, pull, value=0.001)
            parameter.sub_(_of_each_fit(size, parameter) * first / second.sqrt().add_(1e-8 * scale))


def _of_each_fit(value: Rate, parameter: Tensor) -> Rate:
    """A value for each of the fits side by side with as many axes as the parameter, or one number for all."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return value.view(-1, *[1] * (parameter.ndim - 1)).to(parameter.dtype)
