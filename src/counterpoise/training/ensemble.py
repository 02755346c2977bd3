"""The average of two predictors: one learned with the imputation, one without.

What an imputation assumes of pairs that nobody rated cannot be checked on the log: where it is right it helps, where it
is wrong it misleads. So both predictors are trained on the same batches, and the prediction is

    logit = (logit with the imputation + logit without) / 2 + intercept

The intercept makes predictions average to the label rate of the probe, shrunken by its standard error.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.config import Configurable
from counterpoise.data.batches import Batch
from counterpoise.models.base import Scorer
from counterpoise.probability import shrink_by_error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights
from counterpoise.training.learner import Learner
from counterpoise.training.optimizer import Rate

BISECTIONS = 50  # of an interval of 64 in log odds: past the digits of a float64


@dataclass
class Ensemble(Configurable):
    """Average the predictor with one that is trained without the imputation."""

    def init(self, learner: Learner, context: FitContext) -> Learner | EnsembleLearner:
        """Both learners as one; the learner as it is where no imputation acts on it."""
        return learner if self.why_inactive(learner) else EnsembleLearner(learner, context)

    def empty_scorer(self, scorer: Scorer) -> EnsembleScorer:
        """Two scorers of the shape of this one, to be filled with saved values."""
        return EnsembleScorer(scorer, deepcopy(scorer))

    def why_inactive(self, learner: Learner | EnsembleLearner) -> str | None:
        """Why there is nothing to average with; None where there is."""
        imputation = learner.imputation
        if isinstance(learner, EnsembleLearner):
            return None
        if type(imputation) is FittedImputation:
            return "nothing is imputed"
        if not imputation.active:
            return "there is no active missingness model to average with"
        adds_loss = type(imputation).extra_loss is not FittedImputation.extra_loss
        return None if adds_loss or learner.risk_name in risks.NEED_IMPUTATION else "the risk uses no imputation"


class EnsembleScorer(Scorer):
    """The mean of two scorers' logits + an intercept."""

    intercept: Tensor  # ()

    def __init__(self, with_imputation: Scorer, without_imputation: Scorer) -> None:
        super().__init__()
        self.with_imputation, self.without_imputation = with_imputation, without_imputation
        self.n_users, self.n_items = with_imputation.n_users, with_imputation.n_items
        self.register_buffer("intercept", torch.zeros((), device=with_imputation.embeddings()[0].device))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits: Tensor = (self.with_imputation(users, items) + self.without_imputation(users, items)) / 2
        return logits + self.intercept

    def grid(self, users: Tensor | None = None) -> Tensor:
        return (self.with_imputation.grid(users) + self.without_imputation.grid(users)) / 2 + self.intercept

    def precision(self, name: str) -> float:
        member, _, own = name.partition(".")
        return self.get_submodule(member).precision(own)  # type: ignore[no-any-return, operator]

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """The embeddings of both scorers, concatenated."""
        pairs = zip(self.with_imputation.embeddings(), self.without_imputation.embeddings(), strict=True)
        users, items = (torch.cat(tables, 1) for tables in pairs)
        return users, items

    def factors(self) -> tuple[Tensor, Tensor] | None:
        first, second = self.with_imputation.factors(), self.without_imputation.factors()
        if first is None or second is None:
            return None
        return torch.cat([first[0] / 2, second[0] / 2], 1), torch.cat([first[1], second[1]], 1)

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """The vectors of both scorers, concatenated, the users' halved, and the intercept beside a column of ones."""
        first, second = self.with_imputation.vectors(), self.without_imputation.vectors()
        if first is None or second is None:
            return None
        ones, intercept = torch.ones_like(first[1][:, :1]), self.intercept * torch.ones_like(first[0][:, :1])
        return torch.cat([first[0] / 2, second[0] / 2, intercept], 1), torch.cat([first[1], second[1], ones], 1)

    @property
    def exposure_coefficients(self) -> Tensor | None:
        """The mean of both scorers' coefficients, if both have an exposure covariate; it is the same covariate."""
        both = [getattr(s, "exposure_coefficients", None) for s in (self.with_imputation, self.without_imputation)]
        return None if None in both else torch.stack(both).mean(0)  # type: ignore[arg-type]


class EnsembleLearner:
    """Two learners on the same batches; the weights learn beside the first."""

    def __init__(self, first: Learner, context: FitContext) -> None:
        self.first, self.probe = first, context.probe
        self.weights, self.imputation, self.uses_pairs = first.weights, first.imputation, first.uses_pairs
        self.ordinal = first.ordinal
        risk = "ips" if first.risk_name in risks.NEED_IMPUTATION else first.risk_name
        scorer, ordinal = deepcopy(first.scorer), first.ordinal and first.ordinal.copy()
        optimizer = context.optimizer(*(model for model in (scorer, ordinal) if model is not None))
        weights = _SharedWeights(first.weights)
        self.second = Learner(scorer, weights, FittedImputation(), risk, optimizer, first.log, ordinal)
        self.scorer = EnsembleScorer(first.scorer, scorer)

    def start_epoch(self, epoch: int) -> None:
        """Let the weights look at the whole log."""
        self.first.start_epoch(epoch)
        if self.first.prior_scaled_at == epoch:
            self.second.scale_prior()

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One step of each; the mean of their losses."""
        return (self.first.step(batch, rate) + self.second.step(batch, rate)) / 2

    def risk(self, batch: Batch) -> Tensor:
        """The mean of their risks on rows that were held out."""
        return (self.first.risk(batch) + self.second.risk(batch)) / 2

    def state(self) -> list[Tensor]:
        """Everything that is learned batch by batch."""
        return self.first.state() + self.second.state()

    @torch.no_grad()
    def facts(self, log: Iterable[Batch]) -> dict[str, Any]:
        """JSON-able: the facts of the first, and the intercept."""
        facts = self.first.facts(log)
        return facts | {"imputation": facts["imputation"] | {"intercept": self._fit_intercept()}}

    def finish(self) -> dict[str, Any]:
        """Where there is no probe to take the intercept from, that of the weights, for both."""
        if self.probe is not None and len(self.probe):
            return {}
        found = self.first.finish()
        self.second.scorer.shift(self.first.shifted)
        return found

    def _fit_intercept(self) -> float:
        """The intercept, from the probe where there is one."""
        own, probe = self.scorer.intercept, self.probe
        own.zero_()
        if probe is not None and len(probe):
            columns = (probe.users, probe.items, probe.labels)
            users, items, labels = (torch.from_numpy(column).to(own.device) for column in columns)
            own.fill_(calibrating_intercept(self.scorer(users, items), labels))
        return float(own)


class _SharedWeights(FittedWeights):
    """The weights of another learner, which moves them."""

    def __init__(self, of: FittedWeights) -> None:
        self.of = of

    @property
    def ratio(self) -> Tensor:  # type: ignore[override]
        return self.of.ratio

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return self.of.at(users, items, labels)


def calibrating_intercept(logits: Tensor, labels: Tensor) -> float:
    """The b with which sigmoid(logits + b) averages to the rate of the labels, shrunken (`shrink_by_error`).

    Its variance is 1 / sum of p (1 - p). The rate has a row of each label more, so that there is a b for any labels.
    """
    logits, rate = logits.double(), (float(labels.sum()) + 1) / (len(labels) + 2)
    low, high = -32.0, 32.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if float(torch.sigmoid(logits + middle).mean()) > rate else (middle, high)
    p = torch.sigmoid(logits + high)
    return shrink_by_error(high, 1 / max(float((p * (1 - p)).sum()), 1e-12))
