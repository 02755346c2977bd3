"""A world small enough to write down: every propensity, label, prediction and imputed label of 40 users x 50 items."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from counterpoise import FeedbackLog, MatrixFactorization, Training
from counterpoise.data.batches import Batch
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, Weights

Table = NDArray[np.float64]  # (users, items)


def log_loss(label: Table, logit: Table) -> Table:
    """-label log(prediction) - (1 - label) log(1 - prediction)."""
    prediction = expit(logit)
    return -label * np.log(prediction) - (1 - label) * np.log(1 - prediction)


class SmallWorld:
    """Selection and labels share a cause x, so that the observed mean error is not the mean error."""

    def __init__(self, users: int = 40, items: int = 50, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((users, items))
        self.shape, self.pairs = (users, items), users * items
        self.propensity = expit(x - 1.5)
        self.labels = (rng.random(x.shape) < expit(1.5 * x)).astype(float)
        self.logits = 1 + rng.standard_normal(x.shape)
        self.imputed_labels = rng.random(x.shape)
        self.errors = log_loss(self.labels, self.logits)
        self.imputed = log_loss(self.imputed_labels, self.logits)
        self.wrong_propensity = rng.uniform(0.1, 0.9, x.shape)
        self.ideal = float(self.errors.mean())

    def observe(self, seed: int = 0) -> Observed:
        """One draw of who sees what."""
        return Observed(self, np.random.default_rng(1000 + seed).random(self.shape) < self.propensity)


class Observed:
    """A draw of the observed pairs, as the package sees them: everything in float64."""

    def __init__(self, world: SmallWorld, mask: NDArray[np.bool_]) -> None:
        self.world, self.mask = world, mask
        self.users, self.items = np.nonzero(mask)
        self.rows, self.density = len(self.users), float(mask.mean())
        pairs = torch.from_numpy(self.users), torch.from_numpy(self.items)
        self.batch = Batch(torch.arange(self.rows), *pairs, self.at(world.labels), None, None)

    @cached_property
    def context(self) -> FitContext:
        """What parts begin with; thousands of draws are looked at without it."""
        everyone, everything = (np.arange(size) for size in self.world.shape)
        log = FeedbackLog.from_arrays(
            self.users, self.items, self.world.labels[self.mask], user_ids=everyone, item_ids=everything
        )
        settings = MatrixFactorization(dim=3), Training(epochs=5)
        return FitContext(log, None, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))

    def at(self, table: Table) -> Tensor:
        """The observed values of a table. (rows,)"""
        return torch.from_numpy(table[self.mask])

    def ratio(self, propensity: Table) -> Tensor:
        """density / propensity of the observed pairs."""
        return self.density / self.at(propensity)

    def logits(self) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of all pairs, of the rows and of D: the first is what gradients are asked for."""
        table = torch.from_numpy(self.world.logits).clone().requires_grad_()
        return table, table[self.users, self.items], table.flatten()

    def ask(self, fitted_imputation: FittedImputation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(the logits of all pairs, errors of the rows, imputed errors of the rows, and of D)."""
        table, logits, pair_logits = self.logits()
        errors = error(self.batch.labels, logits)
        return table, errors, *fitted_imputation.errors(self.batch, logits, pair_logits, errors)


@dataclass
class Known(Weights):
    """Weights from a table of propensities."""

    propensity: Table = field(default_factory=lambda: np.ones((1, 1)))

    def init(self, context: FitContext) -> FittedWeights:
        return _Known(context, context.log.density / self.propensity)


class _Known(FittedWeights):
    def __init__(self, context: FitContext, ratio: Table) -> None:
        self.table = torch.from_numpy(ratio)
        self.ratio = self.table[context.log.users, context.log.items]

    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        if users is None or items is None:
            return self.table.flatten()
        return self.table[users.long(), items.long()]


@dataclass
class Labels(Imputation):
    """Imputed labels from a table."""

    table: Table = field(default_factory=lambda: np.ones((1, 1)))

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        return _Labels(torch.from_numpy(self.table))


class _Labels(FittedImputation):
    def __init__(self, table: Tensor) -> None:
        self.table, self.shifts = table, []

    def step(self, inputs, ratio, rate, shift=0.0) -> None:
        self.shifts.append(shift)

    def errors(self, batch, logits, pair_logits, errors) -> tuple[Tensor, Tensor]:
        on_pairs = self.table.flatten() if batch.pair_users is None else self.table[batch.pair_users, batch.pair_items]
        return error(self.table[batch.users, batch.items], logits), error(on_pairs, pair_logits)
