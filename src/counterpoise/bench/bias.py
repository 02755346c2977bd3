"""How far is each estimator's risk from the ideal loss? Known selection, repeated draws of the log, known answers.

`study` estimates the error of six fixed prediction matrices (Schnabel et al. 2016; Wang et al. 2019), `fitted` the
ideal loss of trained predictors on simulated logs. Both give one `Row` a measurement; `summary` makes a table of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from counterpoise import risks
from counterpoise.bench.kept_rows import KeptRows
from counterpoise.bench.tables import Sheet
from counterpoise.data.datasets import load_dataset
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import FeedbackLog
from counterpoise.data.simulation import simulate
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.methods import METHODS, canonical_name, make
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.threads import one_blas_thread, one_thread
from counterpoise.training.context import FitContext
from counterpoise.training.contracts import FittedWeights, Weights
from counterpoise.training.loop import Training
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, Uniform, UnitWeights
from counterpoise.weights.propensity import KnownPropensity, Logistic, Popularity, Propensity

# Six predictions of a known rating matrix, each wrong in its own way: what estimators of the error are tried on.
#
# Schnabel et al. 2016 (Recommendations as Treatments, section 6) have ONE, FOUR, ROTATE, SKEW and CRS; THREE, between
# the first two, came with Wang et al. 2019 (Doubly Robust Joint Learning). Sources differ in two details. Here SKEW is
# clipped to the scale of the ratings, and CRS says 3 up to a true 3 and 4 above.

Ratings = NDArray[np.int64]  # (users, items), 1 to 5
Predictions = NDArray[np.float64]  # (users, items)


def flipped(ratings: Ratings, stars: int, rng: np.random.Generator) -> Predictions:
    """The truth, but as many ratings of `stars`, drawn at random, as there are of 5 are predicted as 5 (or all)."""
    predicted, places = ratings.astype(np.float64), np.flatnonzero(ratings == stars)
    count = min(int((ratings == 5).sum()), len(places))
    predicted.flat[rng.choice(places, count, replace=False)] = 5
    return predicted


def rotated(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """rating - 1, and 5 where the rating is 1."""
    return np.where(ratings >= 2, ratings - 1.0, 5.0)


def skewed(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """Normal around the rating with standard deviation (6 - rating) / 2, clipped to [1, 5]: surest of what is liked."""
    return np.clip(rng.normal(ratings, (6 - ratings) / 2), 1, 5)


def coarsened(ratings: Ratings, rng: np.random.Generator) -> Predictions:
    """3 where the rating is at most 3, else 4."""
    return np.where(ratings <= 3, 3.0, 4.0)


MATRICES: dict[str, Callable[[Ratings, np.random.Generator], Predictions]] = {
    "one": lambda ratings, rng: flipped(ratings, 1, rng),
    "three": lambda ratings, rng: flipped(ratings, 3, rng),
    "four": lambda ratings, rng: flipped(ratings, 4, rng),
    "rotate": rotated,
    "skew": skewed,
    "crs": coarsened,
}


# A complete rating matrix and the chance of every rating of being observed: a log whose truth is known.
#
# The design of Schnabel et al. 2016: complete a matrix, give it the rating distribution that was measured on items
# drawn at random, and let people rate what they like. So selection depends on the rating itself.

MARGINALS = (0.526, 0.242, 0.144, 0.062, 0.026)  # P(1) .. P(5) over all pairs (Marlin and Zemel 2009; Schnabel et al.)
PAIRS_LIMIT = 20_000_000  # pairs of which the whole matrix is held
Floats = NDArray[np.float64]
Features = NDArray[np.float64] | NDArray[np.float32] | None
Data = FeedbackLog | str | Path | None


def random_numbers(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator of its own for each purpose: what one draws does not depend on who else draws."""
    return np.random.default_rng([seed, *(crc32(str(word).encode()) for word in purpose)])


class Draw(NamedTuple):
    """One log that might have been observed, and a small uniform sample beside it; their ratings lie in [0, 1]."""

    log: FeedbackLog
    probe: FeedbackLog


@dataclass(frozen=True, eq=False)
class KnownSelection:
    """Every rating and every propensity, and the side features where there are any."""

    ratings: Ratings
    propensity: Floats  # (users, items)
    user_features: Features = None
    item_features: Features = None

    @property
    def has_side_features(self) -> bool:
        """Whether there is anything to balance without learning it."""
        return self.user_features is not None or self.item_features is not None

    def fingerprint(self) -> str:
        """A hash of all that is known."""
        arrays = (self.ratings, self.propensity, self.user_features, self.item_features)
        parts = (b"none" if array is None else str(array.shape).encode() + array.tobytes() for array in arrays)
        return hashlib.sha256(b"|".join(parts)).hexdigest()

    def observe(self, rng: np.random.Generator) -> Draw:
        """Every pair is observed with its propensity; the probe has as many uniform pairs as there are users."""
        observed = rng.random(self.ratings.shape) < self.propensity
        probed = rng.choice(self.ratings.size, min(len(self.ratings), self.ratings.size), replace=False)
        if not observed.any():
            raise DataError("no pair was observed in a draw. Take a larger matrix or a larger `density`.")
        return Draw(self._log(np.flatnonzero(observed)), self._log(np.sort(probed)))

    def _log(self, pairs: NDArray[np.int64]) -> FeedbackLog:
        users, items = np.divmod(pairs, self.ratings.shape[1])
        return FeedbackLog.from_arrays(
            users,
            items,
            (self.ratings.flat[pairs] - 1) / 4,
            user_ids=Vocabulary.numbered(self.ratings.shape[0]),
            item_ids=Vocabulary.numbered(self.ratings.shape[1]),
            user_features=self.user_features,
            item_features=self.item_features,
        )


def known_selection(
    data: Data = None,
    seed: int = 0,
    *,
    density: float = 0.05,
    alpha: float = 0.25,
    n_users: int = 500,
    n_items: int = 400,
) -> KnownSelection:
    """The design on `data`: a log of ratings, the name of a dataset or a file; None for a simulated preference.

    A log is completed by matrix factorisation (`completed`); of the simulated one (`n_users` x `n_items`) the
    preference of every pair is known, and side features are what it is made of.
    """
    scores, users, items = _simulated(n_users, n_items, seed) if data is None else _from_log(data, seed)
    ratings = ratings_by_rank(scores)
    return KnownSelection(ratings, selective_propensity(ratings, density, alpha), users, items)


def _simulated(n_users: int, n_items: int, seed: int) -> tuple[Floats, Features, Features]:
    world = simulate(n_users, n_items, seed=seed)
    return np.asarray(world.preference), world.user_features, world.item_features


def _from_log(data: FeedbackLog | str | Path, seed: int) -> tuple[Floats, Features, Features]:
    log = data if isinstance(data, FeedbackLog) else load_dataset(data).train
    return completed(log, seed), log.user_features, log.item_features


def completed(log: FeedbackLog, seed: int = 0) -> Floats:
    """A score for every pair, from matrix factorisation of the ratings. Only the order of the scores is used."""
    if log.n_pairs > PAIRS_LIMIT:
        raise DataError(
            f"the study holds all pairs in memory and takes {PAIRS_LIMIT:,} at most, got {log.n_pairs:,}. "
            "Give it a log of fewer users or items."
        )
    low, high = float(log.ratings.min()), float(log.ratings.max())
    if low == high:
        raise DataError(f"the ratings must differ, all of them are {low:g}.")
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


def noisy_propensity(propensity: Floats, rng: np.random.Generator) -> Floats:
    """1 / noisy = beta / propensity + (1 - beta) / density, beta uniform in [0, 1] for each pair (Wang et al. 2019).

    `density` is the mean propensity. beta = 1 is the truth, beta = 0 no correction.
    """
    beta = rng.random(propensity.shape)
    noisy: Floats = 1 / (beta / propensity + (1 - beta) / propensity.mean())
    return noisy


# Every estimator of the ideal loss that needs no trained predictor: weights x risk, by its name.
#
# `naive` is the mean over the log, `eib` imputes all that was not observed. The others are called `risk-weights`
# (`snips-logistic`) and, with the weights of a balancing method, `method-features` (`skb-dr-side`).

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

    def init(self, context: FitContext) -> FittedWeights:
        """For every rating that occurs, the weight that naive Bayes gives it against all others."""
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
    """The weights of a named method, in some of its features."""
    return lambda known, rng: make(f"{rule}-ips", features=features).weights


WEIGHTS: dict[str, Builder] = {
    "uniform": lambda known, rng: Uniform(),
    "unit": lambda known, rng: UnitWeights(),
    "true": lambda known, rng: KnownPropensity(known.propensity, clip=0),
    "noisy": lambda known, rng: KnownPropensity(noisy_propensity(known.propensity, rng), clip=0),
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
    "eib": Estimator("unit", "dr"),
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
    begun = part.init(_problem(draw, rng))

    def ratio_of(residuals: Tensor) -> Tensor:
        fitted_weights = deepcopy(begun)  # with its generator: what was solved before makes no difference
        fitted_weights.refresh(1, lambda: residuals.float())
        return fitted_weights.ratio.double()

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
    for rows, others in _problem(draw, rng).k_fold(FOLDS[imputation]):
        scorer, own = others.fit_labels(MatrixFactorization(dim=4)), rows.numpy()
        ratings = 1 + 4 * torch.sigmoid(scorer.grid(torch.arange(log.shape[0]))).double().numpy()
        on_log[own] = ratings[log.users[own], log.items[own]]
        on_pairs.append(ratings)
    return ImputedRatings(on_log, np.stack(on_pairs))


def _problem(draw: Draw, rng: np.random.Generator) -> FitContext:
    generator, device = torch.Generator().manual_seed(int(rng.integers(2**62))), torch.device("cpu")
    return FitContext(draw.log, draw.probe, MatrixFactorization(), Training(device="cpu"), device, generator)


ErrorOf = Callable[[Any, Floats], Floats]  # of (ratings, predictions), pair by pair
ERRORS: dict[str, ErrorOf] = {
    "absolute": lambda ratings, predicted: np.abs(ratings - predicted),
    "squared": lambda ratings, predicted: np.square(ratings - predicted),
}
WEIGHTED, OWN = "weighted error", "own risk"  # what `fitted` measures of a predictor
Progress = Callable[[int, int], None]  # (done, total)
Names = str | Sequence[str]


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
    error: str = "absolute",
    imputation: str = "constant",
    kept: KeptRows | None = None,
) -> list[Row]:
    """Every estimator on every matrix, for `repeats` draws of the log.

    `data`: see `known_selection`, or one that was made by it. `estimators`: names of `ESTIMATORS`; "all" leaves those
    of side features out where there are none. `error`: "absolute" or "squared" difference to the rating.
    `imputation`: the rating that imputed errors are taken against, "constant", "learned" or "cross-fitted", see
    `imputed_ratings`. `kept`: a folder of what was measured before.
    A result depends on `seed`, its repeat and its own names alone, not on what else was asked for.
    """
    check_number("repeats", repeats, at_least=1, integer=True)
    check_number("seed", seed, at_least=0, integer=True)
    chosen, predictions = _names("estimators", estimators, ESTIMATORS), _names("matrices", matrices, MATRICES)
    check_choice("error", error, ERRORS)
    check_choice("imputation", imputation, IMPUTATIONS)
    known = data if isinstance(data, KnownSelection) else known_selection(data, seed)
    if estimators == "all" and not known.has_side_features:
        chosen = [name for name in chosen if not name.endswith("-side")]
    rows, how = [], (chosen, predictions, seed, error, imputation)
    facts = {} if kept is None else {"data": known.fingerprint(), "how": how}
    for repeat in range(repeats):
        work = partial(measure, repeat, known, *how)
        rows += work() if kept is None else _kept(kept, "draw", facts | {"repeat": repeat}, work)
        if progress is not None:
            progress(repeat + 1, repeats)
    return rows


def measure(
    repeat: int,
    known: KnownSelection,
    estimators: Sequence[str],
    matrices: Sequence[str],
    seed: int = 0,
    error: str = "absolute",
    imputation: str = "constant",
) -> list[Row]:
    """One draw of the log: the unit of work, a function of its arguments alone."""
    draw = known.observe(random_numbers(seed, "log", repeat))
    ideals, errors = {}, {}
    with one_thread(), one_blas_thread():
        imputed = imputed_ratings(imputation, draw, random_numbers(seed, "imputation", repeat))
        for matrix in matrices:
            predicted = MATRICES[matrix](known.ratings, random_numbers(seed, "matrix", matrix))
            errors[matrix], ideals[matrix] = errors_of(predicted, known.ratings, imputed, draw, ERRORS[error])
        found = _estimates(estimators, errors, known, draw, seed, repeat)
    return [
        Row(matrix, name, repeat, ideals[matrix], found[name, matrix] / ideals[matrix] - 1)
        for matrix in matrices
        for name in estimators
    ]


def _estimates(
    estimators: Sequence[str], errors: dict[str, Errors], known: KnownSelection, draw: Draw, seed: int, repeat: int
) -> dict[tuple[str, str], float]:
    """By (estimator, matrix); estimators with the same weights share them."""
    found = {}
    for weights, names in groupby(sorted(estimators, key=_weights), key=_weights):
        ratio_of = ratios(weights, known, draw, random_numbers(seed, "weights", weights, repeat))
        for name, matrix in product(names, errors):
            found[name, matrix] = estimate(ESTIMATORS[name].risk, errors[matrix], ratio_of)
    return found


def errors_of(
    predicted: Floats, ratings: Ratings, imputed: ImputedRatings, draw: Draw, error: ErrorOf
) -> tuple[Errors, float]:
    """The errors that estimators see, and the mean error over all pairs that they do not."""
    whole, rows = error(ratings, predicted), (draw.log.users, draw.log.items)
    if not whole.any():
        raise DataError("a prediction matrix has no error on so few ratings. Take a larger matrix.")
    guessed = error(imputed.on_log, predicted[rows]), error(imputed.on_pairs, predicted).ravel()
    return Errors(*map(torch.from_numpy, (whole[rows], *guessed))), float(whole.mean())


def fitted(
    methods: Names = "all",
    seeds: int | Iterable[int] = 4,
    progress: Progress | None = None,
    kept: KeptRows | None = None,
    **world: Any,
) -> list[Row]:
    """Named methods, each fitted to the same simulated logs; `seeds`: how many, or which. `world`: see `simulate`.

    Two rows for each: "weighted error", of the method's weights alone (`SimulatedData.selection_bias`), and "own risk",
    the estimate that it minimised, made on the labels it learned from.
    """
    chosen = list(METHODS) if methods == "all" else [canonical_name(name) for name in _listed(methods)]
    if isinstance(seeds, int):
        check_number("seeds", seeds, at_least=1, integer=True)
        seeds = range(seeds)
    worlds = list(seeds)
    rows = []
    for done, (seed, method) in enumerate(((seed, method) for seed in worlds for method in chosen), 1):
        work = partial(measure_fit, method, seed, **world)
        facts = {"method": make(method).to_config(), "seed": seed, "world": world}
        rows += work() if kept is None else _kept(kept, f"fit-{method}", facts, work)
        if progress is not None:
            progress(done, len(worlds) * len(chosen))
    return rows


def _kept(kept: KeptRows, name: str, facts: Mapping[str, Any], work: Callable[[], list[Row]]) -> list[Row]:
    """The rows that a folder has, or those of the work."""
    try:
        return [Row(**row) for row in kept.get(name, facts, lambda: [row.to_dict() for row in work()])]
    except TypeError:
        raise DataError(f"{kept.path(name, facts)} holds other rows. Delete it, and it is measured again.") from None


def measure_fit(method: str, seed: int, **world: Any) -> list[Row]:
    """One method on one simulated log: the unit of work, a function of its arguments alone."""
    truth = simulate(seed=seed, **world)
    model = make(method, seed=seed, device="cpu").fit(truth.dataset.train, probe=truth.dataset.probe)
    ideal = truth.ideal_risk(model)
    return [
        Row(WEIGHTED, method, seed, ideal, truth.selection_bias(model, model.ratio_)),
        Row(OWN, method, seed, ideal, model.facts_["risk"] / ideal - 1),
    ]


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For every matrix and estimator, over repeats: `mean` and `std` of |deviation|, `bias` and `spread` of deviation.

    `bias` is its mean and `spread` its standard deviation; standard deviations are None for a single repeat.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row.matrix, row.estimator), []).append(row.deviation)
    return [
        {"matrix": matrix, "estimator": name} | _facts(np.array(values)) for (matrix, name), values in groups.items()
    ]


def _facts(deviations: Floats) -> dict[str, Any]:
    absolute, several = np.abs(deviations), len(deviations) > 1
    return {
        "repeats": len(deviations),
        "mean": float(absolute.mean()),
        "std": float(absolute.std(ddof=1)) if several else None,
        "bias": float(deviations.mean()),
        "spread": float(deviations.std(ddof=1)) if several else None,
    }


def _weights(name: str) -> str:
    return ESTIMATORS[name].weights


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _names(argument: str, names: Names, known: dict[str, Any]) -> list[str]:
    """The names asked for, each once and in their order; "all" for all."""
    chosen = list(known) if names == "all" else list(dict.fromkeys(_listed(names)))
    if not chosen:
        raise ConfigError(f"`{argument}` must name at least one, got none. Use 'all'.")
    for name in chosen:
        check_choice(argument, name, known)
    return chosen


# The bias study as tables to read: an estimator in each row, a predictor in each column.

CELLS = "|estimate - ideal| / ideal: mean (standard deviation) over {repeats} {draws}; then its mean with sign."


def study_sheet(rows: Sequence[Row], data: str) -> Sheet:
    """The six matrices side by side."""
    return _sheet(rows, f"Estimates of the error of six predictions, {data}", "draws of the log")


def fitted_sheet(rows: Sequence[Row]) -> Sheet:
    """What the weights of trained predictors say of their ideal loss, and what their own risks say."""
    notes = (
        f"{WEIGHTED}: of the weights alone, on errors that were to be expected. {OWN}: the estimate that the method "
        "minimised, on the labels that it learned from.",
    )
    return _sheet(rows, "Estimates of the ideal loss of trained predictors, simulated logs", "logs", notes)


def _sheet(rows: Sequence[Row], title: str, draws: str, notes: tuple[str, ...] = ()) -> Sheet:
    facts = summary(rows)
    matrices = list(dict.fromkeys(fact["matrix"] for fact in facts))
    cells: dict[str, dict[str, str | float | int | None]] = {}
    for fact in facts:
        spread = "" if fact["std"] is None else f" ({fact['std']:.3f})"
        row = cells.setdefault(fact["estimator"], {"estimator": fact["estimator"]})
        row[fact["matrix"]] = f"{fact['mean']:.3f}{spread} {fact['bias']:+.3f}"
    how = CELLS.format(repeats=max(fact["repeats"] for fact in facts), draws=draws)
    return Sheet(title, ("estimator", *matrices), list(cells.values()), (how, *notes), facts)
