"""Learning from the probe's labels, whose pairs are draws from D.

The mean error on the m rows of a probe estimates the ideal loss without any weights. Beside a risk on the log, whose
rows have an effective sample size ESS, the combined estimate of least variance is

    (ESS x risk on the log + m x mean error on the probe) / (ESS + m)

if an error varies as much on both. The predictor minimises (ESS + m) / ESS times that, so that risk and prior weigh
the same as without a probe:

    risk on the log + (m / ESS) x mean error on the probe

A row of the log was observed, and its label may have had a part in that. So the labels of the log have an intercept of
their own, P(label | observed) = sigmoid(logit + shift), learned with everything else: the log shows what pairs differ
by, the probe where they lie. A missingness model has such a shift already, and then it is that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import check_flag, check_number
from counterpoise.models.base import Scorer
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext

if TYPE_CHECKING:
    from counterpoise.training.ordinal import FittedOrdinal


FIRST_PRECISION = 1.0  # of the shift, until there is an estimate


@dataclass
class ProbeLabels(Configurable):
    """Learn from the labels of the probe beside those of the log: goes with any method.

    `weight`: what a row of the probe counts; 1 is the combined estimate of least variance. `shift`: give the labels of
    the log an intercept of their own. Without it rows of the probe count as further rows of the log.
    """

    weight: float = 1.0
    shift: bool = True

    def init(self, context: FitContext, ordinal: FittedOrdinal | None) -> FittedProbe | None:
        """The rows of the probe on the device of the fit; None without a probe."""
        check_number("weight", self.weight, above=0)
        check_flag("shift", self.shift)
        if context.probe is None or len(context.probe) == 0:
            return None
        return FittedProbe.of(self, context.probe, torch.zeros(1, device=context.device), ordinal).learning()


@dataclass(eq=False)
class FittedProbe:
    """The rows of a probe during one fit."""

    users: Tensor
    items: Tensor
    labels: Tensor
    levels: Tensor | None  # of ratings, where there is an ordinal loss
    part: ProbeLabels
    shift: Tensor  # (1,) log odds: labels of the log against those of the probe
    precision: Tensor  # (1,) of the prior on the shift
    share: Tensor  # () weight x m / ESS, the factor of the mean error

    @classmethod
    def of(cls, part: ProbeLabels, log: FeedbackLog, shift: Tensor, ordinal: FittedOrdinal | None) -> Self:
        """The labels of a log of uniform pairs, with a fixed shift."""
        users, items, labels = (
            torch.from_numpy(np.ascontiguousarray(column)).to(shift.device)
            for column in (log.users, log.items, log.labels)
        )
        levels = None
        if ordinal is not None:
            levels = torch.from_numpy(ordinal.rating_levels.of_ratings(log.ratings)).to(shift.device)
        precision = torch.full((1,), FIRST_PRECISION, dtype=torch.float64)
        return cls(users, items, labels, levels, part, shift, precision, torch.zeros((), device=shift.device))

    def scale(self, ratio: Tensor) -> None:
        """Set the share for rows of the log that count by these ratios: ESS = (sum w)^2 / sum w^2."""
        effective = float(ratio.sum()) ** 2 / max(float(ratio.square().sum()), 1e-30)
        self.share.fill_(self.part.weight * len(self.labels) / effective if effective else 1.0)

    def mean_error(self, scorer: Scorer, ordinal: FittedOrdinal | None) -> Tensor:
        """The mean over the probe of error and ordinal loss."""
        logits = scorer(self.users, self.items)
        errors = error(self.labels, logits)
        if ordinal is not None and self.levels is not None:
            errors = errors + ordinal.level_losses(self.levels, self.labels, logits)
        return errors.mean()

    def parameters(self) -> Iterator[Tensor]:
        """The shift, where it is learned."""
        if self.shift.requires_grad:
            yield self.shift

    def precisions(self) -> list[float]:
        """The prior precision of the shift is estimated, see `estimate_precision`."""
        return [FIRST_PRECISION] * self.shift.requires_grad

    def estimate_precision(self, information: Tensor) -> None:
        """A step of EM on the precision of the shift: it grows where the shift is within its error. In place.

        `information`: that of the probe's rows; the log's is larger by far.
        """
        square = self.shift.detach().cpu().double().square()
        self.precision.copy_(1 / (square + 1 / (information.cpu() + self.precision)))

    def learning(self) -> Self:
        """The same rows for a predictor that learns the shift, from 0, if the part says so."""
        shift, precision = torch.zeros_like(self.shift, requires_grad=self.part.shift), self.precision.clone()
        return replace(self, shift=shift, precision=precision)

    def fixed(self, shift: float) -> Self:
        """The same rows for a predictor whose shift is known."""
        return replace(self, shift=torch.full_like(self.shift, shift, requires_grad=False))

    def facts(self) -> dict[str, Any]:
        """JSON-able: the rows, the share of the combined estimate that they have, and the shift."""
        share = float(self.share)
        return {"rows": len(self.labels), "share": share / (1 + share), "shift": float(self.shift.detach())}
