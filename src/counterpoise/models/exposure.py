"""Exposure as a covariate of the prediction, with coefficients learned from the labels.

Which pairs were observed is known for every pair of D. Whether that depends on preference, only labels can
show. So a small model of being observed is fitted to the log first, and its three parts enter the predictor:

    logit = base logit + v_u a_u + v_i b_i + v_ui <g_u, h_i>

with a_u, b_i and <g_u, h_i> the parts of the log odds of being observed, each scaled to a standard deviation of 1 over
all pairs, and three exposure coefficients v, learned with all other parameters. They stay near 0 where exposure has
nothing to do with preference. (Wang, Liang, Charlin and Blei 2020, Causal Inference for Recommender Systems, put
reconstructed exposure into the predictor; implicit feedback does the same in SVD++, Koren 2008, Factorization Meets the
Neighborhood.)
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Backbone, Scorer, as_backbone, inner_product_variance
from counterpoise.models.embedding_ops import RepeatedInputCache
from counterpoise.models.matrix_factorization import MatrixFactorization

BIAS_VARIANCE = 1.0  # of users or items in log odds, as far as it may be in logs: twice that of the default prior
FIRST_PRECISION = 1.0  # of `l2_exposure="auto"`, until there is an estimate
MIN_COEFFICIENT = 0.01  # log odds for a standard deviation of exposure: smaller ones change predictions in the third
# digit at most
MIN_SPREAD = 0.1  # log odds of being observed: parts that vary less, such as that of users who all rate equally often,
# are not scaled up to 1. Simulated logs: 0.01 to 1 change no metric in the fourth digit (benchmarks/constants.py)


@dataclass
class ExposureCovariate(Backbone):
    """The logit of `backbone` + the user's, the item's and the pair's part in being observed, each with a coefficient.

    `exposure_dim`: the dimensions of the model of being observed. `l2_exposure`: the precision of the prior on the
    coefficients, as `l2` in `MatrixFactorization`; a coefficient is in log odds of a positive label for a standard
    deviation of exposure.
    """

    backbone: Backbone | str = field(default_factory=MatrixFactorization)
    exposure_dim: int = 4
    l2_exposure: float | str = "auto"

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        check_number("exposure_dim", self.exposure_dim, at_least=1, integer=True)
        if self.l2_exposure != "auto":
            check_number("l2_exposure", self.l2_exposure, at_least=0, advice='Or "auto": estimated from the log.')
        if isinstance(self.backbone, ExposureCovariate):
            raise ConfigError("`backbone` of ExposureCovariate must not be one itself: name the backbone inside.")
        return _ExposureScorer(self, deepcopy(as_backbone(self.backbone)).build(log, generator, rate))

    def pretrain(self, scorer: Scorer, context: Any) -> None:
        assert isinstance(scorer, _ExposureScorer)
        as_backbone(self.backbone).pretrain(scorer.inner, context)
        model = context.with_default_training().fit_exposure(MatrixFactorization(dim=self.exposure_dim))
        scorer.user_exposure, scorer.item_exposure = _scaled(*model.features())

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> Scorer:
        return _ExposureScorer(self, as_backbone(self.backbone).empty(n_users, n_items, n_columns))


def _scaled(users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Tables [main effect, vector] whose main effects, centred, and inner products have variance 1 over all pairs."""
    mains = [table[:, :1] - table[:, :1].mean(0, keepdim=True) for table in (users, items)]
    mains = [main / _spread(main.square().mean(0, keepdim=True)) for main in mains]
    g, h = users[:, 1:], items[:, 1:]
    root = _spread(inner_product_variance(g, h)).sqrt()
    return torch.cat([mains[0], g / root], 1), torch.cat([mains[1], h / root], 1)


def _spread(variance: Tensor) -> Tensor:
    return variance.clamp(min=MIN_SPREAD**2).sqrt()


def _parts(user_exposure: Tensor, item_exposure: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """a_u, b_i and <g_u, h_i> of each pair. (3, pairs)"""
    of_users, of_items = embedding(users, user_exposure), embedding(items, item_exposure)
    return torch.stack([of_users[:, 0], of_items[:, 0], (of_users[:, 1:] * of_items[:, 1:]).sum(1)])


class _ExposureScorer(Scorer):
    user_exposure: Tensor  # (|U|, 1 + dim) a user's main effect, then its vector
    item_exposure: Tensor

    def __init__(self, part: ExposureCovariate, inner: Scorer) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items = part, inner.n_users, inner.n_items
        self.inner, self.cache = inner, RepeatedInputCache()
        self.exposure_coefficients = nn.Parameter(torch.zeros(3))
        self.own_estimates: dict[str, Tensor] = {}
        if part.l2_exposure == "auto":
            first = torch.full((3,), FIRST_PRECISION, dtype=torch.float64)
            self.own_estimates = {"exposure_coefficients": first}
        self.register_buffer("user_exposure", torch.zeros(inner.n_users, 1 + part.exposure_dim))
        self.register_buffer("item_exposure", torch.zeros(inner.n_items, 1 + part.exposure_dim))

    def base(self) -> Scorer:
        return self.inner

    def exposure_logits(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None or items is None:
            of_users, of_items = self._tables()
            return (of_users @ of_items.T).flatten()
        given = self.user_exposure, self.item_exposure, users, items
        repeats = torch.is_grad_enabled() and users.device.type == "cpu"  # on a GPU batches are copied into one place
        parts = self.cache.get(_parts, *given) if repeats else None
        return self.exposure_coefficients @ (_parts(*given) if parts is None else parts)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits: Tensor = self.inner(users, items) + self.exposure_logits(users, items)
        return logits

    def grid(self, users: Tensor | None = None) -> Tensor:
        of_users, of_items = self._tables()
        return self.inner.grid(users) + (of_users if users is None else of_users[users]) @ of_items.T

    def shift(self, logit: float) -> bool:
        return self.inner.shift(logit)

    def add_exposure(self, coefficients: Tensor) -> None:
        self.exposure_coefficients.data += coefficients

    def exposure_evidence(self, information: float) -> float:
        """Wald's statistic of the coefficients, chi-squared with 3 degrees of freedom where exposure says nothing."""
        squares = self.exposure_coefficients.detach().cpu().double().square()
        return float((self._information(squares.new_tensor(information)) * squares).sum())

    def precision(self, name: str) -> float:
        if name == "exposure_coefficients":
            return FIRST_PRECISION if isinstance(self.part.l2_exposure, str) else self.part.l2_exposure
        return self.inner.precision(name.removeprefix("inner."))

    @property
    def estimates(self) -> dict[str, Tensor]:
        return {f"inner.{name}": value for name, value in self.inner.estimates.items()} | self.own_estimates

    def estimate_precisions(self, users: Tensor, items: Tensor) -> None:
        """Precisions of the base and of each exposure coefficient: large where the coefficient is within its error."""
        self.inner.estimate_precisions(users, items)
        for now in self.own_estimates.values():
            squares = self.exposure_coefficients.detach().to(now).square()
            now.copy_(1 / (squares + 1 / (self._information(users.sum()) + now)))

    def _information(self, total: Tensor) -> Tensor:
        """The information on each coefficient, of rows with so much in total. (3,)

        A coefficient of a part of variance 1 has a variance of 1 / total; those of users and items also that of what
        users and items differ by besides.
        """
        among = total.new_tensor([BIAS_VARIANCE / self.n_users, BIAS_VARIANCE / self.n_items, 0.0])
        return total / (1 + total * among)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.inner.embeddings()

    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self.inner.factors()

    def features(self) -> tuple[Tensor, Tensor]:
        return self.inner.features()

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        own = self.inner.vectors()
        return own and (torch.cat([own[0], self._tables()[0]], 1), torch.cat([own[1], self._tables()[1]], 1))

    def row_columns(self, side: str) -> dict[str, slice]:
        return {f"inner.{name}": columns for name, columns in self.inner.row_columns(side).items()}

    def unrated_vectors(self, side: str, count: int, features: Tensor | None = None) -> Tensor:
        """Vectors of new rows at the mean exposure: a few ratings are little evidence of what somebody was shown."""
        own = self.inner.unrated_vectors(side, count, features)
        return torch.cat([own, self._columns(side, self._mean_exposure(side, count))], 1)

    def append_rows(self, side: str, count: int, features: Tensor | None = None) -> None:
        self.inner.append_rows(side, count, features)
        self.n_users, self.n_items = self.inner.n_users, self.inner.n_items
        now: Tensor = getattr(self, f"{side}_exposure")
        setattr(self, f"{side}_exposure", torch.cat([now, self._mean_exposure(side, count)]))

    def feature_columns(self, side: str) -> int:
        return self.inner.feature_columns(side)

    def _mean_exposure(self, side: str, count: int) -> Tensor:
        table: Tensor = getattr(self, f"{side}_exposure")
        return table.mean(0).expand(count, -1)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Two tables whose inner products are v_u a_u + v_i b_i + v_ui <g_u, h_i>."""
        return self._columns("user", self.user_exposure), self._columns("item", self.item_exposure)

    def _columns(self, side: str, exposure: Tensor) -> Tensor:
        """The rows of one of these tables, from those of `user_exposure` or `item_exposure`."""
        of_user, of_item, of_pair = self.exposure_coefficients
        main, vector, ones = exposure[:, :1], exposure[:, 1:], torch.ones_like(exposure[:, :1])
        if side == "user":
            return torch.cat([of_user * main, ones, of_pair * vector], 1)
        return torch.cat([ones, of_item * main, vector], 1)
