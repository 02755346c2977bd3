"""What predicts: pairs in, logits out. The contract of a backbone, and of what it builds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.config import Configurable
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.models.embedding_ops import gradients_of, rows_of_grid

# What the tables of a backbone hold before they are trained.

INITIAL_SCALE = 0.1  # standard deviation of fresh factors: small, so that training starts near the mean label


def fresh_table(rows: int, columns: int) -> nn.Embedding:
    """A vector for each row, all of zeros."""
    return nn.Embedding(rows, columns, _weight=torch.zeros(rows, columns))


def draw(values: Tensor, generator: torch.Generator, scale: float = INITIAL_SCALE) -> None:
    """Fill with normal numbers of this standard deviation."""
    with torch.no_grad():
        values.normal_(0.0, scale, generator=generator)


def log_odds(rate: float) -> float:
    """log(rate / (1 - rate)), of a rate that is neither 0 nor 1."""
    rate = min(max(rate, 1e-3), 1 - 1e-3)
    return math.log(rate / (1 - rate))


PullBack = Callable[[Tensor], Sequence[Tensor]]


class Scorer(nn.Module):
    """A built backbone: trainable tables over |U| users and |I| items."""

    n_users: int
    n_items: int
    stackable: bool = (
        False  # whether all of it works with a leading axis of fits side by side, and narrower tables padded with zeros
    )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The logit of each pair. (pairs,)"""
        raise NotImplementedError

    def traced(self, users: Tensor, items: Tensor) -> tuple[Tensor, PullBack]:
        """(the logits, detached; what makes slopes of a loss in them its gradients in the parameters)."""
        with torch.enable_grad():
            logits = self(users, items)
        return logits.detach(), lambda slopes: gradients_of(logits, list(self.parameters()), slopes)

    def has_closed_form(self, codes: Tensor) -> bool:
        """Whether `traced` does without autograd for so many pairs."""
        return False

    def precision(self, name: str) -> float | Tensor:
        """The precision of the Gaussian prior on a parameter; 0 where there is none."""
        raise ConfigError(
            f"{type(self).__name__} must have a method `precision(name)`: the precision of the prior on the parameter "
            "of this name, 0 for none. Its `penalty` is made of it."
        )

    def precisions(self) -> list[float | Tensor]:
        """Those of all parameters, in their order."""
        return [self.precision(name) for name, _ in self.named_parameters()]

    def penalty(self) -> Tensor:
        """Half the squared parameters, each weighed by its precision: the negative log of the Gaussian prior."""
        fits = self.embeddings()[0].shape[:-2]  # side by side
        tables = [parameter.reshape(*fits, -1) for parameter in self.parameters()]
        each = zip(self.precisions(), tables, strict=True)
        return torch.stack([precision * torch.linalg.vecdot(table, table) for precision, table in each]).sum(0) / 2

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """What was learned of each user and each item: (|U|, dimensions) and (|I|, dimensions)."""
        raise NotImplementedError

    def features(self) -> tuple[Tensor, Tensor]:
        """What is known of each user and each item, biases included: features for balancing."""
        return self.embeddings()

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """Two tables whose inner products are the logits, (|U|, d) and (|I|, d); None where there are none."""
        return None

    def own(self) -> Scorer:
        """The scorer without what it was told of exposure: itself, unless it was told any."""
        return self

    def exposure_logits(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        """What exposure adds to the logit of each pair, of all pairs of D where they are None, if it was told any."""
        raise NotImplementedError

    def at(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        """The logit of each pair; of all pairs of D, user by user, where they are None."""
        if users is None or items is None:
            return self.grid().flatten(-2)
        logits: Tensor = self(users, items)
        return logits

    def rows_and_pairs(
        self, users: Tensor, items: Tensor, pair_users: Tensor | None, pair_items: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The logits of some rows and of pairs of D; where those are all of D, the rows are read off them."""
        if pair_users is None or pair_items is None:
            return rows_of_grid(self.at(None, None), self.place(users, items))
        each = (*pair_users.shape[:-1], users.shape[-1])
        codes = zip((users, items), (pair_users, pair_items), strict=True)
        together: Tensor = self(*(torch.cat([rows.expand(each), pairs], -1) for rows, pairs in codes))
        rows, pairs = torch.split_with_sizes(together, [users.shape[-1], pair_users.shape[-1]], -1)
        return rows, pairs

    def place(self, users: Tensor, items: Tensor) -> Tensor:
        """Where each pair stands in D, user by user."""
        return users.long() * self.n_items + items

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

    def inform(self, scorer: Scorer, context: Any) -> None:
        """Tell a fresh scorer of a `FitContext` what a first model has to say, if there is one."""

    def empty(self, n_users: int, n_items: int, n_columns: tuple[int, int]) -> Scorer:
        """A scorer of the right shape, to be filled with saved values. `n_columns`: side features of users, items."""
        raise NotImplementedError
