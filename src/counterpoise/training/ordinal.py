"""Ordinal ratings: the information of a rating beyond the side of the threshold that it is on.

A rating is a label (at or above the threshold) and a level. By proportional odds (McCullagh 1980, Regression Models for
Ordinal Data)

    P(rating >= level k) = sigmoid(t + cutpoint_k),   cutpoint 0 at the threshold,   t = centre + w (logit - centre)

so that the likelihood of a rating is that of its label, which is the error of the row, times that of its level given
the label. -log of the latter is what the predictor minimises beside the risk, and the cutpoints with it. Five stars
then count for more than four, and one for less than two. The centre is the log odds of the log's labels.

The ordinal weight w, from 0 to 1, is estimated before training, from scores that have not seen the row: the label rates
of its user and its item without it. It is the slope of the level in them over that of the label. Where levels have
nothing to do with preference it is 0, and nothing is lost; 1 is proportional odds.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from counterpoise.config import Configurable
from counterpoise.data.batches import Batch
from counterpoise.data.log import FeedbackLog
from counterpoise.probability import log_odds, shrink_by_error
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext

MAX_LEVELS = 10  # but for one more at the threshold: finer ratings are cut at their deciles
SAMPLE_ROWS = 1 << 18  # rows from which levels and the ordinal weight are estimated at most
PRIOR_ROWS = 5.0  # rows of the mean label that every user and item has besides its own, in the label rates; 1 to 20
# change AUC and log loss by 0.0001 at most (benchmarks/constants.py)
MIN_INITIAL_GAP = 0.05  # between two cutpoints, in log odds; 0.01 to 0.5 change nothing (benchmarks/constants.py)
BEYOND_ALL_SCORES = 50.0  # a cutpoint that no score exceeds, in log odds: sigmoid(-50) is 0 in float32
NEWTON_STEPS = 12

Numbers = NDArray[np.float64]
Levels = NDArray[np.uint8]


class RatingLevels(NamedTuple):
    """Ratings in levels 0, 1, ...: `borders[k - 1]` is where level k begins, and the threshold where `main` does."""

    borders: Numbers
    main: int

    @classmethod
    def of(cls, ratings: Numbers, threshold: float) -> Self:
        """Every value is a level where there are few; ratings lie on both sides of the threshold."""
        borders = np.unique(ratings)[1:]
        if len(borders) >= MAX_LEVELS:
            deciles = np.quantile(ratings, np.arange(1, MAX_LEVELS) / MAX_LEVELS, method="nearest")
            borders = np.setdiff1d(np.append(deciles, threshold), ratings.min())
        main = int(np.searchsorted(borders, threshold)) + 1
        borders[main - 1] = threshold
        return cls(borders, main)

    def of_ratings(self, ratings: Numbers) -> Levels:
        """The level of each rating."""
        return np.searchsorted(self.borders, ratings, side="right").astype(np.uint8)


def level_losses(scores: Tensor, labels: Tensor, levels: Tensor, gaps: Tensor, main: int) -> Tensor:
    """-log P(level | label) of each row, from its score t and the gaps between one cutpoint and the next. (rows,)

    P(level) = sigmoid(t + a) - sigmoid(t + b) = sigmoid(t + a) sigmoid(-t - b) (1 - exp(b - a)), with a the cutpoint of
    the level and b that of the next; P(level | label) = P(level) / P(label).
    """
    cutpoints = pad(-gaps.cumsum(0), (1, 0))
    cutpoints = cutpoints - cutpoints[main - 1 : main]
    inside = pad(-torch.log(-torch.expm1(-gaps)), (1, 1))
    ends = pad(cutpoints, (1, 0), value=BEYOND_ALL_SCORES), pad(cutpoints, (0, 1), value=-BEYOND_ALL_SCORES), inside
    own, following, constant = at_levels(ends, levels)
    return softplus(-scores - own) + softplus(scores + following) + constant - error(labels, scores)


def at_levels(tables: tuple[Tensor, ...], levels: Tensor) -> tuple[Tensor, ...]:
    """The value of each row's level in each table. (rows,)

    On a GPU by a product with one-hot rows: the gradient of an index would add all rows up in a few places, one by one
    and in any order.
    """
    if levels.device.type == "cpu":
        return tuple(table.gather(0, levels) for table in tables)
    together = torch.stack(tables, -1)
    all_levels = torch.arange(len(together), device=levels.device)
    return ((levels.unsqueeze(-1) == all_levels).to(together) @ together).unbind(-1)


def share_reaching(levels: Levels, count: int) -> Numbers:
    """The share of rows at or above each level, and 0 beyond the last. (count + 1,)"""
    counts = np.bincount(levels, minlength=count)
    return np.append(counts[::-1].cumsum()[::-1] / len(levels), 0.0)


def ordinal_weight(scores: Numbers, labels: Numbers, levels: Levels, main: int) -> float:
    """The slope of the level given the label over that of the label, in scores that have not seen the row; 0 to 1.

    Both by maximum likelihood, each shrunken by its error.
    """
    x = scores - scores.mean()
    of_label = label_slope(x, labels)
    return float(np.clip(level_slope(x, labels, levels, main) / of_label, 0, 1)) if of_label > 0 else 0.0


def label_slope(x: Numbers, labels: Numbers) -> float:
    """The slope of the log odds of the label in x, by Newton's method; shrunken by its error."""
    columns, beta = np.stack([np.ones_like(x), x], 1), np.array([log_odds(labels.mean()), 0.0])
    for _ in range(NEWTON_STEPS):
        p = _sigmoid(columns @ beta)
        information = (columns.T * (p * (1 - p))) @ columns
        beta += np.linalg.lstsq(information, columns.T @ (labels - p), rcond=None)[0]
    return shrink_by_error(float(beta[1]), float(np.linalg.pinv(information)[1, 1]))


def level_slope(x: Numbers, labels: Numbers, levels: Levels, main: int) -> float:
    """The a of t = centre + a x that makes levels given labels likeliest; shrunken by its error.

    In turn the cutpoints, such that as many rows are expected at or above each level as there are, and a Newton step:
    d/dt log P(level | label) = 1 - A - B - (label - sigmoid(t)), and the negative of its derivative is
    A (1 - A) + B (1 - B) - sigmoid(t) (1 - sigmoid(t)), where A = P(>= the level), B = P(>= the next).
    """
    positive, centre, slope = labels > 0, log_odds(labels.mean()), 0.0
    cutpoints = log_odds(share_reaching(levels, int(levels.max()) + 1)[1:-1]) - centre
    cutpoints[main - 1] = 0.0
    for _ in range(NEWTON_STEPS):
        scores = centre + slope * x
        cutpoints = _matching_cutpoints(cutpoints, scores, positive, levels, main)
        ends = np.concatenate([[BEYOND_ALL_SCORES], cutpoints, [-BEYOND_ALL_SCORES]])
        shifts = 0.0, ends[levels], ends[levels.astype(np.int64) + 1]
        p, own, following = (_sigmoid(scores + shift) for shift in shifts)
        score = 1 - own - following - (labels - p)
        curvature = own * (1 - own) + following * (1 - following) - p * (1 - p)
        among = x - np.where(positive, x[positive].mean(), x[~positive].mean())
        information = float((among**2 * curvature).sum())
        if information <= 0:
            return 0.0
        slope += float(np.clip((x * score).sum() / information, -1, 1))
    return shrink_by_error(slope, 1 / information)


def _matching_cutpoints(
    cutpoints: Numbers, scores: Numbers, positive: NDArray[np.bool_], levels: Levels, main: int
) -> Numbers:
    """A Newton step for every cutpoint but the threshold's, on the rows of its side."""
    found = cutpoints.copy()
    for level in (level for level in range(1, len(cutpoints) + 1) if level != main):
        side = positive if level > main else ~positive
        t, above = scores[side], (levels[side] >= level).sum()
        p, at_threshold = _sigmoid(t + cutpoints[level - 1]), _sigmoid(t)
        share = at_threshold if level > main else 1 - at_threshold
        expected = (p if level > main else p - at_threshold) / share
        slope = float((p * (1 - p) / share).sum())
        found[level - 1] -= np.clip((expected.sum() - above) / max(slope, 1e-12), -1, 1)
    return found


def _sigmoid(values: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-values))


def leave_one_out_log_odds(codes: NDArray[Any], labels: Numbers, rows: NDArray[np.int64]) -> Numbers:
    """The log odds of a positive label among the other rows of each row's code, shrunken to the mean."""
    counts, sums, rate = np.bincount(codes), np.bincount(codes, weights=labels), labels.mean()
    code = codes[rows]
    p = (sums[code] - labels[rows] + PRIOR_ROWS * rate) / (counts[code] - 1 + PRIOR_ROWS)
    return log_odds(p)  # type: ignore[no-any-return]


@dataclass
class OrdinalLoss(Configurable):
    """The likelihood of rating levels given their labels, as a loss beside the risk: goes with any method."""

    def init(self, context: FitContext) -> FittedOrdinal | None:
        """Levels, ordinal weight and first cutpoints from the log; None where levels add nothing to labels."""
        log, threshold = context.log, context.log.threshold
        rows = np.arange(len(log))
        if len(log) > SAMPLE_ROWS:
            rows = np.sort(np.random.default_rng(0).integers(len(log), size=SAMPLE_ROWS))
        labels = log.labels
        if threshold is None or len(np.unique(labels[rows])) < 2:
            return None
        rate, levels = float(labels.mean()), RatingLevels.of(log.ratings[rows], threshold)
        if len(levels.borders) < 2:
            return None
        of_rows = levels.of_ratings(log.ratings)
        weight = _weight_of_log(log, of_rows, rows, levels.main)
        if weight == 0:
            return None
        above = share_reaching(of_rows, len(levels.borders) + 1)[1:-1]
        gaps = -np.diff(log_odds(above))
        cutpoints = Cutpoints(torch.from_numpy(np.log(np.maximum(gaps, MIN_INITIAL_GAP))).float()).to(context.device)
        return FittedOrdinal(
            torch.from_numpy(of_rows).to(context.device), levels, weight, float(log_odds(rate)), cutpoints
        )

    def why_inactive(self, log: FeedbackLog) -> str:
        """Why `init` gave None for this log."""
        if log.threshold is None:
            return "the ratings of the log are labels"
        return "in this log rating levels add nothing to which side of the threshold a rating is on"


def _weight_of_log(log: FeedbackLog, levels: Levels, rows: NDArray[np.int64], main: int) -> float:
    """`ordinal_weight` by the label rates of users and items, from some rows of a log."""
    labels = log.labels.astype(np.float64)
    scores = leave_one_out_log_odds(log.users, labels, rows) + leave_one_out_log_odds(log.items, labels, rows)
    return ordinal_weight(scores, labels[rows], levels[rows], main)


class Cutpoints(nn.Module):
    """The logarithms of the gaps between one cutpoint and the next. (levels - 2,)"""

    def __init__(self, log_gaps: Tensor) -> None:
        super().__init__()
        self.log_gaps = nn.Parameter(log_gaps)


@dataclass(eq=False)
class FittedOrdinal:
    """The rating levels of a log during one fit."""

    levels: Tensor  # (rows of the log,)
    rating_levels: RatingLevels
    weight: float
    centre: float
    cutpoints: Cutpoints

    def losses(self, batch: Batch, logits: Tensor) -> Tensor:
        """`level_losses` of each row, from logits of P(label | observed)."""
        return self.level_losses(self.levels[batch.rows], batch.labels, logits)

    def level_losses(self, levels: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        """`level_losses` of any rows, from the logits of their labels."""
        scores = self.centre + self.weight * (logits - self.centre)
        return level_losses(scores, labels, levels.long(), self.cutpoints.log_gaps.exp(), self.rating_levels.main)

    def information(self, levels: Tensor, logits: Tensor) -> Tensor:
        """The curvature of error + level loss in the logit, (1 - w^2) p (1 - p) + w^2 (A (1 - A) + B (1 - B)).

        A = P(>= the level), B = P(>= the next).
        """
        cutpoints = pad(-self.cutpoints.log_gaps.exp().cumsum(0), (1, 0))
        cutpoints = cutpoints - cutpoints[self.rating_levels.main - 1]
        ends = pad(pad(cutpoints, (1, 0), value=BEYOND_ALL_SCORES), (0, 1), value=-BEYOND_ALL_SCORES)
        scores = self.centre + self.weight * (logits - self.centre)
        p, own, following = torch.sigmoid(logits), *(torch.sigmoid(scores + ends[levels.long() + k]) for k in (0, 1))
        of_level = own * (1 - own) + following * (1 - following)
        return (1 - self.weight**2) * p * (1 - p) + self.weight**2 * of_level

    def parameters(self) -> Iterator[Tensor]:
        """The cutpoints."""
        return self.cutpoints.parameters()

    def precisions(self) -> list[float]:
        """They have no prior."""
        return [0.0]

    def copy(self) -> Self:
        """A copy with cutpoints of its own, for another predictor."""
        return replace(self, cutpoints=deepcopy(self.cutpoints))

    def facts(self) -> dict[str, Any]:
        """JSON-able: where levels begin, the ordinal weight, and the log odds of each level at the centre."""
        cutpoints = pad(-self.cutpoints.log_gaps.detach().exp().cumsum(0), (1, 0))
        odds = cutpoints - cutpoints[self.rating_levels.main - 1] + self.centre
        return {"weight": self.weight, "levels": self.rating_levels.borders.tolist(), "log_odds": odds.tolist()}
