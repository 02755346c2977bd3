"""Batches of observed rows beside uniform pairs of D."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from counterpoise.data.log import FeedbackLog

MAX_FINAL_PAIRS = 1 << 20  # uniform pairs of D from which the final risk on the whole log is computed at most
MIN_FIXED_ROWS = 1 << 15  # rows of a batch from which batches are drawn once, and not anew in every epoch


Blocks = tuple[
    Tensor, Tensor
]  # (blocks, users of each), (blocks, items of each): every user of a block with every item


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
    block_users: Tensor | None = None  # of the pairs as blocks, where they are; no code twice
    block_items: Tensor | None = None

    @property
    def pairs(self) -> tuple[Tensor | None, Tensor | None, Blocks | None]:
        """The pairs of D, as `Scorer.rows_and_pairs` takes them."""
        blocks = None if self.block_users is None or self.block_items is None else (self.block_users, self.block_items)
        return self.pair_users, self.pair_items, blocks

    def without_pairs(self) -> Self:
        none = self.users[:0], self.items[:0]
        return replace(self, pair_users=none[0], pair_items=none[1], pair_rows=None, block_users=None, block_items=None)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a value of each row. Where processes share a batch: these rows' share of the sum over all."""
        return values.sum()


class Batches:
    """Epochs of batches from a log on a device: every row once an epoch, `pairs_per_row` uniform pairs of D for each.

    With `pairs_per_row` None every batch stands beside all of D. `own_users`: the pairs are those of the rows' users
    with uniform items, in as many copies of the rows, one after another.
    Large batches are drawn once and come in another order each epoch, each sorted by user: what is computed from their
    codes alone is then computed once (`RepeatedInputCache`). Their pairs come in blocks, about as many as asked for.
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
        if self.batch_size < MIN_FIXED_ROWS:
            for batch in self._drawn():
                yield self._with_pairs(batch)
            return
        for place in torch.randperm(len(self), generator=self.generator).tolist():
            batch = self._fixed[place]
            count = len(batch.rows) * (self.pairs_per_row or 0)
            if self.in_order is not None or count == 0:
                yield self._with_pairs(batch)
            else:
                users, items = self._blocks(count)
                shape = *users.shape, items.shape[1]
                user, item = (codes.expand(shape).flatten() for codes in (users[:, :, None], items[:, None, :]))
                yield replace(batch, pair_users=user, pair_items=item, block_users=users, block_items=items)

    def _drawn(self, by_user: bool = False) -> Iterator[Batch]:
        """All rows in random order, in batches without pairs."""
        order = torch.randperm(len(self.labels), generator=self.generator).to(self.device)
        for drawn in torch.tensor_split(order, len(self)):  # of nearly equal size: no last one of a few rows
            rows = drawn[self.users[drawn].sort(stable=True)[1]] if by_user else drawn
            users, items, labels = (column.index_select(0, rows) for column in (self.users, self.items, self.labels))
            yield Batch(rows, users, items, labels, None, None)

    @cached_property
    def _fixed(self) -> list[Batch]:
        return list(self._drawn(by_user=True))

    def _with_pairs(self, batch: Batch) -> Batch:
        user, item, *rows = self._pairs_beside(batch.users, len(batch.rows) * (self.pairs_per_row or 0))
        return replace(batch, pair_users=user, pair_items=item, pair_rows=rows[0] if rows else None)

    @cached_property
    def _shuffled(self) -> tuple[Tensor, Tensor]:
        """All users, and all items, in random order."""
        users, items = (torch.randperm(size, generator=self.generator).int().to(self.device) for size in self.shape)
        return users, items

    def _blocks(self, count: int) -> Blocks:
        """About so many pairs of D in blocks; every pair is as likely as any other.

        Users and items each stand in a circle, in random order. Both circles are turned at random, and cut into as many
        blocks as users and items then have equally many pairs: count / |I| users and count / |U| items each.
        """
        n_users, n_items = self.shape
        users, items = max(1, round(count / n_items)), max(1, round(count / n_users))
        users, items = min(users, n_users), min(items, n_items)
        number = max(1, min(n_users // users, n_items // items, round(count / (users * items))))
        of_users, of_items = (
            circle.roll(int(torch.randint(len(circle), (1,), generator=self.generator)))[: number * size].view(-1, size)
            for circle, size in zip(self._shuffled, (users, items), strict=True)
        )
        return of_users, of_items

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
