"""MNAR likelihood: models which pairs are observed jointly with their labels.

With R the predicted probability of a positive label, and being observed depending on the label alone,

    P(observed | label) = positive or negative,   P(observed) = m(R) = negative + (positive - negative) R

the likelihood of the whole matrix, labels and missing entries alike, is that of the labels given that they were
observed, times that of being observed (Marlin and Zemel 2009, Collaborative Prediction and Ranking with Non-Random
Missing Data; Hernandez-Lobato, Houlsby and Ghahramani 2014, Probabilistic Matrix Factorization with Non-random Missing
Data):

    P(label = 1 | observed) = sigmoid(logit R + log odds ratio),   log odds ratio = log(positive / negative)
    exposure loss = (1/|O|) (sum over O of -log m(R) + sum over unobserved pairs of -log(1 - m(R)))

The gradient of an unobserved pair's term is that of its log loss against the imputed label

    P(label = 1 | not observed) = R (1 - positive) / (1 - m(R)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.probability import log_odds, shrink_by_error
from counterpoise.risks import negative_log_complement
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation

NORMAL_95 = 1.96  # standard errors on each side of a 95 % interval
MAX_PROPENSITY = 0.95  # of a label, so that no unobserved pair is impossible. It is reached in dense logs alone: at a
# density of 0.6, 0.9 to 0.99 give `mnar` an AUC of .791 to .792, log loss .445 to .414 (benchmarks/constants.py)


class LabelPropensities(NamedTuple):
    """The probability that a pair is observed if its label is positive, and if it is negative."""

    positive: float
    negative: float

    @property
    def log_odds_ratio(self) -> float:
        """log(positive / negative): of the labels, log against all pairs."""
        return math.log(self.positive / self.negative)

    @property
    def share(self) -> float:
        """(positive - negative) / (1 - negative), with which 1 - m(R) = (1 - negative) (1 - share R)."""
        return (self.positive - self.negative) / (1 - self.negative)


def label_propensities(density: float, log_rate: float, rate: float) -> LabelPropensities:
    """P(observed | label) by Bayes' rule, from the share of positive labels in the log and among all pairs."""
    positive, negative = density * log_rate / rate, density * (1 - log_rate) / (1 - rate)
    return LabelPropensities(min(positive, MAX_PROPENSITY), min(negative, MAX_PROPENSITY))


def exposure_loss(logits: Tensor, on_pairs: Tensor, density: float, of: LabelPropensities) -> Tensor:
    """The exposure loss from the predictor's logits on rows and on pairs of D, up to a constant.

    A sum over unobserved pairs is |D| x the mean over D - |O| x the mean over O. log m(R) = log negative +
    log(1 - (1 - positive / negative) R).
    """
    unobserved = negative_log_complement(on_pairs, of.share) / density - negative_log_complement(logits, of.share)
    return unobserved + negative_log_complement(logits, 1 - of.positive / of.negative)


@dataclass
class MNARLikelihood(Imputation):
    """The exposure loss beside the risk, and the labels of the log read as P(label | observed).

    The exposure loss trains the base scorer alone, without exposure coefficients (`ExposureCovariate`): those are
    learned from labels, which can correct what the missingness model gets wrong.
    `rate`: the label rate of all pairs; None for the probe's, whose log odds ratio to the log's is shrunken by its
    standard error (`shrink_by_error`). With neither the ratio is 0 and the missingness model is inactive. `strength`:
    of the exposure loss; 1 is the likelihood.
    """

    imputes_errors: ClassVar[bool] = False
    rate: float | None = None
    strength: float = 1.0

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Compare the label rates."""
        if self.rate is not None:
            check_number("rate", self.rate, above=0, at_most=1 - 1e-6)
        check_number("strength", self.strength, at_least=0)
        log_rate = float(context.log.labels.mean())
        if not 0 < log_rate < 1:
            raise ConfigError(
                f"the missingness model (MNAR likelihood) needs positive and negative labels, and all rows trained on "
                f"have {log_rate:g}. Use another `threshold`, a larger log, or another method, such as skb-dr."
            )
        measured = None if self.rate is not None else _log_odds_ratio(context, log_rate)
        rate = log_rate if self.rate is None else self.rate
        if measured is not None:
            rate = float(1 / (1 + math.exp(shrink_by_error(*measured) - log_odds(log_rate))))
        of = label_propensities(context.log.density, log_rate, rate)
        return FittedMNAR(of, context.log.density, self.strength, measured)


def _log_odds_ratio(context: FitContext, log_rate: float) -> tuple[float, float] | None:
    """(log odds ratio of the labels, log against probe; its variance); None without a probe."""
    probe = context.probe
    if probe is None or len(probe) == 0:
        return None
    rate = (float(probe.labels.sum()) + 1) / (len(probe) + 2)  # a row of each label more
    return float(log_odds(log_rate) - log_odds(rate)), 1 / (len(probe) * rate * (1 - rate))


class FittedMNAR(FittedImputation):
    """The exposure loss with known propensities of labels."""

    def __init__(
        self, of: LabelPropensities, density: float, strength: float, measured: tuple[float, float] | None = None
    ) -> None:
        self.of, self.density, self.strength = of, density, strength
        self.measured = measured  # the log odds ratio before it was shrunken, and its variance
        self.offset = of.log_odds_ratio if abs(of.log_odds_ratio) > 1e-9 else 0.0
        self.active = self.needs_pairs = bool(self.offset and strength)

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        if not self.needs_pairs:
            return None
        return self.strength * exposure_loss(logits, pair_logits, self.density, self.of)

    def facts(self) -> dict[str, Any]:
        """`interval`: of positive / negative by the probe, 95 %; that ratio is exp(log odds ratio)."""
        found = {"log_odds_ratio": self.offset} | self.of._asdict()
        if self.measured is None:
            return found
        ratio, half = self.measured[0], NORMAL_95 * math.sqrt(self.measured[1])
        return found | {"interval": [math.exp(ratio - half), math.exp(ratio + half)]}
