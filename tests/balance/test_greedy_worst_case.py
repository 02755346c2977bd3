"""The greedy worst-case rule: each function, when the rule stops, and where it starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import counterpoise.balance.functions
from counterpoise.balance.estimators import KernelBalancer
from counterpoise.balance.exponential_family import matrix_rows
from counterpoise.balance.functions import KernelFunctions
from counterpoise.balance.kernels import Exponential, Gaussian
from counterpoise.balance.population import Pairs, Sample
from counterpoise.balance.selection import MAX_CHANCE_SHARE, below_chance, draw_rows, greedy_worst_case, smoothness
from counterpoise.balance.solver import entropy_balance
from counterpoise.config import SelectForSamples
from counterpoise.errors import DataError

Floats = NDArray[np.float64]


def kernels(seed: int = 0, count: int = 12) -> tuple[Floats, Floats, Floats, Floats]:
    """Kernel values of a selected sample, their population means and covariance, and the population's values."""
    rng = np.random.default_rng(seed)
    population = rng.normal(size=(3000, 2))
    centres = population[:count]
    values = np.exp(-((population[:, None] - centres[None]) ** 2).sum(-1) / 4)
    observed = values[rng.random(3000) < 1 / (1 + np.exp(1 - population[:, 0] - population[:, 1] ** 2))]
    return observed, values.mean(0), np.cov(values.T, bias=True), values


def found(observed: Floats, mean: Floats, covariance: Floats, count: int, base: Floats | None = None) -> Floats:
    start = None if base is None else torch.tensor(base)
    rows = matrix_rows(torch.tensor(observed))
    return greedy_worst_case(rows, torch.tensor(mean), torch.tensor(covariance), count, start)[0].numpy()


def test_each_function_is_the_worst_under_the_weights_before_it() -> None:
    observed, mean, covariance, _ = kernels()
    mixing, weights = found(observed, mean, covariance, 3), np.full(len(observed), 1 / len(observed))
    for j in range(3):
        left = weights @ observed - mean
        others = np.random.default_rng(j).normal(size=(1000, len(mean)))
        assert (abs(others @ left) <= np.linalg.norm(others, axis=1) * np.linalg.norm(left)).all()
        before = mixing[:, :j]
        new = left - before @ (before.T @ covariance @ left)  # the part that those before it do not explain
        assert np.allclose(mixing[:, j], new / np.sqrt(new @ covariance @ new), rtol=1e-4, atol=1e-6)
        weights = entropy_balance(observed @ mixing[:, : j + 1], mean @ mixing[:, : j + 1]).weights


def test_functions_are_uncorrelated_with_variance_one() -> None:
    observed, mean, covariance, population = kernels()
    mixing = found(observed, mean, covariance, 5)
    assert np.allclose(np.cov((population @ mixing).T, bias=True), np.eye(mixing.shape[1]), atol=1e-8)


def test_random_sample_leaves_trace_over_sample_size() -> None:
    _, mean, covariance, population = kernels()
    rng = np.random.default_rng(0)
    left = np.array([population[rng.integers(3000, size=50)].mean(0) - mean for _ in range(4000)])
    chance = np.trace(covariance) / 50
    assert (left**2).sum(1).mean() == pytest.approx(chance, rel=0.05)
    share = torch.full((50,), 1 / 50).double()
    for size, near in ((0.99, True), (1.01, False)):
        vector = torch.zeros(len(mean)).double()
        vector[0] = np.sqrt(size * MAX_CHANCE_SHARE * chance)
        assert below_chance(vector, torch.tensor(covariance), share) is near


def test_rule_stops_at_a_tenth_of_chance() -> None:
    observed, mean, covariance, _ = kernels()
    mixing = found(observed, mean, covariance, len(mean))
    assert 1 < mixing.shape[1] < len(mean)
    for count, ended in ((mixing.shape[1] - 1, False), (mixing.shape[1], True)):
        weights = entropy_balance(observed @ mixing[:, :count], mean @ mixing[:, :count]).weights
        left = ((weights @ observed - mean) ** 2).sum()
        assert (left <= MAX_CHANCE_SHARE * np.trace(covariance) * (weights**2).sum()) is np.bool_(ended)


def test_rule_stops_when_all_kernels_are_explained() -> None:
    observed, mean, covariance, _ = kernels(count=3)
    few = observed[:4]  # far from the population: never below chance, and three kernels are three functions
    assert found(few, mean, covariance, 50).shape[1] <= 3


def test_balanced_base_weights_need_one_function() -> None:
    observed, mean, covariance, _ = kernels()
    assert found(observed, mean, covariance, 12).shape[1] > 1
    balanced = entropy_balance(observed, mean).weights
    assert found(observed, mean, covariance, 12, balanced).shape[1] == 1


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0, 3.0], [2.5, 2.5, 2.5, 2.5], [2.5]])
def test_population_itself_keeps_uniform_weights(values: list[float]) -> None:
    population = np.array(values)[:, None]
    balancer = KernelBalancer(select="greedy", random_state=0).fit(population, population)
    assert len(balancer.result_.dual) == 1
    assert balancer.weights_ * len(values) == pytest.approx(1)
    assert balancer.result_.status == "solved"


def test_rows_off_a_one_point_population_are_relaxed() -> None:
    balancer = KernelBalancer(select="greedy", random_state=0).fit(np.full((5, 2), 9.0), np.ones((4, 2)))
    assert balancer.result_.relaxed.tolist() == [True]
    assert balancer.weights_ == pytest.approx(1 / 5)


def test_kernels_equal_up_to_rounding_give_one_function() -> None:
    rng = np.random.default_rng(0)
    population = rng.normal(size=(200, 2))
    wide = KernelBalancer(select="greedy", bandwidth=1e9, random_state=0)
    assert np.isfinite(wide.fit(population[population[:, 0] > 0], population).weights_).all()
    assert len(wide.result_.dual) == 1


def test_gram_of_a_draw_has_no_negative_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = Pairs(torch.randn(200, 2, generator=generator), torch.randn(150, 2, generator=generator))
    kernel, centres = Exponential(2.0), pairs.draw(40, generator)
    mean = pairs.kernel_mean(kernel, centres)
    gram = counterpoise.balance.functions._gram(kernel, centres, pairs, mean, generator)
    variances = torch.linalg.eigvalsh(gram - torch.outer(mean, mean))
    assert float(variances[0]) > -1e-12 * float(variances[-1])
    assert torch.allclose(gram, pairs.kernel_gram(kernel, centres), rtol=0.05)


def test_rougher_functions_have_smaller_relative_strength() -> None:
    mixing = torch.tensor([[3.0, 6.0, 1.0], [4.0, 8.0, 0.0]])
    assert smoothness(mixing).tolist() == pytest.approx([1, 0.5, 1])


def test_sample_without_selection_needs_one_function() -> None:
    rng = np.random.default_rng(0)
    population = rng.normal(size=(20_000, 2))
    balancer = KernelBalancer(20, "greedy", random_state=0).fit(population[::2], population)
    assert len(balancer.result_.dual) == 1
    assert balancer.weights_ * 10_000 == pytest.approx(1, abs=0.15)


def test_greedy_worst_case_beats_spectral_with_two_functions() -> None:
    rng = np.random.default_rng(0)
    population = rng.normal(size=(4000, 4))
    logit = population[:, 0] + population[:, 1] * population[:, 2] - 1
    observed = population[rng.random(4000) < 1 / (1 + np.exp(-logit))]
    others = torch.tensor(rng.normal(size=(200, 4)))
    over, at = (Gaussian(4.0)(torch.tensor(table), others).numpy() for table in (population, observed))

    def left(count: int, select: SelectForSamples) -> float:
        weights = KernelBalancer(count, select, random_state=0).fit(observed, population).weights_
        return float(np.linalg.norm(weights @ at - over.mean(0)))

    assert left(2, "greedy") < 0.5 * left(2, "spectral")
    assert left(50, "greedy") < 0.5 * np.sqrt(over.var(0).sum() / len(observed))


def test_many_rows_are_sampled_only_for_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    population = torch.tensor(rng.normal(size=(3000, 2)))
    observed = Sample(population[torch.tensor(rng.random(3000)) < torch.sigmoid(population[:, 0] - 1)])
    recipe = KernelFunctions(Gaussian(), 8, "greedy", 40)
    whole = recipe.fit(Sample(population), observed)
    monkeypatch.setattr(counterpoise.balance.functions, "MAX_GREEDY_ROWS", 300)
    some = recipe.fit(Sample(population), observed, weights=torch.ones(observed.n_rows))
    assert not torch.equal(whole.targets[:1], some.targets[:1])
    assert some.balance(observed).weights.shape == (observed.n_rows,)
    assert some.balance(observed).max_violation < 1e-6


def test_rows_are_drawn_by_their_weights() -> None:
    rows, weights = matrix_rows(torch.zeros(4, 1)), torch.tensor([0.0, 3.0, 1.0, 0.0])
    drawn = draw_rows(rows, weights, 4000, torch.Generator().manual_seed(0))
    assert np.bincount(drawn.numpy(), minlength=4) / 4000 == pytest.approx([0, 0.75, 0.25, 0], abs=0.02)
    assert draw_rows(rows, None, 4000, torch.Generator().manual_seed(0)).bincount().min() > 900
    last = draw_rows(rows, torch.tensor([1.0, 0.0, 0.0, 1.0]), 4000, torch.Generator().manual_seed(0))
    assert np.bincount(last.numpy(), minlength=4) / 4000 == pytest.approx([0.5, 0, 0, 0.5], abs=0.03)


def test_rows_of_weight_zero_are_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counterpoise.balance.functions, "MAX_GREEDY_ROWS", 20)
    population = np.random.default_rng(0).normal(size=(500, 2))
    base = np.zeros(400)
    base[:3] = 1
    weights = KernelBalancer(5, "greedy", random_state=0).fit(population[:400], population, base_weights=base).weights_
    assert weights[3:].max() < 1e-12 < weights[:3].min()


def test_base_weights_are_checked_before_the_choice() -> None:
    population = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.raises(DataError, match="`base_weights` must have one value for each of the 50 rows"):
        KernelBalancer(5, "greedy").fit(population[:50], population, base_weights=np.ones(49))
