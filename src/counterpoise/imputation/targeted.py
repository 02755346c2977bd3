"""Targeted imputation (TDR): imputed errors moved along a covariate until residuals are orthogonal to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.config import Covariate
from counterpoise.data.batches import Batch
from counterpoise.errors import ConfigError, check_choice
from counterpoise.imputation.base import Learned
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, Imputation, StepInputs
from counterpoise.training.optimizer import Rate

ZERO_MEAN_SQUARE = 1e-12  # the mean square up to which a column of a regression counts as 0
JITTER = 1e-12  # the ridge that is always there, so that columns may repeat one another


def regression(columns: Tensor, target: Tensor, ridge: float = 0.0) -> Tensor:
    """The coefficients b that minimise mean over rows of (target - columns b)^2 + ridge sum_j b_j^2 mean(column_j^2).

    In float64. A column of zeros gets the coefficient 0. Gradients reach both arguments.
    """
    columns, target = columns.double(), target.double()
    squares = columns.square().mean(dim=0)
    scale = torch.where(squares > ZERO_MEAN_SQUARE, squares, math.inf).rsqrt()  # (columns,) 0 for a column of zeros
    scaled = columns * scale
    gram = scaled.T @ scaled / len(target)
    steady = gram + (ridge + JITTER) * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    solution: Tensor = torch.linalg.solve(steady, scaled.T @ target / len(target))
    return scale * solution


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

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The base, ready; the weights must be known on all pairs."""
        check_choice("covariate", self.covariate, get_args(Covariate))
        check_parts("base", (self.base,), Imputation)
        return _FittedTargeted(self.base.init(context, weights), self.covariate, weights, context.log.density)


@dataclass
class _FittedTargeted(FittedImputation):
    base: FittedImputation
    covariate: Covariate
    weights: FittedWeights
    density: float

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        batch = inputs.batch
        imputed = self.base.errors(batch.without_pairs(), inputs.logits, inputs.logits[:0], inputs.errors)[0]
        covariate = self._at(batch.users, batch.items)
        eta = _fit(covariate, inputs.errors - imputed - shift)
        self.base.step(inputs, ratio, rate, shift + eta * covariate)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed, imputed_on_pairs = self.base.errors(batch, logits, pair_logits, errors)
        covariate = self._at(batch.users, batch.items)
        eta = _fit(covariate, errors - imputed)
        return imputed + eta * covariate, imputed_on_pairs + eta * self._at(batch.pair_users, batch.pair_items)

    def _at(self, users: Tensor | None, items: Tensor | None) -> Tensor:
        weight = self.weights.at(users, items).detach() / self.density
        return weight - 1 if self.covariate == "odds" else weight

    def state(self) -> list[Tensor]:
        return self.base.state()

    def facts(self) -> dict[str, Any]:
        return {"base": self.base.facts()}


def _fit(covariate: Tensor, residuals: Tensor) -> Tensor:
    """eta = sum c residual / sum c^2."""
    return regression(covariate[:, None], residuals)[0].to(residuals.dtype)


def check_parts(name: str, parts: Any, kind: type) -> None:
    """Raise `ConfigError` unless all `parts` are of this kind."""
    if not isinstance(parts, tuple | list) or not all(isinstance(part, kind) for part in parts):
        raise ConfigError(f"`{name}` must hold {kind.__name__} parts, several as a tuple, got {parts!r}.")
