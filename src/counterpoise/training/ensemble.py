"""The average of two predictors, one learned with the imputation and one without, as far as a probe trusts each.

What an imputation assumes of pairs that nobody rated cannot be checked on the log: where it is right it helps, where it
is wrong it misleads. So both predictors are trained on the same batches, and the prediction is

    logit = intercept + slope x (weight x logit with the imputation + (1 - weight) x logit without)

Without a probe the weight is a constant, the slope 1 and the intercept 0. With one, the predictors learn from the log
alone first. The probe, none of whose labels they have seen, then says how far to trust each, and the exposure covariate
(`combine`); priors keep what few rows cannot decide near where it was. Only then do the predictors learn from its
labels too, where the model has `ProbeLabels`, and the intercept is where predictions average to the probe's label rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from counterpoise import risks
from counterpoise.config import Configurable
from counterpoise.data.batches import Batch
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import check_number
from counterpoise.models.base import Scorer
from counterpoise.models.matrix_factorization import USUAL_ROWS
from counterpoise.probability import shrink_by_error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights
from counterpoise.training.learner import Learner
from counterpoise.training.optimizer import Rate
from counterpoise.training.probe import FittedProbe, ProbeLabels

PRIOR_SD = 0.25  # of what `combine` adds to weight, slope and share of exposure, before it sees the probe: some hundred
# rows move them a little, thousands as far as they are sure
NEWTON_STEPS = 30
PROBE_STEPS = 50  # that learn its labels, on a large log; a small one has those of a first model


@dataclass
class Ensemble(Configurable):
    """Average the predictor with one that is trained without the imputation, as far as the probe trusts each.

    `weight`: of the predictor with the imputation, where no probe says otherwise; "auto" is `usual_weight`.
    `starts`: the share of the epochs after which that predictor starts, from what the one without has learned by then;
    with `patience`, or weights or an imputation that learn in its steps, it starts at once.
    """

    weight: float | str = "auto"
    starts: float = 0.5

    def init(self, learner: Learner, context: FitContext) -> Learner | EnsembleLearner:
        """All members as one learner; the learner as it is where there is nothing to average or to calibrate with."""
        if self.weight != "auto":
            check_number("weight", self.weight, at_least=0, at_most=1, advice='Or "auto".')
        check_number("starts", self.starts, at_least=0, at_most=0.9, advice="It is a share of the epochs.")
        if self.why_inactive(learner) is None:
            weight = usual_weight(context.log) if isinstance(self.weight, str) else self.weight
            members = [_without_imputation(learner, context), learner]
            return EnsembleLearner(members, [1 - weight, weight], context, self.starts)
        has_probe = context.probe is not None and len(context.probe) > 0
        return EnsembleLearner([learner], [1.0], context) if has_probe else learner

    def empty_scorer(self, scorer: Scorer, members: int) -> EnsembleScorer:
        """So many scorers of the shape of this one, to be filled with saved values."""
        return EnsembleScorer([scorer, *(deepcopy(scorer) for _ in range(members - 1))], [1.0] * members)

    def why_inactive(self, learner: Learner | EnsembleLearner) -> str | None:
        """Why there is nothing to average with; None where there is."""
        if isinstance(learner, EnsembleLearner):
            return None if len(learner.members) > 1 else self.why_inactive(learner.members[0])
        imputation = learner.imputation
        if type(imputation) is FittedImputation:
            return "nothing is imputed"
        if not imputation.active:
            return "there is no active missingness model to average with"
        adds_loss = type(imputation).extra_loss is not FittedImputation.extra_loss
        return None if adds_loss or learner.risk_name in risks.NEED_IMPUTATION else "the risk uses no imputation"


def usual_weight(log: FeedbackLog) -> float:
    """1/2 x min(1, n / 24), with n = 2 rows / (|U| + |I|) rows for each user and item.

    Where an imputation is wrong, labels correct it as far as there are labels. On logs with 12 rows for each user and
    item, rated by popularity too, the AUC minus that of `mf` is -0.0013 (standard error 0.0010) with a weight of 1/2,
    +0.0003 (0.0005) with 1/4 (benchmarks/probes.py --kinds "long tail" --probes 200 --first-seed 100 --seeds 8).
    """
    return min(1.0, 2 * len(log) / sum(log.shape) / USUAL_ROWS) / 2


def _without_imputation(learner: Learner, context: FitContext) -> Learner:
    """A learner from the same draw, on the same weights, that imputes nothing."""
    risk = "ips" if learner.risk_name in risks.NEED_IMPUTATION else learner.risk_name
    ordinal, probe = learner.ordinal and learner.ordinal.copy(), learner.probe and learner.probe.learning()
    parts = deepcopy(learner.scorer), _SharedWeights(learner.weights), FittedImputation()
    return Learner.of(context, *parts, risk, ordinal, probe)


class EnsembleScorer(Scorer):
    """intercept + slope x the weighted mean of some scorers' logits."""

    weights: Tensor  # (members,)
    slope: Tensor  # ()
    intercept: Tensor  # ()

    def __init__(self, members: Sequence[Scorer], weights: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.n_users, self.n_items = members[0].n_users, members[0].n_items
        device = members[0].embeddings()[0].device
        self.register_buffer("weights", torch.tensor(weights, device=device))
        self.register_buffer("slope", torch.ones((), device=device))
        self.register_buffer("intercept", torch.zeros((), device=device))

    def _scorers(self) -> list[Scorer]:
        return list(self.members)  # type: ignore[arg-type]

    def _combined(self, values: Sequence[Tensor]) -> Tensor:
        """The weighted mean of a value of each member."""
        total = self.weights[0] * values[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.intercept + self.slope * self._combined([scorer(users, items) for scorer in self._scorers()])

    def grid(self, users: Tensor | None = None) -> Tensor:
        return self.intercept + self.slope * self._combined([scorer.grid(users) for scorer in self._scorers()])

    def precision(self, name: str) -> float:
        _, member, own = name.split(".", 2)
        return self._scorers()[int(member)].precision(own)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """The embeddings of all members, concatenated."""
        users, items = zip(*(scorer.embeddings() for scorer in self._scorers()), strict=True)
        return torch.cat(users, 1), torch.cat(items, 1)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        known = [pair for scorer in self._scorers() if (pair := scorer.factors()) is not None]
        if len(known) < len(self.members):
            return None
        users, items = zip(*known, strict=True)
        return self._joined("user", users), self._joined("item", items)

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """The vectors of all members, those of users by slope and weight, and the intercept beside a column of ones."""
        known = [pair for scorer in self._scorers() if (pair := scorer.vectors()) is not None]
        if len(known) < len(self.members):
            return None
        users, items = zip(*known, strict=True)
        return self.join("user", users), self.join("item", items)

    def join(self, side: str, vectors: Sequence[Tensor]) -> Tensor:
        """The vectors of some users (or items) from those that the members have of them."""
        joined, ones = self._joined(side, vectors), torch.ones_like(vectors[0][:, :1])
        return torch.cat([joined, self.intercept * ones if side == "user" else ones], 1)

    def _joined(self, side: str, tables: Sequence[Tensor]) -> Tensor:
        factors = [float(self.slope * weight) if side == "user" else 1.0 for weight in self.weights]
        return torch.cat([factor * table for factor, table in zip(factors, tables, strict=True)], 1)

    def unrated_vectors(self, side: str, count: int, features: Tensor | None = None) -> Tensor:
        return self.join(side, [scorer.unrated_vectors(side, count, features) for scorer in self._scorers()])

    def append_rows(self, side: str, count: int, features: Tensor | None = None) -> None:
        for scorer in self._scorers():
            scorer.append_rows(side, count, features)
        self.n_users, self.n_items = self._scorers()[0].n_users, self._scorers()[0].n_items

    def feature_columns(self, side: str) -> int:
        return self._scorers()[0].feature_columns(side)

    @property
    def exposure_coefficients(self) -> Tensor | None:
        """The weighted mean of the members' coefficients, if all have an exposure covariate; it is the same one."""
        all_of_them = [getattr(scorer, "exposure_coefficients", None) for scorer in self._scorers()]
        return None if None in all_of_them else self._combined(all_of_them)  # type: ignore[arg-type]


class EnsembleLearner:
    """Some learners on the same batches; the weights learn beside the last, which has the imputation.

    Where the log is streamed there is no second training: members learn from the probe at once, if at all.
    The last of several starts after a share `starts` of the epochs, from what the first has learned by then.
    """

    def __init__(
        self, members: Sequence[Learner], weights: Sequence[float], context: FitContext, starts: float = 0.0
    ) -> None:
        self.context = context if context.log.in_memory else None
        self.labels = [member.probe for member in members]  # of the probe, to be learned later
        if self.context is not None and members[-1].probe is not None:
            members = [member.rebuilt(context, probe=None) for member in members]
        self.members, self.main = list(members), members[-1]
        self.main.follows = len(members) > 1
        self.weights, self.imputation, self.ordinal = self.main.weights, self.main.imputation, self.main.ordinal
        self.uses_pairs, self.batches = self.main.uses_pairs, self.main.batches
        self.scorer = EnsembleScorer([member.scorer for member in members], weights)
        alone = round(starts * context.training.planned_epochs(len(context.log)))
        self.alone, self.learning = alone, self.members  # the epochs of the first members alone; those who learn
        if alone and context.training.patience is None and not self._parts_learn():
            self.learning = self.members[:-1]
            self.joined_weights = self.scorer.weights.clone()
            self.scorer.weights.copy_(torch.eye(len(members))[0])

    def _parts_learn(self) -> bool:
        """Whether steps of the last member teach weights or an imputation too."""
        parts = (self.weights, FittedWeights), (self.imputation, FittedImputation)
        return any(type(part).step is not base.step for part, base in parts)

    def start_epoch(self, epoch: int) -> None:
        """Let the weights look at the whole log, and then all members at the weights.

        A predictor with an imputation takes the prior that the one without has estimated.
        """
        self.main.start_epoch(epoch)
        for member in self.members[:-1]:
            member.start_epoch(epoch)
            if epoch in member.prior_epochs:
                self.main.scorer.base().take_estimates(member.scorer.base())
                self.main.scale_prior()
        if self.learning is not self.members and epoch > self.alone:
            self._join()

    def _join(self) -> None:
        """Let the last member learn too, from where the first is."""
        first, self.learning = self.members[0], self.members
        models = (self.main.scorer, first.scorer), (self.main.ordinal, first.ordinal)
        for own, other in models:
            if own is not None and other is not None:
                torch._foreach_copy_([p.data for p in own.parameters()], [p.data for p in other.parameters()])
        self.main.scorer.take_estimates(first.scorer)
        self.main.scale_prior()
        self.scorer.weights.copy_(self.joined_weights)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One step of each; the mean of their losses."""
        return torch.stack([member.step(batch, rate) for member in reversed(self.learning)]).mean()

    def risk(self, batch: Batch) -> Tensor:
        """The mean of their risks on rows that were held out."""
        return torch.stack([member.risk(batch) for member in reversed(self.learning)]).mean()

    def state(self) -> list[Tensor]:
        """The tensors that are learned batch by batch."""
        return [tensor for member in reversed(self.members) for tensor in member.state()]

    def facts(self, log: Iterable[Batch]) -> dict[str, Any]:
        """JSON-able: the facts of the member with the imputation."""
        return self.main.facts(log)

    def finish(self) -> dict[str, Any]:
        """After training: calibrate on the probe; without one, shift the intercept by the weights."""
        context = self.context
        if context is None or context.probe is None or len(context.probe) == 0:
            found = self.main.finish()
            for member in self.members[:-1]:
                member.scorer.shift(self.main.shifted)
                member.shifted = self.main.shifted
            return found
        probe = FittedProbe.of(ProbeLabels(), context.probe, torch.zeros((), device=context.device), None)
        before = deepcopy(self.scorer.state_dict())
        try:
            return self._judge_and_learn(probe, context)
        except BaseException:  # also Ctrl-C: what was learned from the log stays whole
            self.scorer.load_state_dict(before)
            self.scorer.requires_grad_(False)
            raise

    def _judge_and_learn(self, probe: FittedProbe, context: FitContext) -> dict[str, Any]:
        """Weight the members by the probe, then learn its labels, then fit slope and intercept to it."""
        combination = self._combine(probe)
        facts: dict[str, Any] = {}
        if self.labels[-1] is not None:
            facts["probe"] = self._learn_labels(context)
        self._add_exposure(combination)
        found = combination._asdict() | {"intercept": self._fit_intercept(probe, combination.slope)}
        if len(self.members) == 1:
            del found["weight"]
        return facts | {"ensemble": found | {"members": len(self.members)}}

    @torch.no_grad()
    def _combine(self, probe: FittedProbe) -> Combination:
        """Take the weight of the members and the share of exposure from the probe."""
        scorer = self.scorer
        logits = torch.stack([member.scorer(probe.users, probe.items) for member in self.members])
        has_exposure, first = scorer.exposure_coefficients is not None, self.members[0].scorer
        exposure = first.exposure_logits(probe.users, probe.items) if has_exposure else None
        found = combine(probe.labels, logits, exposure, float(scorer.weights[-1]))
        if len(self.members) > 1:
            scorer.weights.copy_(torch.tensor([1 - found.weight, found.weight]))
        return found

    def _add_exposure(self, found: Combination) -> None:
        """Add (factor - 1) x the exposure part of the first member; all members have the same exposure covariate."""
        coefficients = getattr(self.members[0].scorer, "exposure_coefficients", None)
        if coefficients is not None:
            heaviest = int(self.scorer.weights.argmax())
            share = (found.exposure - 1) / float(self.scorer.weights[heaviest])
            self.members[heaviest].scorer.add_exposure(share * coefficients.detach())

    def _learn_labels(self, context: FitContext) -> dict[str, Any]:
        """Train on with the labels of the probe beside those of the log."""
        self.scorer.requires_grad_(True)
        short = context.short(PROBE_STEPS)
        for place, (member, labels) in enumerate(zip(self.members, self.labels, strict=True)):
            self.members[place] = member.rebuilt(short, probe=labels)
        self.main = self.members[-1]
        self.main.follows = len(self.members) > 1
        short.train(self, self.uses_pairs)
        found = self.members[0].probe
        return {} if found is None else found.facts()

    @torch.no_grad()
    def _fit_intercept(self, probe: FittedProbe, slope: float) -> float:
        """Take slope and intercept from the probe."""
        logits, scorer = self.scorer(probe.users, probe.items).double(), self.scorer
        p = torch.sigmoid(logits)
        centre = float((p * (1 - p) * logits).sum() / (p * (1 - p)).sum().clamp(min=1e-12))
        level = calibrating_intercept(centre + slope * (logits - centre), probe.labels)
        scorer.slope.fill_(slope)
        scorer.intercept.fill_((1 - slope) * centre + level)
        return level


class _SharedWeights(FittedWeights):
    """The weights of another learner, which moves them."""

    def __init__(self, of: FittedWeights) -> None:
        self.of = of

    @property
    def ratio(self) -> Tensor:  # type: ignore[override]
        return self.of.ratio

    @property
    def changes(self) -> bool:  # type: ignore[override]
        return self.of.changes

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return self.of.at(users, items, labels)


class Combination(NamedTuple):
    """The weights of the predictors in the average: see `combine`."""

    weight: float  # of the predictor with the imputation
    exposure: float  # factor of the exposure part of the predictor without imputation; more or less of it is added
    slope: float  # of the combined logit


def combine(labels: Tensor, logits: Tensor, exposure: Tensor | None, weight: float) -> Combination:
    """Weight, share of exposure and slope under which labels that no predictor has seen are likeliest.

    With z = (1 - weight) z_1 + weight z_2 the logits of two predictors (members, rows), or those of one, and x the
    exposure part of the first, a logistic regression of the labels on

        z + a + b (z - mean) + c (z_2 - z_1) + d x,      b, c, d ~ N(0, PRIOR_SD^2)

    gives the weight + c / (1 + b), from 0 to 1, and what is added of x, d / (1 + b), from -1 to 1. With a and b free it
    judges how well predictors tell pairs apart, in the units of log loss, and not where they lie. The slope is that of
    a second regression on the combined logit alone; its distance from 1 is shrunken by its error (`shrink_by_error`).
    """
    y, z = labels.double(), logits.double()
    difference = z[-1] - z[0]
    start = z[0] + weight * difference
    x = torch.zeros_like(start) if exposure is None else exposure.double()
    columns = torch.stack([torch.ones_like(start), *(value - value.mean() for value in (start, difference, x))], 1)
    beta, _ = logistic_regression(columns, y, start, y.new_tensor([0.0, *[PRIOR_SD**-2] * 3]))
    scale = max(1 + float(beta[1]), PRIOR_SD)
    chosen = min(max(weight + float(beta[2]) / scale, 0.0), 1.0)
    factor = min(max(1 + float(beta[3]) / scale, 0.0), 2.0)
    combined = z[0] + chosen * difference + (factor - 1) * x
    columns = torch.stack([torch.ones_like(combined), combined - combined.mean()], 1)
    beta, covariance = logistic_regression(columns, y, combined, torch.zeros(2).to(y))
    slope = 1 + shrink_by_error(float(beta[1]), float(covariance[1, 1]))
    return Combination(chosen, factor, max(slope, PRIOR_SD))


def calibrating_intercept(logits: Tensor, labels: Tensor) -> float:
    """The b with which sigmoid(logits + b) averages to the rate of the labels, shrunken (`shrink_by_error`).

    Its variance is 1 / sum of p (1 - p).
    """
    ones = torch.ones(len(logits), 1, dtype=torch.float64, device=logits.device)
    beta, covariance = logistic_regression(ones, labels.double(), logits.double(), torch.zeros(1).to(ones))
    return shrink_by_error(float(beta[0]), float(covariance[0, 0]))


def logistic_regression(columns: Tensor, labels: Tensor, offset: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """(coefficients, covariance) of P(label = 1) = sigmoid(offset + columns b), b ~ N(0, 1 / precision), by Newton.

    Two rows more, at the means of all columns and with the label that the offset predicts there, keep it finite where
    labels are of one kind.
    """
    columns = torch.cat([columns, columns.mean(0, keepdim=True).expand(2, -1)])
    labels = torch.cat([labels, torch.sigmoid(offset.mean()).expand(2)])
    offset = torch.cat([offset, offset.mean().expand(2)])
    beta, ridge = torch.zeros_like(precision), precision + 1e-6
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(offset + columns @ beta)
        slope = columns.T @ (labels - p) - ridge * beta
        information = (columns.T * (p * (1 - p))) @ columns + torch.diag(ridge)
        step = torch.linalg.solve(information, slope)
        beta = beta + step * min(1.0, 2.0 / max(float(step.abs().max()), 1e-12))
        if float(step.abs().max()) < 1e-9:
            break
    return beta, torch.linalg.inv(information)
