"""Imputed errors of unobserved pairs: a label is imputed, and scored by the same loss as real ones."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from counterpoise.config import Weighting
from counterpoise.data.batches import Batch
from counterpoise.errors import check_choice, check_number
from counterpoise.models.base import Backbone, Scorer, as_backbone
from counterpoise.risks import ErrorOf, error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, StepInputs, Weights
from counterpoise.training.learner import Learner
from counterpoise.training.optimizer import Rate


@dataclass
class NoImputation(Imputation):
    """No imputation: errors of 0, with which `dr` is `ips`."""

    imputes_errors: ClassVar[bool] = False
    any_error: ClassVar[bool] = True

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Nothing to learn."""
        return FittedImputation()


@dataclass
class ClippedPairs(NoImputation):
    """No term of the risk `pairwise` below -`floor`: pairs of two clicked items, whose weight is negative.

    Without a floor they make the risk unbiased, and unbounded below. (Saito 2020, who calls it non-negative.)
    """

    floor: float = 0.0

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Nothing to learn."""
        check_number("floor", self.floor, at_least=0)
        fitted = FittedImputation()
        fitted.floor = float(self.floor)
        return fitted


def ips_model(context: FitContext, weights: Weights) -> Scorer:
    """A model trained by the risk `ips` with these weights, for imputations that learn from one."""
    learner = Learner.init(context, weights, "ips", NoImputation())
    context.train(learner, learner.uses_pairs)
    return learner.scorer.requires_grad_(False)


@dataclass
class Constant(Imputation):
    """The same label for every pair: `label`, or None for the label rate of the probe."""

    any_error: ClassVar[bool] = True
    label: float | None = None

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The label is fixed before training."""
        if self.label is not None:
            check_number("label", self.label, at_least=0, at_most=1)
            return ConstantLabel(float(self.label), context.error)
        probe = context.need_probe("a constant imputed label", "Or give the `label` as a number in [0, 1].")
        return ConstantLabel(float(probe.labels.mean()), context.error)


@dataclass
class ConstantLabel(FittedImputation):
    """The errors of one label."""

    label: float
    error_of: ErrorOf = error

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        label = logits.new_full((), self.label)
        return self.error_of(label, logits), self.error_of(label, pair_logits)

    def facts(self) -> dict[str, Any]:
        return {"label": self.label}


def residual_weights(weighting: Weighting, weight: Tensor, mix: float = 0.5, batch: Batch | None = None) -> Tensor:
    """How much (error - imputed error)^2 of an observed pair counts in training the imputation; mean 1.

    With w = 1 / propensity: "error" w, an estimate of the mean over D (Wang et al. 2019); "variance" w (w - 1), of the
    variance of `dr` (MRDR, Guo et al. 2021); "bias" w (w - 1)^2, of the squared bias (Dai et al. 2022); "mse" mixes the
    last two, each scaled to mean 1, `mix` of the bias. Weights below 1, which no propensity has, count as 1 in w - 1.
    `batch`: whose mean is 1, by default that of these rows.
    """
    if weighting == "mse":
        bias, variance = (residual_weights(part, weight, batch=batch) for part in ("bias", "variance"))
        return mix * bias + (1 - mix) * variance
    if weighting == "error":
        return _mean_one(weight, batch)
    excess = (weight - 1).clamp(min=0)
    return _mean_one(weight * (excess if weighting == "variance" else excess.square()), batch)


def _mean_one(values: Tensor, batch: Batch | None) -> Tensor:
    total = values.sum() if batch is None else batch.sum(values)
    return values / (total / len(values)).clamp(min=1e-30)


def residual_slope(imputed_logits: Tensor, logits: Tensor, errors: Tensor, importance: Tensor) -> Tensor:
    """The gradient in the imputation's logits of the mean of importance x (error - imputed error)^2.

    The imputed error of label p = sigmoid(imputed logit) has slope -logit x p (1 - p), so that it is
    2 / rows x importance x (error - imputed error) x logit x p (1 - p).
    """
    labels = torch.sigmoid(imputed_logits)
    residual = errors - error(labels, logits)
    return (importance * residual * logits * labels * (1 - labels) * (2 / len(labels))).to(imputed_logits.dtype)


@dataclass
class Learned(Imputation):
    """A model of the label, trained so that the imputed error matches the observed one: mean of v (error - imputed)^2.

    `weighting` and `mix`: v, see `residual_weights`. `backbone`: the model, None for one like the predictor's.
    """

    weighting: Weighting = "error"
    mix: float = 0.5
    backbone: Backbone | str | None = None

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """A fresh model."""
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_number("mix", self.mix, at_least=0, at_most=1)
        return LearnedLabel(self, context)


class LearnedLabel(FittedImputation):
    """The errors of labels that a model predicts."""

    def __init__(self, part: Learned, context: FitContext) -> None:
        self.part, self.density = part, context.log.density
        self.scorer = context.build(deepcopy(as_backbone(part.backbone or context.backbone)))
        self.optimizer = context.optimizer(self.scorer)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        batch = inputs.batch
        importance = residual_weights(self.part.weighting, ratio / self.density, self.part.mix, batch)
        own = self.scorer(batch.users, batch.items)
        slope = residual_slope(own.detach(), inputs.logits, inputs.errors - shift, importance)
        self.optimizer.step((slope * own).sum(), rate)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        rows, on_pairs = self.labels(batch)
        return error(rows, logits), error(on_pairs, pair_logits)

    @torch.no_grad()
    def labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(the imputed labels of a batch's rows, and of its pairs of D)"""
        own, on_pairs = self.scorer.rows_and_pairs(batch.users, batch.items, *batch.pairs)
        return torch.sigmoid(own), torch.sigmoid(on_pairs)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]
