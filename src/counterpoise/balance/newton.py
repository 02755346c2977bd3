"""Proximal Newton on the dual: log-partition function plus penalty, with a certificate at every step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from counterpoise.balance.exponential_family import ExponentialFamily, FamilyPoint
from counterpoise.balance.penalties import Penalty, Vector

# All values were tuned on benchmarks/solver.py and the problems of tests/balance/test_solver.py.
MAX_REUSE_STEP = 0.3  # step length, in standard deviations of the log-weights, after which a covariance is reused
MAX_REUSE_SLOPE = 0.01  # largest slope of a step from a reused covariance, as a share of the slope of the step before
MAX_SEARCH_STEPS = 40  # of a line search
MAX_IDLE_STEPS = 2  # steps in a row that do not halve the gap before what rounding may leave counts as solved
STEP_SHRINKAGE, MAX_SHORTENINGS = 0.3, 8  # of a step after which the gap has risen too much (`Penalty.diverging`)
PATH_ACCURACY = 1e-2  # the gap at which an easier problem on the path is left for the next one
SLOPE_ROUNDING = 1e-15  # rounding of an imbalance, in standard deviations, along directions that change no weight
DAMPING = (0.0, 1e-10, 1e-7, 1e-4)  # shares of the mean variance, tried in turn where rounding spoils a step


@dataclass
class Solution:
    """The point at which the iteration stopped, its gap and its status."""

    point: FamilyPoint
    dual: Vector  # in the problem's coordinates
    gap: float
    passes: int
    status: str
    covariance: Vector | None  # the latest estimate, in the problem's coordinates


@dataclass
class DualProblem:
    """min over l of log sum_i q_i exp(-l'(h(x_i) - mu)) + penalty, in coordinates where the functions are alike.

    `transform` (J, R), or (J,) for a diagonal, gives those coordinates: T'h instead of h, so that l = T dual.
    """

    family: ExponentialFamily
    penalty: Penalty
    transform: Vector
    passes: int = 0
    float32: bool = False  # whether covariances in float32 are enough

    def at(self, dual: Vector) -> FamilyPoint:
        """One pass over the rows."""
        self.passes += 1
        return self.family.at(torch.from_numpy(self._untransformed(dual)))

    def imbalance(self, point: FamilyPoint) -> Vector:
        return change_coordinates(self.transform, point.imbalance.numpy())

    def covariance(self, point: FamilyPoint) -> Vector:
        """The Hessian T' cov T; one pass."""
        self.passes += 1
        if self.transform.ndim == 2:
            return point.covariance(self.float32, torch.from_numpy(self.transform)).numpy()
        return point.covariance(self.float32).numpy() * np.outer(self.transform, self.transform)

    def _untransformed(self, dual: Vector) -> Vector:
        return self.transform * dual if self.transform.ndim == 1 else self.transform @ dual

    def solve(self, start: Vector, accuracy: float, max_passes: int, covariance: Vector | None = None) -> Solution:
        """The minimum, by way of the easier penalties of `Penalty.path`, each from the solution of the one before.

        Only the last is solved to `accuracy`, and the gap of the solution is always that of the last.
        """
        solution = Solution(self.at(start), start, np.inf, self.passes, "begun", covariance)
        for penalty in self.penalty.path(start, self.imbalance(solution.point)):
            enough = accuracy if penalty is self.penalty else max(accuracy, PATH_ACCURACY)
            solution = replace(self, penalty=penalty).descend(solution, enough, max_passes)
            self.passes = solution.passes
        return solution

    def descend(self, begun: Solution, accuracy: float, max_passes: int) -> Solution:
        """Newton steps until the certificate is good enough, the passes are spent, or rounding ends all progress.

        A covariance (one may be given to begin with) is updated after each step (Broyden, Fletcher, Goldfarb, Shanno)
        and reused as long as steps are short and shrink fast; else it is computed anew. Once MAX_IDLE_STEPS in a row
        have not halved the gap, or no step leads down, a gap that rounding may leave counts as solved.
        """
        dual, point, covariance, last, gap, idle = begun.dual, begun.point, begun.covariance, np.inf, np.inf, 0
        while True:
            imbalance = self.imbalance(point)
            before, gap, status = gap, self.penalty.gap(dual, imbalance), None
            idle = 0 if gap < before / 2 else idle + 1
            if self.penalty.solved(dual, imbalance, accuracy, idle >= MAX_IDLE_STEPS):
                status = "solved"
            elif self.passes >= max_passes:
                status = "passes spent"
            else:
                reused = covariance is not None
                covariance = self.covariance(point) if covariance is None else covariance
                step, slope = self._step(covariance, imbalance, dual)
                if reused and not -MAX_REUSE_SLOPE * last <= slope < 0:
                    covariance = self.covariance(point)
                    step, slope = self._step(covariance, imbalance, dual)
                if slope >= 0:
                    status = "solved" if self.penalty.solved(dual, imbalance, accuracy, True) else "stalled"
            if status is not None:
                return Solution(point, dual, gap, self.passes, status, covariance)
            trial, step = self._advanced(point, dual, step, slope, gap)
            assert covariance is not None
            short = float(step @ covariance @ step) <= MAX_REUSE_STEP**2
            covariance = bfgs_update(covariance, step, imbalance - self.imbalance(trial)) if short else None
            point, dual, last = trial, dual + step, abs(slope)

    def _step(self, covariance: Vector, imbalance: Vector, dual: Vector) -> tuple[Vector, float]:
        """The step to the minimum of the quadratic model, and the slope of the objective along it."""
        for damping in DAMPING:
            damped = covariance + damping * covariance.trace() / len(covariance) * np.eye(len(covariance))
            step = self.penalty.minimise(damped, imbalance, dual) - dual
            slope = self.penalty.slope(dual + 1e-9 * step, step) - float(imbalance @ step)
            if slope < 0:
                break
        return step, slope

    def _advanced(
        self, point: FamilyPoint, dual: Vector, step: Vector, slope: float, gap: float
    ) -> tuple[FamilyPoint, Vector]:
        """(the point after a step, the step), which is shortened where it overshoots or makes the gap diverge.

        It overshoots where it goes well past the minimum on its line, by more than rounding explains.
        """
        trial = self.at(dual + step)
        after = self.penalty.slope(dual + step, step) - float(self.imbalance(trial) @ step)
        past = after > 0.5 * abs(slope) + SLOPE_ROUNDING * float(abs(step).sum())
        rise = trial.smooth + self.penalty.value(dual + step) - (point.smooth + self.penalty.value(dual))
        if past or rise > 1e-12 * (1 + abs(point.smooth) + abs(point.offset)):
            step = step * self._search(point, dual, trial, step, slope)
            trial = self.at(dual + step)
        for _ in range(MAX_SHORTENINGS):
            if not self.penalty.diverging(gap, self.penalty.gap(dual + step, self.imbalance(trial))):
                break
            step = step * STEP_SHRINKAGE
            trial = self.at(dual + step)
        return trial, step

    def _search(self, point: FamilyPoint, dual: Vector, trial: FamilyPoint, change: Vector, before: float) -> float:
        """The length at which the convex objective stops falling along `change`, from (n,) vectors or by passes."""
        drift = float(self._untransformed(change) @ self.family.targets.numpy())
        low, high, low_slope, high_slope, length = 0.0, 1.0, before, np.inf, 0.5
        for _ in range(MAX_SEARCH_STEPS):
            self.passes += self.family.line_passes
            slope = point.slope_towards(trial, length) + drift + self.penalty.slope(dual + length * change, change)
            if abs(slope) <= 0.1 * abs(before):
                break
            if slope < 0:
                low, low_slope = length, slope
            else:
                high, high_slope = length, slope
            secant = low - low_slope * (high - low) / (high_slope - low_slope) if np.isfinite(high_slope) else 0.0
            inner = 0.1 * (high - low)
            length = min(max(secant, low + inner), high - inner) if np.isfinite(high_slope) else (low + high) / 2
        return length


def change_coordinates(transform: Vector, imbalance: Vector) -> Vector:
    """T'tau for a matrix or a diagonal T."""
    return transform * imbalance if transform.ndim == 1 else imbalance @ transform


def bfgs_update(covariance: Vector, change: Vector, difference: Vector) -> Vector:
    """B + yy'/(y's) - Bs s'B/(s'Bs): the covariance that also explains the last step (s: change, y: difference)."""
    curvature, image = float(change @ difference), covariance @ change
    if not curvature > 1e-10 * float(change @ image) > 1e-200:
        return covariance
    update = np.outer(difference, difference) / curvature - np.outer(image, image) / float(change @ image)
    return covariance + update
