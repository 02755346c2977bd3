"""Imputed errors that are corrected by a least-squares regression on the observed pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.config import Covariate
from counterpoise.errors import ConfigError, check_choice, check_number
from counterpoise.imputation.base import FittedImputation, Imputation, Learned
from counterpoise.training.context import FitContext
from counterpoise.training.loop import Batch
from counterpoise.training.optimizer import Rate
from counterpoise.weights.base import FittedWeights, StepInputs, Weights

NOTHING = 1e-12  # the mean square up to which a column counts as 0
JITTER = 1e-12  # the ridge that is always there, so that columns may repeat one another


def regression(columns: Tensor, target: Tensor, ridge: float = 0.0) -> Tensor:
    """The coefficients b that minimise mean over rows of (target - columns b)^2 + ridge sum_j b_j^2 mean(column_j^2).

    In float64. A column of zeros gets the coefficient 0. Gradients reach both arguments.
    """
    columns, target = columns.double(), target.double()
    squares = columns.square().mean(dim=0)
    scale = torch.where(squares > NOTHING, squares, math.inf).rsqrt()  # (columns,) 0 for a column of zeros
    scaled = columns * scale
    gram = scaled.T @ scaled / len(target)
    steady = gram + (ridge + JITTER) * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    solution: Tensor = torch.linalg.solve(steady, scaled.T @ target / len(target))
    return scale * solution


class _Ratios:
    """The ratio of any pairs as weights know it; over all of D it is asked for once if the weights never change."""

    def __init__(self, fitted_weights: FittedWeights) -> None:
        self.fitted_weights, self.fixed = fitted_weights, never_changes(fitted_weights)
        self._everywhere: Tensor | None = None

    def at(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        if users is not None or not self.fixed:
            return self.fitted_weights.at(users, items).detach()
        if self._everywhere is None:
            self._everywhere = self.fitted_weights.at(None, None).detach()
        return self._everywhere


def never_changes(fitted_weights: FittedWeights) -> bool:
    """Whether the weights are what they are before training."""
    return not fitted_weights.state() and type(fitted_weights).refresh is FittedWeights.refresh


@dataclass
class Targeted(Imputation):
    """The `base` imputation, moved along a covariate c until the residuals on the observed pairs are orthogonal to c.

    imputed = base + eta c, eta = sum over O of c (error - base) / sum over O of c^2, and the base is trained on what
    eta c leaves (TDR-CL, Li, Lyu, Zheng and Wu 2023). `covariate`: c = 1 / propensity - 1, the "odds" against being
    observed, with which `dr` is the mean over D of the error where it was observed and the imputed error elsewhere; or
    the "weight" 1 / propensity, with which the correction of `dr` is 0 and it is the mean over D of the imputed error.

    eta is a function of the predictor, and gradients flow through it: a number in its place would leave the gradient
    of `dr` as it is without targeting, for then eta c does not depend on the predictor. So targeting is `dr` with the
    weights nearest to 1 / propensity, in squares, under which the weighted sum of c over O is its sum over D:
    "odds": 1 + c (sum over unobserved pairs of c) / (sum over O of c^2); "weight": c (sum over D of c) / (same).
    Propensities that fit the log too well make c small on O alone, and these weights large.
    On a mini-batch sums over O are sums over its rows.
    """

    base: Imputation = field(default_factory=Learned)
    covariate: Covariate = "odds"

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """The base, ready; the weights must be known on all pairs."""
        check_choice("covariate", self.covariate, get_args(Covariate))
        _check_parts("base", (self.base,), Imputation)
        return _FittedTargeted(
            self.base.init(context, fitted_weights), self.covariate, _Ratios(fitted_weights), context.log.density
        )


@dataclass
class _FittedTargeted(FittedImputation):
    base: FittedImputation
    covariate: Covariate
    ratios: _Ratios
    density: float

    def step(self, view: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        imputed = self.base.errors(view.batch.without_pairs(), view.logits, view.logits[:0], view.errors)[0]
        covariate = self._at(view.batch.users, view.batch.items)
        self.base.step(view, ratio, rate, shift + _fit(covariate, view.errors - imputed - shift) * covariate)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed, imputed_on_pairs = self.base.errors(batch, logits, pair_logits, errors)
        covariate = self._at(batch.users, batch.items)
        eta = _fit(covariate, errors - imputed)
        return imputed + eta * covariate, imputed_on_pairs + eta * self._at(batch.pair_users, batch.pair_items)

    def _at(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        weight = self.ratios.at(users, items) / self.density
        return weight - 1 if self.covariate == "odds" else weight

    def state(self) -> list[Tensor]:
        return self.base.state()

    def facts(self) -> dict[str, Any]:
        return {"base": self.base.facts()}


def _fit(covariate: Tensor, residuals: Tensor) -> Tensor:
    """eta = sum c residual / sum c^2."""
    return regression(covariate[:, None], residuals)[0].to(residuals.dtype)


@dataclass
class MultiplyRobust(Imputation):
    """The combination of several inverse propensities and imputed errors that fits the observed errors best.

    imputed = u'eta with u = (1, 1 / propensity_1, ..., imputed error_1, ...) and eta by least squares of the error on u
    over the observed pairs, `ridge` on all but the constant, relative to each column's variance. With the risk
    "direct" and without ridge it equals `dr` under each of the propensities at once, so one right candidate is enough
    (MR, Li, Dai, Li, Lyu, Dong, Zhou and Wu 2023). It is a weighted mean of errors, with the weights that balance u;
    some may be negative. Gradients flow through the errors, the imputed errors and eta.

    `propensities`: weights that know the ratio of any pair and are learned before training. `imputations`: the k-th is
    trained with the weights of the k-th propensity, in turn; with the method's own if there are no propensities.
    """

    propensities: tuple[Weights, ...] = ()
    imputations: tuple[Imputation, ...] = field(default_factory=lambda: (Learned(), Learned()))
    ridge: float = 1e-5

    def init(self, context: FitContext, fitted_weights: FittedWeights) -> FittedImputation:
        """Every propensity learned, every imputation ready."""
        check_number("ridge", self.ridge, at_least=0)
        _check_parts("propensities", self.propensities, Weights)
        _check_parts("imputations", self.imputations, Imputation)
        all_fitted_weights = [part.init(context) for part in self.propensities]
        for part, begun in zip(self.propensities, all_fitted_weights, strict=True):
            if not never_changes(begun):
                raise ConfigError(
                    f"`propensities` must be learned before training, and {type(part).__name__} is learned on the way. "
                    "Choose such as Logistic() or Propensity()."
                )
        beside = [w for w, _ in zip(cycle(all_fitted_weights or [fitted_weights]), self.imputations, strict=False)]
        fitted_imputations = [part.init(context, w) for part, w in zip(self.imputations, beside, strict=True)]
        return _FittedMultiplyRobust(
            [_Ratios(w) for w in all_fitted_weights],
            fitted_imputations,
            beside if all_fitted_weights else None,
            self.ridge,
        )


@dataclass
class _FittedMultiplyRobust(FittedImputation):
    propensities: list[_Ratios]
    fitted_imputations: list[FittedImputation]
    beside: list[FittedWeights] | None  # the weights that each imputation is trained with; None: those of the method
    ridge: float

    def step(self, view: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        for number, fitted_imputation in enumerate(self.fitted_imputations):
            own = ratio if self.beside is None else self.beside[number].ratio[view.batch.rows]
            fitted_imputation.step(view, own, rate, shift)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed = [
            fitted_imputation.errors(batch, logits, pair_logits, errors)
            for fitted_imputation in self.fitted_imputations
        ]
        ratios = [ratio.at(batch.users, batch.items) for ratio in self.propensities]
        ratios_on_pairs = [ratio.at(batch.pair_users, batch.pair_items) for ratio in self.propensities]
        columns = [*ratios, *(on_rows for on_rows, _ in imputed)]  # each (rows,)
        columns_on_pairs = [*ratios_on_pairs, *(on_pairs for _, on_pairs in imputed)]  # each (pairs,)
        constant, eta = _intercept_and_slopes(columns, errors, self.ridge)
        return _combined(constant, eta, columns, logits), _combined(constant, eta, columns_on_pairs, pair_logits)

    def state(self) -> list[Tensor]:
        return [tensor for fitted_imputation in self.fitted_imputations for tensor in fitted_imputation.state()]

    def facts(self) -> dict[str, Any]:
        return {
            "propensities": [ratio.fitted_weights.facts() for ratio in self.propensities],
            "imputations": [fitted_imputation.facts() for fitted_imputation in self.fitted_imputations],
        }


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


def _check_parts(name: str, parts: Any, kind: type) -> None:
    if not isinstance(parts, tuple | list) or not all(isinstance(part, kind) for part in parts):
        raise ConfigError(f"`{name}` must hold {kind.__name__} parts, several as a tuple, got {parts!r}.")
