"""Every estimator of the ideal loss that needs no trained predictor: weights x risk, by its name.

`naive` is the mean over the log, `eib` imputes all that was not observed. The others are called `risk-weights`
(`snips-logistic`) and, with the weights of a balancing method, `method-features` (`skb-dr-side`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise import risks
from counterpoise.backbones import MatrixFactorization
from counterpoise.balancing import Balancing
from counterpoise.bench.known_selection import Draw, Floats, KnownSelection, noisy_propensity
from counterpoise.given_propensities import Given
from counterpoise.logistic import Logistic
from counterpoise.making import make
from counterpoise.problems import Problem, fit_alone, mean_error
from counterpoise.propensity import Popularity, Propensity
from counterpoise.training import Training
from counterpoise.weights import Current, Itself, NaiveBayes, Uniform, Weighing, Weights

RULES = ("mb", "rkb", "wkb", "akb", "skb")
BALANCED = {
    "side": RULES,
    "exposure": RULES,
    "embeddings": ("akb", "skb"),
}  # features: rules
FOLDS = {"learned": 1, "cross-fitted": 2}  # of the log, each imputed by a model of the others where there are several
IMPUTATIONS = ("constant", *FOLDS)
Builder = Callable[[KnownSelection, np.random.Generator], Weights]
RatioOf = Callable[[Tensor], Tensor]  # the ratio of every row of the log, for residuals = error - imputed error


@dataclass
class RatingBayes(Weights):
    """`NaiveBayes` with one class for each rating: ratio = P(rating) / P(rating | observed), from probe and log."""

    def begin(self, problem: Problem) -> Weighing:
        """For every rating that occurs, the weight that naive Bayes gives it against all others."""
        probe = problem.need_probe("naive Bayes weights", "Or leave them out.")
        ratio = torch.ones(len(problem.log))
        for rating in np.unique(problem.log.ratings):
            log, sample = (replace(part, ratings=(part.ratings == rating) * 1.0) for part in (problem.log, probe))
            found = NaiveBayes().begin(replace(problem, log=log, probe=sample)).ratio
            chosen = torch.from_numpy(log.labels > 0)
            ratio[chosen] = found[chosen]
        weighing = Weighing()
        weighing.ratio = ratio
        return weighing


def _balancing(rule: str, features: str) -> Builder:
    """The weights of a named method, in some of its features."""
    return lambda known, rng: make(f"{rule}-ips", features=features).weights


WEIGHTS: dict[str, Builder] = {
    "uniform": lambda known, rng: Uniform(),
    "itself": lambda known, rng: Itself(),
    "true": lambda known, rng: Given(known.propensity, clip=0),
    "noisy": lambda known, rng: Given(noisy_propensity(known.propensity, rng), clip=0),
    "naive-bayes": lambda known, rng: RatingBayes(),
    "logistic": lambda known, rng: Logistic(),
    "propensity": lambda known, rng: Propensity(),
    "popularity": lambda known, rng: Popularity(),
    **{f"{rule}-{features}": _balancing(rule, features) for features, rules in BALANCED.items() for rule in rules},
}


class Estimator(NamedTuple):
    """A name of `WEIGHTS`, and the risk that takes them."""

    weights: str
    risk: str


PLAIN = ("true", "noisy", "naive-bayes", "logistic", "propensity", "popularity")
ESTIMATORS: dict[str, Estimator] = {
    "naive": Estimator("uniform", "ips"),
    "eib": Estimator("itself", "dr"),
    **{f"{risk}-{weights}": Estimator(weights, risk) for weights in PLAIN for risk in ("ips", "snips", "dr")},
    **{
        f"{rule}-{risk}-{features}": Estimator(f"{rule}-{features}", risk)
        for features, rules in BALANCED.items()
        for rule in rules
        for risk in ("ips", "dr")  # balanced weights have a fixed sum: snips is ips
    },
}


class Errors(NamedTuple):
    """Of one prediction matrix: on the rows of a log, and what is imputed there and on all pairs."""

    on_log: Tensor
    imputed: Tensor
    imputed_on_pairs: Tensor


def estimate(risk: str, errors: Errors, ratio_of: RatioOf) -> float:
    """The estimate of the mean error over all pairs."""
    if risk == "dr":
        ratio = ratio_of(errors.on_log - errors.imputed)
        return float(risks.dr(errors.on_log, ratio, errors.imputed, errors.imputed_on_pairs))
    ratio = ratio_of(errors.on_log)
    return float({"ips": risks.ips, "snips": risks.snips}[risk](errors.on_log, ratio))


def ratios(weights: str, known: KnownSelection, draw: Draw, rng: np.random.Generator) -> RatioOf:
    """Learn the weights from a draw. Rules that choose functions by the error choose anew for each error."""
    part = WEIGHTS[weights](known, rng)
    begun = part.begin(_problem(draw, rng))

    def ratio_of(residuals: Tensor) -> Tensor:
        weighing = deepcopy(begun)  # with its generator: what was solved before makes no difference
        weighing.refresh(1, Current(lambda: residuals.float(), _no_features))
        return weighing.ratio.double()

    if isinstance(part, Balancing) and part.functions.adaptive:
        return ratio_of
    same = ratio_of(torch.zeros(len(draw.log)))
    return lambda residuals: same


class ImputedRatings(NamedTuple):
    """What pairs are taken to be rated, from 1 to 5."""

    on_log: Floats  # (rows,)
    on_pairs: Floats  # (models, users, items): all pairs, by every model that imputes some rows


def imputed_ratings(imputation: str, draw: Draw, rng: np.random.Generator) -> ImputedRatings:
    """The same rating for all, or learned by matrix factorisation of those observed.

    "constant": their mean. "learned": one model, which has seen the rows that it imputes. "cross-fitted": one for each
    half of the log, fitted to the other half.
    """
    log = draw.log
    if imputation == "constant":
        mean = 1 + 4 * log.ratings.mean()
        return ImputedRatings(np.full(len(log), mean), np.full((1, *log.shape), mean))
    on_log, on_pairs = np.empty(len(log)), []
    for rows, others in _problem(draw, rng).deal(FOLDS[imputation]):
        scorer, own = fit_alone(others.brief(), MatrixFactorization(dim=4), mean_error), rows.numpy()
        ratings = 1 + 4 * torch.sigmoid(scorer.grid(torch.arange(log.shape[0]))).double().numpy()
        on_log[own] = ratings[log.users[own], log.items[own]]
        on_pairs.append(ratings)
    return ImputedRatings(on_log, np.stack(on_pairs))


def _problem(draw: Draw, rng: np.random.Generator) -> Problem:
    generator, device = torch.Generator().manual_seed(int(rng.integers(2**62))), torch.device("cpu")
    return Problem(draw.log, draw.probe, MatrixFactorization(), Training(device="cpu"), device, generator)


def _no_features() -> tuple[Tensor, Tensor]:
    raise NotImplementedError  # of a predictor: none is trained here, and no weights of `WEIGHTS` ask for them
