"""Multiply robust imputation (MR): a regression of the error on several propensities and imputations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_number
from counterpoise.imputation.base import Learned
from counterpoise.imputation.targeted import LogRegression, check_parts, regression
from counterpoise.training.contracts import (
    FitContext,
    FittedImputation,
    FittedWeights,
    Imputation,
    LogErrors,
    StepInputs,
    Weights,
)
from counterpoise.training.optimizer import Rate


@dataclass
class MultiplyRobust(Imputation):
    """The combination of several inverse propensities and imputed errors that fits the observed errors best.

    imputed = u'eta with u = (1, 1 / propensity_1, ..., imputed error_1, ...) and eta by least squares of the error on u
    over the observed pairs, `ridge` on all but the constant, relative to each column's variance. With the risk
    "direct" and without ridge it equals `dr` under each of the propensities at once, so one right candidate is enough
    (MR, Li, Dai, Li, Lyu, Dong, Zhou and Wu 2023). It is a weighted mean of errors, with the weights that balance u;
    some may be negative. Gradients flow through the errors, the imputed errors and eta. A ridge of r leaves r / (1 + r)
    of the bias that one candidate alone would remove: the default keeps columns that repeat one another apart, no more.
    Where batches are smaller than the log, eta is that of the whole log at the start of the epoch (`LogRegression`).

    `propensities`: weights that know the ratio of any pair and are learned before training. `imputations`: the k-th is
    trained with the weights of the k-th propensity, in turn; with the method's own if there are no propensities.
    """

    propensities: tuple[Weights, ...] = ()
    imputations: tuple[Imputation, ...] = field(default_factory=lambda: (Learned(), Learned()))
    ridge: float = 1e-5

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """Every propensity learned, every imputation ready."""
        check_number("ridge", self.ridge, at_least=0)
        check_parts("propensities", self.propensities, Weights)
        check_parts("imputations", self.imputations, Imputation)
        propensities = [part.init(context) for part in self.propensities]
        for part, fitted in zip(self.propensities, propensities, strict=True):
            if fitted.changes:
                raise ConfigError(
                    f"`propensities` must be learned before training, and {type(part).__name__} is not. "
                    "Choose such as Logistic() or Propensity()."
                )
        of_each = [w for w, _ in zip(cycle(propensities or [weights]), self.imputations, strict=False)]
        imputations = [part.init(context, w) for part, w in zip(self.imputations, of_each, strict=True)]
        own = of_each if propensities else None
        return _FittedMultiplyRobust(propensities, imputations, own, self.ridge, weights, len(context.log))


@dataclass
class _FittedMultiplyRobust(FittedImputation):
    propensities: list[FittedWeights]
    imputations: list[FittedImputation]
    weights_of_each: list[FittedWeights] | None  # that each imputation is trained with; None: those of the method
    ridge: float
    weights: FittedWeights  # of the method
    rows: int  # of the log
    on_log: LogRegression = field(init=False)
    whole_step: bool = False  # whether the last step was on the whole log, which keeps the coefficients up to date

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        for imputation in self.imputations:
            imputation.refresh(on_log)
        if not self.whole_step:
            batch, logits, errors = on_log()
            self.errors(batch, logits, logits[:0], errors)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        self.whole_step = len(inputs.batch.rows) == self.rows
        for number, imputation in enumerate(self.imputations):
            own = ratio if self.weights_of_each is None else self.weights_of_each[number].ratio[inputs.batch.rows]
            imputation.step(inputs, own, rate, shift)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed = [imputation.errors(batch, logits, pair_logits, errors) for imputation in self.imputations]
        ratios = [weights.at(batch.users, batch.items).detach() for weights in self.propensities]
        ratios_on_pairs = [weights.at(batch.pair_users, batch.pair_items).detach() for weights in self.propensities]
        columns = [*ratios, *(on_rows for on_rows, _ in imputed)]  # each (rows,)
        columns_on_pairs = [*ratios_on_pairs, *(on_pairs for _, on_pairs in imputed)]  # each (pairs,)
        weight = self.weights.at(batch.users, batch.items, batch.labels).detach()
        if len(batch.rows) < self.rows:
            fitted, eta = self.on_log.on_batch(_table(columns, logits), errors, weight)
            return fitted, self.on_log.at(_table(columns_on_pairs, pair_logits), eta)
        self.on_log = LogRegression.fit(_table(columns, logits), errors, weight, self.ridge, intercept=True)
        constant, eta = _intercept_and_slopes(columns, errors, self.ridge)
        return _combined(constant, eta, columns, logits), _combined(constant, eta, columns_on_pairs, pair_logits)

    def state(self) -> list[Tensor]:
        return [tensor for imputation in self.imputations for tensor in imputation.state()]

    def facts(self) -> dict[str, Any]:
        return {
            "propensities": [weights.facts() for weights in self.propensities],
            "imputations": [imputation.facts() for imputation in self.imputations],
        }


def _table(columns: list[Tensor], like: Tensor) -> Tensor:
    """(rows, columns), also where there are no columns."""
    return torch.stack(columns, dim=1) if columns else like[:, None][:, :0]


def _intercept_and_slopes(columns: list[Tensor], target: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Least squares of the target on a constant and the columns, in float64; the constant bears no ridge."""
    mean = target.double().mean()
    if not columns:
        return mean, mean.new_zeros(0)
    table = torch.stack(columns, dim=1).double()  # (rows, columns)
    centre = table.mean(dim=0)
    eta = regression(table - centre, target.double() - mean, ridge)
    return mean - centre @ eta, eta


def _combined(constant: Tensor, eta: Tensor, columns: list[Tensor], like: Tensor) -> Tensor:
    """constant + sum_j eta_j column_j."""
    total = torch.zeros_like(like) + constant.to(like.dtype)
    for slope, column in zip(eta.to(like.dtype), columns, strict=True):
        total = total + slope * column
    return total
