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


class LogRegression(NamedTuple):
    """The regression of a target on columns over the rows of a log, to be used on batches of fewer rows.

    A regression on the rows of a small batch fits their noise. Here the coefficients eta are those of the log, and
    their gradient is (X'X / n)^-1 times that of the batch's mean of x (target - x'eta): averaged over batches, that of
    the least squares of the whole log.
    """

    centre: Tensor  # (columns,)
    scale: Tensor  # (columns,) 0 for a column of zeros
    eta: Tensor  # (columns,) of scaled columns; one more, the first, for an intercept
    inverse: Tensor  # of their Gram matrix, ridge included
    weighted: Tensor  # means over the log of each, weighted

    @classmethod
    def fit(
        cls, columns: Tensor, target: Tensor, weight: Tensor, ridge: float = 0.0, *, intercept: bool = False
    ) -> LogRegression:
        """Fit to all rows of the log, without a ridge on the intercept. `weight`: of each row in the risk."""
        columns, target, weight = (values.detach().double() for values in (columns, target, weight))
        centre = columns.mean(0) if intercept else torch.zeros_like(columns[0])
        squares = (columns - centre).square().mean(0)
        scale = torch.where(squares > ZERO_MEAN_SQUARE, squares, math.inf).rsqrt()
        design = _design(columns, centre, scale, intercept)
        penalty = torch.full_like(design[0], ridge + JITTER)
        penalty[: int(intercept)] = 0.0
        inverse = torch.linalg.inv(design.T @ design / len(target) + torch.diag(penalty))
        return cls(centre, scale, inverse @ (design.T @ target) / len(target), inverse, weight @ design / len(target))

    def on_batch(self, columns: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(fitted values of the rows of a batch, the coefficients); both with the gradient of the regression.

        In `dr` fitted values of rows count by their weights, and the gradient of eta by the weighted mean of x. It is
        that of the log: the batch's own would go together with the noise of its coefficients.
        """
        design = self.design(columns)
        estimate = self.inverse @ (design * (target.double() - design @ self.eta)[:, None]).mean(0)
        change = estimate - estimate.detach()  # 0, with a gradient
        fitted = design @ self.eta + (self.weighted @ change) / weight.double()
        return fitted.to(target.dtype), self.eta + change

    def at(self, columns: Tensor, eta: Tensor) -> Tensor:
        """The fitted value of each pair."""
        return (self.design(columns) @ eta).to(columns.dtype)

    def design(self, columns: Tensor) -> Tensor:
        return _design(columns.double(), self.centre, self.scale, len(self.eta) > len(self.centre))


def _design(columns: Tensor, centre: Tensor, scale: Tensor, intercept: bool) -> Tensor:
    scaled = (columns - centre) * scale
    return torch.cat([torch.ones_like(scaled[:, :1]), scaled], 1) if intercept else scaled


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
    Where batches are smaller than the log, eta is that of the whole log at the start of the epoch (`LogRegression`).
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
        self.on_log: LogRegression
        self._whole_step = False

    def refresh(self, on_log: Callable[[], LogErrors]) -> None:
        self.base.refresh(on_log)
        if not self._whole_step:  # where the batch is the log, it keeps the coefficient up to date
            batch, logits, errors = on_log()
            self.errors(batch, logits, logits[:0], errors)

    def step(self, inputs: StepInputs, ratio: Tensor, rate: Rate, shift: Tensor | float = 0.0) -> None:
        batch = inputs.batch
        self._whole_step = len(batch.rows) == self.rows
        covariate = self._at(batch.users, batch.items)[1]
        if self._whole_step:
            imputed = self.base.errors(batch.without_pairs(), inputs.logits, inputs.logits[:0], inputs.errors)[0]
            moved = _fit(covariate, inputs.errors - imputed - shift) * covariate
        else:
            moved = self.on_log.at(covariate[:, None], self.on_log.eta)
        self.base.step(inputs, ratio, rate, shift + moved)

    def errors(self, batch: Batch, logits: Tensor, pair_logits: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        imputed, imputed_on_pairs = self.base.errors(batch, logits, pair_logits, errors)
        weight, covariate = self._at(batch.users, batch.items)
        covariate_on_pairs = self._at(batch.pair_users, batch.pair_items)[1]
        if len(batch.rows) == self.rows:
            self.on_log = LogRegression.fit(covariate[:, None], errors - imputed, weight)
            eta = _fit(covariate, errors - imputed)
            return imputed + eta * covariate, imputed_on_pairs + eta * covariate_on_pairs
        moved, eta = self.on_log.on_batch(covariate[:, None], errors - imputed, weight)
        return imputed + moved, imputed_on_pairs + self.on_log.at(covariate_on_pairs[:, None], eta)

    def _at(self, users: Tensor | None, items: Tensor | None) -> tuple[Tensor, Tensor]:
        """(1 / propensity, the covariate) of each pair."""
        if users is not None and len(users) == 0:  # some weights cannot be asked for those of no pair
            return self.weights.ratio[:0], self.weights.ratio[:0]
        weight = self.weights.at(users, items).detach() / self.density
        return weight, weight - 1 if self.covariate == "odds" else weight

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
