"""Estimates of the ideal loss, the mean error over all pairs D: each a pure function of errors and ratios.

Means are over the last axis: what stands before it are fits side by side.
"""

from __future__ import annotations

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


def snips(errors: Tensor, ratio: Tensor, mean: Tensor | None = None) -> Tensor:
    """(sum over O of weight x error) / (sum over O of weight): between the least and the largest error.

    `mean`: of the ratio, where it is of more rows than these.
    """
    return (ratio * errors).sum(-1) / ratio.sum(-1) if mean is None else ips(errors, ratio) / mean


def dr(errors: Tensor, ratio: Tensor, imputed: Tensor, imputed_on_pairs: Tensor) -> Tensor:
    """Mean over D of imputed error + mean over O of ratio x (error - imputed error)."""
    return direct(imputed_on_pairs) + ips(errors - imputed, ratio)


def direct(imputed_on_pairs: Tensor) -> Tensor:
    """Mean over D of the imputed error: the part of `dr` that speaks of all pairs, alone."""
    return imputed_on_pairs.mean(-1)
