"""Inner products at pairs, and their gradients, against autograd's own and against loops."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from counterpoise.models.embedding_ops import (
    BLOCK_PAIRS,
    MIN_PAIRS_TO_SORT,
    MIN_ROWS_TO_SORT,
    ORDERS,
    GridPositions,
    RepeatedInputCache,
    biased_products,
    block_products,
    inner_products,
    rows_and_grid,
    rows_of_grid,
)

COUNTS = [1, 50, MIN_PAIRS_TO_SORT + 7]


def tables(sizes: tuple[int, int] = (40, 30)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(n, 5, generator=generator) for n in sizes)
    return users.requires_grad_(), items.requires_grad_()


def codes(count: int, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)  # some users and items have no pair
    users, items = (torch.randint(n, (count,), generator=generator, dtype=dtype) for n in (35, 28))
    return users, items


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("sizes", [(40, 30), (MIN_ROWS_TO_SORT, 30)])
def test_inner_products_and_gradients_are_those_of_autograd(
    count: int, dtype: torch.dtype, sizes: tuple[int, int]
) -> None:
    both, (users, items) = tables(sizes), codes(count, dtype)
    slopes = torch.randn(count, generator=torch.Generator().manual_seed(2))
    found = inner_products(*both, users, items)
    expected = (both[0][users.long()] * both[1][items.long()]).sum(-1)
    assert torch.allclose(found, expected, atol=1e-5)
    gradients = torch.autograd.grad((found * slopes).sum(), both)
    for own, other in zip(gradients, torch.autograd.grad((expected * slopes).sum(), both), strict=True):
        assert torch.allclose(own, other, atol=1e-4)


def test_many_pairs_of_small_tables_are_multiplied_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    both, (users, items) = tables((100, 50)), codes(MIN_PAIRS_TO_SORT + 7)
    expected = inner_products(*both, users, items)
    slopes = torch.linspace(-1, 1, len(expected))
    gradients = torch.autograd.grad((expected * slopes).sum(), both)
    monkeypatch.setattr("counterpoise.models.embedding_ops.MIN_PAIRS_IN_PLACE", MIN_PAIRS_TO_SORT)
    monkeypatch.setattr("torch.Tensor.sum", None)  # of copies of the rows of each pair
    found = inner_products(*both, users, items)
    assert torch.allclose(found, expected, atol=1e-5)
    for own, other in zip(torch.autograd.grad(found @ slopes, both), gradients, strict=True):
        assert torch.allclose(own, other, atol=1e-4)


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_biased_products_and_gradients_are_those_of_autograd(count: int, dtype: torch.dtype) -> None:
    (user_factors, item_factors), (users, items) = tables(), codes(count, dtype)
    biases = [torch.linspace(-1, 1, n)[:, None].requires_grad_() for n in (40, 30)]
    mean, slopes = torch.tensor(0.3, requires_grad=True), torch.linspace(-2, 1, count)
    everything = [mean, user_factors, item_factors, *biases]
    products = (user_factors[users.long()] * item_factors[items.long()]).sum(1)
    expected = mean + biases[0][users.long(), 0] + biases[1][items.long(), 0] + products
    found = biased_products(everything, users, items)
    assert torch.allclose(found, expected, atol=1e-5)
    gradients = torch.autograd.grad(found @ slopes, everything), torch.autograd.grad(expected @ slopes, everything)
    for own, of_autograd in zip(*gradients, strict=True):
        assert own.shape == of_autograd.shape
        assert torch.allclose(own, of_autograd, atol=1e-5)


@pytest.mark.parametrize("by_user", [False, True])
def test_pairs_that_come_again_have_the_same_products_and_gradients(by_user: bool) -> None:
    both, (users, items) = tables((MIN_ROWS_TO_SORT, 30)), codes(MIN_PAIRS_TO_SORT + 7)
    users = users.sort().values if by_user else users
    slopes, found = torch.linspace(-1, 2, len(users)), []
    for _ in range(3):
        products = inner_products(*both, users, items)
        found.append([products, *torch.autograd.grad(products @ slopes, both)])
    kept = ORDERS.values[id(users), id(items)][1]
    assert (kept.by_user.order is None) == by_user
    for again in found[1:]:
        assert all(torch.equal(first, other) for first, other in zip(found[0], again, strict=True))
    larger = tables((MIN_ROWS_TO_SORT + 1, 31))
    assert torch.allclose(
        inner_products(*larger, users, items), (larger[0][users] * larger[1][items]).sum(1), atol=1e-5
    )
    del users, items, kept
    assert not any(value is not None for _, value in ORDERS.values.values())


def test_products_of_blocks_and_gradients_are_those_of_autograd() -> None:
    both = tables()
    users, items = torch.randperm(40)[:36].view(6, 6).int(), torch.randperm(30)[:18].view(6, 3).int()
    rows = both[0][users.long()], both[1][items.long()]
    found, expected = block_products(*both, users, items), (rows[0][:, :, None] * rows[1][:, None]).sum(-1).flatten()
    assert torch.allclose(found, expected, atol=1e-5)
    slopes = torch.linspace(-1, 2, len(found))
    gradients = torch.autograd.grad(found @ slopes, both), torch.autograd.grad(expected @ slopes, both)
    for own, other in zip(*gradients, strict=True):
        assert torch.allclose(own, other, atol=1e-4)


def test_products_over_sorted_pairs_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inner_products(*tables((MIN_ROWS_TO_SORT, 30)), *codes(MIN_PAIRS_TO_SORT)).sum().backward()


@torch.no_grad()
def test_inner_products_are_those_of_a_loop() -> None:
    (user_table, item_table), (users, items) = tables(), codes(20)
    expected = [float(user_table[user] @ item_table[item]) for user, item in zip(users, items, strict=True)]
    assert inner_products(user_table, item_table, users, items).tolist() == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_blocks_of_pairs_give_the_same_inner_products(monkeypatch: pytest.MonkeyPatch) -> None:
    both, pairs = tables(), codes(100)
    assert len(pairs[0]) < BLOCK_PAIRS
    whole = inner_products(*both, *pairs)
    monkeypatch.setattr("counterpoise.models.embedding_ops.BLOCK_PAIRS", 7)
    assert torch.equal(inner_products(*both, *pairs), whole)


def test_rows_of_a_grid_share_one_gradient_with_it() -> None:
    grid = torch.randn(20, dtype=torch.float64).requires_grad_()
    positions = torch.tensor([3, 3, 17, 0])  # one twice
    assert torch.autograd.gradcheck(lambda g: rows_of_grid(g, positions), (grid,))
    rows, everything = rows_of_grid(grid, positions)
    assert torch.equal(rows, grid[positions])
    assert torch.equal(everything, grid)


@pytest.mark.parametrize("asked", ["rows", "grid", "both"])
def test_rows_and_grid_are_those_of_autograd(asked: str) -> None:
    both, (users, items) = tables(), codes(50)  # some pairs twice, in no order
    rows, grid = rows_and_grid(*both, GridPositions.of(40, 30, users, items))
    expected = both[0] @ both[1].T
    taken = expected[users.long(), items.long()]
    assert torch.allclose(rows, taken, atol=1e-6)
    assert torch.allclose(grid, expected.flatten(), atol=1e-6)
    slopes, on_grid = torch.linspace(-1, 2, 50), torch.linspace(-2, 1, len(grid))
    losses = {"rows": (rows * slopes).sum(), "grid": (grid * on_grid).sum()}
    others = {"rows": (taken * slopes).sum(), "grid": (expected.flatten() * on_grid).sum()}
    of_loss, of_other = (
        torch.autograd.grad(sum(each.values()) if asked == "both" else each[asked], both) for each in (losses, others)
    )
    for own, other in zip(of_loss, of_other, strict=True):
        assert torch.allclose(own, other, atol=1e-4)


def test_a_value_is_cached_for_tensors_that_come_again() -> None:
    cache, first, second = RepeatedInputCache(), torch.ones(2), torch.ones(2)
    computed: list[Tensor] = []

    def compute(given: Tensor) -> int:
        computed.append(given)
        return len(computed)

    found = [cache.get(compute, each) for each in (first, first, first, second)]
    assert found == [None, 1, 1, None]  # equal is not the same
    assert cache.get(compute, second) == 2
    assert [given is first for given in computed] == [True, False]
