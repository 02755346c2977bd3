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

from counterpoise.balance.exponential_family import ExponentialFamily, FunctionRows, matrix_rows
from counterpoise.balance.newton import DualProblem, Solution, change_coordinates
from counterpoise.balance.penalties import Hinge, Penalty, Quadratic, Vector, whitening
from counterpoise.balance.population import as_float64, as_matrix, base_shares
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import ConfigError, ConvergenceWarning, DataError, check_number
from counterpoise.threads import one_blas_thread, one_thread

SAMPLE_DIVISOR = 16  # a sixteenth of the rows, solved first, leaves few passes over all of them (benchmarks/solver.py)
MIN_SAMPLE_ROWS = 2**12  # a smaller sample saves no time
MIN_ROWS_PER_FUNCTION = 50  # in a sample: with fewer its solution is far from that of all rows
SAMPLE_MAX_PASSES = 50
MAX_SHOWN = 10  # functions in a notebook
MIN_THREADED_VALUES = 1 << 22  # rows x functions: below, changing the number of threads takes longer than it saves
MAX_FLOAT32_CONDITION = 1e3  # condition number of a covariance up to which float32 is enough for a Newton step
MAX_ASYMMETRY = 1e-5  # of a matrix, relative to its largest value: rounding in float32
CONSTANT_SHARE = 1e-12  # a standard deviation below this share of the mean is rounding: the function is constant


class ConstantFunctions(DataError):
    """Functions, by their `places`, that no weights can bring to their targets."""

    def __init__(self, places: list[int], names: list[str] | None = None) -> None:
        self.places = places
        listed = ", ".join(str(place if names is None else names[place]) for place in places[:MAX_SHOWN])
        listed += f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
        super().__init__(
            f"functions [{listed}] are constant over the observed rows but not on target, so no weights can balance "
            "them. Drop them, or give them a finite `strength`."
        )


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
        numbers = ("gap", "objective", "divergence", "passes", "status", "max_violation", "worst_case_bias")
        vectors = ("dual", "imbalance", "imbalance_before", "scale", "violation", "violation_sd")
        return (
            {"rows": len(self.weights)}
            | {name: getattr(self, name) for name in numbers}
            | {"relaxed": np.flatnonzero(self.relaxed).tolist()}
            | {name: getattr(self, name).tolist() for name in vectors}
        )

    def _repr_html_(self) -> str:
        """For notebooks: the certificate, and the functions with the largest imbalance."""
        before, after = abs(self.imbalance_before) / self.scale, abs(self.imbalance) / self.scale
        order = np.argsort(-before, kind="stable")[:MAX_SHOWN]
        columns = (order + 1, before[order], after[order], self.relaxed[order])
        values = zip(*(column.tolist() for column in columns), strict=True)
        rows = [[f"h{j}", x, y, "relaxed" if free else ""] for j, x, y, free in values]
        facts: dict[str, Any] = {"status": f"{self.status} in {self.passes} passes", "duality gap": f"{self.gap:.1e}"}
        facts |= {"rows": len(self.weights), "functions": len(self.dual), "relaxed": int(self.relaxed.sum())}
        head = ["function", "imbalance before (SD)", "after (SD)", ""]
        return notebook_html("BalanceResult", facts, [head, *rows])

    def __repr__(self) -> str:
        return (
            f"<BalanceResult: {self.status} in {self.passes} passes, {len(self.weights):,} weights, "
            f"{len(self.dual)} functions ({self.relaxed.sum()} relaxed), gap {self.gap:.1e}, "
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
    start: ArrayLike | None = None,
    accuracy: float = 1e-8,
    max_passes: int = 200,
) -> BalanceResult:
    """Weights (sum 1) on the rows of `H` (n, J) whose column means are within `tolerance` of `targets` (J,).

    `tolerance` (the paper's C) and `strength` (gamma) are numbers or one number for each function, in its own units. A
    function whose dual value would exceed its `strength` is relaxed: it stays out of balance, and the result says which
    and by how much. An infinite strength asks for hard constraints. The problem always has a solution.
    `base_weights` (n,) are where the weights start from (default: uniform); `max_weight` caps every weight.
    `scale` (J,): the standard deviations in which violations are reported; by default those under the base weights.
    `start` (J,): dual values to begin from, as those of a neighbouring problem; the solution does not depend on them.
    Solved means a duality gap of at most `accuracy`. With hard constraints (infinite strengths only), these must hold
    to `accuracy` standard deviations, and the gap may be `accuracy` times 1 + the sum of their |l_j| (per standard
    deviation). Where steps no longer halve the gap, what float64 may leave of it counts as solved too: the sum over j
    of 1e-13 strength_j (standard deviation_j + |mean_j|), and 1e-9 of the penalty. Everything else warns.
    `H` may be a numpy array, a frame, a torch tensor on any device, or `FunctionRows`: `Rows` that are computed when
    needed, or rows in shards; with these there is no cap, base weights are uniform, and weights stay in shards.
    """
    family = _family(H, targets, base_weights, max_weight)
    count = family.rows.n_functions
    allowed = _of_each("tolerance", tolerance, count)
    limits = _of_each("strength", strength, count, infinite=True)
    with one_thread(family.rows.n_rows * count < MIN_THREADED_VALUES):
        return _balance(H, family, allowed, limits, None, scale, start, accuracy, max_passes)


def worst_case_balance(
    H: ArrayLike | Tensor | FunctionRows,
    targets: ArrayLike | Tensor,
    matrix: ArrayLike | Tensor,
    strength: float = 1.0,
    base_weights: ArrayLike | Tensor | None = None,
    max_weight: float | None = None,
    *,
    scale: ArrayLike | Tensor | None = None,
    start: ArrayLike | None = None,
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
    finite = square.shape == (count, count) and np.isfinite(square).all()
    if not finite or abs(square - square.T).max() > MAX_ASYMMETRY * abs(square).max():
        raise DataError(f"`matrix` must be a finite symmetric ({count}, {count}) matrix, got shape {square.shape}.")
    unused = np.zeros(count)
    quadratic = Quadratic(float(strength)), whitening(square)
    with one_thread(family.rows.n_rows * count < MIN_THREADED_VALUES):
        return _balance(H, family, unused, unused, quadratic, scale, start, accuracy, max_passes)


def _family(H: Any, targets: Any, base_weights: Any, max_weight: float | None) -> ExponentialFamily:
    """The checked problem; a base weight of 0 counts as 1e-300, so that logarithms stay finite."""
    rows = H if isinstance(H, FunctionRows) else matrix_rows(as_matrix("H", H))
    if rows.n_rows == 0:
        raise DataError("`H` must have at least one row, got none: there is nothing to weight.")
    if rows.n_functions == 0:
        raise DataError("`H` must have at least one column, got none: there is nothing to balance.")
    mu = torch.from_numpy(_finite("targets", targets, rows.n_functions))
    if max_weight is not None:
        advice = f"No weights on {rows.n_rows} rows that sum to 1 stay below it."
        check_number("max_weight", max_weight, at_least=1 / rows.n_rows, advice=advice)
        max_weight = min(float(max_weight), 1.0)
    shares = base_shares(base_weights, rows.n_rows, rows.device)
    return rows.family(mu, None if shares is None else shares.clamp(min=1e-300).log(), max_weight)


def _finite(name: str, values: Any, count: int, positive: bool = False) -> Vector:
    """(count,) finite numbers, above 0 if `positive`."""
    vector = as_float64(values, name)
    if vector.shape != (count,):
        raise DataError(f"`{name}` must have one value for each of the {count} functions, got shape {vector.shape}.")
    for bad, rule in ((~np.isfinite(vector), "finite"), ((vector <= 0) & positive, "> 0")):
        if bad.any():
            raise DataError(f"`{name}` must be {rule}, got {vector[bad][0]} for function {bad.argmax()}.")
    return vector


def _of_each(name: str, values: Any, count: int, infinite: bool = False) -> Vector:
    """A number >= 0, or one for each function, as (count,)."""
    vector = as_float64(values, name, ConfigError)
    if vector.shape not in ((), (count,)):
        raise ConfigError(f"`{name}` must be a number or {count} numbers, got shape {vector.shape}.")
    bad = vector[np.isnan(vector) | (vector < 0) | (np.isinf(vector) & (not infinite))]
    if len(bad):
        rule = ">= 0" if infinite else ">= 0 and finite"
        raise ConfigError(f"`{name}` must be {rule}, got {bad[0]}. Use strength=0 to switch a function off.")
    return np.broadcast_to(vector, (count,)).copy()


def _balance(
    H: Any,
    family: ExponentialFamily,
    tolerance: Vector,
    strength: Vector,
    quadratic: tuple[Quadratic, Vector] | None,
    scale: Any,
    start: Any,
    accuracy: float,
    max_passes: int,
) -> BalanceResult:
    """Measure, scale, solve and report. `quadratic`: penalty and whitening of the worst case; None for the hinge."""
    check_number("accuracy", accuracy, above=0)
    check_number("max_passes", max_passes, at_least=1, integer=True)
    given_scale = None if scale is None else _finite("scale", scale, family.rows.n_functions, positive=True)
    mean, spread = _finite_moments(family)
    before = mean - family.targets.numpy()
    unit = np.where(spread > CONSTANT_SHARE * (1e-300 + abs(mean)), spread, 1.0)
    rounding = CONSTANT_SHARE * abs(mean)
    stuck = (spread <= rounding) & (abs(before) > tolerance + rounding) & np.isinf(strength)
    if stuck.any():
        raise ConstantFunctions(np.flatnonzero(stuck).tolist())
    penalty: Penalty
    if quadratic is None:
        penalty, transform = Hinge(tolerance / unit, strength * unit, 1 + abs(mean) / unit), 1 / unit
    else:
        penalty, transform = quadratic
    with one_blas_thread():
        begin = None if start is None else _in_coordinates(_finite("start", start, len(before)), penalty, transform)
        solution = _solve(family, penalty, transform, begin, accuracy, max_passes)
    point = solution.point
    weights, imbalance = point.final_weights, point.imbalance.numpy()
    divergence = -point.smooth - float(point.dual.numpy() @ imbalance)
    worst = worst_before = None
    if isinstance(penalty, Hinge):
        excess, soft = (abs(imbalance) - tolerance).clip(min=0), np.isfinite(strength)
        relaxed = (abs(solution.dual) >= penalty.bound * (1 - 1e-9)) & (excess * transform > 1e-9)
        objective = divergence + float(strength[soft] @ excess[soft])
    else:
        assert isinstance(penalty, Quadratic)
        worst, worst_before = (float(np.linalg.norm(change_coordinates(transform, v))) for v in (imbalance, before))
        relaxed = np.zeros(len(before), dtype=bool)
        objective = divergence + penalty.strength * worst**2
    result = BalanceResult(
        weights=weights if isinstance(H, Tensor | FunctionRows) else weights.cpu().numpy(),
        dual=point.dual.numpy(),
        gap=solution.gap,
        objective=objective,
        divergence=divergence,
        imbalance=imbalance,
        imbalance_before=before,
        scale=unit if given_scale is None else given_scale,
        tolerance=tolerance,
        strength=strength,
        relaxed=relaxed,
        offset=point.offset,
        passes=solution.passes,
        status=solution.status,
        worst_case_bias=worst,
        worst_case_bias_before=worst_before,
    )
    _warn(result, accuracy)
    return result


def _finite_moments(family: ExponentialFamily) -> tuple[Vector, Vector]:
    """(mean, standard deviation) of every function under the base weights; an error names what is not finite."""
    mean, spread = (moment.numpy() for moment in family.base_moments())
    if not np.isfinite([mean, spread]).all():
        found = family.rows.invalid_value()
        if found is None:
            raise DataError("`H` holds values too large to average. Scale its columns.")
        raise DataError(f"`H` must be finite, got {found[2]} in row {found[0]}, function {found[1]}.")
    return mean, spread


def _solve(
    family: ExponentialFamily,
    penalty: Penalty,
    transform: Vector,
    start: Vector | None,
    accuracy: float,
    max_passes: int,
) -> Solution:
    """The solution of the dual problem, from `start` or from that of a sample of the rows."""
    start, covariance = _warm_start(family, penalty, transform) if start is None else (start, None)
    well_conditioned = covariance is not None and np.linalg.cond(covariance) < MAX_FLOAT32_CONDITION
    float32 = family.float32_covariance and well_conditioned
    problem = DualProblem(family, penalty, transform, passes=1, float32=float32)
    return problem.solve(start, accuracy, max_passes, covariance)


def _in_coordinates(dual: Vector, penalty: Penalty, transform: Vector) -> Vector:
    """The problem's coordinates of dual values l = T dual, inside the box of the hinge."""
    if transform.ndim == 2:
        return np.asarray(np.linalg.lstsq(transform, dual, rcond=None)[0], dtype=np.float64)
    bound = penalty.bound if isinstance(penalty, Hinge) else np.inf
    return np.clip(dual / transform, -bound, bound)


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
            " Give a finite `strength`, the penalty of imbalance, to relax functions in order."
        )
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=4)
