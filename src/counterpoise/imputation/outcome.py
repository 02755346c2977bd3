"""Labels imputed by a model of the outcome that was trained before the predictor, by the same weights."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.imputation.base import NoImputation
from counterpoise.models.base import Backbone, Scorer, as_backbone
from counterpoise.models.exposure import ExposureCovariate
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, Weights
from counterpoise.training.learner import Learner


@dataclass
class OutcomeModel(Imputation):
    """The imputed label is what a model predicts that was trained by the risk `ips` with the weights of the fit.

    `backbone`: the model; None for the predictor's with an exposure covariate. Doubly robust estimates let the outcome
    depend on all that selection may depend on, and the predictor then learns it for every pair of D.

    Where the model is the predictor's own, with its prior and weights, the risk `dr` has its minimum at the model
    itself: there the corrections sum w (label - imputed) d logit are the slope of the prior. So imputing by a model
    that predicts well costs nothing, while labels corrected from an imputation that is far off are mostly noise.
    """

    backbone: Backbone | str | None = None
    correction: float = 0.1

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Train the model; weights that choose by errors are solved on the way, by those of this model."""
        check_number("correction", self.correction, above=0, at_most=1, advice="1 is the doubly robust risk itself.")
        own = context.backbone
        if self.backbone is not None:
            own = as_backbone(self.backbone)
        elif not isinstance(own, ExposureCovariate):
            own = ExposureCovariate(own)
        learner = Learner.init(replace(context, backbone=deepcopy(own)), _Given(weights), "ips", NoImputation())
        context.train(learner, learner.uses_pairs)
        return OutcomeLabel(learner.scorer.requires_grad_(False), own, self.correction)


class _Given(Weights):
    """Weights of a fit that has begun."""

    def __init__(self, weights: FittedWeights) -> None:
        self.weights = weights

    def init(self, context: FitContext) -> FittedWeights:
        return self.weights


class OutcomeLabel(FittedImputation):
    """The errors of labels that a trained model predicts."""

    def __init__(self, scorer: Scorer, backbone: Backbone, correction: float) -> None:
        self.scorer, self.backbone, self.prior_scale = scorer, backbone, correction
        self._everywhere: Tensor | None = None  # (|D|,) once it was asked for

    def start(self, scorer: Scorer) -> None:
        """The predictor starts from the model without its exposure covariate, where both are of a kind."""
        mine, own = (dict(model.base().state_dict()) for model in (self.scorer, scorer))
        if type(self.scorer.base()) is type(scorer.base()) and all(
            name in mine and mine[name].shape == values.shape for name, values in own.items()
        ):
            scorer.base().load_state_dict({name: mine[name] for name in own})

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        labels, on_pairs = self._labels(batch, len(pair_logits) > 0)
        return torch.lerp(errors, error(labels, logits), self.prior_scale), error(on_pairs, pair_logits)

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
