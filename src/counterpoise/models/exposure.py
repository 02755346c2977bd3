"""A predictor that is told what was seen: the exposure of a pair as a covariate, with a learned say.

Who saw what is known for every pair, also where no label is. Whether it says anything about taste, only labels can
tell. So a first, small model of being observed is fitted to the log, and its three parts enter the predictor:

    logit = logit of the backbone + v_u a_u + v_i b_i + v_ui <g_u, h_i>

with a_u, b_i and <g_u, h_i> the parts of the log odds of being observed, each scaled to a standard deviation of 1 over
all pairs, and three coefficients v learned from the labels beside all else. Where exposure has nothing to do with
taste they stay near 0. (Wang, Liang, Charlin and Blei 2020, Causal Inference for Recommender Systems, put reconstructed
exposure into the predictor; who rated what speaks in SVD++ too, Koren 2008, Factorization Meets the Neighborhood.)
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Backbone, Scorer
from counterpoise.models.embedding_ops import Kept, lookup
from counterpoise.models.matrix_factorization import MatrixFactorization, as_backbone
from counterpoise.weights.propensity import fit_exposure_model

HARDLY = 0.1  # log odds of being observed


@dataclass
class ExposureCovariate(Backbone):
    """The logit of `backbone` + the user's, the item's and the pair's own part in being observed, each with its voice.

    `exposure_dim`: the dimensions of the model of being observed. `l2_exposure`: the precision of the prior on the
    voices, as `l2` in `MatrixFactorization`; a voice is in log odds of a positive label for a standard deviation.
    """

    backbone: Backbone | str = field(default_factory=MatrixFactorization)
    exposure_dim: int = 4
    l2_exposure: float = 1.0

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        """The backbone's own scorer, which has not been told of exposure yet."""
        check_number("exposure_dim", self.exposure_dim, at_least=1, integer=True)
        check_number("l2_exposure", self.l2_exposure, at_least=0)
        if isinstance(self.backbone, ExposureCovariate):
            raise ConfigError(
                "`backbone` of ExposureCovariate must not be an ExposureCovariate itself: name the one inside."
            )
        own, width = deepcopy(as_backbone(self.backbone)).build(log, generator, rate), self.exposure_dim + 1
        return _ExposureScorer(self, own, torch.zeros(log.shape[0], width), torch.zeros(log.shape[1], width))

    def inform(self, scorer: Scorer, context: Any) -> None:
        """Fit a model of what the log observed."""
        assert isinstance(scorer, _ExposureScorer)
        as_backbone(self.backbone).inform(scorer.inner, context)
        model = fit_exposure_model(context.plainly_trained(), MatrixFactorization(dim=self.exposure_dim))
        scorer.user_exposure, scorer.item_exposure = _scaled(*model.features())

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> Scorer:
        """All parameters zero."""
        own, width = as_backbone(self.backbone).empty(n_users, n_items, n_columns), self.exposure_dim + 1
        return _ExposureScorer(self, own, torch.zeros(n_users, width), torch.zeros(n_items, width))


def _scaled(users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Tables [main effect, vector] whose main effects, centred, and inner products vary by 1 over all pairs.

    The variance of <g_u, h_i> over all pairs is the mean of its square, from the two tables' second moments, less its
    squared mean. What varies by less than `HARDLY` is not blown up.
    """
    mains = [table[..., :1] - table[..., :1].mean(-2, keepdim=True) for table in (users, items)]
    mains = [main / _spread(main.square().mean(-2, keepdim=True)) for main in mains]
    g, h = users[..., 1:], items[..., 1:]
    square = ((g.mT @ g / g.shape[-2]) * (h.mT @ h / h.shape[-2])).sum((-2, -1))
    variance = square - (g.mean(-2) * h.mean(-2)).sum(-1).square()
    root = _spread(variance).sqrt()[..., None, None]
    return torch.cat([mains[0], g / root], -1), torch.cat([mains[1], h / root], -1)


def _spread(variance: Tensor) -> Tensor:
    return variance.clamp(min=HARDLY**2).sqrt()


def _parts(user_exposure: Tensor, item_exposure: Tensor, users: Tensor, items: Tensor) -> Tensor:
    of_users, of_items = lookup(user_exposure, users), lookup(item_exposure, items)
    pairs = (of_users[..., 1:] * of_items[..., 1:]).sum(-1)
    return torch.stack([of_users[..., 0], of_items[..., 0], pairs], -2)


class _ExposureScorer(Scorer):
    user_exposure: Tensor  # (|U|, 1 + dim) a user's main effect, then its vector
    item_exposure: Tensor

    def __init__(self, part: ExposureCovariate, own: Scorer, users: Tensor, items: Tensor) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items, self.stackable = part, own.n_users, own.n_items, own.stackable
        self.inner, self.exposure_coefficients, self.kept = own, nn.Parameter(torch.zeros(3)), Kept()
        self.register_buffer("user_exposure", users.detach())
        self.register_buffer("item_exposure", items.detach())

    def own(self) -> Scorer:
        return self.inner

    def exposure_logits(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is None or items is None:
            of_users, of_items = self._tables()
            return (of_users @ of_items.mT).flatten(-2)
        return (self.exposure_coefficients[..., None, :] @ self._parts(users, items)).squeeze(-2)

    def _parts(self, users: Tensor, items: Tensor) -> Tensor:
        """a_u, b_i and <g_u, h_i> of each pair, which never change: (..., 3, pairs)."""
        given = self.user_exposure, self.item_exposure, users, items
        keep = torch.is_grad_enabled() and users.device.type == "cpu"  # elsewhere other codes come in the same place
        kept = self.kept.of(_parts, *given) if keep else None
        return _parts(*given) if kept is None else kept

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits: Tensor = self.inner(users, items) + self.exposure_logits(users, items)
        return logits

    def grid(self, users: Tensor | None = None) -> Tensor:
        of_users, of_items = self._tables()
        return self.inner.grid(users) + (of_users if users is None else of_users[users]) @ of_items.mT

    def precision(self, name: str) -> float | Tensor:
        return (
            self.part.l2_exposure
            if name == "exposure_coefficients"
            else self.inner.precision(name.removeprefix("inner."))
        )

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.inner.embeddings()

    def features(self) -> tuple[Tensor, Tensor]:
        return self.inner.features()

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        own = self.inner.vectors()
        return own and (torch.cat([own[0], self._tables()[0]], -1), torch.cat([own[1], self._tables()[1]], -1))

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Two tables whose inner products are v_u a_u + v_i b_i + v_ui <g_u, h_i>."""
        users, items = self.user_exposure, self.item_exposure
        of_user, of_item, of_pair = self.exposure_coefficients[..., None, None].unbind(-3)
        one_user, one_item = torch.ones_like(users[..., :1]), torch.ones_like(items[..., :1])
        user_table = torch.cat([of_user * users[..., :1], one_user, of_pair * users[..., 1:]], -1)
        return user_table, torch.cat([one_item, of_item * items[..., :1], items[..., 1:]], -1)
