"""Capping: weights as large as is worth their variance (D-IPS, D-DR)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.config import Transform
from counterpoise.errors import check_choice, check_number
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights.base import TransformedWeights
from counterpoise.weights.propensity import Logistic

TRANSFORMS: Mapping[Transform, Callable[[Tensor], Tensor]] = {
    "identity": lambda p: p,
    "sine": lambda p: torch.sin(p) / math.sin(1),
    "log": lambda p: torch.log1p(p) / math.log(2),
    "tanh": lambda p: torch.tanh(p) / math.tanh(1),
}


def capped_ratio(ratio: Tensor, density: float, cap: float, transform: Transform) -> Tensor:
    """density x w, w = min(max(c / (density (1 - p)), 1), 1 / f(p)) with c = `cap`, p = density / ratio, at most 1.

    That is the w = f(p)^-a, 0 <= a <= 1, which minimises w1 (1 - p w) + w2 p (1 - p) w^2, the bound on bias and
    variance of each pair, where c = density w1 / (2 w2).
    """
    p = (density / ratio).clamp(max=1.0)
    return torch.minimum((cap / (1 - p)).clamp(min=density), density / TRANSFORMS[transform](p))


@dataclass
class Capped(Weights):
    """Other weights w = 1 / p, at most about `cap` times 1 / density: min(max(c / (1 - p), 1), 1 / f(p)).

    c = cap / density. The weight that is best for bias and variance of each pair is below 1 / p where p is small: D-IPS
    with the risk `ips`, D-DR with `dr` (Ha et al. 2024; their w1 / (2 w2) is c). A cap that does not know the density
    would make nearly all weights of a sparse log the same: at their w2 / w1 = 0.1 those of every p below 0.128.
    `transform`: f, "identity" for p, or "log", "sine", "tanh" for log(1 + p) / log 2, sin p / sin 1, tanh p / tanh 1.
    All but the first make weights of small p smaller by a factor that no `cap` takes back: f(p) / p is up to 1.44,
    1.19 and 1.31. `weights`: any, also such as change in training; p is density / ratio of theirs.
    """

    weights: Weights = field(default_factory=Logistic)
    cap: float = 5.0
    transform: Transform = "identity"

    def init(self, context: FitContext) -> FittedWeights:
        check_number("cap", self.cap, above=0, advice="It is about the largest ratio; ratios are 1 on average.")
        check_choice("transform", self.transform, get_args(Transform))
        return CappedWeights(self, context.log.density, self.weights.init(context))


class CappedWeights(TransformedWeights):
    """Other weights up to a cap."""

    def __init__(self, part: Capped, density: float, inner: FittedWeights) -> None:
        self.part, self.density = part, density
        super().__init__(inner)

    def transformed(self, ratio: Tensor) -> Tensor:
        return capped_ratio(ratio, self.density, self.part.cap, self.part.transform)

    def facts(self) -> dict[str, Any]:
        """The facts of the weights inside, and the share of rows that the cap holds back."""
        free = capped_ratio(self.inner.ratio, self.density, math.inf, self.part.transform)
        return self.inner.facts() | {"capped_share": float((self.ratio < free).float().mean())}
