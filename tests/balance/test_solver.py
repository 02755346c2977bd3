"""The balancing solver against cvxpy, its own optimality conditions, and bad input."""

from __future__ import annotations

import threading
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles_balancing import hinge_by_cvxpy, hinge_objective, quadratic_by_cvxpy

from counterpoise.balance import penalties
from counterpoise.balance.exponential_family import FamilyPoint, InMemoryFamily, matrix_rows, pair_rows
from counterpoise.balance.newton import DualProblem
from counterpoise.balance.penalties import solve_ridge, whitening
from counterpoise.balance.solver import entropy_balance, worst_case_balance
from counterpoise.errors import ConfigError, ConvergenceWarning, DataError

REGIMES = [(0.0, 0.5), (0.0, 5.0), (0.01, 1.0), (0.05, 20.0), (1e-5, 100.0), (0.2, 0.1), (0.02, np.inf)]


def problem(seed: int = 0, n: int = 60, functions: int = 8, shift: float = 0.3):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(n, functions)) @ (np.eye(functions) + 0.3 * rng.normal(size=(functions, functions)))
    return H, H.mean(0) + shift * rng.normal(size=functions) / np.sqrt(functions)


def assert_optimal(H, targets, tolerance, strength, result, slack=1e-6):
    """The optimality conditions of the dual, from the weights alone."""
    tau = result.weights @ H - targets
    unit = np.where(H.std(0) > 1e-9 * abs(H).max(), H.std(0), 1.0)
    tolerance, strength = (np.broadcast_to(v, H.shape[1]) for v in (tolerance, strength))
    free = (abs(result.dual) < strength * (1 - 1e-9)) & (result.dual != 0)
    assert result.weights.sum() == pytest.approx(1, abs=1e-9)
    assert (result.weights >= 0).all()
    assert (abs(tau) <= tolerance + slack * unit)[~result.relaxed].all()
    assert (abs(result.dual) <= strength * (1 + 1e-12)).all()
    assert (abs(tau - tolerance * np.sign(result.dual)) <= slack * unit)[free].all()
    assert (np.sign(tau) == np.sign(result.dual))[result.relaxed & (strength > 0)].all()


@pytest.mark.parametrize(("tolerance", "strength"), REGIMES)
def test_objective_equals_cvxpy(tolerance, strength):
    H, targets = problem()
    result = entropy_balance(H, targets, tolerance, strength)
    expected = hinge_by_cvxpy(H, targets, tolerance, strength)
    assert result.objective == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert result.gap <= 1e-7
    if np.isfinite(strength):
        reached = hinge_objective(result.weights, H, targets, tolerance, strength)
        assert result.objective == pytest.approx(reached, rel=1e-9)
    assert_optimal(H, targets, tolerance, strength, result)


def test_vector_tolerance_strength_and_base_weights_equal_cvxpy():
    H, targets = problem(1)
    rng = np.random.default_rng(2)
    tolerance, strength, base = rng.random(8) / 10, rng.random(8) * 5, rng.random(60)
    result = entropy_balance(H, targets, tolerance, strength, base)
    assert result.objective == pytest.approx(hinge_by_cvxpy(H, targets, tolerance, strength, base), rel=1e-6)


@pytest.mark.parametrize("cap", [1 / 55, 0.025, 0.1])
def test_capped_weights_equal_cvxpy(cap):
    H, targets = problem(3)
    result = entropy_balance(H, targets, 0.01, 2.0, max_weight=cap)
    assert result.weights.max() <= cap * (1 + 1e-9)
    assert result.objective == pytest.approx(hinge_by_cvxpy(H, targets, 0.01, 2.0, cap=cap), rel=1e-6)


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
def test_worst_case_objective_equals_cvxpy(strength):
    H, targets = problem(4)
    matrix = np.cov(H.T) + 0.1 * np.eye(8)
    result = worst_case_balance(H, targets, matrix, strength)
    assert result.objective == pytest.approx(quadratic_by_cvxpy(H, targets, matrix, strength), rel=1e-6)
    v = result.weights @ H - targets
    assert result.worst_case_bias**2 == pytest.approx(v @ np.linalg.solve(matrix, v), rel=1e-6)
    assert result.worst_case_bias < result.worst_case_bias_before


def kernel_problem(width: float, rows: int = 25, centres: int = 30):
    """Fewer rows than nearly collinear kernels, targets that no weights reach, and the norm A of functions of them."""
    rng = np.random.default_rng(0)
    population, middle = rng.normal(size=(400, 2)), rng.normal(size=(centres, 2))

    def kernels(x):
        return np.exp(-((x[:, None] - middle) ** 2).sum(2) / (2 * width))

    over_all, between = kernels(population), kernels(middle)
    gram = over_all.T @ over_all / len(population)
    observed = population[population[:, 0] > 0.2][:rows]
    return kernels(observed), over_all.mean(0), gram + 0.1 * gram.diagonal().mean() * between


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
def test_strong_worst_case_without_overlap_equals_cvxpy(width):
    """A full Newton step would put all weight on one row."""
    H, targets, matrix = kernel_problem(width)
    values, vectors = np.linalg.eigh(matrix)
    kept = vectors[:, values > 1e-12 * values[-1]]
    result = worst_case_balance(H, targets, matrix, 1e4)
    expected = quadratic_by_cvxpy(H @ kept, targets @ kept, kept.T @ matrix @ kept, 1e4)
    assert result.status == "solved"
    assert result.gap <= 1e-8 + 1e-9 * result.objective
    assert result.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("strength", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("max_weight", [None, 0.1])
def test_worst_case_is_solved_or_warns_at_any_strength(strength, max_weight):
    for width in (0.02, 0.5, 3.0, 50.0):
        H, targets, matrix = kernel_problem(width)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = worst_case_balance(H, targets, matrix, strength, max_weight=max_weight)
        assert [warning.category for warning in said] == ([ConvergenceWarning] if result.status != "solved" else [])
        assert result.status == "solved" or strength == 1e8
        assert np.isfinite(result.weights).all()
        assert result.weights.sum() == pytest.approx(1)


def test_steps_that_make_the_gap_diverge_are_shortened(monkeypatch):
    """Few do, so here all those that leave more than 0.7 of it."""
    H, targets, matrix = kernel_problem(1.0)
    expected = worst_case_balance(H, targets, matrix, 1e4).objective
    shortened, advanced = [], DualProblem._advanced

    def watched(solver, point, dual, step, *others):
        trial, taken = advanced(solver, point, dual, step, *others)
        assert np.allclose(trial.dual, solver._untransformed(dual + taken), rtol=1e-12)
        shortened.append(abs(taken).sum() < 0.4 * abs(step).sum())
        return trial, taken

    monkeypatch.setattr(penalties, "MAX_GAP_RISE", 0.7)
    monkeypatch.setattr(DualProblem, "_advanced", watched)
    result = worst_case_balance(H, targets, matrix, 1e4)
    assert any(shortened)
    assert result.objective == pytest.approx(expected, rel=1e-6)


def test_gap_is_that_of_the_requested_strength():
    H, targets, matrix = kernel_problem(1.0)
    least = worst_case_balance(H, targets, matrix, 1e4).objective
    with pytest.warns(ConvergenceWarning, match="passes spent"):
        early = worst_case_balance(H, targets, matrix, 1e4, max_passes=4)
    assert early.objective - least > 1
    assert early.gap >= early.objective - least


def test_transformed_covariance_is_positive_despite_rounding():
    H, targets, matrix = kernel_problem(5.0)
    point = InMemoryFamily(matrix_rows(torch.tensor(H)), torch.tensor(targets)).at(torch.zeros(H.shape[1]).double())
    gentle, steep = np.random.default_rng(0).normal(size=(30, 4)), whitening(matrix)
    expected = gentle.T @ np.cov(H.T, bias=True) @ gentle
    assert np.allclose(point.covariance(transform=torch.tensor(gentle)), expected, rtol=1e-9)
    least = np.linalg.eigvalsh(point.covariance(transform=torch.tensor(steep)).numpy())[0]
    least_of_product = np.linalg.eigvalsh(steep.T @ point.covariance().numpy() @ steep)[0]
    assert least > -1e-12
    assert least_of_product < -1e-9


def test_solve_ridge_drops_negative_eigenvalues_from_rounding():
    rng = np.random.default_rng(0)
    basis, right = np.linalg.qr(rng.normal(size=(6, 6)))[0], rng.normal(size=6)
    values = np.array([-1e-3, 0.0, 0.1, 1.0, 2.0, 3.0])
    expected = np.linalg.solve(basis @ np.diag(values.clip(min=0) + 1e-4) @ basis.T, right)
    assert np.allclose(solve_ridge(basis @ np.diag(values) @ basis.T, 1e-4, right), expected, rtol=1e-6)


@given(
    seed=st.integers(0, 10**6),
    rows=st.sampled_from([1, 2, 5, 30, 200]),
    functions=st.integers(1, 12),
    shift=st.sampled_from([0.0, 0.3, 5.0]),
    tolerance=st.sampled_from([0.0, 1e-4, 0.1]),
    strength=st.sampled_from([0.0, 0.3, 5.0, 200.0]),
    kind=st.sampled_from(["independent", "duplicated", "collinear", "constant", "scaled"]),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_optimality_holds_on_random_problems(seed, rows, functions, shift, tolerance, strength, kind):
    """Also with fewer rows than functions, targets outside the hull, and degenerate columns."""
    H, targets = problem(seed, rows, functions, shift)
    if kind == "duplicated":
        H, targets = np.hstack([H, H[:, :1]]), np.r_[targets, targets[:1]]
    elif kind == "collinear":
        H, targets = np.hstack([H, H.sum(1, keepdims=True)]), np.r_[targets, targets.sum() + 0.01]
    elif kind == "constant":
        H[:, 0] = 3.0
    elif kind == "scaled":
        H, targets = H * 1e5, targets * 1e5
        strength /= 1e5
        tolerance *= 1e5
    result = entropy_balance(H, targets, tolerance, strength)
    assert result.status == "solved"
    assert_optimal(H, targets, tolerance, strength, result)


@pytest.mark.parametrize("strength", [90.0, 100.0, 200.0])
def test_collinear_columns_do_not_make_the_program_cycle(strength):
    rng = np.random.default_rng(2)
    H = rng.normal(size=(40, 6))
    H[:, 1], H[:, 2] = H[:, 0], H[:, 0] + H[:, 3]
    targets = H.mean(0) + 0.5 * rng.normal(size=6)
    targets[1], targets[2] = targets[0], targets[0] + targets[3]
    result = entropy_balance(H, targets, 0.1, strength)
    assert result.status == "solved"
    assert result.gap <= 1e-8
    assert result.objective == pytest.approx(hinge_by_cvxpy(H, targets, 0.1, strength), rel=1e-6)


@pytest.mark.parametrize("seed", [*range(10), 23, 41, 104])
def test_collinear_columns_without_tolerance_are_solved(seed):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(40, 6))
    H[:, 2] = H[:, 0] + H[:, 3]
    result = entropy_balance(H, rng.dirichlet(np.full(40, 2.0)) @ H, 0.0, 100.0)
    assert result.status == "solved"
    assert result.gap <= 1e-6
    assert result.passes <= 40


@pytest.mark.parametrize("strength", [100.0, 1e4])
@pytest.mark.parametrize("seed", range(3))
def test_large_strength_on_rescaled_columns_equals_cvxpy(seed, strength):
    """Also at 1e9 per standard deviation, "solved" is a small gap. cvxpy gets the problem scaled."""
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(40, 6))
    targets, tolerance, strengths = H.mean(0) + 0.3 * rng.normal(size=6), np.full(6, 0.1), np.full(6, strength)
    unit = np.array([1e5, 1.0, 1.0, 1e-5, 1.0, 1.0])
    result = entropy_balance(H * unit, targets * unit, tolerance, strengths)
    expected = hinge_by_cvxpy(H, targets, np.minimum(tolerance / unit, 10), np.minimum(strengths * unit, 1e3))
    assert result.status == "solved"
    assert result.gap <= 1e-6
    assert result.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("strength", [100.0, 1e4, np.inf])
def test_columns_far_from_zero_are_solved_as_others_are(strength):
    """Rounding in the objective, larger there, must not look like a step that is too long."""
    rng = np.random.default_rng(1)
    H = rng.normal(size=(40, 6))
    targets = H.mean(0) + 0.3 * rng.normal(size=6)
    near, far = (entropy_balance(H + c, targets + c, 0.0, strength) for c in (0.0, 1e4))
    assert near.status == far.status == "solved"
    assert far.passes <= near.passes + 10
    assert np.allclose(near.weights, far.weights, atol=1e-6)


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.1])
def test_only_infinite_strengths_are_hard(tolerance):
    H, targets = problem(5, shift=0.2)
    result = entropy_balance(H, targets, tolerance, 1e4)
    assert result.status == "solved"
    assert result.gap <= 1e-8
    assert result.objective == pytest.approx(
        hinge_objective(result.weights, H, targets, tolerance, 1e4), rel=1e-6, abs=1e-7
    )


def test_impossible_target_is_relaxed_at_huge_finite_strength():
    H, targets = problem(7, shift=0.1)
    targets[2] = H[:, 2].max() + 1
    result = entropy_balance(H, targets, 1e-3, strength=np.where(np.arange(8) == 2, 1e8, 0.5))
    assert result.status == "solved"
    assert np.argmax(result.weights) == np.argmax(H[:, 2])
    assert result.relaxed[2]


def test_hard_constraints_are_the_limit_of_large_strength():
    H, targets = problem(5, shift=0.2)
    hard = entropy_balance(H, targets)
    assert abs(hard.weights @ H - targets).max() < 1e-7
    assert np.allclose(entropy_balance(H, targets, strength=1e4).weights, hard.weights, atol=1e-9)


def test_zero_strength_or_constant_functions_keep_base_weights():
    H, targets = problem(6)
    base = np.random.default_rng(0).random(60)
    assert np.allclose(entropy_balance(H, targets, strength=0.0, base_weights=base).weights, base / base.sum())
    assert np.allclose(entropy_balance(np.ones((60, 1)), [1.0]).weights, 1 / 60)


def test_impossible_target_is_relaxed_and_others_balanced():
    H, targets = problem(7, shift=0.1)
    targets[2] = H[:, 2].max() + 1
    result = entropy_balance(H, targets, 1e-3, strength=np.where(np.arange(8) == 2, 0.5, 50.0))
    assert np.flatnonzero(result.relaxed).tolist() == [2]
    assert (result.violation_sd[np.arange(8) != 2] < 1e-7).all()
    assert result.violation[2] > 0.5


def test_impossible_hard_target_warns():
    H, targets = problem(8, shift=0.1)
    targets[2] = H[:, 2].max() + 1
    with pytest.warns(ConvergenceWarning, match=r"violation|relaxed"):
        result = entropy_balance(H, targets)
    assert np.isfinite(result.weights).all()
    assert result.weights.sum() == pytest.approx(1)


def test_stopping_early_warns_with_what_was_reached():
    H, targets = problem(9)
    with pytest.warns(ConvergenceWarning, match=r"duality gap .* violation"):
        entropy_balance(H, targets, max_passes=2)


def test_solver_stops_at_its_last_pass():
    with pytest.warns(ConvergenceWarning, match="stopped after 2 passes"):
        result = entropy_balance(*problem(), max_passes=2)  # the moments of the rows, and the start
    assert result.passes == 2
    assert np.ptp(result.weights) == 0


def test_passes_are_counted_and_covariances_reused(monkeypatch):
    counts = Counter()

    def count(owner, name):
        own = getattr(owner, name)

        def counted(*arguments):
            counts[name] += 1
            return own(*arguments)

        monkeypatch.setattr(owner, name, counted)

    count(InMemoryFamily, "base_moments")
    count(InMemoryFamily, "at")
    count(FamilyPoint, "covariance")
    for seed in range(4):
        counts.clear()
        result = entropy_balance(*problem(seed, n=400), 0.01, 1.0)
        assert result.status == "solved"
        assert result.passes == counts.total()
        assert counts["at"] <= 6
        assert counts["covariance"] <= 2


@pytest.mark.parametrize(("tolerance", "strength"), [(0.0, 0.5), (0.0, 5.0), (0.05, 20.0)])
def test_no_step_raises_the_objective(tolerance, strength, monkeypatch):
    rises, advanced = [], DualProblem._advanced

    def watched(solver, point, dual, *others):
        trial, step = advanced(solver, point, dual, *others)
        before, after = (p.smooth + solver.penalty.value(d) for p, d in ((point, dual), (trial, dual + step)))
        rises.append((after - before) / (1 + abs(before)))
        return trial, step

    monkeypatch.setattr(DualProblem, "_advanced", watched)
    for seed in range(6):
        for shift in (1.0, 3.0):
            entropy_balance(*problem(seed, shift=shift), tolerance, strength)
    assert len(rises) > 30
    assert max(rises) < 1e-12


def test_row_order_and_a_common_shift_change_nothing():
    H, targets = problem(10)
    weights = entropy_balance(H, targets, 0.01, 3.0).weights
    order = np.random.default_rng(0).permutation(60)
    assert np.allclose(entropy_balance(H[order], targets, 0.01, 3.0).weights, weights[order], atol=1e-9)
    assert np.allclose(entropy_balance(H + 1e4, targets + 1e4, 0.01, 3.0).weights, weights, atol=1e-7)


def test_weights_are_a_function_of_the_row():
    H, targets = problem(11)
    result = entropy_balance(H, targets, 0.01, 3.0)
    assert np.allclose(np.exp(-H @ result.dual - result.offset) / 60, result.weights)


def test_warm_start_from_a_sample_saves_passes():
    rng = np.random.default_rng(0)
    H = rng.normal(size=(300_000, 3))
    result = entropy_balance(H, [0.3, 0.0, -0.2], accuracy=1e-9)
    assert result.passes <= 7
    assert abs(result.weights @ H - [0.3, 0.0, -0.2]).max() < 1e-8


def test_start_at_the_solution_takes_no_step():
    H, targets = problem(4)
    size = 10.0 ** np.arange(-4, 4)
    H, targets = H * size, targets * size
    for strength in (0.3 / size, 20.0 / size):  # of the first some are relaxed
        found = entropy_balance(H, targets, 0.001 * size, strength)
        assert entropy_balance(H, targets, 0.001 * size, strength, start=found.dual, accuracy=1e-7).passes == 2
    matrix = np.cov(H.T) + np.diag(size**2)
    worst = worst_case_balance(H, targets, matrix, 50.0)
    assert worst_case_balance(H, targets, matrix, 50.0, start=worst.dual, accuracy=1e-7).passes == 2


def test_start_from_a_sample_is_nearer_than_equal_weights(monkeypatch):
    rng = np.random.default_rng(0)
    H = rng.normal(size=(80_000, 3))
    started = []
    solve = DualProblem.solve

    def watched(solver, start, *others):
        started.append(start)
        return solve(solver, start, *others)

    monkeypatch.setattr(DualProblem, "solve", watched)
    result = entropy_balance(H, [0.3, 0.0, -0.2])
    assert len(started) == 2  # a sample of 5,000 rows, and all of them
    assert (started[0] == 0).all()
    own = result.dual * H.std(0)  # in standard deviations
    assert abs(started[1] - own).max() < 0.05 < abs(own).max()


@pytest.mark.parametrize("max_weight", [None, 0.03])
@pytest.mark.parametrize("offset", [0.0, 5.0, 100.0, 1e6])
@pytest.mark.parametrize("float32", [False, True])
def test_covariance_is_that_of_the_rows_below_the_cap_wherever_they_lie(offset, float32, max_weight):
    H, targets = problem(3)
    family = InMemoryFamily(matrix_rows(torch.tensor(H + offset)), torch.tensor(targets + offset), None, max_weight)
    point = family.at(torch.full((8,), 0.1).double())
    weights = point.weights.numpy()
    below = weights < (max_weight or 1.0)
    assert below.all() == (max_weight is None)
    share, values = weights[below], H[below]
    around = values - share @ values / share.sum()
    expected = (around * share[:, None]).T @ around
    accuracy = 1e-4 if float32 else 1e-8
    assert abs(point.covariance(float32).numpy() - expected).max() < accuracy
    T = np.random.default_rng(0).normal(size=(8, 3))
    transformed = point.covariance(float32, torch.tensor(T)).numpy()
    assert abs(transformed - T.T @ expected @ T).max() < 30 * accuracy


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_standard_deviations_use_all_rows_and_base_weights(offset):
    """A column of few ones has its own deviation, not that of a sample without them."""
    rng = np.random.default_rng(0)
    H, base = rng.normal(size=(200_000, 2)), rng.random(200_000)
    H[:, 1] = 0
    H[rng.choice(200_000, 5, replace=False), 1] = 1
    base /= base.sum()
    mean = base @ H
    expected = np.sqrt(base @ (H - mean) ** 2)
    result = entropy_balance(H + offset, mean + offset, 0.1, 1.0, base)
    assert np.allclose(result.scale, expected, rtol=1e-6)
    assert np.allclose(result.imbalance_before, 0, atol=1e-9 * max(1, offset))


def test_rows_of_base_weight_zero_keep_weight_zero():
    H, targets = problem(13, shift=0.1)
    base = np.r_[np.zeros(10), np.ones(50)]
    weights = entropy_balance(H, targets, 0.01, 3.0, base).weights
    assert (weights[:10] == 0).all()
    assert np.allclose(weights[10:], entropy_balance(H[10:], targets, 0.01, 3.0).weights, atol=1e-9)


def test_results_do_not_depend_on_threads():
    H, targets = np.random.default_rng(0).normal(size=(200_000, 4)), [0.1, 0.0, 0.2, -0.1]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = entropy_balance(H, targets).weights
        torch.set_num_threads(2)
        together = entropy_balance(H, targets).weights
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert np.allclose(alone, together, rtol=1e-12)


def test_few_rows_are_summed_in_this_thread():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        rows = matrix_rows(torch.ones(3, 2))
        assert rows.each_chunk(lambda _: threading.current_thread()) == [threading.main_thread()]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_overwhelming_target_is_reached_by_one_row():
    result = entropy_balance([[0.0], [1.0]], [5.0], strength=1000.0)
    assert np.allclose(result.weights, [0, 1])
    assert result.relaxed.all()


def test_pairs_without_a_matrix_equal_the_matrix():
    rng = np.random.default_rng(0)
    users, items = torch.tensor(rng.integers(0, 20, 500)), torch.tensor(rng.integers(0, 30, 500))
    user_table, item_table = torch.tensor(rng.random((20, 6))), torch.tensor(rng.random((30, 6)))
    H = user_table[users] * item_table[items]
    targets = torch.outer(user_table.mean(0), item_table.mean(0)).diagonal()
    free = entropy_balance(pair_rows(user_table, item_table, users, items), targets, 1e-3, 10.0)
    matrix = entropy_balance(H, targets, 1e-3, 10.0)
    assert torch.allclose(free.weights, matrix.weights, atol=1e-12)
    mixing = torch.tensor(rng.normal(size=(6, 4)))
    free = entropy_balance(pair_rows(user_table, item_table, users, items, mixing), targets @ mixing, 1e-3, 10.0)
    assert torch.allclose(free.weights, entropy_balance(H @ mixing, targets @ mixing, 1e-3, 10.0).weights, atol=1e-12)


def test_float32_agrees_and_tensors_stay_tensors():
    H, targets = problem(12)
    double, single = (
        entropy_balance(H, targets, 0.01, 3.0),
        entropy_balance(torch.tensor(H).float(), targets, 0.01, 3.0),
    )
    assert isinstance(single.weights, torch.Tensor)
    assert np.allclose(single.weights.numpy(), double.weights, rtol=1e-4)


def test_hundred_gaussian_kernels_close_the_gap():
    rng = np.random.default_rng(0)
    population = rng.normal(size=(15_000, 4))
    observed = population[
        rng.random(15_000) < 1 / (1 + np.exp(1 - population[:, 0] - population[:, 1] * population[:, 2]))
    ]
    centres = population[:100]

    def kernels(x):
        return np.exp(-((x[:, None] - centres) ** 2).sum(2) / 8)

    H, targets = kernels(observed), kernels(population).mean(0)
    for tolerance, strength, gap in [(1e-3, 5.0, 1e-6), (1e-5, 5.0, 1e-6), (1e-5, 100.0, 1e-2)]:
        result = entropy_balance(H, targets, tolerance, strength, accuracy=1e-6)
        assert result.gap <= gap
        assert result.passes <= 30


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tolerance": -1.0}, ConfigError, r"`tolerance` must be >= 0 and finite, got -1.0"),
        ({"strength": np.nan}, ConfigError, r"`strength` must be >= 0"),
        ({"tolerance": [1.0, 2.0]}, ConfigError, r"8 numbers, got shape \(2,\)"),
        ({"targets": np.zeros(7)}, DataError, r"each of the 8 functions, got shape \(7,\)"),
        ({"targets": np.full(8, np.nan)}, DataError, r"`targets` must be finite, got nan for function 0"),
        ({"H": np.zeros((0, 8))}, DataError, "at least one row"),
        ({"H": np.zeros((60, 0)), "targets": []}, DataError, "at least one column, got none"),
        ({"H": np.zeros(8)}, DataError, "two dimensions"),
        ({"H": [["a"] * 8]}, DataError, "numbers only"),
        ({"base_weights": np.ones(3)}, DataError, "each of the 60 rows"),
        ({"base_weights": -np.ones(60)}, DataError, ">= 0"),
        ({"max_weight": 0.001}, ConfigError, "`max_weight` must be a number >= 0.0166667"),
        ({"accuracy": 0.0}, ConfigError, "accuracy"),
        ({"max_passes": 0}, ConfigError, "`max_passes` must be an integer >= 1, got 0"),
        ({"max_passes": 1.5}, ConfigError, "`max_passes` must be an integer >= 1, got 1.5"),
        ({"H": np.ones((60, 8), complex)}, DataError, "`H` must hold numbers only: got complex128"),
        ({"H": torch.ones((60, 8), dtype=torch.complex128)}, DataError, "`H` must hold numbers only"),
        ({"H": 1e200 * problem()[0]}, DataError, "too large"),
        ({"targets": ["1"] * 8}, DataError, "`targets` must hold numbers only"),
        ({"tolerance": "a"}, ConfigError, "`tolerance` must hold numbers only"),
        ({"strength": "1"}, ConfigError, "`strength` must hold numbers only"),
        ({"base_weights": ["a"] * 60}, DataError, "`base_weights` must hold numbers only"),
        ({"base_weights": np.ones(60, complex)}, DataError, "`base_weights` must hold numbers only"),
        ({"base_weights": torch.ones(60, dtype=torch.complex128)}, DataError, "numbers only, got torch.complex128"),
        ({"scale": np.r_[np.ones(7), 0.0]}, DataError, "`scale` must be > 0, got 0.0 for function 7"),
        ({"scale": ["a"] * 8}, DataError, "`scale` must hold numbers only"),
    ],
)
def test_bad_input_is_named(change, error, words):
    H, targets = problem()
    with pytest.raises(error, match=words):
        entropy_balance(**({"H": H, "targets": targets} | change))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_hard_and_soft_functions_together_warn_of_nothing():
    H, targets = problem(5, shift=0.2)
    H[:, 0], targets[0] = H[:, 0] * 1e12, targets[0] * 1e12
    result = entropy_balance(H, targets, 0.0, np.r_[np.inf, np.full(7, 5.0)], accuracy=1e-6)
    assert result.objective >= result.divergence


def test_missing_value_is_located():
    H, targets = problem()
    H[17, 3] = np.nan
    with pytest.raises(DataError, match="got nan in row 17, function 3"):
        entropy_balance(H, targets)


def test_constant_function_off_target_is_an_error_only_if_hard():
    H, targets = problem()
    H[:, 1], targets[1] = 2.0, 2.5
    with pytest.raises(DataError, match=r"functions \[1\] are constant"):
        entropy_balance(H, targets)
    assert np.flatnonzero(entropy_balance(H, targets, strength=3.0).relaxed).tolist() == [1]


def test_strength_of_the_worst_case_is_one_unless_given_and_positive():
    H, targets = problem()
    expected = worst_case_balance(H, targets, np.eye(8), 1.0)
    assert np.array_equal(worst_case_balance(H, targets, np.eye(8)).weights, expected.weights)
    with pytest.raises(ConfigError, match="`strength` must be a number > 0"):
        worst_case_balance(H, targets, np.eye(8), 0.0)


def test_certificate_shows_imbalance_in_standard_deviations_by_size():
    H, targets = problem()
    result = entropy_balance(H, targets, strength=0.5, scale=np.full(8, 4.0))
    tau = result.weights @ H - targets
    assert result.violation_sd == pytest.approx(abs(tau) / 4, rel=1e-9)
    assert result.max_violation == max(result.violation_sd)
    page, before = result._repr_html_(), abs(H.mean(0) - targets) / 4
    places = [page.index(f"h{place + 1}<") for place in np.argsort(-before)]
    assert places == sorted(places)
    assert f"{before.max():.4f}" in page
    assert f"{result.max_violation:.4f}" in page


def test_worst_case_matrix_must_be_positive_definite():
    H, targets = problem()
    with pytest.raises(DataError, match="positive definite"):
        worst_case_balance(H, targets, -np.eye(8))
    with pytest.raises(DataError, match="symmetric"):
        worst_case_balance(H, targets, np.eye(7))
    with pytest.raises(DataError, match="`matrix` must hold numbers only"):
        worst_case_balance(H, targets, "a")


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_symmetry_is_relative_to_the_size_of_the_matrix(size):
    H, targets = problem()
    matrix = np.cov(H.T) + np.eye(8)
    rounded = matrix + 1e-7 * np.triu(np.ones((8, 8)), 1)
    expected = worst_case_balance(H, targets, matrix, 1.0).weights
    assert np.allclose(worst_case_balance(H, targets, size * rounded, size).weights, expected, atol=1e-6)
    with pytest.raises(DataError, match="symmetric"):
        worst_case_balance(H, targets, size * (matrix + np.triu(matrix, 1)))
