"""The paper's idea: weights under which the observed pairs balance against all pairs D, in functions of the pair."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from counterpoise.backbones import Backbone, MatrixFactorization, Scorer
from counterpoise.diagnostics import held_out_imbalance
from counterpoise.errors import ConfigError, check_choice, check_flag, check_number
from counterpoise.features import Source, observed_pairs, pair_features
from counterpoise.fitted_functions import FittedFunctions, FittedKernels, check_prices
from counterpoise.functions import Functions, KernelFunctions
from counterpoise.population import Pairs
from counterpoise.problems import Problem, fit_alone, mean_error
from counterpoise.results import BalanceResult
from counterpoise.training import Batch
from counterpoise.weight_model import WeightModel
from counterpoise.weights import Current, NaiveBayes, Uniform, Weighing, Weights
from counterpoise.words import Prior, Solver

Tables = dict[str, tuple[Tensor, Tensor]]
ROWS_A_CANDIDATE = 50  # rows of the log that a regression on candidate kernels looks at, for each candidate


@dataclass
class Balancing(Weights):
    """w = argmin KL(w || prior) + strength x sum_j [|tau_j(w)| - tolerance]+ over all weights on the log that sum to 1.

    tau_j = weighted mean over the log minus mean over D of function j. `tolerance` (the paper's C) and `strength`
    (gamma) are in population standard deviations of each function (see `FittedFunctions.balance`).
    `features`: what the functions are functions of, one or more of "embeddings" (of a first fit of `embedder` to the
    labels, the paper's choice), "exposure" (the same, fitted to what was observed), "side" (those of the log) and
    "activity" (how much users rate and items are rated).
    `solver`: "dual" solves over the whole log, exactly; rules that look at the errors choose again every `refresh`
    epochs. "gradient" is the paper's Algorithm 1: a weight model of `embedder`'s kind, and a step for each batch.
    `moving`: from the first refresh on, "embeddings" are those of the predictor itself as it learns.
    """

    functions: Functions = field(default_factory=KernelFunctions)
    tolerance: float = 0.0
    strength: float | None = None
    prior: Prior = "uniform"
    features: tuple[Source, ...] | Source = ("exposure",)
    embedder: Backbone = field(default_factory=lambda: MatrixFactorization(dim=4))
    solver: Solver = "dual"
    refresh: int = 10
    moving: bool = False

    def begin(self, problem: Problem) -> Weighing:
        """Features first; the weights come with the first epoch."""
        check_prices(self.tolerance, self.strength)
        check_choice("prior", self.prior, get_args(Prior))
        check_choice("solver", self.solver, get_args(Solver))
        check_number("refresh", self.refresh, at_least=1, integer=True)
        check_flag("moving", self.moving)
        if self.moving and "embeddings" not in self.sources:
            raise ConfigError(f'`moving` needs "embeddings" among the `features`, got {self.features!r}.')
        if not hasattr(self.functions, "fit"):
            raise ConfigError(
                f"`functions` must be Moments, KernelFunctions or GivenFunctions, got {self.functions!r}."
            )
        prior = (NaiveBayes() if self.prior == "naive-bayes" else Uniform()).begin(problem)
        tables = self.learned_tables(problem)
        if self.solver == "gradient":
            model = deepcopy(self.embedder)
            pairs = self.pairs(problem, tables)
            return WeightModel(problem, pairs, prior, self.functions, self.tolerance, self.strength, model)
        return _Solved(self, problem, tables, prior)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The features, one or more."""
        return (self.features,) if isinstance(self.features, str) else tuple(self.features)

    def pairs(self, problem: Problem, learned: Tables) -> Pairs:
        """All pairs with their features."""
        embeddings, exposure = learned.get("embeddings"), learned.get("exposure")
        return pair_features(problem.log, self.sources, embeddings, exposure, problem.device)

    def learned_tables(self, problem: Problem) -> Tables:
        """What first fits of `embedder` say of users and items, for the sources that ask for one."""
        density, tables = problem.log.density, {}
        if "embeddings" in self.sources:
            tables["embeddings"] = fit_alone(problem, deepcopy(self.embedder), mean_error).features()
        if "exposure" in self.sources:
            loss = partial(observation_loss, density=density)
            tables["exposure"] = fit_alone(problem, deepcopy(self.embedder), loss, True, density).features()
        return tables


def observation_loss(scorer: Scorer, batch: Batch, density: float) -> Tensor:
    """Cross-entropy of being observed, over D, for each observed pair: mean_D softplus(s) / density - mean_O s."""
    logits, pair_logits = scorer(batch.users, batch.items), scorer.at(batch.pair_users, batch.pair_items)
    loss: Tensor = torch.nn.functional.softplus(pair_logits).mean() / density - logits.mean()
    return loss


class _Solved(Weighing):
    """Exact weights over the whole log."""

    fitted: FittedFunctions
    result: BalanceResult

    def __init__(self, part: Balancing, problem: Problem, tables: Tables, prior: Weighing) -> None:
        self.part, self.problem, self.tables, self.prior = part, problem, tables, prior
        self.ratio, self.solved_at = prior.ratio, 0
        self._place()

    def _place(self) -> None:
        """The log's pairs among all pairs, by their features."""
        self.pairs = self.part.pairs(self.problem, self.tables)
        self.observed = observed_pairs(self.problem.log, self.pairs)

    def refresh(self, epoch: int, current: Current) -> None:
        part, first = self.part, self.solved_at == 0
        changing = part.functions.adaptive or part.moving
        if not first and (not changing or epoch - self.solved_at < part.refresh):
            return
        if part.moving and not first:
            self.tables["embeddings"] = current.features()
            self._place()
        self.solved_at, self.fitted = epoch, self._choose(current)
        base = None if part.prior == "uniform" else self.prior.ratio
        self.result = self.fitted.balance(self.observed, part.tolerance, part.strength, base_weights=base)
        self.ratio = (len(self.ratio) * self.result.weights).to(self.ratio)

    def _choose(self, current: Current) -> FittedFunctions:
        functions, generator = self.part.functions, self.problem.generator
        if not functions.adaptive:
            return functions.fit(self.pairs, generator=generator)
        observed, errors, ratio = self.observed, current.residuals(), self.ratio
        most = ROWS_A_CANDIDATE * getattr(functions, "n_candidates", 1)
        if observed.n_rows > most:
            rows = torch.randint(observed.n_rows, (most,), generator=generator).to(errors.device)
            observed, errors, ratio = observed.take(rows), errors[rows], ratio[rows]
        return functions.fit(self.pairs, observed, errors, ratio, generator)

    @torch.no_grad()
    def at(self, users: Tensor | None, items: Tensor | None, labels: Tensor | None = None) -> Tensor:
        """exp(-l'h(x) - offset) x prior: the weights are a function, so any pair has one."""
        n_users, n_items = self.problem.log.shape
        if users is None or items is None:
            code = torch.arange(n_users * n_items, device=self.ratio.device)
            points = self.pairs.at(code // n_items, code % n_items)
        else:
            points = self.pairs.at(users.long(), items.long())
        dual = torch.from_numpy(self.result.dual).to(points.device)
        scores = torch.cat([values.to(dual) @ dual for _, values in self.fitted.rows(points).blocks()])
        return torch.exp(-scores - self.result.offset).to(self.ratio) * self.prior.at(users, items, labels)

    def facts(self) -> dict[str, Any]:
        result, fitted = self.result, self.fitted
        centres = fitted.centres if isinstance(fitted, FittedKernels) else None
        before, after = (
            held_out_imbalance(self.observed, ratio, self.pairs, balanced_at=centres)
            for ratio in (self.prior.ratio, self.ratio)
        )
        return {
            "solver": "dual",
            "functions": len(fitted.names),
            "given_up": int(result.given_up.sum()),
            "largest_violation_sd": result.max_violation,
            "worst_case_bias": result.worst_case_bias,
            "gap": result.gap,
            "status": result.status,
            "held_out_before": before,
            "held_out_after": after,
        }
