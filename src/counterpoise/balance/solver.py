"""Entropy balancing: the weights nearest to the base weights whose means match given targets. No recommender in sight.

    min over the simplex   KL(w || q) + sum_j gamma_j max(0, |tau_j(w)| - C_j),     tau_j = sum_i w_i h_j(x_i) - mu_j

solved by its dual in as many dimensions as there are functions, to a duality gap that is always reported.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.balance.arguments import (
    as_float64,
    as_rows,
    base_log_weights,
    each_function,
    finite_vector,
    positive_vector,
)
from counterpoise.balance.exponential_family import ExponentialFamily, InMemoryFamily
from counterpoise.balance.newton import DualProblem, Solution, change_coordinates
from counterpoise.balance.penalties import Hinge, Penalty, Quadratic, Vector, whitening
from counterpoise.balance.population import Rows, ShardedRows
from counterpoise.errors import ConfigError, ConvergenceWarning, DataError, check_number
from counterpoise.out_of_core.family import ShardedFamily
from counterpoise.threads import one_blas_thread, one_thread

# What balancing reached: the weights, and everything that certifies them.


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
    relaxed: NDArray[np.bool_]  # functions whose balance cost more than their strength
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
        relaxed, worst, worst_before = np.zeros(len(before), dtype=bool), None, None
        if isinstance(penalty, Hinge):
            excess = (abs(imbalance) - tolerance).clip(min=0)
            relaxed = (abs(solution.dual) >= penalty.bound * (1 - 1e-9)) & (excess * transform > 1e-9)
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
            relaxed=relaxed,
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
        return {"rows": len(self.weights)} | numbers | {"relaxed": np.flatnonzero(self.relaxed).tolist()} | vectors

    def __repr__(self) -> str:
        """Status, size and certificate."""
        lost = int(self.relaxed.sum())
        return (
            f"<BalanceResult: {self.status} in {self.passes} passes, {len(self.weights):,} weights, "
            f"{len(self.dual)} functions ({lost} given up), gap {self.gap:.1e}, violation {self.max_violation:.1e} SD>"
        )


SAMPLE_ROWS, SAMPLE_SHARE = 2**12, 16  # a sixteenth of the rows, solved first, leaves few passes over all of them

THREADS_PAY = 1 << 22  # values from which a second thread pays: it takes longer to change their number than to sum less
WELL_CONDITIONED = 1e3
SYMMETRIC = 1e-5


def entropy_balance(
    H: ArrayLike | Tensor | Rows | ShardedRows,
    targets: ArrayLike | Tensor,
    tolerance: ArrayLike = 0.0,
    strength: ArrayLike = np.inf,
    base_weights: ArrayLike | Tensor | None = None,
    max_weight: float | None = None,
    *,
    scale: ArrayLike | Tensor | None = None,
    accuracy: float = 1e-8,
    max_passes: int = 200,
) -> BalanceResult:
    """Weights (sum 1) on the rows of `H` (n, J) whose column means are within `tolerance` of `targets` (J,).

    `tolerance` (the paper's C) and `strength` (gamma) are numbers or one number for each function. A function whose
    balance would cost more than `strength` is given up, and the result says which and by how much; an infinite
    strength asks for hard constraints. The problem always has a solution.
    `base_weights` (n,) are where the weights start from (default: uniform); `max_weight` caps every weight.
    `scale` (J,): the standard deviations in which violations are reported; by default those under the base weights.
    Solved is a duality gap of at most `accuracy`. With hard constraints (infinite strengths only), these must hold to
    `accuracy` standard deviations, and the gap may be `accuracy` times 1 + the sum of their prices |l_j| (per standard
    deviation). Where steps no longer halve the gap, what float64 may leave of it counts as solved too: the sum over j
    of 1e-13 strength_j (standard deviation_j + |mean_j|), and 1e-9 of the penalty. Everything else warns.
    `H` may be a numpy array, a frame, a torch tensor on any device, `Rows` that are computed when needed, or
    `ShardedRows` that lie elsewhere; with these there is no cap, base weights are uniform, and weights stay in shards.
    """
    tilting = _tilting(H, targets, base_weights, max_weight)
    count = tilting.n_functions
    allowed = each_function("tolerance", tolerance, count)
    price = each_function("strength", strength, count, infinite=True)
    with one_thread(tilting.n_rows * count < THREADS_PAY):
        return _balance(tilting, allowed, price, None, scale, accuracy, max_passes, not _is_array(H))


def worst_case_balance(
    H: ArrayLike | Tensor | Rows | ShardedRows,
    targets: ArrayLike | Tensor,
    matrix: ArrayLike | Tensor,
    strength: float = 1.0,
    base_weights: ArrayLike | Tensor | None = None,
    max_weight: float | None = None,
    *,
    scale: ArrayLike | Tensor | None = None,
    accuracy: float = 1e-8,
    max_passes: int = 200,
) -> BalanceResult:
    """The least KL(w || q) + strength * v'A^-1 v over the simplex, v = tau(w), A the positive definite `matrix`.

    v'A^-1 v is the largest squared bias (v'alpha)^2 over all functions h'alpha with alpha'A alpha <= 1. With candidate
    kernels h, A = G + lambda K makes that the norm in L2 of the population plus an RKHS penalty; A = K is the MMD.
    Directions in which A has no measurable norm (eigenvalues up to 1e-12 of the largest) are left out, not balanced.
    The result carries `worst_case_bias`, the root of v'A^-1 v, before and after. Other arguments: `entropy_balance`.
    """
    check_number("strength", strength, above=0, advice="Small values keep the base weights.")
    tilting = _tilting(H, targets, base_weights, max_weight)
    count = tilting.n_functions
    square = as_float64(matrix, "matrix")
    if square.shape != (count, count) or not np.isfinite(square).all() or not _symmetric(square):
        raise DataError(f"`matrix` must be a finite symmetric ({count}, {count}) matrix, got shape {square.shape}.")
    nothing = np.zeros(count)
    problem = Quadratic(float(strength)), whitening(square)
    with one_thread(tilting.n_rows * count < THREADS_PAY):
        return _balance(tilting, nothing, nothing, problem, scale, accuracy, max_passes, not _is_array(H))


def _symmetric(matrix: Vector) -> bool:
    """Up to rounding in float32, relative to the largest value."""
    return bool(abs(matrix - matrix.T).max() <= SYMMETRIC * abs(matrix).max())


def _is_array(H: Any) -> bool:
    return not isinstance(H, Tensor | Rows | ShardedRows)


def _tilting(H: Any, targets: Any, base_weights: Any, max_weight: float | None) -> InMemoryFamily | ShardedFamily:
    if isinstance(H, ShardedRows):
        if base_weights is not None or max_weight is not None:
            raise ConfigError(
                "`base_weights` and `max_weight` need all rows in one place; leave them out for a log in shards."
            )
        return ShardedFamily(H, torch.from_numpy(finite_vector("targets", targets, H.n_functions)))
    rows = as_rows(H)
    mu = torch.from_numpy(finite_vector("targets", targets, rows.n_functions))
    if max_weight is not None:
        advice = f"No weights on {rows.n_rows} rows that sum to 1 stay below it."
        check_number("max_weight", max_weight, at_least=1 / rows.n_rows, advice=advice)
        max_weight = min(float(max_weight), 1.0)
    return InMemoryFamily(rows, mu, base_log_weights(base_weights, rows), max_weight)


def _balance(
    tilting: InMemoryFamily | ShardedFamily,
    tolerance: Vector,
    strength: Vector,
    quadratic: tuple[Quadratic, Vector] | None,
    scale: Any,
    accuracy: float,
    max_passes: int,
    as_tensor: bool,
) -> BalanceResult:
    """Measure, scale, solve, report: the way that both problems share."""
    check_number("accuracy", accuracy, above=0)
    check_number("max_passes", max_passes, at_least=1, integer=True)
    given_scale = None if scale is None else positive_vector("scale", scale, tilting.n_functions)
    mean, spread = (moment.numpy() for moment in tilting.base_moments())
    if not np.isfinite([mean, spread]).all():
        raise _bad_value(tilting.rows)
    before = mean - tilting.targets.numpy()
    unit = np.where(spread > 1e-12 * (1e-300 + abs(mean)), spread, 1.0)
    stuck = (spread <= 1e-12 * abs(mean)) & (abs(before) > tolerance + 1e-12 * abs(mean)) & np.isinf(strength)
    if stuck.any():
        names = np.flatnonzero(stuck).tolist()
        raise DataError(
            f"functions {names} are constant over the observed rows but not on target, so no weights can balance them. "
            "Drop them, or give them a finite `strength`."
        )
    penalty: Penalty
    if quadratic is None:
        penalty, transform = Hinge(tolerance / unit, strength * unit, 1 + abs(mean) / unit), 1 / unit
    else:
        penalty, transform = quadratic
    with one_blas_thread():
        start, covariance = _warm_start(tilting, penalty, transform)
        in_memory = isinstance(tilting, InMemoryFamily)  # in float32 the borders of shards would show
        rough = in_memory and covariance is not None and np.linalg.cond(covariance) < WELL_CONDITIONED
        problem = DualProblem(tilting, penalty, transform, passes=1, rough=rough)
        solution = problem.solve(start, accuracy, max_passes, covariance)
    reported = unit if given_scale is None else given_scale
    result = BalanceResult.of(solution, penalty, transform, reported, tolerance, strength, before, as_tensor)
    _warn(result, accuracy)
    return result


def _warm_start(tilting: ExponentialFamily, penalty: Penalty, transform: Vector) -> tuple[Vector, Vector | None]:
    """The solution and the covariance on a sample of the rows, which itself starts from a smaller sample.

    Nothing is lost where the sample cannot be balanced: zeros, and no covariance.
    """
    nothing = np.zeros(transform.shape[-1])
    size = tilting.n_rows // SAMPLE_SHARE
    if size < max(SAMPLE_ROWS, 50 * tilting.n_functions):
        return nothing, None
    sample = tilting.sample(size)
    start, covariance = _warm_start(sample, penalty, transform)
    solution = DualProblem(sample, penalty, transform).solve(start, 0.5 / sample.n_rows**0.5, 50, covariance)
    return (solution.dual, solution.covariance) if solution.status == "solved" else (nothing, None)


def _bad_value(rows: Rows | ShardedRows) -> DataError:
    """Where the first value is that is no number."""
    for part, values in rows.blocks() if isinstance(rows, Rows) else ():
        bad = ~values.isfinite()
        if bool(bad.any()):
            row, column = (int(index) for index in bad.nonzero()[0])
            value = float(values[row, column])
            return DataError(f"`H` must be finite, got {value} in row {part.start + row}, function {column}.")
    return DataError("`H` holds values too large to average. Scale its columns.")


def _warn(result: BalanceResult, accuracy: float) -> None:
    reached = f"duality gap {result.gap:.2e}, largest violation {result.max_violation:.2e} standard deviations"
    if result.status != "solved":
        message = (
            f"balancing stopped after {result.passes} passes ({result.status}) with {reached}, asked {accuracy:.0e}."
        )
        warnings.warn(message + " Raise `max_passes`, `tolerance` or `accuracy`.", ConvergenceWarning, stacklevel=4)
    elif (result.relaxed & np.isinf(result.strength)).any():
        names = np.flatnonzero(result.relaxed & np.isinf(result.strength)).tolist()
        message = f"no weights balance all functions: {names} were given up with {reached}."
        warnings.warn(
            message + " Use a finite `strength` to say what balance is worth.", ConvergenceWarning, stacklevel=4
        )
