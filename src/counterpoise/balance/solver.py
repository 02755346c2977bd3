"""Entropy balancing: the weights nearest to the base weights whose means match given targets.

    min over the simplex   KL(w || q) + sum_j gamma_j max(0, |tau_j(w)| - C_j),     tau_j = sum_i w_i h_j(x_i) - mu_j

solved by its dual in as many dimensions as there are functions, to a duality gap that is always reported. Start with
`entropy_balance`; `_balance` is the way that it shares with `worst_case_balance`.
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
from counterpoise.balance.exponential_family import ExponentialFamily, FunctionRows
from counterpoise.balance.newton import DualProblem, Solution, change_coordinates
from counterpoise.balance.penalties import Hinge, Penalty, Quadratic, Vector, whitening
from counterpoise.errors import ConvergenceWarning, DataError, check_number
from counterpoise.threads import one_blas_thread, one_thread

SAMPLE_DIVISOR = 16  # a sixteenth of the rows, solved first, leaves few passes over all of them (benchmarks/solver.py)
MIN_SAMPLE_ROWS = 2**12  # a smaller sample saves no time
MIN_ROWS_PER_FUNCTION = 50  # in a sample: with fewer its solution is far from that of all rows
SAMPLE_MAX_PASSES = 50
MIN_THREADED_VALUES = 1 << 22  # rows x functions: below, changing the number of threads takes longer than it saves
MAX_FLOAT32_CONDITION = 1e3  # condition number of a covariance up to which float32 is enough for a Newton step
MAX_ASYMMETRY = 1e-5  # of a matrix, relative to its largest value: rounding in float32
CONSTANT_SHARE = 1e-12  # a standard deviation below this share of the mean is rounding: the function is constant


@dataclass(frozen=True, eq=False)
class BalanceResult:
    """Weights on the observed rows with their certificate. Vectors have one value for each function.

    `weights`: (n,), sum 1; numpy, or a tensor on the device of the rows where those came as a tensor.
    `dual`: the dual values l; w(x) ~ q(x) exp(-dual'h(x)), so that new rows can be weighted.
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
    relaxed: NDArray[np.bool_]  # functions left out of balance because their dual value reached their strength
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
        relaxed = int(self.relaxed.sum())
        return (
            f"<BalanceResult: {self.status} in {self.passes} passes, {len(self.weights):,} weights, "
            f"{len(self.dual)} functions ({relaxed} relaxed), gap {self.gap:.1e}, "
            f"violation {self.max_violation:.1e} SD>"
        )


def entropy_balance(
    H: ArrayLike | Tensor | FunctionRows,
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

    `tolerance` (the paper's C) and `strength` (gamma) are numbers or one number for each function, in its own units. A
    function whose dual value would exceed its `strength` is relaxed: it stays out of balance, and the result says which
    and by how much. An infinite strength asks for hard constraints. The problem always has a solution.
    `base_weights` (n,) are where the weights start from (default: uniform); `max_weight` caps every weight.
    `scale` (J,): the standard deviations in which violations are reported; by default those under the base weights.
    Solved means a duality gap of at most `accuracy`. With hard constraints (infinite strengths only), these must hold
    to `accuracy` standard deviations, and the gap may be `accuracy` times 1 + the sum of their |l_j| (per standard
    deviation). Where steps no longer halve the gap, what float64 may leave of it counts as solved too: the sum over j
    of 1e-13 strength_j (standard deviation_j + |mean_j|), and 1e-9 of the penalty. Everything else warns.
    `H` may be a numpy array, a frame, a torch tensor on any device, or `FunctionRows`: `Rows` that are computed when
    needed, or rows in shards; with these there is no cap, base weights are uniform, and weights stay in shards.
    """
    family = _family(H, targets, base_weights, max_weight)
    count = family.rows.n_functions
    allowed = each_function("tolerance", tolerance, count)
    limits = each_function("strength", strength, count, infinite=True)
    with one_thread(family.rows.n_rows * count < MIN_THREADED_VALUES):
        return _balance(family, allowed, limits, None, scale, accuracy, max_passes, not _is_array(H))


def worst_case_balance(
    H: ArrayLike | Tensor | FunctionRows,
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
    family = _family(H, targets, base_weights, max_weight)
    count = family.rows.n_functions
    square = as_float64(matrix, "matrix")
    if square.shape != (count, count) or not np.isfinite(square).all() or not _symmetric(square):
        raise DataError(f"`matrix` must be a finite symmetric ({count}, {count}) matrix, got shape {square.shape}.")
    unused = np.zeros(count)
    quadratic = Quadratic(float(strength)), whitening(square)
    with one_thread(family.rows.n_rows * count < MIN_THREADED_VALUES):
        return _balance(family, unused, unused, quadratic, scale, accuracy, max_passes, not _is_array(H))


def _symmetric(matrix: Vector) -> bool:
    return bool(abs(matrix - matrix.T).max() <= MAX_ASYMMETRY * abs(matrix).max())


def _is_array(H: Any) -> bool:
    return not isinstance(H, Tensor | FunctionRows)


def _family(H: Any, targets: Any, base_weights: Any, max_weight: float | None) -> ExponentialFamily:
    rows = as_rows(H)
    mu = torch.from_numpy(finite_vector("targets", targets, rows.n_functions))
    if max_weight is not None:
        advice = f"No weights on {rows.n_rows} rows that sum to 1 stay below it."
        check_number("max_weight", max_weight, at_least=1 / rows.n_rows, advice=advice)
        max_weight = min(float(max_weight), 1.0)
    return rows.family(mu, base_log_weights(base_weights, rows), max_weight)


def _balance(
    family: ExponentialFamily,
    tolerance: Vector,
    strength: Vector,
    quadratic: tuple[Quadratic, Vector] | None,
    scale: Any,
    accuracy: float,
    max_passes: int,
    as_tensor: bool,
) -> BalanceResult:
    """Measure, scale, solve and report. `quadratic`: penalty and whitening of the worst case; None for the hinge."""
    check_number("accuracy", accuracy, above=0)
    check_number("max_passes", max_passes, at_least=1, integer=True)
    given_scale = None if scale is None else positive_vector("scale", scale, family.rows.n_functions)
    mean, spread = (moment.numpy() for moment in family.base_moments())
    if not np.isfinite([mean, spread]).all():
        raise _invalid_value(family.rows)
    before = mean - family.targets.numpy()
    unit = np.where(spread > CONSTANT_SHARE * (1e-300 + abs(mean)), spread, 1.0)
    rounding = CONSTANT_SHARE * abs(mean)
    stuck = (spread <= rounding) & (abs(before) > tolerance + rounding) & np.isinf(strength)
    if stuck.any():
        raise DataError(
            f"functions {np.flatnonzero(stuck).tolist()} are constant over the observed rows but not on target, so no "
            "weights can balance them. Drop them, or give them a finite `strength`."
        )
    penalty: Penalty
    if quadratic is None:
        penalty, transform = Hinge(tolerance / unit, strength * unit, 1 + abs(mean) / unit), 1 / unit
    else:
        penalty, transform = quadratic
    with one_blas_thread():
        start, covariance = _warm_start(family, penalty, transform)
        well_conditioned = covariance is not None and np.linalg.cond(covariance) < MAX_FLOAT32_CONDITION
        float32 = family.float32_covariance and well_conditioned
        problem = DualProblem(family, penalty, transform, passes=1, float32=float32)
        solution = problem.solve(start, accuracy, max_passes, covariance)
    weights = solution.point.final_weights
    result = BalanceResult(
        weights=weights if as_tensor else weights.cpu().numpy(),
        dual=solution.point.dual.numpy(),
        gap=solution.gap,
        imbalance=solution.point.imbalance.numpy(),
        imbalance_before=before,
        scale=unit if given_scale is None else given_scale,
        tolerance=tolerance,
        strength=strength,
        offset=solution.point.offset,
        passes=solution.passes,
        status=solution.status,
        **_objective(solution, penalty, transform, before, tolerance, strength),
    )
    _warn(result, accuracy)
    return result


def _warm_start(family: ExponentialFamily, penalty: Penalty, transform: Vector) -> tuple[Vector, Vector | None]:
    """(dual, covariance) solved on a sample of the rows, which itself starts from a smaller sample.

    Zeros and no covariance where there are too few rows, or where the sample cannot be balanced.
    """
    cold = np.zeros(transform.shape[-1])
    size = family.rows.n_rows // SAMPLE_DIVISOR
    if size < max(MIN_SAMPLE_ROWS, MIN_ROWS_PER_FUNCTION * family.rows.n_functions):
        return cold, None
    sample = family.sample(size)
    start, covariance = _warm_start(sample, penalty, transform)
    accuracy = 0.5 / sample.rows.n_rows**0.5  # the sampling error of its means
    solution = DualProblem(sample, penalty, transform).solve(start, accuracy, SAMPLE_MAX_PASSES, covariance)
    return (solution.dual, solution.covariance) if solution.status == "solved" else (cold, None)


def _objective(
    solution: Solution, penalty: Penalty, transform: Vector, before: Vector, tolerance: Vector, strength: Vector
) -> dict[str, Any]:
    """Divergence, objective, relaxed functions and the worst-case bias, in the units of the functions."""
    point = solution.point
    imbalance = point.imbalance.numpy()
    divergence = -point.smooth - float(point.dual.numpy() @ imbalance)
    if isinstance(penalty, Hinge):
        excess = (abs(imbalance) - tolerance).clip(min=0)
        soft = np.isfinite(strength)
        return {
            "divergence": divergence,
            "objective": divergence + float(strength[soft] @ excess[soft]),
            "relaxed": (abs(solution.dual) >= penalty.bound * (1 - 1e-9)) & (excess * transform > 1e-9),
        }
    assert isinstance(penalty, Quadratic)
    worst, worst_before = (float(np.linalg.norm(change_coordinates(transform, v))) for v in (imbalance, before))
    return {
        "divergence": divergence,
        "objective": divergence + penalty.strength * worst**2,
        "relaxed": np.zeros(len(before), dtype=bool),
        "worst_case_bias": worst,
        "worst_case_bias_before": worst_before,
    }


def _invalid_value(rows: FunctionRows) -> DataError:
    found = rows.invalid_value()
    if found is None:
        return DataError("`H` holds values too large to average. Scale its columns.")
    row, column, value = found
    return DataError(f"`H` must be finite, got {value} in row {row}, function {column}.")


def _warn(result: BalanceResult, accuracy: float) -> None:
    reached = f"duality gap {result.gap:.2e}, largest violation {result.max_violation:.2e} standard deviations"
    infeasible = np.flatnonzero(result.relaxed & np.isinf(result.strength)).tolist()
    if result.status != "solved":
        message = (
            f"balancing stopped after {result.passes} passes ({result.status}) with {reached}, asked {accuracy:.0e}."
            " Raise `max_passes`, `tolerance` or `accuracy`."
        )
    elif infeasible:
        message = (
            f"no weights balance all functions: {infeasible} were relaxed with {reached}."
            " Use a finite `strength` to bound what balance may cost."
        )
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=4)
