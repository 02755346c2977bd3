"""Calibration of propensities: maps under which pairs of propensity p are observed with frequency p.

Each pair of D is scored by a model that was fitted without the rows of the pair's fold, and the map is learned on all
pairs, observed or not. With base rates of some percent, a map that is learned on as many unobserved pairs as rows
calibrates to a rate of one half; here unobserved pairs count as many times as there are of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.features import ConstantFeatures, pair_features
from counterpoise.config import Calibration
from counterpoise.errors import ConfigError, check_choice, check_number
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights.base import CLIP, InversePropensity, PropensityOf
from counterpoise.weights.propensity import KnownPropensity, Propensity

MAX_PAIRS = 1 << 18  # unobserved pairs, and rows, that a map is learned from; of more, as many uniformly drawn ones
SMALLEST = 1e-9  # propensity, and largest 1 minus it, whose logit is taken
NEWTON_STEPS = 50
EXPERT_STEPS = 60  # of L-BFGS, for experts of propensities
ERROR_BINS = 20  # of equal mass, in the calibration error
MapOf = Callable[[Tensor, Tensor, Tensor], Tensor]  # of logits, users and folds of pairs: the calibrated propensities


def log_loss(p: Tensor, targets: Tensor) -> Tensor:
    """CE(target -> p) of each pair."""
    return -(targets * p.clamp(min=SMALLEST).log() + (1 - targets) * (1 - p).clamp(min=SMALLEST).log())


def regress_labels(columns: Tensor, targets: Tensor, weights: Tensor, b: Tensor) -> Tensor:
    """The coefficients that minimise sum of weight x CE(target -> sigmoid(columns b)), from a start. (columns,)

    By Newton's method in float64. Columns that repeat one another share their coefficient.
    """

    def objective(at: Tensor) -> Tensor:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(columns @ at, targets, reduction="none")
        return (weights * losses).sum()

    value = objective(b)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(columns @ b)
        slope = columns.T @ (weights * (p - targets))
        curvature = columns.T @ ((weights * p * (1 - p))[:, None] * columns)
        move, size = torch.linalg.pinv(curvature, hermitian=True, rtol=1e-12) @ slope, 1.0
        while size > 1e-6 and not bool((trial := objective(b - size * move)) <= value):
            size /= 2
        if size <= 1e-6:
            break  # rounding leaves nothing to gain
        b, value, gain = b - size * move, trial, value - trial
        if float(gain) <= 1e-14 * float(value.abs()):
            break
    return b


def platt(logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[float, float]:
    """(b, c) of sigmoid(b z + c), of the least log loss (Platt 1999).

    Then sum of weight x (target - p) = 0, and of weight x (target - p) z = 0.
    """
    columns = torch.stack([logits, torch.ones_like(logits)], 1)
    b, c = regress_labels(columns, targets, weights, columns.new_tensor([1.0, 0.0])).tolist()
    return b, c


def temperature(logits: Tensor, targets: Tensor, weights: Tensor) -> float:
    """1 / T of sigmoid(z / T), of the least log loss (Guo, Pleiss, Sun and Weinberger 2017)."""
    return float(regress_labels(logits[:, None], targets, weights, logits.new_ones(1)))


class Steps(NamedTuple):
    """A step function: `heights[k]` from `starts[k]` on, and below the first."""

    starts: Tensor
    heights: Tensor

    def at(self, values: Tensor) -> Tensor:
        """The value at each place."""
        place = torch.searchsorted(self.starts.to(values), values.contiguous(), right=True) - 1
        return self.heights.to(values)[place.clamp(min=0)]


def isotonic(logits: Tensor, targets: Tensor, weights: Tensor) -> Steps:
    """The non-decreasing step function of z with the least squared error: pool adjacent violators.

    (Zadrozny and Elkan 2002.) A block without an observed pair has half a pair in it instead, 0.5 / its weight, or is
    pooled with the next if that is less. Otherwise the sum over rows of 1 / p is the number of pairs, block by block.
    """
    from scipy.optimize import isotonic_regression

    values, place = torch.unique(logits, return_inverse=True)
    mass = torch.zeros_like(values).index_add_(0, place, weights)
    mean = torch.zeros_like(values).index_add_(0, place, weights * targets) / mass
    found = isotonic_regression(mean.numpy(), weights=mass.numpy())
    first = np.asarray(found.blocks[:-1])
    heights, sizes = (torch.from_numpy(np.asarray(of)) for of in (found.x[first], found.weights))
    starts = values[torch.from_numpy(first)]
    starts[1:] = (starts[1:] + values[torch.from_numpy(first[1:]) - 1]) / 2  # midway: z may be rounded another way
    if len(sizes) > 1 and heights[0] == 0 and 0.5 / sizes[0] > heights[1]:
        heights[1] *= sizes[1] / (sizes[0] + sizes[1])
        starts, heights, sizes = starts[1:], heights[1:], sizes[1:]
    return Steps(starts, torch.where(heights > 0, heights, 0.5 / sizes).clamp(max=1.0))


@dataclass
class Experts:
    """Platt maps of which each user has a mixture: p = sum_j k_uj sigmoid(b_j z + c_j), k_u = softmax(V a_u).

    From DCE (Kweon and Yu 2024). Ours: the mixture is the softmax itself, without Gumbel noise; the loss is the log
    loss of p, where the release has a softmax over the rows of a batch; V a_u has a prior of deviation 1, and each
    (b_j, c_j) one around a map where they start, the c_j less than 1 apart: for propensities the Platt map of all
    users, for labels (1, 0). a_u has mean 0 and deviation 1, and a 1 besides. One expert is Platt scaling.
    """

    gate: Tensor  # V (folds, d, experts)
    slope: Tensor  # (experts,)
    intercept: Tensor  # (experts,)

    @classmethod
    def of(cls, count: int, folds: int, columns: int) -> Experts:
        """Experts at the identity: p = sigmoid(z)."""
        zeros = torch.zeros(folds, columns, count, dtype=torch.float64)
        return cls(zeros, zeros.new_ones(count), zeros.new_zeros(count))

    def tensors(self) -> list[Tensor]:
        return [self.gate, self.slope, self.intercept]

    def shares(self, vectors: Tensor) -> Tensor:
        """k: of each user and fold, from vectors (folds, |U|, d). (folds, |U|, experts)"""
        return torch.softmax(vectors @ self.gate, dim=2)

    def at(self, logits: Tensor, shares: Tensor) -> Tensor:
        """p of each pair from its logit and the shares of its user and fold (..., experts)."""
        slope, intercept = self.slope.to(logits), self.intercept.to(logits)
        return (shares.to(logits) * torch.sigmoid(logits[..., None] * slope + intercept)).sum(-1)

    def fit(self, data: Scored, vectors: Tensor, centre: tuple[float, float], steps: int, fresh: bool = True) -> None:
        """Minimise sum of weight x CE(target -> p) + 1/2 (d |V|^2 + |b - b0|^2 + |c - c0|^2) by L-BFGS, in place.

        `centre`: (b0, c0), where `fresh` experts start.
        """
        if fresh:
            spread = torch.arange(len(self.slope), dtype=torch.float64) - (len(self.slope) - 1) / 2
            self.slope.fill_(centre[0])
            self.intercept.copy_(centre[1] + spread / len(self.slope))
        from scipy.optimize import minimize  # torch.optim takes a second to import

        own, total = self.tensors(), float(data.weights.sum())
        sizes = [values.numel() for values in own]

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            at = torch.from_numpy(flat).requires_grad_()
            parts = torch.split_with_sizes(at, sizes)
            trial = Experts(*(part.view_as(values) for part, values in zip(parts, own, strict=True)))
            p = trial.at(data.logits, trial.shares(vectors)[data.folds, data.users])
            away = vectors.shape[2] * trial.gate.square().sum() + (trial.slope - centre[0]).square().sum()
            away = away + (trial.intercept - centre[1]).square().sum()
            found = ((data.weights * log_loss(p, data.targets)).sum() + away / 2) / total
            return found.item(), torch.autograd.grad(found, at)[0].numpy()

        start = torch.cat([values.flatten() for values in own]).numpy()
        with torch.enable_grad():
            found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "ftol": 1e-12})
        for values, part in zip(own, torch.split_with_sizes(torch.from_numpy(found.x), sizes), strict=True):
            values.copy_(part.view_as(values))


class Scored(NamedTuple):
    """Pairs with a score and what came out, on the CPU."""

    logits: Tensor  # in float64
    targets: Tensor  # whether observed; of rows, the label
    weights: Tensor
    users: Tensor
    folds: Tensor


def with_ones(vectors: Tensor) -> Tensor:
    """Columns of mean 0 and deviation 1, constant ones 0, and one of ones: (rows, d + 1) in float64 on the CPU."""
    table = vectors.detach().double().cpu()
    table = table - table.mean(0)
    deviation = table.square().mean(0).sqrt()
    table = table / torch.where(deviation > 1e-9, deviation, torch.inf)
    return torch.cat([table, table.new_ones(len(table), 1)], 1)


def calibration_error(p: Tensor, targets: Tensor, weights: Tensor, bins: int = ERROR_BINS) -> float:
    """sum over bins of |sum of weight x (target - p)| / sum of weight: the expected calibration error.

    Bins are of equal mass: of equal width, nearly all pairs would lie in the first. Equal p stay together.
    """
    values, place = torch.unique(p, return_inverse=True)
    mass = torch.zeros_like(values).index_add_(0, place, weights)
    gap = torch.zeros_like(values).index_add_(0, place, weights * (targets - p))
    middle = (mass.cumsum(0) - mass / 2) / mass.sum()
    found = torch.zeros(bins, dtype=gap.dtype).index_add_(0, (middle * bins).long().clamp(max=bins - 1), gap)
    return float(found.abs().sum() / mass.sum())


@dataclass
class Calibrated(Weights):
    """Inverse propensities of other `weights`, calibrated: p = density / ratio of theirs goes through a learned map.

    `method`, with z = logit p: "platt" sigmoid(b z + c); "temperature" sigmoid(z / T); "isotonic" a non-decreasing step
    function of z; "experts" a mixture of `experts` Platt maps for each user, by the user's vector in the model of being
    observed, where `weights` have one, else by the features and the activity of the user (`Experts`).
    Maps minimise the loss over all pairs of D (`MAX_PAIRS`). Cross-fitting: pairs fall into `folds`, and z of a pair is
    that of weights fitted without the rows of its fold, here and in the ratios; so no row is weighed by a model that
    has seen it, and over the log the ratios of "isotonic" average exactly 1 before the `clip` (see
    `inverse_propensity`). A calibrated propensity need not be a good one: that of all pairs, the density, is.
    `weights` must be known of all pairs before training; known propensities are not fitted, and have one fold.
    """

    weights: Weights = field(default_factory=Propensity)
    method: Calibration = "platt"
    folds: int = 2
    experts: int = 5
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        check_choice("method", self.method, get_args(Calibration))
        check_number("folds", self.folds, at_least=1, integer=True)
        check_number("experts", self.experts, at_least=1, integer=True)
        scores = _CrossFitted(self.weights, context, self.folds)
        data = scores.sample()
        found, facts = self._map(data, scores)
        before, after = torch.sigmoid(data.logits), found(data.logits, data.users, data.folds)
        errors = [calibration_error(p, data.targets, data.weights) for p in (before, after)]
        facts |= {
            "method": self.method,
            "folds": len(scores.fitted),
            "error_before": errors[0],
            "error_after": errors[1],
        }
        return InversePropensity(context, scores.through(found), self.clip, learned={"calibration": facts})

    def _map(self, data: Scored, scores: _CrossFitted) -> tuple[MapOf, dict[str, Any]]:
        """The map, and what there is to know of it."""
        seen = data.logits, data.targets, data.weights
        if self.method == "isotonic":
            steps = isotonic(*seen)
            return lambda z, users, folds: steps.at(z), {"blocks": len(steps.heights)}
        if self.method == "temperature":
            b, c = temperature(*seen), 0.0
        else:
            b, c = platt(*seen)
        if self.method != "experts":
            return lambda z, users, folds: torch.sigmoid(b * z + c), {"slope": b, "intercept": c}
        vectors = scores.vectors()
        experts = Experts.of(self.experts, len(vectors), vectors.shape[2])
        experts.fit(data, vectors, (b, c), EXPERT_STEPS)
        shares = experts.shares(vectors)
        facts = {"slope": experts.slope.tolist(), "intercept": experts.intercept.tolist()}
        return lambda z, users, folds: experts.at(z, shares.to(z.device)[folds, users]), facts


class _CrossFitted:
    """Weights of each fold's pairs, fitted to the rows of the other folds.

    The fold of (u, i) is (a_u + b_i) modulo the number of folds, with a and b drawn once: every user and every item has
    its pairs in all of them, and no table of pairs is kept.
    """

    def __init__(self, weights: Weights, context: FitContext, folds: int) -> None:
        log, count = context.log, 1 if isinstance(weights, KnownPropensity) else folds
        self.log, self.density, self.device, self.generator = log, log.density, context.device, context.generator
        self.of_users, self.of_items = (torch.randint(count, (size,), generator=self.generator) for size in log.shape)
        users, items = (torch.from_numpy(codes).long() for codes in (log.users, log.items))
        rows = ((self.of_users[users] + self.of_items[items]) % count).numpy()
        if np.bincount(rows).max() == len(rows):  # nothing would be left to fit the weights of these pairs to
            count = 1
        parts = [context] if count == 1 else [context.on(log.take(rows != fold)) for fold in range(count)]
        self.fitted = [weights.init(part) for part in parts]
        if self.fitted[0].changes:
            raise ConfigError(
                f"`weights` of Calibrated must be known before training, and {type(weights).__name__} is not. "
                "Choose such as Propensity() or Logistic()."
            )
        self.of_users, self.of_items = self.of_users.to(self.device), self.of_items.to(self.device)

    def fold(self, users: Tensor, items: Tensor) -> Tensor:
        """The fold of each pair."""
        return (self.of_users[users] + self.of_items[items]) % len(self.fitted)

    def logits(self, users: Tensor | None, items: Tensor | None, folds: Tensor) -> Tensor:
        """z of each pair, of all of D where they are None, by the weights of its fold; in float64.

        The ratios of a fold's weights are for the density of the other rows, so p = density / ratio is for all rows.
        """
        found = torch.stack([part.at(users, items).detach().double() for part in self.fitted])
        return torch.logit(self.density / found.gather(0, folds[None])[0], eps=SMALLEST)

    def sample(self) -> Scored:
        """The rows of the log, and all other pairs of D or a sample that stands for them."""
        log, seen = self.log, torch.from_numpy(self.log.pairs)
        if log.n_pairs <= MAX_PAIRS:
            free = torch.ones(log.n_pairs, dtype=torch.bool)
            free[seen] = False
            unseen = free.nonzero()[:, 0]
        else:
            drawn = torch.randint(log.n_pairs, (MAX_PAIRS,), generator=self.generator)
            unseen = drawn[~torch.isin(drawn, seen)]
        rows = seen if len(seen) <= MAX_PAIRS else seen[torch.randperm(len(seen), generator=self.generator)[:MAX_PAIRS]]
        pairs, targets = torch.cat([rows, unseen]), torch.zeros(len(rows) + len(unseen), dtype=torch.float64)
        targets[: len(rows)] = 1.0
        weights = torch.full_like(targets, (log.n_pairs - len(seen)) / max(1, len(unseen)))
        weights[: len(rows)] = len(seen) / len(rows)
        users, items = (codes.to(self.device) for codes in (pairs // log.shape[1], pairs % log.shape[1]))
        folds = self.fold(users, items)
        return Scored(self.logits(users, items, folds).cpu(), targets, weights, users.cpu(), folds.cpu())

    def through(self, calibrated: MapOf) -> PropensityOf:
        """The propensity of pairs, calibrated."""

        def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
            if users is None or items is None:
                n_users, n_items = self.log.shape
                who = torch.arange(n_users, device=self.device).repeat_interleave(n_items)
                folds = self.fold(who, torch.arange(n_items, device=self.device).repeat(n_users))
            else:
                who, folds = users.long(), self.fold(users.long(), items.long())
            return calibrated(self.logits(users, items, folds), who, folds).float()

        return propensity_of

    def vectors(self) -> Tensor:
        """The vectors of users for each fold: embeddings of its model, or their features. (folds, |U|, d)"""
        learned = [part.user_vectors for part in self.fitted if part.user_vectors is not None]
        if learned:
            return torch.stack([with_ones(vectors) for vectors in learned])
        try:
            table = pair_features(self.log, ("side", "activity")).users
        except ConstantFeatures:
            table = torch.zeros(self.log.shape[0], 0, dtype=torch.float64)
        return with_ones(table).expand(len(self.fitted), -1, -1)
