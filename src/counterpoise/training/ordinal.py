"""What the grade of a rating says beyond the side of the threshold that it is on.

A rating is a label (at or above the threshold) and a grade. By proportional odds (McCullagh 1980, Regression Models for
Ordinal Data)

    P(rating >= level k) = sigmoid(t + cut_k),   cut = 0 at the threshold,   t = centre + say (logit - centre)

so that the likelihood of a rating is that of its label, which is the error of the row, times that of its grade given
the label. -log of the latter is what the predictor minimises beside the risk, and the cuts with it. Five stars then
say more than four, and one less than two. The centre is the log odds of the log's labels.

The say, from 0 to 1, is measured before training, on scores that have not seen the row: the label rates of its user and
its item without it. It is the slope of the grade in them over that of the label. Where grades have nothing to do with
taste it is 0, and nothing is lost; 1 is proportional odds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from counterpoise.data.log import FeedbackLog
from counterpoise.imputation.mnar import shrink_by_error
from counterpoise.models.embedding_ops import take
from counterpoise.risks import error
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Rate

LEVELS = 10  # at most, but for one more at the threshold: finer ratings are cut at their deciles
SAMPLE = 1 << 18  # rows from which levels and say are taken at most
SMOOTHING = 5.0  # rows of the mean label that every user and item has besides its own
NARROWEST = 0.05  # gap between two cuts to start from
FAR = 50.0  # a cut that no score is beyond
STEPS = 12  # of Newton's method

Numbers = NDArray[np.float64]


class RatingLevels(NamedTuple):
    """Ratings in levels 0, 1, ...: `borders[k - 1]` is where level k begins, and the threshold where `main` does."""

    borders: Numbers
    main: int

    @classmethod
    def of(cls, ratings: Numbers, threshold: float) -> Self:
        """Every value is a level where there are few; ratings lie on both sides of the threshold."""
        borders = np.unique(ratings)[1:]
        if len(borders) >= LEVELS:
            deciles = np.quantile(ratings, np.arange(1, LEVELS) / LEVELS, method="nearest")
            borders = np.setdiff1d(np.append(deciles, threshold), ratings.min())
        main = int(np.searchsorted(borders, threshold)) + 1
        borders[main - 1] = threshold
        return cls(borders, main)

    def grades(self, ratings: Numbers) -> NDArray[np.uint8]:
        """The level of each rating."""
        return np.searchsorted(self.borders, ratings, side="right").astype(np.uint8)


def grade_surprise(scores: Tensor, labels: Tensor, grades: Tensor, gaps: Tensor, main: int) -> Tensor:
    """-log P(grade | label) of each row, from its score t and the gaps between one cut and the next. (..., rows)

    P(grade) = sigmoid(t + a) - sigmoid(t + b) = sigmoid(t + a) sigmoid(-t - b) (1 - exp(b - a)), with a the cut of the
    grade and b that of the next; P(grade | label) = P(grade) / P(label).
    """
    cuts = pad(-gaps.cumsum(-1), (1, 0))
    cuts = cuts - cuts[..., main - 1 : main]
    inside = pad(-torch.log(-torch.expm1(-gaps)), (1, 1))
    ends = pad(cuts, (1, 0), value=FAR), pad(cuts, (0, 1), value=-FAR), inside
    own, following, constant = at_levels(ends, grades)
    return softplus(-scores - own) + softplus(scores + following) + constant - error(labels, scores)


def at_levels(tables: tuple[Tensor, ...], grades: Tensor) -> tuple[Tensor, ...]:
    """The value of each grade in each table ([fits,] levels). ([fits,] rows)

    On a GPU as a product with zeros and ones, whose gradient is a product too: that of an index adds all rows up in a
    few places, one by one and in any order.
    """
    if grades.device.type == "cpu":
        return tuple(take(table, grades) for table in tables)
    together = torch.stack(tables, -1)
    levels = torch.arange(together.shape[-2], device=grades.device)
    return ((grades.unsqueeze(-1) == levels).to(together) @ together).unbind(-1)


def reached(grades: NDArray[np.uint8], levels: int) -> Numbers:
    """The share of rows at or above each level, and 0 beyond the last. (levels + 1,)"""
    counts = np.bincount(grades, minlength=levels)
    return np.append(counts[::-1].cumsum()[::-1] / len(grades), 0.0)


def say_of_grades(scores: Numbers, labels: Numbers, grades: NDArray[np.uint8], main: int) -> float:
    """The slope of the grade given the label over that of the label, in scores that have not seen the row; 0 to 1.

    Both by maximum likelihood. Each counts as 0 unless the data insist on it (`shrink_by_error`).
    """
    x = scores - scores.mean()
    of_label = label_slope(x, labels)
    return float(np.clip(grade_slope(x, labels, grades, main) / of_label, 0, 1)) if of_label > 0 else 0.0


def label_slope(x: Numbers, labels: Numbers) -> float:
    """Of the log odds of the label in x, by Newton's method; shrunken by its error."""
    columns, beta = np.stack([np.ones_like(x), x], 1), np.array([_log_odds(labels.mean()), 0.0])
    for _ in range(STEPS):
        chance = _sigmoid(columns @ beta)
        information = (columns.T * (chance * (1 - chance))) @ columns
        beta += np.linalg.lstsq(information, columns.T @ (labels - chance))[0]
    return shrink_by_error(float(beta[1]), float(np.linalg.pinv(information)[1, 1]))


def grade_slope(x: Numbers, labels: Numbers, grades: NDArray[np.uint8], main: int) -> float:
    """The a of t = centre + a x that makes grades given labels likeliest; shrunken by its error.

    In turn the cuts, such that as many rows are expected at or above each level as there are, and a step of Newton's:
    d/dt log P(grade | label) = 1 - A - B - (label - sigmoid(t)), and the negative of its derivative is
    A (1 - A) + B (1 - B) - sigmoid(t) (1 - sigmoid(t)), where A = P(>= the grade), B = P(>= the next).
    """
    positive, centre, slope = labels > 0, _log_odds(labels.mean()), 0.0
    cuts = _log_odds(reached(grades, int(grades.max()) + 1)[1:-1]) - centre
    cuts[main - 1] = 0.0
    for _ in range(STEPS):
        scores = centre + slope * x
        cuts = _matching_cuts(cuts, scores, positive, grades, main)
        ends = np.concatenate([[FAR], cuts, [-FAR]])
        shifts = 0.0, ends[grades], ends[grades.astype(np.int64) + 1]
        chance, own, following = (_sigmoid(scores + shift) for shift in shifts)
        push = 1 - own - following - (labels - chance)
        curve = own * (1 - own) + following * (1 - following) - chance * (1 - chance)
        among = x - np.where(positive, x[positive].mean(), x[~positive].mean())
        information = float((among**2 * curve).sum())
        if information <= 0:
            return 0.0
        slope += float(np.clip((x * push).sum() / information, -1, 1))
    return shrink_by_error(slope, 1 / information)


def _matching_cuts(
    cuts: Numbers, scores: Numbers, positive: NDArray[np.bool_], grades: NDArray[np.uint8], main: int
) -> Numbers:
    """A step of Newton's for every cut but the threshold's, on the rows of its side."""
    found = cuts.copy()
    for level in (level for level in range(1, len(cuts) + 1) if level != main):
        side = positive if level > main else ~positive
        t, above = scores[side], (grades[side] >= level).sum()
        chance, at_threshold = _sigmoid(t + cuts[level - 1]), _sigmoid(t)
        share = at_threshold if level > main else 1 - at_threshold
        expected = (chance if level > main else chance - at_threshold) / share
        slope = float((chance * (1 - chance) / share).sum())
        found[level - 1] -= np.clip((expected.sum() - above) / max(slope, 1e-12), -1, 1)
    return found


def _sigmoid(values: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-values))


def _log_odds(rate: Any) -> Any:
    return np.log(rate / (1 - rate))


def others_log_odds(codes: NDArray[Any], labels: Numbers, rows: NDArray[np.int64]) -> Numbers:
    """For some rows, the log odds of a positive label among the other rows of the same code, drawn to the mean."""
    counts, sums, rate = np.bincount(codes), np.bincount(codes, weights=labels), labels.mean()
    code = codes[rows]
    chance = (sums[code] - labels[rows] + SMOOTHING * rate) / (counts[code] - 1 + SMOOTHING)
    return _log_odds(chance)  # type: ignore[no-any-return]


class Cutpoints(nn.Module):
    """The logarithms of the gaps between one cut and the next. ([fits,] levels - 2)"""

    def __init__(self, log_gaps: Tensor) -> None:
        super().__init__()
        self.log_gaps = nn.Parameter(log_gaps)


@dataclass(eq=False)
class FittedOrdinal:
    """The grades of a log during one fit."""

    grades: Tensor  # (rows of the log,)
    levels: RatingLevels
    say: float
    centre: float
    cuts: Cutpoints

    @classmethod
    def init(cls, context: FitContext) -> Self | None:
        """Levels, say and first cuts from the log; None where there is nothing that grades say."""
        log, threshold = context.log, context.log.threshold
        rows = np.arange(len(log))
        if len(log) > SAMPLE:
            rows = np.sort(np.random.default_rng(0).integers(len(log), size=SAMPLE))
        labels = log.labels
        if threshold is None or len(np.unique(labels[rows])) < 2:
            return None
        rate, levels = float(labels.mean()), RatingLevels.of(log.ratings[rows], threshold)
        if len(levels.borders) < 2:
            return None
        grades = levels.grades(log.ratings)
        say = say_of_log(log, grades, rows, levels.main)
        if say == 0:
            return None
        above = reached(grades, len(levels.borders) + 1)[1:-1]
        gaps = -np.diff(np.log(above / (1 - above)))
        cuts = Cutpoints(torch.from_numpy(np.log(np.maximum(gaps, NARROWEST))).float()).to(context.device)
        return cls(torch.from_numpy(grades).to(context.device), levels, say, math.log(rate / (1 - rate)), cuts)

    def surprise(self, batch: Batch, logits: Tensor) -> Tensor:
        """`grade_surprise` of each row, from logits of P(label | observed)."""
        scores = self.centre + self.say * (logits - self.centre)
        grades = self.grades[batch.rows].long()
        return grade_surprise(scores, batch.labels, grades, self.cuts.log_gaps.exp(), self.levels.main)

    def parameters(self) -> Iterator[Tensor]:
        """The cuts."""
        return self.cuts.parameters()

    def precisions(self) -> list[Rate]:
        """They have no prior."""
        return [0.0]

    def again(self) -> Self:
        """The same with cuts of its own, for another predictor."""
        return replace(self, cuts=deepcopy(self.cuts))

    def side_by_side(self, fits: int) -> Self:
        """The same for so many fits with a leading axis."""
        return replace(self, cuts=Cutpoints(self.cuts.log_gaps.detach().repeat(fits, 1)))

    def facts(self) -> dict[str, Any]:
        """JSON-able: where levels begin, how much grades say, and the log odds of each level at the centre."""
        cuts = pad(-self.cuts.log_gaps.detach().exp().cumsum(-1), (1, 0))
        odds = cuts - cuts[self.levels.main - 1] + self.centre
        return {"say": self.say, "levels": self.levels.borders.tolist(), "log_odds": odds.tolist()}


def no_say(log: FeedbackLog) -> str:
    """Why grades of a log were not learned from: there are none, or what was measured of them is 0."""
    if log.threshold is None:
        return "the ratings of the log are labels"
    return "what ratings tell of taste in this log lies in their side of the threshold"


def say_of_log(log: FeedbackLog, grades: NDArray[np.uint8], rows: NDArray[np.int64], main: int) -> float:
    """`say_of_grades` by the label rates of users and items, from some rows of a log."""
    labels = log.labels.astype(np.float64)
    scores = others_log_odds(log.users, labels, rows) + others_log_odds(log.items, labels, rows)
    return say_of_grades(scores, labels[rows], grades[rows], main)
