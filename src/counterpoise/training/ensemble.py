"""Two predictors instead of one: the first learns with the imputation, the second from labels alone.

What an imputation says of pairs that nobody rated cannot be checked on the log: where it is right it helps, where it is
wrong it misleads. So both are trained on the same batches, and the prediction is

    logit = (logit with the imputation + logit without) / 2 + level

The level makes predictions average to the label rate of the probe, as far as chance does not explain the difference.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.data.log import FeedbackLog
from counterpoise.imputation.base import Imputation, ZeroErrors
from counterpoise.imputation.mnar import shrink_by_error
from counterpoise.models.base import Scorer
from counterpoise.training.context import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Adam, Rate
from counterpoise.training.ordinal import no_say
from counterpoise.weights.base import FittedWeights, Weights

HALVINGS = 50  # of an interval of log odds


class EnsembleScorer(Scorer):
    """The mean of two scorers' logits, + a level."""

    level: Tensor  # (); of fits side by side one for each

    def __init__(self, believing: Scorer, doubting: Scorer) -> None:
        super().__init__()
        self.believing, self.doubting = believing, doubting
        self.n_users, self.n_items, self.stackable = believing.n_users, believing.n_items, believing.stackable
        table = believing.embeddings()[0]
        self.register_buffer("level", torch.zeros(table.shape[:-2], device=table.device))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits: Tensor = (self.believing(users, items) + self.doubting(users, items)) / 2 + self.level[..., None]
        return logits

    def grid(self, users: Tensor | None = None) -> Tensor:
        """As each, halfway between both."""
        return (self.believing.grid(users) + self.doubting.grid(users)) / 2 + self.level[..., None, None]

    def precision(self, name: str) -> float | Tensor:
        """That of the one whose parameter it is."""
        member, _, own = name.partition(".")
        return self.get_submodule(member).precision(own)  # type: ignore[no-any-return, operator]

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Of both, side by side."""
        pairs = zip(self.believing.embeddings(), self.doubting.embeddings(), strict=True)
        users, items = (torch.cat(tables, -1) for tables in pairs)
        return users, items

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """Of both, side by side, the users' halved, and the level beside a column of ones."""
        believing, doubting = self.believing.vectors(), self.doubting.vectors()
        if believing is None or doubting is None:
            return None
        ones = torch.ones_like(believing[1][..., :1])
        level = self.level[..., None, None] * torch.ones_like(believing[0][..., :1])
        users = torch.cat([believing[0] / 2, doubting[0] / 2, level], -1)
        return users, torch.cat([believing[1], doubting[1], ones], -1)

    @property
    def exposure_coefficients(self) -> Tensor | None:
        """What exposure says in the prediction, where both are told of it: they are told the same."""
        of_both = [getattr(scorer, "exposure_coefficients", None) for scorer in (self.believing, self.doubting)]
        return None if None in of_both else torch.stack(of_both).mean(0)  # type: ignore[arg-type]


class EnsembleLearner:
    """Two learners that see the same batches; what the weights learn, they learn beside the first."""

    def __init__(self, believer: Learner, probe: FeedbackLog | None) -> None:
        self.believer, self.probe = believer, probe
        self.fitted_weights, self.fitted_imputation, self.uses_pairs = (
            believer.fitted_weights,
            believer.fitted_imputation,
            believer.uses_pairs,
        )
        self.grading = believer.grading
        risk = "ips" if believer.risk_name in risks.NEED_IMPUTATION else believer.risk_name
        scorer, grading = deepcopy(believer.scorer), believer.grading and believer.grading.again()
        optimizer = Adam.of(scorer, believer.optimizer.learning_rate, len(believer.log.labels), grading)
        self.doubter = Learner(
            scorer, _Borrowed(believer.fitted_weights), ZeroErrors(), risk, optimizer, believer.log, grading
        )
        self.scorer = EnsembleScorer(believer.scorer, scorer)

    @property
    def still(self) -> bool:
        """As the first: the second has nothing of its own that moves."""
        return self.believer.still

    def begin_epoch(self, epoch: int) -> None:
        """Let the weights look at the whole log."""
        self.believer.begin_epoch(epoch)

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One step of each; the mean of their losses."""
        return (self.believer.step(batch, rate) + self.doubter.step(batch, rate)) / 2

    def risk(self, batch: Batch) -> Tensor:
        """The mean of their risks on rows that were held out."""
        return (self.believer.risk(batch) + self.doubter.risk(batch)) / 2

    def state(self) -> list[Tensor]:
        """Everything that is learned batch by batch."""
        return self.believer.state() + self.doubter.state()

    def risk_on_log(self, batch: Batch) -> tuple[float, float]:
        """(the risk, the mean error) of the first on some rows of the log."""
        return self.believer.risk_on_log(batch)

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """JSON-able: what weights and imputation have to say, and the level."""
        facts = self.believer.facts()
        return facts | {"imputation": facts["imputation"] | {"level": self._settle()}}

    def _settle(self) -> float:
        """The level, from the probe where there is one."""
        own, probe = self.scorer.level, self.probe
        own.zero_()
        if probe is not None and len(probe):
            columns = (probe.users, probe.items, probe.labels)
            users, items, labels = (torch.from_numpy(column).to(own.device) for column in columns)
            own.fill_(level(self.scorer(users, items), labels))
        return float(own)


class _Borrowed(FittedWeights):
    """The weights of another learner, which moves them."""

    def __init__(self, of: FittedWeights) -> None:
        self.of = of

    @property
    def ratio(self) -> Tensor:  # type: ignore[override]
        return self.of.ratio

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        return self.of.at(users, items, labels)


AnyLearner = Learner | EnsembleLearner


def init(
    context: FitContext, weights: Weights, risk: str, imputation: Imputation, hedge: bool, grades: bool = False
) -> AnyLearner:
    """What the loop trains."""
    return hedged(Learner.init(context, weights, risk, imputation, grades), context.probe, hedge)


def hedged(learner: Learner, probe: FeedbackLog | None, hedge: bool) -> AnyLearner:
    """The learner, with a second one beside it if that is wanted, and if it learns anything that is to be doubted."""
    return EnsembleLearner(learner, probe) if hedge and learner.heeds_imputation else learner


def no_doubt(learner: AnyLearner) -> str | None:
    """Why there is nothing that a second predictor could doubt; None where there is one."""
    if isinstance(learner, EnsembleLearner):
        return None
    if isinstance(learner.fitted_imputation, ZeroErrors):
        return "nothing is imputed"
    return "the risk heeds no imputation" if learner.fitted_imputation.speaks else "the imputation says nothing"


def inactive_settings(learner: AnyLearner, log: FeedbackLog, hedge: bool, grades: bool) -> dict[str, dict[str, str]]:
    """JSON-able: which of the two settings came to nothing, and why, if any did."""
    asked = {
        "hedge": no_doubt(learner) if hedge else None,
        "grades": no_say(log) if grades and learner.grading is None else None,
    }
    found = {name: why for name, why in asked.items() if why is not None}
    return {"inactive_settings": found} if found else {}


def level(logits: Tensor, labels: Tensor) -> float:
    """The b with which sigmoid(logits + b) averages to the rate of the labels, shrunken (`shrink_by_error`).

    Its variance is 1 / sum of p (1 - p). The rate has a row of each label more, so that there is a b for any labels.
    """
    logits, rate = logits.double(), (float(labels.sum()) + 1) / (len(labels) + 2)
    low, high = -32.0, 32.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if float(torch.sigmoid(logits + middle).mean()) > rate else (middle, high)
    chance = torch.sigmoid(logits + high)
    return shrink_by_error(high, 1 / max(float((chance * (1 - chance)).sum()), 1e-12))
