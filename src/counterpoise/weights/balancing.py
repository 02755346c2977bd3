"""The paper's weights: the observed pairs balance against all pairs D, in functions of the pair's features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.diagnostics import held_out_imbalances, warn_of_collapse
from counterpoise.balance.features import ConstantFeatures, Source, observed_pairs, pair_features
from counterpoise.balance.functions import FittedFunctions, FittedKernels, Functions, KernelFunctions, check_penalty
from counterpoise.balance.path import Path, balance_keeping
from counterpoise.balance.population import Pairs
from counterpoise.balance.solver import BalanceResult
from counterpoise.config import Prior, Solver, StrengthName, Units
from counterpoise.errors import ConfigError, ConvergenceWarning, check_choice, check_flag, check_number, did_you_mean
from counterpoise.models.base import Backbone
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.probability import shrink_by_error
from counterpoise.training.contracts import FitContext, FittedWeights, InterceptShift, Weights
from counterpoise.weights.base import NaiveBayes, Uniform

COLLAPSE_ADVICE = "Lower `strength` or raise `tolerance`."
ROWS_PER_CANDIDATE = 50  # rows of the log, for each candidate kernel, that the adaptive rule's regression uses
MAX_VARIANCE_COST = 0.0005  # log loss that weights may cost in variance (`share_to_keep`): at 0.001 three of four
# methods lose 0.0003 of log loss where items are popular for no reason (benchmarks/kinds.py, seeds 0 to 15)
NEWTON_STEPS = 30  # for an intercept: one number


@dataclass
class Balancing(Weights):
    """w = argmin KL(w || prior) + strength x sum_j [|tau_j(w)| - tolerance]+ over all weights on the log that sum to 1.

    tau_j = weighted mean over the log minus population mean of function j. `tolerance` (the paper's C) and `strength`
    (gamma) are in population standard deviations of each function, or in its own units with `units="raw"`, which are
    the paper's (see `FittedFunctions.balance`).
    `strength`: a number; "exact", which balances all that can be balanced, for estimates; or "auto", for training: the
    largest that keeps a share `kept` of the effective sample (`share_to_keep`), where

    - the population is that of the log's users, each as often as in the log, with all items. Which items a user chose
      biases what is learned; how often users rate does not, and balancing it would cost sample;
    - imbalance that a random sample has by chance is left (`chance_tolerance`), unless a `tolerance` is given;
    - with `move_intercept`, the intercept is moved after training to where exact weights, with D as population, put
      it: a mean over D needs the small bias of exact weights, what is learned of each user and item the small variance
      of soft ones.

    With other strengths the population is D, the default of `tolerance` 0, and the intercept is not moved.
    `features`: what the functions are functions of, one or more of "embeddings" (of a first fit of `embedder` to the
    labels, the paper's choice), "exposure" (the same, fitted to what was observed), "side" (those of the log) and
    "activity" (how much users rate and items are rated). Learned features are cross-fitted: each of `folds` is balanced
    in features that were learned from the other rows. Features that have seen the rows they describe find a selection
    even where there is none.
    `solver`: "dual" solves over the whole log, exactly; rules that look at the errors choose again every `refresh`
    epochs, and "auto" follows a path again for them. "gradient" is the paper's Algorithm 1: a weight model of
    `embedder`'s kind, and a step for each batch. It has no use for `folds`, `refresh`, `kept` and `move_intercept`: its
    features are learned from the whole log, as in the paper. Its default tolerance is the standard error of a batch's
    imbalance.
    `optional`: where no feature varies, or the log is streamed and features cannot be learned out of sample, count all
    rows as by `prior` instead of raising an error.
    """

    functions: Functions = field(default_factory=KernelFunctions)
    tolerance: float | None = None
    strength: float | str = "auto"
    prior: Prior = "uniform"
    features: tuple[Source, ...] | Source = "exposure"
    embedder: Backbone = field(default_factory=lambda: MatrixFactorization(dim=4))
    folds: int = 2  # the fewest that cross-fit: AUC .6189, 4 folds .6188 (benchmarks/constants.py)
    solver: Solver = "dual"
    refresh: int = 30  # 10 to 150 change AUC by 0.0001 (benchmarks/constants.py)
    units: Units = "sd"
    kept: float | None = None
    move_intercept: bool = True
    optional: bool = False

    def init(self, context: FitContext) -> FittedWeights:
        self.check()
        prior = (NaiveBayes() if self.prior == "naive-bayes" else Uniform()).init(context)
        if self.solver == "gradient":
            from counterpoise.weights.gradient import WeightModel

            pairs, model = self.pairs(context), deepcopy(self.embedder)
            penalty = self.tolerance, self.fixed_strength, self.units
            return WeightModel(context, pairs, prior, self.functions, *penalty, model)
        try:
            return BalancedWeights(self, context, prior)
        except ConstantFeatures:
            if self.optional:
                return prior
            raise

    @property
    def fixed_strength(self) -> float | None:
        """The strength as a number; None where it is chosen, or that of exact weights."""
        return None if isinstance(self.strength, str) else self.strength

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
        names = get_args(StrengthName)
        if self.strength is None or (isinstance(self.strength, str) and self.strength not in names):
            hint = did_you_mean(self.strength, names)
            raise ConfigError(f"`strength` must be a number >= 0, 'auto' or 'exact', got {self.strength!r}.{hint}")
        check_penalty(0.0 if self.tolerance is None else self.tolerance, self.fixed_strength, self.units)
        if self.kept is not None:
            check_number("kept", self.kept, above=0, at_most=1, advice="It is a share of the effective sample.")
            if self.strength != "auto":
                raise ConfigError(f"`kept` must be left out for strength={self.strength!r}: it is for 'auto'.")
        check_flag("move_intercept", self.move_intercept)
        check_flag("optional", self.optional)
        for source in self.sources:
            check_choice("features", source, get_args(Source))
        check_choice("prior", self.prior, get_args(Prior))
        check_choice("solver", self.solver, get_args(Solver))
        check_number("refresh", self.refresh, at_least=1, integer=True)
        check_number("folds", self.folds, at_least=1, integer=True, advice="1 learns features on the rows themselves.")
        if self.solver == "gradient" and self.strength in ("exact", float("inf")):
            raise ConfigError(f"`solver` must be 'dual' for strength={self.strength!r}. Or give a number, or \"auto\".")
        has_default = self.strength == "auto" or (self.solver == "gradient" and self.tolerance is None)
        if self.units == "raw" and has_default and getattr(self.functions, "select", "") != "worst_case":
            raise ConfigError("`strength` and `tolerance` must be numbers for units='raw': defaults are in SD.")
        if not isinstance(self.embedder, Backbone):
            raise ConfigError(f"`embedder` must be a Backbone, got {self.embedder!r}.")
        if not hasattr(self.functions, "fit"):
            raise ConfigError(
                f"`functions` must be what is balanced, such as Moments() or KernelFunctions(), got {self.functions!r}."
            )


def share_to_keep(rows: int, n_users: int, n_items: int) -> float:
    """1 / (1 + 2 x 0.0005 x rows / (|U| + |I|)): the least share of the sample that training weights should keep.

    p parameters learned from an effective sample of kept x rows have an expected log loss of p / (2 kept rows) above
    the best. With a parameter for each user and item, these weights add at most 0.0005 to that of equal ones.
    """
    return 1 / (1 + 2 * MAX_VARIANCE_COST * rows / (n_users + n_items))


class BalancedWeights(FittedWeights):
    """Exact weights over the whole log, fold by fold."""

    changes = True

    def __init__(self, part: Balancing, context: FitContext, prior: FittedWeights) -> None:
        self.part, self.context, self.prior = part, context, prior
        self.ratio, self.solved_at = prior.ratio.clone(), 0
        self.errors: Tensor | None = None  # that the functions were last chosen by
        self.known_facts: dict[str, Any] = {}  # of the last solution
        folds = part.folds if {"embeddings", "exposure"} & set(part.sources) else 1
        self.folds = [_Fold(part, context, prior, rows, others) for rows, others in context.k_fold(folds)]

    def refresh(self, epoch: int, residuals: Callable[[], Tensor]) -> bool:
        adaptive = self.part.functions.adaptive
        if self.solved_at and (not adaptive or epoch - self.solved_at < self.part.refresh):
            return False
        self.errors = residuals() if adaptive else None
        for fold in self.folds:
            self.ratio[fold.rows] = fold.solve(self._errors_of(fold), self.ratio[fold.rows])
        self.solved_at, self.known_facts = epoch, {}
        return True

    def _errors_of(self, fold: _Fold) -> Tensor | None:
        return None if self.errors is None else self.errors[fold.rows]

    @torch.enable_grad()
    def intercept_shift(self, backbone: Backbone | None = None) -> InterceptShift | None:
        """The shift from the intercept c(w) of these weights to that of exact ones, by models of other folds' labels.

        c(w) solves sum w (label - sigmoid(logit + c)) = 0. The distance is shrunken by its standard error.
        """
        if self.part.strength != "auto" or not self.part.move_intercept or self.solved_at == 0:
            return None
        logits, exact = torch.zeros_like(self.ratio), torch.zeros_like(self.ratio)
        for fold in self.folds:
            logits[fold.rows] = fold.predicted(backbone or self.context.backbone)
            exact[fold.rows] = fold.exact_ratio(self._errors_of(fold), self.ratio[fold.rows])
        labels = torch.from_numpy(self.context.log.labels).to(logits)
        return shift_between(logits.double(), labels.double(), self.ratio.double(), exact.double())

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
        self.known_facts = self.known_facts or self._facts()
        return self.known_facts

    def _facts(self) -> dict[str, Any]:
        held_out = [fold.held_out([self.prior.ratio[fold.rows], self.ratio[fold.rows]]) for fold in self.folds]
        chosen = [fold.path for fold in self.folds if fold.path is not None]
        found = {"path": path_facts(chosen, self.folds[0].kept)} if chosen else {}
        return (
            solution_facts([fold.result for fold in self.folds])
            | found
            | {
                "held_out_before": _mean([None if found is None else found[0] for found in held_out]),
                "held_out_after": _mean([None if found is None else found[1] for found in held_out]),
                "balanced": [fold.certificate() for fold in self.folds],
                "warning": warn_of_collapse(self.ratio.cpu(), COLLAPSE_ADVICE),
            }
        )


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


def path_facts(paths: list[Path], kept: float) -> dict[str, Any]:
    """JSON-able: the rule, what it chose, and the points of the path of every fold."""
    return {
        "rule": "the largest strength whose effective sample size is at least `kept` of that of the prior weights; "
        "imbalance within `tolerance`, or that of a random sample (worst_case), is left",
        "kept": kept,
        "strength": float(np.mean([path.strength for path in paths])),
        "tolerance": float(np.mean([path.tolerance for path in paths])),
        "points": [
            [asdict(point) | {"chosen": point.strength == path.strength} for point in path.points] for path in paths
        ],
    }


def shift_between(logits: Tensor, labels: Tensor, ratio: Tensor, exact: Tensor) -> InterceptShift:
    """The shift from c(`ratio`) to c(`exact`); the error is that of independent rows."""
    found, influence = [], torch.zeros_like(logits)
    for weights, sign in ((ratio, -1.0), (exact, 1.0)):
        found.append(weighted_intercept(logits, labels, weights))
        p = torch.sigmoid(logits + found[-1])
        influence += sign * weights * (labels - p) / (weights * p * (1 - p)).sum().clamp(min=1e-12)
    variance = float(influence.square().sum())
    return InterceptShift(shrink_by_error(found[1] - found[0], variance), variance**0.5)


def weighted_intercept(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The c with sum of weights x (label - sigmoid(logit + c)) = 0, by Newton steps of at most 1."""
    found = 0.0
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(logits + found)
        slope = float((weights * p * (1 - p)).sum())
        found += min(max(float((weights * (labels - p)).sum()) / max(slope, 1e-12), -1.0), 1.0)
    return found


class _Fold:
    """Some rows of the log, in features that were learned without them."""

    fitted: FittedFunctions
    result: BalanceResult
    path: Path | None = None

    def __init__(
        self, part: Balancing, context: FitContext, prior: FittedWeights, rows: Tensor, others: FitContext
    ) -> None:
        self.part, self.rows, self.others, self.generator = part, rows, others, context.generator
        self.base = None if part.prior == "uniform" else prior.ratio[rows]
        self.base_mean = float(prior.ratio[rows].mean())
        self.pairs = part.pairs(others)
        self.observed = observed_pairs(context.log.take(rows.cpu().numpy()), self.pairs)
        self.population = self._own_users() if part.strength == "auto" else self.pairs
        self.kept = share_to_keep(len(context.log), *context.log.shape) if part.kept is None else part.kept

    def solve(self, errors: Tensor | None, ratio: Tensor) -> Tensor:
        """Choose functions and balance them: the ratio of each row, 1 on average."""
        part, base = self.part, self.base
        self.fitted = self._choose(self.population, errors, ratio)
        if part.strength == "auto":
            self.path = balance_keeping(self.fitted, self.observed, self.kept, part.tolerance, base, self.generator)
            self.result = self.path.result
        else:
            penalty = part.tolerance or 0.0, part.fixed_strength
            units = part.units if part.strength != "exact" else "sd"
            self.result = self.fitted.balance(self.observed, *penalty, units=units, base_weights=base)
        solved: Tensor = (len(ratio) * self.result.weights).to(ratio)
        own = solved if base is None else solved * self.base_mean / base
        self.max_log_factor = float(own.max().log())
        return solved

    def _own_users(self) -> Pairs:
        """The pairs of these rows' users, each as often as in the rows, with all items."""
        counts = torch.bincount(self.observed.users, minlength=len(self.pairs.users))
        return replace(self.pairs, user_shares=counts.double() / counts.sum())

    def exact_ratio(self, errors: Tensor | None, ratio: Tensor) -> Tensor:
        """The ratio of each row under which these rows balance against D as well as they can."""
        fitted = self._choose(self.pairs, errors, ratio)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            weights: Tensor = fitted.balance(self.observed, base_weights=self.base).weights
        return (len(ratio) * weights).to(ratio)

    def predicted(self, backbone: Backbone) -> Tensor:
        """The logits of the rows by a first model of the labels of all other rows."""
        scorer = self.others.fit_labels(deepcopy(backbone))
        with torch.no_grad():
            logits: Tensor = scorer(self.observed.users, self.observed.items)
        return logits

    def _choose(self, population: Pairs, errors: Tensor | None, ratio: Tensor) -> FittedFunctions:
        functions, generator, observed = self.part.functions, self.generator, self.observed
        if errors is None:
            return functions.fit(population, observed, None, self.base, generator)
        most = ROWS_PER_CANDIDATE * getattr(functions, "n_candidates", 1)
        if observed.n_rows > most:
            drawn = torch.randint(observed.n_rows, (most,), generator=generator).to(errors.device)
            observed, errors, ratio = observed.take(drawn), errors[drawn], ratio[drawn]
        return functions.fit(population, observed, errors, ratio, generator)

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

    def held_out(self, ratios: list[Tensor]) -> list[dict[str, float]] | None:
        """Balance on kernel functions that were not balanced, under each of these ratios."""
        centres = self.fitted.centres if isinstance(self.fitted, FittedKernels) else None
        return held_out_imbalances(self.observed, ratios, self.population, balanced_at=centres)


def _mean(folds: list[dict[str, float] | None]) -> dict[str, float] | None:
    """The mean of every figure over the folds that have one."""
    known = [fold for fold in folds if fold is not None]
    return {name: float(np.mean([fold[name] for fold in known])) for name in known[0]} if known else None
