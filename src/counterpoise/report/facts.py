"""The facts of a report, JSON-able: the log and its selection, balance, weights, the model on the test, and lists.

`gather` puts them together. The page shows nothing that is not among them.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise import __version__
from counterpoise.balance.covariate_balance import feature_balance
from counterpoise.balance.diagnostics import group_effective_sample_sizes, held_out_imbalance, weight_facts
from counterpoise.balance.features import side_features, side_names, standardised
from counterpoise.balance.population import Pairs
from counterpoise.data.feedback import words_of
from counterpoise.data.log import FeedbackLog
from counterpoise.data.protocols import find_protocol
from counterpoise.data.splits import cold_counts
from counterpoise.errors import CounterpoiseError, DataError
from counterpoise.evaluation.baselines import clicks_rankings, fit_baselines, weighted_evaluations
from counterpoise.evaluation.calibration import calibration_bins, calibration_error, wilson_interval
from counterpoise.evaluation.evaluate import (
    Evaluation,
    binary_labels,
    difference_facts,
    paired_differences,
    resampled_evaluation,
)
from counterpoise.evaluation.full_ranking import MEASURES, RankingEvaluation
from counterpoise.evaluation.metrics import LOWER_IS_BETTER, METRIC_NAMES
from counterpoise.evaluation.weighted import weighted_differences
from counterpoise.methods import METHODS, canonical_name
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.context import Floats, ReportContext, WeightedRows, seen_pairs
from counterpoise.report.definitions import definitions
from counterpoise.report.path import path_of
from counterpoise.report.summary import CUSTOM, headline, overall_verdict, summary
from counterpoise.training.summary import correction_sentences

Codes = NDArray[np.int64]
SIDES = ("user", "item")
PRINCIPAL_COMPONENTS = 4  # of the embeddings of users and of items, compared as features
CURVE_POINTS = 50  # of the concentration curves
WEIGHT_BINS = 40  # of the histogram of weights
COUNT_GROUPS = 10  # groups of rows by popularity or activity, of about equal size
HEAVIEST_ROWS = 10  # rows listed by descending weight
MAX_HISTORY_POINTS = 150  # epochs drawn in a learning curve
EXAMPLE_USERS = 6  # users whose lists are shown
MAX_LISTED_USERS = 2000  # users whose lists are counted
QUANTILES = {"min": 0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1}
PACKAGES = ("numpy", "scipy", "torch", "polars")


def gather(context: ReportContext) -> dict[str, Any]:
    """The facts of the report of one run."""
    rows, fit, encoders = context.weighted_rows(), context.model.facts_, context.model.side_encoders_.values()
    gathered: dict[str, Any] = {
        "format": "counterpoise-report",
        "feedback": context.feedback,
        "version": __version__,
        "run": context.name,
        "notes": [*context.notes, *(found.summary() for found in encoders if found is not None and found.is_partial_)],
        "stopped": context.stopped,
        "method": _method(context),
        "log": log_facts(context, rows),
        "balance": balance_facts(context, rows, fit["weights"]),
        "weights": weights_facts(context, rows, fit["weights"]),
        "model": model_facts(context, fit),
        "lists": list_facts(context),
        "configuration": configuration_facts(context),
    }
    facts = as_json(gathered)
    written = {"headline": headline(facts), "summary": summary(facts), "definitions": definitions(facts["feedback"])}
    return facts | {"verdict": overall_verdict(facts)} | written


def as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as a reader of the JSON file gets them: None for nan, lists for tuples."""
    return dict(json.loads(json.dumps(facts), parse_constant=lambda word: None))


def log_facts(context: ReportContext, rows: WeightedRows) -> dict[str, Any]:
    """Size of the log, concentration over users and items, label rates of the log, weighted, of probe and test."""
    n_users, n_items = context.shape
    activity, popularity = _counts(*seen_pairs(context.model.seen_), context.shape)
    ratings = int(activity.sum())
    return {
        "name": None if context.dataset is None else context.dataset.name,
        "rows": ratings,
        "users": n_users,
        "items": n_items,
        "density": ratings / (n_users * n_items),
        "activity": concentration(activity),
        "popularity": concentration(popularity),
        "label_rates": _label_rates(context, rows),
    }


def _counts(users: NDArray[Any], items: NDArray[Any], shape: tuple[int, int]) -> tuple[Codes, Codes]:
    """(rows of each user, rows of each item)."""
    return np.bincount(users, minlength=shape[0]), np.bincount(items, minlength=shape[1])


def concentration(counts: ArrayLike) -> dict[str, Any]:
    """The concentration of ratings on users or items: quantiles, top tenth, Gini, and the curve of shares."""
    values = np.asarray(counts)
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "max": int(values.max()),
        "zero": int((values == 0).sum()),
        "top_tenth_share": share_of_top(values, 0.1),
        "gini": gini(values),
        "curve": [[share, share_of_top(values, share)] for share in np.linspace(0, 1, CURVE_POINTS + 1).tolist()],
    }


def gini(counts: ArrayLike) -> float:
    """sum_i (2 i - n - 1) x_(i) / (n sum_i x_i), x ascending: 0 where all are equal, near 1 where one has all."""
    values = np.sort(np.asarray(counts, dtype=np.float64))
    places = 2 * np.arange(1, len(values) + 1) - len(values) - 1
    return float(places @ values / (len(values) * values.sum()))


def share_of_top(counts: ArrayLike, share: float) -> float:
    """The share of all ratings held by the top `share` of the counts, interpolated between counts."""
    values = np.sort(np.asarray(counts, dtype=np.float64))[::-1]
    held = np.concatenate([[0.0], np.cumsum(values)])
    return float(np.interp(share * len(values), np.arange(len(held)), held) / held[-1])


def _label_rates(context: ReportContext, rows: WeightedRows) -> list[dict[str, Any]]:
    """The label rate of each sample; uniform samples have a Wilson interval."""
    facts = context.model.log_facts_
    rates = [{"sample": "log", "rate": facts["mean_label"], "rows": facts["rows"], "interval": None}]
    if rows.ratio is not None and rows.labels is not None and np.ptp(rows.ratio) > 0:
        rate = float(rows.ratio @ rows.labels / rows.ratio.sum())
        rates.append({"sample": "log, weighted", "rate": rate, "rows": len(rows.ratio), "interval": None})
    samples = {"probe": None if context.dataset is None else context.dataset.probe, "test": context.test}
    for name, log in samples.items():
        if log is not None and len(log) and (name == "probe" or log.sample == "uniform"):
            rate = float(log.labels.mean())
            interval = wilson_interval(rate, len(log))
            rates.append({"sample": name, "rate": rate, "rows": len(log), "interval": interval})
    return rates


def balance_facts(context: ReportContext, rows: WeightedRows, fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Balance of features and of held-out functions, and the certificate in `fitted`, the facts of the weights."""
    tables = feature_tables(context, rows)
    before, after = fitted.get("held_out_before"), fitted.get("held_out_after")
    return {
        "weighted": rows.ratio is not None and bool(np.ptp(rows.ratio) > 0),
        "features": [balance_of(name, side, values, rows) for name, side, values in tables],
        "held_out": _held_out(tables, rows),
        "held_out_of_method": {"before": before, "after": after} if before and after else None,
        "functions": _functions(fitted),
        "relaxed": fitted.get("relaxed"),
        "status": fitted.get("status"),
        "gap": fitted.get("gap"),
        "path": path_of(fitted),
    }


def feature_tables(context: ReportContext, rows: WeightedRows) -> list[tuple[str, int, Floats]]:
    """(name, 0 for users or 1 for items, a value for each): activity, side features, principal components."""
    found = []
    for side, (who, counts) in enumerate(zip(SIDES, _counts(rows.users, rows.items, context.shape), strict=True)):
        found.append((("user activity", "item popularity")[side], side, np.log1p(counts)))
        if context.train is not None:
            names, given = side_names(context.train)[side], side_features(context.train)[side]
            found += [(name, side, values) for name, values in zip(names, given.T, strict=True)]
        components = principal_components((context.baseline or context.model).embeddings()[side], PRINCIPAL_COMPONENTS)
        found += [(f"{who} embedding PC {place}", side, values) for place, values in enumerate(components.T, start=1)]
    return found


def principal_components(table: NDArray[Any], count: int) -> Floats:
    """The first principal component scores (rows, count) of a table.

    The sign of a component is that of its largest loading, so that it does not depend on the machine.
    """
    centred = np.asarray(table, np.float64) - np.mean(table, axis=0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    kept = directions[:count][sizes[:count] > 1e-9 * max(sizes.max(initial=0), 1e-300)]
    if not kept.size:
        return np.empty((len(centred), 0))
    signs = np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])
    coordinates: Floats = centred @ (kept * signs[:, None]).T
    return coordinates


def balance_of(name: str, side: int, values: Floats, rows: WeightedRows) -> dict[str, Any]:
    """One feature of users or of items, before and after weighting, against all pairs.

    The sums run over users (or items), not over pairs: over the log each has its rows as weight, over all pairs each
    has the same weight.
    """
    codes = (rows.users, rows.items)[side]
    before = np.bincount(codes, minlength=len(values)).astype(np.float64)
    ratio = np.ones(len(codes)) if rows.ratio is None else rows.ratio
    after = np.bincount(codes, ratio, minlength=len(values)).astype(np.float64)
    found = asdict(feature_balance(name, values, before, after, values, np.ones(len(values))))
    if rows.ratio is None:
        found |= {key: None for key in found if key.endswith("_after")}
    return found | {"of": SIDES[side]}


def _held_out(tables: list[tuple[str, int, Floats]], rows: WeightedRows) -> dict[str, Any] | None:
    """Imbalance of random kernel functions of all these features, which no method balanced."""
    sides = [[values for _, of, values in tables if of == side] for side in (0, 1)]
    pairs = Pairs(*(torch.from_numpy(standardised(np.column_stack(columns))) for columns in sides))
    if pairs.n_columns == 0:
        return None
    observed = pairs.at(*(torch.from_numpy(np.asarray(codes, np.int64)) for codes in (rows.users, rows.items)))
    before = held_out_imbalance(observed, torch.ones(len(rows.users)), pairs)
    after = None if rows.ratio is None else before
    if before is not None and rows.ratio is not None and np.ptp(rows.ratio) > 0:
        after = held_out_imbalance(observed, torch.from_numpy(rows.ratio), pairs)
    return None if before is None else {"before": before, "after": after}


def _functions(fitted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each balanced function of each fold: imbalance before and after, dual value, and whether it was relaxed."""
    keys = ("before_sd", "after_sd", "dual_value", "relaxed")
    found = []
    for fold, part in enumerate(fitted.get("balanced", []), start=1):
        for name, *values in zip(part["names"], *(part[key] for key in keys), strict=True):
            found.append({"name": name, "fold": fold, **dict(zip(keys, values, strict=True))})
    return found


def weights_facts(context: ReportContext, rows: WeightedRows, fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Effective sample size, tail, histogram and groups of the weights; few of the `fitted` facts where `uniform`."""
    ratio = context.model.ratio_.astype(np.float64)
    scalars = {key: value for key, value in fitted.items() if isinstance(value, int | float | str) or value is None}
    found: dict[str, Any] = {"rows": len(ratio), "uniform": bool(np.ptp(ratio) == 0), "facts": scalars}
    if found["uniform"]:
        return found
    relative = ratio / ratio.mean()
    found |= weight_facts(ratio) | {"quantiles": _quantiles(relative), "histogram": histogram(relative)}
    if rows.ratio is None:
        return found
    users, items = _counts(rows.users, rows.items, context.shape)
    labels = rows.labels
    labelled = {} if labels is None else {"positive": labels >= 0.5, "negative": labels < 0.5}
    return found | {
        "per_user": _groups(rows.ratio, rows.users, users),
        "per_item": _groups(rows.ratio, rows.items, items),
        "by_popularity": weight_by_count(relative, items[rows.items]),
        "by_activity": weight_by_count(relative, users[rows.users]),
        "by_label": [
            {"label": name, "rows": int(which.sum()), "mean": float(relative[which].mean())}
            for name, which in labelled.items()
            if which.any()
        ],
        "heaviest": _heaviest(context, rows, relative, (users, items)),
    }


def _quantiles(values: Floats) -> dict[str, float]:
    return dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))


def histogram(relative: Floats, bins: int = WEIGHT_BINS) -> list[dict[str, float]]:
    """Rows in bins of equal width in the logarithm of weight / mean weight."""
    counts, edges = np.histogram(np.log10(relative.clip(min=1e-6)), bins=bins)
    return _bins(counts, 10**edges)


def _bins(counts: NDArray[Any], edges: NDArray[Any]) -> list[dict[str, float]]:
    triples = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    return [{"low": low, "high": high, "rows": count} for low, high, count in triples]


def _groups(ratio: Floats, codes: NDArray[Any], counts: Codes) -> dict[str, Any]:
    """Effective sample sizes of the users (items) with rows, and their ratio to the number of these rows."""
    sizes = group_effective_sample_sizes(ratio, codes, len(counts))[counts > 0]
    shares = sizes / counts[counts > 0]
    return {
        "groups": len(sizes),
        "sizes": _quantiles(sizes),
        "shares": _quantiles(shares),
        "share_histogram": _bins(*np.histogram(shares, bins=20, range=(0, 1))),
    }


def weight_by_count(relative: Floats, counts: NDArray[Any], groups: int = COUNT_GROUPS) -> list[dict[str, float]]:
    """Mean weight and its 10% and 90% quantiles in groups of rows by the ratings of their item (or user)."""
    borders = np.unique(np.quantile(counts, np.arange(1, groups) / groups))
    place = np.searchsorted(borders, counts, side="right")
    found = []
    for inside in (place == group for group in np.unique(place)):
        ratings, weights = counts[inside], relative[inside]
        group = {"ratings": float(np.median(ratings)), "from": int(ratings.min()), "to": int(ratings.max())}
        group |= {"rows": len(weights), "mean": float(weights.mean())}
        found.append(group | dict(zip(("low", "high"), np.quantile(weights, [0.1, 0.9]).tolist(), strict=True)))
    return found


def _heaviest(
    context: ReportContext, rows: WeightedRows, relative: Floats, counts: tuple[Codes, Codes]
) -> list[dict[str, Any]]:
    """The rows with the largest weights."""
    top = np.argsort(-relative, kind="stable")[:HEAVIEST_ROWS]
    users, items = rows.users[top], rows.items[top]
    names, ids = context.model.item_names_, context.model.item_ids_.decode(items)
    columns = {
        "user": map(str, context.model.user_ids_.decode(users)),
        "item": map(str, ids) if names is None else names.of(ids),
        "label": [None] * len(top) if rows.labels is None else rows.labels[top].tolist(),
        "weight": relative[top].tolist(),
        "user_ratings": counts[0][users].tolist(),
        "item_ratings": counts[1][items].tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def model_facts(context: ReportContext, fit: Mapping[str, Any]) -> dict[str, Any]:
    """Learning curves, metrics on the test, calibration, missingness model, exposure and ordinal facts."""
    model, baseline = context.model, context.baseline
    exposure = getattr(model.scorer_, "exposure_coefficients", None)
    outcome = fit["imputation"].get("exposure_coefficients")
    return {
        "learning": learning_curve(model.history_.to_dict()),
        "baseline_learning": None if baseline is None else learning_curve(baseline.history_.to_dict()),
        "risk": fit["risk"],
        "error_on_log": fit["error_on_log"],
        "imputation": {key: value for key, value in fit["imputation"].items() if isinstance(value, int | float | str)},
        "exposure_coefficients": _by_side(None if exposure is None else exposure.cpu().tolist()),
        "outcome_coefficients": _by_side(outcome),
        "intercept_shift": fit.get("intercept_shift"),
        "ordinal": fit.get("ordinal"),
        "factors": fit.get("factors"),
        "inactive": fit.get("inactive", {}),
        "corrections": correction_sentences(fit, model.log_facts_["rows"]),
        "ensemble": fit.get("ensemble"),
        "probe": fit.get("probe"),
        "truth": context.manifest.get("truth"),
        "demo": context.manifest.get("demo"),
        **_on_test(context),
    }


def _by_side(coefficients: list[float] | None) -> dict[str, float] | None:
    """Log odds for a standard deviation of the exposure of user, item and pair."""
    return None if coefficients is None else dict(zip((*SIDES, "pair"), coefficients, strict=True))


def learning_curve(history: Mapping[str, Any]) -> dict[str, Any]:
    """Loss and held-out risk by epoch, at most `MAX_HISTORY_POINTS` of them, the last one included."""
    epochs = len(history["loss"])
    shown = np.unique(np.linspace(0, epochs - 1, min(epochs, MAX_HISTORY_POINTS)).round().astype(int))
    held_out = history["held_out_risk"]
    return {
        "epochs": epochs,
        "best_epoch": history["best_epoch"],
        "seconds": history["seconds"],
        "loss": [[int(epoch) + 1, history["loss"][epoch]] for epoch in shown],
        "held_out_risk": [[int(epoch) + 1, held_out[epoch]] for epoch in shown] if held_out else [],
    }


def _models(context: ReportContext) -> dict[str, DebiasedRecommender]:
    """The model and the baseline, where there is one."""
    return {"run": context.model} | ({} if context.baseline is None else {"baseline": context.baseline})


def _on_test(context: ReportContext) -> dict[str, Any]:
    """Metrics of the model and of the baseline on the test, their paired differences, and calibration."""
    log = context.test
    if log is None:
        kept = {"evaluation": context.manifest.get("evaluation"), "weighted": None, "ranking": None}
        return kept | {"metrics": [], "test": None, "calibration": {}}
    if log.feedback == context.feedback == "clicks":
        return _on_clicks(context, log)
    labels, found, calibration = binary_labels(log), {}, {}
    for which, model in _models(context).items():
        scores = model.predict_log(log, unknown_users="popular", unknown_items="popular").astype(np.float64)
        found[which] = resampled_evaluation(scores, log, context.k)
        bins = calibration_bins(scores, labels)
        calibration[which] = {"bins": [one.to_dict() for one in bins], "error": calibration_error(bins)}
    differences = paired_differences(found["run"], found["baseline"]) if "baseline" in found else {}
    evaluations = {which: resampled.evaluation.to_dict() for which, resampled in found.items()}
    metrics = []
    for name in METRIC_NAMES:
        row = metric_facts(name, context.k)
        for which, evaluation in evaluations.items():
            row[which] = {"value": evaluation[name], "interval": evaluation["intervals"].get(name)}
        metrics.append(row | (difference_facts(name, differences[name]) if differences else {}))
    test = {"name": context.test_name, "sample": log.sample, "rows": len(log), "users": evaluations["run"]["n_users"]}
    test |= cold_counts(log, context.model.cold_rows(log))
    facts = {"test": test, "evaluation": evaluations["run"], "metrics": metrics, "calibration": calibration}
    return facts | {"ranking": None} | {"weighted": weighted_facts(_models(context), context, log, ["popularity"])}


def _on_clicks(context: ReportContext, log: FeedbackLog) -> dict[str, Any]:
    """The full-ranking evaluation of the clicks of a test."""
    test = {"name": context.test_name, "sample": log.sample, "rows": len(log), "users": len(np.unique(log.users))}
    test |= cold_counts(log, context.model.cold_rows(log))
    ranking = ranking_facts(_models(context), context, log, ["popularity"])
    nothing: dict[str, Any] = {"evaluation": None, "metrics": [], "calibration": {}, "weighted": None}
    return nothing | {"test": test, "ranking": ranking}


def ranking_facts(
    models: dict[str, DebiasedRecommender], context: ReportContext, log: FeedbackLog, baselines: Sequence[str] = ()
) -> dict[str, Any]:
    """The full rankings of the clicks of a test by some models, or the reason why there are none.

    `baselines`: the names of methods to fit to the log for comparison, unless the run is one of them.
    """
    settings, own = context.configuration.get("settings", {}), _method(context)["name"]
    try:
        train = context.train
        wanted = [name for name in baselines if name != own]
        fitted = {} if train is None else fit_baselines(context.model, train, settings, wanted)
        found = clicks_rankings(models | fitted, log, context.k)
    except CounterpoiseError as error:
        return _not_weighted(error)
    return _weighted_models(found)


def _weighted_models(found: Mapping[str, Evaluation | RankingEvaluation]) -> dict[str, Any]:
    """Evaluations by the same weights, and the paired difference of each from the `reference`.

    The reference is the baseline, or without one the first of several runs.
    """
    reference = "baseline" if "baseline" in found else next(iter(found))
    differences = {
        name: {
            metric: difference_facts(metric, difference)
            for metric, difference in weighted_differences(evaluation, found[reference]).items()
            if metric in METRIC_NAMES or metric in MEASURES  # calibration has no direction
        }
        for name, evaluation in found.items()
        if name != reference
    }
    models = {name: evaluation.to_dict() for name, evaluation in found.items()}
    return {"reason": None, "models": models, "reference": reference, "differences": differences}


def _not_weighted(error: CounterpoiseError) -> dict[str, Any]:
    return {"reason": str(error).rstrip("."), "models": {}, "reference": None, "differences": {}}


def weighted_facts(
    models: dict[str, DebiasedRecommender], context: ReportContext, log: FeedbackLog, baselines: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Weighted estimates of models on a biased test, or the reason why there are none; None on other tests.

    `context`: has the training log. `baselines`: the names of methods to fit to it for comparison.
    """
    dataset, configuration = context.dataset, context.configuration
    if log.sample == "uniform" or find_protocol(configuration.get("protocol", "honest")).keeps_seen:
        return None
    if dataset is None:
        return _not_weighted(DataError("the log could not be read"))
    try:
        fitted = fit_baselines(context.model, dataset.train, configuration.get("settings", {}), baselines)
        found = weighted_evaluations(models | fitted, replace(dataset, test=log), context.k)
    except CounterpoiseError as error:
        return _not_weighted(error)
    return _weighted_models(found)


def metric_facts(name: str, k: int) -> dict[str, Any]:
    """The key of a metric, its title, and in which direction it is better."""
    return {"metric": name, "name": METRIC_NAMES[name].format(k=k), "lower_is_better": name in LOWER_IS_BETTER}


def list_facts(context: ReportContext) -> dict[str, Any]:
    """Lists of some users, from the least to the most active, and coverage and popularity over a sample of users."""
    activity, popularity = _counts(*seen_pairs(context.model.seen_), context.shape)
    sample = np.unique(np.linspace(0, len(activity) - 1, min(MAX_LISTED_USERS, len(activity))).astype(np.int64))
    lists = {name: _lists(model, sample, context.k) for name, model in _models(context).items()}
    examples = spread_by_activity(activity, EXAMPLE_USERS).tolist()
    return {
        "k": context.k,
        "users": [_example(context, user, activity, popularity) for user in examples],
        "sampled_users": len(sample),
        "overlap": overlap(lists["baseline"], lists["run"]) if "baseline" in lists else None,
        **{name: _coverage(found, popularity) for name, found in lists.items()},
    }


def spread_by_activity(activity: NDArray[Any], count: int) -> Codes:
    """Users from the least to the most active, at equal steps of rank; only users with ratings."""
    order = np.argsort(activity, kind="stable")
    order = order[activity[order] > 0]
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64)
    return order[np.unique(places)]


def overlap(first: list[list[int]], second: list[list[int]]) -> float:
    """The mean over users of the share of the second list that is in the first; nan without lists."""
    if not second:
        return math.nan
    return float(np.mean([len(set(a) & set(b)) / max(1, len(b)) for a, b in zip(first, second, strict=True)]))


def _lists(model: DebiasedRecommender, users: Codes, k: int) -> list[list[int]]:
    """The item codes of each user's list; users who have seen all items have none."""
    frame = model.recommend(model.user_ids_.decode(users), k=k)
    codes = model.item_ids_.encode(frame["item_id"])
    starts = np.flatnonzero(frame["rank"].to_numpy() == 1)
    return [part.tolist() for part in np.split(codes, starts)[1:]]


def _coverage(lists: list[list[int]], popularity: Codes) -> dict[str, float]:
    """Distinct items listed, their mean popularity rank, and the share from the most popular tenth; nan without."""
    shown = np.concatenate([np.empty(0, np.int64), *(np.asarray(part, np.int64) for part in lists)])
    if not len(shown):
        return {"items_shown": 0, "popularity_rank": math.nan, "top_tenth": math.nan}
    below = np.searchsorted(np.sort(popularity), popularity, side="left") / len(popularity)
    top = np.argsort(-popularity, kind="stable")[: max(1, len(popularity) // 10)]
    return {
        "items_shown": len(np.unique(shown)),
        "popularity_rank": float(below[shown].mean()),
        "top_tenth": float(np.isin(shown, top).mean()),
    }


def _example(context: ReportContext, user: int, activity: Codes, popularity: Codes) -> dict[str, Any]:
    """The lists of one user; `new` marks items that are not in the baseline's list."""
    name = context.model.user_ids_.decode([user])
    found: dict[str, Any] = {"user": str(name[0]), "ratings": int(activity[user])}
    for which, model in _models(context).items():
        frame = model.recommend(name, k=context.k)
        ratings = popularity[model.item_ids_.encode(frame["item_id"])].tolist()
        entries = zip(frame["item_id"], frame["score"], ratings, strict=True)
        found[which] = [{"item": str(i), "score": float(s), "ratings": n} for i, s, n in entries]
        if context.model.item_names_ is not None:
            for entry, title in zip(found[which], context.model.item_names_.of(frame["item_id"]), strict=True):
                entry["name"] = title
    known = {entry["item"] for entry in found.get("baseline", [])}
    for entry in found["run"]:
        entry["new"] = bool(known) and entry["item"] not in known
    return found


def configuration_facts(context: ReportContext) -> dict[str, Any]:
    """The settings of the fit, its data, times and versions."""
    manifest, model = context.manifest, context.model
    baseline = None if context.baseline is None else context.baseline.history_
    return {
        "fit": dict(context.configuration),
        "settings": flat(model.configuration_),
        "seed": model.training.seed,
        "fit_version": manifest.get("version", __version__),
        "fit_seconds": manifest.get("seconds", model.history_.seconds),
        "baseline_seconds": None if baseline is None else baseline.seconds,
        "baseline_epochs": None if baseline is None else len(baseline.loss),
        "dataset": manifest.get("dataset") or (context.dataset.description if context.dataset else {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of this package, Python and the packages that compute."""
    found = {"counterpoise": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def flat(configuration: Any, name: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    if not isinstance(configuration, dict):
        return {name: configuration}
    found: dict[str, Any] = {}
    for key, value in configuration.items():
        found |= flat(value, f"{name}.{key}" if name else key)
    return found


def method_name(model: DebiasedRecommender) -> str:
    """The named method whose parts and choices a model has, whatever its numbers; `CUSTOM` where there is none."""
    choices = _choices(model.configuration_)
    kind = model.configuration_.get("feedback", "ratings")
    learns = [name for name, method in METHODS.items() if kind in method.feedback]
    names = [name for name in learns if _choices(METHODS[name].make(kind).to_config()) == choices]
    if len(names) > 1:  # some methods differ in numbers alone
        own = {part: model.configuration_[part] for part in ("weights", "imputation", "closed_form")}
        names = [name for name in names if own.items() <= METHODS[name].make(kind).to_config().items()]
    return names[0] if len(names) == 1 else CUSTOM


def _choices(configuration: dict[str, Any]) -> dict[str, str]:
    """The settings whose values are texts, without those of the training."""
    found = flat(configuration).items()
    return {name: value for name, value in found if isinstance(value, str) and not name.startswith("training.")}


def _method(context: ReportContext) -> dict[str, Any]:
    """The method's name, as far as it is known, its description and its parts."""
    model, chosen = context.model, context.configuration.get("method")
    name = method_name(model) if chosen is None else canonical_name(chosen)
    known = METHODS.get(name)
    described = {key: getattr(known, key, "") for key in ("title", "about", "formula", "citation")}
    described["about"] = words_of(context.feedback)(described["about"])
    parts = {"weights": type(model.weights).__name__, "imputation": type(model.imputation).__name__, "risk": model.risk}
    return {"name": name} | described | parts
