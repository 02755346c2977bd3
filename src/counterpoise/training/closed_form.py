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
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.risks import ERRORS
from counterpoise.training.contracts import FitContext, Imputation, Weights
from counterpoise.training.learner import Learner
from counterpoise.training.optimizer import Rate

CHECKED_USERS = 16  # whose exposures are compared, where they must be those of the items
BLOCK_ROWS = 1 << 14  # clicks that are scored at a time
BLOCK_NUMBERS = 1 << 19  # numbers of gathered factors, or of exposures of pairs, in memory at a time
MIN_RANK, CLICKS_PER_FACTOR = 4, 6  # see `usual_rank`
CALIBRATION_STEPS = 50  # of Newton's method, for two numbers
CALIBRATION_PAIRS = 1 << 18  # uniform pairs of D that the scores are calibrated on


class Rows(NamedTuple):
    """The rows of a log by their owners, users or items: those of owner o are at starts[o] : starts[o + 1]."""

    starts: Tensor
    others: Tensor  # (rows,) codes of the other side
    order: Tensor  # (rows,) positions in the log

    @classmethod
    def of(cls, owners: Tensor, others: Tensor, size: int) -> Rows:
        order = owners.argsort(stable=True)
        counts = torch.bincount(owners, minlength=size)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), others[order], order)

    def blocks(self, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(owners, positions of their rows (owners, most rows), which of those are rows), of similar numbers of rows.

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
            real = places < counts[block][:, None]
            yield block, torch.where(real, self.starts[block][:, None] + places, 0), real
            start += len(block)


@dataclass(frozen=True)
class Side:
    """What one side is solved for: sum over D of w_a w_b (1 - y) <a, b>^2 and sums over clicks, for given tables b."""

    rows: Rows
    targets: Tensor  # (rows,) t, in the order of the log
    own: Tensor  # (owners,) w_a
    others: Tensor  # (others,) w_b
    confidence: float
    ridge: float

    def solve(self, other: Tensor) -> Tensor:
        """The tables a that minimise sum over D of w_a w_b <a, b>^2 + sum over clicks of ... + ridge |a|^2.

        The sum over clicks is that of (1 + confidence) (t - <a, b>)^2 - <a, b>^2, up to a constant. With
        G = sum_b w_b b b', B the rows b that a's owner clicked, and t their targets,
        a = (w_a G + ridge I + confidence B'B)^-1 (1 + confidence) B't.

        In the basis of eigenvectors of G the first two terms are a diagonal S. With Z = B S^(-1/2) and c = confidence,
        a = S^(-1/2) (I + c Z'Z)^-1 (1 + c) Z't, a system of the size of the factors; where an owner has fewer clicks
        than factors, one of their size: S^(-1/2) Z'(I + c Z Z')^-1 (1 + c) t.
        """
        width, c = other.shape[1], self.confidence
        values, basis = torch.linalg.eigh((other.T @ (self.others[:, None] * other)).double())
        turned = other @ basis.to(other)
        scale = (self.own[:, None] * values.clamp(min=0).to(other) + self.ridge).rsqrt()  # (owners, width)
        targets, found = (1 + c) * self.targets[self.rows.order], torch.zeros_like(scale)
        if c == 0:
            owners = torch.repeat_interleave(self.rows.starts.diff())
            found.index_add_(0, owners, targets[:, None] * turned[self.rows.others])
            simple: Tensor = (found * scale.square()) @ basis.T.to(other)
            return simple
        alike = bool((self.own == self.own[0]).all())  # one S for all owners
        table = torch.cat([turned * scale[0] if alike else turned, turned.new_zeros(1, width)])
        for owners, places, real in self.rows.blocks(width):
            z = table[torch.where(real, self.rows.others[places], len(other))]  # (owners, most clicks, width)
            z = z if alike else z * scale[owners][:, None, :]
            wanted = torch.where(real, targets[places], 0.0)
            few = places.shape[1] < width
            system = c * (torch.bmm(z, z.mT) if few else torch.bmm(z.mT, z))
            system.diagonal(dim1=1, dim2=2).add_(1.0)
            if few:
                found[owners] = torch.bmm(_solved(system, wanted)[:, None, :], z)[:, 0]
            else:
                found[owners] = _solved(system, torch.bmm(wanted[:, None, :], z)[:, 0])
        tables: Tensor = (found * scale) @ basis.T.to(other)
        return tables


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


@dataclass
class ClosedForm(Configurable):
    """What minimises a risk in closed form. The configuration of a learner whose steps are sweeps."""

    risks: ClassVar[tuple[str, ...]] = ("dr",)  # that it can minimise

    def rank_of(self, log: FeedbackLog, dim: int) -> int:
        """The factors that are learned, of the `dim` of the backbone; the others stay 0."""
        rank = getattr(self, "rank", None)
        if rank is None:
            return min(dim, usual_rank(len(log), *log.shape))
        check_number("rank", rank, at_least=1, at_most=dim, integer=True, advice="Or None: by the size of the log.")
        return int(rank)

    def init(self, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Learner:
        """The learner of one fit."""
        raise NotImplementedError


@dataclass(eq=False)
class ClosedFormLearner(Learner):
    """A learner of factors <a, b> by sweeps, whose scores are calibrated to log odds after training."""

    part: Any = None
    ridge: float = 0.0
    rank: int = 0
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
        learner.by_user = Rows.of(users, items, learner.scorer.n_users)
        learner.by_item = Rows.of(items, users, learner.scorer.n_items)
        return learner

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
        owners = torch.repeat_interleave(self.by_user.starts.diff())
        blocks = zip(*(torch.split(codes, BLOCK_ROWS) for codes in (owners, self.by_user.others)), strict=True)
        return torch.cat([(users[user] * items[item]).sum(1) for user, item in blocks])

    @torch.no_grad()
    def step(self, batch: Batch, rate: Rate) -> Tensor:
        """One sweep; what it minimises, for each click, before the sweep."""
        loss = self.objective()
        self.sweep()
        return loss / len(self.weights.ratio)

    def objective(self) -> Tensor:
        raise NotImplementedError

    def sweep(self) -> None:
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
    """

    risks: ClassVar[tuple[str, ...]] = ("dr", "exposed")
    confidence: float = 5.0
    rank: int | None = None

    def init(self, context: FitContext, weights: Weights, risk: str, imputation: Imputation) -> Learner:
        check_number("confidence", self.confidence, at_least=0)
        learner: Learner = _LeastSquares.start(self, context, weights, risk, imputation)
        return learner


@dataclass(eq=False)
class _LeastSquares(ClosedFormLearner):
    exposure: Tensor = field(default=None)  # type: ignore[assignment]  # (|I|,) of the items, 1 on average

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

    @property
    def targets(self) -> Tensor:
        """1 / P(exposed) of every row; 1 where pairs count by their exposure."""
        return torch.ones_like(self.weights.ratio) if self.risk_name == "exposed" else super().targets

    def objective(self) -> Tensor:
        """What the sweeps minimise, up to a constant: the sum over D is tr(A'A B'B), with items counted by exposure."""
        users, items = self.tables()
        scores, targets = self.scores(), self.targets[self.by_user.order]
        rows = (1 + self.part.confidence) * (targets - scores).square() - scores.square()
        prior = self.ridge * (users.square().sum() + items.square().sum())
        total: Tensor = ((users.T @ users) * (items.T @ (self.exposure[:, None] * items))).sum() + rows.sum() + prior
        return total

    def sweep(self) -> None:
        users, items = self.tables()
        alike, common = torch.ones(len(users), device=users.device), (self.part.confidence, self.ridge)
        users.copy_(Side(self.by_user, self.targets, alike, self.exposure, *common).solve(items))
        items.copy_(Side(self.by_item, self.targets, self.exposure, alike, *common).solve(users))


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

    def sweep(self) -> None:
        """Each update is an E step and part of an M step, after which the objective has not risen."""
        users, items = self.tables()
        self._regress(users, items, self.by_user)
        self._regress(items, users, self.by_item)
        total = sum((q.sum(0) for _, q, _ in self._blocks(users, items, self.by_user)), torch.zeros_like(self.mu))
        part = self.part
        self.mu = ((part.first - 1 + total) / (part.first + part.second - 2 + len(users))).clamp(1e-9, 1 - 1e-9)

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
        """With the prior chance of exposure of the items."""
        facts = super().facts(log)
        facts["imputation"] = facts["imputation"] | {
            "exposure": {"mean": float(self.mu.mean()), "largest": float(self.mu.max())}
        }
        return facts
