"""Balancing functions: their population means, how they are chosen, and what balancing them does."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from selection import balanced, design, relative_error

from counterpoise.balance import exponential_family
from counterpoise.balance.exponential_family import matrix_rows
from counterpoise.balance.functions import CustomFunctions, FittedKernels, KernelFunctions, Moments
from counterpoise.balance.kernels import Exponential, Gaussian
from counterpoise.balance.population import Pairs, Sample
from counterpoise.balance.selection import (
    adaptive,
    ridge_coefficients,
    solve,
    worst_case_matrix,
    worst_case_variance,
)
from counterpoise.balance.solver import entropy_balance, worst_case_balance
from counterpoise.errors import ConfigError, DataError

SEEDS = 4  # benchmarks/selection.py has more
RECIPES = [
    Moments(2),
    CustomFunctions(lambda x: torch.stack([x[:, 0], x.sum(1).sin()], 1)),
    KernelFunctions(Gaussian(), 4, "random", 30),
    KernelFunctions(Gaussian(), 4, "spectral", 30),
    KernelFunctions(Exponential(), 4, "spectral", 30),
    KernelFunctions(Gaussian(), 4, "adaptive", 30),
    KernelFunctions(Gaussian(), 4, "worst_case", 30),
    KernelFunctions(Gaussian(), 4, "greedy", 30),
]


def world(seed=0):
    rng = np.random.default_rng(seed)
    pairs = Pairs(torch.tensor(rng.normal(size=(40, 2))), torch.tensor(rng.normal(size=(30, 2))))
    everything = pairs.at(torch.arange(40).repeat_interleave(30), torch.arange(30).repeat(40))
    chosen = torch.tensor(rng.random(1200) < 1 / (1 + np.exp(1 - everything.features(slice(None))[:, 0].numpy())))
    return pairs, everything, pairs.at(everything.users[chosen], everything.items[chosen]), chosen


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: getattr(r, "select", type(r).__name__))
def test_targets_and_scales_are_population_means_and_deviations(recipe):
    pairs, everything, observed, _ = world()
    fitted = recipe.fit(pairs, observed, torch.rand(observed.n_rows))
    values = fitted.values(everything.features(slice(None)))
    assert torch.allclose(fitted.targets, values.mean(0), atol=1e-6)
    assert torch.allclose(fitted.scale, values.std(0, correction=0), atol=1e-5)
    rows = fitted.rows(observed)
    assert torch.allclose(rows.take(slice(None)), fitted.values(observed.features(slice(None))), atol=1e-9)
    assert len(fitted.names) == rows.n_functions == len(fitted.targets)


def test_moments_of_a_sample_far_from_zero_are_those_of_its_columns():
    x = 3 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).double() + torch.tensor([5.0, -20.0])
    fitted = Moments(2).fit(Sample(x))
    values = fitted.values(x)
    assert torch.allclose(values[:, :2], (x - x.mean(0)) / x.std(0, correction=0))
    assert torch.allclose(fitted.targets, values.mean(0), atol=1e-9)
    assert torch.allclose(fitted.scale, values.std(0, correction=0))


def test_chance_of_the_worst_case_is_of_the_covariance():
    pairs, everything, _, _ = world()
    fitted = KernelFunctions(n=30, select="worst_case", candidates=30).fit(pairs)
    covariance = np.cov(fitted.values(everything.features(slice(None))).numpy().T, ddof=0)
    expected = np.trace(np.linalg.solve(fitted.matrix.numpy(), covariance))
    assert fitted.worst_case_variance == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("recipe", RECIPES[2:], ids=lambda r: r.select)
def test_matrix_population_gives_the_functions_of_pair_tables(recipe):
    """The exact means over D, and so the rule's choice, do not depend on how D is written down."""
    pairs, everything, observed, _ = world()
    recipe = replace(recipe, candidates=60)  # so many that both draw the same ones
    errors = observed.features(slice(None))[:, 0].sin()
    first, second = (
        recipe.fit(whole, observed, errors, generator=torch.Generator().manual_seed(1))
        for whole in (pairs, Sample(everything.features(slice(None))))
    )
    assert torch.equal(first.centres, second.centres)
    assert torch.allclose(first.targets, second.targets, atol=1e-5)
    points = everything.features(slice(0, None, 7))
    assert torch.allclose(first.values(points), second.values(points), atol=1e-4)


def test_spectral_basis_is_orthonormal_over_the_population():
    pairs, everything, _, _ = world()
    fitted = KernelFunctions(Gaussian(), 12, "spectral", 60).fit(pairs)
    values = fitted.values(everything.features(slice(None)))
    assert torch.allclose(values.T @ values / len(values), torch.eye(12).double(), atol=1e-6)
    assert (values.mean(0) > -1e-12).all()  # of the two signs of an eigenfunction, on every machine


def test_leading_eigenfunctions_are_relaxed_last():
    pairs, _, observed, _ = world()
    fitted = KernelFunctions(Gaussian(), 12, "spectral", 60).fit(pairs)
    assert float(fitted.relative_strength[0]) == 1
    assert bool((fitted.relative_strength.diff() < 0).all())
    result = fitted.balance(observed, strength=5.0)
    assert np.allclose(result.strength * fitted.scale.numpy(), 5 * fitted.relative_strength)


@pytest.mark.parametrize(
    "recipe", [KernelFunctions(n=6, select="random", candidates=60), KernelFunctions(n=6, candidates=60), Moments(2)]
)
def test_raw_units_are_those_of_the_function(recipe):
    """The paper's C and gamma as printed: one number for all functions, none of it per standard deviation."""
    pairs, _, observed, _ = world()
    fitted = recipe.fit(pairs)
    relative = 1.0 if fitted.relative_strength is None else fitted.relative_strength.numpy()
    raw = fitted.balance(observed, 0.01, 2.0, units="raw", accuracy=1e-10)
    printed = entropy_balance(
        fitted.values(observed.features(slice(None))), fitted.targets, 0.01, 2.0 * relative, accuracy=1e-10
    )
    assert np.allclose(raw.strength, 2.0 * relative)
    assert np.allclose(raw.weights, printed.weights, atol=1e-8)
    assert raw.objective == pytest.approx(printed.objective, abs=1e-8)


def test_raw_units_times_the_standard_deviation_are_sd_units():
    """Function by function: gamma raw is gamma x SD, C raw is C / SD."""
    pairs, _, observed, _ = world()
    fitted = KernelFunctions(n=6, select="random", candidates=60).fit(pairs)
    for j in range(6):
        one = FittedKernels.at_centres(fitted.kernel, fitted.centres[j : j + 1], pairs)
        sd = float(one.scale[0])
        raw = one.balance(observed, 0.001, 2.0, units="raw")
        scaled = one.balance(observed, 0.001 / sd, 2.0 * sd)
        assert sd < 0.9
        assert np.allclose(raw.weights, scaled.weights, rtol=1e-9)
        assert not np.allclose(raw.weights, one.balance(observed, 0.001, 2.0).weights, rtol=1e-3)


@pytest.mark.parametrize("most", [0, 2**28])
def test_many_rows_are_balanced_in_float32_or_computed_again(most: int, monkeypatch: pytest.MonkeyPatch):
    """Where their functions are too many to be kept in float64."""
    pairs, _, observed, _ = world()
    fitted = KernelFunctions(n=6).fit(pairs)
    expected = fitted.balance(observed, 0.001, 2.0).weights
    monkeypatch.setattr(exponential_family, "MAX_KEPT_VALUES", 0)
    monkeypatch.setattr(exponential_family, "MAX_KEPT_FLOAT32", most)
    kept = fitted.rows(observed).kept()
    assert (kept.take(slice(0, 1)).dtype == torch.float32) == (most > 0)
    assert np.allclose(fitted.balance(observed, 0.001, 2.0).weights, expected, rtol=1e-4)


def test_the_strength_of_the_worst_case_has_no_units():
    pairs, _, observed, _ = world()
    fitted = KernelFunctions(n=30, select="worst_case", candidates=30).fit(pairs)
    raw, sd = (fitted.balance(observed, strength=50.0, units=units).weights for units in ("raw", "sd"))
    assert torch.equal(raw, sd)


def test_unknown_units_are_refused():
    pairs, _, observed, _ = world()
    with pytest.raises(ConfigError, match="`units` must be"):
        Moments().fit(pairs).balance(observed, units="percent")


def test_custom_functions_must_give_a_matrix():
    sample = Sample(torch.ones(5, 2))
    with pytest.raises(DataError, match=r"`function` must give a matrix \(rows, functions\)"):
        CustomFunctions(lambda x: x[:, 0]).fit(sample)


def test_rows_are_drawn_by_their_weight():
    population = Sample(torch.arange(6.0)[:, None], torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 0.0]))
    assert sorted(population.draw(5, torch.Generator().manual_seed(0)).flatten().tolist()) == [1, 2, 4]


def test_ridge_coefficients_are_the_weighted_least_squares_solution():
    rng = np.random.default_rng(0)
    values, errors, weights = rng.normal(size=(50, 4)), rng.normal(size=50), rng.random(50)
    share, norm = np.diag(weights / weights.sum()), np.diag([1.0, 2.0, 3.0, 4.0])
    gram = values.T @ share @ values
    expected = np.linalg.solve(gram + 0.3 * np.trace(gram) / 4 * norm, values.T @ share @ errors)
    rows = matrix_rows(torch.tensor(values))
    found = ridge_coefficients(rows, torch.tensor(errors), torch.tensor(norm), 0.3, torch.tensor(weights))
    assert np.allclose(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solve_handles_matrices_made_indefinite_by_rounding(dtype):
    generator = torch.Generator().manual_seed(0)
    root, right = torch.randn(6, 6, generator=generator).double(), torch.randn(6, generator=generator).to(dtype)
    definite = (root @ root.T).to(dtype)
    assert torch.allclose(definite @ solve(definite, right), right, atol=1e-3 if dtype == torch.float32 else 1e-8)
    values, vectors = torch.linalg.eigh(definite)
    indefinite = vectors @ torch.diag(torch.cat([-1e-3 * values[-1:], values[1:]])) @ vectors.T
    assert torch.allclose(indefinite @ solve(indefinite, right), right, atol=1e-2)


def test_worst_case_bias_is_the_largest_for_its_norm():
    rng = np.random.default_rng(0)
    values, mean = rng.normal(size=(50, 4)), rng.normal(size=4)
    norm = np.cov(rng.normal(size=(4, 30)))
    worst = worst_case_balance(values, mean, norm).worst_case_bias_before ** 2
    bias = values.mean(0) - mean
    others = rng.normal(size=(1000, 4))
    assert ((others @ bias) ** 2 / np.einsum("ij,jk,ik->i", others, norm, others) <= worst * (1 + 1e-9)).all()


def test_worst_case_matrix_and_variance_are_their_formulas():
    rng = np.random.default_rng(0)
    gram, between, covariance = (7 * np.cov(rng.normal(size=(4, 30))) for _ in range(3))
    matrix = worst_case_matrix(*map(torch.tensor, (gram, between)), 0.3)
    assert np.allclose(matrix, gram + 0.3 * np.trace(gram) / 4 * between)
    expected = np.trace(np.linalg.solve(matrix.numpy(), covariance))
    assert worst_case_variance(torch.tensor(covariance), matrix) == pytest.approx(expected)
    first = np.diag([1.0, 1.0, 1.0, 0.0])  # a direction without norm is left out
    assert worst_case_variance(torch.tensor(covariance), torch.tensor(first)) == pytest.approx(
        np.trace(covariance[:3, :3])
    )


def test_adaptive_rule_finds_planted_kernels():
    pairs, _, observed, _ = world()
    generator = torch.Generator().manual_seed(0)
    kernel = Gaussian(0.3)
    centres = pairs.draw(30, generator)
    values = kernel(observed.features(slice(None)), centres)
    truth = torch.tensor([3, 11, 20])
    errors = values[:, truth] @ torch.tensor([3.0, -2.0, 2.5]).double()
    chosen = adaptive(matrix_rows(values), errors, kernel(centres, centres), 1e-6, 3)
    assert set(chosen.tolist()) == set(truth.tolist())


def test_adaptive_kernels_do_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    population, observed = (
        Sample(torch.tensor(rng.normal(size=(60, 3)))),
        Sample(torch.tensor(rng.normal(size=(40, 3)))),
    )
    errors, weights = torch.tensor(rng.random(40)), torch.tensor(rng.random(40))
    recipe = KernelFunctions(Gaussian(2.0), 4, "adaptive", 20)
    at_once = recipe.fit(population, observed, errors, weights, torch.Generator().manual_seed(1))
    monkeypatch.setattr("counterpoise.balance.functions.MAX_SINGLE_BLOCK_POINTS", 0)
    apart = recipe.fit(population, observed, errors, weights, torch.Generator().manual_seed(1))
    assert torch.equal(at_once.centres, apart.centres)
    assert apart.known is None
    for found in (at_once.known, at_once.values(observed.matrix)):
        assert torch.allclose(found, apart.values(observed.matrix), atol=1e-12)
    assert torch.allclose(at_once.targets, apart.targets, atol=1e-12)
    assert torch.allclose(at_once.scale, apart.scale, atol=1e-12)


def test_error_in_the_span_is_estimated_without_bias():
    """Theorem 1: balanced functions carry any error in their span, whatever its coefficients."""
    pairs, everything, observed, chosen = world()
    fitted = KernelFunctions(Gaussian(), 8, "spectral", 60).fit(pairs)
    on_all = fitted.values(everything.features(slice(None)))
    weights = entropy_balance(fitted.rows(observed), fitted.targets, accuracy=1e-11).weights
    for seed in range(20):
        coefficients = torch.randn(8, 2, generator=torch.Generator().manual_seed(seed)).double()
        error, imputed = (on_all @ coefficients + torch.randn(2, generator=torch.Generator().manual_seed(seed))).T
        assert float(weights @ error[chosen]) == pytest.approx(float(error.mean()), abs=1e-8)
        doubly_robust = imputed.mean() + weights @ (error - imputed)[chosen]
        assert float(doubly_robust) == pytest.approx(float(error.mean()), abs=1e-8)


@pytest.mark.parametrize(("main_effects", "limit"), [(0, 0.01), (1, 0.02)])
def test_spectral_functions_remove_nine_tenths_of_the_bias(main_effects, limit):
    unweighted, spectral = [], []
    for seed in range(SEEDS):
        log = design(seed, main_effects)
        unweighted.append(relative_error(log, torch.ones(len(log.errors)).double()))
        weights = balanced(log, KernelFunctions(Gaussian(3.0), 10, "spectral", 300), seed).weights
        spectral.append(relative_error(log, weights))
    assert np.mean(spectral) <= limit
    assert np.mean(spectral) <= 0.1 * np.mean(unweighted)


def test_few_spectral_functions_beat_as_many_random_kernels():
    logs = [design(seed, 0) for seed in range(SEEDS)]
    for size in (1, 3):
        errors = {
            rule: [
                relative_error(log, balanced(log, KernelFunctions(Gaussian(3.0), size, rule, 300), seed).weights)
                for seed, log in enumerate(logs)
            ]
            for rule in ("spectral", "random")
        }
        assert np.mean(errors["spectral"]) < 0.5 * np.mean(errors["random"])


def test_spectral_is_not_worse_than_random_beyond_noise():
    """At J = 10, 30 and 100, within one standard error of the two means together."""
    logs = [design(seed, 0) for seed in range(SEEDS)]
    for size in (10, 30, 100):
        errors = {
            rule: np.array(
                [
                    relative_error(log, balanced(log, KernelFunctions(Gaussian(3.0), size, rule, 300), seed).weights)
                    for seed, log in enumerate(logs)
                ]
            )
            for rule in ("spectral", "random")
        }
        noise = sum(error.var(ddof=1) / len(error) for error in errors.values()) ** 0.5
        assert errors["spectral"].mean() <= errors["random"].mean() + noise


def test_weights_stay_uniform_without_selection_by_features():
    pairs, everything, _, _ = world()
    chosen = torch.rand(1200, generator=torch.Generator().manual_seed(0)) < 0.5
    observed = pairs.at(everything.users[chosen], everything.items[chosen])
    fitted = KernelFunctions(Gaussian(), 10, "spectral", 60).fit(pairs)
    weights = entropy_balance(fitted.rows(observed), fitted.targets).weights
    assert 1 / float((weights**2).sum()) > 0.95 * len(weights)


def test_worst_case_weights_reduce_the_worst_bias():
    pairs, _, observed, _ = world()
    fitted = KernelFunctions(Gaussian(), 4, "worst_case", 40).fit(pairs)
    result = worst_case_balance(fitted.rows(observed), fitted.targets, fitted.matrix, strength=1e4)
    assert result.worst_case_bias < 0.2 * result.worst_case_bias_before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kernel", [Gaussian, Exponential])
@pytest.mark.parametrize("seed", range(3))
def test_worst_case_is_solved_at_any_bandwidth(kernel, seed):
    """Small logs, more candidates than rows, strong selection: with a certificate, at the default strength."""
    generator = torch.Generator().manual_seed(seed)
    users, items = torch.randn(20, 2 + seed, generator=generator), torch.randn(15, 2, generator=generator)
    pairs, logits = Pairs(users, items), 2 * (users[:, None, 0] + items[None, :, 0]) - 1
    chosen = (torch.rand(20, 15, generator=generator) < torch.sigmoid(logits)).nonzero().T
    for bandwidth in ("median", 0.05, 0.5, 1.0, 5.0, 100.0):
        recipe = KernelFunctions(kernel(bandwidth), 50, "worst_case", 150)
        result = recipe.fit(pairs, generator=generator).balance(pairs.at(*chosen))
        assert result.status == "solved"
        assert result.gap <= 1e-8 + 1e-9 * result.objective


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (KernelFunctions(select="best"), "`select` must be one of 'random'"),
        (KernelFunctions(n=0), "`n` must be an integer >= 1, got 0"),
        (KernelFunctions(n=10, candidates=5), "`candidates` must be an integer >= 10, got 5"),
        (KernelFunctions(select="adaptive"), "`errors` must be given"),
        (KernelFunctions(select="greedy"), "`observed` must be given"),
        (Moments(0), "`order` must be an integer >= 1"),
    ],
)
def test_bad_settings_are_named(recipe, words):
    with pytest.raises(ConfigError, match=words):
        recipe.fit(world()[0])


def test_configuration_is_the_repr():
    settings = "n=50, select='spectral', candidates=None, ridge=0.1"
    assert repr(KernelFunctions()) == f"KernelFunctions(kernel=Gaussian(bandwidth='median'), {settings})"
