"""Values by codes, and their gradients, against autograd's own and against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from counterpoise.models.embedding_ops import (
    SORTING_PAYS,
    BiasedProducts,
    Kept,
    Places,
    biased_products,
    inner_products,
    lookup,
    rows_and_grid,
    rows_of_grid,
    take,
)

SHAPES = [(), (3,)]  # one fit, and three side by side
COUNTS = [1, 50, SORTING_PAYS + 7]


def tables(leading: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(*leading, n, 5, generator=generator) for n in (40, 30))
    return users.requires_grad_(), items.requires_grad_()


def codes(count: int, leading: tuple[int, ...] = (), dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)  # some users and items have no pair
    users, items = (torch.randint(n, (*leading, count), generator=generator, dtype=dtype) for n in (35, 28))
    return users, items


@pytest.mark.parametrize("leading", SHAPES)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_inner_products_and_their_gradients_are_those_of_autograd(
    leading: tuple[int, ...], count: int, shared: bool, dtype: torch.dtype
) -> None:
    both, (users, items) = tables(leading), codes(count, () if shared else leading, dtype)
    slopes = torch.randn(*leading, count, generator=torch.Generator().manual_seed(2))
    found = inner_products(*both, users, items)
    expected = (lookup(both[0], users) * lookup(both[1], items)).sum(-1)
    assert torch.allclose(found, expected, atol=1e-5)
    gradients = torch.autograd.grad((found * slopes).sum(), both)
    for own, other in zip(gradients, torch.autograd.grad((expected * slopes).sum(), both), strict=True):
        assert torch.allclose(own, other, atol=1e-4)


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_biased_products_and_their_gradients_are_those_of_autograd(count: int, dtype: torch.dtype) -> None:
    (user_factors, item_factors), (users, items) = tables(()), codes(count, dtype=dtype)
    biases = [torch.linspace(-1, 1, n)[:, None].requires_grad_() for n in (40, 30)]
    mean, slopes = torch.tensor(0.3, requires_grad=True), torch.linspace(-2, 1, count)
    everything = [mean, user_factors, item_factors, *biases]
    products = (user_factors[users.long()] * item_factors[items.long()]).sum(1)
    expected = mean + biases[0][users.long(), 0] + biases[1][items.long(), 0] + products
    found = biased_products(everything, users, items)
    assert torch.allclose(found, expected, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(biased_products(everything, users, items), found)
        written_out = BiasedProducts(everything, users, items).gradients(slopes)
    gradients = torch.autograd.grad(found @ slopes, everything), torch.autograd.grad(expected @ slopes, everything)
    for own, of_function, of_autograd in zip(written_out, *gradients, strict=True):
        assert torch.equal(own, of_function)
        assert own.shape == of_autograd.shape
        assert torch.allclose(own, of_autograd, atol=1e-5)


def test_lookup_and_take_are_loops() -> None:
    (users, _), (shared, _) = tables((2,)), codes(4)
    found = lookup(users, shared)
    for fit in range(2):
        for place, code in enumerate(shared.tolist()):
            assert torch.equal(found[fit, place], users[fit, code])
    values, places = torch.arange(6.0).view(2, 3), torch.tensor([2, 0])
    assert take(values, places).tolist() == [[2, 0], [5, 3]]
    assert take(values, torch.tensor([[2, 0], [1, 1]])).tolist() == [[2, 0], [4, 4]]
    assert take(values[0], places).tolist() == [2, 0]


@pytest.mark.parametrize("leading", SHAPES)
def test_rows_of_a_grid_share_one_gradient_with_it(leading: tuple[int, ...]) -> None:
    grid = torch.randn(*leading, 20, dtype=torch.float64).requires_grad_()
    places = torch.tensor([3, 3, 17, 0])  # one twice
    assert torch.autograd.gradcheck(lambda g: rows_of_grid(g, places), (grid,))
    rows, everything = rows_of_grid(grid, places)
    assert torch.equal(rows, take(grid, places))
    assert torch.equal(everything, grid)


@pytest.mark.parametrize("leading", SHAPES)
@pytest.mark.parametrize("asked", ["rows", "grid", "both"])
def test_inner_products_of_rows_and_of_all_pairs_are_those_of_autograd(leading: tuple[int, ...], asked: str) -> None:
    both, (users, items) = tables(leading), codes(50)  # some pairs twice, in no order
    rows, grid = rows_and_grid(*both, Places.of(*both, users, items))
    expected = both[0] @ both[1].mT
    taken = expected[..., users.long(), items.long()]
    assert torch.allclose(rows, taken, atol=1e-6)
    assert torch.allclose(grid, expected.flatten(-2), atol=1e-6)
    slopes, on_grid = torch.linspace(-1, 2, 50), torch.linspace(-2, 1, grid.shape[-1])
    losses = {"rows": (rows * slopes).sum(), "grid": (grid * on_grid).sum()}
    others = {"rows": (taken * slopes).sum(), "grid": (expected.flatten(-2) * on_grid).sum()}
    of_loss, of_other = (
        torch.autograd.grad(sum(each.values()) if asked == "both" else each[asked], both) for each in (losses, others)
    )
    for own, other in zip(of_loss, of_other, strict=True):
        assert torch.allclose(own, other, atol=1e-4)


def test_what_is_kept_is_made_for_tensors_that_come_again() -> None:
    kept, first, second = Kept(), torch.ones(2), torch.ones(2)
    made: list[Tensor] = []
    found = [kept.of(lambda given: made.append(given) or len(made), each) for each in (first, first, first, second)]
    assert found == [None, 1, 1, None]  # equal is not the same
    assert kept.of(lambda given: made.append(given) or len(made), second) == 2
    assert [given is first for given in made] == [True, False]
