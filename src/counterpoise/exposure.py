"""A predictor that is told what was seen: the exposure of a pair as a covariate, with a learned say.

Who saw what is known for every pair, also where no label is. Whether it says anything about taste, only labels can
tell. So a first, small model of being observed is fitted to the log, and its three parts enter the predictor:

    logit = logit of the backbone + v_u a_u + v_i b_i + v_ui <g_u, h_i>

with a_u, b_i and <g_u, h_i> the parts of the log odds of being observed, each scaled to a standard deviation of 1 over
all pairs, and three numbers v, "voices", learned from the labels beside all else. Where exposure has nothing to do with
taste they stay near 0. (Wang, Liang, Charlin and Blei 2020, Causal Inference for Recommender Systems, put reconstructed
exposure into the predictor; who rated what speaks in SVD++ too, Koren 2008, Factorization Meets the Neighborhood.)
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from counterpoise.backbones import Backbone, MatrixFactorization, Scorer, as_backbone
from counterpoise.errors import check_number
from counterpoise.feedback import FeedbackLog
from counterpoise.problems import Problem
from counterpoise.propensity import fit_observation
from counterpoise.training import Training

HARDLY = 0.1  # log odds of being observed


@dataclass
class Exposed(Backbone):
    """The logit of `backbone` + the user's, the item's and the pair's own part in being observed, each with its voice.

    `exposure_dim`: the dimensions of the model of being observed. `l2_voices`: the precision of the prior on the
    voices, as `l2` in `MatrixFactorization`; a voice is in log odds of a positive label for a standard deviation.
    """

    backbone: Backbone | str = field(default_factory=MatrixFactorization)
    exposure_dim: int = 4
    l2_voices: float = 1.0

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        """The backbone's own scorer, drawn first, beside a model of what this log observed."""
        check_number("exposure_dim", self.exposure_dim, at_least=1, integer=True)
        check_number("l2_voices", self.l2_voices, at_least=0)
        own = deepcopy(as_backbone(self.backbone)).build(log, generator, rate)
        observation = MatrixFactorization(dim=self.exposure_dim)
        problem = Problem(log, None, observation, Training(), torch.device("cpu"), generator)
        model = fit_observation(problem, observation)
        return _Exposed(self, own, *_scaled(*model.features()))

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> Scorer:
        """All parameters zero."""
        own, width = as_backbone(self.backbone).empty(n_users, n_items, n_columns), self.exposure_dim + 1
        return _Exposed(self, own, torch.zeros(n_users, width), torch.zeros(n_items, width))


def _scaled(users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Tables [main effect, vector] whose main effects, centred, and inner products vary by 1 over all pairs.

    The variance of <g_u, h_i> over all pairs is the mean of its square, from the two tables' second moments, less its
    squared mean. What varies by less than `HARDLY` is not blown up.
    """
    mains = [(table[:, :1] - table[:, :1].mean()) / _spread(table[:, 0].var(correction=0)) for table in (users, items)]
    g, h = users[:, 1:], items[:, 1:]
    square = ((g.T @ g / len(g)) * (h.T @ h / len(h))).sum()
    root = _spread(square - (g.mean(0) @ h.mean(0)).square()).sqrt()
    return torch.cat([mains[0], g / root], 1), torch.cat([mains[1], h / root], 1)


def _spread(variance: Tensor) -> Tensor:
    return variance.clamp(min=HARDLY**2).sqrt()


class _Exposed(Scorer):
    user_exposure: Tensor  # (|U|, 1 + dim) a user's main effect, then its vector
    item_exposure: Tensor

    def __init__(self, part: Exposed, own: Scorer, users: Tensor, items: Tensor) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items = part, own.n_users, own.n_items
        self.inner, self.voices = own, nn.Parameter(torch.zeros(3))
        self.register_buffer("user_exposure", users.detach())
        self.register_buffer("item_exposure", items.detach())

    def own(self) -> Scorer:
        return self.inner

    def told(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        of_users, of_items = self._tables()
        if users is None or items is None:
            return (of_users @ of_items.T).flatten()
        return (nn.functional.embedding(users, of_users) * nn.functional.embedding(items, of_items)).sum(dim=1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits: Tensor = self.inner(users, items) + self.told(users, items)
        return logits

    def grid(self, users: Tensor | None = None) -> Tensor:
        of_users, of_items = self._tables()
        return self.inner.grid(users) + (of_users if users is None else of_users[users]) @ of_items.T

    def penalty(self) -> Tensor:
        return self.inner.penalty() + self.part.l2_voices * self.voices.square().sum() / 2

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.inner.embeddings()

    def features(self) -> tuple[Tensor, Tensor]:
        return self.inner.features()

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Two tables whose inner products are v_u a_u + v_i b_i + v_ui <g_u, h_i>."""
        users, items, (of_user, of_item, of_pair) = self.user_exposure, self.item_exposure, self.voices
        user_table = torch.cat([of_user * users[:, :1], torch.ones_like(users[:, :1]), of_pair * users[:, 1:]], 1)
        item_table = torch.cat([torch.ones_like(items[:, :1]), of_item * items[:, :1], items[:, 1:]], 1)
        return user_table, item_table
