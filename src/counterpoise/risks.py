"""Estimates of the ideal loss, the mean error over all pairs D, and the losses they are made of.

Each is a pure function of tensors. `ratio` = weight x density of each observed row, 1 on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

RISKS = ("ips", "snips", "dr", "direct", "exposed", "pairwise", "probe")  # the last: the mean error on a uniform sample
NEED_IMPUTATION = ("dr", "direct", "exposed")
FOR_CLICKS = ("dr", "exposed", "pairwise")  # risks that look at pairs that were not clicked
LOOK_AT_PAIRS = (*NEED_IMPUTATION, "pairwise")


def error(labels: Tensor, logits: Tensor) -> Tensor:
    """Log loss of each pair: -label log(prediction) - (1 - label) log(1 - prediction), from the logit."""
    return binary_cross_entropy_with_logits(logits, labels.expand_as(logits), reduction="none")


def squared_error(labels: Tensor, logits: Tensor) -> Tensor:
    """Squared error of the probability, (label - sigmoid(logit))^2: bounded, also under weights below 0."""
    return (labels - torch.sigmoid(logits)).square()


def linear_error(labels: Tensor, logits: Tensor) -> Tensor:
    """Squared error of the logit itself, (label - logit)^2: what least squares minimises."""
    return (labels - logits).square()


ErrorOf = Callable[[Tensor, Tensor], Tensor]  # of labels and logits
ERRORS: Mapping[str, ErrorOf] = {"log": error, "squared": squared_error, "linear": linear_error}


def ips(errors: Tensor, ratio: Tensor) -> Tensor:
    """Inverse propensity scoring: mean over O of ratio x error = (1/|D|) sum over O of error / propensity."""
    return (ratio * errors).mean()


def snips(errors: Tensor, ratio: Tensor, total: Tensor | None = None) -> Tensor:
    """Self-normalised IPS: (sum over O of ratio x error) / (sum over O of ratio).

    `total`: the sum of the ratios, by default that of these rows.
    """
    return (ratio * errors).sum() / (ratio.sum() if total is None else total)


def dr(errors: Tensor, ratio: Tensor, imputed: Tensor, imputed_on_pairs: Tensor, correction: float = 1.0) -> Tensor:
    """Doubly robust: mean over D of the imputed error + mean over O of ratio x (error - imputed error).

    `correction`: a share of the second term; below 1 it removes that share of the imputation's bias.
    """
    return direct(imputed_on_pairs) + correction * ips(errors - imputed, ratio)


def exposed(errors: Tensor, imputed: Tensor, imputed_on_pairs: Tensor, exposure: Tensor, density: float) -> Tensor:
    """Mean over D of exposure x imputed error + density x mean over O of (error - imputed error).

    It is `dr` with each pair of D counted by its chance of being observed, which cancels the weights: what is estimated
    is the mean error over exposed pairs, with the same best prediction for each pair and no large weights.
    """
    return (exposure * imputed_on_pairs).mean() + density * (errors - imputed).mean()


def direct(imputed_on_pairs: Tensor) -> Tensor:
    """Mean over D of the imputed error."""
    return imputed_on_pairs.mean()


def pairwise(
    logits: Tensor, pair_logits: Tensor, weight: Tensor, pair_weight: Tensor, floor: float = math.inf
) -> Tensor:
    """Mean over clicks (u, i) and uniform items j of max(w_ui (1 - y_uj w_uj) l, -floor).

    l = -log sigmoid(s_ui - s_uj). With w = 1 / P(exposed) its mean, times the density, is that of
    P(i relevant) P(j not relevant) l over all u, i and j (Saito 2020, Unbiased Pairwise Learning from Biased Implicit
    Feedback). With w = 1 it is that of l over clicked i and items j that were not clicked (BPR, Rendle et al. 2009).
    Pairs stand in as many copies of the rows, one after another; `pair_weight`: y w of each, 0 for an unclicked one.
    """
    difference = logits - pair_logits.view(-1, len(logits))
    terms = weight * (1 - pair_weight).view_as(difference) * softplus(-difference)
    return (terms if math.isinf(floor) else terms.clamp(min=-floor)).mean()


def exposure_cross_entropy(on_pairs: Tensor, on_rows: Tensor, density: float) -> Tensor:
    """Mean over D of CE(o -> p) with p = sigmoid(s), from logits s on pairs of D and on observed rows.

    CE(o -> p) = -log(1 - p) - o s, so it is mean_D -log(1 - p) - density x mean_O s: no pair of D needs to know whether
    it was observed.
    """
    return negative_log_complement(on_pairs, 1.0) - density * on_rows.mean()


def negative_log_complement(logits: Tensor, share: Tensor | float) -> Tensor:
    """Mean of -log(1 - share x sigmoid(logit)), with gradients in the logits; shares, at most 1, are constants.

    `share`: one for each pair, or one for all: 1, or a number well below it.
    """
    mean: Tensor = _NegativeLogComplement.apply(logits, share)  # type: ignore[no-untyped-call]
    return mean


class _NegativeLogComplement(torch.autograd.Function):
    """`negative_log_complement` with its gradient: autograd alone takes twice as long, at each step over D."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, share: Tensor | float) -> Tensor:
        if isinstance(share, float) and share == 1:  # -log(1 - p) = softplus(logit), whose derivative is p
            ctx.save_for_backward(torch.sigmoid(logits))
            return softplus(logits).mean()
        p = torch.sigmoid(logits)
        slope = p * share
        if isinstance(share, Tensor):  # 1 - share x p, without cancellation
            rest = torch.sigmoid(-logits)
            complement = torch.addcmul(rest, 1 - share, p)
        else:
            complement = 1 - slope
            rest = torch.sub(1, p, out=p)
        slope.mul_(rest).div_(complement)
        ctx.save_for_backward(slope)  # share x p (1 - p) / (1 - share x p)
        return complement.log_().mean().neg_()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * (gradients[0] / len(slope)), None
