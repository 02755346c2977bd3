"""A small convex program solved to high accuracy: quadratic plus L1 in a box, by an interior point method.

Cholesky factors come from LAPACK itself, which on a few hundred rows takes a third of the time of torch's way to it.
scipy is imported with the first call: a worker that only adds up the rows of shards starts without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Step = tuple[Vector, Vector, Vector]

ACCURACY = 1e-14  # of the complementarity gap
MAX_STEPS = 60  # of the interior point method; Mehrotra's needs 10 to 30
MIN_STEP, CENTRING = 0.1, 0.2  # a step shorter than the first is redone towards the centre, at this share of the gap
ACTIVE_RATIO = 1e-4  # slack over multiplier below which an inequality is active; a larger one spoils the last digits


def cholesky(matrix: Vector) -> Vector | None:
    """The upper factor of a positive definite matrix; None if it is not."""
    from scipy.linalg.lapack import dpotrf

    factor, failed = dpotrf(matrix)
    return factor if failed == 0 and np.isfinite(factor[-1, -1]) else None


def solve_factored(factor: Vector, right: Vector) -> Vector:
    """matrix^-1 right, from the upper factor."""
    from scipy.linalg.lapack import dpotrs

    return dpotrs(factor, right)[0]  # type: ignore[no-any-return]


def solve_positive(matrix: Vector, right: Vector) -> Vector | None:
    """matrix^-1 right for a positive definite matrix, of which the lower half is read; None if it is not.

    From the upper half OpenBLAS takes a quarter longer.
    """
    from scipy.linalg.lapack import dposv

    _, solution, failed = dposv(matrix, right, lower=True)
    return solution if failed == 0 else None


def solve_box_l1(hessian: Vector, gradient: Vector, start: Vector, l1: Vector, bound: Vector) -> Vector:
    """The argmin over |l_j| <= bound_j of gradient'd + d' hessian d / 2 + sum_j l1_j |l_j|, d = l - start.

    First by guessing that zeros, signs and bounds stay as they are in `start`; else by an interior point method
    (Mehrotra, 1992) that stops when the complementarity gap is below `ACCURACY`.
    """
    guess = _with_same_active_set(hessian, gradient, start, l1, bound)
    return _by_interior_point(hessian, gradient, start, l1, bound) if guess is None else guess


def _with_same_active_set(hessian: Vector, gradient: Vector, start: Vector, l1: Vector, bound: Vector) -> Vector | None:
    """The solution if zeros, signs and bounds are those of `start`, by one linear system; None if they are not."""
    sign, at_bound = np.sign(start), abs(start) >= bound
    zero = (start == 0) & (l1 > 0)
    free = ~(zero | at_bound)
    change = np.zeros_like(start)
    if free.any():
        inner, right = hessian[np.ix_(free, free)], -(gradient + l1 * sign)[free]
        factor = robust_cholesky(inner)
        if factor is None:
            return None
        change[free] = solve_factored(factor, right)
        if abs(inner @ change[free] - right).max() > 1e-10 * abs(right).max():
            return None
    value, slope = start + change, gradient + hessian @ change
    right_side = np.where(free & (l1 > 0), value * sign > 0, True) & (abs(value) <= bound)
    held = np.where(zero, abs(slope) <= l1, True) & np.where(at_bound & ~zero, sign * slope + l1 <= 0, True)
    return value if bool((right_side & held).all()) else None


def _by_interior_point(hessian: Vector, gradient: Vector, start: Vector, l1: Vector, bound: Vector) -> Vector:
    """With l = plus - minus, both in [0, bound]: the two parts share one Cholesky factor of hessian + diagonal.

    Coordinates that the multipliers show to lie at zero or at a bound are set there. Never worse than `start`.
    """
    state = _State.inside(hessian, gradient, start, l1, np.maximum(bound, 1e-12))
    for _ in range(MAX_STEPS):
        smooth = gradient + hessian @ (state.value - start)
        residual = np.stack([smooth, -smooth]) + l1 - state.lower + state.upper
        product = state.complementarity()
        if product <= ACCURACY and (abs(residual).max() <= ACCURACY or product <= 1e-3 * ACCURACY):
            break
        diagonal = state.lower / state.parts + state.upper / state.slack
        factor = robust_cholesky(hessian + np.diag(diagonal[0] * diagonal[1] / diagonal.sum(0)))
        if factor is None:
            break
        state = _advanced(state, _System(hessian, factor, diagonal), residual)
    value = state.snapped(bound).clip(-bound, bound)
    change = value - start
    gained = float(gradient @ change + change @ hessian @ change / 2 + l1 @ (abs(value) - abs(start)))
    return value if gained <= 0 else start


def _advanced(state: _State, system: _System, residual: Vector) -> _State:
    """The state after Mehrotra's step, or after a centred one where that is short or does not close the gap.

    Without this the second-order correction can cycle, for instance where columns are collinear.
    """
    product = state.complementarity()
    middle = product / (4 * len(system.hessian))
    predictor = system.direction(state, residual, 0.0, None)
    ahead = state.moved(predictor, state.longest(predictor)).complementarity()
    corrected = system.direction(state, residual, middle * (ahead / product) ** 3, predictor)
    length = state.inner_length(corrected)
    moved = state.moved(corrected, length)
    if length >= MIN_STEP and moved.complementarity() < product:
        return moved
    centred = system.direction(state, residual, CENTRING * middle, None)
    return state.moved(centred, state.inner_length(centred))


def robust_cholesky(matrix: Vector) -> Vector | None:
    """The upper Cholesky factor of a matrix that is positive definite but for rounding; None if it is far from it."""
    matrix = matrix.copy()
    diagonal = matrix.reshape(-1)[:: len(matrix) + 1]
    ridge = 1e-14 * diagonal.max()
    for _ in range(6):
        factor = cholesky(matrix)
        if factor is not None:
            return factor
        diagonal += ridge
        ridge *= 100
    return None


@dataclass
class _State:
    """Both parts (2, functions), their slack to the bound, and the multipliers of the two inequalities."""

    parts: Vector
    slack: Vector
    lower: Vector
    upper: Vector

    @classmethod
    def inside(cls, hessian: Vector, gradient: Vector, start: Vector, l1: Vector, bound: Vector) -> _State:
        """A point off all bounds, with multipliers that make it stationary: later steps keep it so."""
        margin = np.minimum(0.1, bound / 4)
        parts = np.minimum(np.stack([start, -start]).clip(min=0) + margin, bound - margin)
        smooth = gradient + hessian @ (parts[0] - parts[1] - start)
        pull = np.stack([smooth, -smooth]) + l1
        extra = 1e-3 + 0.1 * abs(pull).mean()
        return cls(parts, bound - parts, pull.clip(min=0) + extra, (-pull).clip(min=0) + extra)

    @property
    def value(self) -> Vector:
        return self.parts[0] - self.parts[1]  # type: ignore[no-any-return]

    def complementarity(self) -> float:
        return float(np.vdot(self.parts, self.lower) + np.vdot(self.slack, self.upper))

    def longest(self, step: Step) -> float:
        """The largest length in (0, 1] that keeps everything nonnegative."""
        values = np.concatenate([self.parts, self.slack, self.lower, self.upper])
        changes = np.concatenate([step[0], -step[0], step[1], step[2]])
        falling = changes < 0
        return float(min(1.0, np.min(-values[falling] / changes[falling], initial=1.0)))

    def inner_length(self, step: Step) -> float:
        """A length in (0, 1] that stays off the bounds."""
        return min(1.0, 0.995 * self.longest(step))

    def moved(self, step: Step, length: float) -> _State:
        lower, upper = self.lower + length * step[1], self.upper + length * step[2]
        return _State(self.parts + length * step[0], self.slack - length * step[0], lower, upper)

    def snapped(self, bound: Vector) -> Vector:
        """The value, with active coordinates put exactly at zero or at their bound."""
        at_bound = ACTIVE_RATIO * self.upper > self.slack
        value = np.where((ACTIVE_RATIO * self.lower > self.parts).all(0), 0.0, self.value)
        value = np.where(at_bound[0] & ~at_bound[1], bound, value)
        return np.where(at_bound[1] & ~at_bound[0], -bound, value)


@dataclass
class _System:
    """The factored equations of one Newton step: hessian + (1/d_plus + 1/d_minus)^-1, d the barrier's diagonal."""

    hessian: Vector
    factor: Vector
    diagonal: Vector  # (2, functions)

    def direction(self, state: _State, residual: Vector, target: float, predictor: Step | None) -> Step:
        """Newton's step on the optimality conditions with complementarity set to `target` (second order if given)."""
        low_gap = state.parts * state.lower - target
        high_gap = state.slack * state.upper - target
        if predictor is not None:
            low_gap += predictor[0] * predictor[1]
            high_gap -= predictor[0] * predictor[2]
        right = -residual - low_gap / state.parts + high_gap / state.slack
        plus_diagonal, minus_diagonal = self.diagonal
        shift = (minus_diagonal * right[0] - plus_diagonal * right[1]) / (plus_diagonal + minus_diagonal)
        change = solve_factored(self.factor, shift)
        push = self.hessian @ change
        plus, minus = (right[0] - push) / plus_diagonal, (right[1] + push) / minus_diagonal
        first = plus_diagonal < minus_diagonal  # the part with the larger diagonal is free of cancellation
        parts = np.stack([np.where(first, change + minus, plus), np.where(first, minus, plus - change)])
        lower = -(low_gap + state.lower * parts) / state.parts
        upper = (-high_gap + state.upper * parts) / state.slack
        return parts, lower, upper
