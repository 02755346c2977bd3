"""Targeted imputation (TDR): imputed errors moved along a covariate until residuals are orthogonal to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from counterpoise.config import Covariate
from counterpoise.data.batches import Batch
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, check_choice
from counterpoise.imputation.base import Learned
from counterpoise.training.contracts import (
    FitContext,
    FittedImputation,
    FittedWeights,
    Imputation,
    LogErrors,
    StepInputs,
)
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
    Where batches are smaller than the log, eta is that of the whole log at the start of the epoch, and so are the sums
    that scale its gradient: a coefficient of the rows of a small batch alone would fit their noise.
    """

    base: Imputation = field(default_factory=Learned)
    covariate: Covariate = "odds"

    def init(self, context: FitContext, weights: FittedWeights) -> FittedImputation:
        """The base, ready; the weights must be known on all pairs."""
        check_choice("covariate", self.covariate, get_args(Covariate))
        check_parts("base", (self.base,), Imputation)
        return _FittedTargeted(self.base.init(context, weights), self.covariate, weights, context.log)


class _FittedTargeted(FittedImputation):
    def __init__(self, base: FittedImputation, covariate: Covariate, weights: FittedWeights, log: FeedbackLog) -> None:
        self.base, self.covariate, self.weights = base, covariate, weights
        self.density, self.rows = log.density, len(log)
        self.sums: _Sums
        self._whole_step = False

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        self.base.refresh(on_log)
        if self._whole_step:  # where the batch is the log, its own sums are those of the log
            return
        batch, logits, errors = on_log()
        imputed = self.base.errors(batch, logits, logits[:0], errors)[0]
        self._fit_to_log(*self._at(batch.users, batch.items), errors - imputed)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        batch = inputs.batch
        self._whole_step = len(batch.rows) == self.rows
        covariate = self._at(batch.users, batch.items)[1]
        if self._whole_step:
            imputed = self.base.errors(batch.without_pairs(), inputs.logits, inputs.logits[:0], inputs.errors)[0]
            eta = _fit(covariate, inputs.errors - imputed - shift)
        else:
            eta = self.sums.eta
        self.base.step(inputs, ratio, rate, shift + eta * covariate)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed, imputed_on_pairs = self.base.errors(batch, logits, pair_logits, errors)
        weight, covariate = self._at(batch.users, batch.items)
        covariate_on_pairs = self._at(batch.pair_users, batch.pair_items)[1]
        if len(batch.rows) == self.rows:
            eta = self._fit_to_log(weight, covariate, errors - imputed)
            return imputed + eta * covariate, imputed_on_pairs + eta * covariate_on_pairs
        eta, square, weighted = self.sums
        estimate = (covariate * (errors - imputed)).mean() / square
        change = estimate - estimate.detach()  # 0, with a gradient whose mean over batches is that of eta
        # In `dr` c on rows is weighted: c w / w in the gradient, with its mean over the log above, not the batch's.
        on_rows = eta * covariate + change * (weighted / weight)
        return imputed + on_rows, imputed_on_pairs + (eta + change) * covariate_on_pairs

    def _fit_to_log(self, weight: Tensor, covariate: Tensor, residuals: Tensor) -> Tensor:
        """eta from all rows; it is kept for batches of fewer, with what scales its gradient there."""
        eta, square = _fit(covariate, residuals), covariate.square().mean().clamp(min=ZERO_MEAN_SQUARE)
        self.sums = _Sums(eta.detach(), square, (weight * covariate).mean())
        return eta

    def _at(self, users: Tensor | None, items: Tensor | None) -> tuple[Tensor, Tensor]:
        """(1 / propensity, the covariate) of each pair."""
        weight = self.weights.at(users, items).detach() / self.density
        return weight, weight - 1 if self.covariate == "odds" else weight

    def state(self) -> list[Tensor]:
        return self.base.state()

    def facts(self) -> dict[str, Any]:
        return {"base": self.base.facts()}


class _Sums(NamedTuple):
    """Over the rows of the log."""

    eta: Tensor
    square: Tensor  # the mean of c^2
    weighted: Tensor  # the mean of c / propensity


def _fit(covariate: Tensor, residuals: Tensor) -> Tensor:
    """eta = sum c residual / sum c^2."""
    return regression(covariate[:, None], residuals)[0].to(residuals.dtype)


def check_parts(name: str, parts: Any, kind: type) -> None:
    """Raise `ConfigError` unless all `parts` are of this kind."""
    if not isinstance(parts, tuple | list) or not all(isinstance(part, kind) for part in parts):
        raise ConfigError(f"`{name}` must hold {kind.__name__} parts, several as a tuple, got {parts!r}.")
