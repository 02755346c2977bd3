"""Label-based distillation: a teacher is fitted to the probe alone, and the predictor learns from its labels too.

(KDCRec: Liu, Cheng, Dong, He, Pan and Ming 2020, A General Knowledge Distillation Framework for Counterfactual
Recommendation via Uniform Data.) Differences from the released code: all errors are log losses of probabilities, where
it has squared errors of labels -1 and 1; the predictor starts from its own draw, not from a model of the log; the range
of the teacher's labels is that over the log, not over each batch.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import check_number
from counterpoise.models.base import Backbone, Scorer, as_backbone
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, mean_error


def fit_teacher(context: FitContext, backbone: Backbone | str | None) -> Scorer:
    """A model of the labels that is fitted to the probe alone; its prior counts by the probe's rows."""
    probe = context.need_probe("a teacher", "Without one, train by 'mf'.")
    own = context.backbone if backbone is None else backbone
    return context.on(probe).fit_scorer(deepcopy(as_backbone(own)), mean_error)


def bridge_loss(teacher: Tensor, pair_logits: Tensor) -> Tensor:
    """Mean over D of CE(teacher's probability -> prediction): their divergence, up to a constant."""
    return error(teacher, pair_logits).mean()


def refined_labels(labels: Tensor, teacher: Tensor, low: float, high: float, strength: float) -> Tensor:
    """(r + strength x z) / (1 + strength), with z = (teacher - low) / (high - low) in [0, 1].

    The published target is r + strength x z. Under a squared error the division changes a scale; the log loss of a
    target above 1 has no lower bound.
    """
    scaled = ((teacher - low) / max(high - low, 1e-12)).clamp(0, 1)
    return (labels + strength * scaled) / (1 + strength)


@dataclass
class BridgeDistillation(Imputation):
    """Beside the risk, the distance to a teacher on uniform pairs: strength x mean over D of CE(teacher -> prediction).

    The teacher is fitted to the probe alone. `backbone`: the teacher's, None for one like the predictor's.
    """

    imputes_errors: ClassVar[bool] = False
    strength: float = 0.3
    backbone: Backbone | str | None = None

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Fit the teacher."""
        check_number("strength", self.strength, at_least=0)
        return FittedBridge(fit_teacher(context, self.backbone), self.strength)


class FittedBridge(FittedImputation):
    """The distance to a fitted teacher."""

    learns_from_probe = True

    def __init__(self, teacher: Scorer, strength: float) -> None:
        self.teacher, self.strength = teacher, strength
        self.active = self.needs_pairs = strength > 0
        self._everywhere: Tensor | None = None  # (|D|,) once it was asked for

    def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor | None:
        if not self.active:
            return None
        return self.strength * bridge_loss(self._labels(batch.pair_users, batch.pair_items), pair_logits)

    @torch.no_grad()
    def _labels(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is not None:
            return torch.sigmoid(self.teacher.at(users, items))
        if self._everywhere is None:
            self._everywhere = torch.sigmoid(self.teacher.at(None, None))
        return self._everywhere


@dataclass
class RefineDistillation(Imputation):
    """The labels of the log, each moved towards what a teacher predicts: (r + strength x z) / (1 + strength).

    z is the teacher's probability, scaled so that it is 0 and 1 at its ends over the log (`refined_labels`). The
    teacher is fitted to the probe alone. `backbone`: the teacher's, None for one like the predictor's.
    """

    imputes_errors: ClassVar[bool] = False
    strength: float = 0.1
    backbone: Backbone | str | None = None

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Fit the teacher."""
        check_number("strength", self.strength, at_least=0)
        return FittedRefinement(fit_teacher(context, self.backbone), self.strength, context.batches().whole())


class FittedRefinement(FittedImputation):
    """Labels that are moved towards those of a fitted teacher."""

    learns_from_probe = True

    def __init__(self, teacher: Scorer, strength: float, log: Batch) -> None:
        self.teacher, self.strength = teacher, strength
        predicted = self._labels(log)
        self.low, self.high = float(predicted.min()), float(predicted.max())

    def targets(self, batch: Batch) -> Tensor:
        return refined_labels(batch.labels, self._labels(batch), self.low, self.high, self.strength)

    @torch.no_grad()
    def _labels(self, batch: Batch) -> Tensor:
        return torch.sigmoid(self.teacher(batch.users, batch.items))

    def facts(self) -> dict[str, Any]:
        return {"smallest_teacher_label": self.low, "largest_teacher_label": self.high}
