"""Popularity as a backbone: one number for each item, the same for all users."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterpoise.data.log import FeedbackLog
from counterpoise.errors import check_number
from counterpoise.models.base import Backbone, Scorer, initial_logit, longer_table, zero_table


@dataclass
class ItemPopularity(Backbone):
    """logit = mean + item bias: the item's rate of positive labels, shrunken to the mean where it has few ratings.

    `l2_biases` as in `MatrixFactorization`. Nothing is drawn, so with full batches the seed does not matter.
    """

    l2_biases: float = 2.0

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        check_number("l2_biases", self.l2_biases, at_least=0)
        scorer = self.empty(*log.shape, n_columns=(0, 0))
        scorer.mean.data.fill_(initial_logit(float(log.labels.mean()) if rate is None else rate))
        return scorer

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> _ItemBiases:
        return _ItemBiases(self, n_users, n_items)


class _ItemBiases(Scorer):
    def __init__(self, part: ItemPopularity, n_users: int, n_items: int) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items = part, n_users, n_items
        self.mean = nn.Parameter(torch.zeros(()))
        self.item_bias = zero_table(n_items, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.mean + self.item_bias.weight.squeeze(1)[items.long()]

    def vectors(self) -> tuple[Tensor, Tensor]:
        return self.mean.new_ones(self.n_users, 1), self.mean + self.item_bias.weight

    def row_columns(self, side: str) -> dict[str, slice]:
        return {"item_bias.weight": slice(0, 1)} if side == "item" else {}

    def unrated_vectors(self, side: str, count: int, features: Tensor | None = None) -> Tensor:
        return (self.mean if side == "item" else torch.ones_like(self.mean)).expand(count, 1).clone()

    def append_rows(self, side: str, count: int, features: Tensor | None = None) -> None:
        if side == "user":
            self.n_users += count
        else:
            self.n_items, self.item_bias = self.n_items + count, longer_table(self.item_bias, count)

    def shift(self, logit: float) -> bool:
        self.mean.data += logit
        return True

    def precision(self, name: str) -> float:
        return 0.0 if name == "mean" else self.part.l2_biases

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.mean.new_empty(self.n_users, 0), self.mean.new_empty(self.n_items, 0)

    def features(self) -> tuple[Tensor, Tensor]:
        return self.embeddings()[0], self.item_bias.weight

    def grid(self, users: Tensor | None = None) -> Tensor:
        size = self.n_users if users is None else len(users)
        return (self.mean + self.item_bias.weight.squeeze(1)).expand(size, -1).contiguous()
