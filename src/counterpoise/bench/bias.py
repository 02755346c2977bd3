"""The bias of risk estimators: how far each estimate of the ideal loss is from the truth, where the truth is known.

`study` is the semi-synthetic study of the field: a completed rating matrix, propensities that depend on the rating
itself, repeated draws of the log, and six fixed prediction matrices whose mean error over all pairs is estimated. Two
public constructions differ in what a rating stands for, see `CONSTRUCTIONS`. `fitted` estimates the ideal loss of
trained predictors on simulated logs. Both give one `Row` for each estimate; `summary` and the sheets make tables of
them.

The file goes through it in order: prediction matrices, constructions, known selection, estimators, the study, trained
predictors, tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise import __version__, risks
from counterpoise.bench.statistics import mean_and_deviation
from counterpoise.bench.store import Store, hash_facts
from counterpoise.bench.tables import Sheet, Value
from counterpoise.data.batches import Batch
from counterpoise.data.datasets import load_dataset
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import FeedbackLog
from counterpoise.data.simulation import simulate
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.evaluation.metrics import log_losses
from counterpoise.imputation.base import residual_weights
from counterpoise.methods import METHODS, canonical_name, make
from counterpoise.models.base import Scorer
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.threads import one_blas_thread, one_thread
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.training.loop import Training
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, Uniform, UnitWeights
from counterpoise.weights.propensity import KnownPropensity, Logistic, Popularity, Propensity

Floats = NDArray[np.float64]
Ratings = NDArray[np.int64]  # (users, items), 1 to 5
Features = NDArray[np.float64] | NDArray[np.float32] | None
Data = FeedbackLog | str | Path | None
Names = str | Sequence[str]  # one, several, or "all"
Progress = Callable[[int, int], None]  # (done, total)
MARGINALS = (0.526, 0.242, 0.144, 0.062, 0.026)  # P(1) .. P(5) over all pairs (Marlin and Zemel 2009; Schnabel et al.)
MAX_PAIRS = 20_000_000  # the whole matrix is held in memory
WEIGHTED, OWN = "weighted error", "own risk"  # the two estimates of `measure_fit`


# Prediction matrices: functions of the ratings, 1 to 5, with values on the scale of a construction.


def flipped(ratings: Ratings, stars: int, rng: np.random.Generator) -> Ratings:
    """The ratings, except that some of `stars` become 5: as many as there are of 5, drawn at random."""
    predicted, places = ratings.copy(), np.flatnonzero(ratings == stars)
    count = min(int((ratings == 5).sum()), len(places))
    predicted.flat[rng.choice(places, count, replace=False)] = 5
    return predicted


def rotated(ratings: Ratings) -> Ratings:
    """One star less, and 5 for 1."""
    return np.where(ratings >= 2, ratings - 1, 5)


def stars_matrix(name: str, ratings: Ratings, rng: np.random.Generator) -> Floats:
    """Predicted ratings: ONE, FOUR, ROTATE, SKEW and CRS of Schnabel et al. 2016, and THREE of Wang et al. 2019.

    Sources differ in two details: here SKEW, normal around the rating, is clipped to the scale of the ratings, and CRS
    predicts 3 for ratings up to 3 and 4 above.
    """
    if name == "skew":
        return np.clip(rng.normal(ratings, (6 - ratings) / 2), 1, 5)
    if name == "crs":
        return np.where(ratings <= 3, 3.0, 4.0)
    moved = rotated(ratings) if name == "rotate" else flipped(ratings, {"one": 1, "three": 3, "four": 4}[name], rng)
    return moved.astype(np.float64)


def rates_matrix(name: str, ratings: Ratings, rng: np.random.Generator) -> Floats:
    """Predicted rates of positive labels, by the release of MRDR: ONE, THREE and FIVE flip rates of 0.1, 0.3 and 0.5.

    SKEW is normal around the rate g with deviation (1 - g) / 2, clipped to [0.1, 0.9]; CRS predicts 0.1 for rates of
    0.7 and more and 0.5 below. The release has no ROTATE: here it is that of the ratings.
    """
    if name == "skew":
        rates = RATES[ratings - 1]
        return np.clip(rng.normal(rates, (1 - rates) / 2), RATES[0], RATES[-1])
    if name == "crs":
        return np.where(ratings >= 4, 0.1, 0.5)
    moved = rotated(ratings) if name == "rotate" else flipped(ratings, {"one": 1, "three": 2, "five": 3}[name], rng)
    return RATES[moved - 1]


# Constructions: how ratings, labels, propensities and predictions are made of a score for every pair.


@dataclass(frozen=True)
class Construction:
    """A public variant of the study. Its truth is the rating, or a label drawn once with a rate for each rating."""

    name: str
    citation: str
    marginals: tuple[float, ...]  # shares of the ratings 1 to 5 over all pairs
    matrix: Callable[[str, Ratings, np.random.Generator], Floats]
    matrices: tuple[str, ...]
    errors: tuple[str, ...]  # that make sense on its scale, the usual one first
    beta: float | None  # of noisy propensities, see `noisy_propensity`; None: uniform in [0, 1] for each pair
    labels: bool = False  # whether the truth is a drawn label
    words: tuple[str, str] = ("", "")  # of the truth and of the propensity


RATES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # of positive labels, by rating

CONSTRUCTIONS: dict[str, Construction] = {
    one.name: one
    for one in (
        Construction(
            "schnabel",
            "Schnabel et al. 2016, Recommendations as Treatments, ICML, section 6; noise of Wang et al. 2019, Doubly "
            "Robust Joint Learning, ICML",
            MARGINALS,
            stars_matrix,
            ("one", "three", "four", "rotate", "skew", "crs"),
            ("absolute", "squared"),
            None,
            words=("ratings", "k 0.25^max(0, 4 - rating), mean 5 %"),
        ),
        Construction(
            "mrdr",
            "Guo et al. 2021, Enhanced Doubly Robust Learning (MRDR), SIGIR: the release",
            (0.53, 0.24, 0.14, 0.07, 0.02),
            rates_matrix,
            ("one", "three", "five", "rotate", "skew", "crs"),
            ("log", "squared", "absolute"),
            0.5,
            labels=True,
            words=("labels with rates 0.1 to 0.9", "0.5^min(4, 6 - rating)"),
        ),
    )
}


# Known selection: a completed matrix gets the rating distribution that was measured on items drawn at random, and high
# ratings are observed more often.


def random_numbers(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator for each purpose, so that a draw does not depend on what else is drawn."""
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in purpose)])


class Draw(NamedTuple):
    """A log drawn by the known propensities and a uniform probe; ratings are scaled to [0, 1]."""

    log: FeedbackLog
    probe: FeedbackLog
    bounds: tuple[float, float] = (1, 5)  # of the truth before that

    def unscaled(self, ratings: Any) -> Any:
        """Ratings of the log on the scale of the truth."""
        low, high = self.bounds
        return low + (high - low) * ratings


@dataclass(frozen=True, eq=False)
class KnownSelection:
    """Every rating and every propensity, and side features if there are any.

    `labels`: the truth, where it is not the rating itself. `beta`: of noisy propensities, see `noisy_propensity`.
    """

    ratings: Ratings
    propensity: Floats  # (users, items)
    user_features: Features = None
    item_features: Features = None
    construction: Construction = CONSTRUCTIONS["schnabel"]
    labels: Floats | None = None
    beta: float | None = None

    @property
    def truth(self) -> Floats:
        """The target of a predicted matrix: every label, or every rating."""
        return self.ratings.astype(np.float64) if self.labels is None else self.labels

    def predictions(self, matrix: str, rng: np.random.Generator) -> Floats:
        """A prediction matrix of the construction."""
        return self.construction.matrix(matrix, self.ratings, rng)

    def fingerprint(self) -> str:
        """A hash of everything."""
        arrays = (self.ratings, self.propensity, self.user_features, self.item_features, self.labels)
        parts = [b"none" if array is None else str(array.shape).encode() + array.tobytes() for array in arrays]
        return hashlib.sha256(b"|".join([f"{self.construction.name} {self.beta}".encode(), *parts])).hexdigest()

    def observe(self, rng: np.random.Generator) -> Draw:
        """Observe every pair with its propensity; the probe has as many uniform pairs as there are users."""
        observed = rng.random(self.ratings.shape) < self.propensity
        probed = rng.choice(self.ratings.size, min(len(self.ratings), self.ratings.size), replace=False)
        if not observed.any():
            raise DataError("no pair was observed in a draw. Take a larger matrix or a larger `density`.")
        bounds = (1, 5) if self.labels is None else (0, 1)
        return Draw(self._log(np.flatnonzero(observed), *bounds), self._log(np.sort(probed), *bounds), bounds)

    def _log(self, pairs: NDArray[np.int64], low: float, high: float) -> FeedbackLog:
        users, items = np.divmod(pairs, self.ratings.shape[1])
        return FeedbackLog.from_arrays(
            users,
            items,
            (self.truth.flat[pairs] - low) / (high - low),
            user_ids=Vocabulary.numbered(self.ratings.shape[0]),
            item_ids=Vocabulary.numbered(self.ratings.shape[1]),
            user_features=self.user_features,
            item_features=self.item_features,
        )


def known_selection(
    data: Data = None,
    seed: int = 0,
    protocol: str = "schnabel",
    *,
    density: float = 0.05,
    alpha: float = 0.25,
    n_users: int = 500,
    n_items: int = 400,
) -> KnownSelection:
    """A construction on `data`: a log of ratings, the name of a dataset or a file; None for simulated preferences.

    A log is completed by matrix factorisation (`completed`). In the simulation (`n_users` x `n_items`) the preference
    of every pair is known, and depends on the side features. `protocol`: a name of `CONSTRUCTIONS`; `density` and
    `alpha` are those of "schnabel".
    """
    check_choice("protocol", protocol, CONSTRUCTIONS)
    construction = CONSTRUCTIONS[protocol]
    features: tuple[Features, Features]
    if data is None:
        simulated = simulate(n_users, n_items, seed=seed)
        scores, features = np.asarray(simulated.preference), (simulated.user_features, simulated.item_features)
    else:
        log = data if isinstance(data, FeedbackLog) else load_dataset(data).train
        scores, features = completed(log, seed), (log.user_features, log.item_features)
    ratings = ratings_by_rank(scores, construction.marginals)
    if construction.labels:
        propensity = halving_propensity(ratings)
        labels = (random_numbers(seed, "labels").random(ratings.shape) < RATES[ratings - 1]).astype(np.float64)
    else:
        propensity, labels = selective_propensity(ratings, density, alpha), None
    users, items = features
    return KnownSelection(ratings, propensity, users, items, construction, labels, construction.beta)


def completed(log: FeedbackLog, seed: int = 0) -> Floats:
    """A score for every pair, from matrix factorisation of the ratings. Only the order of the scores is used."""
    if log.n_pairs > MAX_PAIRS:
        raise DataError(
            f"the study holds all pairs in memory and takes {MAX_PAIRS:,} at most, got {log.n_pairs:,}. "
            "Give it a log of fewer users or items."
        )
    low, high = float(log.ratings.min()), float(log.ratings.max())
    if low == high:
        raise DataError(f"the ratings must differ, all of them are {low:g}. Choose another log.")
    scaled = replace(log, ratings=(log.ratings - low) / (high - low), threshold=None)
    scorer = make("mf", seed=seed, device="cpu").fit(scaled).scorer_
    return scorer.grid(torch.arange(log.shape[0])).double().numpy()


def ratings_by_rank(scores: Floats, marginals: tuple[float, ...] = MARGINALS) -> Ratings:
    """1 for the lowest marginals[0] of all scores, 2 for the next marginals[1], and so on; ties by position."""
    last = np.round(np.cumsum(marginals)[:-1] * scores.size).astype(np.int64)
    ratings = np.empty(scores.size, np.int64)
    ratings[np.argsort(scores, axis=None, kind="stable")] = 1 + np.searchsorted(
        last, np.arange(scores.size), side="right"
    )
    return ratings.reshape(scores.shape)


def selective_propensity(ratings: Ratings, density: float = 0.05, alpha: float = 0.25) -> Floats:
    """P(observed) = k alpha^max(0, 4 - rating), with k such that its mean is `density`; alpha = 1 is no selection."""
    check_number("density", density, above=0, at_most=1)
    check_number("alpha", alpha, above=0, at_most=1, advice="1 observes all ratings alike.")
    relative = float(alpha) ** np.maximum(0, 4 - ratings)
    propensity: Floats = relative * (density / relative.mean())
    if propensity.max() > 1:
        raise ConfigError(
            f"`density` must be at most {relative.mean():.3g} for alpha={alpha:g}, got {density:g}: "
            "ratings of 4 and 5 would be observed with a chance above 1."
        )
    return propensity


def halving_propensity(ratings: Ratings) -> Floats:
    """P(observed) = 0.5^min(4, 6 - rating): 1/2 for a rating of 5, halved for each star less, 1/16 for 2 and 1."""
    return np.power(0.5, np.minimum(4, 6 - ratings))


def noisy_propensity(propensity: Floats, rng: np.random.Generator, beta: float | None = None) -> Floats:
    """1 / noisy = beta / propensity + (1 - beta) / density; beta = 1 is the truth, beta = 0 no correction.

    `density` is the mean propensity. `beta` None: uniform in [0, 1] for each pair (Wang et al. 2019).
    """
    share = rng.random(propensity.shape) if beta is None else beta
    noisy: Floats = 1 / (share / propensity + (1 - share) / propensity.mean())
    return noisy


# Estimators of the ideal loss: weights x risk. `naive` is the mean over the log, `eib` imputes all pairs that were not
# observed, `mrdr` is dr with ratings imputed for the least variance. The others are called `risk-weights`
# (`snips-logistic`) or, with the weights of a balancing method, `method-features` (`skb-dr-side`).

RULES = ("mb", "rkb", "wkb", "akb", "skb")
BALANCED = {"side": RULES, "exposure": RULES, "embeddings": ("akb", "skb")}  # features: rules
FOLDS = {"learned": 1, "cross-fitted": 2}  # folds of the log; two or more are imputed by a model of the others
IMPUTATIONS = ("constant", *FOLDS)
Builder = Callable[[KnownSelection, np.random.Generator], Weights]
RatioOf = Callable[[Tensor], Tensor]  # residuals (error - imputed error) of the log -> ratio of every row


@dataclass
class RatingBayes(Weights):
    """`NaiveBayes` with a class for each rating: ratio = P(rating) / P(rating | observed), from probe and log."""

    def init(self, context: FitContext) -> FittedWeights:
        """Naive Bayes weights of each rating that occurs, against all others."""
        probe = context.need_probe("naive Bayes weights", "Or leave them out.")
        ratio = torch.ones(len(context.log))
        for rating in np.unique(context.log.ratings):
            log, sample = (replace(part, ratings=(part.ratings == rating) * 1.0) for part in (context.log, probe))
            found = NaiveBayes().init(replace(context, log=log, probe=sample)).ratio
            chosen = torch.from_numpy(log.labels > 0)
            ratio[chosen] = found[chosen]
        fitted_weights = FittedWeights()
        fitted_weights.ratio = ratio
        return fitted_weights


def _balancing(rule: str, features: str) -> Builder:
    """The weights of a named method on these features."""
    return lambda known, rng: make(f"{rule}-ips", features=features, strength="exact").weights


WEIGHTS: dict[str, Builder] = {
    "uniform": lambda known, rng: Uniform(),
    "unit": lambda known, rng: UnitWeights(),
    "true": lambda known, rng: KnownPropensity(known.propensity, clip=0),
    "noisy": lambda known, rng: KnownPropensity(noisy_propensity(known.propensity, rng, known.beta), clip=0),
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


RISKS = ("ips", "snips", "dr", "mrdr")
PROPENSITIES = ("true", "noisy", "naive-bayes", "logistic", "propensity", "popularity")
ESTIMATORS: dict[str, Estimator] = {
    "naive": Estimator("uniform", "ips"),
    "eib": Estimator("unit", "dr"),
    **{f"{risk}-{weights}": Estimator(weights, risk) for weights in PROPENSITIES for risk in RISKS},
    **{
        f"{rule}-{risk}-{features}": Estimator(f"{rule}-{features}", risk)
        for features, rules in BALANCED.items()
        for rule in rules
        for risk in ("ips", "dr")  # balanced weights have a fixed sum: snips is ips
    },
}


class Errors(NamedTuple):
    """The errors of one prediction matrix on the rows of a log, and the imputed errors there and on all pairs."""

    on_log: Tensor
    imputed: Tensor
    imputed_on_pairs: Tensor


def estimate(risk: str, errors: Errors, ratio_of: RatioOf) -> float:
    """The estimate of the mean error over all pairs."""
    if risk in ("dr", "mrdr"):
        ratio = ratio_of(errors.on_log - errors.imputed)
        return float(risks.dr(errors.on_log, ratio, errors.imputed, errors.imputed_on_pairs))
    ratio = ratio_of(errors.on_log)
    return float({"ips": risks.ips, "snips": risks.snips}[risk](errors.on_log, ratio))


def ratios(weights: str, known: KnownSelection, draw: Draw, rng: np.random.Generator) -> RatioOf:
    """Learn the weights from a draw. Rules that choose functions by the residuals choose again for each matrix."""
    part = WEIGHTS[weights](known, rng)
    initial = part.init(_fit_context(draw, rng))

    def ratio_of(residuals: Tensor) -> Tensor:
        fitted_weights = deepcopy(initial)  # with its generator, so that calls do not depend on each other
        fitted_weights.refresh(1, lambda: residuals.float())
        return fitted_weights.ratio.double()

    if isinstance(part, Balancing) and part.functions.adaptive:
        return ratio_of
    constant = ratio_of(torch.zeros(len(draw.log)))
    return lambda residuals: constant


class ImputedRatings(NamedTuple):
    """Ratings on the scale of the truth that imputed errors are computed against."""

    on_log: Floats  # (rows,)
    on_pairs: Floats  # (models, users, items)


def imputed_ratings(
    imputation: str, draw: Draw, rng: np.random.Generator, importance: Tensor | None = None
) -> ImputedRatings:
    """Imputed ratings of all pairs: one rating for all, or those of matrix factorisation of the observed ones.

    "constant": their mean. "learned": one model, which has seen the rows that it imputes. "cross-fitted": one for each
    half of the log, fitted to the other half. `importance`: how much each row counts in this, by default all alike.
    """
    log = draw.log
    counts = torch.ones(len(log)) if importance is None else importance.float()
    if imputation == "constant":
        mean = draw.unscaled(np.average(log.ratings, weights=counts))
        return ImputedRatings(np.full(len(log), mean), np.full((1, *log.shape), mean))
    on_log, on_pairs = np.empty(len(log)), []
    for rows, others in _fit_context(draw, rng).k_fold(FOLDS[imputation]):
        own, learned = rows.numpy(), torch.ones(len(log), dtype=torch.bool)
        learned[rows] = len(others.log) == len(log)
        weighted = partial(_weighted_error, counts[learned])
        scorer = others.short().fit_scorer(MatrixFactorization(dim=4), weighted)
        ratings = draw.unscaled(torch.sigmoid(scorer.grid(torch.arange(log.shape[0]))).double().numpy())
        on_log[own] = ratings[log.users[own], log.items[own]]
        on_pairs.append(ratings)
    return ImputedRatings(on_log, np.stack(on_pairs))


def _weighted_error(counts: Tensor, scorer: Scorer, batch: Batch) -> Tensor:
    return (risks.error(batch.labels, scorer(batch.users, batch.items)) * counts[batch.rows]).mean()


def _fit_context(draw: Draw, rng: np.random.Generator) -> FitContext:
    generator, device = torch.Generator().manual_seed(int(rng.integers(2**62))), torch.device("cpu")
    return FitContext(draw.log, draw.probe, MatrixFactorization(), Training(device="cpu"), device, generator)


# The study


ErrorOf = Callable[[Any, Floats], Floats]  # (ratings, predictions) -> the error of every pair
ERRORS: dict[str, ErrorOf] = {
    "absolute": lambda ratings, predicted: np.abs(ratings - predicted),
    "squared": lambda ratings, predicted: np.square(ratings - predicted),
    "log": log_losses,
}


@dataclass(frozen=True)
class Row:
    """One estimate beside the truth."""

    matrix: str
    estimator: str
    repeat: int
    ideal: float  # the mean error over all pairs
    deviation: float  # estimate / ideal - 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def study(
    data: Data | KnownSelection = None,
    estimators: Names = "all",
    matrices: Names = "all",
    repeats: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    protocol: str = "schnabel",
    error: str | None = None,
    imputation: str = "constant",
    beta: float | None = None,
    store: Store | None = None,
) -> list[Row]:
    """Every estimator on every matrix, for `repeats` draws of the log.

    `data`: a `KnownSelection`, or what `known_selection` takes. `estimators`: names of `ESTIMATORS`; "all" leaves out
    those on side features if there are none. `protocol`: the construction that `known_selection` makes. `error`: the
    "absolute" or "squared" difference to the truth, or the "log" loss of labels; by default the construction's usual
    one. `imputation`: the rating that imputed errors are taken against, "constant", "learned" or "cross-fitted", see
    `imputed_ratings`. `beta`: of noisy propensities, by default the construction's (`noisy_propensity`).
    `store`: draws that it has are not measured again.
    A result depends only on `seed`, its repeat and its own names, not on the other estimators and matrices.
    """
    check_number("repeats", repeats, at_least=1, integer=True)
    check_number("seed", seed, at_least=0, integer=True)
    check_choice("protocol", protocol, CONSTRUCTIONS)
    construction = data.construction if isinstance(data, KnownSelection) else CONSTRUCTIONS[protocol]
    chosen = _names("estimators", estimators, ESTIMATORS)
    predictions = _names("matrices", matrices, construction.matrices)
    error = construction.errors[0] if error is None else error
    check_choice("error", error, construction.errors)
    check_choice("imputation", imputation, IMPUTATIONS)
    if beta is not None:
        check_number("beta", beta, at_least=0, at_most=1, advice="1 is the true propensity, 0 none.")
    known = data if isinstance(data, KnownSelection) else known_selection(data, seed, protocol)
    known = known if beta is None else replace(known, beta=beta)
    if estimators == "all" and known.user_features is None and known.item_features is None:
        chosen = [name for name in chosen if not name.endswith("-side")]
    rows, options = [], (chosen, predictions, seed, error, imputation)
    facts = {} if store is None else {"data": known.fingerprint(), "options": options}
    for repeat in range(repeats):
        rows += _stored(store, f"draw{repeat}", facts, partial(measure, repeat, known, *options))
        if progress is not None:
            progress(repeat + 1, repeats)
    return rows


@dataclass(frozen=True)
class _Measurement:
    file_name: str


def _stored(store: Store | None, name: str, facts: Mapping[str, Any], measure: Callable[[], list[Row]]) -> list[Row]:
    """The rows that the store has by this name and these facts; else those of `measure`, which are then stored."""
    if store is None:
        return measure()
    job = _Measurement(f"bias.{name}.{hash_facts({'version': __version__, **facts})}")
    found = store.read(job)
    if found is None:
        found = {"rows": [row.to_dict() for row in measure()]}
        store.open()
        store.write(job, found)
    try:
        return [Row(**row) for row in found["rows"]]
    except (KeyError, TypeError):
        raise DataError(f"{store.path(job)} holds other rows. Delete it, and it is measured again.") from None


def measure(
    repeat: int,
    known: KnownSelection,
    estimators: Sequence[str],
    matrices: Sequence[str],
    seed: int = 0,
    error: str | None = None,
    imputation: str = "constant",
) -> list[Row]:
    """All estimates on one draw of the log; depends on nothing but its arguments."""
    draw, error = known.observe(random_numbers(seed, "log", repeat)), error or known.construction.errors[0]
    predicted, ideals, errors, found = {}, {}, {}, {}
    with one_thread(), one_blas_thread():
        imputed = imputed_ratings(imputation, draw, random_numbers(seed, "imputation", repeat))
        for matrix in matrices:
            predicted[matrix] = known.predictions(matrix, random_numbers(seed, "matrix", matrix))
            errors[matrix], ideals[matrix] = errors_of(predicted[matrix], known.truth, imputed, draw, ERRORS[error])
        for weights, names in groupby(sorted(estimators, key=_weights), key=_weights):  # the same weights are shared
            ratio_of = ratios(weights, known, draw, random_numbers(seed, "weights", weights, repeat))
            for name in names:
                risk = ESTIMATORS[name].risk
                if risk == "mrdr":
                    importance = residual_weights("variance", ratio_of(torch.zeros(len(draw.log))) / draw.log.density)
                    own = imputed_ratings(imputation, draw, random_numbers(seed, "imputation", repeat), importance)
                for matrix in matrices:
                    seen = errors[matrix]
                    if risk == "mrdr":
                        seen, _ = errors_of(predicted[matrix], known.truth, own, draw, ERRORS[error])
                    found[name, matrix] = estimate(risk, seen, ratio_of)
    return [
        Row(matrix, name, repeat, ideals[matrix], found[name, matrix] / ideals[matrix] - 1)
        for matrix in matrices
        for name in estimators
    ]


def errors_of(
    predicted: Floats, truth: Floats | Ratings, imputed: ImputedRatings, draw: Draw, error: ErrorOf
) -> tuple[Errors, float]:
    """The errors that estimators see, and the mean error over all pairs, which they do not see."""
    whole, rows = error(truth, predicted), (draw.log.users, draw.log.items)
    if not whole.any():
        raise DataError("a prediction matrix has no error on so few ratings. Take a larger matrix.")
    imputed_errors = error(imputed.on_log, predicted[rows]), error(imputed.on_pairs, predicted).ravel()
    return Errors(*map(torch.from_numpy, (whole[rows], *imputed_errors))), float(whole.mean())


# Trained predictors


def fitted(
    methods: Names = "all",
    seeds: int | Iterable[int] = 4,
    progress: Progress | None = None,
    store: Store | None = None,
    **simulation: Any,
) -> list[Row]:
    """Named methods fitted to the same simulated logs; `seeds`: how many logs, or which. `simulation`: see `simulate`.

    Two rows for each fit: "weighted error", of the method's weights alone (`SimulatedData.selection_bias`), and "own
    risk", the estimate that it minimised, made on the labels it was trained on.
    """
    chosen = list(METHODS) if methods == "all" else [canonical_name(name) for name in _listed(methods)]
    if isinstance(seeds, int):
        check_number("seeds", seeds, at_least=1, integer=True)
        seeds = range(seeds)
    fits, rows = list(product(seeds, chosen)), []
    for done, (seed, method) in enumerate(fits, 1):
        facts = {"method": make(method).to_config(), "simulation": simulation}
        rows += _stored(store, f"{method}.seed{seed}", facts, partial(measure_fit, method, seed, **simulation))
        if progress is not None:
            progress(done, len(fits))
    return rows


def measure_fit(method: str, seed: int, **simulation: Any) -> list[Row]:
    """One method on one simulated log; depends on nothing but its arguments."""
    simulated = simulate(seed=seed, **simulation)
    model = make(method, seed=seed, device="cpu").fit(simulated.dataset.train, probe=simulated.dataset.probe)
    ideal = simulated.ideal_risk(model)
    return [
        Row(WEIGHTED, method, seed, ideal, simulated.selection_bias(model, model.ratio_)),
        Row(OWN, method, seed, ideal, model.facts_["risk"] / ideal - 1),
    ]


# Tables


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows by matrix and estimator, over repeats: `mean` and `std` of |deviation|, `bias` and `spread` of deviation.

    `bias` is its mean and `spread` its standard deviation; standard deviations are None for a single repeat.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row.matrix, row.estimator), []).append(row.deviation)
    facts = []
    for (matrix, name), values in groups.items():
        (mean, std), (bias, spread) = mean_and_deviation(np.abs(values)), mean_and_deviation(values)
        one: dict[str, Any] = {"matrix": matrix, "estimator": name, "repeats": len(values)}
        one |= {"mean": mean, "std": std, "bias": bias, "spread": spread}
        facts.append(one if len(values) > 1 else one | {"std": None, "spread": None})
    return facts


def _weights(name: str) -> str:
    return ESTIMATORS[name].weights


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _names(argument: str, names: Names, known: Collection[str]) -> list[str]:
    """The names asked for, each once and in their order; "all" for all."""
    chosen = list(known) if names == "all" else list(dict.fromkeys(_listed(names)))
    if not chosen:
        raise ConfigError(f"`{argument}` must name at least one, got none. Use 'all'.")
    for name in chosen:
        check_choice(argument, name, known)
    return chosen


def study_sheet(rows: Sequence[Row], data: str, protocol: str, error: str | None) -> Sheet:
    """An estimator in each row, the prediction matrices side by side."""
    construction = CONSTRUCTIONS[protocol]
    title = f"Estimates of the {error or construction.errors[0]} error of six predictions, {data}, protocol {protocol}"
    return _sheet(rows, title, "draws of the log", (f"{protocol}: {construction.citation}.",))


def construction_sheet() -> Sheet:
    """The public constructions of the study."""
    columns = ("protocol", "truth", "P(observed)", "error", "predictions", "beta")
    lines: list[dict[str, Value]] = [
        {
            "protocol": one.name,
            "truth": one.words[0],
            "P(observed)": one.words[1],
            "error": ", ".join(one.errors),
            "predictions": ", ".join(one.matrices),
            "beta": "uniform" if one.beta is None else f"{one.beta:g}",
        }
        for one in CONSTRUCTIONS.values()
    ]
    notes = tuple(f"{one.name}: {one.citation}." for one in CONSTRUCTIONS.values())
    return Sheet("Protocols of the bias study (`counterpoise bench bias`)", columns, lines, notes)


def fitted_sheet(rows: Sequence[Row]) -> Sheet:
    """A method in each row: the estimate by its weights alone, and its own risk."""
    notes = (
        f"{WEIGHTED}: of the weights alone, on errors that were to be expected. {OWN}: the estimate that the method "
        "minimised, on the labels that it learned from.",
    )
    return _sheet(rows, "Estimates of the ideal loss of trained predictors, simulated logs", "logs", notes)


def _sheet(rows: Sequence[Row], title: str, draws: str, notes: tuple[str, ...]) -> Sheet:
    facts = summary(rows)
    matrices = list(dict.fromkeys(fact["matrix"] for fact in facts))
    cells: dict[str, dict[str, Value]] = {}
    for fact in facts:
        spread = "" if fact["std"] is None else f" ({fact['std']:.3f})"
        row = cells.setdefault(fact["estimator"], {"estimator": fact["estimator"]})
        row[fact["matrix"]] = f"{fact['mean']:.3f}{spread} {fact['bias']:+.3f}"
    repeats = max(fact["repeats"] for fact in facts)
    note = f"|estimate - ideal| / ideal: mean (standard deviation) over {repeats} {draws}; then its mean with sign."
    return Sheet(title, ("estimator", *matrices), list(cells.values()), (note, *notes), facts)
