"""Neural collaborative filtering: a small network beside a product of embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_number
from counterpoise.models.base import Backbone, Scorer, draw_normal, initial_logit, zero_table


@dataclass
class NeuralCF(Backbone):
    """logit = mean + linear([p_u * q_i ; mlp([r_u ; s_i])]): a product of embeddings beside a small network.

    (He, Liao, Zhang, Nie, Hu and Chua 2017, Neural Collaborative Filtering.) `l2` as in `MatrixFactorization`, on the
    embeddings; `l2_network` on the network's weights.
    """

    dim: int = 16
    hidden: tuple[int, ...] = (32, 16)
    l2: float = 4.0
    l2_network: float = 1.0

    def build(self, log: FeedbackLog, generator: torch.Generator, rate: float | None = None) -> Scorer:
        check_number("dim", self.dim, at_least=1, integer=True)
        if not isinstance(self.hidden, tuple | list):
            raise ConfigError(f"`hidden` must list the widths of the hidden layers, got {self.hidden!r}. Try (32, 16).")
        for width in self.hidden:
            check_number("hidden", width, at_least=1, integer=True, advice="Give the width of each hidden layer.")
        for name in ("l2", "l2_network"):
            check_number(name, getattr(self, name), at_least=0)
        scorer = self.empty(*log.shape, n_columns=(0, 0))
        for table in scorer.embeddings():
            draw_normal(table, generator)
        for layer in scorer.layers():
            draw_normal(layer.weight, generator, math.sqrt(2 / layer.weight.shape[1]))
        scorer.output.bias.data.fill_(initial_logit(float(log.labels.mean()) if rate is None else rate))
        return scorer

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> _Network:
        return _Network(self, n_users, n_items)


class _Layer(nn.Module):
    """An affine map that starts at zero: nn.Linear would draw from torch's global generator."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.linear(values, self.weight, self.bias)


class _Network(Scorer):
    def __init__(self, part: NeuralCF, n_users: int, n_items: int) -> None:
        super().__init__()
        self.part, self.n_users, self.n_items = part, n_users, n_items
        self.user_table = zero_table(n_users, 2 * part.dim)  # one half for the product, the other for the network
        self.item_table = zero_table(n_items, 2 * part.dim)
        widths = (2 * part.dim, *part.hidden)
        self.network = nn.ModuleList(_Layer(*ends) for ends in pairwise(widths))
        self.output = _Layer(part.dim + widths[-1], 1)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        return self.user_table.weight, self.item_table.weight

    def layers(self) -> list[_Layer]:
        return [layer for layer in self.modules() if isinstance(layer, _Layer)]

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        user_product, user_hidden = self.user_table(users).chunk(2, dim=1)
        item_product, item_hidden = self.item_table(items).chunk(2, dim=1)
        hidden = torch.cat([user_hidden, item_hidden], dim=1)
        for layer in self.network:
            hidden = torch.relu(layer(hidden))
        logits: Tensor = self.output(torch.cat([user_product * item_product, hidden], dim=1))
        return logits.squeeze(1)

    def shift(self, logit: float) -> bool:
        self.output.bias.data += logit
        return True

    def precision(self, name: str) -> float:
        if name.endswith("bias"):
            return 0.0
        return self.part.l2 if "table" in name else self.part.l2_network
