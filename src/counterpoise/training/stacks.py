"""Fits side by side: members that differ in seed, probe or numbers become one fit with a leading axis.

Everything that a step computes reduces over its last axes, so a stack of S fits runs through the same formulas as one:
parameters (S, |U|, d), logits (S, rows), losses (S,). Every member draws from its own generator, in the same order as
alone, so that it ends where it would have ended alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from counterpoise.data.log import FeedbackLog
from counterpoise.models.base import Backbone, Scorer
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch, Batches, Training

PAIRS = ("pair_users", "pair_items")
MAY_DIFFER = ("dim", "epochs", "seed")  # integers: narrower tables are padded, shorter fits stand still at their end


class NotAlikeError(Exception):
    """These fits cannot stand side by side."""


def stack_numbers(values: Sequence[float], device: torch.device | None = None) -> Any:
    """The number that all share, or a tensor of them. (members,)"""
    return values[0] if len(set(values)) == 1 else torch.tensor(values, device=device)


def stack_parts(parts: Sequence[Any], device: torch.device) -> Any:
    """One configuration whose numbers are tensors where its members differ."""
    first = copy(parts[0])
    if any(type(part) is not type(first) for part in parts):
        raise NotAlikeError
    for field in fields(first):
        values = [getattr(part, field.name) for part in parts]
        if is_dataclass(values[0]):
            setattr(first, field.name, stack_parts(values, device))
        elif "float" in str(field.type) and all(type(value) in (int, float) for value in values):
            setattr(first, field.name, stack_numbers([float(value) for value in values], device))
        elif field.name not in MAY_DIFFER and any(value != values[0] for value in values):
            raise NotAlikeError
    return first


def stack_tensors(members: Sequence[Tensor]) -> Tensor:
    """(members, ...); tables with fewer columns than others are filled up with zeros, which training leaves there."""
    width = max(member.shape[-1] if member.ndim else 0 for member in members)
    return torch.stack([pad(member, (0, width - member.shape[-1])) if member.ndim else member for member in members])


def stack_scorers(members: Sequence[Scorer]) -> Scorer:
    """Scorers of one kind as one with a leading axis; the members stay as they are."""
    if not all(member.stackable and type(member) is type(members[0]) for member in members):
        raise NotAlikeError
    with torch.no_grad():
        stacked = deepcopy(members[0])
        for name, module in stacked.named_modules():
            twins = [member.get_submodule(name) for member in members]
            if isinstance(module, Scorer):  # first: members of other settings may have other parameters
                module.part = stack_parts([twin.part for twin in twins], next(members[0].parameters()).device)
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    tensors = stack_tensors([twin.get_parameter(key) for twin in twins])
                    module._parameters[key] = nn.Parameter(tensors)
            for key in module._buffers:
                module._buffers[key] = stack_tensors([twin.get_buffer(key) for twin in twins])
    return stacked


def hand_back(stacked: Collection[Tensor], members: Iterable[Iterable[Tensor]]) -> None:
    """Copy what a stack has learned into the tensors of its members, which come in the same order."""
    for number, member in enumerate(members):
        for own, values in zip(member, (tensor[number] for tensor in stacked), strict=True):
            own.copy_(values[..., : own.shape[-1]] if own.ndim else values)


@dataclass(frozen=True, eq=False)
class Stack:
    """`FitContext`s of one log side by side: what parts ask of a problem, answered for all of them."""

    members: list[FitContext]

    @property
    def log(self) -> FeedbackLog:
        """The log that all are fitted to."""
        return self.members[0].log

    @property
    def training(self) -> Training:
        """That of all members: numbers are tensors where they differ."""
        training: Training = stack_parts([member.training for member in self.members], self.members[0].device)
        epochs = stack_numbers([member.training.epochs for member in self.members], self.members[0].device)
        training.epochs = epochs
        return training

    def brief(self) -> Stack:
        """As each member's."""
        return Stack([member.brief() for member in self.members])

    def plainly_trained(self) -> Stack:
        """As each member's."""
        return Stack([member.plainly_trained() for member in self.members])

    def batches(self, pairs: bool = False) -> StackedBatches:
        """As each member's."""
        return StackedBatches([member.batches(pairs) for member in self.members])

    def build(self, backbone: Backbone, rate: float | None = None) -> Scorer:
        """A fresh scorer of this backbone for each member."""
        return self.build_each([backbone] * len(self.members), rate)[0]

    def build_each(self, backbones: Sequence[Backbone], rate: float | None = None) -> tuple[Scorer, list[Scorer]]:
        """(the stack, its members) of fresh scorers, each of its own backbone."""
        pairs = zip(self.members, backbones, strict=True)
        scorers = [backbone.build(member.log, member.generator, rate).to(member.device) for member, backbone in pairs]
        stacked = stack_scorers(scorers)
        backbones[0].inform(stacked, self)
        return stacked, scorers


class StackedBatches(Batches):
    """Epochs of several fits to one log: each has its own order and pairs, all have as many batches."""

    def __init__(self, members: Sequence[Batches]) -> None:
        self.members = members
        self.labels, self.device, self.batch_size = members[0].labels, members[0].device, members[0].batch_size

    def whole(self) -> Batch:
        """All rows, which are the same for all; pairs of D of each."""
        batches = [member.whole() for member in self.members]
        return batches[0]._replace(**_stack_fields(batches, PAIRS))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log, for each in its own order."""
        if len(self) == 1:
            yield self.whole()
            return
        for batches in zip(*(member.epoch() for member in self.members), strict=True):
            yield batches[0]._replace(**_stack_fields(batches, ("rows", "users", "items", "labels", *PAIRS)))


def _stack_fields(batches: Sequence[Batch], names: Sequence[str]) -> dict[str, Any]:
    """Some fields of batches, stacked; None where they are None."""
    columns = {name: [getattr(batch, name) for batch in batches] for name in names}
    return {name: None if column[0] is None else torch.stack(column) for name, column in columns.items()}
