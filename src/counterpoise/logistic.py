"""Logistic regression of being observed: propensities from features of users and items."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.errors import ConvergenceWarning, check_choice, check_number
from counterpoise.features import Source, observed_pairs, pair_features
from counterpoise.population import Pairs
from counterpoise.problems import Problem, fit_alone, mean_error
from counterpoise.threads import one_thread
from counterpoise.weights import CLIP, Estimated, Weighing, Weights

GRID_LIMIT = 1 << 25  # pairs of D up to which a logistic regression looks at all of them
DRAWN_PAIRS = 1 << 20  # uniform pairs of D that stand for all of them beyond
BLOCK = 1 << 18  # pairs looked at at a time
NEWTON_STEPS = 50
THREADS_PAY = 1 << 22  # pairs of D from which a second thread pays


@dataclass
class Logistic(Weights):
    """Logistic regression of being observed on pair features: logit P(observed) = b + <c, user row> + <d, item row>.

    `sources`: see `pair_features`; "side" adds nothing where the log has no side features, "embeddings" are those of a
    predictor trained on the log as it is. `l2`: the precision of a Gaussian prior on the coefficients of standardised
    features. With l2=0, sum over D of (o - p) x = 0 for every feature x and for x = 1. `clip`: see
    `inverse_propensity`.
    """

    sources: tuple[Source, ...] | Source = ("side", "activity")
    l2: float = 1.0
    clip: float = CLIP

    def begin(self, problem: Problem) -> Weighing:
        """Fit the regression."""
        check_number("l2", self.l2, at_least=0)
        sources = (self.sources,) if isinstance(self.sources, str) else tuple(self.sources)
        for source in sources:
            check_choice("sources", source, ("side", "activity", "embeddings"))
        embeddings = None
        if "embeddings" in sources:
            tables = fit_alone(problem, deepcopy(problem.backbone), mean_error).embeddings()
            embeddings = tables[0].cpu(), tables[1].cpu()
        pairs = pair_features(problem.log, sources, embeddings)
        observed = observed_pairs(problem.log, pairs)
        with one_thread(problem.log.n_pairs < THREADS_PAY):
            fitted = regress(pairs, observed.users, observed.items, self.l2, problem.generator)
        users, items = (table.to(problem.device) for table in fitted.effects(pairs))
        return Estimated(problem, lambda user, item: torch.sigmoid(_sum(users, items, user, item)), self.clip)


def _sum(users: Tensor, items: Tensor, user: Tensor | None, item: Tensor | None) -> Tensor:
    if user is None or item is None:
        return (users[:, None] + items).flatten().float()
    return (users[user.long()] + items[item.long()]).float()


class Coefficients(NamedTuple):
    """Of a logistic regression on pair features, in float64."""

    intercept: Tensor
    users: Tensor  # (user columns,)
    items: Tensor  # (item columns,)

    def effects(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """The logit's two parts: of each user, with the intercept, and of each item."""
        return self.intercept + pairs.users @ self.users, pairs.items @ self.items


def regress(pairs: Pairs, users: Tensor, items: Tensor, l2: float, generator: torch.Generator) -> Coefficients:
    """Minimise sum over D of CE(o -> p) + l2 / 2 |c|^2 by Newton's method, for the observed pairs (users, items).

    The logit is a sum of a user's part and an item's, so the sums over D are matrix products over the two tables and no
    pair's features are ever written down. Past `GRID_LIMIT` pairs, uniformly drawn ones stand for D.
    """
    observed = torch.cat([pairs.users.new_tensor([len(users)]), pairs.users[users].sum(0), pairs.items[items].sum(0)])
    total = len(pairs.users) * len(pairs.items)
    drawn = None if total <= GRID_LIMIT else _draw(pairs, generator)
    value = torch.zeros_like(observed)
    value[0] = torch.logit(torch.tensor(len(users) / total, dtype=value.dtype), eps=1e-6)
    prior = torch.full_like(value, l2)
    prior[0] = 0.0

    def sums(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, first, second = _population_sums(pairs, at, drawn)
        loss = loss - at @ observed + prior @ at.square() / 2
        return loss, first - observed + prior * at, second + torch.diag(prior)

    loss, first, second = sums(value)
    for _ in range(NEWTON_STEPS):
        if float(first.abs().max()) <= 1e-10 * total:
            break
        step, size = torch.linalg.pinv(second, hermitian=True, rtol=1e-12) @ first, 1.0
        while size > 1e-6:
            trial = sums(value - size * step)
            if bool(trial[0] <= loss + 1e-12 * loss.abs()):
                break
            size /= 2
        else:
            break  # rounding leaves nothing to gain
        value, (loss, first, second) = value - size * step, trial
    else:
        gap = float(first.abs().max()) / total
        warnings.warn(
            f"the logistic regression of propensities stopped after {NEWTON_STEPS} steps with a gradient of {gap:.1e} "
            "a pair. Raise its `l2`.",
            ConvergenceWarning,
            stacklevel=2,
        )
    columns = pairs.users.shape[1]
    return Coefficients(value[0], value[1 : 1 + columns], value[1 + columns :])


class _Drawn(NamedTuple):
    """Uniform pairs of D."""

    users: Tensor
    items: Tensor


def _draw(pairs: Pairs, generator: torch.Generator) -> _Drawn:
    codes = (torch.randint(len(table), (DRAWN_PAIRS,), generator=generator) for table in (pairs.users, pairs.items))
    return _Drawn(*codes)


def _population_sums(pairs: Pairs, at: Tensor, drawn: _Drawn | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over D of softplus(s), of p [1; x] and of p (1 - p) [1; x][1; x]', for the coefficients `at`."""
    blocks: Iterator[tuple[Tensor, Tensor, Tensor]]
    if drawn is None:
        blocks, factor = _grid_sums(pairs, at), 1.0
    else:
        factor = len(pairs.users) * len(pairs.items) / len(drawn.users)
        blocks = _drawn_sums(pairs, at, drawn)
    loss, first, second = (torch.stack(parts).sum(0) for parts in zip(*blocks, strict=True))
    return factor * loss, factor * first, factor * second


def _grid_sums(pairs: Pairs, at: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The sums over blocks of users, each with all items."""
    columns = pairs.users.shape[1]
    by_item = pairs.items @ at[1 + columns :]
    for rows in torch.split(pairs.users, max(1, BLOCK // len(pairs.items))):
        ones = torch.cat([torch.ones(len(rows), 1).to(rows), rows], 1)  # (users, 1 + user columns)
        logits = (ones @ at[: 1 + columns])[:, None] + by_item
        chance = torch.sigmoid(logits)
        spread = chance * (1 - chance)  # (users, |I|)
        first = torch.cat([ones.T @ chance.sum(1), pairs.items.T @ chance.sum(0)])
        own = ones.T @ (spread.sum(1)[:, None] * ones)
        cross = ones.T @ (spread @ pairs.items)
        others = pairs.items.T @ (spread.sum(0)[:, None] * pairs.items)
        yield softplus(logits).sum(), first, torch.cat([torch.cat([own, cross], 1), torch.cat([cross.T, others], 1)])


def _drawn_sums(pairs: Pairs, at: Tensor, drawn: _Drawn) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The sums over blocks of drawn pairs."""
    size = max(1, BLOCK // 16)
    for users, items in zip(torch.split(drawn.users, size), torch.split(drawn.items, size), strict=True):
        x = torch.cat([torch.ones(len(users), 1).to(at), pairs.users[users], pairs.items[items]], 1)
        logits = x @ at
        chance = torch.sigmoid(logits)
        yield softplus(logits).sum(), x.T @ chance, x.T @ ((chance * (1 - chance))[:, None] * x)
