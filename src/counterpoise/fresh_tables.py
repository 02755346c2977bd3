"""What the tables of a backbone hold before they are trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

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
