"""Labels imputed by a model of the outcome that was trained before the predictor, by the same weights."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.imputation.base import ips_model
from counterpoise.models.base import Backbone, Scorer, as_backbone
from counterpoise.models.exposure import ExposureCovariate
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, Weights

MIN_EVIDENCE = 11.3  # the 99th percentile of chi-squared with 3 degrees of freedom


@dataclass
class OutcomeModel(Imputation):
    """The imputed label is what a model predicts that was trained by the risk `ips` with the weights of the fit.

    `backbone`: the model; None for the predictor's with an exposure covariate, where labels depend on it (p < 0.01).
    Doubly robust estimates let the outcome depend on all that selection depends on, and the predictor then learns it
    for every pair of D.
    `correction`: the share of the correction w (error - imputed error), and of the predictor's prior, that counts.
    Where the model is the predictor's own, with its prior and weights, any share gives the model itself: its slope,
    sum w (label - imputed) d logit, is that of the prior. What the model knows besides, the prior would take from the
    predictor; labels corrected in full are far outside of [0, 1] and mostly noise. Below 1 the risk is no longer doubly
    robust: it removes that share of the bias that weights would still find in the model.
    """

    backbone: Backbone | str | None = None
    correction: float = 0.1

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Train the model; weights that choose by errors choose by its errors, and stay for the predictor."""
        check_number("correction", self.correction, above=0, at_most=1, advice="1 is the doubly robust risk itself.")
        if self.backbone is not None or isinstance(context.backbone, ExposureCovariate):
            own = context.backbone if self.backbone is None else as_backbone(self.backbone)
            return OutcomeLabel(_trained(context, weights, own), own, self.correction)
        own = ExposureCovariate(context.backbone)
        scorer = _trained(context, weights, own)
        information = len(context.log) * float(context.log.labels.var())
        if scorer.exposure_evidence(information) < MIN_EVIDENCE:
            own, scorer = context.backbone, _trained(context, weights, context.backbone)
        return OutcomeLabel(scorer, own, self.correction)


def _trained(context: FitContext, weights: FittedWeights, backbone: Backbone) -> Scorer:
    return ips_model(replace(context, backbone=deepcopy(backbone)), _Given(weights))


class _Given(Weights):
    """Weights of a fit that has begun."""

    def __init__(self, weights: FittedWeights) -> None:
        self.weights = weights

    def init(self, context: FitContext) -> FittedWeights:
        return self.weights


class OutcomeLabel(FittedImputation):
    """The errors of labels that a trained model predicts."""

    def __init__(self, scorer: Scorer, backbone: Backbone, correction: float) -> None:
        self.scorer, self.backbone, self.correction, self.prior_scale = scorer, backbone, correction, correction
        self._everywhere: Tensor | None = None  # (|D|,) once it was asked for

    def start(self, scorer: Scorer) -> None:
        """The predictor starts from the model without its exposure covariate, where both are of a kind."""
        mine, own = (dict(model.base().state_dict()) for model in (self.scorer, scorer))
        if type(self.scorer.base()) is type(scorer.base()) and all(
            name in mine and mine[name].shape == values.shape for name, values in own.items()
        ):
            scorer.base().load_state_dict({name: mine[name] for name in own})
            scorer.base().take_estimates(self.scorer.base())

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        labels, on_pairs = self._labels(batch, len(pair_logits) > 0)
        return error(labels, logits), error(on_pairs, pair_logits)

    @torch.no_grad()
    def _labels(self, batch: Batch, with_pairs: bool) -> tuple[Tensor, Tensor]:
        """The imputed labels of rows and pairs; those of all of D are computed once."""
        if with_pairs and batch.pair_users is None:
            if self._everywhere is None:
                self._everywhere = torch.sigmoid(self.scorer.at(None, None))
            return self._everywhere[self.scorer.position(batch.users, batch.items)], self._everywhere
        rows = torch.sigmoid(self.scorer(batch.users, batch.items))
        if not with_pairs:
            return rows, rows[:0]
        return rows, torch.sigmoid(self.scorer(batch.pair_users, batch.pair_items))

    def facts(self) -> dict[str, Any]:
        coefficients = getattr(self.scorer, "exposure_coefficients", None)
        return {} if coefficients is None else {"exposure_coefficients": coefficients.tolist()}
