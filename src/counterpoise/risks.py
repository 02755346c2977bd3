"""Estimates of the ideal loss, the mean error over all pairs D, from the errors of observed pairs."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def error(labels: Tensor, logits: Tensor) -> Tensor:
    """Per pair: -label log(prediction) - (1 - label) log(1 - prediction), from the logit."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="none")


def ips(errors: Tensor, ratio: Tensor) -> Tensor:
    """Mean over O of ratio x error, where ratio = weight x density: (1/|D|) sum over O of error / propensity."""
    return (ratio * errors).mean()


Risk = Callable[[Tensor, Tensor], Tensor]

RISKS: dict[str, Risk] = {"ips": ips}
