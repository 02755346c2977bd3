"""The paper's Algorithm 1 for the weights, as printed: a model g(x; theta_w) and gradient steps on batches.

`balancing.py` solves the same problem exactly. This is here to reproduce the paper, and to see what exactness brings.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from counterpoise.balance.functions import FittedFunctions, Functions, KernelFunctions
from counterpoise.balance.kernels import BANDWIDTH_PAIRS
from counterpoise.balance.population import Pairs, Population, Sample
from counterpoise.balance.selection import solve
from counterpoise.config import Units
from counterpoise.data.batches import Batch
from counterpoise.models.base import Backbone
from counterpoise.training.contracts import FitContext, FittedWeights, StepInputs
from counterpoise.training.optimizer import Rate

BATCH_STRENGTH = 1.0  # the default penalty on a standard deviation of all functions together: in a batch of 128 each is
# off by 0.09 by chance alone, and a penalty of 1 on each of 50 fits that noise until two rows are left


def weight_loss(
    log_mass: Tensor,
    log_base: Tensor,
    values: Tensor,
    fitted: FittedFunctions,
    tolerance: float,
    strength: float,
    units: Units = "sd",
) -> Tensor:
    """L_w = KL(mass || base) + sum_j strength_j [|tau_j| - tolerance_j]+, tau_j = sum of mass x h_j - target_j.

    `values` (rows, functions) are those of `fitted` at the rows; `log_base` may be off by a constant. For the
    worst-case rule the second term is strength x tau' A^-1 tau.
    """
    mass = log_mass.exp()
    divergence: Tensor = (mass * (log_mass - log_base.log_softmax(0))).sum()
    imbalance = mass.to(values) @ values - fitted.targets
    if fitted.matrix is not None:
        worst: Tensor = imbalance @ solve(fitted.matrix, imbalance)
        return divergence + strength * worst
    allowed, penalties = fitted.penalties(tolerance, strength, units)
    return divergence + (penalties * (imbalance.abs() - allowed).clamp(min=0)).sum()


class WeightModel(FittedWeights):
    """ratio = exp(g(user, item)) x prior, normalised over the batch, and over the log when training is done."""

    changes: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = True
    needs_pair_logits: ClassVar[bool] = False

    def __init__(
        self,
        context: FitContext,
        pairs: Pairs,
        prior: FittedWeights,
        functions: Functions,
        tolerance: float,
        strength: float | None,
        units: Units,
        backbone: Backbone,
    ) -> None:
        self.context, self.pairs, self.prior = context, pairs, prior
        self.functions = _for_batches(functions, context, pairs)
        self.tolerance, self.strength, self.units = tolerance, strength, units
        self.scorer = context.build(backbone, rate=0.5)
        self.optimizer = context.optimizer(self.scorer)
        self.ratio, self.log_prior = prior.ratio.clone(), prior.ratio.log()
        self.last_loss = torch.tensor(math.nan)

    def step(self, inputs: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        """Choose functions on the batch, one gradient step on L_w, new ratios for the rows of the batch."""
        batch, rows = inputs.batch, len(inputs.batch.rows)
        observed = Sample(self.pairs.features(batch.users, batch.items))
        ratio, log_base = (values.index_select(0, batch.rows) for values in (self.ratio, self.log_prior))
        with torch.no_grad():
            errors, generator = inputs.errors - imputed, self.context.generator
            fitted = self.functions.fit(self._population(batch), observed, errors, ratio, generator)
            values = fitted.values(observed.matrix) if fitted.known is None else fitted.known
        penalties = 1 if fitted.matrix is not None else len(fitted.targets)
        strength = BATCH_STRENGTH / penalties if self.strength is None else self.strength
        log_mass = (self.scorer(batch.users, batch.items) + log_base).log_softmax(0)
        loss = weight_loss(log_mass, log_base, values, fitted, self.tolerance, strength, self.units)
        self.optimizer.step(loss, rate)
        self.last_loss = loss.detach()
        with torch.no_grad():
            logits = self.scorer(batch.users, batch.items) + log_base
            self.ratio.index_copy_(0, batch.rows, rows * logits.softmax(0))

    def _population(self, batch: Batch) -> Population:
        """All of D where the batch stands beside it, else the batch's pairs."""
        if batch.pair_users is None or batch.pair_items is None:
            return self.pairs
        return Sample(self.pairs.features(batch.pair_users, batch.pair_items))

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """exp(g) x prior over its mean on the log."""
        log = self.context.batches().whole()
        mean = (self.scorer(log.users, log.items).exp() * self.prior.ratio).mean()
        ratio: Tensor = self.scorer.at(users, items).exp() * self.prior.at(users, items, labels) / mean
        return ratio

    def finalize(self) -> None:
        log = self.context.batches().whole()
        self.ratio = self.at(log.users, log.items, log.labels)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]

    def facts(self) -> dict[str, Any]:
        return {"solver": "gradient", "last_weight_loss": float(self.last_loss)}


def _for_batches(functions: Functions, context: FitContext, pairs: Pairs) -> Functions:
    """The same rule, its bandwidth fixed once for all batches, with as many candidates as a batch has rows."""
    if not isinstance(functions, KernelFunctions):
        return functions
    kernel = functions.kernel.with_bandwidth(pairs.draw(2 * BANDWIDTH_PAIRS, context.generator))
    rows = context.training.rows_per_step(len(context.log))
    candidates = functions.candidates or max(functions.n, min(rows, functions.n_candidates))
    return dataclasses.replace(functions, kernel=kernel, candidates=candidates)
