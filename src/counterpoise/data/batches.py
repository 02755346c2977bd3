"""Batches of observed rows beside uniform pairs of D."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from counterpoise.data.log import FeedbackLog

MAX_FINAL_PAIRS = 1 << 20  # uniform pairs of D from which the final risk on the whole log is computed at most


@dataclass(frozen=True, eq=False)
class Batch:
    """Some observed rows and, where a method asks for them, uniform pairs of D."""

    rows: Tensor  # positions in the log
    users: Tensor
    items: Tensor
    labels: Tensor
    pair_users: Tensor | None  # None: all pairs of D, user by user
    pair_items: Tensor | None
    pair_rows: Tensor | None = None  # the row of the log that each pair is, -1 for none; None where nobody asked

    def without_pairs(self) -> Self:
        return replace(self, pair_users=self.users[:0], pair_items=self.items[:0], pair_rows=None)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a value of each row. Where processes share a batch: these rows' share of the sum over all."""
        return values.sum()


class Batches:
    """Epochs of batches from a log on a device: every row once an epoch, `pairs_per_row` uniform pairs of D for each.

    With `pairs_per_row` None every batch stands beside all of D. `own_users`: the pairs are those of the rows' users
    with uniform items, in as many copies of the rows, one after another.
    """

    def __init__(
        self,
        log: FeedbackLog,
        batch_size: int,
        device: torch.device,
        generator: torch.Generator,
        pairs_per_row: int | None = 0,
        own_users: bool = False,
    ) -> None:
        self.users = torch.from_numpy(log.users).to(device)
        self.items = torch.from_numpy(log.items).to(device)
        self.labels = torch.from_numpy(log.labels).to(device)
        self.shape, self.batch_size, self.device = log.shape, batch_size, device
        self.generator, self.pairs_per_row = generator, pairs_per_row
        self.in_order = torch.from_numpy(log.pairs).to(device).sort() if own_users else None

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.labels) / self.batch_size)

    @property
    def n_rows(self) -> int:
        """Rows of the log."""
        return len(self.labels)

    def codes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The users and the items of all rows, in the order of the log; one block here."""
        yield self.users, self.items

    def whole(self) -> Batch:
        """All rows, in the order of the log."""
        return self._whole(len(self.labels) * (self.pairs_per_row or 0))

    def final(self) -> Iterator[Batch]:
        """All rows for the final risk: one batch here, beside a million pairs of D unless they are all of it."""
        yield self._whole(min(len(self.labels) * (self.pairs_per_row or 0), MAX_FINAL_PAIRS))

    def _whole(self, pairs: int) -> Batch:
        rows = torch.arange(len(self.labels), device=self.device)
        return Batch(rows, self.users, self.items, self.labels, *self._pairs_beside(self.users, pairs))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log, in random order unless one batch holds everything."""
        if len(self) == 1:
            yield self.whole()
            return
        order = torch.randperm(len(self.labels), generator=self.generator).to(self.device)
        for rows in torch.tensor_split(order, len(self)):  # of nearly equal size: no last one of a few rows
            users, items, labels = (column.index_select(0, rows) for column in (self.users, self.items, self.labels))
            pairs = self._pairs_beside(users, len(rows) * (self.pairs_per_row or 0))
            yield Batch(rows, users, items, labels, *pairs)

    def _pairs_beside(self, users: Tensor, count: int) -> tuple[Tensor | None, ...]:
        """The pairs beside rows of these users: uniform ones, or the users' own and the row of the log that each is."""
        if self.in_order is None:
            return self._uniform_pairs(count)
        copies = self.pairs_per_row or 1
        drawn = torch.randint(self.shape[1], (copies * len(users),), generator=self.generator, dtype=torch.int32)
        pair_users, pair_items = users.repeat(copies), drawn.to(self.device)
        pairs = pair_users.long() * self.shape[1] + pair_items
        known, rows = self.in_order
        place = torch.searchsorted(known, pairs).clamp(max=len(known) - 1)
        return pair_users, pair_items, torch.where(known[place] == pairs, rows[place], -1)

    def _uniform_pairs(self, count: int) -> tuple[Tensor | None, Tensor | None]:
        """Pairs drawn uniformly, with replacement, from all of D; D itself is never listed."""
        if self.pairs_per_row is None:
            return None, None
        users, items = (
            torch.randint(high, (count,), generator=self.generator, dtype=torch.int32).to(self.device)
            for high in self.shape
        )
        return users, items
