"""Estimates of the propensity P(observed) of a pair, from the log alone: each gives weights to any method."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.backbones import MatrixFactorization, as_backbone
from counterpoise.errors import check_choice
from counterpoise.problems import Problem, fit_alone
from counterpoise.scorers import Backbone, Scorer
from counterpoise.training import Batch
from counterpoise.weights import CLIP, Estimated, PropensityOf, Weighing, Weights

CountsOf = Literal["item", "user", "both"]
CACHED = 1 << 17  # pairs of which all that a step asks fits into the cache of a core


def cross_entropy(on_pairs: Tensor, on_rows: Tensor, density: float) -> Tensor:
    """Mean over D of CE(o -> p) with p = sigmoid(s), from logits s on pairs of D and on observed rows.

    CE(o -> p) = -log(1 - p) - o s, so it is mean_D -log(1 - p) - density x mean_O s: no pair of D needs to know whether
    it was observed.
    """
    return surprise_of_nothing(on_pairs, 1.0) - density * on_rows.mean(-1)


def surprise_of_nothing(logits: Tensor, share: Tensor | float) -> Tensor:
    """Mean of -log(1 - share x sigmoid(logit)), with gradients in the logits; shares, at most 1, are constants.

    `share`: one for each pair, or one for all: 1, or a number well below it; of fits side by side (fits, 1).
    """
    mean: Tensor = _SurpriseOfNothing.apply(logits, share)  # type: ignore[no-untyped-call]
    return mean


class _SurpriseOfNothing(torch.autograd.Function):
    """Written out because every step of a fit over all of D takes it: autograd alone takes twice as long.

    On a CPU many pairs of fits side by side are looked at fit by fit, each in the cache of a core.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, share: Tensor | float) -> Tensor:
        slope = torch.empty_like(logits)
        if logits.ndim == 1 or logits.numel() < CACHED or logits.device.type != "cpu":
            mean = _surprise(logits, share, slope)
        else:
            shares = share if isinstance(share, Tensor) else [share] * len(logits)
            each = zip(logits, shares, slope, strict=True)
            mean = torch.stack([_surprise(*one) for one in each])
        ctx.save_for_backward(slope)
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * (gradients[0] / slope.shape[-1])[..., None], None


def _surprise(logits: Tensor, share: Tensor | float, slope: Tensor) -> Tensor:
    """The mean of -log(1 - share x chance); into `slope` goes share x chance (1 - chance) / (1 - share x chance)."""
    if isinstance(share, float) and share == 1:  # -log(1 - chance) = softplus(logit), whose slope is the chance
        torch.sigmoid(logits, out=slope)
        return softplus(logits).mean(-1)
    chance = torch.sigmoid(logits)
    torch.mul(chance, share, out=slope)
    if isinstance(share, Tensor) and share.shape == logits.shape:  # 1 - share x chance, without cancellation
        rest = torch.sigmoid(-logits)
        nothing = torch.addcmul(rest, 1 - share, chance)
    else:
        nothing = 1 - slope
        rest = torch.sub(1, chance, out=chance)
    slope.mul_(rest).div_(nothing)
    return nothing.log_().mean(-1).neg_()


def observation_loss(scorer: Scorer, batch: Batch, density: float) -> Tensor:
    """`cross_entropy` of a model of o on a batch, counted by observed row: 1 / density x its mean over D."""
    on_rows, on_pairs = scorer.rows_and_pairs(batch.users, batch.items, batch.pair_users, batch.pair_items)
    return cross_entropy(on_pairs, on_rows, density) / density


def fit_observation(problem: Problem, backbone: Backbone) -> Scorer:
    """A first model of being observed, trained by cross-entropy over D."""
    loss = partial(observation_loss, density=problem.log.density)
    return fit_alone(problem.brief(), backbone, loss, pairs=True, rate=problem.log.density)


def default_model(backbone: Backbone | None) -> Backbone:
    """The model of o: small, with biases. A fresh copy, so that settings changed later do not reach a fit."""
    return MatrixFactorization(dim=4) if backbone is None else deepcopy(as_backbone(backbone))


@dataclass
class Propensity(Weights):
    """A model of being observed, sigmoid(s) = P(observed), trained before the predictor by cross-entropy over D.

    `backbone`: the model of s, None for a matrix factorisation of 4 dimensions with biases. `clip`: see
    `inverse_propensity`. The model finds the rows it was fitted to likelier than they were, so that the ratios average
    less than 1. (Section 5 of Schnabel et al. 2016 asks
    for such a model; Guo et al. 2021 take a factorisation.)
    """

    backbone: Backbone | None = None
    clip: float = CLIP

    def begin(self, problem: Problem) -> Weighing:
        """Train the model."""
        scorer = fit_observation(problem, default_model(self.backbone))
        return Estimated(problem, lambda users, items: torch.sigmoid(scorer.at(users, items)), self.clip)


@dataclass
class Popularity(Weights):
    """Propensity proportional to counts in the log: of the "item", the "user", or the product of "both", 1 at most.

    Known up to a factor only, so the ratios are divided by their mean over the log. What was never observed counts as
    observed once. `clip`: see `inverse_propensity`.
    """

    of: CountsOf = "item"
    clip: float = CLIP

    def begin(self, problem: Problem) -> Weighing:
        """Count."""
        check_choice("of", self.of, get_args(CountsOf))
        log = problem.log
        shares = []  # of each user's, and each item's pairs that were observed
        for side, codes, other in (("user", log.users, log.shape[1]), ("item", log.items, log.shape[0])):
            counts = torch.bincount(torch.from_numpy(codes).long(), minlength=log.n_pairs // other).clamp(min=1)
            counted = self.of in (side, "both")
            shares.append((counts / other if counted else torch.ones(len(counts))).to(problem.device))
        factor = 1 / log.density if self.of == "both" else 1.0
        propensity_of = _product(shares[0], shares[1], factor)
        return Estimated(problem, propensity_of, self.clip, normalised=True)


def _product(users: Tensor, items: Tensor, factor: float) -> PropensityOf:
    """min(1, factor x users[u] x items[i])."""

    def propensity_of(user: Tensor | None, item: Tensor | None) -> Tensor:
        if user is None or item is None:
            return (factor * torch.outer(users, items)).flatten().clamp(max=1)
        return (factor * users[user.long()] * items[item.long()]).clamp(max=1)

    return propensity_of
