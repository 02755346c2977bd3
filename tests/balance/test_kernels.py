"""Kernels and their population means against loops over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles_balancing import kernel_value

from counterpoise.balance.kernels import (
    Exponential,
    Gaussian,
    enumerated_gram,
    mixture_gram,
    pair_gram,
    pair_means,
    pair_moments,
)
from counterpoise.balance.population import Pairs, Sample, kernel_rows
from counterpoise.errors import ConfigError

KERNELS = [Gaussian(1.7), Exponential(0.8)]


def tables(seed=0, users=9, items=7):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(users, 2))), torch.tensor(rng.normal(size=(items, 3)))


def all_pairs(users, items):
    return torch.cat([users.repeat_interleave(len(items), 0), items.repeat(len(users), 1)], 1)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_values_are_the_formula(kernel):
    x, centres = torch.randn(5, 3).double(), torch.randn(4, 3).double()
    expected = [[kernel_value(kernel, a.numpy(), b.numpy()) for b in centres] for a in x]
    assert np.allclose(kernel(x, centres), expected, atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_gram_is_positive_with_unit_diagonal_far_from_zero(kernel):
    x = torch.randn(40, 3).double() + 1000
    gram = kernel(x, x)
    assert torch.allclose(gram.diagonal(), torch.ones(40).double(), atol=1e-9)
    assert torch.allclose(gram, gram.T, atol=1e-9)
    assert torch.linalg.eigvalsh(gram)[0] > -1e-9


@pytest.mark.parametrize(
    ("kernel", "error"), [(KERNELS[0], 1e-12), (KERNELS[1], 1e-6)], ids=["gaussian", "exponential"]
)
def test_pair_means_equal_brute_force_over_all_pairs(kernel, error):
    users, items = tables()
    centres = all_pairs(users, items)[::5]
    brute = [np.mean([kernel_value(kernel, x, c) for x in all_pairs(users, items).numpy()]) for c in centres.numpy()]
    assert abs(pair_means(kernel, centres, users, items).numpy() - brute).max() <= error


@pytest.mark.parametrize("gram", [pair_gram, mixture_gram, enumerated_gram])
@pytest.mark.parametrize(
    ("kernel", "error"), [(KERNELS[0], 1e-12), (KERNELS[1], 2e-6)], ids=["gaussian", "exponential"]
)
def test_pair_gram_equals_brute_force_over_all_pairs(kernel, error, gram):
    users, items = tables()
    centres = all_pairs(users, items)[::9]
    values = kernel(all_pairs(users, items), centres)
    assert abs(gram(kernel, centres, users, items) - values.T @ values / len(values)).max() <= error


def test_exponential_kernel_is_a_mixture_of_gaussians():
    distances = torch.cat([torch.zeros(1), torch.logspace(-6, 4, 2000)]).double()
    for bandwidth in (0.1, 1.0, 5.0):
        weights, bandwidths = Exponential(bandwidth).mixture()
        mixture = torch.exp(-(distances**2)[:, None] / (2 * bandwidths)) @ weights
        assert abs(mixture - torch.exp(-distances / (2 * bandwidth))).max() < 1e-6


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_means_over_a_weighted_sample_are_weighted_means(kernel):
    x, centres, weights = torch.randn(50, 3).double(), torch.randn(4, 3).double(), torch.rand(50)
    values, share = kernel(x, centres), (weights / weights.sum()).double()
    population = Sample(x, weights)
    assert torch.allclose(population.kernel_mean(kernel, centres), share @ values)
    assert torch.allclose(population.kernel_gram(kernel, centres), values.T @ torch.diag(share) @ values)
    mean, deviation = population.kernel_moments(kernel, centres)
    assert torch.allclose(mean, share @ values)
    assert torch.allclose(deviation, (share @ (values - mean) ** 2).sqrt())


@pytest.mark.parametrize("kind", [Gaussian, Exponential])
@pytest.mark.parametrize("bandwidth", [0.05, 0.8, 200.0, 1000.0, 1e6, 1e9])
def test_kernel_moments_are_exact_at_any_bandwidth(kind, bandwidth):
    """Against all pairs one by one; the oracle takes 1 - k from its exponent, or a wide kernel would be rounded off."""
    kernel, (users, items) = kind(bandwidth), tables(users=23, items=19)
    everything = all_pairs(users, items)
    centres = everything[::40]
    distances = np.sqrt(((everything[:, None] - centres) ** 2).sum(-1).numpy())
    power = distances**2 if kind is Gaussian else distances
    complement = -np.expm1(-power / (2 * bandwidth))
    mean, deviation = Pairs(users, items).kernel_moments(kernel, centres)
    np.testing.assert_allclose(deviation, complement.std(0), rtol=1e-6)
    np.testing.assert_allclose(1 - mean, complement.mean(0), rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(Pairs(users, items).kernel_mean(kernel, centres), mean, atol=1e-8)
    if bandwidth < 1e9:  # a sample has the values of the kernel alone, which end at the 16th digit
        mean, deviation = Sample(everything).kernel_moments(kernel, centres)
        np.testing.assert_allclose(deviation, complement.std(0), rtol=1e-6)
        np.testing.assert_allclose(1 - mean, complement.mean(0), rtol=1e-6, atol=1e-15)


def test_the_population_may_be_one_point():
    users, items = torch.ones(3, 2).double(), torch.ones(2, 1).double()
    for kernel in KERNELS:
        mean, deviation = Pairs(users, items).kernel_moments(kernel, torch.tensor([[1.0, 1, 1], [2, 1, 1]]))
        expected = [kernel_value(kernel, np.ones(3), c) for c in (np.ones(3), np.array([2.0, 1, 1]))]
        np.testing.assert_allclose(mean, expected, atol=1e-7)
        np.testing.assert_allclose(deviation, 0, atol=1e-7)


def test_mean_over_pairs_equals_brute_force():
    users, items = tables()
    brute = all_pairs(users, items).sin().mean(0)
    assert torch.allclose(Pairs(users, items).mean(torch.sin, 5), brute, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_rows_of_pairs_equal_kernels_of_features(kernel, dtype):
    users, items = (table.to(dtype) for table in tables())
    pairs = Pairs(users, items)
    observed = pairs.at(torch.tensor([0, 3, 3, 8]), torch.tensor([6, 0, 1, 2]))
    centres, mixing = all_pairs(users, items)[:6], torch.randn(6, 2, dtype=dtype)
    expected = kernel(observed.features(slice(None)), centres)
    close = 1e-5 if dtype == torch.float32 else 1e-12
    assert torch.allclose(kernel_rows(kernel, centres, observed).take(slice(None)), expected, atol=close)
    mixed = kernel_rows(kernel, centres, observed, mixing).take(torch.tensor([1, 2]))
    assert torch.allclose(mixed, (expected @ mixing)[1:3], atol=close)


def test_median_heuristic_gives_kernels_that_vary():
    x = torch.randn(2000, 6).double()
    for kernel in (Gaussian(), Exponential()):
        values = kernel.with_bandwidth(x)(x[:300], x[300:600])
        assert 0.2 < values.mean() < 0.7
        assert values.std() > 0.05
    assert Gaussian().with_bandwidth(torch.ones(10, 2)).bandwidth == 1.0


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_median_bandwidth_is_that_of_distances_above_zero(size):
    x = size * torch.randn(41, 2, generator=torch.Generator().manual_seed(0)).double()
    x[:8], x[20:28] = 1.0, 1.0  # rows that are equal in eight pairs
    distances = sorted(float((x[row] - x[row + 20]).square().sum()) for row in range(8, 20))
    below = distances[5]  # torch's median of an even number of values is the lower one
    assert Gaussian().with_bandwidth(x).bandwidth == pytest.approx(below / 2)
    assert Exponential().with_bandwidth(x).bandwidth == pytest.approx(below**0.5 / 2)


def test_bandwidth_must_be_positive_and_known():
    with pytest.raises(ConfigError, match=r"`bandwidth` must be a number > 0, got -1"):
        Gaussian(-1).with_bandwidth(torch.ones(2, 2))
    with pytest.raises(ConfigError, match="with_bandwidth"):
        Gaussian()(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize("count", [5, 40, 63])
def test_drawn_pairs_are_distinct(count):
    users, items = tables()
    drawn = Pairs(users, items).draw(count, torch.Generator().manual_seed(0))
    assert len(torch.unique(drawn, dim=0)) == len(drawn) == count


COUNTS = torch.tensor([3, 0, 1, 5, 2, 0, 1, 7, 1])  # how often each of nine users is in a log


def shared(users, items):
    """Pairs in which a user counts as often as in `COUNTS`."""
    return Pairs(users, items, COUNTS.double() / COUNTS.sum())


@pytest.mark.parametrize(
    ("kernel", "error"), [(KERNELS[0], 1e-12), (KERNELS[1], 2e-6)], ids=["gaussian", "exponential"]
)
def test_user_shares_are_users_repeated_as_often(kernel, error):
    users, items = tables()
    pairs, centres = shared(users, items), all_pairs(users, items)[::6]
    everything = all_pairs(users.repeat_interleave(COUNTS, 0), items)
    values = np.array([[kernel_value(kernel, x, c) for c in centres.numpy()] for x in everything.numpy()])
    mean, deviation = pairs.kernel_moments(kernel, centres)
    assert abs(pairs.kernel_mean(kernel, centres).numpy() - values.mean(0)).max() <= error
    assert abs(mean.numpy() - values.mean(0)).max() <= error
    assert abs(deviation.numpy() - values.std(0)).max() <= error
    for gram in (pair_gram, mixture_gram, enumerated_gram):
        found = gram(kernel, centres, users, items, pairs.user_shares).numpy()
        assert abs(found - values.T @ values / len(values)).max() <= error


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("block", [8, 64, 2**20])
def test_user_shares_go_with_their_users_block_by_block(kernel, block, monkeypatch):
    users, items = tables()
    pairs, centres = shared(users, items), all_pairs(users, items)[::6]
    methods = (pair_means, pair_moments, mixture_gram, enumerated_gram)
    whole = [method(kernel, centres, users, items, pairs.user_shares) for method in methods]
    mean = pairs.mean(torch.sin, 5)
    monkeypatch.setattr("counterpoise.balance.kernels.BLOCK_VALUES", block)
    monkeypatch.setattr("counterpoise.balance.population.BLOCK_VALUES", block)
    for method, expected in zip(methods, whole, strict=True):
        found = method(kernel, centres, users, items, pairs.user_shares)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(pairs.mean(torch.sin, 5), mean, rtol=1e-12, atol=1e-14)


def test_equal_user_shares_are_no_shares():
    users, items = tables()
    plain, equal = Pairs(users, items), Pairs(users, items, torch.full((9,), 1 / 9).double())
    centres = all_pairs(users, items)[::6]
    for kernel in KERNELS:
        assert torch.allclose(plain.kernel_gram(kernel, centres), equal.kernel_gram(kernel, centres), atol=1e-14)
        for one, other in zip(
            plain.kernel_moments(kernel, centres), equal.kernel_moments(kernel, centres), strict=True
        ):
            assert torch.allclose(one, other, atol=1e-14)


def test_means_and_marginals_follow_user_shares():
    users, items = tables()
    pairs, everything = shared(users, items), all_pairs(users.repeat_interleave(COUNTS, 0), items)
    assert torch.allclose(pairs.mean(torch.sin, 5), everything.sin().mean(0), atol=1e-14)
    columns = torch.cat([sample.mean(torch.sin, 3) for sample in pairs.marginals()])
    assert torch.allclose(columns, everything.sin().mean(0), atol=1e-14)


def test_draws_follow_user_shares():
    users, items = tables()
    drawn = shared(users, items).draw(20_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (20_000, 5)
    user = (drawn[:, None, :2] - users).abs().sum(2).argmin(1)
    item = (drawn[:, None, 2:] - items).abs().sum(2).argmin(1)
    expected = 20_000 * torch.outer(COUNTS / COUNTS.sum(), torch.full((7,), 1 / 7)).flatten().double()
    counts = torch.bincount(user * 7 + item, minlength=63).double()
    seen = expected > 0
    assert counts[~seen].sum() == 0
    chi_square, degrees = float(((counts - expected)[seen] ** 2 / expected[seen]).sum()), int(seen.sum()) - 1
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)
