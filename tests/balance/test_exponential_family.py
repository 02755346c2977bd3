"""The exponential family over rows, block by block, against sums over all rows at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balance.exponential_family import InMemoryFamily, Rows, capped_offset, matrix_rows, weighted_sum
from counterpoise.balance.population import Pairs


def rows_of_many_blocks(offset: float = 0.0) -> tuple[Rows, np.ndarray]:
    """1,000 rows in blocks of 64, whose scores differ by hundreds from block to block."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1000, 3)) + np.linspace(-200, 200, 1000)[:, None] + offset
    return replace(matrix_rows(torch.tensor(values)), cpu_block=1), values


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("max_weight", [None, 0.004])
def test_blocks_add_up_to_sums_over_all_rows(max_weight: float | None, base: bool, threads: int) -> None:
    rows, values = rows_of_many_blocks()
    q = np.random.default_rng(1).random(1000) if base else np.ones(1000)
    q /= q.sum()
    targets, dual = np.array([1.0, -2.0, 0.5]), np.array([0.4, -0.3, 0.2])
    family = InMemoryFamily(rows, torch.tensor(targets), torch.tensor(q).log() if base else None, max_weight)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        point = family.at(torch.tensor(dual))
        mean, deviation = family.base_moments()
        sums = weighted_sum(rows, torch.tensor(q))
        covariance = point.covariance().numpy()
    finally:
        torch.set_num_threads(before)
    scores = np.log(q) - values @ dual
    if max_weight is None:
        offset = np.logaddexp.reduce(scores)
        weights, smooth = np.exp(scores - offset), offset + dual @ targets
    else:
        offset = point.offset
        weights = np.minimum(np.exp(scores - offset), max_weight)
        smooth = weights @ scores - weights[weights > 0] @ np.log(weights[weights > 0]) + dual @ targets
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    assert point.offset == pytest.approx(offset, rel=1e-12)
    assert point.smooth == pytest.approx(smooth, rel=1e-9)
    assert np.allclose(point.weights, weights, rtol=1e-9, atol=1e-300)
    assert np.allclose(point.imbalance, weights @ values - targets, rtol=1e-9)
    assert np.allclose(mean, q @ values, rtol=1e-9, atol=1e-9)
    assert np.allclose(deviation, np.sqrt(q @ (values - q @ values) ** 2), rtol=1e-9)
    assert np.allclose(sums, q @ values, rtol=1e-9, atol=1e-9)
    below = weights < (max_weight or np.inf) * (1 - 1e-12)
    around = values[below] - weights[below] @ values[below] / weights[below].sum()
    assert np.allclose(covariance, (around.T * weights[below]) @ around, rtol=1e-6, atol=1e-9)


def test_moments_far_from_zero_keep_their_digits() -> None:
    rows, values = rows_of_many_blocks(1e9)
    mean, deviation = InMemoryFamily(rows, torch.zeros(3).double()).base_moments()
    assert np.allclose(mean, values.mean(0), rtol=1e-12)
    assert np.allclose(deviation, values.std(0), rtol=1e-6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 30), st.floats(0, 1), st.floats(0, 30))
def test_capped_weights_sum_to_one(seed: int, size: int, share: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    scores = np.sort(spread * rng.normal(size=size).round(1))  # some are equal
    cap = (1 + share * (size - 1)) / size  # from 1 / n, where all are equal, to 1
    offset = capped_offset(torch.tensor(scores), cap)
    assert np.minimum(np.exp(scores - offset), cap).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("count", [3, 400, 900])
def test_pairs_are_drawn_without_repetition(count: int) -> None:
    users, items = torch.arange(100.0)[:, None], torch.arange(90.0)[:, None]
    drawn = Pairs(users, items).draw(count, torch.Generator().manual_seed(0))
    assert len(np.unique(drawn.numpy(), axis=0)) == len(drawn) == count
    assert abs(float(drawn[:, 0].mean()) - 49.5) < 150 / count**0.5


def test_users_are_drawn_by_their_shares_and_items_alike() -> None:
    shares = torch.tensor([0.7, 0.3, 0.0]).double()
    pairs = Pairs(torch.arange(3.0)[:, None], torch.arange(4.0)[:, None], shares)
    drawn = pairs.draw(4000, torch.Generator().manual_seed(0)).int().numpy()
    assert np.bincount(drawn[:, 0], minlength=3) / 4000 == pytest.approx(shares.numpy(), abs=0.03)
    assert np.bincount(drawn[:, 1], minlength=4) / 4000 == pytest.approx([0.25] * 4, abs=0.03)
