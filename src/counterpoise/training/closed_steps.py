"""A step on a few pairs without autograd, which would take longer than all of its small operations together."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.imputation.base import FittedImputation
from counterpoise.models.base import Scorer
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Adam, Rate
from counterpoise.weights.base import FittedWeights, StepInputs


class Parts(Protocol):
    """What takes a step: a `Learner`."""

    scorer: Scorer
    fitted_weights: FittedWeights
    fitted_imputation: FittedImputation
    risk_name: str
    optimizer: Adam

    @property
    def grading(self) -> object:
        """What is learned beside the risk, if anything."""


def has_closed_form(parts: Parts, batch: Batch) -> bool:
    """Whether `closed_step` is a step of these parts on this batch: each has one, and the risk is of labels alone."""
    users, fitted_imputation = batch.users, parts.fitted_imputation
    return (
        parts.risk_name == ("dr" if fitted_imputation.speaks else "ips")
        and not (fitted_imputation.speaks and batch.pair_users is None)
        and parts.grading is None
        and parts.optimizer.averaged is None
        and all(part.has_closed_form(users) for part in (parts.fitted_weights, fitted_imputation, parts.scorer))
    )


@torch.inference_mode()
def closed_step(parts: Parts, batch: Batch, rate: Rate) -> Tensor:
    """One step of every part; the loss of the predictor before its own. As `Learner.step`, from known slopes."""
    fitted_weights, fitted_imputation, rows, labels = (
        parts.fitted_weights,
        parts.fitted_imputation,
        len(batch.rows),
        batch.labels,
    )
    users, items = _rows_and_pairs(batch) if fitted_imputation.speaks else (batch.users, batch.items)
    logits, pull_back = parts.scorer.traced(users, items)
    of_rows, of_pairs = logits[:rows], logits[rows:]
    view = StepInputs(batch, of_rows, of_pairs, risks.error(labels, of_rows))
    fitted_imputation.step(view, fitted_weights.ratio.index_select(0, batch.rows), rate)
    imputed_labels = fitted_imputation.labels(users, items)
    imputed = torch.zeros_like(logits) if imputed_labels is None else risks.error(imputed_labels, logits)
    imputed_on_rows, imputed_on_pairs = imputed[:rows], imputed[rows:]
    fitted_weights.step(view, imputed_on_rows, imputed_on_pairs, rate)
    ratio = fitted_weights.ratio.index_select(0, batch.rows)
    if imputed_labels is None:
        risk, slopes = risks.ips(view.errors, ratio), risks.ips_slopes(labels, logits, ratio)
    else:
        risk = risks.dr(view.errors, ratio, imputed_on_rows, imputed_on_pairs)
        slopes = risks.dr_slopes(labels, logits, ratio, imputed_labels)
    loss = risk + parts.optimizer.penalty()
    parts.optimizer.follow(pull_back(slopes), rate)
    return loss


def _rows_and_pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    """The codes of the rows, then those of the pairs of D."""
    assert batch.pair_users is not None
    assert batch.pair_items is not None
    return torch.cat([batch.users, batch.pair_users]), torch.cat([batch.items, batch.pair_items])
