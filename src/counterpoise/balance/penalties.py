"""Penalties of the dual problem: the conjugate of the paper's hinge, and of the quadratic form of the worst case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoise.balance.box_qp import cholesky, solve_box_l1, solve_factored
from counterpoise.errors import DataError
from counterpoise.threads import one_blas_thread

Vector = NDArray[np.float64]

HINGE_STRENGTH = 100.0  # default gamma_j, per population standard deviation of a function
WORST_CASE_STRENGTH = 1e4  # default strength of the quadratic penalty
MAX_HARD_DUAL = 1e6  # |l_j| per standard deviation under hard constraints; feasible problems stay below: exp overflows
IMBALANCE_ROUNDING = 1e-13  # share of the size of a function to which float64 gives its imbalance
PENALTY_ROUNDING = 1e-9  # share of the penalty to which float64 gives it
MAX_GAP_RISE = 10.0  # factor by which the gap may grow in a step of the quadratic problem; more: the step is too long
PATH_FACTOR = 10.0  # from one strength to the next on the way to a large one
MIN_EIGENVALUE_SHARE = 1e-12  # eigenvalues below this share of the largest count as zero


class Penalty(Protocol):
    """A convex function of the dual vector l, added to the log-partition function."""

    def value(self, dual: Vector) -> float:
        """The penalty at `dual`."""

    def slope(self, dual: Vector, change: Vector) -> float:
        """The penalty's derivative at `dual`, one-sided, for a step that arrives along `change`."""

    def minimise(self, hessian: Vector, imbalance: Vector, dual: Vector) -> Vector:
        """The argmin over l of penalty(l) - imbalance'(l - dual) + (l - dual)' hessian (l - dual) / 2."""

    def gap(self, dual: Vector, imbalance: Vector) -> float:
        """The duality gap at `dual`: how far the objective is from its least value, at most."""

    def diverging(self, before: float, after: float) -> bool:
        """Whether a step that changed the gap like this should be shortened, though the objective fell."""
        return False

    def path(self, dual: Vector, imbalance: Vector) -> Sequence[Penalty]:
        """Penalties from an easy problem at `dual` to this one, which comes last."""
        return [self]

    def solved(self, dual: Vector, imbalance: Vector, accuracy: float, halted: bool) -> bool:
        """Whether the gap is small enough; once it no longer improves (`halted`), rounding is allowed for."""


@dataclass(frozen=True)
class Hinge(Penalty):
    """sum_j C_j |l_j| in the box |l_j| <= gamma_j: the conjugate of sum_j gamma_j max(0, |tau_j| - C_j)."""

    tolerance: Vector
    strength: Vector
    size: Vector  # |mean| + deviation of each function, to which its rounding is relative

    @property
    def bound(self) -> Vector:
        """gamma_j, or a large number where that is infinite."""
        return np.where(np.isinf(self.strength), MAX_HARD_DUAL, self.strength)

    def value(self, dual: Vector) -> float:
        """sum_j C_j |l_j|."""
        return float(self.tolerance @ abs(dual))

    def slope(self, dual: Vector, change: Vector) -> float:
        """sum_j C_j sign(l_j) change_j; at l_j = 0, where `change` came down to the kink, -C_j |change_j|."""
        return float(self.tolerance @ np.where(dual == 0, -abs(change), np.sign(dual) * change))

    def minimise(self, hessian: Vector, imbalance: Vector, dual: Vector) -> Vector:
        return solve_box_l1(hessian, -imbalance, dual, self.tolerance, self.bound)

    def gap(self, dual: Vector, imbalance: Vector) -> float:
        """sum_j [gamma_j (|tau_j| - C_j)+ - l_j tau_j + C_j |l_j|].

        For an infinite gamma_j, |l_j| stands in its place: the gap to the least divergence among all weights that
        are balanced as well as these.
        """
        strength = np.where(np.isinf(self.strength), abs(dual), self.strength)
        excess = (abs(imbalance) - self.tolerance).clip(min=0)
        return float(np.sum(strength * excess - dual * imbalance + self.tolerance * abs(dual)))

    def solved(self, dual: Vector, imbalance: Vector, accuracy: float, halted: bool) -> bool:
        """gap <= accuracy; with hard constraints (infinite gamma_j), <= accuracy * (1 + the sum of their |l_j|).

        These must also hold to `accuracy`, unless relaxed: |l_j| at MAX_HARD_DUAL. Once halted, the rounding of the
        penalty and of gamma_j tau_j is added.
        """
        hard = np.isinf(self.strength)
        excess = abs(imbalance) - self.tolerance
        if (excess > accuracy)[hard & (abs(dual) < MAX_HARD_DUAL)].any():
            return False
        allowed = accuracy * (1 + float(abs(dual[hard]).sum()))
        if halted:
            strength = np.where(hard, abs(dual), self.strength)
            penalty = strength @ excess.clip(min=0)
            allowed += float(IMBALANCE_ROUNDING * (strength @ self.size) + PENALTY_ROUNDING * penalty)
        return self.gap(dual, imbalance) <= allowed


@dataclass(frozen=True)
class Quadratic(Penalty):
    """|l|^2 / (4 strength): the conjugate of strength * |v|^2, the squared bias of the worst function.

    In the coordinates of `whitening`, where v'A^-1 v = |v|^2.
    """

    strength: float

    def value(self, dual: Vector) -> float:
        """|l|^2 / (4 strength)."""
        return float(dual @ dual) / (4 * self.strength)

    def slope(self, dual: Vector, change: Vector) -> float:
        """l'change / (2 strength)."""
        return float(dual @ change) / (2 * self.strength)

    def minimise(self, hessian: Vector, imbalance: Vector, dual: Vector) -> Vector:
        """Newton's equations: (hessian + 1 / (2 strength)) step = imbalance - l / (2 strength)."""
        ridge = 1 / (2 * self.strength)
        return dual + solve_ridge(hessian, ridge, imbalance - ridge * dual)

    def gap(self, dual: Vector, imbalance: Vector) -> float:
        """strength * |v|^2 - l'v + |l|^2 / (4 strength) = strength * |v - l / (2 strength)|^2."""
        difference = imbalance - dual / (2 * self.strength)
        return self.strength * float(difference @ difference)

    def diverging(self, before: float, after: float) -> bool:
        """after > MAX_GAP_RISE before. The gap is strength times the squared gradient, so that short steps lower it.

        A long step may put all weight on one row, where the covariance vanishes.
        """
        return after > MAX_GAP_RISE * before

    def path(self, dual: Vector, imbalance: Vector) -> Sequence[Penalty]:
        """Penalties of growing strengths up to this one, from 1 / |v|^2 + |l| / (2 |v|) on: first steps are short.

        There the gap is less than 1 + |l| |v| - l'v: that is 1 at l = 0, and at l = 2 strength v nothing is on the way.
        """
        size = float(np.linalg.norm(imbalance))
        first = 1 / max(size**2, 1e-300) + float(np.linalg.norm(dual)) / max(2 * size, 1e-300)
        count = math.ceil(max(0.0, math.log(self.strength / first, PATH_FACTOR)))
        return [*(Quadratic(self.strength * PATH_FACTOR**-step) for step in range(count, 0, -1)), self]

    def solved(self, dual: Vector, imbalance: Vector, accuracy: float, halted: bool) -> bool:
        """gap <= accuracy; once halted, the rounding of the penalty is added."""
        rounding = PENALTY_ROUNDING * self.strength * float(imbalance @ imbalance)
        return self.gap(dual, imbalance) <= accuracy + halted * rounding


def solve_ridge(matrix: Vector, ridge: float, right: Vector) -> Vector:
    """(M + ridge)^-1 right for a positive semi-definite M; by its eigenvalues where rounding made some negative."""
    factor = cholesky(matrix + ridge * np.eye(len(matrix)))
    if factor is not None:
        return solve_factored(factor, right)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return vectors @ ((vectors.T @ right) / (values.clip(min=0) + ridge))


def whitening(matrix: Vector) -> Vector:
    """W (J, R) with W'A W = 1, so that v'A^-1 v = |W'v|^2; directions of no measurable norm are left out."""
    with one_blas_thread():
        values, vectors = np.linalg.eigh(matrix)
    if values[-1] <= 0 or values[0] < -1e-8 * values[-1]:
        raise DataError("`matrix` must be positive definite. Add a multiple of the identity or drop columns.")
    kept = values > MIN_EIGENVALUE_SHARE * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])  # type: ignore[no-any-return]
