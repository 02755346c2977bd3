"""The contract of a backbone (a configuration) and of the scorer it builds: pairs in, logits out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import counterpoise
from counterpoise.config import Configurable
from counterpoise.data.batches import Blocks
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, did_you_mean
from counterpoise.models.embedding_ops import RepeatedInputCache, rows_of_grid

BACKBONES = {
    "mf": "MatrixFactorization",
    "ncf": "NeuralCF",
    "popularity": "ItemPopularity",
}  # names, and classes in `counterpoise`
INITIAL_SD = 0.1  # standard deviation of initial factors: small, so that training starts near the mean label
MIN_FACTOR_SPREAD = (
    1e-3  # log odds; where factors spread the logits less, predictions change in the fourth digit at most
)
MIN_INITIAL_RATE = 1e-3  # a scorer starts at this label rate at least, and at most at 1 minus it


class Scorer(nn.Module):
    """A built backbone: trainable tables over |U| users and |I| items."""

    n_users: int
    n_items: int

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The logit of each pair. (pairs,)"""
        raise NotImplementedError

    def precision(self, name: str) -> float:
        """The precision of the Gaussian prior on a parameter; 0 for none."""
        raise ConfigError(
            f"{type(self).__name__} must have a method `precision(name)`: the precision of the prior on the parameter "
            "of this name, 0 for none. Its `penalty` is made of it."
        )

    def side(self, name: str) -> str | None:
        """Whose rows a table has, "user" or "item", by its name: `user_...` or `item_...`; None for others."""
        own = name.rpartition(".weight")[0].rpartition(".")[2]
        return next((side for side in ("user", "item") if own.startswith(f"{side}_")), None)

    def shift(self, logit: float) -> bool:
        """Add a number to all logits, if the scorer has an intercept; whether it has."""
        return False

    def centre_biases(self, precisions: Mapping[str, Tensor]) -> None:
        """Move what the biases of users, and of items, have in common into the intercept, if the scorer has one.

        `precisions`: of the prior on the biases, by the names of their tables; 0 for users and items without rows,
        whose biases stay. The logits of all others stay as they are, and the prior is as likely as they allow: at
        sum of precision x bias = 0. Steps take hundreds to get there, since no label asks for it.
        """

    def precisions(self) -> list[float]:
        return [self.precision(name) for name, _ in self.named_parameters()]

    @property
    def estimates(self) -> dict[str, Tensor]:
        """The precisions that the scorer estimates in training, by the names of their parameters; the others are given.

        Each is () or one for each row, and changes in place.
        """
        return {}

    def estimate_precisions(self, users: Tensor, items: Tensor) -> None:
        """Estimate them anew from the parameters, given the information on each user and item: sum w p (1 - p)."""

    def take_estimates(self, other: Scorer) -> None:
        """Take over the precisions that a scorer like this one has estimated."""
        for name, value in self.estimates.items():
            if name in other.estimates:
                value.copy_(other.estimates[name])

    def penalty(self) -> Tensor:
        """1/2 sum of precision x |parameter|^2: the negative log of the Gaussian prior."""
        parameters = zip(self.precisions(), self.parameters(), strict=True)
        return torch.stack([precision * values.square().sum() for precision, values in parameters]).sum() / 2

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """The learned vectors of users and items: (|U|, dimensions) and (|I|, dimensions)."""
        raise NotImplementedError

    def features(self) -> tuple[Tensor, Tensor]:
        """Embeddings with biases, as features for balancing."""
        return self.embeddings()

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """Two tables whose inner products <p_u, q_i> are the factor part of the logits; None where there is none."""
        return None

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """Two tables whose inner products are the logits, (|U|, d) and (|I|, d); None where there are none."""
        return None

    def row_columns(self, side: str) -> dict[str, slice]:
        """Where a user's (or an item's) learned row stands in its vector: {name of the parameter: columns}."""
        return {}

    def unrated_vectors(self, side: str, count: int, features: Tensor | None = None) -> Tensor:
        """The vectors of users (or items) without ratings, as in `vectors()`: their learned rows are 0. (count, d)

        `features`: their side features as they came, None where nothing is known: those of the mean user or item.
        """
        raise NotImplementedError

    def append_rows(self, side: str, count: int, features: Tensor | None = None) -> None:
        """Make room for so many users (or items) more, who have the vectors of `unrated_vectors`."""
        raise NotImplementedError

    def feature_columns(self, side: str) -> int:
        """The number of side features of a user (or an item) that the logits depend on."""
        return 0

    def base(self) -> Scorer:
        """The scorer without its exposure covariate: itself, unless it has one."""
        return self

    def exposure_logits(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        """The part of each pair's logit from the exposure covariate; of all pairs of D where they are None."""
        raise NotImplementedError

    def add_exposure(self, coefficients: Tensor) -> None:
        """Add to the exposure coefficients, of a scorer that has an exposure covariate."""
        raise NotImplementedError

    def exposure_evidence(self, information: float) -> float:
        """The statistic for the dependence of labels on the exposure covariate, of a scorer that has one."""
        raise NotImplementedError

    def at(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        """The logit of each pair; of all pairs of D, user by user, where they are None."""
        if users is None or items is None:
            return self.grid().flatten()
        logits: Tensor = self(users, items)
        return logits

    def rows_and_pairs(
        self,
        users: Tensor,
        items: Tensor,
        pair_users: Tensor | None,
        pair_items: Tensor | None,
        blocks: Blocks | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The logits of some rows and of pairs of D; where those are all of D, rows are read from the grid.

        `blocks`: the same pairs in blocks, for scorers whose logits are products.
        """
        if pair_users is None or pair_items is None:
            return rows_of_grid(self.at(None, None), self.position(users, items))
        together: Tensor = self(torch.cat([users, pair_users]), torch.cat([items, pair_items]))
        rows, pairs = torch.split_with_sizes(together, [len(users), len(pair_users)])
        return rows, pairs

    def position(self, users: Tensor, items: Tensor) -> Tensor:
        """The position of each pair in D, user by user."""
        return users.long() * self.n_items + items

    def clear_caches(self) -> None:
        """Forget what was kept of the batches of training."""
        for module in self.modules():
            if isinstance(cache := getattr(module, "cache", None), RepeatedInputCache):
                cache.clear()

    def grid(self, users: Tensor | None = None) -> Tensor:
        """The logits of these users, None for all, with every item. (users, |I|)"""
        items = torch.arange(self.n_items, device=self.embeddings()[0].device)
        users = torch.arange(self.n_users, device=items.device) if users is None else users
        logits: Tensor = self(users.repeat_interleave(self.n_items), items.repeat(len(users)))
        return logits.view(len(users), self.n_items)


@dataclass
class Backbone(Configurable):
    """The configuration of a `Scorer`."""

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        """A fresh scorer for the users and items of the log, drawn from the generator.

        It starts near the probability `rate`, by default the log's mean label.
        """
        raise NotImplementedError

    def pretrain(self, scorer: Scorer, context: Any) -> None:
        """Give a fresh scorer what a first model of the log learns, if it uses one. `context`: a `FitContext`."""

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> Scorer:
        """A scorer of zeros, to be filled with saved values. `n_columns`: side features of users and of items."""
        raise NotImplementedError


def as_backbone(choice: Any) -> Backbone:
    """A backbone as it is or by its name."""
    if isinstance(choice, str) and choice in BACKBONES:
        return getattr(counterpoise, BACKBONES[choice])()  # type: ignore[no-any-return]
    if not isinstance(choice, Backbone):
        known, hint = ", ".join(map(repr, BACKBONES)), did_you_mean(choice, BACKBONES)
        raise ConfigError(f"`backbone` must be a Backbone or one of {known}, got {choice!r}.{hint}")
    return choice


def inner_product_variance(users: Tensor, items: Tensor) -> Tensor:
    """The variance of <p_u, q_i> over all pairs.

    With means p, q and deviations a_u, b_i it is Var(p'b) + Var(a'q) + Var(a'b) = p' cov(b) p + q' cov(a) q +
    trace(cov(a) cov(b)).
    """
    (p, a), (q, b) = ((table.mean(0), table - table.mean(0)) for table in (users, items))
    cov_a, cov_b = a.T @ a / len(a), b.T @ b / len(b)
    variance: Tensor = p @ cov_b @ p + q @ cov_a @ q + (cov_a * cov_b).sum()
    return variance


def factor_facts(scorer: Scorer) -> dict[str, Any]:
    """JSON-able: `spread`, the standard deviation over all pairs of the factor part of the logits; {} without factors.

    `features`: whether side features or exposure tell pairs apart besides.
    """
    tables = scorer.factors()
    if tables is None:
        return {}
    names = [name.rpartition(".")[2] for name, _ in scorer.named_parameters()]
    spread = float(inner_product_variance(*(table.detach().double() for table in tables)).clamp(min=0).sqrt())
    return {"spread": spread, "features": bool({"feature_weights", "exposure_coefficients"} & set(names))}


def factor_sentence(facts: Mapping[str, Any]) -> str:
    """What factors add to the prediction, and plainly where they add nothing; from `factor_facts`."""
    if facts["spread"] < MIN_FACTOR_SPREAD:
        known = "users, items and their features" if facts["features"] else "users and items"
        return f"No personal taste was learned: predictions are sums of effects of {known}."
    return f"Personal taste (factors) moves predictions by {facts['spread']:.2g} in log odds (standard deviation)."


def estimated_precision(values: Tensor, information: Tensor, now: Tensor | float, first: float) -> Tensor:
    """The precision of a Gaussian prior on some values that were learned under the precision `now`. ()

    A step of EM (Dempster, Laird and Rubin 1977): the variance is the mean of value^2 + 1 / (information + now), the
    second term by Laplace's approximation, over the values that have information. One more value, of the variance
    1 / `first`, keeps it finite.
    """
    known = information > 0
    squares = values.double().to(information).square() + 1 / (information + now)
    precision: Tensor = (1 + known.sum()) / (1 / first + squares[known].sum())
    return precision


def zero_table(rows: int, columns: int) -> nn.Embedding:
    """A trainable vector of zeros for each row."""
    return nn.Embedding(rows, columns, _weight=torch.zeros(rows, columns))


def longer_table(table: nn.Embedding, count: int) -> nn.Embedding:
    """The table with so many rows of zeros more."""
    weight = pad(table.weight.detach(), (0, 0, 0, count))
    longer = nn.Embedding(len(weight), weight.shape[1], _weight=weight)
    longer.weight.requires_grad_(table.weight.requires_grad)
    return longer


def draw_normal(values: Tensor, generator: torch.Generator, sd: float = INITIAL_SD) -> None:
    """Fill with normal numbers of this standard deviation."""
    with torch.no_grad():
        values.normal_(0.0, sd, generator=generator)


def initial_logit(rate: float) -> float:
    """The log odds of a label rate, kept away from 0 and 1."""
    return float(torch.logit(torch.tensor(rate, dtype=torch.float64), eps=MIN_INITIAL_RATE))
