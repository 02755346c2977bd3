"""The paper's weights: the observed pairs balance against all pairs D, in functions of the pair's features."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.diagnostics import held_out_imbalance, warn_of_collapse
from counterpoise.balance.features import Source, observed_pairs, pair_features
from counterpoise.balance.functions import FittedFunctions, FittedKernels, Functions, KernelFunctions, check_penalty
from counterpoise.balance.population import Pairs
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import Prior, Solver, Units
from counterpoise.errors import ConfigError, check_choice, check_number
from counterpoise.models.base import Backbone
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights.base import NaiveBayes, Uniform

COLLAPSE_ADVICE = "Lower `strength` or raise `tolerance`."
ROWS_PER_CANDIDATE = 50  # rows of the log, for each candidate kernel, that the adaptive rule's regression uses


@dataclass
class Balancing(Weights):
    """w = argmin KL(w || prior) + strength x sum_j [|tau_j(w)| - tolerance]+ over all weights on the log that sum to 1.

    tau_j = weighted mean over the log minus mean over D of function j. `tolerance` (the paper's C) and `strength`
    (gamma) are in population standard deviations of each function, or in its own units with `units="raw"`, which are
    the paper's (see `FittedFunctions.balance`).
    `features`: what the functions are functions of, one or more of "embeddings" (of a first fit of `embedder` to the
    labels, the paper's choice), "exposure" (the same, fitted to what was observed), "side" (those of the log) and
    "activity" (how much users rate and items are rated). Learned features are cross-fitted: each of `folds` is balanced
    in features that were learned from the other rows. Features that have seen the rows they describe find a selection
    even where there is none.
    `solver`: "dual" solves over the whole log, exactly; rules that look at the errors choose again every `refresh`
    epochs. "gradient" is the paper's Algorithm 1: a weight model of `embedder`'s kind, and a step for each batch.
    It has no use for `folds` and `refresh`: its features are learned from the whole log, as in the paper. Its default
    tolerance is the standard error of a batch's imbalance; that of the exact solution, which has no batches, is 0.
    """

    functions: Functions = field(default_factory=KernelFunctions)
    tolerance: float | None = None
    strength: float | None = None
    prior: Prior = "uniform"
    features: tuple[Source, ...] | Source = "exposure"
    embedder: Backbone = field(default_factory=lambda: MatrixFactorization(dim=4))
    folds: int = 2  # the fewest that cross-fit: AUC .6189, 4 folds .6188 (benchmarks/constants.py)
    solver: Solver = "dual"
    refresh: int = 30  # 10 to 150 change AUC by 0.0001 (benchmarks/constants.py)
    units: Units = "sd"

    def init(self, context: FitContext) -> FittedWeights:
        self.check()
        prior = (NaiveBayes() if self.prior == "naive-bayes" else Uniform()).init(context)
        if self.solver == "gradient":
            from counterpoise.weights.gradient import WeightModel

            pairs, model = self.pairs(context), deepcopy(self.embedder)
            penalty = self.tolerance, self.strength, self.units
            return WeightModel(context, pairs, prior, self.functions, *penalty, model)
        return BalancedWeights(self, context, prior)

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.features,) if isinstance(self.features, str) else tuple(self.features)

    def pairs(self, context: FitContext) -> Pairs:
        """All pairs of D with their features, of which "embeddings" and "exposure" are learned from the log first."""
        embeddings = exposure = None
        if "embeddings" in self.sources:
            embeddings = context.fit_labels(deepcopy(self.embedder)).features()
        if "exposure" in self.sources:
            exposure = context.fit_exposure(deepcopy(self.embedder)).features()
        return pair_features(context.log, self.sources, embeddings, exposure, context.device)

    def check(self) -> None:
        """Raise `ConfigError` for the first setting that breaks its rule."""
        check_penalty(0.0 if self.tolerance is None else self.tolerance, self.strength, self.units)
        for source in self.sources:
            check_choice("features", source, get_args(Source))
        check_choice("prior", self.prior, get_args(Prior))
        check_choice("solver", self.solver, get_args(Solver))
        check_number("refresh", self.refresh, at_least=1, integer=True)
        check_number("folds", self.folds, at_least=1, integer=True, advice="1 learns features on the rows themselves.")
        if self.solver == "gradient" and self.strength == float("inf"):
            raise ConfigError("`solver` must be 'dual' for an infinite `strength`.")
        if not isinstance(self.embedder, Backbone):
            raise ConfigError(f"`embedder` must be a Backbone, got {self.embedder!r}.")
        if not hasattr(self.functions, "fit"):
            raise ConfigError(f"`functions` must be Moments, KernelFunctions or their like, got {self.functions!r}.")


class BalancedWeights(FittedWeights):
    """Exact weights over the whole log, fold by fold."""

    changes: ClassVar[bool] = True

    def __init__(self, part: Balancing, context: FitContext, prior: FittedWeights) -> None:
        self.part, self.context, self.prior = part, context, prior
        self.ratio, self.solved_at = prior.ratio.clone(), 0
        folds = part.folds if {"embeddings", "exposure"} & set(part.sources) else 1
        self.folds = [_Fold(part, context, prior, rows, others) for rows, others in context.k_fold(folds)]

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> None:
        adaptive = self.part.functions.adaptive
        if self.solved_at and (not adaptive or epoch - self.solved_at < self.part.refresh):
            return
        errors = residuals() if adaptive else None
        for fold in self.folds:
            self.ratio[fold.rows] = fold.solve(None if errors is None else errors[fold.rows], self.ratio[fold.rows])
        self.solved_at = epoch

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """exp(-l'h(x) - offset) x prior, the mean over folds: the weights are a function of the pair."""
        prior = self.prior.at(users, items, labels)
        if self.solved_at == 0:
            return prior
        if users is None or items is None:
            n_users, n_items = self.context.log.shape
            code = torch.arange(n_users * n_items, device=self.ratio.device)
            user, item = code // n_items, code % n_items
        else:
            user, item = users.long(), items.long()
        factors = torch.stack([fold.factor(user, item) for fold in self.folds])
        return factors.mean(0).to(self.ratio) * prior

    def state(self) -> list[Tensor]:
        return [self.ratio]

    def facts(self) -> dict[str, Any]:
        return solution_facts([fold.result for fold in self.folds]) | {
            "held_out_before": _mean([fold.held_out(self.prior.ratio[fold.rows]) for fold in self.folds]),
            "held_out_after": _mean([fold.held_out(self.ratio[fold.rows]) for fold in self.folds]),
            "balanced": [fold.certificate() for fold in self.folds],
            "warning": warn_of_collapse(self.ratio.cpu(), COLLAPSE_ADVICE),
        }


def solution_facts(results: list[BalanceResult]) -> dict[str, Any]:
    """JSON-able: the certificates of the solutions of all folds, in one table."""
    biases = [result.worst_case_bias for result in results if result.worst_case_bias is not None]
    return {
        "solver": "dual",
        "folds": len(results),
        "functions": max(len(result.dual) for result in results),
        "relaxed": int(sum(result.relaxed.sum() for result in results)),
        "largest_violation_sd": max(result.max_violation for result in results),
        "worst_case_bias": max(biases) if biases else None,
        "gap": max(result.gap for result in results),
        "status": "solved" if all(result.status == "solved" for result in results) else "stopped early",
    }


class _Fold:
    """Some rows of the log, in features that were learned without them."""

    fitted: FittedFunctions
    result: BalanceResult

    def __init__(
        self, part: Balancing, context: FitContext, prior: FittedWeights, rows: Tensor, others: FitContext
    ) -> None:
        self.part, self.rows, self.generator = part, rows, context.generator
        self.base = None if part.prior == "uniform" else prior.ratio[rows]
        self.base_mean = float(prior.ratio[rows].mean())
        self.pairs = part.pairs(others)
        self.observed = observed_pairs(context.log.take(rows.cpu().numpy()), self.pairs)

    def solve(self, errors: Tensor | None, ratio: Tensor) -> Tensor:
        """Choose functions and balance them: the ratio of each row, 1 on average."""
        self.fitted, penalty = self._choose(errors, ratio), (self.part.tolerance or 0.0, self.part.strength)
        self.result = self.fitted.balance(self.observed, *penalty, units=self.part.units, base_weights=self.base)
        solved: Tensor = (len(ratio) * self.result.weights).to(ratio)
        own = solved if self.base is None else solved * self.base_mean / self.base
        self.max_log_factor = float(own.max().log())
        return solved

    def _choose(self, errors: Tensor | None, ratio: Tensor) -> FittedFunctions:
        functions, generator, observed = self.part.functions, self.generator, self.observed
        if errors is None:
            return functions.fit(self.pairs, observed, None, self.base, generator)
        most = ROWS_PER_CANDIDATE * getattr(functions, "n_candidates", 1)
        if observed.n_rows > most:
            drawn = torch.randint(observed.n_rows, (most,), generator=generator).to(errors.device)
            observed, errors, ratio = observed.take(drawn), errors[drawn], ratio[drawn]
        return functions.fit(self.pairs, observed, errors, ratio, generator)

    def factor(self, users: Tensor, items: Tensor) -> Tensor:
        """exp(-l'h(x) - offset): the weight of a pair over its prior.

        At most that of any of the rows: far from them the exponent has no bound.
        """
        dual = torch.from_numpy(self.result.dual).to(users.device)
        rows = self.fitted.rows(self.pairs.at(users, items))
        scores = torch.cat([values.to(dual) @ dual for _, values in rows.blocks()])
        factor: Tensor = torch.exp((-scores - self.result.offset).clamp(max=self.max_log_factor)) / self.base_mean
        return factor

    def certificate(self) -> dict[str, Any]:
        """JSON-able, function by function: imbalance before and after, and its dual value in standard deviations."""
        result = self.result
        return {
            "names": list(self.fitted.names),
            "before_sd": (result.imbalance_before / result.scale).tolist(),
            "after_sd": (result.imbalance / result.scale).tolist(),
            "dual_value": (result.dual * result.scale).tolist(),
            "relaxed": result.relaxed.tolist(),
        }

    def held_out(self, ratio: Tensor) -> dict[str, float] | None:
        """Balance on kernel functions that were not balanced."""
        centres = self.fitted.centres if isinstance(self.fitted, FittedKernels) else None
        return held_out_imbalance(self.observed, ratio, self.pairs, balanced_at=centres)


def _mean(folds: list[dict[str, float] | None]) -> dict[str, float] | None:
    """The mean of every figure over the folds that have one."""
    known = [fold for fold in folds if fold is not None]
    return {name: float(np.mean([fold[name] for fold in known])) for name in known[0]} if known else None
