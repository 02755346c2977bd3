"""The row of one user (or item), all else fixed: new users from a few ratings, and updates on new rows.

With everything else fixed the logits of a user's items are linear in the user's row t: z = base + columns t. So

    sum over the user's ratings of w (error(label, z + offset) + level loss) + 1/2 (t - centre)' precision (t - centre)

is minimised by a few Newton steps. Precision and centre of a new user are those of the prior that the model was
trained with. Those of a known one are the Gaussian around the fitted row that the ratings so far leave (Laplace), whose
precision is the prior's and the information of those ratings: sum of w p (1 - p) columns columns', which needs no
labels. Clicks that were learned by least squares have normal equations instead (`UserSquares`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.errors import ConfigError
from counterpoise.models.base import Scorer
from counterpoise.training.learner import Learner, share_of_prior
from counterpoise.training.ordinal import Cutpoints, FittedOrdinal, RatingLevels

MAX_STEPS = 60  # of Newton's method; a handful where the loss is convex
MAX_HALVINGS = 30  # of a step that would raise the loss
SMALLEST_STEP = 1e-9  # the largest entry of a step that ends the search
MIN_PRECISION = 1e-6  # of a prior: rows of few ratings must have one
MAX_NUMBERS = 1 << 24  # of outer products that are held in memory at a time


@dataclass(frozen=True)
class UserSquares:
    """The normal equations of a user's factors a, from clicks on items with factors b; JSON-able numbers.

        (system + confidence sum b b') a = (1 + confidence) target sum b,   sums over the user's clicks

    The row is slope (mean + taste'(a - mean)): shrunk to the mean user, and calibrated (`LeastSquares`).
    """

    system: list[list[float]]  # sum over all items of exposure b b' + l2 I
    confidence: float
    target: float
    slope: float
    mean: list[float]
    taste: list[list[float]]

    def solve(self, owners: Tensor, items: Tensor, count: int) -> Tensor:
        """The rows of so many users, numbered from 0, from the factors of the items that each clicked."""
        system, mean, taste = (torch.tensor(x, dtype=torch.float64) for x in (self.system, self.mean, self.taste))
        sums = items.new_zeros(count, len(mean)).index_add_(0, owners, items)
        squares = weighted_squares(items, items.new_full((len(items),), self.confidence), owners, count)
        a = torch.linalg.solve(system + squares, (1 + self.confidence) * self.target * sums)
        rows: Tensor = self.slope * (mean + (a - mean) @ taste)
        return rows

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """The numbers that `asdict` gave, checked."""
        tables = {name: [[float(value) for value in row] for row in facts[name]] for name in ("system", "taste")}
        numbers = {name: float(facts[name]) for name in ("confidence", "target", "slope")}
        return cls(mean=[float(value) for value in facts["mean"]], **tables, **numbers)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RowLoss:
    """The loss and prior of the rows of a fitted model, as JSON-able numbers."""

    offset: float  # log odds of the labels of ratings, against those of all pairs
    precisions: dict[str, float]  # of the priors on the rows of users and items, by parameter
    ratios: tuple[float, float]  # what a rating counts with a label of 0 and of 1, see `label_ratios`
    ordinal: dict[str, Any] | None = None  # weight, centre, borders, main and log_gaps of the ordinal loss
    squares: UserSquares | None = None  # of users, where clicks were learned by least squares

    @classmethod
    def of(cls, learner: Learner, ratios: tuple[float, float]) -> Self:
        """The loss of rows of a learner when training has ended."""
        scorer = learner.scorer
        precisions = {name: scorer.precision(name) for name, _ in scorer.named_parameters() if scorer.side(name)}
        estimates = {name: float(scorer.estimates[name].mean()) for name in precisions if name in scorer.estimates}
        prior_scale, ordinal = learner.imputation.prior_scale, learner.ordinal
        levels: dict[str, Any] | None = None
        if ordinal is not None:
            gaps = ordinal.cutpoints.log_gaps.detach().tolist()
            borders, main = ordinal.rating_levels
            levels = {"weight": ordinal.weight, "centre": ordinal.centre, "borders": borders.tolist()}
            levels = levels | {"main": main, "log_gaps": gaps}
        found = {name: float(prior_scale * value) for name, value in (precisions | estimates).items()}
        offset, squares = float(torch.as_tensor(learner.offset).detach()), learner.user_squares()
        own = None if squares is None else UserSquares(**squares)
        return cls(offset - learner.shifted, found, ratios, levels, own)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """The numbers that `to_dict` gave, checked."""
        ordinal: dict[str, Any] | None = None
        if facts["ordinal"] is not None:
            given = facts["ordinal"]
            ordinal = {name: float(given[name]) for name in ("weight", "centre")} | {"main": int(given["main"])}
            ordinal = ordinal | {name: [float(value) for value in given[name]] for name in ("borders", "log_gaps")}
        precisions = {str(name): float(value) for name, value in facts["precisions"].items()}
        negative, positive = map(float, facts["ratios"])
        squares = None if facts["squares"] is None else UserSquares.from_dict(facts["squares"])
        return cls(float(facts["offset"]), precisions, (negative, positive), ordinal, squares)

    def fitted_ordinal(self) -> FittedOrdinal | None:
        """The ordinal loss, in double precision."""
        if self.ordinal is None:
            return None
        found = self.ordinal
        levels = RatingLevels(np.array(found["borders"]), found["main"])
        gaps = Cutpoints(torch.tensor(found["log_gaps"], dtype=torch.float64)).requires_grad_(False)
        return FittedOrdinal(torch.empty(0), levels, found["weight"], found["centre"], gaps)

    def ratios_of(self, labels: Tensor) -> Tensor:
        """The ratio of ratings with these labels."""
        negative, positive = self.ratios
        return negative + (positive - negative) * labels


class Ratings(NamedTuple):
    """Ratings by rows that are to be learned (`owners`, numbered from 0) of `others`, the codes of the other side."""

    owners: Tensor
    others: Tensor
    labels: Tensor  # float64
    levels: Tensor | None  # of the ordinal loss

    @classmethod
    def of(cls, owners: Any, others: Any, labels: Any, ratings: Any, loss: RowLoss) -> Self:
        """The ratings of some columns, sorted by owner."""
        order, ordinal = np.argsort(owners, kind="stable"), loss.fitted_ordinal()
        levels = None if ordinal is None else torch.from_numpy(ordinal.rating_levels.of_ratings(ratings[order]))
        own, other = (torch.from_numpy(np.asarray(column, dtype=np.int64)[order]) for column in (owners, others))
        return cls(own, other, torch.from_numpy(np.asarray(labels, dtype=np.float64)[order]), levels)

    def within(self, first: int, last: int) -> Self:
        """The ratings of the owners from `first` to before `last`, numbered from 0."""
        rows = _rows_of(self.owners, first, last)
        levels = None if self.levels is None else self.levels[rows]
        return type(self)(self.owners[rows] - first, self.others[rows], self.labels[rows], levels)


class Earlier(NamedTuple):
    """The training ratings that a fitted model keeps, by the same owners: no labels."""

    owners: Tensor  # sorted
    others: Tensor
    ratio: Tensor  # 0: not learned from
    vectors: Tensor  # (others, d) of the other side, with which the rows were learned


def label_ratios(ratio: Tensor, labels: Tensor) -> tuple[float, float]:
    """The mean ratio of a log's rows with a label of 0, and with 1: what a rating of an unknown user counts.

    Weights that depend on the label alone are met exactly, those of labels between by least squares. 1 without rows.
    """
    ratio, labels = ratio.double(), labels.double()
    if not len(ratio):
        return 1.0, 1.0
    spread = labels - labels.mean()
    slope = float((spread * ratio).sum() / spread.square().sum().clamp(min=1e-12))
    level = float(ratio.mean()) - slope * float(labels.mean())
    return max(level, 0.0), max(level + slope, 0.0)


def learned_columns(scorer: Scorer, side: str) -> Tensor:
    """The columns of a user's (or an item's) vector that are learned. (p,)"""
    places = [torch.arange(part.start, part.stop) for part in scorer.row_columns(side).values()]
    return torch.cat([torch.arange(0), *places])


def prior_precision(scorer: Scorer, side: str, loss: RowLoss) -> Tensor:
    """The precision of the prior on each of these columns. (p,)"""
    columns = scorer.row_columns(side).items()
    values = [[max(loss.precisions[name], MIN_PRECISION)] * (part.stop - part.start) for name, part in columns]
    return torch.tensor([value for part in values for value in part], dtype=torch.float64)


def check_linear(scorer: Scorer, what: str) -> None:
    """Raise `ConfigError` for a scorer whose logits are no inner products."""
    if scorer.vectors() is None:
        raise ConfigError(
            f"`{what}` needs a backbone whose log odds are inner products (MatrixFactorization, ItemPopularity, or "
            "these inside ExposureCovariate), which NeuralCF's are not. Fit with backbone='mf'."
        )


def fold_in(scorer: Scorer, loss: RowLoss, ratings: Ratings, count: int, features: Tensor | None = None) -> Tensor:
    """The vectors of so many new users from their ratings, as those of `vectors()`. (count, d)"""
    tables = scorer.vectors()
    assert tables is not None  # see `check_linear`
    base, others = scorer.unrated_vectors("user", count, features).double().cpu(), tables[1].double().cpu()
    if loss.squares is None:
        return learn_rows(scorer, "user", loss, ratings, base, others)
    columns = scorer.row_columns("user")["user_factors.weight"]
    columns = slice(columns.start, columns.start + len(loss.squares.mean))
    base[:, columns] = loss.squares.solve(ratings.owners, others[ratings.others, columns], count)
    return base


def learn_rows(
    scorer: Scorer,
    side: str,
    loss: RowLoss,
    ratings: Ratings,
    base: Tensor,
    others: Tensor,
    earlier: Earlier | None = None,
) -> Tensor:
    """The vectors of users (or items) from their ratings, all else fixed. (rows, d)

    `base`: their vectors before these ratings; `others`: those of the other side. The prior is around `base`: as wide
    as it was in training, or, with `earlier` ratings, as narrow as those leave it.
    """
    columns, ordinal = learned_columns(scorer, side), loss.fitted_ordinal()
    size = max(1, MAX_NUMBERS // max(1, len(columns)) ** 2)
    own, fixed, found = prior_precision(scorer, side, loss), base.clone(), base.clone()
    fixed[:, columns] = 0
    for first in range(0, len(base) if len(columns) else 0, size):
        last = min(first + size, len(base))
        here = ratings.within(first, last)
        vectors, ratio = others[here.others], loss.ratios_of(here.labels)
        sums, information = _sums(ratio, here.owners, last - first), torch.zeros((), dtype=torch.float64)
        if earlier is not None:
            rows = _rows_of(earlier.owners, first, last)
            who, old, vector = earlier.owners[rows] - first, earlier.ratio[rows], earlier.vectors[earlier.others[rows]]
            logits = (base[first:last][who] * vector).sum(1) + loss.offset
            of_rows = old * expected_information(ordinal, logits)
            information = weighted_squares(vector[:, columns], of_rows, who, last - first)
            sums += _sums(old, who, last - first)
        found[first:last, columns] = newton(
            partial(rating_losses, here, ratio, ordinal),
            here.owners,
            vectors[:, columns],
            offset=(fixed[first:last][here.owners] * vectors).sum(1) + loss.offset,
            centre=base[first:last][:, columns],
            precision=torch.diag_embed(share_of_prior(sums)[:, None] * own) + information,
        )
    return found


def rating_losses(ratings: Ratings, ratio: Tensor, ordinal: FittedOrdinal | None, logits: Tensor) -> Tensor:
    """ratio x (error + level loss) of each rating, from the logits of P(label | observed)."""
    losses = risks.error(ratings.labels, logits)
    if ordinal is not None and ratings.levels is not None:
        losses = losses + ordinal.level_losses(ratings.levels, ratings.labels, logits)
    return ratio * losses


def _sums(ratio: Tensor, owners: Tensor, size: int) -> Tensor:
    """The sums of w and of w^2 over the rows of each owner. (2, size)"""
    sums = torch.zeros(2, size, dtype=torch.float64)
    return sums.index_add_(1, owners, torch.stack([ratio, ratio.square()]).double())


def expected_information(ordinal: FittedOrdinal | None, logits: Tensor) -> Tensor:
    """The information of a rating on its logit, before the rating is known: sum over levels of P(level) x curvature.

    p (1 - p) without an ordinal loss.
    """
    p = torch.sigmoid(logits)
    if ordinal is None:
        return p * (1 - p)
    total, scores = torch.zeros_like(p), ordinal.centre + ordinal.weight * (logits - ordinal.centre)
    for level in range(len(ordinal.rating_levels.borders) + 1):
        levels = torch.full_like(logits, level, dtype=torch.long)
        label = torch.full_like(p, float(level >= ordinal.rating_levels.main))
        probability = torch.exp(-ordinal.level_losses(levels, label, logits) - risks.error(label, scores))
        total = total + probability * ordinal.information(levels, logits)
    return total


def weighted_squares(columns: Tensor, weights: Tensor, owners: Tensor, size: int) -> Tensor:
    """Sums over the rows of each owner of weight x columns columns'. (size, p, p)"""
    width = columns.shape[1]
    total = columns.new_zeros(size, width * width)
    for rows in torch.split(torch.arange(len(columns)), max(1, MAX_NUMBERS // max(1, width) ** 2)):
        squares = (weights[rows, None] * columns[rows]).unsqueeze(2) * columns[rows].unsqueeze(1)
        total.index_add_(0, owners[rows], squares.flatten(1))
    return total.view(size, width, width)


def newton(
    losses: Callable[[Tensor], Tensor],
    owners: Tensor,
    columns: Tensor,
    offset: Tensor,
    centre: Tensor,
    precision: Tensor,
) -> Tensor:
    """argmin over t of sum of losses(offset + columns t) + 1/2 (t - centre)' precision (t - centre), for each owner.

    Where the ordinal loss bends the other way its curvature counts as 0; a step that raises an owner's loss is halved.
    """
    rows, size = centre.clone(), len(centre)

    def logits_of(values: Tensor) -> Tensor:
        return offset + (columns * values[owners]).sum(1)

    def total(values: Tensor) -> Tensor:
        away = values - centre
        prior = (away.unsqueeze(1) @ precision @ away.unsqueeze(2)).flatten() / 2
        return prior.index_add(0, owners, losses(logits_of(values)))

    now = total(rows)
    for _ in range(MAX_STEPS):
        with torch.enable_grad():
            logits = logits_of(rows).requires_grad_()
            (slopes,) = torch.autograd.grad(losses(logits).sum(), logits, create_graph=True)
            (curves,) = torch.autograd.grad(slopes.sum(), logits)
        slopes = slopes.detach()
        gradient = (precision @ (rows - centre).unsqueeze(2)).squeeze(2)
        gradient.index_add_(0, owners, slopes[:, None] * columns)
        curvature = precision + weighted_squares(columns, curves.clamp(min=0), owners, size)
        step = torch.linalg.solve(curvature, gradient)
        share = torch.ones(size, 1, dtype=rows.dtype)
        for _ in range(MAX_HALVINGS):
            new = rows - share * step
            then = total(new)
            worse = then > now + 1e-12 * (1 + now.abs())
            if not worse.any():
                break
            share = torch.where(worse[:, None], share / 2, share)
        rows, now = new, then
        if float((share * step).abs().max()) < SMALLEST_STEP:
            break
    return rows


def _rows_of(owners: Tensor, first: int, last: int) -> slice:
    """The rows of some owners, among sorted ones."""
    start, end = torch.searchsorted(owners, torch.tensor([first, last])).tolist()
    return slice(start, end)
