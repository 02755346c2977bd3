"""Proximal Newton on the dual: log-partition function plus penalty, with a certificate at every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from counterpoise.penalties import Penalty, Vector
from counterpoise.tilting import Point, Tilting

FROZEN = 0.1  # a Newton decrement below which the covariance of the step before is near enough
SEARCH_STEPS = 40


@dataclass
class Solution:
    """Where the iteration stopped, and why."""

    point: Point
    dual: Vector  # in the problem's coordinates
    gap: float
    passes: int
    status: str


@dataclass
class DualProblem:
    """min over l of log sum_i q_i exp(-l'(h(x_i) - mu)) + penalty, in coordinates where the functions are like another.

    `transform` (J, R), or (J,) for a diagonal, gives those coordinates: T'h instead of h, with prices l = T dual.
    """

    tilting: Tilting
    penalty: Penalty
    transform: Vector
    passes: int = 0

    def at(self, dual: Vector) -> Point:
        """One pass over the rows."""
        self.passes += 1
        return self.tilting.at(torch.from_numpy(self._prices(dual)))

    def imbalance(self, point: Point) -> Vector:
        """The imbalance T'tau."""
        return change_coordinates(self.transform, point.imbalance.numpy())

    def covariance(self, point: Point) -> Vector:
        """The Hessian T' cov T; one pass."""
        self.passes += 1
        covariance, transform = point.covariance().numpy(), self.transform
        transformed: Vector = (
            covariance * np.outer(transform, transform) if transform.ndim == 1 else transform.T @ covariance @ transform
        )
        return transformed

    def _prices(self, dual: Vector) -> Vector:
        prices: Vector = self.transform * dual if self.transform.ndim == 1 else self.transform @ dual
        return prices

    def value(self, point: Point, dual: Vector) -> float:
        """The dual objective."""
        return point.smooth + self.penalty.value(dual)

    def solve(self, start: Vector, accuracy: float, max_passes: int) -> Solution:
        """Newton steps until the certificate is good enough, the passes are spent, or rounding ends all progress."""
        dual, point, covariance = start, self.at(start), None
        gap = self.penalty.gap(dual, self.imbalance(point))
        while True:
            imbalance = self.imbalance(point)
            if self.penalty.solved(dual, imbalance, accuracy):
                return Solution(point, dual, gap, self.passes, "solved")
            if self.passes >= max_passes:
                return Solution(point, dual, gap, self.passes, "passes spent")
            if covariance is None:
                covariance = self.covariance(point)
            target = self.penalty.minimise(covariance, imbalance, dual)
            change = target - dual
            before = self.penalty.slope(dual + 1e-9 * change, change) - float(imbalance @ change)
            if before >= 0:
                return Solution(point, dual, gap, self.passes, "stalled")
            trial = self.at(target)
            if self._overshoots(point, dual, trial, target, before):
                length = self._search(point, dual, trial, change, before)
                target = dual + length * change
                trial = self.at(target)
            decrement = max(0.0, float(change @ covariance @ change)) ** 0.5
            new_gap = self.penalty.gap(target, self.imbalance(trial))
            if decrement > FROZEN or new_gap > gap / 10:
                covariance = None
            point, dual, gap = trial, target, new_gap

    def _overshoots(self, point: Point, dual: Vector, trial: Point, target: Vector, before: float) -> bool:
        """Whether the full step goes well past the least value on its line."""
        change = target - dual
        after = self.penalty.slope(target, change) - float(self.imbalance(trial) @ change)
        rise = self.value(trial, target) - self.value(point, dual)
        return after > 0.5 * abs(before) or rise > 1e-12 * (1 + abs(point.smooth))

    def _search(self, point: Point, dual: Vector, trial: Point, change: Vector, before: float) -> float:
        """The length at which the convex objective stops falling along `change`; touches only (n,) vectors."""
        difference = trial.scores - point.scores
        drift = float(self._prices(change) @ self.tilting.targets.numpy())
        low, high, low_slope, high_slope, length = 0.0, 1.0, before, np.inf, 0.5
        for _ in range(SEARCH_STEPS):
            _, mean = self.tilting.line(point.scores + length * difference, difference)
            slope = mean + drift + self.penalty.slope(dual + length * change, change)
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
    changed: Vector = transform * imbalance if transform.ndim == 1 else imbalance @ transform
    return changed
