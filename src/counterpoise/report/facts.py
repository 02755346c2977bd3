"""Does the log, weighted, resemble all pairs? Feature by feature, on held-out functions, and what balance cost."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from counterpoise import __version__
from counterpoise.balance.covariate_balance import feature_balance
from counterpoise.balance.diagnostics import group_effective_sample_sizes, held_out_imbalance, weight_facts
from counterpoise.balance.features import side_features, standardised
from counterpoise.balance.population import Pairs
from counterpoise.data.log import FeedbackLog
from counterpoise.evaluation.calibration import calibration_bins, calibration_error, wilson_interval
from counterpoise.evaluation.evaluate import Difference, binary_labels, paired_differences, resampled_evaluation
from counterpoise.evaluation.metrics import LOWER_IS_BETTER, METRIC_NAMES
from counterpoise.methods import METHODS, canonical_name
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.context import ReportContext, WeightedRows, seen_pairs
from counterpoise.report.definitions import DEFINITIONS
from counterpoise.report.summary import OWN, headline, summary

# How biased is the log? Popularity and activity, and its label rate against uniform samples.

Floats = NDArray[np.float64]
CURVE_POINTS = 50


def log_facts(material: ReportContext, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able: size, concentration of users and items, label rates of the log, weighted, of probe and test."""
    users, items = seen_pairs(material.model.seen_)
    n_users, n_items = material.shape
    return {
        "name": None if material.dataset is None else material.dataset.name,
        "rows": len(users),
        "users": n_users,
        "items": n_items,
        "density": len(users) / (n_users * n_items),
        "activity": concentration(np.bincount(users, minlength=n_users)),
        "popularity": concentration(np.bincount(items, minlength=n_items)),
        "label_rates": _label_rates(material, rows),
    }


def concentration(counts: ArrayLike) -> dict[str, Any]:
    """How unequally ratings are spread over users or items: quantiles, top tenth, Gini, and the curve of shares."""
    values = np.asarray(counts)
    return {
        "least": int(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "most": int(values.max()),
        "without": int((values == 0).sum()),
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
    """The share of all ratings that the largest counts hold, `share` of them; the last of these counts in part."""
    values = np.sort(np.asarray(counts, dtype=np.float64))[::-1]
    held = np.concatenate([[0.0], np.cumsum(values)])
    return float(np.interp(share * len(values), np.arange(len(held)), held) / held[-1])


def _label_rates(material: ReportContext, rows: WeightedRows) -> list[dict[str, Any]]:
    """A rate for each sample that there is; uniform samples have an interval."""
    facts = material.model.log_facts_
    rates = [{"sample": "log", "rate": facts["mean_label"], "rows": facts["rows"], "interval": None}]
    if rows.ratio is not None and rows.labels is not None and np.ptp(rows.ratio) > 0:
        rate = float(rows.ratio @ rows.labels / rows.ratio.sum())
        rates.append({"sample": "log, weighted", "rate": rate, "rows": len(rows.ratio), "interval": None})
    probe = None if material.dataset is None else material.dataset.probe
    samples = {"probe": probe, "test": material.test}
    return rates + [_uniform_rate(name, log) for name, log in samples.items() if log is not None and len(log)]


def _uniform_rate(name: str, log: FeedbackLog) -> dict[str, Any]:
    rate = float(log.labels.mean())
    return {"sample": name, "rate": rate, "rows": len(log), "interval": wilson_interval(rate, len(log))}


DIRECTIONS = 4  # of the embeddings of users, and of items
SIDES = ("user", "item")


def balance_facts(material: ReportContext, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able: the table of features, held-out functions, and the certificate of the balanced functions."""
    tables = feature_tables(material, rows)
    own = material.model.facts_["weights"]
    return {
        "weighted": rows.ratio is not None and bool(np.ptp(rows.ratio) > 0),
        "features": [balance_of(name, side, values, rows) for name, side, values in tables],
        "held_out": _held_out(tables, rows),
        "held_out_of_method": _own_held_out(own),
        "functions": _functions(own),
        "relaxed": own.get("relaxed"),
        "status": own.get("status"),
        "gap": own.get("gap"),
    }


def feature_tables(material: ReportContext, rows: WeightedRows) -> list[tuple[str, int, Floats]]:
    """(name, 0 for users or 1 for items, a value for each of them): activity, side features, directions of taste."""
    found = []
    for side, (who, codes, size) in enumerate(zip(SIDES, (rows.users, rows.items), material.shape, strict=True)):
        counts = np.log1p(np.bincount(codes, minlength=size))
        found.append((("user activity", "item popularity")[side], side, counts))
        given = np.zeros((size, 0)) if material.train is None else side_features(material.train)[side]
        found += [(f"{who} feature {column + 1}", side, given[:, column]) for column in range(given.shape[1])]
        vectors = (material.plain or material.model).embeddings()[side]
        for place, values in enumerate(leading_directions(vectors, DIRECTIONS).T):
            found.append((f"{who} taste {place + 1}", side, values))
    return found


def leading_directions(table: NDArray[Any], count: int) -> Floats:
    """The coordinates (rows, count) along the directions in which a centred table varies most (its singular vectors).

    The sign of a direction is that of the largest entry, so that it does not depend on the machine.
    """
    centred = np.asarray(table, np.float64) - np.mean(table, axis=0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    kept = directions[:count][sizes[:count] > 1e-9 * max(sizes.max(initial=0), 1e-300)]
    signs = np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])
    coordinates: Floats = centred @ (kept * signs[:, None]).T
    return coordinates


def balance_of(name: str, side: int, values: Floats, rows: WeightedRows) -> dict[str, Any]:
    """One feature of users or of items, before and after weighting, against all pairs.

    A function of the user alone has, over the log, the distribution over users with their rows for weights, and over
    all pairs that of all users alike; so users are all that is looked at.
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
    """Kernel functions of all these features that no method was told of, before and after weighting."""
    sides = [[values for _, of, values in tables if of == side] for side in (0, 1)]
    pairs = Pairs(*(torch.from_numpy(standardised(np.column_stack(columns))) for columns in sides))
    if pairs.n_columns == 0:
        return None
    observed = pairs.at(*(torch.from_numpy(np.asarray(codes, np.int64)) for codes in (rows.users, rows.items)))
    before = held_out_imbalance(observed, torch.ones(len(rows.users)), pairs)
    if rows.ratio is None or np.ptp(rows.ratio) == 0:
        return None if before is None else {"before": before, "after": None if rows.ratio is None else before}
    after = held_out_imbalance(observed, torch.from_numpy(rows.ratio), pairs)
    return None if before is None else {"before": before, "after": after}


def _own_held_out(own: dict[str, Any]) -> dict[str, Any] | None:
    """The same in the features in which the method balanced, where it did."""
    before, after = own.get("held_out_before"), own.get("held_out_after")
    return {"before": before, "after": after} if before and after else None


def _functions(own: dict[str, Any]) -> list[dict[str, Any]]:
    """Each balanced function of each fold: imbalance before and after, its price, and whether it was given up."""
    keys = ("before_sd", "after_sd", "price", "relaxed")
    found = []
    for fold, part in enumerate(own.get("balanced", []), start=1):
        for name, *values in zip(part["names"], *(part[key] for key in keys), strict=True):
            found.append({"name": name, "fold": fold, **dict(zip(keys, values, strict=True))})
    return found


# What the weights look like: their histogram, the effective sample, the tail, and weight against popularity.

BINS = 40
GROUPS = 10  # of rows by popularity, of equal size
HEAVIEST = 10
QUANTILES = {"least": 0, "5%": 0.05, "median": 0.5, "95%": 0.95, "most": 1}


def weights_facts(material: ReportContext, rows: WeightedRows) -> dict[str, Any]:
    """JSON-able; `uniform` where every row counts the same, and little else then."""
    ratio = material.model.ratio_.astype(np.float64)
    own = material.model.facts_["weights"]
    told = {key: value for key, value in own.items() if isinstance(value, int | float | str) or value is None}
    found: dict[str, Any] = {"rows": len(ratio), "uniform": bool(np.ptp(ratio) == 0), "facts": told}
    if found["uniform"]:
        return found
    relative = ratio / ratio.mean()
    found |= weight_facts(ratio) | {"quantiles": _quantiles(relative), "histogram": histogram(relative)}
    if rows.ratio is None:
        return found
    users, items = (np.bincount(codes, minlength=size) for codes, size in _sides(material, rows))
    return found | {
        "per_user": _groups(rows.ratio, rows.users, material.shape[0]),
        "per_item": _groups(rows.ratio, rows.items, material.shape[1]),
        "by_popularity": weight_by_count(relative, items[rows.items]),
        "by_activity": weight_by_count(relative, users[rows.users]),
        "by_label": _by_label(relative, rows),
        "heaviest": _heaviest(material, rows, relative, users, items),
    }


def histogram(relative: Floats, bins: int = BINS) -> list[dict[str, float]]:
    """Rows in bins of equal width in the logarithm of weight / mean weight."""
    logarithms = np.log10(relative.clip(min=1e-6))
    counts, edges = np.histogram(logarithms, bins=bins)
    edges = 10**edges
    return [
        {"low": float(low), "high": float(high), "rows": int(count)}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def weight_by_count(relative: Floats, counts: NDArray[Any], groups: int = GROUPS) -> list[dict[str, float]]:
    """Rows in groups of about equal size by the ratings of their item (or user): mean weight and its middle 80%."""
    borders = np.unique(np.quantile(counts, np.arange(1, groups) / groups))
    place = np.searchsorted(borders, counts, side="right")
    found = []
    for group in np.unique(place):
        inside = place == group
        low, high = np.quantile(relative[inside], [0.1, 0.9])
        found.append(
            {
                "ratings": float(np.median(counts[inside])),
                "from": int(counts[inside].min()),
                "to": int(counts[inside].max()),
                "rows": int(inside.sum()),
                "mean": float(relative[inside].mean()),
                "low": float(low),
                "high": float(high),
            }
        )
    return found


def _sides(material: ReportContext, rows: WeightedRows) -> list[tuple[NDArray[Any], int]]:
    return list(zip((rows.users, rows.items), material.shape, strict=True))


def _quantiles(values: Floats) -> dict[str, float]:
    return dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))


def _groups(ratio: Floats, codes: NDArray[Any], size: int) -> dict[str, Any]:
    """Effective sample sizes of the users or items that have rows, and what share of these rows they are."""
    counts = np.bincount(codes, minlength=size)
    sizes = group_effective_sample_sizes(ratio, codes, size)[counts > 0]
    shares = sizes / counts[counts > 0]
    heights, edges = np.histogram(shares, bins=20, range=(0, 1))
    return {
        "groups": len(sizes),
        "sizes": _quantiles(sizes),
        "shares": _quantiles(shares),
        "share_histogram": [
            {"low": float(low), "high": float(high), "rows": int(count)}
            for low, high, count in zip(edges[:-1], edges[1:], heights, strict=True)
        ],
    }


def _by_label(relative: Floats, rows: WeightedRows) -> list[dict[str, Any]]:
    if rows.labels is None:
        return []
    positive = rows.labels >= 0.5
    parts = {"positive": positive, "negative": ~positive}
    return [
        {"label": name, "rows": int(which.sum()), "mean": float(relative[which].mean())}
        for name, which in parts.items()
        if which.any()
    ]


def _heaviest(
    material: ReportContext, rows: WeightedRows, relative: Floats, users: NDArray[Any], items: NDArray[Any]
) -> list[dict[str, Any]]:
    """The rows that count most: whom the tail is made of."""
    top = np.argsort(-relative, kind="stable")[:HEAVIEST]
    user_ids = material.model.user_ids_.decode(rows.users[top])
    item_ids = material.model.item_ids_.decode(rows.items[top])
    return [
        {
            "user": str(user),
            "item": str(item),
            "label": None if rows.labels is None else float(rows.labels[row]),
            "weight": float(relative[row]),
            "user_ratings": int(users[rows.users[row]]),
            "item_ratings": int(items[rows.items[row]]),
        }
        for user, item, row in zip(user_ids, item_ids, top, strict=True)
    ]


# How good is the model? Learning curve, metrics with intervals, against plain MF, calibration, what silence said.

HISTORY_POINTS = 150
VOICES = ("user", "item", "pair")


def model_facts(material: ReportContext) -> dict[str, Any]:
    """JSON-able."""
    model = material.model
    return {
        "learning": learning_curve(model.history_.to_dict()),
        "plain_learning": None if material.plain is None else learning_curve(material.plain.history_.to_dict()),
        "risk": model.facts_["risk"],
        "error_on_log": model.facts_["error_on_log"],
        "imputation": _plain_numbers(model.facts_["imputation"]),
        "exposure_coefficients": _voices(model),
        "grades": model.facts_.get("grades"),
        "inactive_settings": model.facts_.get("inactive_settings", {}),
        "truth": material.manifest.get("truth"),
        "demo": material.manifest.get("demo"),
        **_on_test(material),
    }


def learning_curve(history: Mapping[str, Any]) -> dict[str, Any]:
    """Loss and held-out risk by epoch, at most `HISTORY_POINTS` of them, the last one included."""
    epochs = len(history["loss"])
    shown = np.unique(np.linspace(0, epochs - 1, min(epochs, HISTORY_POINTS)).round().astype(int))
    held_out = history["held_out_risk"]
    return {
        "epochs": epochs,
        "best_epoch": history["best_epoch"],
        "seconds": history["seconds"],
        "loss": [[int(epoch) + 1, history["loss"][epoch]] for epoch in shown],
        "held_out_risk": [[int(epoch) + 1, held_out[epoch]] for epoch in shown] if held_out else [],
    }


def _on_test(material: ReportContext) -> dict[str, Any]:
    """Metrics of the model and of plain MF on the test, their paired differences, and calibration."""
    log = material.test
    if log is None:
        return {"evaluation": material.manifest.get("evaluation"), "metrics": [], "test": None, "calibration": {}}
    models = {"run": material.model} | ({"plain": material.plain} if material.plain is not None else {})
    asked = {name: model.predict_log(log, unknown=material.unknown) for name, model in models.items()}
    scores = {name: values.astype(np.float64) for name, values in asked.items()}
    k, rule = material.k, material.empty_users
    found = {name: resampled_evaluation(values, log, k, rule) for name, values in scores.items()}
    differences = paired_differences(found["run"], found["plain"]) if "plain" in found else {}
    evaluations = {name: resampled.evaluation.to_dict() for name, resampled in found.items()}
    labels = binary_labels(log)
    return {
        "test": {"name": material.test_name, "rows": len(log), "users": evaluations["run"]["n_users"]},
        "evaluation": evaluations["run"],
        "metrics": [metric_row(name, evaluations, differences.get(name)) for name in METRIC_NAMES],
        "calibration": {name: calibration(labels, values) for name, values in scores.items()},
    }


def metric_row(name: str, evaluations: Mapping[str, Any], difference: Difference | None) -> dict[str, Any]:
    """One metric of the run and of plain MF with intervals, and what the difference says."""
    first = evaluations["run"]
    row = {"metric": name, "name": METRIC_NAMES[name].format(k=first["k"]), "lower_is_better": name in LOWER_IS_BETTER}
    for key, facts in evaluations.items():
        row[key] = {"value": facts[name], "interval": facts["intervals"].get(name)}
    if difference is not None:
        row |= {"difference": difference._asdict(), "verdict": verdict(name, difference)}
    return row


def verdict(name: str, difference: Difference) -> str:
    """better, worse, or not clear: by whether the interval of the difference leaves out 0."""
    if math.isnan(difference.low) or difference.low <= 0 <= difference.high:
        return "not clear"
    better = (difference.value > 0) != (name in LOWER_IS_BETTER)
    return "better" if better else "worse"


def calibration(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, Any]:
    """JSON-able: bins of rows by prediction, what was predicted against what came, and the calibration error."""
    bins = calibration_bins(probabilities, labels)
    return {"bins": [one.to_dict() for one in bins], "error": calibration_error(bins)}


def _voices(model: DebiasedRecommender) -> dict[str, float] | None:
    """What exposure says in the prediction, in log odds for a standard deviation, where the model is told of it."""
    values = getattr(model.scorer_, "exposure_coefficients", None)
    return None if values is None else dict(zip(VOICES, values.cpu().tolist(), strict=True))


def _plain_numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if isinstance(value, int | float | str)}


# What people would be shown: lists before debiasing (plain MF) and after, for some users and on the whole.

EXAMPLES = 6  # users
SAMPLE = 2000  # users whose lists are counted on the whole
Codes = NDArray[np.int64]


def list_facts(material: ReportContext) -> dict[str, Any]:
    """JSON-able: lists of some users, from the least to the most active, and figures over a sample of users."""
    users, items = seen_pairs(material.model.seen_)
    activity = np.bincount(users, minlength=material.shape[0])
    popularity = np.bincount(items, minlength=material.shape[1])
    chosen = spread_out(activity, EXAMPLES)
    models = {"after": material.model} | ({"before": material.plain} if material.plain is not None else {})
    sample = np.unique(np.linspace(0, len(activity) - 1, min(SAMPLE, len(activity))).astype(np.int64))
    lists = {name: _lists(model, sample, material.k) for name, model in models.items()}
    return {
        "k": material.k,
        "users": [_example(material, models, int(user), activity, popularity) for user in chosen],
        "sampled_users": len(sample),
        "overlap": overlap(lists["before"], lists["after"]) if "before" in lists else None,
        **{name: _figures(found, popularity) for name, found in lists.items()},
    }


def spread_out(activity: NDArray[Any], count: int) -> Codes:
    """Users from the least to the most active, at equal steps of rank; only users with ratings."""
    order = np.argsort(activity, kind="stable")
    order = order[activity[order] > 0]
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64)
    return order[np.unique(places)]


def overlap(before: list[list[int]], after: list[list[int]]) -> float:
    """The mean over users of the share of the list after that stood in the list before; nan without lists."""
    if not after:
        return math.nan
    return float(np.mean([len(set(b) & set(a)) / max(1, len(a)) for b, a in zip(before, after, strict=True)]))


def _lists(model: DebiasedRecommender, users: Codes, k: int) -> list[list[int]]:
    """The item codes of each user's list; none of users who have seen everything."""
    frame = model.recommend(model.user_ids_.decode(users), k=k)
    codes = model.item_ids_.encode(frame["item_id"])
    starts = np.flatnonzero(frame["rank"].to_numpy() == 1)
    return [part.tolist() for part in np.split(codes, starts)[1:]]


def _figures(lists: list[list[int]], popularity: NDArray[Any]) -> dict[str, float]:
    """Different items shown, and the mean share of all items with fewer ratings than a shown one; nan without lists."""
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


def _example(
    material: ReportContext,
    models: dict[str, DebiasedRecommender],
    user: int,
    activity: NDArray[Any],
    popularity: NDArray[Any],
) -> dict[str, Any]:
    name = material.model.user_ids_.decode([user])
    found: dict[str, Any] = {"user": str(name[0]), "ratings": int(activity[user])}
    for which, model in models.items():
        frame = model.recommend(name, k=material.k)
        codes = model.item_ids_.encode(frame["item_id"])
        entries = zip(frame["item_id"], frame["score"], popularity[codes], strict=True)
        found[which] = [{"item": str(i), "score": float(s), "ratings": int(n)} for i, s, n in entries]
    known = {entry["item"] for entry in found.get("before", [])}
    for entry in found["after"]:
        entry["new"] = bool(known) and entry["item"] not in known
    return found


# All facts of a report, gathered into one JSON-able dictionary: what is not in it is not shown.

PACKAGES = ("numpy", "scipy", "torch", "polars")


def gather(material: ReportContext) -> dict[str, Any]:
    """Everything that the report of one run shows."""
    rows = material.weighted_rows()
    gathered: dict[str, Any] = {
        "format": "counterpoise-report",
        "version": __version__,
        "run": material.name,
        "notes": list(material.notes),
        "stopped": material.stopped,
        "method": _method(material),
        "log": log_facts(material, rows),
        "balance": balance_facts(material, rows),
        "weights": weights_facts(material, rows),
        "model": model_facts(material),
        "lists": list_facts(material),
        "configuration": configuration_facts(material),
    }
    facts = plain_json(gathered)
    return facts | {"headline": headline(facts), "summary": summary(facts), "definitions": DEFINITIONS}


def plain_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As a reader of the JSON file gets it: None for nan, lists for tuples."""
    return dict(json.loads(json.dumps(facts), parse_constant=lambda word: None))


def configuration_facts(material: ReportContext) -> dict[str, Any]:
    """What decides the fit, and what it ran on."""
    manifest, model = material.manifest, material.model
    return {
        "fit": dict(material.configuration),
        "settings": flat(model.configuration_),
        "seed": model.training.seed,
        "fit_version": manifest.get("version", __version__),
        "fit_seconds": manifest.get("seconds", model.history_.seconds),
        "plain_seconds": None if material.plain is None else material.plain.history_.seconds,
        "plain_epochs": None if material.plain is None else len(material.plain.history_.loss),
        "dataset": manifest.get("dataset") or (material.dataset.description if material.dataset else {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what makes the report."""
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
    """The method whose parts and words a model has, whatever its numbers are; `OWN` where none of ours has them."""
    words = _words(model.configuration_)
    names = [name for name, method in METHODS.items() if _words(method.build().to_config()) == words]
    return names[0] if len(names) == 1 else OWN


def _words(configuration: dict[str, Any]) -> dict[str, str]:
    parts = {name: value for name, value in configuration.items() if name != "training"}
    return {name: value for name, value in flat(parts).items() if isinstance(value, str)}


def _method(material: ReportContext) -> dict[str, Any]:
    """The method by its name, as far as the run knows it."""
    model = material.model
    asked = material.configuration.get("method")
    name = method_name(model) if asked is None else canonical_name(asked)
    known = METHODS.get(name)
    keys = ("title", "about", "formula", "citation")
    words = {key: "" if known is None else getattr(known, key) for key in keys}
    parts = {"weights": type(model.weights).__name__, "imputation": type(model.imputation).__name__, "risk": model.risk}
    return {"name": name} | words | parts
