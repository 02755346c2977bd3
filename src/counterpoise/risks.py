"""Estimates of the ideal loss, the mean error over all pairs D: each a pure function of errors and ratios.

Means are over the last axis: what stands before it are fits side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

RISKS = ("ips", "snips", "dr", "direct")
NEED_IMPUTATION = ("dr", "direct")


def error(labels: Tensor, logits: Tensor) -> Tensor:
    """Per pair: -label log(prediction) - (1 - label) log(1 - prediction), from the logit."""
    return binary_cross_entropy_with_logits(logits, labels.expand_as(logits), reduction="none")


def ips(errors: Tensor, ratio: Tensor) -> Tensor:
    """Mean over O of ratio x error, where ratio = weight x density: (1/|D|) sum over O of error / propensity."""
    return (ratio * errors).mean(-1)


def ips_slopes(labels: Tensor, logits: Tensor, ratio: Tensor) -> Tensor:
    """Of `ips` in the logits: ratio x (prediction - label) / rows."""
    return (torch.sigmoid(logits) - labels) * ratio / len(labels)


def snips(errors: Tensor, ratio: Tensor, mean: Tensor | None = None) -> Tensor:
    """(sum over O of weight x error) / (sum over O of weight): between the least and the largest error.

    `mean`: of the ratio, where it is of more rows than these.
    """
    return (ratio * errors).sum(-1) / ratio.sum(-1) if mean is None else ips(errors, ratio) / mean


def dr(errors: Tensor, ratio: Tensor, imputed: Tensor, imputed_on_pairs: Tensor) -> Tensor:
    """Mean over D of imputed error + mean over O of ratio x (error - imputed error)."""
    return direct(imputed_on_pairs) + ips(errors - imputed, ratio)


def dr_slopes(labels: Tensor, logits: Tensor, ratio: Tensor, imputed_labels: Tensor) -> Tensor:
    """Of `dr` in the logits of the rows and then of the pairs of D, where the imputed errors are those of labels.

    ratio x (imputed label - label) / rows, since predictions cancel; and (prediction - imputed label) / pairs.
    """
    rows = len(labels)
    of_rows = (imputed_labels[:rows] - labels) * ratio / rows
    of_pairs = (torch.sigmoid(logits[rows:]) - imputed_labels[rows:]) / (len(logits) - rows)
    return torch.cat([of_rows, of_pairs])


def direct(imputed_on_pairs: Tensor) -> Tensor:
    """Mean over D of the imputed error: the part of `dr` that speaks of all pairs, alone."""
    return imputed_on_pairs.mean(-1)
