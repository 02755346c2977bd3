"""How far is each estimator's risk from the ideal loss? Known selection, repeated draws of the log, known answers.

`study` estimates the error of six fixed prediction matrices (Schnabel et al. 2016; Wang et al. 2019), `fitted` the
ideal loss of trained predictors on simulated logs. Both give one `Row` a measurement; `summary` makes a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, product
from typing import Any

import numpy as np
import torch

from counterpoise.bench.kept_rows import KeptRows
from counterpoise.bench.known_selection import Data, Draw, Floats, KnownSelection, known_selection, random_numbers
from counterpoise.bench.prediction_matrices import MATRICES, Ratings
from counterpoise.bench.risk_estimators import (
    ESTIMATORS,
    IMPUTATIONS,
    Errors,
    ImputedRatings,
    estimate,
    imputed_ratings,
    ratios,
)
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.making import canonical_name, make
from counterpoise.methods import METHODS
from counterpoise.simulation import simulate
from counterpoise.threads import one_blas_thread, one_thread

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

    Two rows for each: "weighted error", of the method's weights alone (`World.selection_bias`), and "own risk", the
    estimate that it minimised, made on the labels it learned from.
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
