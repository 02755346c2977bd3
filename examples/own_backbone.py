"""A backbone of one's own, which every method can train: users differ, items differ, and that is all.

python examples/own_backbone.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.models.base import Backbone, Scorer


class EffectsScorer(Scorer):
    """logit = mean + user bias + item bias."""

    def __init__(self, part: Effects, n_users: int, n_items: int) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items = part, n_users, n_items
        self.mean = nn.Parameter(torch.zeros(()))
        self.user_bias = nn.Parameter(torch.zeros(n_users, 1))
        self.item_bias = nn.Parameter(torch.zeros(n_items, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.mean + self.user_bias[users.long(), 0] + self.item_bias[items.long(), 0]

    def precision(self, name: str) -> float:
        return 0.0 if name == "mean" else self.part.l2

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.user_bias, self.item_bias


@dataclass
class Effects(Backbone):
    """Its configuration: the precision of the prior."""

    l2: float = 2.0

    def build(self, log: cp.FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        scorer = self.empty(*log.shape, n_columns=log.feature_columns)
        scorer.mean.data.fill_(torch.logit(torch.tensor(log.labels.mean() if rate is None else rate), eps=1e-3))
        return scorer

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> EffectsScorer:
        return EffectsScorer(self, n_users, n_items)


if __name__ == "__main__":
    data = cp.simulate(n_users=80, n_items=60, density=0.2, seed=0).dataset
    for name in ("mf", "ips", "skb-dr"):
        model = cp.make(name, backbone=Effects(), epochs=60, seed=0).fit(data.train, probe=data.probe)
        print(f"{name:<7} AUC {cp.evaluate(model, data.test, bootstrap=0).auc:.3f}")
