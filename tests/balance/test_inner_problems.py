"""The penalties of the balancing solver and its box program, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balance import box_qp
from counterpoise.balance.box_qp import robust_cholesky, solve_box_l1, solve_positive
from counterpoise.balance.penalties import Hinge, Quadratic, solve_ridge, whitening
from counterpoise.errors import DataError


def random_hessian(rng, size, rank=None):
    factor = rng.normal(size=(rank or 2 * size, size))
    return factor.T @ factor / len(factor)


def excess_of_optimality(hessian, gradient, start, l1, bound, value):
    """How far the subgradient of gradient'd + d' hessian d / 2 + sum_j l1_j |l_j| in the box is from 0."""
    slope = gradient + hessian @ (value - start)
    at_zero = (abs(slope) - l1).clip(min=0)
    outward = np.sign(value) * slope + l1
    at_bound = outward.clip(min=0)
    return np.where(value == 0, at_zero, np.where(abs(value) >= bound, at_bound, abs(outward))).max()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["zero", "near", "bounds", "random"]))
def test_box_program_meets_its_optimality_conditions(seed, place):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    hessian, gradient = random_hessian(rng, size), 2 * rng.normal(size=size)
    l1, bound = rng.choice([0.0, 0.3, 1.0], size), rng.choice([0.2, 1.0, 50.0], size)
    start = np.zeros(size)
    if place == "bounds":
        start = rng.choice([-1.0, 0.0, 1.0], size) * bound
    elif place == "random":
        start = (2 * rng.random(size) - 1) * bound
    elif place == "near":  # the solution of a program like it, so that its zeros, signs and bounds may be kept
        start = solve_box_l1(hessian, gradient, start, l1, bound)
        gradient = hessian @ start + gradient + rng.choice([0.01, 0.5]) * rng.normal(size=size)
    value = solve_box_l1(hessian, gradient, start, l1, bound)
    assert (abs(value) <= bound).all()
    assert excess_of_optimality(hessian, gradient, start, l1, bound, value) < 1e-9


def test_kept_zeros_signs_and_bounds_take_no_interior_point(monkeypatch):
    rng = np.random.default_rng(0)
    hessian, gradient, l1, bound = random_hessian(rng, 8), 2 * rng.normal(size=8), np.full(8, 0.8), np.full(8, 1.0)
    value = solve_box_l1(hessian, gradient, np.zeros(8), l1, bound)
    assert (value == 0).any()
    assert (abs(value) == 1).any()
    assert ((value != 0) & (abs(value) < 1)).any()
    monkeypatch.delattr(box_qp, "_by_interior_point")
    slope = gradient + hessian @ value
    moved = slope + 1e-3 * rng.normal(size=8)
    again = solve_box_l1(hessian, moved, value, l1, bound)
    assert excess_of_optimality(hessian, moved, value, l1, bound, again) < 1e-12
    assert ((again == 0) == (value == 0)).all()
    with pytest.raises(NameError):  # other zeros: not by one linear system
        solve_box_l1(hessian, gradient, np.zeros(8), l1, bound)


def test_zero_is_left_where_another_coordinate_moves_its_slope():
    hessian, gradient = np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([1.8, -2.0])
    l1, bound, start = np.array([0.5, 0.0]), np.full(2, 50.0), np.zeros(2)
    value = solve_box_l1(hessian, gradient, start, l1, bound)
    assert value[0] < 0
    assert excess_of_optimality(hessian, gradient, start, l1, bound, value) < 1e-9


@pytest.mark.parametrize("rank", [None, 5])  # 5: collinear columns
def test_interior_point_needs_few_steps(rank, monkeypatch):
    steps, advanced = [0], box_qp._advanced

    def counted(*arguments):
        steps[0] += 1
        return advanced(*arguments)

    monkeypatch.setattr(box_qp, "_advanced", counted)
    rng = np.random.default_rng(1)
    for _ in range(20):
        hessian, gradient = random_hessian(rng, 20, rank), rng.normal(size=20)
        box_qp._by_interior_point(hessian, gradient, np.zeros(20), np.full(20, 0.1), np.full(20, 3.0))
    assert steps[0] <= 20 * 14


def test_interior_point_is_never_worse_than_its_start(monkeypatch):
    rng = np.random.default_rng(2)
    hessian, gradient, l1, bound = random_hessian(rng, 6), rng.normal(size=6), np.full(6, 0.2), np.full(6, 2.0)
    best = solve_box_l1(hessian, gradient, np.zeros(6), l1, bound)
    monkeypatch.setattr(box_qp, "MAX_STEPS", 0)  # what it begins with is no solution
    at_best = gradient + hessian @ best
    assert np.array_equal(box_qp._by_interior_point(hessian, at_best, best, l1, bound), best)


def test_only_positive_definite_matrices_are_solved():
    rng = np.random.default_rng(0)
    matrix, right = random_hessian(rng, 4), rng.normal(size=4)
    assert np.allclose(solve_positive(np.tril(matrix), right), np.linalg.solve(matrix, right))  # the lower half
    assert solve_positive(matrix - 10 * np.eye(4), right) is None


def test_ridge_of_a_factor_is_as_small_as_it_can_be():
    rng = np.random.default_rng(0)
    rank_one = np.outer(column := rng.normal(size=5), column)
    factor = robust_cholesky(rank_one - 1e-13 * np.eye(5))
    assert factor is not None
    assert abs(factor.T @ factor - rank_one).max() < 1e-9
    assert robust_cholesky(-rank_one) is None
    assert robust_cholesky(rank_one - 0.1 * np.eye(5)) is None


def test_hinge_is_a_conjugate_with_its_slope():
    rng = np.random.default_rng(0)
    hinge = Hinge(rng.random(4), rng.random(4) + 1, np.ones(4))
    dual, change = np.array([0.5, -0.4, 0.0, 0.0]), rng.normal(size=4)
    arrived = (hinge.value(dual) - hinge.value(dual - 1e-6 * change)) / 1e-6
    assert hinge.slope(dual, change) == pytest.approx(arrived, rel=1e-6)
    tau = rng.normal(size=4)
    primal = hinge.strength @ (abs(tau) - hinge.tolerance).clip(min=0)
    assert hinge.gap(dual, tau) == pytest.approx(primal - dual @ tau + hinge.value(dual))


def test_quadratic_is_a_conjugate_with_its_slope():
    rng = np.random.default_rng(0)
    penalty, dual, change, v = Quadratic(7.0), *rng.normal(size=(3, 4))
    numeric = (penalty.value(dual + 1e-6 * change) - penalty.value(dual - 1e-6 * change)) / 2e-6
    assert penalty.slope(dual, change) == pytest.approx(numeric, rel=1e-6)
    assert penalty.gap(dual, v) == pytest.approx(7 * v @ v - dual @ v + penalty.value(dual))
    assert penalty.value(dual) == pytest.approx(dual @ (dual / 14) - 7 * (dual / 14) @ (dual / 14))


def test_hard_constraints_must_hold_unless_relaxed():
    hinge = Hinge(np.zeros(2), np.array([np.inf, 1.0]), np.ones(2))
    assert not hinge.solved(np.array([5.0, 0.0]), np.array([1e-3, 0.0]), 1e-6, False)
    assert not hinge.solved(np.array([5.0, 0.0]), np.array([1e-3, 0.0]), 1e-6, True)
    assert hinge.solved(np.array([1e6, 0.0]), np.array([1e-3, 0.0]), 1e-6, False)  # as large as it may be
    # the gap of the second function is 3e-6, which 1 + |l| = 6 times the accuracy allow
    assert hinge.solved(np.array([5.0, 0.0]), np.array([0.0, 3e-6]), 1e-6, False)
    assert not hinge.solved(np.array([1.0, 0.0]), np.array([0.0, 3e-6]), 1e-6, False)


@pytest.mark.parametrize(("gap", "solved"), [(0.5, True), (1.5, False)])  # in units of the rounding
def test_rounding_is_allowed_for_once_halted(gap, solved):
    size = np.array([1e9, 0.0])
    hinge, rounding = Hinge(np.zeros(2), np.ones(2), size), 1e-13 * 1e9
    imbalance = np.array([gap * rounding, 0.0])
    assert hinge.solved(np.zeros(2), imbalance, 1e-12, True) == solved
    assert not hinge.solved(np.zeros(2), imbalance, 1e-12, False)
    far = np.array([1e4, 0.0])  # a penalty of 1e4, which float64 gives to 1e-5
    dual = np.array([1 - gap * 1e-9, 0.0])
    assert Hinge(np.zeros(2), np.ones(2), np.zeros(2)).solved(dual, far, 1e-12, True) == solved
    quadratic, v = Quadratic(1e6), np.array([1.0, 0.0])
    dual = 2e6 * v * (1 - (gap * 1e-9) ** 0.5)
    assert quadratic.solved(dual, v, 1e-12, True) == solved
    assert not quadratic.solved(dual, v, 1e-12, False)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.floats(-2, 7), st.floats(-4, 1), st.sampled_from([0.0, 1.0, 100.0]))
def test_path_begins_easily_and_grows_by_tens(seed, exponent, size, start):
    rng = np.random.default_rng(seed)
    penalty = Quadratic(10.0**exponent)
    v, dual = 10.0**size * rng.normal(size=3), start * rng.normal(size=3)
    path = penalty.path(dual, v)
    assert path[-1] is penalty
    strengths = [each.strength for each in path]
    assert np.allclose(np.divide(strengths[1:], strengths[:-1]), 10)
    product = np.linalg.norm(dual) * np.linalg.norm(v)
    easy = (1 + product / 2) / (v @ v)
    assert Quadratic(easy).gap(dual, v) <= (1 + product - dual @ v) * (1 + 1e-12)
    assert len(path) == 1 or easy / 10 < strengths[0] <= easy * (1 + 1e-9)
    assert len(path) > 1 or penalty.strength <= easy * (1 + 1e-9)
    assert penalty.path(2 * penalty.strength * v, v) == [penalty]


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_ridge_equations_are_solved(size):
    rng = np.random.default_rng(0)
    matrix, right = size * random_hessian(rng, 6), rng.normal(size=6)
    smallest = np.linalg.eigvalsh(matrix)[0]
    for ridge in (0.5 * smallest, 2 * smallest):
        assert np.allclose(solve_ridge(matrix, ridge, right), np.linalg.solve(matrix + ridge * np.eye(6), right))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_whitening_leaves_out_what_is_rounding_and_refuses_what_is_negative(size):
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]

    def matrix(*values):
        return size * (directions * values) @ directions.T

    W = whitening(matrix(3.0, 2.0, 1e-3, 1e-14))
    assert W.shape == (4, 3)
    assert np.allclose(W.T @ matrix(3.0, 2.0, 1e-3, 1e-14) @ W, np.eye(3))
    assert whitening(matrix(3.0, 2.0, 1e-3, -1e-9)).shape == (4, 3)
    for wrong in ((3.0, 2.0, 1e-3, -1e-6), (-1.0, -2.0, -1e-3, -3.0), (0.0, 0.0, 0.0, 0.0)):
        with pytest.raises(DataError, match="positive definite"):
            whitening(matrix(*wrong))
