"""Slow, obvious versions of the balancing formulas: cvxpy, loops and brute force over all pairs."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np


def hinge_objective(weights: Any, H: Any, targets: Any, tolerance: Any, strength: Any, base: Any = None) -> float:
    """KL(w || q) + sum_j gamma_j max(0, |tau_j| - C_j), term by term."""
    base = np.full(len(H), 1 / len(H)) if base is None else np.asarray(base) / np.sum(base)
    total = sum(w * np.log(w / q) for w, q in zip(weights, base, strict=True) if w > 0)
    for j in range(H.shape[1]):
        tau = sum(weights * H[:, j]) - targets[j]
        total += np.broadcast_to(strength, H.shape[1])[j] * max(
            0.0, abs(tau) - np.broadcast_to(tolerance, H.shape[1])[j]
        )
    return float(total)


def hinge_by_cvxpy(H: Any, targets: Any, tolerance: Any, strength: Any, base: Any = None, cap: Any = None) -> float:
    """The least objective of the hinge problem, by Clarabel."""
    n = len(H)
    base = np.full(n, 1 / n) if base is None else np.asarray(base) / np.sum(base)
    w = cvxpy.Variable(n)
    slack = cvxpy.pos(cvxpy.abs(w @ H - targets) - tolerance)
    strength = np.broadcast_to(strength, H.shape[1])
    hard = np.isinf(strength)
    objective = cvxpy.sum(cvxpy.kl_div(w, base)) + np.where(hard, 0.0, strength) @ slack
    limits = [cvxpy.sum(w) == 1, w >= 0] + ([slack[hard] <= 0] if hard.any() else []) + ([w <= cap] if cap else [])
    return _solved(cvxpy.Problem(cvxpy.Minimize(objective), limits))


def quadratic_by_cvxpy(H: Any, targets: Any, matrix: Any, strength: float) -> float:
    """The least KL + strength * v'A^-1 v, by Clarabel."""
    n = len(H)
    w = cvxpy.Variable(n)
    root = np.linalg.inv(np.linalg.cholesky(matrix))
    bias = cvxpy.sum_squares(root @ (H.T @ w - targets))
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.sum(cvxpy.kl_div(w, np.full(n, 1 / n))) + strength * bias), [cvxpy.sum(w) == 1]
    )
    return _solved(problem)


def _solved(problem: cvxpy.Problem) -> float:
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert problem.status == "optimal"
    return float(problem.solution.opt_val)  # `value` is infinite where a weight comes back as -1e-15


def kernel_value(kernel: Any, x: Any, centre: Any) -> float:
    """One value of a kernel, from its definition."""
    distance = np.sqrt(sum((a - b) ** 2 for a, b in zip(x, centre, strict=True)))
    power = {"Gaussian": distance**2, "Exponential": distance}[type(kernel).__name__]
    return float(np.exp(-power / (2 * kernel.bandwidth)))
