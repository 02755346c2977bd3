"""The path of strengths: what it keeps, where it ends, and that it ends at solutions of the problem itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balance.functions import FittedFunctions, KernelFunctions, Moments
from counterpoise.balance.path import SHARE_ACCURACY, STRENGTH_ACCURACY, Path, balance_keeping, chance_tolerance
from counterpoise.balance.penalties import HINGE_STRENGTH, WORST_CASE_STRENGTH
from counterpoise.balance.population import Sample
from counterpoise.balance.selection import worst_case_variance
from counterpoise.balance.solver import entropy_balance, worst_case_balance

POPULATION = torch.tensor(np.random.default_rng(0).normal(size=(4000, 2)))
BOTH_PENALTIES = pytest.mark.parametrize("select", ["spectral", "worst_case"])


def kernels(select: str) -> FittedFunctions:
    return KernelFunctions(n=12, select=select, candidates=60).fit(Sample(POPULATION))  # type: ignore[arg-type]


FITTED = {select: kernels(select) for select in ("spectral", "worst_case")}


def selected(rows: int = 1500, seed: int = 1, slope: float = 1.0) -> Sample:
    """Rows that were observed the more often, the larger their first column; with slope 0 a random sample."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + np.exp(-slope * POPULATION[:, 0].numpy()))
    return Sample(POPULATION[rng.choice(len(POPULATION), rows, replace=True, p=chance / chance.sum())])


def share_of(weights: torch.Tensor, base: torch.Tensor | None = None) -> float:
    """(1 / sum w^2) / (1 / sum q^2), by loops over the weights."""
    size = 1 / sum(float(w) ** 2 for w in weights)
    return size * (1 / len(weights) if base is None else sum(float(q) ** 2 for q in base / base.sum()))


def from_scratch(select: str, points: Sample, path: Path, stronger: float = 1.0):
    return FITTED[select].balance(points, path.tolerance, stronger * path.strength)


@BOTH_PENALTIES
@pytest.mark.parametrize("kept", [0.6, 0.9, 0.98])
def test_the_strongest_that_keeps_the_share(select: str, kept: float) -> None:
    points = selected(slope=3.0)
    path = balance_keeping(FITTED[select], points, kept)
    found = share_of(path.result.weights)
    assert found >= kept
    met = 1 / found - 1 >= (1 / kept - 1) * math.exp(-SHARE_ACCURACY)
    if not met:  # then the next strength would keep less
        assert share_of(from_scratch(select, points, path, math.exp(1.01 * STRENGTH_ACCURACY)).weights) < kept
    assert float(path.result.weights.sum()) == pytest.approx(1)


def test_a_path_ends_where_nothing_is_left_to_balance() -> None:
    """However little of the sample need be kept."""
    fitted, points = FITTED["spectral"], selected()
    path = balance_keeping(fitted, points, 0.1)
    exact = fitted.balance(points, path.tolerance, np.inf)
    assert path.result.max_violation < 1e-6
    assert torch.allclose(path.result.weights, exact.weights, atol=1e-3 / 1500)
    path = balance_keeping(FITTED["worst_case"], points, 0.1)
    limit = FITTED["worst_case"].worst_case_variance / 1500
    assert limit <= path.result.worst_case_bias**2
    assert from_scratch("worst_case", points, path, math.exp(1.01 * STRENGTH_ACCURACY)).worst_case_bias ** 2 < limit


@BOTH_PENALTIES
def test_the_solution_is_that_of_its_strength_from_scratch(select: str) -> None:
    points = selected()
    path = balance_keeping(FITTED[select], points, 0.9)
    alone = from_scratch(select, points, path)
    assert path.result.status == alone.status == "solved"
    assert path.result.gap <= 1e-8
    assert path.result.objective == pytest.approx(alone.objective, abs=2e-8)
    assert torch.allclose(path.result.weights, alone.weights, atol=1e-3 / len(alone.weights))


@BOTH_PENALTIES
def test_points_of_a_path_are_in_order_and_give_up_more_and_more(select: str) -> None:
    path = balance_keeping(FITTED[select], selected(), 0.8)
    strengths, kept = ([getattr(point, name) for point in path.points] for name in ("strength", "kept"))
    assert len(path.points) >= 3
    assert strengths == sorted(set(strengths))
    assert (np.diff(kept) <= 1e-6).all()
    chosen = next(point for point in path.points if point.strength == path.strength)
    assert chosen.kept == pytest.approx(share_of(path.result.weights))
    assert chosen.imbalance == pytest.approx(abs(path.result.imbalance / path.result.scale).max())
    assert chosen.imbalance < path.points[0].imbalance
    assert path.points[0].kept == pytest.approx(1, abs=1e-4)


@BOTH_PENALTIES
def test_keeping_everything_gives_equal_weights(select: str) -> None:
    path = balance_keeping(FITTED[select], selected(), 1.0)
    assert torch.allclose(path.result.weights * 1500, torch.ones(1500).double(), atol=1e-6)


def test_chance_is_left_by_the_hinge() -> None:
    """In a random sample few functions are out of balance by two standard errors, and no more is taken back."""
    points = selected(slope=0.0)
    path = balance_keeping(FITTED["spectral"], points, 0.5)
    off = np.abs(path.result.imbalance_before / path.result.scale)
    assert path.tolerance == chance_tolerance(1500) == 2 / math.sqrt(1500)
    assert share_of(path.result.weights) > 0.99
    assert np.abs(path.result.imbalance / path.result.scale).max() <= max(path.tolerance, off.max()) + 1e-6
    wide = balance_keeping(FITTED["spectral"], points, 0.5, tolerance=float(off.max()) + 1e-6)
    assert torch.allclose(wide.result.weights * 1500, torch.ones(1500).double(), atol=1e-6)


def test_chance_is_left_by_the_worst_case() -> None:
    """Half of all random samples are below their mean: those keep equal weights; the others end at it."""
    fitted = FITTED["worst_case"]
    limit, equal = fitted.worst_case_variance / 1500, 0
    for seed in range(8):
        path = balance_keeping(fitted, selected(slope=0.0, seed=seed), 0.5)
        before = path.result.worst_case_bias_before**2
        if before < limit:
            equal += 1
            assert torch.allclose(path.result.weights * 1500, torch.ones(1500).double(), atol=1e-6)
        else:
            assert limit <= path.result.worst_case_bias**2 <= before
            assert path.result.worst_case_bias**2 < 1.4 * limit
    assert 0 < equal < 8


def test_more_rows_elsewhere_make_chance_smaller() -> None:
    fitted, points = FITTED["spectral"], selected()
    path = balance_keeping(fitted, points, 0.9, log_rows=1_000_000)
    assert path.tolerance == 2 / 1000
    assert balance_keeping(fitted, points, 0.9, tolerance=0.25).tolerance == 0.25


@BOTH_PENALTIES
def test_shares_are_those_of_the_base_weights(select: str) -> None:
    """And with all the weight on some rows the others are as if they were not there."""
    points = selected()
    base = torch.tensor(np.random.default_rng(2).uniform(0.5, 1.5, 1500))
    path = balance_keeping(FITTED[select], points, 0.9, base_weights=base)
    assert share_of(path.result.weights, base) >= 0.9
    assert path.tolerance == pytest.approx(2 / math.sqrt(base.sum() ** 2 / base.square().sum()))
    alone = FITTED[select].balance(points, path.tolerance, path.strength, base_weights=base)
    assert torch.allclose(path.result.weights, alone.weights, atol=1e-3 / 1500)
    half = torch.cat([torch.ones(750), torch.zeros(750)])
    of_half = balance_keeping(FITTED[select], points, 0.9, base_weights=half).result.weights
    without = balance_keeping(FITTED[select], Sample(points.matrix[:750]), 0.9).result.weights
    assert torch.allclose(of_half[:750], without, atol=2e-3 / 750)
    assert float(of_half[750:].sum()) < 1e-12


@BOTH_PENALTIES
@pytest.mark.parametrize("with_base", [False, True])
def test_many_rows_are_searched_on_a_draw(select: str, with_base: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    points = selected(6000)
    base = torch.tensor(np.random.default_rng(2).uniform(0.5, 1.5, 6000)) if with_base else None
    whole = balance_keeping(FITTED[select], points, 0.9, base_weights=base)
    monkeypatch.setattr("counterpoise.balance.path.MAX_SEARCH_ROWS", 3000)
    generator = torch.Generator().manual_seed(0)
    drawn = balance_keeping(FITTED[select], points, 0.9, base_weights=base, generator=generator)
    assert len(drawn.result.weights) == 6000
    assert drawn.tolerance == whole.tolerance
    assert drawn.strength != whole.strength
    assert share_of(drawn.result.weights, base) == pytest.approx(0.9, abs=0.03)
    alone = FITTED[select].balance(points, drawn.tolerance, drawn.strength, base_weights=base)
    assert drawn.result.objective == pytest.approx(alone.objective, abs=2e-8)


@pytest.mark.filterwarnings("ignore::counterpoise.errors.ConvergenceWarning")  # of a point that is far too strong
@settings(max_examples=25)
@given(
    kept=st.floats(0.05, 1.0),
    slope=st.floats(-3, 3),
    rows=st.integers(5, 400),
    seed=st.integers(0, 1000),
    select=st.sampled_from(["spectral", "worst_case", "moments"]),
    weighted=st.booleans(),
)
def test_any_path_keeps_its_share(kept: float, slope: float, rows: int, seed: int, select: str, weighted: bool) -> None:
    fitted = Moments(2).fit(Sample(POPULATION)) if select == "moments" else FITTED[select]
    base = torch.tensor(np.random.default_rng(seed).uniform(0.1, 2, rows)) if weighted else None
    path = balance_keeping(fitted, selected(rows, seed, slope), kept, base_weights=base)
    weights = path.result.weights
    assert float(weights.sum()) == pytest.approx(1, abs=1e-9)
    assert float(weights.min()) >= 0
    assert share_of(weights, base) >= kept - 1e-6
    largest = WORST_CASE_STRENGTH if select == "worst_case" else HINGE_STRENGTH
    assert 0 < path.strength <= largest * (1 + 1e-12)


def test_relative_strengths_hold_along_the_path() -> None:
    """Functions that are relaxed stand at their own share of the strength."""
    fitted = FITTED["spectral"]
    path = balance_keeping(fitted, selected(), 0.98)
    limits = path.strength * fitted.relative_strength / fitted.sd
    relaxed = path.result.relaxed
    assert relaxed.any()
    assert np.allclose(abs(path.result.dual)[relaxed], limits.numpy()[relaxed])
    plain = replace(fitted, relative_strength=None)
    assert not torch.allclose(balance_keeping(plain, selected(), 0.98).result.weights, path.result.weights, rtol=1e-3)


# ---- where the solver begins -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tolerance", "strength"), [(0.0, 0.5), (0.02, 5.0), (0.1, np.inf)])
def test_the_hinge_has_one_solution_from_anywhere(tolerance: float, strength: float) -> None:
    rng = np.random.default_rng(0)
    H = rng.normal(size=(80, 6)) * np.array([1e-3, 1, 1, 10, 1, 1e3])
    targets = H.mean(0) + 0.2 * H.std(0) * rng.normal(size=6)
    unit = H.std(0)
    cold = entropy_balance(H, targets, tolerance * unit, strength / unit)
    for start in (cold.dual, np.zeros(6), 3 * rng.normal(size=6) / unit, 1e6 / unit):
        warm = entropy_balance(H, targets, tolerance * unit, strength / unit, start=start)
        assert warm.status == "solved"
        assert warm.objective == pytest.approx(cold.objective, rel=1e-6, abs=1e-7)
        assert np.allclose(warm.weights, cold.weights, atol=1e-5)
    assert entropy_balance(H, targets, tolerance * unit, strength / unit, start=cold.dual).passes <= cold.passes


@pytest.mark.parametrize("rank", [6, 4])
def test_the_worst_case_has_one_solution_from_anywhere(rank: int) -> None:
    """Also where the matrix has directions without a norm."""
    rng = np.random.default_rng(0)
    H, root = rng.normal(size=(80, 6)), rng.normal(size=(6, rank))
    targets, matrix = H.mean(0) + 0.2 * rng.normal(size=6), root @ root.T
    cold = worst_case_balance(H, targets, matrix, 30.0)
    for start in (cold.dual, np.zeros(6), 3 * rng.normal(size=6)):
        warm = worst_case_balance(H, targets, matrix, 30.0, start=start)
        assert warm.status == "solved"
        assert warm.objective == pytest.approx(cold.objective, abs=2e-8)
        assert np.allclose(warm.weights, cold.weights, atol=1e-5)
    assert worst_case_balance(H, targets, matrix, 30.0, start=cold.dual).passes < cold.passes


# ---- what a random sample has ----------------------------------------------------------------------------------------


def test_worst_case_variance_is_the_mean_of_random_samples() -> None:
    fitted = FITTED["worst_case"]
    values, inverse = fitted.values(POPULATION).numpy(), np.linalg.pinv(fitted.matrix.numpy(), rcond=1e-10)
    rng, rows = np.random.default_rng(3), 200
    biases = []
    for _ in range(3000):
        v = values[rng.integers(len(values), size=rows)].mean(0) - values.mean(0)
        biases.append(v @ inverse @ v)
    error = np.std(biases) / math.sqrt(len(biases))
    assert fitted.worst_case_variance / rows == pytest.approx(np.mean(biases), abs=4 * error)


def test_worst_case_variance_is_a_trace() -> None:
    rng = np.random.default_rng(0)
    one, other = (root @ root.T for root in rng.normal(size=(2, 5, 8)))
    found = worst_case_variance(torch.tensor(one), torch.tensor(other))
    assert found == pytest.approx(np.trace(np.linalg.solve(other, one)))
