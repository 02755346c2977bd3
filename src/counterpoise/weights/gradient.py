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
from counterpoise.models.base import Backbone
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Adam, Rate
from counterpoise.weights.base import FittedWeights, StepInputs

BATCH_STRENGTH = 1.0  # what a standard deviation of all functions together is worth by default: a batch of 128 is off
# by 0.09 in each by chance alone, and a price of 1 for each of 50 makes the weights chase that until two rows are left


def weight_loss(
    log_mass: Tensor,
    log_base: Tensor,
    values: Tensor,
    fitted: FittedFunctions,
    tolerance: float,
    strength: float,
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
    allowed, prices = fitted.penalties(tolerance, strength)
    return divergence + (prices * (imbalance.abs() - allowed).clamp(min=0)).sum()


def weight_slope(
    log_mass: Tensor, log_base: Tensor, values: Tensor, fitted: FittedFunctions, tolerance: float, strength: float
) -> Tensor:
    """dL_w / dg for mass = softmax(g + log base): mass_i (s_i - sum of mass x s), s_i = dL_w / dmass_i.

    s_i = log(mass_i / base_i) + sum_j h_j(x_i) strength_j sign(tau_j) [|tau_j| > tolerance_j], up to a constant; for
    the worst-case rule the sum is 2 strength x h(x_i)' A^-1 tau.
    """
    mass = log_mass.exp()
    imbalance = mass.to(values) @ values - fitted.targets
    if fitted.matrix is not None:
        pull = 2 * strength * solve(fitted.matrix, imbalance)
    else:
        allowed, prices = fitted.penalties(tolerance, strength)
        pull = prices * imbalance.sign() * (imbalance.abs() > allowed)
    slope = log_mass - log_base + (values @ pull).to(mass)
    return mass * (slope - mass @ slope)


class WeightModel(FittedWeights):
    """ratio = exp(g(user, item)) x prior, normalised over the batch, and over the log when training is done."""

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
        backbone: Backbone,
    ) -> None:
        self.context, self.pairs, self.prior = context, pairs, prior
        self.functions = _for_batches(functions, context, pairs)
        self.tolerance, self.strength = tolerance, strength
        self.scorer = context.build(backbone, rate=0.5)
        self.optimizer = Adam.of(self.scorer, context.training.learning_rate, len(context.log))
        self.ratio, self.log_prior = prior.ratio.clone(), prior.ratio.log()
        self.last: tuple[Tensor, Tensor, Tensor, FittedFunctions, float, float] | None = None  # of L_w

    @torch.no_grad()
    def step(self, view: StepInputs, imputed: Tensor, imputed_on_pairs: Tensor, rate: Rate) -> None:
        """Choose functions on the batch, one gradient step on L_w, new ratios for the rows of the batch."""
        batch, rows = view.batch, len(view.batch.rows)
        observed = Sample(self.pairs.features(batch.users, batch.items))
        ratio, log_base = (values.index_select(0, batch.rows) for values in (self.ratio, self.log_prior))
        fitted = self.functions.fit(
            self._population(batch), observed, view.errors - imputed, ratio, self.context.generator
        )
        logits, pull_back = self.scorer.traced(batch.users, batch.items)
        log_mass = (logits + log_base).log_softmax(0)
        values = fitted.values(observed.matrix) if fitted.known is None else fitted.known
        prices = 1 if fitted.matrix is not None else len(fitted.targets)
        strength = BATCH_STRENGTH / prices if self.strength is None else self.strength
        self.last = log_mass, log_base, values, fitted, self.tolerance, strength
        self.optimizer.follow(pull_back(weight_slope(*self.last)), rate)
        logits = self.scorer(batch.users, batch.items) + log_base
        self.ratio.index_copy_(0, batch.rows, rows * logits.softmax(0))

    def has_closed_form(self, codes: Tensor) -> bool:
        """As the weight model has."""
        return self.scorer.has_closed_form(codes)

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

    def settle(self) -> None:
        """Every row's ratio as the model has it, normalised over the log."""
        log = self.context.batches().whole()
        self.ratio = self.at(log.users, log.items, log.labels)

    def state(self) -> list[Tensor]:
        """The weight model's parameters."""
        return [parameter.data for parameter in self.scorer.parameters()]

    def facts(self) -> dict[str, Any]:
        """The last batch's loss."""
        loss = math.nan if self.last is None else float(weight_loss(*self.last))
        return {"solver": "gradient", "last_weight_loss": loss}


def _for_batches(functions: Functions, context: FitContext, pairs: Pairs) -> Functions:
    """The same rule, its bandwidth fixed once for all batches, with as many candidates as a batch has rows."""
    if not isinstance(functions, KernelFunctions):
        return functions
    kernel = functions.kernel.with_bandwidth(pairs.draw(2 * BANDWIDTH_PAIRS, context.generator))
    rows = context.training.rows_a_step(len(context.log))
    candidates = functions.candidates or max(functions.n, min(rows, functions.n_candidates))
    return dataclasses.replace(functions, kernel=kernel, candidates=candidates)
