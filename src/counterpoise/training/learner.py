"""One step of joint learning: imputation, then weights, then the predictor, each moved by its own loss alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.balance.diagnostics import weight_facts
from counterpoise.imputation.base import FittedImputation, Imputation
from counterpoise.models.base import Scorer
from counterpoise.models.embedding_ops import take
from counterpoise.training.closed_steps import closed_step, has_closed_form
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch, Batches
from counterpoise.training.optimizer import Adam, Rate
from counterpoise.training.ordinal import FittedOrdinal
from counterpoise.weights.base import EpochInputs, FittedWeights, StepInputs, Weights


class Logits(NamedTuple):
    """Of the predictor on the rows of a batch and on its pairs of D; and without what it was told of exposure."""

    rows: Tensor
    pairs: Tensor  # empty where neither risk nor weights look at pairs
    own_rows: Tensor
    own_pairs: Tensor  # empty where no part looks at pairs


@dataclass(eq=False)
class Learner:
    """What the loop trains: a scorer on a risk made of weights and imputation, plus its penalty."""

    scorer: Scorer
    fitted_weights: FittedWeights
    fitted_imputation: FittedImputation
    risk_name: str
    optimizer: Adam
    log: Batches  # the whole log as one batch, for what is asked of all of it
    grading: FittedOrdinal | None = None  # where grades are learned from too

    @classmethod
    def init(
        cls, context: FitContext, weights: Weights, risk: str, imputation: Imputation, grades: bool = False
    ) -> Self:
        """Everything that is learned before the first step, and fresh models for the rest."""
        scorer = context.build(context.backbone)  # first, so that all methods start from the same draw
        fitted_weights = weights.init(context)
        fitted_imputation = imputation.init(context, fitted_weights)
        grading = FittedOrdinal.init(context) if grades else None
        optimizer = Adam.of(scorer, context.training.learning_rate, len(context.log), grading)
        return cls(scorer, fitted_weights, fitted_imputation, risk, optimizer, context.batches(), grading)

    @property
    def uses_pairs(self) -> bool:
        """Whether a step looks at pairs of D."""
        return self.scores_pairs or self.fitted_weights.needs_pairs or self.fitted_imputation.needs_pairs

    @property
    def scores_pairs(self) -> bool:
        """Whether the risk or the weights look at the predictor's logits there."""
        fitted_weights = self.fitted_weights
        return self.risk_name in risks.NEED_IMPUTATION or (
            fitted_weights.needs_pairs and fitted_weights.needs_pair_logits
        )

    @property
    def heeds_imputation(self) -> bool:
        """Whether the predictor learns from what is imputed: in the risk, or beside it."""
        beside = type(self.fitted_imputation).extra_loss is not FittedImputation.extra_loss
        return self.fitted_imputation.speaks and (beside or self.risk_name in risks.NEED_IMPUTATION)

    @property
    def still(self) -> bool:
        """Whether a step does the same to any batch, with no number that the host must know (`graphs`)."""
        return self.fitted_weights.steady and self.fitted_imputation.still

    def begin_epoch(self, epoch: int) -> None:
        """Let the weights look at the whole log."""
        self.fitted_weights.refresh(epoch, EpochInputs(self._residuals, self.scorer.features))

    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One step of every part; the loss of the predictor before its own."""
        if has_closed_form(self, batch):
            return closed_step(self, batch, rate)
        logits, pair_logits, *own = self._told_and_own(batch)
        errors = self._errors(batch, logits)
        view = StepInputs(batch, logits.detach(), pair_logits.detach(), errors.detach())
        self.fitted_imputation.step(view, self._ratio(batch), rate)
        imputed, imputed_on_pairs = self._imputed(batch, logits, pair_logits, errors)
        self.fitted_weights.step(view, imputed.detach(), imputed_on_pairs.detach(), rate)
        ratio = self._ratio(batch)
        alone = batch.share.whole or self.risk_name != "snips"
        mean = None if alone else batch.share.mean(ratio)[0]
        risk = self._risk(errors, ratio, imputed, imputed_on_pairs, mean)
        extras = [self.fitted_weights.extra_loss(batch, logits, pair_logits), self.fitted_imputation.extra_loss(*own)]
        if self.grading is not None:
            extras.append(
                self._weighted(self.grading.surprise(batch, logits + self.fitted_imputation.offset), ratio, mean)
            )
        loss = batch.share.weighed(sum((extra for extra in extras if extra is not None), risk))
        with torch.no_grad():
            penalty = self.optimizer.penalty(loss.ndim)
        self.optimizer.step(loss, rate)
        return loss.detach() + penalty

    def risk(self, batch: Batch) -> Tensor:
        """The risk on rows that were held out.

        Their weights are scaled to mean 1: weights that are learned on the way may drift in scale, and the risk with
        them. A risk that looks at no labels is judged by the weighted error.
        """
        logits, pair_logits = self._logits(batch)
        errors = self._errors(batch, logits)
        ratio = self.fitted_weights.at(batch.users, batch.items, batch.labels)
        ratio = ratio / ratio.mean()
        if self.risk_name == "direct":
            return risks.snips(errors, ratio)
        return self._risk(errors, ratio, *self._imputed(batch, logits, pair_logits, errors))

    def state(self) -> list[Tensor]:
        """Everything that is learned batch by batch."""
        own = [parameter.data for parameter in self.optimizer.parameters]
        return own + self.fitted_weights.state() + self.fitted_imputation.state()

    def facts(self) -> dict[str, Any]:
        """JSON-able: what weights and imputation have to say after training."""
        self.fitted_weights.settle()
        weights = self.fitted_weights.facts() | weight_facts(self.fitted_weights.ratio.cpu().numpy())
        graded = {} if self.grading is None else {"grades": self.grading.facts()}
        return {"weights": weights, "imputation": self.fitted_imputation.facts()} | graded

    def risk_on_log(self, batch: Batch) -> tuple[float, float]:
        """(the risk, the mean error) on some rows of the log, with the weights that they have."""
        logits, pair_logits = self._logits(batch)
        errors = self._errors(batch, logits)
        imputed = self._imputed(batch, logits, pair_logits, errors)
        return float(self._risk(errors, self.fitted_weights.ratio[batch.rows], *imputed)), float(errors.mean())

    def _logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._told_and_own(batch)[:2]

    def _told_and_own(self, batch: Batch) -> Logits:
        own_scorer, pairs = self.scorer.own(), (batch.pair_users, batch.pair_items)
        if not (self.scores_pairs or self.fitted_imputation.needs_pairs):
            logits = self.scorer(batch.users, batch.items)
            return Logits(logits, logits[..., :0], logits, logits[..., :0])
        own = own_scorer.rows_and_pairs(batch.users, batch.items, *pairs)
        if own_scorer is self.scorer:
            return Logits(*own, *own)
        rows = own[0] + self.scorer.exposure_logits(batch.users, batch.items)
        return Logits(rows, own[1] + self.scorer.exposure_logits(*pairs) if self.scores_pairs else rows[..., :0], *own)

    def _ratio(self, batch: Batch) -> Tensor:
        ratio = self.fitted_weights.ratio
        return ratio[batch.rows] if ratio.ndim == 1 else take(ratio, batch.rows)

    def _errors(self, batch: Batch, logits: Tensor) -> Tensor:
        """Of the rows, whose labels are as they are where they were observed."""
        return risks.error(batch.labels, logits + self.fitted_imputation.offset)

    def _imputed(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """The imputed errors of the rows, and of the pairs of D where the predictor was asked there."""
        asked = batch if self.scores_pairs else batch.without_pairs()
        return self.fitted_imputation.errors(asked, logits, pair_logits, errors)

    def _risk(
        self, errors: Tensor, ratio: Tensor, imputed: Tensor, imputed_on_pairs: Tensor, mean: Tensor | None = None
    ) -> Tensor:
        """`mean`: of the ratio of all rows that these are a share of, by default of these."""
        if self.risk_name == "dr":
            return risks.dr(errors, ratio, imputed, imputed_on_pairs)
        if self.risk_name == "direct":
            return risks.direct(imputed_on_pairs)
        return self._weighted(errors, ratio, mean)

    def _weighted(self, errors: Tensor, ratio: Tensor, mean: Tensor | None = None) -> Tensor:
        return risks.snips(errors, ratio, mean) if self.risk_name == "snips" else risks.ips(errors, ratio)

    @torch.no_grad()
    def _residuals(self) -> Tensor:
        """Error minus imputed error of every row of the log."""
        batch = self.log.whole()
        logits = self.scorer(batch.users, batch.items)
        errors = self._errors(batch, logits)
        return errors - self.fitted_imputation.errors(batch, logits, logits[..., :0], errors)[0]


@torch.no_grad()
def finish(learner: Any, batch: Batch) -> dict[str, Any]:
    """JSON-able: what the parts have to say after training, and the risk reached on the whole log, which `batch` is."""
    facts = learner.facts()  # first: it lets the weights settle
    risk, errors = learner.risk_on_log(batch)
    return {**facts, "risk": risk, "error_on_log": errors}
