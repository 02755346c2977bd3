"""The paper's generalization bounds (Theorem 2), term by term."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from counterpoise.errors import check_flag, check_number

LOG_LOSS = {"lipschitz": 1.0, "error_at_zero": math.log(2)}  # |sigmoid(f) - r| <= 1, and log(1 + e^0) for both labels


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return asdict(self)


@dataclass(frozen=True)
class GeneralizationBound:
    """A bound on the ideal loss with everything it is made of; `value` is the sum of `terms`."""

    risk: float
    bias: float
    largest_weight: float
    norm: float
    n_pairs: int
    kernel_bound: float
    lipschitz: float
    error_at_zero: float
    eta: float
    doubly_robust: bool
    residual: float
    weighted_residual: float
    predictor: PredictorNorm | None = None

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
            "|bias|": self.bias,
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
        """Whether the bound says no more than f being near the ball does: L mean |f - g| + E0 + L M B."""
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
        lines = [
            f"C = {self.largest_weight:.4g} largest weight, M = {self.norm:.4g} norm, "
            f"B = {self.kernel_bound:.4g} kernel, L = {self.lipschitz:.4g} Lipschitz, "
            f"E0 = {self.error_at_zero:.4g} error at 0, eta = {self.eta:.4g}, |D| = {self.n_pairs:,}",
            *(f"{name:<14}{term:>12.4f}   {formulas[name]}" for name, term in self.terms.items()),
            f"{'bound':<14}{self.value:>12.4f}   on the ideal loss, with probability {1 - self.eta:.4g}",
            self._verdict(),
        ]
        return "\n".join(lines)

    __str__ = summary

    def _verdict(self) -> str:
        if self.vacuous:
            largest = self.largest_error + self.lipschitz * self.residual
            return f"The bound is vacuous: no loss of such a predictor exceeds {largest:.4g}."
        if self.value >= self.error_at_zero:
            return f"The bound is weak: the prediction 0 is known to have a loss of at most {self.error_at_zero:.4g}."
        return f"The bound is below {self.error_at_zero:.4g}, the largest loss of the prediction 0."


def generalization_bound(
    *,
    risk: float,
    bias: float,
    largest_weight: float,
    norm: float,
    n_pairs: int,
    kernel_bound: float = 1.0,
    lipschitz: float = LOG_LOSS["lipschitz"],
    error_at_zero: float = LOG_LOSS["error_at_zero"],
    eta: float = 0.05,
    doubly_robust: bool = False,
    residual: float = 0.0,
    weighted_residual: float = 0.0,
    predictor: PredictorNorm | None = None,
) -> GeneralizationBound:
    """Theorem 2 as printed: with probability 1 - eta, for f in the ball of radius M of the kernel's space,

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
    check_number("risk", risk)
    check_number("bias", bias)
    advice = "It is |D| times the largest weight of a log whose weights sum to 1."
    check_number("largest_weight", largest_weight, at_least=1, advice=advice)
    check_number("n_pairs", n_pairs, at_least=1, integer=True)
    check_number("kernel_bound", kernel_bound, above=0)
    check_number("lipschitz", lipschitz, above=0)
    check_number("eta", eta, above=0, at_most=1, advice="It is the probability that the bound fails.")
    check_flag("doubly_robust", doubly_robust)
    sizes = {"norm": norm, "error_at_zero": error_at_zero, "residual": residual, "weighted_residual": weighted_residual}
    for name, size in sizes.items():
        check_number(name, size, at_least=0)
    return GeneralizationBound(
        risk=float(risk),
        bias=abs(float(bias)),
        largest_weight=float(largest_weight),
        n_pairs=int(n_pairs),
        kernel_bound=float(kernel_bound),
        lipschitz=float(lipschitz),
        eta=float(eta),
        doubly_robust=doubly_robust,
        predictor=predictor,
        **{name: float(size) for name, size in sizes.items()},
    )
