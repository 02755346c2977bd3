"""Risks of clicks that are minimised in closed form: alternating least squares, and EM with hidden exposure.

A closed form takes the place of Adam. It makes a learner like any other, whose step is a sweep over users and items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.config import Configurable
from counterpoise.data.batches import Batch
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.embedding_ops import inner_products
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.risks import ERRORS
from counterpoise.training.contracts import FitContext, Imputation, Weights
from counterpoise.training.learner import Learner
from counterpoise.training.optimizer import Rate

CHECKED_USERS = 16  # whose exposures are compared, where they must be those of the items
BLOCK_ROWS = 1 << 14  # clicks whose terms are held in memory at a time
BLOCK_NUMBERS = (
    1 << 18
)  # numbers of gathered factors, or of exposures of pairs, in memory at a time: they stay in cache
GRADIENT_STEPS = 3  # of conjugate gradients for each user and item in a sweep, from where the last sweep left them
TINY = 1e-30  # below which a step of conjugate gradients has nothing left to do
MIN_RANK, CLICKS_PER_FACTOR = 4, 6  # see `usual_rank`
CALIBRATION_STEPS = 50  # of Newton's method, for two numbers
CALIBRATION_PAIRS = 1 << 18  # uniform pairs of D that the scores are calibrated on


class Rows(NamedTuple):
    """The rows of a log by their owners, users or items: those of owner o are at starts[o] : starts[o + 1]."""

    starts: Tensor
    others: Tensor  # (rows,) codes of the other side
    order: Tensor  # (rows,) positions in the log

    @classmethod
    def of(cls, owners: Tensor, others: Tensor, size: int, which: Tensor | None = None) -> Rows:
        """`which`: a mask of the rows that count; None for all."""
        order = owners.argsort(stable=True)
        order = order if which is None else order[which[order]]
        counts = torch.bincount(owners[order], minlength=size)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), others[order], order)

    @property
    def owners(self) -> Tensor:
        """(rows,) the owner of each."""
        return torch.repeat_interleave(self.starts.diff())

    def blocks(self, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(owners, positions of their rows (owners, most rows)), of similar numbers of rows, filled up by len(others).

        Owners without rows are left out.
        """
        counts = self.starts.diff()
        owners = counts.argsort(stable=True)
        owners = owners[counts[owners] > 0]
        start = 0
        while start < len(owners):
            size = max(1, BLOCK_NUMBERS // (width * int(counts[owners[start]])))
            block = owners[start : start + size]
            while len(block) > 1 and len(block) * int(counts[block[-1]]) * width > 2 * BLOCK_NUMBERS:
                block = block[: len(block) // 2]
            places = torch.arange(int(counts[block[-1]]), device=counts.device)
            own = places < counts[block][:, None]
            yield block, torch.where(own, self.starts[block][:, None] + places, len(self.others))
            start += len(block)


@dataclass(frozen=True)
class Side:
    """The objective of one side: sum over D of w_a w_b (1 - y) <a, b>^2 and sums over clicks, for given tables b."""

    rows: Rows
    targets: Tensor  # (rows,) t, in the order of the log
    own: Tensor  # (owners,) w_a
    others: Tensor  # (others,) w_b
    confidence: float
    ridge: float

    def solve(self, other: Tensor, start: Tensor, steps: int = GRADIENT_STEPS) -> tuple[Tensor, Tensor]:
        """The tables a that minimise sum over D of w_a w_b <a, b>^2 + sum over clicks + ridge |a|^2, and the minimum.

        The sum over clicks is that of (1 + confidence) (t - <a, b>)^2 - <a, b>^2. With G = sum_b w_b b b', B the rows b
        that a's owner clicked, and t their targets, a = (w_a G + ridge I + confidence B'B)^-1 (1 + confidence) B't.

        In the basis of eigenvectors of G the first two terms are a diagonal S. With Z = B S^(-1/2) and c = confidence,
        a = S^(-1/2) x, (I + c Z'Z) x = (1 + c) Z't, by `steps` steps of conjugate gradients from `start`, for all
        owners at once: each step lowers the sum, and as many as there are factors are exact.
        """
        width, c = other.shape[1], self.confidence
        values, basis = torch.linalg.eigh((other.T @ (self.others[:, None] * other)).double())
        basis = basis.to(other)
        scale = (self.own[:, None] * values.clamp(min=0).to(other) + self.ridge).rsqrt()  # (owners, width)
        alike = bool((self.own == self.own[0]).all())  # one S for all owners
        turned = other @ basis * scale[0] if alike else other @ basis
        table = torch.cat([turned, other.new_zeros(1, width)])
        begin, found = (start @ basis) / scale, torch.zeros_like(scale)
        targets = self.targets.index_select(0, self.rows.order)
        total, targets = (1 + c) * targets.square().sum(), torch.cat([(1 + c) * targets, targets.new_zeros(1)])
        others = torch.cat([self.rows.others, self.rows.others.new_full((1,), len(other))])
        for owners, places in self.rows.blocks(width):
            shape, flat = places.shape, places.flatten()
            z = table.index_select(0, others.index_select(0, flat)).view(*shape, width)  # (owners, most clicks, width)
            z = z if alike else z.mul_(scale[owners][:, None, :])
            wanted = torch.bmm(targets.index_select(0, flat).view(shape)[:, None, :], z)
            x, rest = _conjugate_gradients(z, c, wanted, begin.index_select(0, owners)[:, None, :], steps)
            found.index_copy_(0, owners, x[:, 0])
            total = total - (x * (wanted + rest)).sum()
        return (found * scale) @ basis.T, total


def _conjugate_gradients(z: Tensor, c: float, wanted: Tensor, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """x after so many steps towards (I + c z'z) x = wanted, and what is left of it; of each owner, (owners, 1, width).

    Vectors are rows here: products of rows by matrices are several times as fast as those of matrices by columns.
    """

    def product(at: Tensor) -> Tensor:
        return torch.baddbmm(at, torch.bmm(at, z.mT), z, alpha=c)

    rest = wanted - product(x)
    direction, size = rest.clone(), rest.square().sum(2, keepdim=True)
    for _ in range(steps):
        moved = product(direction)
        length = size / (direction * moved).sum(2, keepdim=True).clamp_(min=TINY)
        x = torch.addcmul(x, length, direction)
        rest.addcmul_(length, moved, value=-1.0)
        before, size = size, rest.square().sum(2, keepdim=True)
        direction.mul_(size / before.clamp(min=TINY)).add_(rest)
    return x, rest


def _solved(matrices: Tensor, right: Tensor) -> Tensor:
    """The solutions of positive definite systems, one for each row."""
    found: Tensor = torch.cholesky_solve(right[..., None], torch.linalg.cholesky(matrices))[..., 0]
    return found


def click_calibration(scores: Tensor, targets: Tensor, on_pairs: Tensor, density: float) -> tuple[float, float]:
    """(intercept, slope) that minimise mean_D softplus(z) - density x mean over clicks of t z, z = intercept + slope s.

    With t = 1 that is CE(click -> sigmoid(z)), with t = 1 / P(exposed) an unbiased estimate of it for relevance.
    """

    def loss(at: Tensor) -> Tensor:
        return softplus(at[0] + at[1] * pairs).mean() - density * (wanted * (at[0] + at[1] * clicks)).mean()

    clicks, wanted, pairs = scores.double(), targets.double(), on_pairs.double()
    rate = min(max(density * float(wanted.mean()), 1e-6), 0.5)
    value = pairs.new_tensor([math.log(rate / (1 - rate)), 1.0])
    best = loss(value)
    for _ in range(CALIBRATION_STEPS):
        p = torch.sigmoid(value[0] + value[1] * pairs)
        spread = p * (1 - p)
        first = torch.stack(
            [p.mean() - density * wanted.mean(), (p * pairs).mean() - density * (wanted * clicks).mean()]
        )
        moments = [(spread * pairs**power).mean() for power in (0, 1, 2)]
        second = torch.stack([torch.stack(moments[:2]), torch.stack(moments[1:])])
        second.diagonal().add_(1e-9)
        step, size = torch.linalg.solve(second, first), 1.0
        while size > 1e-4 and not bool(loss(value - size * step) < best):
            size /= 2
        if size <= 1e-4:
            break
        value = value - size * step
        best = loss(value)
    return float(value[0]), float(value[1])


def usual_rank(rows: int, n_users: int, n_items: int) -> int:
    """A sixth of the clicks for each user and item, 2 rows / (|U| + |I|), at least 4.

    The noise of clicks grows with their square root, and factors below it are not found: on simulated logs with 3 to 12
    true factors the best of 4, 8, 16 and 32 is 4 at 10 clicks, and 8 at 40 to 60 (benchmarks/clicks.py).
    """
    return max(MIN_RANK, round(2 * rows / (n_users + n_items) / CLICKS_PER_FACTOR))


class Directions(NamedTuple):
    """Personal taste by directions: <a_u, b_i> = <mean a, b_i> + sum_r left_ur right_ir, the largest first.

    Singular vectors of (a_u - mean a) b_i' in the inner product of D where items count by their exposure.
    """

    mean: Tensor  # (width,) the mean user's factors
    into: Tensor  # (width, width): left = (a - mean) into, of orthogonal columns of length 1
    back: Tensor  # (width, width): right = b back', of orthogonal columns

    @classmethod
    def of(cls, users: Tensor, items: Tensor, exposure: Tensor) -> Directions:
        """The directions of all users; those that nobody differs in are 0."""
        mean = users.mean(0)
        own = (users - mean).double()
        spread, basis = torch.linalg.eigh(own.T @ own)
        found = spread > 1e-10 * spread[-1]
        lengths = torch.where(found, spread, 1.0).sqrt()
        root, inverse = ((basis * torch.where(found, length, 0.0)) @ basis.T for length in (lengths, 1 / lengths))
        weighted = items.double() * exposure.double().sqrt()[:, None]
        turn = torch.linalg.eigh(root @ (weighted.T @ weighted) @ root)[1].flip(1)
        return cls(mean, (inverse @ turn).to(users), (turn.T @ root).to(users))

    def terms(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Tables whose products, column by column, are the terms of <a, b>: that of the mean user, then all others."""
        left = torch.cat([users.new_ones(len(users), 1), (users - self.mean) @ self.into], 1)
        return left, torch.cat([(items @ self.mean)[:, None], items @ self.back.T], 1)

    def shrink(self, users: Tensor, shares: Tensor) -> Tensor:
        """The users' factors with so much of each direction."""
        return self.mean + ((users - self.mean) @ self.into * shares) @ self.back


@dataclass
class ClosedForm(Configurable):
    """A minimiser of a risk in closed form: the configuration of a learner whose steps are sweeps."""

    risks: ClassVar[tuple[str, ...]] = ("dr",)  # that it can minimise

    def rank_of(self, log: FeedbackLog, dim: int) -> int:
        """The factors that are learned, of the `dim` of the backbone; the others stay 0."""
        rank = getattr(self, "rank", None)
        if rank is None:
            return min(dim, self.usual_rank(log))
        check_number("rank", rank, at_least=1, at_most=dim, integer=True, advice="Or None: by the size of the log.")
        return int(rank)

    def usual_rank(self, log: FeedbackLog) -> int:
        """The factors that a log of this size can tell from noise."""
        return usual_rank(len(log), *log.shape)

    def init(self, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Learner:
        """The learner of one fit."""
        raise NotImplementedError


@dataclass(eq=False)
class ClosedFormLearner(Learner):
    """A learner of factors <a, b> by sweeps, whose scores are calibrated to log odds after training."""

    part: Any = None
    ridge: float = 0.0
    rank: int = 0
    slope: float = 1.0  # of the calibration, which users' factors are multiplied by
    codes: tuple[Tensor, Tensor] = field(default=None)  # type: ignore[assignment]  # of users and items, in the log
    by_user: Rows = field(default=None)  # type: ignore[assignment]
    by_item: Rows = field(default=None)  # type: ignore[assignment]

    @classmethod
    def start(cls, part: Any, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Any:
        """A learner with the parts of a fit, its factors drawn and everything else 0."""
        backbone, name = context.backbone, type(part).__name__
        if type(backbone) is not MatrixFactorization or backbone.side_features or backbone.dim == 0:
            raise ConfigError(f"`backbone` must be a MatrixFactorization of factors for {name}.")
        known = risk in part.risks and getattr(imputation, "label", None) == 0 and context.error is ERRORS["linear"]
        if not known:
            risks = " or ".join(map(repr, part.risks))
            raise ConfigError(f"`risk` must be {risks} for {name}, with an imputed label of 0 and error='linear'.")
        learner = cls.init(context, weights, risk, imputation)
        learner.part, learner.ridge = part, float(backbone.l2)
        learner.rank = part.rank_of(context.log, backbone.dim)
        for table in learner.scorer.embeddings():
            table.data[:, learner.rank :] = 0.0
        for parameter in learner.scorer.parameters():
            if not any(parameter is table for table in learner.scorer.embeddings()):
                parameter.data.zero_()
        users, items = (
            torch.from_numpy(codes).long().to(context.device) for codes in (context.log.users, context.log.items)
        )
        learner.codes = users, items
        learner.by_user, learner.by_item = learner.rows()
        return learner

    def rows(self, which: Tensor | None = None) -> tuple[Rows, Rows]:
        """The rows of the log, or of a part of it, by users and by items."""
        users, items = self.codes
        return (
            Rows.of(users, items, self.scorer.n_users, which),
            Rows.of(items, users, self.scorer.n_items, which),
        )

    def batches(self, context: FitContext) -> Any:
        """The whole log as one batch: an epoch is a sweep."""
        training = context.training
        pairs = training.pairs_per_row(context.log)
        return context.log.batches(len(context.log), context.device, context.generator, pairs)

    @property
    def targets(self) -> Tensor:
        """1 / P(exposed) of every row."""
        return self.weights.ratio / self.unit

    def tables(self) -> tuple[Tensor, Tensor]:
        """The factors that are learned: views of the scorer's."""
        users, items = self.scorer.embeddings()
        return users.data[:, : self.rank], items.data[:, : self.rank]

    def scores(self) -> Tensor:
        """<a, b> of every click, user by user."""
        users, items = self.tables()
        return inner_products(users, items, self.by_user.owners, self.by_user.others)

    @torch.no_grad()
    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One sweep; what it minimises, for each click."""
        return self.sweep() / len(self.weights.ratio)

    def objective(self) -> Tensor:
        """The objective of the sweeps, up to a constant."""
        raise NotImplementedError

    def sweep(self) -> Tensor:
        """Users given the items, then items given the users; the objective."""
        raise NotImplementedError

    @torch.no_grad()
    def finish(self) -> dict[str, Any]:
        """Turn scores into log odds: multiply the users' factors by a slope, and add an intercept."""
        users, items = self.tables()
        generator = torch.Generator().manual_seed(0)
        size = min(CALIBRATION_PAIRS, users.shape[0] * items.shape[0])
        drawn = [torch.randint(len(table), (size,), generator=generator).to(table.device) for table in (users, items)]
        on_pairs = (users[drawn[0]] * items[drawn[1]]).sum(1)
        scores = self.scores()
        density = len(scores) / (len(users) * len(items))
        intercept, slope = click_calibration(scores, self.targets[self.by_user.order], on_pairs, density)
        users.mul_(slope)
        self.slope = slope
        self.scorer.shift(intercept)
        return {"calibration": {"intercept": intercept, "slope": slope}}


@dataclass
class LeastSquares(ClosedForm):
    """Alternating least squares: users given the items, then items given the users, each by its normal equations.

    Minimises sum over D of (1 + confidence y) (y / theta - <a, b>)^2 + l2 (|a|^2 + |b|^2), with y = 1 for a click and
    theta the exposure of the weights; `l2` is that of the backbone, whose biases stay 0. With weights of 1 it is
    weighted matrix factorisation of implicit feedback (Hu, Koren and Volinsky 2008, Collaborative Filtering for
    Implicit Feedback Datasets); with `confidence` 0 it is the risk `dr` itself, which is unbiased for relevance where
    theta is right. `rank`: the factors that are learned, None for `usual_rank`. An epoch is a sweep.
    With the risk `exposed` it is the sum over D of theta <a, b>^2 instead, plus that over clicks of
    (1 + confidence) (1 - <a, b>)^2 - <a, b>^2, with theta that depends on the item alone and is 1 on average.

    `held_out`: the share of the clicks by which personal taste is shrunk, 0 for not at all. How popular items are
    may be their exposure, but what tells users apart either predicts clicks that the fit has not seen or is noise.
    So a first fit learns from the other clicks; the coefficients of its directions of taste (`Directions`), beside the
    mean user, are those that minimise the risk of the pairs that it was not trained on, where every held-out click
    counts 1 / held_out times. The fit to all clicks starts from there, and each of its directions is multiplied by that
    coefficient, at most 1 and no larger than that of a larger direction. Twice as many factors are learned then.
    """

    risks: ClassVar[tuple[str, ...]] = ("dr", "exposed")
    confidence: float = 5.0
    rank: int | None = None
    held_out: float = 0.0

    def init(self, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Learner:
        check_number("confidence", self.confidence, at_least=0)
        check_number("held_out", self.held_out, at_least=0, at_most=0.5)
        learner = _LeastSquares.start(self, context, weights, risk, imputation)
        learner.shares = torch.ones(learner.rank, device=context.device)
        if self.held_out > 0:
            learner.held = (torch.rand(len(context.log), generator=context.generator) < self.held_out).to(
                context.device
            )
            learner.sweeps = context.training.epochs
        return learner  # type: ignore[no-any-return]

    def usual_rank(self, log: FeedbackLog) -> int:
        return (2 if self.held_out > 0 else 1) * super().usual_rank(log)


@dataclass(eq=False)
class _LeastSquares(ClosedFormLearner):
    exposure: Tensor = field(default=None)  # type: ignore[assignment]  # (|I|,) of the items, 1 on average
    shares: Tensor = field(default=None)  # type: ignore[assignment]  # (rank,) of the directions of taste
    held: Tensor | None = None  # (rows,) of the log, that the first fit does not see
    sweeps: int = 0  # of the first fit
    taste: Directions | None = None  # of the fit, once they are shrunk

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        items = torch.arange(self.scorer.n_items, device=self.weights.ratio.device)
        self.exposure = torch.ones(len(items), device=items.device)
        if self.risk_name == "exposed":
            users = torch.linspace(0, self.scorer.n_users - 1, CHECKED_USERS, device=items.device).long()
            pairs = users.repeat_interleave(len(items)), items.repeat(len(users))
            of_users = 1 / self.weights.at(*pairs).view(len(users), -1)
            theta = of_users[0]
            if not torch.allclose(of_users, theta.expand_as(of_users)):
                raise ConfigError(
                    "`weights` must be the same for all users for LeastSquares and risk='exposed', such as "
                    "those of functions of popularity: features='popularity'."
                )
            self.exposure = (theta / theta.mean()).float()
        if epoch == 1 and self.held is not None:
            self._hold_out(self.held)

    @torch.no_grad()
    def _hold_out(self, held: Tensor) -> None:
        """The first fit, and what held-out clicks make of its directions."""
        kept = self.rows(~held)
        for _ in range(self.sweeps):
            self._sweep(*kept)
        (users, items), c = self.tables(), self.part.confidence
        left, right = Directions.of(users, items, self.exposure).terms(users, items)
        second = ((left.T @ left) * (right.T @ (self.exposure[:, None] * right))).double()  # over D
        first, times = second.new_zeros(len(second)), len(held) / held.sum().clamp(min=1)
        columns = (torch.arange(len(held), device=held.device), *self.codes)
        for rows, user, item in zip(*(torch.split(column, BLOCK_ROWS) for column in columns), strict=True):
            terms, out = left.index_select(0, user) * right.index_select(0, item), held[rows]
            trained = torch.where(out, 0.0, self.exposure[item])
            clicked = torch.where(out, times, 0.0)
            second += ((c * clicked - trained)[:, None] * terms).T @ terms
            first += (1 + c) * (clicked * self.targets[rows]) @ terms
        second.diagonal().add_(1e-9 * second.trace() + TINY)  # of factors that are all 0, too
        self.shares.copy_(torch.linalg.solve(second, first)[1:].clamp(0, 1).cummin(0)[0])

    @torch.no_grad()
    def finish(self) -> dict[str, Any]:
        """The end of a fit: the directions of taste are shrunk."""
        if self.held is None:
            return super().finish()
        users, items = self.tables()
        self.taste = Directions.of(users, items, self.exposure)
        users.copy_(self.taste.shrink(users, self.shares))
        return {"taste": {"shares": self.shares.tolist()}} | super().finish()

    @torch.no_grad()
    def user_squares(self) -> dict[str, Any]:
        items = self.tables()[1].double()
        system = items.T @ (self.exposure.double()[:, None] * items)
        system.diagonal().add_(self.ridge)
        mean, taste = system.new_zeros(self.rank), torch.eye(self.rank).to(system)
        if self.taste is not None:
            mean, taste = self.taste.mean, self.taste.into * self.shares @ self.taste.back
        found = {"confidence": float(self.part.confidence), "target": float(self.targets.mean()), "slope": self.slope}
        return found | {"system": system.tolist(), "mean": mean.tolist(), "taste": taste.tolist()}

    def state(self) -> list[Tensor]:
        return [*super().state(), self.shares]

    @property
    def targets(self) -> Tensor:
        """1 / P(exposed) of every row; 1 where pairs count by their exposure."""
        return torch.ones_like(self.weights.ratio) if self.risk_name == "exposed" else super().targets

    def objective(self) -> Tensor:
        """The objective of sweeps, up to a constant: the sum over D is tr(A'A B'B), items counted by exposure."""
        users, items = self.tables()
        scores, targets = self.scores(), self.targets[self.by_user.order]
        rows = (1 + self.part.confidence) * (targets - scores).square() - scores.square()
        prior = self.ridge * (users.square().sum() + items.square().sum())
        total: Tensor = ((users.T @ users) * (items.T @ (self.exposure[:, None] * items))).sum() + rows.sum() + prior
        return total

    def sweep(self) -> Tensor:
        return self._sweep(self.by_user, self.by_item)

    def _sweep(self, by_user: Rows, by_item: Rows) -> Tensor:
        users, items = self.tables()
        alike, common = torch.ones(len(users), device=users.device), (self.part.confidence, self.ridge)
        users.copy_(Side(by_user, self.targets, alike, self.exposure, *common).solve(items, users)[0])
        found, total = Side(by_item, self.targets, self.exposure, alike, *common).solve(users, items)
        items.copy_(found)
        return total + self.ridge * users.square().sum()


@dataclass
class ExposureEM(ClosedForm):
    """ExpoMF: whether a pair was exposed is a hidden variable with a prior mu_i for each item.

    y = 0 where it was not exposed; where it was, y ~ N(<a, b>, 1 / precision). EM, with g the density of y = 0:
    E: q = 1 for a click, else mu g / (mu g + 1 - mu).   M: ridge regressions weighted by q, and
    mu_i = (first - 1 + sum_u q) / (first + second - 2 + |U|). Pairs are looked at in blocks.
    (Liang, Charlin, McInerney and Blei 2016, Modeling User Exposure in Recommendation.) `l2` is that of the backbone,
    `rank` as in `LeastSquares`.
    `exposure`: where mu starts. `first`, `second`: of the Beta prior on mu.
    """

    precision: float = 1.0
    exposure: float = 0.01
    first: float = 1.0
    second: float = 1.0
    rank: int | None = None

    def init(self, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Learner:
        check_number("precision", self.precision, above=0)
        check_number("exposure", self.exposure, above=0, at_most=1)
        check_number("first", self.first, at_least=1)
        check_number("second", self.second, at_least=1)
        learner = _ExposureEM.start(self, context, weights, risk, imputation)
        learner.mu = torch.full((learner.scorer.n_items,), float(self.exposure), device=context.device)
        return learner  # type: ignore[no-any-return]


def exposure_posterior(scores: Tensor, mu: Tensor, precision: float) -> Tensor:
    """P(exposed | not clicked) = mu g / (mu g + 1 - mu), g = sqrt(precision / 2 pi) exp(-precision score^2 / 2)."""
    g = math.sqrt(precision / (2 * math.pi)) * torch.exp(-precision * scores.square() / 2)
    posterior: Tensor = mu * g / (mu * g + 1 - mu)
    return posterior


@dataclass(eq=False)
class _ExposureEM(ClosedFormLearner):
    mu: Tensor = field(default=None)  # type: ignore[assignment]

    def _blocks(self, own: Tensor, other: Tensor, rows: Rows) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(a slice of one side, q of its pairs with all of the other side, which of them are clicks)."""
        size = max(1, BLOCK_NUMBERS // len(other))
        mine = len(own) == len(self.mu) and rows is self.by_item
        for start in range(0, len(own), size):
            part = slice(start, min(start + size, len(own)))
            mu = self.mu[part][:, None] if mine else self.mu
            q = exposure_posterior(own[part] @ other.T, mu, self.part.precision)
            first, last = int(rows.starts[part.start]), int(rows.starts[part.stop])
            owners = torch.repeat_interleave(rows.starts[part.start : part.stop + 1].diff())
            clicked = torch.zeros_like(q, dtype=torch.bool)
            clicked[owners, rows.others[first:last]] = True
            yield part, torch.where(clicked, 1.0, q), clicked

    def _regress(self, own: Tensor, other: Tensor, rows: Rows) -> None:
        """a_u = (precision sum_i q b b' + ridge I)^-1 precision sum over clicks of b."""
        width = other.shape[1]
        outer = (other[:, :, None] * other[:, None, :]).flatten(1)
        for part, q, clicked in self._blocks(own, other, rows):
            systems = self.part.precision * (q @ outer).view(-1, width, width)
            systems.diagonal(dim1=1, dim2=2).add_(self.ridge)
            own[part] = _solved(systems, self.part.precision * (clicked.to(other) @ other))

    def sweep(self) -> Tensor:
        """Each update is an E step and part of an M step, after which the objective has not risen."""
        (users, items), before = self.tables(), self.objective()
        self._regress(users, items, self.by_user)
        self._regress(items, users, self.by_item)
        total = sum((q.sum(0) for _, q, _ in self._blocks(users, items, self.by_user)), torch.zeros_like(self.mu))
        part = self.part
        self.mu = ((part.first - 1 + total) / (part.first + part.second - 2 + len(users))).clamp(1e-9, 1 - 1e-9)
        return before

    def objective(self) -> Tensor:
        """Minus the log posterior."""
        users, items = self.tables()
        part, total = self.part, self.ridge * (users.square().sum() + items.square().sum()) / 2
        constant = math.sqrt(part.precision / (2 * math.pi))
        size = max(1, BLOCK_NUMBERS // len(items))
        for start in range(0, len(users), size):
            scores = users[start : start + size] @ items.T
            g = constant * torch.exp(-part.precision * scores.square() / 2)
            total = total - torch.log(self.mu * g + 1 - self.mu).sum()
        scores = self.scores()
        mu = self.mu[self.by_user.others]
        clicked = torch.log(mu * constant) - part.precision * (1 - scores).square() / 2
        missed = torch.log(mu * constant * torch.exp(-part.precision * scores.square() / 2) + 1 - mu)
        beta = (part.first - 1) * torch.log(self.mu) + (part.second - 1) * torch.log1p(-self.mu)
        found: Tensor = total - (clicked - missed).sum() - beta.sum()
        return found

    def state(self) -> list[Tensor]:
        return [*super().state(), self.mu]

    def facts(self, log: Any) -> dict[str, Any]:
        """The facts of the parts, and the prior chance of exposure of the items."""
        facts = super().facts(log)
        facts["imputation"] = facts["imputation"] | {
            "exposure": {"mean": float(self.mu.mean()), "largest": float(self.mu.max())}
        }
        return facts
