"""The paper's idea: weights under which the observed pairs balance against all pairs D, in functions of the pair."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.diagnostics import held_out_imbalance
from counterpoise.balance.features import Source, observed_pairs, pair_features
from counterpoise.balance.functions import FittedFunctions, FittedKernels, Functions, KernelFunctions, check_penalty
from counterpoise.balance.population import Pairs
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import Prior, Solver
from counterpoise.errors import ConfigError, check_choice, check_flag, check_number
from counterpoise.models.base import Backbone
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.out_of_core.balancing import balance_shards
from counterpoise.out_of_core.log import StreamedLog, way_out
from counterpoise.training.context import FitContext, fit_alone, mean_error
from counterpoise.weights.base import EpochInputs, FittedWeights, NaiveBayes, Uniform, Weights
from counterpoise.weights.gradient import WeightModel
from counterpoise.weights.propensity import fit_exposure_model

# Features learned on the way: what a first, small model says of users and items.

Tables = dict[str, tuple[Tensor, Tensor]]  # source -> (users, items)


def first_fits(context: FitContext, sources: Sequence[Source], embedder: Backbone) -> Tables:
    """Tables for "embeddings" (a model of the labels) and "exposure" (of what was observed), as far as asked for."""
    tables = {}
    if "embeddings" in sources:
        tables["embeddings"] = fit_alone(context.brief(), deepcopy(embedder), mean_error).features()
    if "exposure" in sources:
        tables["exposure"] = fit_exposure_model(context, deepcopy(embedder)).features()
    return tables


ROWS_A_CANDIDATE = 50  # rows of the log that a regression on candidate kernels looks at, for each candidate


@dataclass
class Balancing(Weights):
    """w = argmin KL(w || prior) + strength x sum_j [|tau_j(w)| - tolerance]+ over all weights on the log that sum to 1.

    tau_j = weighted mean over the log minus mean over D of function j. `tolerance` (the paper's C) and `strength`
    (gamma) are in population standard deviations of each function (see `FittedFunctions.balance`).
    `features`: what the functions are functions of, one or more of "embeddings" (of a first fit of `embedder` to the
    labels, the paper's choice), "exposure" (the same, fitted to what was observed), "side" (those of the log) and
    "activity" (how much users rate and items are rated). Learned features are cross-fitted: the log is dealt into
    `folds`, and each is balanced in features that were learned from the others. Features that have seen the rows they
    describe find a selection even where there is none.
    `solver`: "dual" solves over the whole log, exactly; rules that look at the errors choose again every `refresh`
    epochs. "gradient" is the paper's Algorithm 1: a weight model of `embedder`'s kind, and a step for each batch.
    It has no use for `folds` and `refresh`: its features are learned from the whole log, as in the paper.
    `moving`: from the first refresh on, "embeddings" are those of the predictor itself as it learns ("dual" alone).
    """

    functions: Functions = field(default_factory=KernelFunctions)
    tolerance: float = 0.0
    strength: float | None = None
    prior: Prior = "uniform"
    features: tuple[Source, ...] | Source = "exposure"
    embedder: Backbone = field(default_factory=lambda: MatrixFactorization(dim=4))
    folds: int = 2
    solver: Solver = "dual"
    refresh: int = 30
    moving: bool = False

    def init(self, context: FitContext) -> FittedWeights:
        """Features first; the weights come with the first epoch."""
        self._check()
        if isinstance(context.log, StreamedLog):
            return _OverShards(self, context, context.log)
        prior = (NaiveBayes() if self.prior == "naive-bayes" else Uniform()).init(context)
        if self.solver == "gradient":
            pairs = self.pairs(context, first_fits(context, self.sources, self.embedder))
            model = deepcopy(self.embedder)
            return WeightModel(context, pairs, prior, self.functions, self.tolerance, self.strength, model)
        return _Solved(self, context, prior)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The features, one or more."""
        return (self.features,) if isinstance(self.features, str) else tuple(self.features)

    def pairs(self, context: FitContext, learned: Tables) -> Pairs:
        """All pairs with their features."""
        embeddings, exposure = learned.get("embeddings"), learned.get("exposure")
        return pair_features(context.log, self.sources, embeddings, exposure, context.device)

    def _check(self) -> None:
        check_penalty(self.tolerance, self.strength)
        for source in self.sources:
            check_choice("features", source, get_args(Source))
        check_choice("prior", self.prior, get_args(Prior))
        check_choice("solver", self.solver, get_args(Solver))
        check_number("refresh", self.refresh, at_least=1, integer=True)
        check_number("folds", self.folds, at_least=1, integer=True, advice="1 learns features on the rows themselves.")
        check_flag("moving", self.moving)
        if self.moving and "embeddings" not in self.sources:
            raise ConfigError(f"`moving` needs 'embeddings' among the `features`, got {self.features!r}.")
        if self.solver == "gradient" and (self.moving or self.strength == float("inf")):
            raise ConfigError("`solver` must be 'dual' for `moving` features and for an infinite `strength`.")
        if not isinstance(self.embedder, Backbone):
            raise ConfigError(f"`embedder` must be a Backbone, got {self.embedder!r}.")
        if not hasattr(self.functions, "fit"):
            raise ConfigError(f"`functions` must be Moments, KernelFunctions or their like, got {self.functions!r}.")


class _Solved(FittedWeights):
    """Exact weights over the whole log, fold by fold."""

    steady = True

    def __init__(self, part: Balancing, context: FitContext, prior: FittedWeights) -> None:
        self.part, self.context, self.prior = part, context, prior
        self.ratio, self.solved_at = prior.ratio.clone(), 0
        folds = part.folds if {"embeddings", "exposure"} & set(part.sources) else 1
        self.folds = [_Fold(part, context, prior, rows, others) for rows, others in context.deal(folds)]

    def refresh(self, epoch: int, current: EpochInputs) -> None:
        part, first = self.part, self.solved_at == 0
        changing = part.functions.adaptive or part.moving
        if not first and (not changing or epoch - self.solved_at < part.refresh):
            return
        errors = current.residuals() if part.functions.adaptive else None
        for fold in self.folds:
            if part.moving and not first:
                fold.move(current.features())
            self.ratio[fold.rows] = fold.solve(None if errors is None else errors[fold.rows], self.ratio[fold.rows])
        self.solved_at = epoch

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """The weights are a function, exp(-l'h(x) - offset) x prior, so any pair has one: the mean over folds."""
        prior = self.prior.at(users, items, labels)
        if self.solved_at == 0:
            return prior
        if users is None or items is None:
            n_users, n_items = self.context.log.shape
            code = torch.arange(n_users * n_items, device=self.ratio.device)
            user, item = code // n_items, code % n_items
        else:
            user, item = users.long(), items.long()
        tilts = torch.stack([fold.tilt(user, item) for fold in self.folds])
        return tilts.mean(0).to(self.ratio) * prior

    def state(self) -> list[Tensor]:
        return [self.ratio]

    def facts(self) -> dict[str, Any]:
        results = [fold.result for fold in self.folds]
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
            "held_out_before": _mean([fold.held_out(self.prior.ratio[fold.rows]) for fold in self.folds]),
            "held_out_after": _mean([fold.held_out(self.ratio[fold.rows]) for fold in self.folds]),
            "balanced": [fold.certificate() for fold in self.folds],
        }


class _OverShards(FittedWeights):
    """Exact weights over a log in shards, in features that are not learned."""

    def __init__(self, part: Balancing, context: FitContext, log: StreamedLog) -> None:
        if part.solver != "dual" or part.prior != "uniform" or not set(part.sources) <= {"activity", "side"}:
            raise ConfigError(
                "balancing a log that is streamed needs features='activity' (--set features=activity), solver='dual' "
                f"and prior='uniform'. Or {way_out(log.engine)} to read the log into memory."
            )
        prices = {"tolerance": part.tolerance, "strength": part.strength}
        place = {"engine": log.engine, "memory": log.memory, "seed": context.generator}
        self.result = balance_shards(log.shards, part.pairs(context, {}), part.functions, **prices, **place)  # type: ignore[arg-type]
        parts = [torch.from_numpy(len(log) * weights).float() for weights in self.result.weights]
        self.ratio = torch.cat(parts).to(context.device)
        self.result.weights.remove()

    def facts(self) -> dict[str, Any]:
        result = self.result
        return {
            "solver": "dual",
            "folds": 1,
            "functions": len(result.dual),
            "relaxed": int(result.relaxed.sum()),
            "largest_violation_sd": result.max_violation,
            "worst_case_bias": result.worst_case_bias,
            "gap": result.gap,
            "status": result.status,
            "held_out_before": None,
            "held_out_after": None,
        }


class _Fold:
    """Some rows of the log, in features that were learned without them."""

    fitted: FittedFunctions
    result: BalanceResult

    def __init__(
        self, part: Balancing, context: FitContext, prior: FittedWeights, rows: Tensor, others: FitContext
    ) -> None:
        self.part, self.rows = part, rows
        self.base = None if part.prior == "uniform" else prior.ratio[rows]
        self.base_mean = float(prior.ratio[rows].mean())
        self.context, self.others = context.on(context.log.take(rows.cpu().numpy())), others
        self.tables = first_fits(others, part.sources, part.embedder)
        self._place()

    def _place(self) -> None:
        """The rows among all pairs, by features that come from the other rows."""
        self.pairs = self.part.pairs(self.others, self.tables)
        self.observed = observed_pairs(self.context.log, self.pairs)

    def move(self, embeddings: tuple[Tensor, Tensor]) -> None:
        """Take the predictor's own embeddings for features."""
        self.tables["embeddings"] = embeddings
        self._place()

    def solve(self, errors: Tensor | None, ratio: Tensor) -> Tensor:
        """Choose functions and balance them: the ratio of each row, 1 on average."""
        part = self.part
        self.fitted = self._choose(errors, ratio)
        self.result = self.fitted.balance(self.observed, part.tolerance, part.strength, base_weights=self.base)
        solved: Tensor = (len(ratio) * self.result.weights).to(ratio)
        own = solved if self.base is None else solved * self.base_mean / self.base
        self.largest = float(own.max().log())
        return solved

    def _choose(self, errors: Tensor | None, ratio: Tensor) -> FittedFunctions:
        functions, generator, observed = self.part.functions, self.context.generator, self.observed
        if errors is None:
            return functions.fit(self.pairs, observed, None, self.base, generator)
        most = ROWS_A_CANDIDATE * getattr(functions, "n_candidates", 1)
        if observed.n_rows > most:
            drawn = torch.randint(observed.n_rows, (most,), generator=generator).to(errors.device)
            observed, errors, ratio = observed.take(drawn), errors[drawn], ratio[drawn]
        return functions.fit(self.pairs, observed, errors, ratio, generator)

    def tilt(self, users: Tensor, items: Tensor) -> Tensor:
        """exp(-l'h(x) - offset): how much more than by its prior a pair counts.

        At most as much as any of the rows: far from them the exponent knows no bounds.
        """
        dual = torch.from_numpy(self.result.dual).to(users.device)
        rows = self.fitted.rows(self.pairs.at(users, items))
        scores = torch.cat([values.to(dual) @ dual for _, values in rows.blocks()])
        tilt: Tensor = torch.exp((-scores - self.result.offset).clamp(max=self.largest)) / self.base_mean
        return tilt

    def certificate(self) -> dict[str, Any]:
        """JSON-able, function by function: imbalance before and after, and the price of a standard deviation of it."""
        result, names = self.result, self.fitted.names
        return {
            "names": list(names),
            "before_sd": (result.imbalance_before / result.scale).tolist(),
            "after_sd": (result.imbalance / result.scale).tolist(),
            "price": (result.dual * result.scale).tolist(),
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
