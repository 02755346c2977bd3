"""How much each observed pair counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.feedback import FeedbackLog
from counterpoise.parts import Part


@dataclass
class Weights(Part):
    """Gives each observed pair its ratio = weight x density, which is 1 on average."""

    def fit(self, log: FeedbackLog, probe: FeedbackLog | None) -> Tensor:
        """The ratio of each row of the log. (rows,)"""
        raise NotImplementedError


@dataclass
class Uniform(Weights):
    """Every observed pair counts the same: what plain matrix factorisation assumes, wrongly on a biased log."""

    def fit(self, log: FeedbackLog, probe: FeedbackLog | None) -> Tensor:
        """Ones."""
        return torch.ones(len(log))
