"""The paper's Algorithm 1 for the weights, as printed: a model g(x; theta_w) and gradient steps on batches.

`balancing.py` solves the same problem exactly. This is here to reproduce the paper, and to see what exactness brings.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from counterpoise.balance.diagnostics import held_out_imbalance, warn_of_collapse
from counterpoise.balance.features import observed_pairs
from counterpoise.balance.functions import FittedFunctions, Functions, KernelFunctions
from counterpoise.balance.kernels import BANDWIDTH_PAIRS
from counterpoise.balance.population import Pairs, Population, Sample
from counterpoise.balance.selection import solve
from counterpoise.config import Units
from counterpoise.data.batches import Batch
from counterpoise.models.base import Backbone
from counterpoise.training.contracts import FitContext, FittedWeights, StepInputs
from counterpoise.training.optimizer import Rate

LOG_WEIGHT_SPREAD = 0.7  # standard deviation of log weights that the default strength allows: normal ones leave an
# effective sample size of exp(-0.7^2) = 61 % of the rows
QUADRATIC_STRENGTH = 1.0  # default of the worst-case rule
ADVICE = "Lower `strength` or `learning_rate`, raise `tolerance` or `batch_size`, or use solver='dual'."


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


def default_strength(values: Tensor, fitted: FittedFunctions) -> float:
    """0.7 over the standard deviation of the sum of all functions, each in its units; at most 0.7.

    Exact log weights are -l'h with |l_j| <= strength_j: with this strength their standard deviation is at most about
    0.7, for few functions or many, collinear or orthogonal. `values` as in `weight_loss`.
    """
    if fitted.matrix is not None:
        return QUADRATIC_STRENGTH
    _, shares = fitted.penalties(strength=1.0)
    return LOG_WEIGHT_SPREAD / max(float((values @ shares).std(correction=0)), 1.0)


def batch_error(mass: Tensor, rows: int, pairs: int | None) -> float:
    """The standard error of the imbalance of a batch whose rows have shares `mass` of its weight, in SD of a function.

    sqrt((1 - b / n) sum of mass^2 + 1 / pairs): b rows drawn without replacement from n = `rows`, against so many
    uniform pairs of D, or against all of D (None). With equal weights the first term is 1 / b - 1 / n.
    """
    drawn = (1 - len(mass) / rows) * float(mass.square().sum())
    return math.sqrt(drawn + (0.0 if pairs is None else 1 / pairs))


class WeightModel(FittedWeights):
    """ratio = exp(g(user, item)) x prior, normalised over the batch, and over the log when training is done.

    The learning rate is that of the fit times the root of the batch's share of the log (the scaling rule of Adam:
    Malladi et al. 2022). Without it noise moves g until a row has all the weight of its batch; there the gradient of
    the softmax is 0, and no step leads back.
    """

    changes = True
    needs_pairs = True
    needs_pair_logits = False

    def __init__(
        self,
        context: FitContext,
        pairs: Pairs,
        prior: FittedWeights,
        functions: Functions,
        tolerance: float | None,
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
        strength = default_strength(values, fitted) if self.strength is None else self.strength
        log_mass = (self.scorer(batch.users, batch.items) + log_base).log_softmax(0)
        tolerance = self._tolerance(batch, log_mass)
        loss = weight_loss(log_mass, log_base, values, fitted, tolerance, strength, self.units)
        self.optimizer.step(loss, rate * math.sqrt(rows / len(self.context.log)))
        self.last_loss = loss.detach()
        with torch.no_grad():
            logits = self.scorer(batch.users, batch.items) + log_base
            self.ratio.index_copy_(0, batch.rows, rows * logits.softmax(0))

    def _tolerance(self, batch: Batch, log_mass: Tensor) -> float:
        """The tolerance of the settings; by default the standard error of a batch's imbalance."""
        if self.tolerance is not None:
            return self.tolerance
        pairs = None if batch.pair_users is None else len(batch.pair_users)
        return batch_error(log_mass.detach().exp(), len(self.context.log), pairs)

    def _population(self, batch: Batch) -> Population:
        """All of D where the batch has it, else the batch's pairs."""
        if batch.pair_users is None or batch.pair_items is None:
            return self.pairs
        return Sample(self.pairs.features(batch.pair_users, batch.pair_items))

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """exp(g) x prior over its mean on the log; exp(g) is at most that of any row: far from them g has no bound."""
        log = self.context.batches().whole()
        on_log = self.scorer(log.users, log.items)
        log_mean = (on_log + self.log_prior).logsumexp(0) - math.log(len(on_log))
        g = self.scorer.at(users, items).clamp(max=on_log.max())
        ratio: Tensor = (g - log_mean).exp() * self.prior.at(users, items, labels)
        return ratio

    def finalize(self) -> None:
        log = self.context.batches().whole()
        self.ratio = self.at(log.users, log.items, log.labels)

    def state(self) -> list[Tensor]:
        return [parameter.data for parameter in self.scorer.parameters()]

    def facts(self) -> dict[str, Any]:
        observed = observed_pairs(self.context.log, self.pairs)
        return {
            "solver": "gradient",
            "last_weight_loss": float(self.last_loss),
            "held_out_before": held_out_imbalance(observed, self.prior.ratio, self.pairs),
            "held_out_after": held_out_imbalance(observed, self.ratio, self.pairs),
            "warning": warn_of_collapse(self.ratio.cpu(), ADVICE),
        }


def _for_batches(functions: Functions, context: FitContext, pairs: Pairs) -> Functions:
    """The functions, their bandwidth fixed once for all batches, with as many candidates as a batch has rows."""
    if not isinstance(functions, KernelFunctions):
        return functions
    kernel = functions.kernel.with_bandwidth(pairs.draw(2 * BANDWIDTH_PAIRS, context.generator))
    rows = context.training.rows_per_step(len(context.log))
    candidates = functions.candidates or max(functions.n, min(rows, functions.n_candidates))
    return dataclasses.replace(functions, kernel=kernel, candidates=candidates)
