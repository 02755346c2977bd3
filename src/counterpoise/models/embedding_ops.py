"""Inner products of embeddings at pairs, with gradients written out where autograd's own take much longer.

The gradient of a user's row is a sum over its pairs. Autograd adds row by row; sums over sorted pairs
(`embedding_bag`) take less than half of the time on a CPU. Where tables are large, the products themselves are computed
over sorted pairs too, without a copy of the rows of each pair.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self
from weakref import ref

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

BLOCK_PAIRS = 1 << 19  # pairs whose rows are held in memory at a time, where no gradient is taken
MIN_PAIRS_TO_SORT = 2048  # from here on sums over sorted pairs are faster than adding row by row
MIN_ROWS_TO_SORT = 8192  # rows of both tables from which products are computed over sorted pairs: 100,000 pairs of
# 22,000 rows take 0.6 ms, and 5 to 12 ms with copies of the rows of each pair (one thread)
MIN_PAIRS_IN_PLACE = 1 << 15  # pairs from which they are too, of tables of any size: 60,000 take 0.8 ms, and 2.3 ms


class RepeatedInputCache:
    """Values computed from tensors, kept while these live and come again.

    None the first time: a batch that never comes again is not worth it. Batches that are drawn once come every epoch,
    the whole log as a batch in every step.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[int, ...], tuple[tuple[ref[Tensor], ...], Any]] = {}

    def clear(self) -> None:
        """Forget everything: a fitted model has no use for the columns of its log."""
        self.values = {}

    def get(self, compute: Callable[..., Any], *inputs: Tensor) -> Any:
        """compute(*inputs) from the second time on that the same inputs come; None before."""
        key = tuple(map(id, inputs))
        known, value = self.values.get(key, ((), None))
        if not known or any(reference() is not given for reference, given in zip(known, inputs, strict=True)):
            own = ref(self)

            def forget(_: object) -> None:
                cache = own()
                if cache is not None:
                    cache.values.pop(key, None)

            self.values[key] = tuple(ref(given, forget) for given in inputs), None
        elif value is None:
            value = compute(*inputs)
            self.values[key] = known, value
        return value

    def __reduce__(self) -> tuple[type[RepeatedInputCache], tuple[()]]:
        """A copy is empty: copied tensors are others."""
        return RepeatedInputCache, ()


ORDERS = RepeatedInputCache()  # of pairs that come again, for all scorers


def inner_products(user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """<row of the user, row of the item> for each pair. (pairs,)"""
    if not torch.is_grad_enabled() and len(users) > BLOCK_PAIRS:
        blocks = zip(torch.split(users, BLOCK_PAIRS), torch.split(items, BLOCK_PAIRS), strict=True)
        return torch.cat([inner_products(user_table, item_table, *block) for block in blocks])
    if user_table.device.type != "cpu" or len(users) < MIN_PAIRS_TO_SORT or user_table.dtype != torch.float32:
        return (embedding(users, user_table) * embedding(items, item_table)).sum(-1)
    sizes = len(user_table), len(item_table)
    order = ORDERS.get(partial(PairOrder.of, *sizes), users, items) if torch.is_grad_enabled() else None
    order = order if order is None or order.sizes == sizes else None
    products: Tensor = _InnerProducts.apply(user_table, item_table, users, items, order)  # type: ignore[no-untyped-call]
    return products


def block_products(user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """<row of the user, row of the item> for every user of a block with every item of it. (blocks x users x items,)

    `users` (blocks, users of each) and `items` (blocks, items of each), no code twice.
    """
    products: Tensor = _BlockProducts.apply(user_table, item_table, users, items)  # type: ignore[no-untyped-call]
    return products


class _BlockProducts(torch.autograd.Function):
    """As no code comes twice, rows of the gradient are copied to their places, not added up."""

    @staticmethod
    def forward(ctx: Any, user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
        both = (user_table, users), (item_table, items)
        of_users, of_items = (table.index_select(0, codes.flatten()).view(*codes.shape, -1) for table, codes in both)
        ctx.save_for_backward(of_users, of_items, users, items)
        ctx.sizes = len(user_table), len(item_table)
        return torch.bmm(of_users, of_items.mT).flatten()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_users, of_items, users, items = ctx.saved_tensors
        slopes = gradients[0].view(len(users), users.shape[1], items.shape[1])
        user_rows, item_rows = torch.bmm(slopes, of_items), torch.bmm(slopes.mT, of_users)
        found = [
            rows.new_zeros(size, rows.shape[2]).index_copy_(0, codes.flatten().long(), rows.flatten(0, 1))
            for rows, size, codes in zip((user_rows, item_rows), ctx.sizes, (users, items), strict=True)
        ]
        return *found, None, None


def biased_products(tables: Sequence[Tensor], users: Tensor, items: Tensor) -> Tensor:
    """mean + user bias + item bias + <user factors, item factors> for each of a few pairs on a CPU. (pairs,)

    `tables`: mean, user factors, item factors, user biases, item biases. Autograd alone takes a dozen operations for
    each step back, which for a few pairs is most of what a step costs.
    """
    logits: Tensor = _BiasedProducts.apply(users, items, *tables)  # type: ignore[no-untyped-call]
    return logits


class _BiasedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, users: Tensor, items: Tensor, mean: Tensor, *tables: Tensor) -> Tensor:
        of_users, of_items = tables[0].index_select(0, users), tables[1].index_select(0, items)
        user_bias, item_bias = (bias.view(-1) for bias in tables[2:])
        biases = user_bias.index_select(0, users).add_(item_bias.index_select(0, items))
        logits: Tensor = torch.linalg.vecdot(of_users, of_items)
        ctx.save_for_backward(users, items, of_users, of_items)
        ctx.sizes = len(tables[0]), len(tables[1])
        return logits.add_(biases).add_(mean)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        users, items, of_users, of_items = ctx.saved_tensors
        (n_users, n_items), slopes = ctx.sizes, gradients[0]
        users, items = users.long(), items.long()  # rows are added up twice as fast by 64-bit codes
        user_factors = of_items.new_zeros(n_users, of_items.shape[1]).index_add_(0, users, slopes[:, None] * of_items)
        item_factors = of_users.new_zeros(n_items, of_users.shape[1]).index_add_(0, items, slopes[:, None] * of_users)
        user_bias, item_bias = torch.bincount(users, slopes, n_users), torch.bincount(items, slopes, n_items)
        return None, None, slopes.sum(), user_factors, item_factors, user_bias[:, None], item_bias[:, None]


class _InnerProducts(torch.autograd.Function):
    """The gradient of a user's row is the sum over its pairs of slope x the item's row, and the other way round."""

    @staticmethod
    def forward(
        ctx: Any, user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor, order: PairOrder | None
    ) -> Tensor:
        ctx.save_for_backward(user_table, item_table, users, items)
        ctx.by_user, ctx.by_item = (None, None) if order is None else (order.by_user, order.by_item)
        sizes = len(user_table), len(item_table)
        few = sum(sizes) < MIN_ROWS_TO_SORT and len(users) < MIN_PAIRS_IN_PLACE
        if few or len(users) > math.prod(sizes):  # a sparse tensor has fewer entries than D
            return (user_table.index_select(0, users) * item_table.index_select(0, items)).sum(1)
        by_user = ctx.by_user = ctx.by_user or _SortedPairs.of(users, len(user_table), items)
        found: Tensor = by_user.products(user_table, item_table)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        user_table, item_table, users, items = ctx.saved_tensors
        slopes, wanted, of_users, of_items = gradients[0], ctx.needs_input_grad, None, None
        if wanted[0]:
            by_user = ctx.by_user or _SortedPairs.of(users, len(user_table), items)
            of_users = by_user.sums(slopes, item_table)
        if wanted[1]:
            by_item = ctx.by_item or _SortedPairs.of(items, len(item_table), users)
            of_items = by_item.sums(slopes, user_table)
        return of_users, of_items, None, None, None


class _SortedPairs(NamedTuple):
    """Pairs sorted by one of their codes, to sum over those of each."""

    order: Tensor | None  # (pairs,) None: they came in this order
    ends: Tensor  # (1 + codes,) where the pairs of each begin, and where those of the last end
    others: Tensor  # (pairs,) the other code, sorted

    @classmethod
    def of(cls, codes: Tensor, size: int, others: Tensor) -> Self:
        order, ends = torch.sort(codes, stable=True)[1], torch.zeros(1 + size, dtype=others.dtype)
        torch.cumsum(torch.bincount(codes, minlength=size), 0, out=ends[1:])
        return cls(order, ends, others.index_select(0, order))

    def kept(self, others: Tensor) -> Self:
        """The same in less memory, where the other codes are those as they came."""
        assert self.order is not None
        if bool((self.order.diff() > 0).all()):
            return self._replace(order=None, others=others)
        return self._replace(order=self.order.int()) if len(others) < 2**31 else self

    def sums(self, slopes: Tensor, table: Tensor) -> Tensor:
        """For each code, the sum over its pairs of slope x the row of `table` at the other code."""
        by_code = slopes if self.order is None else slopes.index_select(0, self.order)
        return embedding_bag(self.others, table, self.ends[:-1], mode="sum", per_sample_weights=by_code)

    def products(self, table: Tensor, other_table: Tensor) -> Tensor:
        """<row of `table`, row of `other_table`> at the two codes of each pair, in the order that they were given."""
        _expect_sparse_tensors()
        pattern = torch.sparse_csr_tensor(
            self.ends, self.others, table.new_zeros(len(self.others)), (len(table), len(other_table))
        )
        found: Tensor = torch.sparse.sampled_addmm(pattern, table, other_table.T, beta=0.0).values()
        return found if self.order is None else torch.empty_like(found).index_copy_(0, self.order.long(), found)


class PairOrder(NamedTuple):
    """Pairs sorted by user, and by item."""

    sizes: tuple[int, int]
    by_user: _SortedPairs
    by_item: _SortedPairs

    @classmethod
    def of(cls, n_users: int, n_items: int, users: Tensor, items: Tensor) -> Self:
        by_user, by_item = _SortedPairs.of(users, n_users, items), _SortedPairs.of(items, n_items, users)
        return cls((n_users, n_items), by_user.kept(items), by_item.kept(users))


@lru_cache(maxsize=1)
def _expect_sparse_tensors() -> None:
    """Take torch's warning that sparse tensors may change, which it gives once, where nobody is bothered by it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([]).long(), torch.tensor([]), (1, 1))


def rows_of_grid(grid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(values at positions, all values); the gradients of both go back in one piece."""
    rows, everything = _RowsOfGrid.apply(grid, positions)  # type: ignore[no-untyped-call]
    return rows, everything


class _RowsOfGrid(torch.autograd.Function):
    """Autograd alone would scatter into zeros of the size of D and add them: two passes over memory more."""

    @staticmethod
    def forward(ctx: Any, grid: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(positions)
        return grid.gather(0, positions), grid.view_as(grid)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        of_rows, of_grid = gradients
        return of_grid.scatter_add(0, positions, of_rows), None


class GridPositions(NamedTuple):
    """Positions of pairs in D, and the same pairs sorted by user and by item."""

    positions: Tensor  # (pairs,)
    by_user: _SortedPairs
    by_item: _SortedPairs

    @classmethod
    def of(cls, n_users: int, n_items: int, users: Tensor, items: Tensor) -> Self:
        by_user, by_item = _SortedPairs.of(users, n_users, items), _SortedPairs.of(items, n_items, users)
        return cls(users.long() * n_items + items, by_user, by_item)


def rows_and_grid(user_table: Tensor, item_table: Tensor, at: GridPositions) -> tuple[Tensor, Tensor]:
    """(inner products at some pairs, those of all pairs), on a CPU; (pairs,) and (users x items,)."""
    rows, everything = _RowsAndGrid.apply(user_table, item_table, at)  # type: ignore[no-untyped-call]
    return rows, everything


class _RowsAndGrid(torch.autograd.Function):
    """Gradients of rows are summed pair by pair, without a pass over all pairs.

    Where the grid itself has no gradient, the backward pass does not touch it.
    """

    @staticmethod
    def forward(ctx: Any, user_table: Tensor, item_table: Tensor, at: GridPositions) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(user_table, item_table)
        ctx.at = at
        ctx.set_materialize_grads(False)
        grid = (user_table @ item_table.T).flatten()
        return grid.gather(0, at.positions), grid

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        (user_table, item_table), (of_rows, of_grid) = ctx.saved_tensors, gradients
        of_users, of_items = None, None
        if of_grid is not None:
            square = of_grid.view(len(user_table), len(item_table))
            of_users, of_items = square @ item_table, square.T @ user_table
        if of_rows is not None:
            users, items = ctx.at.by_user.sums(of_rows, item_table), ctx.at.by_item.sums(of_rows, user_table)
            of_users = users if of_users is None else of_users.add_(users)
            of_items = items if of_items is None else of_items.add_(items)
        return of_users, of_items, None
