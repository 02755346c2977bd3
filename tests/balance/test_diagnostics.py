"""Diagnostics of weights against slow formulas and known answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from counterpoise.balance import diagnostics
from counterpoise.balance.covariate_balance import balance_table, kolmogorov_smirnov
from counterpoise.balance.diagnostics import (
    HELD_OUT_SEED,
    _draw_others,
    design_effect,
    diagnose,
    effective_sample_size,
    group_effective_sample_sizes,
    held_out_imbalance,
    overlap,
    weight_tail,
)
from counterpoise.balance.functions import KernelFunctions
from counterpoise.balance.kernels import Gaussian
from counterpoise.balance.population import Pairs, Sample
from counterpoise.errors import DataError


def pairs(seed=0):
    rng = np.random.default_rng(seed)
    population = Pairs(torch.tensor(rng.normal(size=(50, 2))), torch.tensor(rng.normal(size=(40, 1))))
    everything = population.at(torch.arange(50).repeat_interleave(40), torch.arange(40).repeat(50))
    chosen = torch.tensor(rng.random(2000)) < torch.sigmoid(everything.features(slice(None))[:, 0] - 1)
    return population, everything, population.at(everything.users[chosen], everything.items[chosen])


def test_effective_sample_size_of_equal_and_single_weights():
    assert effective_sample_size(np.full(7, 3.0)) == pytest.approx(7)
    assert design_effect(np.full(7, 3.0)) == pytest.approx(1)
    assert effective_sample_size([0, 0, 5]) == pytest.approx(1)
    weights = np.random.default_rng(0).random(50)
    assert effective_sample_size(weights) == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))


def test_group_sizes_are_effective_sample_sizes_of_groups():
    weights, codes = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 2, 2])
    sizes = group_effective_sample_sizes(weights, codes, 4)
    assert np.allclose(sizes, [effective_sample_size([1, 2]), 0, effective_sample_size([3, 4]), 0])


def test_tail_is_the_share_of_the_heaviest_percent():
    tail = weight_tail(np.r_[np.ones(99), 101.0])
    assert tail == {"top_1_percent_share": pytest.approx(101 / 200), "max_over_mean": pytest.approx(50.5)}


def test_kolmogorov_smirnov_equals_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=30), rng.normal(0.3, 1, 40).round(1)
    assert kolmogorov_smirnov(first, np.ones(30), second, np.ones(40)) == pytest.approx(
        ks_2samp(first, second).statistic
    )
    counts = rng.integers(1, 4, 30)
    repeated = ks_2samp(np.repeat(first, counts), second).statistic
    assert kolmogorov_smirnov(first, counts.astype(float), second, np.ones(40)) == pytest.approx(repeated)


def test_balance_table_over_pairs_equals_enumeration():
    population, everything, observed = pairs()
    weights = np.random.default_rng(1).random(observed.n_rows)
    by_tables = balance_table(observed, weights, population)
    by_rows = balance_table(observed, weights, Sample(everything.features(slice(None))))
    for first, second in zip(by_tables, by_rows, strict=True):
        assert first.population_mean == pytest.approx(second.population_mean, abs=1e-12)
        assert first.smd_after == pytest.approx(second.smd_after, abs=1e-12)
        assert first.ks_before == pytest.approx(second.ks_before, abs=1e-12)
    share = weights / weights.sum()
    values = observed.features(slice(None))[:, 0].numpy()
    whole = everything.features(slice(None))[:, 0].numpy()
    assert by_tables[0].smd_after == pytest.approx((share @ values - whole.mean()) / whole.std())


def test_constant_feature_has_zero_or_no_smd():
    rng = np.random.default_rng(0)
    population, observed = torch.tensor(rng.normal(size=(700, 3))), torch.tensor(rng.normal(size=(300, 3)))
    population[:, 0] = observed[:, 0] = 0.1
    population[:, 1] = 0.1
    diagnosis = diagnose(Sample(observed), rng.random(300), Sample(population), ["same", "other", "free"])
    same, other, _ = diagnosis.table
    assert (same.population_sd, same.smd_before, same.smd_after, same.sd_ratio_after) == (0, 0, 0, None)
    assert (other.smd_before, other.smd_after) == (None, None)
    assert diagnosis.largest_after.name == "free"
    assert "another mean here: other." in diagnosis.summary()
    json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_balancing_reduces_held_out_imbalance():
    population, _, observed = pairs()
    fitted = KernelFunctions(Gaussian(), 15, "spectral", 100).fit(population)
    weights = fitted.balance(observed, 1e-4).weights
    before = held_out_imbalance(observed, torch.ones(observed.n_rows), population)
    after = held_out_imbalance(observed, weights, population)
    assert after["rms_sd"] < 0.2 * before["rms_sd"]
    assert after["mmd"] < before["mmd"]


def test_held_out_functions_are_never_balanced_ones():
    population = Sample(torch.randn(250, 2, generator=torch.Generator().manual_seed(0)).double())
    for seed in range(4):
        stream = torch.Generator().manual_seed(HELD_OUT_SEED)
        assert not torch.equal(population.draw(20, stream), population.draw(20, torch.Generator().manual_seed(seed)))
    taken = population.matrix[:200]
    others = _draw_others(population, 200, torch.Generator().manual_seed(0), taken)
    assert len(others) == 50
    assert float(torch.cdist(others, taken).min()) > 0
    half = Sample(population.matrix[population.matrix[:, 0] > 0])
    assert held_out_imbalance(half, torch.ones(half.n_rows), population, balanced_at=taken)["rms_sd"] > 0


def test_small_population_has_no_held_out_functions():
    population = Sample(torch.randn(150, 2, generator=torch.Generator().manual_seed(0)).double())
    fitted = KernelFunctions(Gaussian(), 5).fit(population)
    diagnosis = diagnose(population, np.ones(150), population, balanced_at=fitted.centres)
    assert diagnosis.held_out_before is None
    assert diagnosis.to_dict()["held_out_after"] is None
    assert "too small to hold out" in diagnosis.summary()


def test_held_out_imbalance_is_zero_when_all_is_observed():
    population, everything, _ = pairs()
    found = held_out_imbalance(everything, torch.ones(2000), population)
    assert max(found["rms_sd"], found["max_sd"]) < 1e-9


def test_held_out_imbalance_is_its_formula(monkeypatch):
    rng = np.random.default_rng(0)
    x, observed, weights = rng.normal(size=(300, 2)), rng.normal(0.5, 1, size=(100, 2)), rng.random(100)
    centres = rng.normal(size=(12, 2))
    monkeypatch.setattr(diagnostics, "_draw_others", lambda *_: torch.tensor(centres))
    tables = [Sample(torch.tensor(table)) for table in (observed, x)]
    found = held_out_imbalance(tables[0], torch.tensor(weights), tables[1], Gaussian(1.0))

    def kernel(rows):
        return np.exp(-((rows[:, None] - centres) ** 2).sum(2) / 2)

    difference = weights @ kernel(observed) / weights.sum() - kernel(x).mean(0)
    scaled = difference / kernel(x).std(0)
    assert found["rms_sd"] == pytest.approx((scaled**2).mean() ** 0.5)
    assert found["max_sd"] == pytest.approx(abs(scaled).max())
    assert found["mmd"] == pytest.approx((difference @ np.linalg.solve(kernel(centres), difference)) ** 0.5, rel=1e-6)


def test_overlap_falls_where_part_of_the_population_is_unseen():
    rng = np.random.default_rng(0)
    population = torch.tensor(rng.normal(size=(3000, 2)))
    assert overlap(Sample(population[:1500]), Sample(population)) > 0.95
    half = population[population[:, 0] > 0]
    assert overlap(Sample(half), Sample(population)) == pytest.approx(0.5, abs=0.15)


def test_diagnosis_gives_json_and_a_summary():
    population, _, observed = pairs()
    diagnosis = diagnose(observed, np.ones(observed.n_rows), population, ["age", "taste", "price"])
    facts = json.loads(json.dumps(diagnosis.to_dict()))
    assert facts["design_effect"] == pytest.approx(1)
    assert diagnosis.largest_before.name == "age"
    assert "design effect 1.00" in diagnosis.summary()
    assert "(age)" in diagnosis.summary()
    assert not diagnosis.grew
    weights = np.ones(observed.n_rows)
    weights[: len(weights) // 2] = 0.2
    size = effective_sample_size(weights)
    weighted = diagnose(observed, weights, population, ["age", "taste", "price"])
    assert f"{len(weights):,} rows count as {size:,.0f} ({size / len(weights):.0%})" in weighted.summary()
    sizes = f"{weighted.held_out_before['rms_sd']:.3f} SD before, {weighted.held_out_after['rms_sd']:.4f} SD after"
    assert sizes in weighted.summary()


def test_weights_of_wrong_length_are_an_error():
    population, _, observed = pairs()
    with pytest.raises(DataError, match="`weights` must have one value"):
        balance_table(observed, np.ones(3), population)
