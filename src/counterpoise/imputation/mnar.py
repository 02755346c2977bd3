"""What silence says: a pair that was not rated is a pair that could have been, and the label had a part in it.

With R the predicted probability of a positive label, and being observed a matter of the label alone,

    P(observed | label) = positive or negative,   P(observed) = m(R) = negative + (positive - negative) R

the likelihood of the whole matrix, labels and silence alike, is that of the labels given that they were observed, and
that of being observed (Marlin and Zemel 2009, Collaborative Prediction and Ranking with Non-Random Missing Data;
Hernandez-Lobato, Houlsby and Ghahramani 2014, Probabilistic Matrix Factorization with Non-random Missing Data):

    P(label = 1 | observed) = sigmoid(logit R + contrast),   contrast = log(positive / negative)
    exposure loss = (1/|O|) (sum over O of -log m(R) + sum over silent pairs of -log(1 - m(R)))

The gradient of a silent pair's term is that of its log loss against an imputed label, `label_given_unobserved`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoise.errors import ConfigError, check_number
from counterpoise.imputation.base import FittedImputation, Imputation
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.stacks import NotAlikeError, stack_numbers
from counterpoise.weights.base import FittedWeights
from counterpoise.weights.propensity import negative_log_complement

CAUTION = 2.0  # how many times its variance the squared contrast must exceed to count at all
LARGEST = 0.95  # the largest probability of being observed, so that no silence is impossible


class Propensities(NamedTuple):
    """The probability that a pair is observed if its label is positive, and if it is negative."""

    positive: Any  # a number; of fits side by side a tensor (fits, 1)
    negative: Any

    @property
    def contrast(self) -> Any:
        """log(positive / negative): by how much the log's labels are better than those of all pairs, in log odds."""
        odds = self.positive / self.negative
        return odds.log() if isinstance(odds, Tensor) else math.log(odds)

    @property
    def share(self) -> Any:
        """(positive - negative) / (1 - negative), with which 1 - m(R) = (1 - negative) (1 - share R)."""
        return (self.positive - self.negative) / (1 - self.negative)


def label_propensities(density: float, log_rate: float, rate: float) -> Propensities:
    """P(observed | label) by Bayes' rule, from the share of positive labels in the log and among all pairs."""
    positive, negative = density * log_rate / rate, density * (1 - log_rate) / (1 - rate)
    return Propensities(min(positive, LARGEST), min(negative, LARGEST))


def label_given_unobserved(chance: Tensor, of: Propensities) -> Tensor:
    """P(label = 1 | not observed) = R (1 - positive) / (1 - m(R)): the label that silence imputes."""
    label: Tensor = chance * (1 - of.positive) / (1 - of.negative - (of.positive - of.negative) * chance)
    return label


def exposure_loss(logits: Tensor, on_pairs: Tensor, density: float, of: Propensities) -> Tensor:
    """The exposure loss from the predictor's logits on rows and on pairs of D, up to a constant.

    A sum over silent pairs is |D| x the mean over D - |O| x the mean over O. log m(R) = log negative +
    log(1 - (1 - positive / negative) R).
    """
    silent = negative_log_complement(on_pairs, of.share) / density - negative_log_complement(logits, of.share)
    return silent + negative_log_complement(logits, 1 - of.positive / of.negative)


def shrink_by_error(contrast: float, variance: float) -> float:
    """contrast x [1 - 2 variance / contrast^2]+: an estimate shrunken by its error, 0 unless the data insist on it."""
    kept = max(0.0, 1 - CAUTION * variance / contrast**2) if contrast else 0.0
    return contrast * kept if kept else 0.0


@dataclass
class MNARLikelihood(Imputation):
    """The exposure loss beside the risk, and the labels of the log read as P(label | observed).

    The exposure loss trains the base scorer alone, without exposure coefficients (`ExposureCovariate`): those are
    learned from labels, which can correct what the missingness model gets wrong.
    `rate`: the label rate of all pairs; None for the probe's, whose log odds ratio to the log's is shrunken by its
    standard error (`shrink_by_error`). With neither the ratio is 0 and the missingness model is inactive. `strength`:
    of the exposure loss; 1 is the likelihood.
    """

    rate: float | None = None
    strength: float = 1.0

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """Compare the label rates."""
        if self.rate is not None:
            check_number("rate", self.rate, above=0, at_most=1 - 1e-6)
        check_number("strength", self.strength, at_least=0)
        log_rate = float(context.log.labels.mean())
        if not 0 < log_rate < 1:
            raise ConfigError(
                f"silence needs both labels in the rows trained on, whose mean label is {log_rate:g}. "
                "Use a larger log, another `threshold`, or another method, such as skb-dr."
            )
        rate = _rate_of_probe(context, log_rate) if self.rate is None else self.rate
        return _FittedMNAR(label_propensities(context.log.density, log_rate, rate), context.log.density, self.strength)


def _rate_of_probe(context: FitContext, log_rate: float) -> float:
    """The label rate of all pairs: that of the probe, drawn towards the log's as far as chance may explain it."""
    probe = context.probe
    if probe is None or len(probe) == 0:
        return log_rate
    rate = (float(probe.labels.sum()) + 1) / (len(probe) + 2)  # a row of each label more
    contrast = shrink_by_error(_log_odds(log_rate) - _log_odds(rate), 1 / (len(probe) * rate * (1 - rate)))
    return 1 / (1 + math.exp(contrast - _log_odds(log_rate)))


def _log_odds(rate: float) -> float:
    return math.log(rate / (1 - rate))


class _FittedMNAR(FittedImputation):
    still = True

    def __init__(self, of: Propensities, density: float, strength: float) -> None:
        self.of, self.density, self.strength = of, density, strength
        self.offset = of.contrast if abs(of.contrast) > 1e-9 else 0.0
        self.needs_pairs = self.speaks = bool(self.offset and strength)

    def stack(self, members: Sequence[Any], device: torch.device) -> FittedImputation:
        if any(member.needs_pairs != self.needs_pairs for member in members):
            raise NotAlikeError
        stacked = copy(self)
        propensities = torch.tensor([member.of for member in members], device=device)
        stacked.of = Propensities(*propensities.T[:, :, None])
        stacked.offset = torch.tensor([[member.offset] for member in members], device=device)
        stacked.strength = stack_numbers([member.strength for member in members], device)
        return stacked

    def has_closed_form(self, codes: Tensor) -> bool:
        return isinstance(self.offset, float) and self.offset == 0

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(logits), torch.zeros_like(pair_logits)

    def extra_loss(self, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        if not self.needs_pairs:
            return None
        return self.strength * exposure_loss(logits, pair_logits, self.density, self.of)

    def facts(self) -> dict[str, Any]:
        return {"contrast": self.offset} | self.of._asdict()
