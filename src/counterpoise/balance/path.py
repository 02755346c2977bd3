"""How strongly to balance: solutions along a path of strengths, up to the point that keeps enough of the sample.

A stronger penalty leaves less imbalance and a smaller effective sample. `balance_keeping` follows the path from equal
weights on, each solution from the one before, to the strongest that keeps a given share of the sample. What a random
sample is off by is left: by a tolerance, or, in the worst-case problem, by ending the path sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.exponential_family import Rows
from counterpoise.balance.functions import FittedFunctions
from counterpoise.balance.penalties import HINGE_STRENGTH, WORST_CASE_STRENGTH
from counterpoise.balance.population import Points, base_shares
from counterpoise.balance.selection import draw_rows
from counterpoise.balance.solver import BalanceResult

CHANCE_ERRORS = 2.0  # standard errors of a random sample's mean: imbalance within them is left as it is
FIRST_STRENGTH = 1e-6  # of the path, as a share of the strength that balances exactly; weights are equal there
MIN_STRENGTH = 1e-9  # of equal weights: the worst-case problem has none at 0
MAX_SOLUTIONS = 12  # along a path: the share is met to SHARE_ACCURACY in about five
MAX_STEP = math.log(100)  # from one strength to the next
BALANCED = 1e-9  # violation in standard deviations that counts as none
STRENGTH_ACCURACY = 0.2  # of the log of the strength
SHARE_ACCURACY = 0.05  # relative, of 1 / kept - 1: a sample that loses 2 % is found within 0.1 %
MAX_SEARCH_ROWS = 2**16  # rows that the path is followed on; a draw of as many where there are more


@dataclass(frozen=True)
class PathPoint:
    """A solution on the path: what its strength leaves of the imbalance and of the sample."""

    strength: float
    kept: float  # effective sample size, as a share of that of the base weights
    imbalance: float  # the largest |tau_j|, in standard deviations


@dataclass(frozen=True, eq=False)
class Path:
    """The chosen solution, and the points that led to it, by their strength."""

    result: BalanceResult
    strength: float
    tolerance: float
    points: list[PathPoint]


def chance_tolerance(rows: float) -> float:
    """2 / sqrt(rows): twice the standard error, in standard deviations, of a mean over so many rows of the population.

    What a random sample of the population is off by is no selection, and balancing it costs sample for nothing.
    """
    return CHANCE_ERRORS / math.sqrt(rows)


def balance_keeping(
    fitted: FittedFunctions,
    points: Points | Rows,
    kept: float,
    tolerance: float | None = None,
    base_weights: Any = None,
    generator: torch.Generator | None = None,
    log_rows: int | None = None,
) -> Path:
    """The strongest balance of the path whose effective sample size is at least `kept` of that of the base weights.

    `tolerance`: in standard deviations, by default that of chance. The worst-case problem has none: its path ends where
    the squared bias of the worst function is what it is in a random sample on average.
    `log_rows`: the rows that matter for chance, where these are a draw from more.
    """
    rows = points if isinstance(points, Rows) else fitted.rows(points).kept()
    base = base_shares(base_weights, rows.n_rows, rows.device)
    size = _size(base, rows.n_rows) if log_rows is None else log_rows
    allowed = chance_tolerance(size) if tolerance is None else tolerance
    search, search_base = rows, base
    if rows.n_rows > MAX_SEARCH_ROWS:
        drawn = draw_rows(rows, base, MAX_SEARCH_ROWS, generator or torch.Generator())
        search, search_base = rows.at(drawn).kept(), None
    path = _Search(fitted, search, search_base, allowed, kept, size)
    strength, result = path.run()
    if search is not rows:
        result = fitted.balance(rows, allowed, strength, base_weights=base, start=result.dual)
    return Path(result, strength, allowed, sorted(path.points, key=lambda point: point.strength))


def _size(shares: Tensor | None, rows: int) -> float:
    """The effective sample size of base weights."""
    return float(rows) if shares is None else effective_sample_size(shares.cpu().numpy())


class _Search:
    """Secant steps in log strength and log(1 / kept - 1), the inflation of the variance: nearly a line while weak."""

    def __init__(
        self, fitted: FittedFunctions, rows: Rows, base: Tensor | None, tolerance: float, kept: float, size: float
    ) -> None:
        self.fitted, self.rows, self.base, self.tolerance = fitted, rows, base, tolerance
        self.inflation = 1 / kept - 1
        self.base_size, self.points = _size(base, rows.n_rows), list[PathPoint]()
        self.largest = HINGE_STRENGTH if fitted.matrix is None else WORST_CASE_STRENGTH
        self.chance = None if fitted.worst_case_variance is None else fitted.worst_case_variance / size
        self.start: Any = None

    def solve(self, strength: float) -> tuple[BalanceResult, float]:
        """The solution, and log(1 / kept - 1) over that of the share to keep: above 0 it is too strong."""
        result = self.fitted.balance(self.rows, self.tolerance, strength, base_weights=self.base, start=self.start)
        kept = effective_sample_size(np.asarray(result.weights.cpu())) / self.base_size
        imbalance = float(abs(result.imbalance / result.scale).max())
        self.points.append(PathPoint(strength, min(kept, 1.0), imbalance))
        excess = math.log(max(1 / min(kept, 1.0) - 1, 1e-12) / max(self.inflation, 1e-12))
        if self.chance is not None and result.worst_case_bias is not None and result.worst_case_bias**2 < self.chance:
            excess = math.inf  # balanced as well as chance: too strong
        self.start = result.dual
        return result, excess

    def run(self) -> tuple[float, BalanceResult]:
        """The strength that was found, and its solution."""
        low, high = math.log(FIRST_STRENGTH * self.largest), math.log(self.largest)
        best, excess = self.solve(math.exp(low))
        if excess > 0:  # nothing to balance, or nothing of the sample may be lost
            return MIN_STRENGTH, self.solve(MIN_STRENGTH)[0]
        strength, bracketed, high_excess = low, False, math.inf
        for _ in range(MAX_SOLUTIONS):
            if not bracketed:  # the inflation grows with the square of a small strength
                step = min(high, low + min(max(-excess / 2, 0.05), MAX_STEP))
            elif math.isinf(high_excess):
                step = (low + high) / 2
            else:
                step = low + (high - low) * min(max(excess / (excess - high_excess), 0.1), 0.9)
            result, found = self.solve(math.exp(step))
            if found > 0:
                bracketed, high, high_excess = True, step, found
            else:
                best, strength, low, excess = result, step, step, found
                if self.fitted.matrix is None and result.max_violation <= BALANCED:
                    break  # a stronger penalty has nothing to act on
            if -excess < SHARE_ACCURACY or high - low < STRENGTH_ACCURACY:
                break
        return math.exp(strength), best
