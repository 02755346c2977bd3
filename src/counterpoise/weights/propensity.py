"""Weights from propensities P(observed) of a pair: a factorisation, popularity, logistic regression, or known ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from counterpoise.balance.features import Source, observed_pairs, pair_features
from counterpoise.balance.population import Pairs, as_float64
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, ConvergenceWarning, DataError, check_choice, check_number
from counterpoise.models.base import Backbone, as_backbone
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, FittedWeights, Weights, mean_error
from counterpoise.weights.base import CLIP, InversePropensity, PropensityOf

CountsOf = Literal["item", "user", "both"]
MAX_EXACT_PAIRS = 1 << 25  # pairs of D up to which a logistic regression sums over all of them
SAMPLED_PAIRS = 1 << 20  # uniform pairs of D that stand for all of them beyond
BLOCK_PAIRS = 1 << 18  # pairs held in memory at a time
NEWTON_STEPS = 50
MIN_PAIRS_FOR_THREADS = 1 << 22  # pairs of D from which a second thread is faster


def exposure_model(backbone: Backbone | None, dim: int) -> Backbone:
    """The model of o: `backbone`, or a factorisation of `dim` dimensions with biases; 0 for biases alone.

    A fresh copy, so that settings changed later do not reach a fit.
    """
    return MatrixFactorization(dim=dim) if backbone is None else deepcopy(as_backbone(backbone))


@dataclass
class Propensity(Weights):
    """A model of being observed, sigmoid(s) = P(observed), trained before the predictor by cross-entropy over D.

    `backbone`: the model of s, None for a matrix factorisation of 4 dimensions with biases. `clip`: see
    `inverse_propensity`. The model finds the rows it was fitted to likelier than they were, so that the ratios average
    less than 1. (Schnabel et al. 2016, section 5; Guo et al. 2021 take a factorisation.)
    """

    backbone: Backbone | None = None
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        scorer = context.fit_exposure(exposure_model(self.backbone, dim=4))
        found = InversePropensity(context, lambda users, items: torch.sigmoid(scorer.at(users, items)), self.clip)
        found.user_vectors = scorer.features()[0].detach()
        return found


@dataclass
class Popularity(Weights):
    """Propensity proportional to counts in the log: of the "item", the "user", or the product of "both", 1 at most.

    Known up to a factor only, so the ratios are divided by their mean over the log. What was never observed counts as
    observed once. `clip`: see `inverse_propensity`.
    """

    of: CountsOf = "item"
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        check_choice("of", self.of, get_args(CountsOf))
        log = context.log
        shares = []  # of each user's, and each item's pairs that were observed
        for side, codes, other in (("user", log.users, log.shape[1]), ("item", log.items, log.shape[0])):
            counts = torch.bincount(torch.from_numpy(codes).long(), minlength=log.n_pairs // other).clamp(min=1)
            counted = self.of in (side, "both")
            shares.append((counts / other if counted else torch.ones(len(counts))).to(context.device))
        (users, items), factor = shares, 1 / log.density if self.of == "both" else 1.0

        def propensity_of(user: Tensor | None, item: Tensor | None) -> Tensor:
            if user is None or item is None:
                return (factor * torch.outer(users, items)).flatten().clamp(max=1)
            return (factor * users[user.long()] * items[item.long()]).clamp(max=1)

        return InversePropensity(context, propensity_of, self.clip, normalised=True)


@dataclass(eq=False)
class KnownPropensity(Weights):
    """Propensities that the caller knows: ratio = density / propensity.

    `propensity`: a |U| x |I| matrix or a function of (users, items), both by codes, such as `SimulatedData.propensity`;
    an array with one value for each row of the log; or None for the log's own column `propensities`. `clip`: see
    `inverse_propensity`. A saved configuration keeps neither array nor function: to fit again, pass it again.
    """

    propensity: Any = None
    clip: float = CLIP

    def init(self, context: FitContext) -> FittedWeights:
        training = context.training
        kept = 1.0 if training.patience is None else 1 - training.validation  # propensities are those of the whole log
        return InversePropensity(context, _given(self.propensity, context), self.clip, context.log.density / kept)

    def to_config(self) -> dict[str, Any]:
        """The configuration, with null for an array or a function."""
        return {"part": "KnownPropensity", "propensity": None, "clip": self.clip}

    def __eq__(self, other: object) -> bool:
        """Equal if the clip is, and the function is the same or the arrays have equal values."""
        if not isinstance(other, KnownPropensity) or self.clip != other.clip:
            return False
        functions = callable(self.propensity), callable(other.propensity)
        if any(functions):
            return all(functions) and bool(self.propensity == other.propensity)
        return np.array_equal(self.propensity, other.propensity)


def _given(propensity: Any, context: FitContext) -> PropensityOf:
    log, device = context.log, context.device
    if propensity is None:
        return _from_rows(log, device)
    if callable(propensity):
        return _from_function(propensity, log.shape, device)
    values = as_float64(propensity, "propensity")
    if values.shape == log.shape:
        return _from_matrix(values, device)
    if values.shape == (len(log),):
        _check_propensities(values, lambda row: f"row {row}")
        return _from_rows(replace(log, propensities=values, parent_propensities=None), device)
    advice = ""
    if values.ndim == 1 and context.training.patience is not None:
        advice = " With patience some rows are held out and an array cannot follow: give the log its `propensities`."
    raise DataError(
        f"`propensity` must have the shape {log.shape} of all pairs or ({len(log)},) of the rows that are trained on, "
        f"got {values.shape}.{advice}"
    )


def _from_matrix(values: NDArray[np.float64], device: torch.device) -> PropensityOf:
    _check_propensities(values, lambda place: "user code {}, item code {}".format(*divmod(place, values.shape[1])))
    table = torch.from_numpy(values).to(device, torch.float32)
    return lambda users, items: table.flatten() if users is None or items is None else table[users.long(), items.long()]


def _from_function(function: Callable[..., Any], shape: tuple[int, int], device: torch.device) -> PropensityOf:
    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None or items is None:
            users, items = torch.arange(shape[0]).repeat_interleave(shape[1]), torch.arange(shape[1]).repeat(shape[0])
        codes = users.cpu().numpy(), items.cpu().numpy()
        values = as_float64(function(*codes), "propensity")
        if values.shape != (len(users),):
            raise DataError(
                f"`propensity` must give one value for each of the {len(users)} pairs asked for, got {values.shape}."
            )
        _check_propensities(values, lambda place: f"user code {codes[0][place]}, item code {codes[1][place]}")
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _from_rows(log: FeedbackLog, device: torch.device) -> PropensityOf:
    """Propensities known on rows alone: those of the log, and of the log that it was taken from."""
    known = log.known_propensities
    if known is None:
        raise ConfigError(
            "`propensity` must be given: this log has no column of propensities. Pass a matrix, a function or an array "
            "(a saved model keeps none of these), or build the log with `propensities` (`propensity_col`)."
        )

    def propensity_of(users: Tensor | None, items: Tensor | None) -> Tensor:
        pairs = None if users is None or items is None else users.long() * log.shape[1] + items
        values = np.full(1, np.nan) if pairs is None else known.at(pairs.cpu().numpy())
        if np.isnan(values).any():
            raise ConfigError(
                "these propensities are known for the rows of the log alone, and this method asks for those of other "
                "pairs. Give `propensity` as a |U| x |I| matrix or a function of (users, items)."
            )
        return torch.from_numpy(values).to(device, torch.float32)

    return propensity_of


def _check_propensities(values: NDArray[np.float64], place_of: Callable[[int], str]) -> None:
    wrong = ~((values > 0) & (values <= 1))  # nan is wrong too
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"`propensity` must lie in (0, 1], got {values.flat[place]:g} for {place_of(place)}. "
            "A pair that can never be observed has no weight: leave its user or item out."
        )


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

    def init(self, context: FitContext) -> FittedWeights:
        check_number("l2", self.l2, at_least=0)
        sources = (self.sources,) if isinstance(self.sources, str) else tuple(self.sources)
        for source in sources:
            check_choice("sources", source, ("side", "activity", "embeddings"))
        embeddings = None
        if "embeddings" in sources:
            tables = context.fit_scorer(deepcopy(context.backbone), mean_error).embeddings()
            embeddings = tables[0].cpu(), tables[1].cpu()
        pairs = pair_features(context.log, sources, embeddings)
        observed = observed_pairs(context.log, pairs)
        with one_thread(context.log.n_pairs < MIN_PAIRS_FOR_THREADS):
            fitted = regress(pairs, observed.users, observed.items, self.l2, context.generator)
        users = (fitted.intercept + pairs.users @ fitted.users).to(context.device)
        items = (pairs.items @ fitted.items).to(context.device)

        def propensity_of(user: Tensor | None, item: Tensor | None) -> Tensor:
            if user is None or item is None:
                return torch.sigmoid((users[:, None] + items).flatten().float())
            return torch.sigmoid((users[user.long()] + items[item.long()]).float())

        return InversePropensity(context, propensity_of, self.clip)


class Coefficients(NamedTuple):
    """The coefficients of a logistic regression on pair features, in float64."""

    intercept: Tensor
    users: Tensor  # (user columns,)
    items: Tensor  # (item columns,)


def regress(pairs: Pairs, users: Tensor, items: Tensor, l2: float, generator: torch.Generator) -> Coefficients:
    """Minimise sum over D of CE(o -> p) + l2 / 2 |c|^2 by Newton's method, for the observed pairs (users, items).

    The logit is a sum of a user's part and an item's, so the sums over D are matrix products over the two tables and no
    pair's features are ever written down. Past `MAX_EXACT_PAIRS` pairs, uniformly drawn ones stand for D.
    """
    observed = torch.cat([pairs.users.new_tensor([len(users)]), pairs.users[users].sum(0), pairs.items[items].sum(0)])
    sizes, drawn = (len(pairs.users), len(pairs.items)), None
    total, factor = math.prod(sizes), 1.0
    if total > MAX_EXACT_PAIRS:
        drawn = [torch.randint(size, (SAMPLED_PAIRS,), generator=generator) for size in sizes]
        factor = total / SAMPLED_PAIRS
    value = torch.zeros_like(observed)
    value[0] = torch.logit(torch.tensor(len(users) / total, dtype=value.dtype), eps=1e-6)
    prior = torch.full_like(value, l2)
    prior[0] = 0.0

    def sums(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = _grid_sums(pairs, at) if drawn is None else _drawn_sums(pairs, at, drawn)
        loss, first, second = (factor * torch.stack(parts).sum(0) for parts in zip(*blocks, strict=True))
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
        reached = f"stopped after {NEWTON_STEPS} steps with a gradient of {gap:.1e} a pair"
        advice = f"the logistic regression of propensities {reached}. Raise its `l2`."
        warnings.warn(advice, ConvergenceWarning, stacklevel=2)
    columns = pairs.users.shape[1]
    return Coefficients(value[0], value[1 : 1 + columns], value[1 + columns :])


def _grid_sums(pairs: Pairs, at: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Sums of softplus(s), of p [1; x] and of p (1 - p) [1; x][1; x]' over blocks of users, each with all items."""
    columns = pairs.users.shape[1]
    by_item = pairs.items @ at[1 + columns :]
    for rows in torch.split(pairs.users, max(1, BLOCK_PAIRS // len(pairs.items))):
        ones = torch.cat([torch.ones(len(rows), 1).to(rows), rows], 1)  # (users, 1 + user columns)
        logits = (ones @ at[: 1 + columns])[:, None] + by_item
        chance = torch.sigmoid(logits)
        spread = chance * (1 - chance)  # (users, |I|)
        first = torch.cat([ones.T @ chance.sum(1), pairs.items.T @ chance.sum(0)])
        own = ones.T @ (spread.sum(1)[:, None] * ones)
        cross = ones.T @ (spread @ pairs.items)
        others = pairs.items.T @ (spread.sum(0)[:, None] * pairs.items)
        yield softplus(logits).sum(), first, torch.cat([torch.cat([own, cross], 1), torch.cat([cross.T, others], 1)])


def _drawn_sums(pairs: Pairs, at: Tensor, drawn: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The sums of `_grid_sums` over blocks of drawn pairs."""
    for users, items in zip(*(torch.split(codes, BLOCK_PAIRS // 16) for codes in drawn), strict=True):
        x = torch.cat([torch.ones(len(users), 1).to(at), pairs.users[users], pairs.items[items]], 1)
        logits = x @ at
        chance = torch.sigmoid(logits)
        yield softplus(logits).sum(), x.T @ chance, x.T @ ((chance * (1 - chance))[:, None] * x)
