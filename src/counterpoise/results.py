"""What balancing reached: the weights, and everything that certifies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.newton import Solution, change_coordinates
from counterpoise.penalties import Hinge, Penalty, Quadratic, Vector


@dataclass(frozen=True, eq=False)
class BalanceResult:
    """Weights on the observed rows with their certificate. Vectors have one value for each function.

    `weights`: (n,), sum 1; numpy, or a tensor on the device of the rows where those came as a tensor.
    `dual`: the price l of each function; w(x) ~ q(x) exp(-dual'h(x)), so that new rows can be weighted.
    `gap`: the objective is at most this far above the least possible one.
    """

    weights: Any
    dual: Vector
    gap: float
    objective: float
    divergence: float  # KL(w || q)
    imbalance: Vector  # tau: weighted mean minus target
    imbalance_before: Vector  # the same under the base weights
    scale: Vector  # the standard deviations in which violations are reported
    tolerance: Vector
    strength: Vector
    given_up: NDArray[np.bool_]  # functions whose balance cost more than their strength
    offset: float  # log w(x) = log q(x) - dual'h(x) - offset
    passes: int
    status: str  # "solved", "passes spent" or "stalled"
    worst_case_bias: float | None = None
    worst_case_bias_before: float | None = None

    @property
    def violation(self) -> Vector:
        """max(0, |tau_j| - C_j)."""
        return (abs(self.imbalance) - self.tolerance).clip(min=0)

    @property
    def violation_sd(self) -> Vector:
        """The violation in standard deviations of each function."""
        return self.violation / self.scale

    @property
    def max_violation(self) -> float:
        """The largest violation in standard deviations."""
        return float(self.violation_sd.max())

    @classmethod
    def of(
        cls,
        solution: Solution,
        penalty: Penalty,
        transform: Vector,
        scale: Vector,
        tolerance: Vector,
        strength: Vector,
        before: Vector,
        as_tensor: bool,
    ) -> BalanceResult:
        """From what the solver reached in the coordinates of `transform`."""
        point, tilting = solution.point, solution.point.tilting
        weights, log_base = point.weights, tilting.log_base
        if log_base is not None:
            weights = weights.masked_fill(log_base < np.log(1e-299), 0.0)
        imbalance = point.imbalance.numpy()
        divergence = -point.smooth - float(point.dual.numpy() @ imbalance)
        given_up, worst, worst_before = np.zeros(len(before), dtype=bool), None, None
        if isinstance(penalty, Hinge):
            excess = (abs(imbalance) - tolerance).clip(min=0)
            given_up = (abs(solution.dual) >= penalty.bound * (1 - 1e-9)) & (excess * transform > 1e-9)
            soft = np.isfinite(strength)
            cost = float(strength[soft] @ excess[soft])
        elif isinstance(penalty, Quadratic):
            worst, worst_before = (float(np.linalg.norm(change_coordinates(transform, v))) for v in (imbalance, before))
            cost = penalty.strength * worst**2
        return cls(
            weights=weights if as_tensor else weights.cpu().numpy(),
            dual=point.dual.numpy(),
            gap=solution.gap,
            objective=divergence + cost,
            divergence=divergence,
            imbalance=imbalance,
            imbalance_before=before,
            scale=scale,
            tolerance=tolerance,
            strength=strength,
            given_up=given_up,
            offset=point.offset,
            passes=solution.passes,
            status=solution.status,
            worst_case_bias=worst,
            worst_case_bias_before=worst_before,
        )

    def to_dict(self) -> dict[str, Any]:
        """The certificate as JSON-able values, without the weights."""
        vectors = {
            name: getattr(self, name).tolist()
            for name in ("dual", "imbalance", "imbalance_before", "scale", "violation", "violation_sd")
        }
        numbers = {
            name: getattr(self, name)
            for name in ("gap", "objective", "divergence", "passes", "status", "max_violation", "worst_case_bias")
        }
        return {"rows": len(self.weights)} | numbers | {"given_up": np.flatnonzero(self.given_up).tolist()} | vectors

    def __repr__(self) -> str:
        """Status, size and certificate."""
        lost = int(self.given_up.sum())
        return (
            f"<BalanceResult: {self.status} in {self.passes} passes, {len(self.weights):,} weights, "
            f"{len(self.dual)} functions ({lost} given up), gap {self.gap:.1e}, violation {self.max_violation:.1e} SD>"
        )
