"""Values read off tables and grids by codes, with gradients in closed form where autograd's own take much longer.

A leading axis, where there is one, are fits side by side: codes are then shared by all, or of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

BLOCK = 1 << 19  # pairs whose rows are held in memory at a time
SORTING_PAYS = 2048  # pairs from which sums over sorted pairs are faster than adding them one by one


class Kept:
    """What was made of some tensors that do not change, for as long as it is asked of the same ones, one after another.

    None the first time: a batch that never comes again is not worth it. The whole log as a batch comes in every step.
    """

    def __init__(self) -> None:
        self.given: tuple[Tensor, ...] = ()
        self.value: Any = None

    def of(self, make: Callable[..., Any], *given: Tensor) -> Any:
        """What `make` makes of the given tensors, from the second time on."""
        if len(given) != len(self.given) or any(own is not other for own, other in zip(self.given, given, strict=True)):
            self.given, self.value = given, None
        elif self.value is None:
            self.value = make(*given)
        return self.value


def gradients_of(values: Tensor, parameters: Sequence[Tensor], slopes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Of values in parameters, weighed by slopes; 0 where they do not depend on one."""
    return torch.autograd.grad(values, list(parameters), slopes, materialize_grads=True)


def lookup(table: Tensor, codes: Tensor) -> Tensor:
    """The rows of a table (..., rows, columns) at codes: (..., codes, columns)."""
    return embedding(*_flat(codes, table))


def _flat(codes: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Codes into one table of all rows, and that table."""
    if table.ndim == 2:
        return codes, table
    starts = torch.arange(len(table), device=codes.device)[:, None] * table.shape[1]
    return codes + starts, table.flatten(0, 1)


def inner_products(user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """<row of the user, row of the item> for each pair. (..., pairs)

    Without gradients to be taken, block by block: rows are wider than what is made of them.
    """
    if not torch.is_grad_enabled() and users.shape[-1] > BLOCK:
        blocks = zip(torch.split(users, BLOCK, -1), torch.split(items, BLOCK, -1), strict=True)
        return torch.cat([inner_products(user_table, item_table, *block) for block in blocks], -1)
    users, user_table = _flat(users, user_table)
    items, item_table = _flat(items, item_table)
    if user_table.device.type != "cpu" or users.numel() < SORTING_PAYS or user_table.dtype != torch.float32:
        return (embedding(users, user_table) * embedding(items, item_table)).sum(-1)
    flat: Tensor = _InnerProducts.apply(user_table, item_table, users.flatten(), items.flatten())  # type: ignore[no-untyped-call]
    return flat.view(users.shape)


class _InnerProducts(torch.autograd.Function):
    """The gradient of a user's row is the sum over its pairs of slope x the item's row, and the other way round."""

    @staticmethod
    def forward(ctx: Any, user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(user_table, item_table, users, items)
        return (user_table.index_select(0, users) * item_table.index_select(0, items)).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        user_table, item_table, users, items = ctx.saved_tensors
        slopes, wanted = gradients[0], ctx.needs_input_grad
        of_users = _Order.of(users, len(user_table), items).sums(slopes, item_table) if wanted[0] else None
        of_items = _Order.of(items, len(item_table), users).sums(slopes, user_table) if wanted[1] else None
        return of_users, of_items, None, None


class BiasedProducts:
    """mean + user bias + item bias + <user factors, item factors> for each of a few pairs, and the way back.

    Autograd alone takes a dozen operations for each step back, which for a few pairs is all that a step costs.
    """

    def __init__(self, tables: Sequence[Tensor], users: Tensor, items: Tensor) -> None:
        self.mean, user_factors, item_factors, *self.biases = tables
        self.users, self.items, self.sizes = users, items, (user_factors.shape[0], item_factors.shape[0])
        self.of_users, self.of_items = user_factors.index_select(0, users), item_factors.index_select(0, items)

    def logits(self) -> Tensor:
        """(pairs,)"""
        user_bias, item_bias = (bias.view(-1) for bias in self.biases)
        biases = user_bias.index_select(0, self.users).add_(item_bias.index_select(0, self.items))
        logits: Tensor = torch.linalg.vecdot(self.of_users, self.of_items)
        return logits.add_(biases).add_(self.mean)

    @staticmethod
    def pay(codes: Tensor) -> bool:
        """Whether these codes are on the CPU, and too few for sorted sums."""
        return codes.device.type == "cpu" and codes.numel() < SORTING_PAYS

    def gradients(self, slopes: Tensor) -> tuple[Tensor, ...]:
        """Of a loss with these slopes in the logits, in the tables."""
        (n_users, n_items), column = self.sizes, slopes[:, None]
        users, items = self.users.long(), self.items.long()  # rows are added up twice as fast by 64-bit codes
        user_factors = _added(users, n_users, column * self.of_items)
        item_factors = _added(items, n_items, column * self.of_users)
        user_bias, item_bias = torch.bincount(users, slopes, n_users), torch.bincount(items, slopes, n_items)
        return slopes.sum(), user_factors, item_factors, user_bias[:, None], item_bias[:, None]


def biased_products(tables: Sequence[Tensor], users: Tensor, items: Tensor) -> Tensor:
    """The logits of `BiasedProducts`, for autograd if it is on."""
    if not torch.is_grad_enabled():
        return BiasedProducts(tables, users, items).logits()
    logits: Tensor = _BiasedProducts.apply(users, items, *tables)  # type: ignore[no-untyped-call]
    return logits


class _BiasedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, users: Tensor, items: Tensor, *tables: Tensor) -> Tensor:
        ctx.products = BiasedProducts(tables, users, items)
        logits: Tensor = ctx.products.logits()
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.products.gradients(gradients[0])


def _added(codes: Tensor, size: int, rows: Tensor) -> Tensor:
    """For each of `size` codes, the sum of its rows."""
    return rows.new_zeros(size, *rows.shape[1:]).index_add_(0, codes, rows)


class _Order(NamedTuple):
    """Pairs sorted by one of their codes, to sum over those of each."""

    order: Tensor  # (pairs,)
    starts: Tensor  # (codes,) where the pairs of each begin
    others: Tensor  # (pairs,) the other code, sorted

    @classmethod
    def of(cls, codes: Tensor, size: int, others: Tensor) -> Self:
        """Of pairs of one of `size` codes and another code."""
        ordered, order = torch.sort(codes, stable=True)
        starts = torch.searchsorted(ordered, torch.arange(size, dtype=codes.dtype))
        return cls(order, starts.to(others.dtype), others[order])

    def sums(self, slopes: Tensor, table: Tensor) -> Tensor:
        """For each code, the sum over its pairs of slope x the row of `table` at the other code."""
        return embedding_bag(
            self.others, table, self.starts, mode="sum", per_sample_weights=slopes.index_select(0, self.order)
        )


def take(values: Tensor, places: Tensor) -> Tensor:
    """The values (..., n) at places (..., m)."""
    return values.gather(-1, places.expand(*values.shape[:-1], places.shape[-1]))


def rows_of_grid(grid: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """(values at places as in `take`, all values); the gradients of both go back in one piece."""
    places = places.expand(*grid.shape[:-1], places.shape[-1])
    rows, everything = _RowsOfGrid.apply(grid, places)  # type: ignore[no-untyped-call]
    return rows, everything


class _RowsOfGrid(torch.autograd.Function):
    """Autograd alone would scatter into zeros of the size of D and add them: two passes over memory more."""

    @staticmethod
    def forward(ctx: Any, grid: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(places)
        return grid.gather(-1, places), grid.view_as(grid)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        of_rows, of_grid = gradients
        return of_grid.scatter_add(-1, places, of_rows), None


class Places(NamedTuple):
    """Where pairs stand among all pairs of two tables, and how sums over those of each row of a table are taken."""

    in_grid: Tensor  # (..., pairs)
    by_user: _Order
    by_item: _Order

    @classmethod
    def of(cls, user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Self:
        """Of the pairs of these codes."""
        leading, n_items = user_table.shape[:-2], item_table.shape[-2]
        in_grid = (users.long() * n_items + items).expand(*leading, users.shape[-1])
        (users, flat_users), (items, flat_items) = _flat(users, user_table), _flat(items, item_table)
        users, items = users.flatten(), items.flatten()
        by_user, by_item = _Order.of(users, len(flat_users), items), _Order.of(items, len(flat_items), users)
        return cls(in_grid, by_user, by_item)


def rows_and_grid(user_table: Tensor, item_table: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """(the inner products at places, those of all pairs), on a CPU; (..., pairs) and (..., users x items)."""
    rows, everything = _RowsAndGrid.apply(user_table, item_table, places)  # type: ignore[no-untyped-call]
    return rows, everything


class _RowsAndGrid(torch.autograd.Function):
    """The gradients of rows are summed pair by pair: a few of all pairs make no pass over all, and no product of them.

    Where the grid itself was not asked for, nothing is left of it in the way back.
    """

    @staticmethod
    def forward(ctx: Any, user_table: Tensor, item_table: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(user_table, item_table)
        ctx.places = places
        ctx.set_materialize_grads(False)
        grid = (user_table @ item_table.mT).flatten(-2)
        return grid.gather(-1, places.in_grid), grid

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (user_table, item_table), (of_rows, of_grid) = ctx.saved_tensors, gradients
        of_users, of_items = None, None
        if of_grid is not None:
            square = of_grid.reshape(*user_table.shape[:-1], item_table.shape[-2])
            of_users, of_items = square @ item_table, square.mT @ user_table
        if of_rows is not None:
            slopes, (by_user, by_item) = of_rows.flatten(), ctx.places[1:]
            users = by_user.sums(slopes, item_table.flatten(0, -2)).view_as(user_table)
            items = by_item.sums(slopes, user_table.flatten(0, -2)).view_as(item_table)
            of_users = users if of_users is None else of_users.add_(users)
            of_items = items if of_items is None else of_items.add_(items)
        return of_users, of_items, None
