"""What silence says: a pair that was not rated is a pair that could have been, and the label had a part in it.

With R the predicted probability of a positive label, p the exposure of a pair and two factors for the labels,

    P(observed | label) = p x positive or p x negative
    P(observed) = p m(R),   m(R) = negative + (positive - negative) R

The likelihood of the whole matrix, labels and silence alike, is that of the labels given that they were observed, and
that of being observed (Marlin and Zemel 2009, Collaborative Prediction and Ranking with Non-Random Missing Data;
Hernandez-Lobato, Houlsby and Ghahramani 2014, Probabilistic Matrix Factorization with Non-random Missing Data):

    P(label = 1 | observed) = sigmoid(logit R + contrast),   contrast = log(positive / negative)
    exposure loss = (1/|O|) (sum over O of -log m(R) + sum over silent pairs of -log(1 - p m(R)))

The gradient of a silent pair's term is that of its log loss against an imputed label, `label_given_silence`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.backbones import Scorer
from counterpoise.errors import ConfigError, check_number
from counterpoise.imputation import Imputation, Imputing
from counterpoise.problems import Problem
from counterpoise.propensity import surprise_of_nothing
from counterpoise.training import Batch
from counterpoise.weights import Weighing

LARGEST = 0.95  # the largest probability of being observed that a pair may have, so that no silence is impossible


class Contrast(NamedTuple):
    """How much likelier than on average a pair is observed if its label is positive, and if it is negative."""

    positive: float
    negative: float

    @property
    def log_odds(self) -> float:
        """log(positive / negative): by how much the log's labels are better, in log odds."""
        return math.log(self.positive / self.negative)


def label_contrast(log_rate: float, rate: float) -> Contrast:
    """P(label | observed) / P(label) by Bayes' rule: log_rate / rate and (1 - log_rate) / (1 - rate).

    `log_rate`: the label rate of the log. `rate`: that of all pairs, where each counts by its exposure: the label rate
    that the log would have if labels had no part in it. So what exposure explains of the difference is left out.
    """
    return Contrast(log_rate / rate, (1 - log_rate) / (1 - rate))


def shrunken(contrast: float, variance: float) -> float:
    """contrast x [1 - variance / contrast^2]+: the positive-part James-Stein estimate of a contrast with this error."""
    return contrast * max(0.0, 1 - variance / contrast**2) if contrast else 0.0


def label_given_silence(chance: Tensor, exposure: Tensor, contrast: Contrast) -> Tensor:
    """P(label = 1 | not observed) = R (1 - p positive) / (1 - p m(R)): the label that silence imputes."""
    mixed = contrast.negative + (contrast.positive - contrast.negative) * chance
    return chance * (1 - exposure * contrast.positive) / (1 - exposure * mixed)


def silent_share(exposure: Tensor, contrast: Contrast) -> Tensor:
    """share = p (positive - negative) / (1 - p negative), with which 1 - p m(R) = (1 - p negative) (1 - share R)."""
    exposure = exposure.clamp(max=LARGEST / max(contrast))
    return exposure * (contrast.positive - contrast.negative) / (1 - exposure * contrast.negative)


def exposure_loss(
    logits: Tensor, share: Tensor, on_pairs: Tensor, share_on_pairs: Tensor, density: float, contrast: float
) -> Tensor:
    """The exposure loss of the predictor's logits on rows and on pairs of D, up to a constant.

    -log(1 - share R) summed over silent pairs is |D| x its mean over D - |O| x its mean over O, and log m(R) = log negative +
    softplus(logit + contrast) - softplus(logit).
    """
    silent = surprise_of_nothing(on_pairs, share_on_pairs) / density - surprise_of_nothing(logits, share)
    return silent - (softplus(logits + contrast) - softplus(logits)).mean()


@dataclass
class Silence(Imputation):
    """The exposure loss beside the risk, and labels of the log read as P(label | observed).

    The exposure p is what the backbone knows of it (`Exposed`), and even without: then whatever is seen more is liked
    more. The loss trains the predictor without its voices: labels alone give exposure a say, and so they can take back
    what silence claims and labels do not bear out.
    `rate`: the label rate of all pairs, None for the probe's, each of its rows counted by its exposure. The contrast to
    the log's is drawn towards 0 by its standard error (`shrunken`). With no probe and no rate it is 0: silence then
    says nothing. `strength`: of the exposure loss; 1 is the likelihood.
    """

    rate: float | None = None
    strength: float = 1.0

    def begin(self, problem: Problem, weighing: Weighing) -> Imputing:
        """The contrast comes when the predictor is known."""
        if self.rate is not None:
            check_number("rate", self.rate, above=0, at_most=1 - 1e-6)
        check_number("strength", self.strength, at_least=0)
        log_rate = float(problem.log.labels.mean())
        if not 0 < log_rate < 1:
            raise ConfigError(
                f"silence needs both labels in the rows trained on, whose mean label is {log_rate:g}. Use a larger log."
            )
        return _Silence(self, problem, log_rate)


class _Silence(Imputing):
    needs_pairs = True

    def __init__(self, part: Silence, problem: Problem, log_rate: float) -> None:
        self.part, self.problem, self.log_rate = part, problem, log_rate
        self.density, self.contrast = problem.log.density, Contrast(1.0, 1.0)
        self._everywhere: Tensor | None = None

    def meet(self, scorer: Scorer) -> None:
        """Estimate the contrast, and with it how the log's labels differ from those of all pairs."""
        rate = self._rate(scorer)
        self.contrast = label_contrast(self.log_rate, rate)
        self.offset = self.contrast.log_odds

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(logits), torch.zeros_like(pair_logits)

    def extra_loss(self, scorer: Scorer, batch: Batch) -> Tensor | None:
        if not self.offset or not self.part.strength:
            return None
        own = scorer.own().rows_and_pairs(batch.users, batch.items, batch.pair_users, batch.pair_items)
        on_rows = self._share(scorer, batch.users, batch.items)
        on_pairs = self._share(scorer, batch.pair_users, batch.pair_items)
        return self.part.strength * exposure_loss(own[0], on_rows, own[1], on_pairs, self.density, self.offset)

    def facts(self) -> dict[str, Any]:
        return {"log_rate": self.log_rate, "contrast": self.offset} | self.contrast._asdict()

    def _rate(self, scorer: Scorer) -> float:
        """The label rate of all pairs by exposure, with the contrast to the log's shrunken by its standard error."""
        if self.part.rate is not None:
            return self.part.rate
        probe = self.problem.probe
        if probe is None or len(probe) == 0:
            return self.log_rate
        codes = (torch.from_numpy(column).to(self.problem.device) for column in (probe.users, probe.items))
        weight = self._exposure(scorer, *codes).double().cpu()
        labels, one = torch.from_numpy(probe.labels).double(), weight.mean()
        rate = float(((weight * labels).sum() + one) / (weight.sum() + 2 * one))  # a row of each label more
        rows = float(weight.sum() ** 2 / weight.square().sum())
        contrast = shrunken(_log_odds(self.log_rate) - _log_odds(rate), 1 / (rows * rate * (1 - rate)))
        return 1 / (1 + math.exp(contrast - _log_odds(self.log_rate)))

    @torch.no_grad()
    def _exposure(self, scorer: Scorer, users: Tensor | None, items: Tensor | None) -> Tensor:
        known = scorer.exposure(users, items)
        if known is not None:
            return known
        size = self.problem.log.n_pairs if users is None else len(users)
        return torch.full((size,), self.density, device=self.problem.device)

    def _share(self, scorer: Scorer, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None and self._everywhere is not None:
            return self._everywhere
        share = silent_share(self._exposure(scorer, users, items), self.contrast)
        self._everywhere = share if users is None else self._everywhere
        return share


def _log_odds(rate: float) -> float:
    return math.log(rate / (1 - rate))
