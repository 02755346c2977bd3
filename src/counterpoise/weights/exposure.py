"""Exposure, the chance that a pair was seen. A log of clicks shows only that some items are clicked more often.

A click is a pair that was exposed and is relevant: P(click) = theta x gamma. Weights w that balance the clicks against
all pairs D, in whatever functions, undo all of P(click) that those functions explain. How much of it is exposure and
how much relevance, clicks cannot tell. `RelativeExposure` assumes that a share `power` of it, in logs, is exposure:

    theta = (least w / w)^power, at least `clip`

With w = 1 / popularity and power 1/2 that is (n_i / max n)^0.5, the propensity of Rel-MF (Saito, Yaginuma, Nishino,
Sakata and Nakata 2020). With weights that balance kernel functions of the pair it is the same for whatever varies with
those functions. With power 1 relevance is the same on average along every function that was balanced; with power 0
everything was seen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from counterpoise.balance.diagnostics import warn_of_collapse
from counterpoise.errors import ConfigError, ConvergenceWarning, check_number
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights.base import TransformedWeights
from counterpoise.weights.propensity import Popularity


def relative_exposure(ratio: Tensor, least: Tensor, power: float, clip: float) -> Tensor:
    """theta = (least / ratio)^power, in [clip, 1], from ratios that balance the clicks against all pairs."""
    theta: Tensor = (least / ratio).clamp(max=1.0).pow(power).clamp(min=clip)
    return theta


@dataclass
class RelativeExposure(Weights):
    """w = 1 / theta, theta = (least w' / w')^power at least `clip`, for other weights w' = `weights` on the clicks.

    theta is the chance that a pair was exposed, up to a factor: the pair of the log that is clicked the most for what
    it is counts as seen for sure. `clip` bounds w by 1 / clip.
    """

    weights: Weights = field(default_factory=lambda: Popularity(clip=0.0))
    power: float = 0.5
    clip: float = 0.1

    def init(self, context: FitContext) -> FittedWeights:
        check_number(
            "power", self.power, at_least=0, at_most=1, advice="It is the share of log P(click) that is exposure."
        )
        check_number("clip", self.clip, above=0, at_most=1, advice="It is the smallest chance of being seen.")
        inner = self.weights.init(context)
        if inner.needs_pairs:
            raise ConfigError(
                "`weights` of RelativeExposure must be ready before training, got some that are trained with the "
                "predictor. Use 'balancing'."
            )
        return _RelativeExposure(self, context, inner)


class _RelativeExposure(TransformedWeights):
    def __init__(self, part: RelativeExposure, context: FitContext, inner: FittedWeights) -> None:
        self.part, self.density = part, context.log.density
        super().__init__(inner)

    def transformed(self, ratio: Tensor) -> Tensor:
        return self.density / self._theta(ratio)

    def _theta(self, ratio: Tensor) -> Tensor:
        return relative_exposure(ratio, self.inner.ratio.min(), self.part.power, self.part.clip)

    def facts(self) -> dict[str, Any]:
        """Facts of the weights inside, and the exposure of the clicked pairs. What must not collapse is 1 / theta."""
        theta = self._theta(self.inner.ratio)
        exposure = {
            "smallest": float(theta.min()),
            "mean": float(theta.mean()),
            "clipped_share": float((theta <= self.part.clip).float().mean()),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = self.inner.facts()
        warning = warn_of_collapse(self.ratio.cpu(), "Lower `power` or raise `clip`.")
        return found | {"exposure": exposure, "warning": warning}
