"""The paper's generalization bounds (Theorem 2), term by term.

`GeneralizationBound` is the formula; `predictor_bound` measures its constants for a predictor, with `predictor_norm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from counterpoise.balance.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.balance.penalties import whitening
from counterpoise.balance.population import ObservedPairs, Pairs, as_float64, kernel_rows
from counterpoise.balance.selection import combination, ridge_coefficients
from counterpoise.errors import ConfigError, DataError, check_flag, check_number

Codes = NDArray[np.int64]
PairValues = Callable[[Codes, Codes], Any] | Any  # of (user codes, item codes), or a |U| x |I| table

MAX_INTERPOLATED_PAIRS = 2_000  # up to this many pairs, D is interpolated; beyond, a regression on centres
MAX_ENUMERATED_PAIRS = 200_000  # beyond, means over D are means over so many uniform pairs
LOG_LOSS_LIPSCHITZ = 1.0  # |d loss / d logit| = |sigmoid(f) - r| <= 1
LOG_LOSS_AT_ZERO = math.log(2)  # log(1 + e^0), for both labels


@dataclass(frozen=True)
class PredictorNorm:
    """The norm of a function g in the kernel's space that stands for the predictor f, and how far g is from f."""

    norm: float
    interpolated: bool  # g is the function of least norm through f on all of D; else a regression on centres
    n_pairs: int
    n_centres: int
    n_measured: int  # pairs over which the residual f - g is taken: all of D, or a uniform sample
    residual_mean: float  # mean over D of |f - g|
    residual_rms: float
    residual_max: float
    residual_weighted: float | None = None  # (1/|D|) sum over O of w |f - g|; None without observed pairs


@dataclass(frozen=True, kw_only=True)
class GeneralizationBound:
    """Theorem 2 as printed, with everything it is made of; `value`, the bound, is the sum of `terms`.

    With probability 1 - eta, for f in the ball of radius M of the kernel's space,

        ideal <= KBIPS + |Bias| + 2 C L M B / sqrt(|D|) + 5 C (E0 + L M B) sqrt(log(4 / eta) / (2 |D|))
        ideal <= KBDR  + |Bias| + (1 + 2 C) (2 L M B / sqrt(|D|) + 5 (E0 + L M B) sqrt(log(4 / eta) / (2 |D|)))

    `risk`: (1/|D|) sum over O of w e, or the doubly robust risk (1/|D|) sum over D of [imputed + o w (e - imputed)].
    `bias`: risk - ideal loss; its absolute value counts. The paper defines Bias as a square and uses it unsquared.
    `largest_weight`: C, of weights that sum to |D| over the log: |D| times the largest simplex weight, or ratio /
    density. It is at least 1 / density. (In the balancing problem the paper's C is the tolerance, another thing, and
    its weights sum to 1 there; only the scale used here makes KBIPS an estimate of the ideal loss.)
    `norm`: M. `kernel_bound`: B, the largest sqrt k(x, x); 1 for our kernels. `lipschitz`: L, of the loss in the
    prediction; `error_at_zero`: E0, the largest loss of the prediction 0. The defaults are those of the log loss of a
    logit. `eta`: the probability that the bound fails.

    `residual`, `weighted_residual`: a predictor f is rarely in the space, only near some g that is. The mean a over D
    of |f - g| and the weighted mean b = (1/|D|) sum over O of w |f - g| change the ideal loss by at most L a, the risk
    by L b (the imputed errors stay), and so |risk - ideal| by L (a + b). The theorem for g then bounds f with
    2 L (a + b) added: the term `approximation`. (For the bias of the expected risk one of the two b is an expectation.)

    What we found in the proof:
    - With the bias of the sample at hand, as the paper defines it, risk + |bias| alone is at least the ideal loss,
      always. The other terms have a meaning only if Bias is that of the expected risk, as the first line of the proof
      has it; its last lines put one for the other.
    - The weights must be fixed before O is drawn: with weights solved from the log one pair changes all of them, and
      with AKB they change with f too, so that neither the differences of McDiarmid's inequality nor the contraction
      hold as stated. Likewise M and C should be fixed beforehand; measured ones are plugged in.
    - The pairs of D share users and items and are not independent draws; given features and labels, whether each is
      observed may be, and that suffices. The doubly robust bound also asks for imputed errors in [0, E0 + L M B].
    - The constants are right and loose. The complexity is bounded for every sample, so nothing is gained by going from
      its expectation to the sample and back: 1 and log(1 / eta) could stand for 5 and log(4 / eta). With imputed
      errors that do not depend on f, C could stand for 1 + 2 C in the complexity.
    """

    risk: float
    bias: float
    largest_weight: float
    norm: float
    n_pairs: int
    kernel_bound: float = 1.0
    lipschitz: float = LOG_LOSS_LIPSCHITZ
    error_at_zero: float = LOG_LOSS_AT_ZERO
    eta: float = 0.05
    doubly_robust: bool = False
    residual: float = 0.0
    weighted_residual: float = 0.0
    predictor: PredictorNorm | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for constants outside their range; keep the others as Python's own numbers."""
        check_number("risk", self.risk)
        check_number("bias", self.bias)
        advice = "It is |D| times the largest weight of a log whose weights sum to 1."
        check_number("largest_weight", self.largest_weight, at_least=1, advice=advice)
        check_number("n_pairs", self.n_pairs, at_least=1, integer=True)
        check_number("kernel_bound", self.kernel_bound, above=0)
        check_number("lipschitz", self.lipschitz, above=0)
        check_number("eta", self.eta, above=0, at_most=1, advice="It is the probability that the bound fails.")
        check_flag("doubly_robust", self.doubly_robust)
        for name in ("norm", "error_at_zero", "residual", "weighted_residual"):
            check_number(name, getattr(self, name), at_least=0)
        for field in fields(self):
            if field.type in ("float", "int"):
                convert = float if field.type == "float" else int
                object.__setattr__(self, field.name, convert(getattr(self, field.name)))

    @property
    def multiplier(self) -> float:
        """C, or 1 + 2 C for the doubly robust risk."""
        return 1 + 2 * self.largest_weight if self.doubly_robust else self.largest_weight

    @property
    def largest_error(self) -> float:
        """E0 + L M B: no function of the ball has a larger error on any pair."""
        return self.error_at_zero + self.lipschitz * self.norm * self.kernel_bound

    @property
    def complexity(self) -> float:
        """2 C L M B / sqrt(|D|): how well functions of the ball can fit noise."""
        return 2 * self.multiplier * self.lipschitz * self.norm * self.kernel_bound / math.sqrt(self.n_pairs)

    @property
    def confidence(self) -> float:
        """5 C (E0 + L M B) sqrt(log(4 / eta) / (2 |D|)): the chance of the draw."""
        return 5 * self.multiplier * self.largest_error * math.sqrt(math.log(4 / self.eta) / (2 * self.n_pairs))

    @property
    def approximation(self) -> float:
        """2 L (mean over D of |f - g| + weighted mean over O of |f - g|): ours, not the paper's."""
        return 2 * self.lipschitz * (self.residual + self.weighted_residual)

    @property
    def terms(self) -> dict[str, float]:
        """The summands."""
        return {
            "risk": self.risk,
            "|bias|": abs(self.bias),
            "complexity": self.complexity,
            "confidence": self.confidence,
            "approximation": self.approximation,
        }

    @property
    def value(self) -> float:
        """The bound."""
        return sum(self.terms.values())

    @property
    def vacuous(self) -> bool:
        """Whether the bound is no better than that of any f near the ball: L mean |f - g| + E0 + L M B."""
        return self.value >= self.largest_error + self.lipschitz * self.residual

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return {**asdict(self), "terms": self.terms, "value": self.value, "vacuous": self.vacuous}

    def summary(self) -> str:
        """The constants, the terms and their sum."""
        scale = "(1 + 2 C)" if self.doubly_robust else "C"
        formulas = {
            "risk": "KBDR" if self.doubly_robust else "KBIPS",
            "|bias|": "|risk - ideal loss|",
            "complexity": f"2 {scale} L M B / sqrt(|D|)",
            "confidence": f"5 {scale} (E0 + L M B) sqrt(log(4 / eta) / (2 |D|))",
            "approximation": "2 L (mean over D + weighted mean over O of |f - g|)",
        }
        largest = self.largest_error + self.lipschitz * self.residual
        verdict = f"The bound is below {self.error_at_zero:.4g}, the largest loss of the prediction 0."
        if self.vacuous:
            verdict = f"The bound is vacuous: no loss of such a predictor exceeds {largest:.4g}."
        elif self.value >= self.error_at_zero:
            verdict = (
                f"The bound is weak: the prediction 0 is known to have a loss of at most {self.error_at_zero:.4g}."
            )
        lines = [
            f"C = {self.largest_weight:.4g} largest weight, M = {self.norm:.4g} norm, "
            f"B = {self.kernel_bound:.4g} kernel, L = {self.lipschitz:.4g} Lipschitz, "
            f"E0 = {self.error_at_zero:.4g} error at 0, eta = {self.eta:.4g}, |D| = {self.n_pairs:,}",
            *(f"{name:<14}{term:>12.4f}   {formulas[name]}" for name, term in self.terms.items()),
            f"{'bound':<14}{self.value:>12.4f}   on the ideal loss, with probability {1 - self.eta:.4g}",
            verdict,
        ]
        return "\n".join(lines)

    __str__ = summary


def predictor_norm(
    logits: PairValues,
    pairs: Pairs,
    kernel: Kernel | None = None,
    *,
    observed: ObservedPairs | None = None,
    weights: Any = None,
    n_centres: int = 500,
    ridge: float = 1e-6,
    interpolate_up_to: int = MAX_INTERPOLATED_PAIRS,
    seed: int = 0,
) -> PredictorNorm:
    """The norm of a predictor f, given by its logits on pairs, in the space of a kernel over pair features.

    Up to `interpolate_up_to` pairs: of the function of least norm that equals f on D, M^2 = f'K^-1 f. It is the norm
    that matters, since nothing but f on D enters the theorem. Directions that K has lost to rounding are left out.
    Beyond: of g = sum_j alpha_j k(., c_j) at `n_centres` pairs drawn from D, alpha from the ridge regression of f on D
    (`ridge` relative to the mean of the diagonal), M^2 = alpha'K alpha. A smaller ridge gives a larger norm and a
    smaller residual f - g. Every pair (M, residual) makes a bound; neither is one without the other.
    A predictor with parameters for each user and item is no smooth function of features: expect one to be large.

    `logits`: a function of (user codes, item codes), or a |U| x |I| table. With `observed` pairs and their `weights`
    (any scale) the weighted residual is measured too.
    """
    check_number("n_centres", n_centres, at_least=1, integer=True)
    check_number("ridge", ridge, above=0)
    check_number("interpolate_up_to", interpolate_up_to, at_least=0, integer=True)
    if weights is not None and observed is None:
        raise ConfigError("`observed` must be given with `weights`, got None. The weights belong to those pairs.")
    pairs = Pairs(pairs.users.double(), pairs.items.double())
    n_pairs, generator = len(pairs.users) * len(pairs.items), torch.Generator().manual_seed(seed)
    kernel = (kernel or Gaussian()).with_bandwidth(pairs.draw(2 * BANDWIDTH_PAIRS, generator))
    measured, interpolated = _all_pairs(pairs, generator), n_pairs <= interpolate_up_to
    centres = measured.features(slice(None)) if interpolated else pairs.draw(n_centres, generator)
    between, values = kernel(centres, centres), _at(logits, measured, "logits")
    if interpolated:
        basis = torch.from_numpy(whitening(between.cpu().numpy())).to(between)
        alpha = basis @ (basis.T @ values)
    else:
        alpha = ridge_coefficients(kernel_rows(kernel, centres, measured), values, between, ridge)
    residual = (values - combination(kernel_rows(kernel, centres, measured), alpha)).abs()
    weighted = None
    if observed is not None:
        observed = pairs.at(observed.users, observed.items)
        gap = (_at(logits, observed, "logits") - combination(kernel_rows(kernel, centres, observed), alpha)).abs()
        weighted = float(_shares(weights, observed) @ gap)
    return PredictorNorm(
        norm=math.sqrt(max(0.0, float(alpha @ between @ alpha))),
        interpolated=interpolated,
        n_pairs=n_pairs,
        n_centres=len(centres),
        n_measured=measured.n_rows,
        residual_mean=float(residual.mean()),
        residual_rms=float(residual.square().mean().sqrt()),
        residual_max=float(residual.max()),
        residual_weighted=weighted,
    )


def predictor_bound(
    logits: PairValues,
    labels: Any,
    observed: ObservedPairs,
    weights: Any,
    *,
    ideal_loss: float,
    kernel: Kernel | None = None,
    imputed_errors: PairValues | None = None,
    eta: float = 0.05,
    **options: Any,
) -> GeneralizationBound:
    """The bound on the ideal log loss of a predictor, with its constants measured.

    `labels` and `weights` (any scale, from balancing or inverse propensities) belong to the `observed` pairs; `logits`
    and `options` are those of `predictor_norm`. With `imputed_errors`, in the form of the logits, the risk and the
    bound are the doubly robust ones. `ideal_loss` gives the bias: the truth of a simulation, or an estimate from
    uniformly collected ratings. It cannot be estimated from a biased log alone.
    """
    check_number("ideal_loss", ideal_loss, at_least=0)
    found = predictor_norm(logits, observed.pairs, kernel, observed=observed, weights=weights, **options)
    shares, given = _shares(weights, observed), torch.from_numpy(as_float64(labels, "labels")).to(observed.device)
    if given.shape != (observed.n_rows,) or not bool(((given >= 0) & (given <= 1)).all()):
        raise DataError(f"`labels` must be {observed.n_rows} numbers in [0, 1], got others or {len(given)} of them.")
    errors = binary_cross_entropy_with_logits(_at(logits, observed, "logits"), given, reduction="none")
    risk = float(shares @ errors)
    if imputed_errors is not None:
        population = _all_pairs(observed.pairs, torch.Generator().manual_seed(0))
        everywhere = _at(imputed_errors, population, "imputed_errors")
        low, high, largest = float(everywhere.min()), float(everywhere.max()), LOG_LOSS_AT_ZERO + found.norm
        if low < 0 or high > largest:
            raise DataError(
                f"`imputed_errors` must be in [0, E0 + L M B = {largest:.4g}], got {low:.4g} to {high:.4g}. "
                "The bound holds for such only."
            )
        risk += float(everywhere.mean() - shares @ _at(imputed_errors, observed, "imputed_errors"))
    return GeneralizationBound(
        risk=risk,
        bias=abs(risk - ideal_loss),
        largest_weight=found.n_pairs * float(shares.max()),
        norm=found.norm,
        n_pairs=found.n_pairs,
        eta=eta,
        doubly_robust=imputed_errors is not None,
        residual=found.residual_mean,
        weighted_residual=found.residual_weighted or 0.0,
        predictor=found,
    )


def _all_pairs(pairs: Pairs, generator: torch.Generator) -> ObservedPairs:
    """All of D, or a uniform sample of it."""
    total, count = len(pairs.users) * len(pairs.items), MAX_ENUMERATED_PAIRS
    chosen = torch.arange(total) if total <= count else torch.randint(total, (count,), generator=generator)
    chosen = chosen.to(pairs.users.device)
    return pairs.at(chosen // len(pairs.items), chosen % len(pairs.items))


def _at(source: PairValues, points: ObservedPairs, name: str) -> Tensor:
    """The values of a function or a table at some pairs."""
    users, items = points.users.cpu().numpy(), points.items.cpu().numpy()
    if callable(source):
        values = as_float64(source(users, items), name)
    else:
        table, shape = as_float64(source, name), (len(points.pairs.users), len(points.pairs.items))
        if table.shape != shape:
            raise DataError(f"`{name}` must have the shape {shape} of all pairs, got {table.shape}.")
        values = table[users, items]
    if values.shape != users.shape:
        raise DataError(f"`{name}` must give one number for each of {len(users)} pairs, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise DataError(f"`{name}` must be finite, got {values[~np.isfinite(values)][0]}.")
    return torch.from_numpy(values).to(points.device)


def _shares(weights: Any, observed: ObservedPairs) -> Tensor:
    """The weights over their sum; equal where none are given."""
    values = np.ones(observed.n_rows) if weights is None else as_float64(weights, "weights")
    if values.shape != (observed.n_rows,) or not (values >= 0).all() or not 0 < values.sum() < math.inf:
        raise DataError(f"`weights` must be {observed.n_rows} numbers >= 0, not all 0, got others or {len(values)}.")
    return torch.from_numpy(values / values.sum()).to(observed.device)
