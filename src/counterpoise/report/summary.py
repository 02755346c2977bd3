"""Headline and summary of a report in sentences, computed from its facts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.balance.covariate_balance import BALANCED_SMD
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.models.base import factor_sentence
from counterpoise.report.path import intercept_sentence, path_sentence

Facts = Mapping[str, Any]
NO_TEST = "There is no test: hold out rows at the fit (--holdout 0.2), or give some with --test FILE."
BIASED_TEST = "These ratings are of pairs that users chose, so the metrics are those of chosen pairs, not of all pairs."
MODEL_NAMES = {"baseline": "the MF baseline"}
HEADLINE_METRICS = ("auc", "ndcg", "log_loss")
CUSTOM = "custom"  # the name of a method that is none of the named ones
INVERSE_PROPENSITY = "weights each rating by its inverse estimated propensity"
SOFT_BALANCING = "weights the ratings so that means of functions of user and item come closer to those over all items"
WEIGHTS = {
    "Uniform": "gives all ratings the same weight",
    "UnitWeights": "gives all ratings the same weight",
    "NaiveBayes": "weights positive and negative ratings to the label rate of the probe",
    "Balancing": "weights the ratings so that functions of user and item have the same mean as over all pairs",
    "KnownPropensity": "weights each rating by its inverse known propensity",
    "Popularity": "weights each rating by the inverse popularity of its item",
} | dict.fromkeys(("Logistic", "Propensity", "BalancedPropensity", "StabilizedPropensity"), INVERSE_PROPENSITY)


def summary(facts: Facts) -> list[dict[str, str]]:
    """Paragraphs, each with a title."""
    parts = {
        "Incomplete fit": [] if facts["stopped"] is None else [stopped_note("This run", facts["stopped"])],
        "Log": _log(facts["log"]),
        "Selection bias": _selection_bias(facts["log"]),
        "Method": [*_method(facts), *_balance(facts["balance"]), *_outcome(facts), *_corrections(facts["model"])],
        "Results": _results(facts["model"]),
    }
    return [{"title": title, "text": " ".join(sentences)} for title, sentences in parts.items() if sentences]


def headline(facts: Facts) -> list[dict[str, str]]:
    """A few numbers for the top of the page: value, label, note, and the `term` that defines it."""
    metrics = [row for row in facts["model"]["metrics"] if row["metric"] in HEADLINE_METRICS]
    found = [
        headline_metric(row, row["run"]["value"], _note(row)) for row in metrics if row["run"]["value"] is not None
    ]
    weighted = (facts["model"]["weighted"] or {}).get("models", {}).get("run")
    if weighted is not None:
        found = [
            headline_metric(
                row,
                weighted[name],
                f"estimated over all pairs{_interval(weighted['intervals'].get(name))}; of chosen ones "
                f"{row['run']['value']:.3f}",
            )
            for row in metrics
            if weighted[name := row["metric"]] is not None and row["run"]["value"] is not None
        ]
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    uniform = rates.get("test", rates.get("probe"))
    if uniform is not None:
        note, term = f"{uniform:.1%} in a uniform sample", "label rate"
        found.append({"value": f"{rates['log']:.1%}", "label": "positive in the log", "note": note, "term": term})
    weights = facts["weights"]
    if not weights["uniform"]:
        size, term = weights["effective_sample_size"], "effective sample size"
        note = f"of {weights['rows']:,} rows ({size / weights['rows']:.0%})"
        found.append({"value": f"{size:,.0f}", "label": term, "note": note, "term": term})
    return found


def headline_metric(row: Facts, value: float, note: str) -> dict[str, str]:
    """A metric for the top of a page."""
    term = "NDCG" if row["metric"] == "ndcg" else row["name"]
    return {"value": f"{value:.3f}", "label": row["name"], "note": note, "term": term}


def stopped_note(run: str, stopped: Mapping[str, int]) -> str:
    """That a fit was stopped before its last epoch."""
    epochs = f"epoch {stopped['epoch']:,} of {stopped['epochs']:,}"
    return f"{run} was stopped after {epochs}: the model is not trained fully."


def _note(row: Facts) -> str:
    """The difference of a metric from the baseline, or its interval without one."""
    difference = row.get("difference")
    if difference is None or difference["value"] is None:
        return _interval(row["run"]["interval"]).strip()
    span = "" if difference["low"] is None else f" ({difference['low']:+.3f} to {difference['high']:+.3f})"
    verdict = {"not clear": "no clear difference from"}.get(row["verdict"], f"{row['verdict']} than")
    return f"{verdict} the MF baseline: {difference['value']:+.3f}{span}"


def _interval(interval: Sequence[float | None] | None) -> str:
    return f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval and None not in interval else ""


def _log(log: Facts) -> list[str]:
    name = f"{log['name']}: " if log["name"] else ""
    return [
        f"{name}{log['rows']:,} ratings of {log['items']:,} items by {log['users']:,} users, {log['density']:.2%} of "
        f"all pairs. Median: {log['activity']['median']:,.0f} ratings per user, "
        f"{log['popularity']['median']:,.0f} per item."
    ]


def _selection_bias(log: Facts) -> list[str]:
    tenth = (
        f"The most popular tenth of the items has {log['popularity']['top_tenth_share']:.0%} of the ratings, the most "
        f"active tenth of the users {log['activity']['top_tenth_share']:.0%} (10% if all were equal)."
    )
    rates = {rate["sample"]: rate for rate in log["label_rates"]}
    uniform = next((rates[name] for name in ("probe", "test") if name in rates), None)
    if uniform is None:
        return [tenth, "There is no uniform sample, so the selection of labels cannot be measured."]
    rate, (low, high) = rates["log"]["rate"], uniform["interval"]
    verdict = "no selection by label can be shown with this sample"
    if rate < low or rate > high:
        verdict = f"{'positive' if rate > high else 'negative'} ratings are over-represented in the log"
    return [
        tenth,
        f"In the log {rate:.1%} of the labels are positive, in the uniform {uniform['sample']} {uniform['rate']:.1%} "
        f"({low:.1%} to {high:.1%}): {verdict}.",
    ]


def _method(facts: Facts) -> list[str]:
    method, weights = facts["method"], facts["weights"]
    name = "This custom method" if method["name"] == CUSTOM else f"The method {method['name']}"
    imputes = " and imputes the errors of unobserved pairs" if method["risk"] in ("dr", "direct") else ""
    how = SOFT_BALANCING if facts["balance"]["path"] else WEIGHTS.get(method["weights"], "weights the ratings")
    sentences = [f"{name} {how}{imputes}."]
    if weights["uniform"]:
        return sentences
    size = weights["effective_sample_size"]
    sentences.append(
        f"Effective sample size of the weighted log: {size:,.0f} of {weights['rows']:,} rows "
        f"({size / weights['rows']:.0%}); the largest weight is {weights['max_over_mean']:.1f} times the mean."
    )
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    if "log, weighted" in rates:
        sentences.append(f"Label rate of the weighted log: {rates['log, weighted']:.1%}.")
    return sentences


def _balance(balance: Facts) -> list[str]:
    """The chosen strength, and what weighting changed; nothing for uniform weights."""
    sentences, held_out = [], balance["held_out"]
    if balance["path"]:
        sentences.append(path_sentence(balance["path"]))
    if not balance["weighted"]:
        return sentences
    if held_out and held_out["after"]:
        before, after = held_out["before"]["rms_sd"], held_out["after"]["rms_sd"]
        verb = "fell" if after < before else "rose"
        sentences.append(f"Imbalance of held-out functions {verb} from {before:.3f} to {after:.3f} SD (RMS).")
    changes = [(row["smd_before"], row["smd_after"]) for row in balance["features"]]
    known = [(abs(before), abs(after)) for before, after in changes if before is not None and after is not None]
    worse = sum(after > max(BALANCED_SMD, before + 1e-9) for before, after in known)
    if worse:
        features = f"{worse} features have" if worse > 1 else "1 feature has"
        sentences.append(f"{features} a standardised mean difference above {BALANCED_SMD} that weighting increased.")
    return sentences


def _outcome(facts: Facts) -> list[str]:
    """The outcome model, and the moved intercept."""
    model, sentences = facts["model"], []
    if facts["method"]["imputation"] == "OutcomeModel":
        exposure = "with exposure as a covariate" if model["outcome_coefficients"] else "without an exposure covariate"
        sentences.append(f"Outcome model: a model trained first, by the same weights, imputes labels, {exposure}.")
    if model["intercept_shift"] and model["intercept_shift"]["shift"]:
        sentences.append(intercept_sentence(model["intercept_shift"]))
    return sentences


def _corrections(model: Facts) -> list[str]:
    """Missingness model, ensemble, exposure covariate and ordinal ratings, and why some of them are inactive."""
    fitted, inactive, sentences = model["imputation"], model["inactive"], []
    if fitted.get("log_odds_ratio"):
        times = fitted["positive"] / fitted["negative"]
        sentences.append(
            f"Missingness model: positive pairs are {times:.1f} times as likely to be observed as negative ones, so "
            f"unobserved pairs are {'less' if times > 1 else 'more'} likely to be positive."
        )
    elif "log_odds_ratio" in fitted:
        sentences.append("Missingness model: inactive, no probe shows that labels of the log and of all pairs differ.")
    if "intercept" in fitted:
        sentences.append("Ensemble: the prediction is the average of this model and one trained without imputation.")
    if "ensemble" in inactive:
        sentences.append(f"Ensemble: inactive, {inactive['ensemble']}.")
    if model["exposure_coefficients"]:
        sentences.append("Exposure of user, item and pair is a covariate of the prediction.")
    if model["factors"]:
        sentences.append(factor_sentence(model["factors"]))
    if model["ordinal"]:
        weight = model["ordinal"]["weight"]
        sentences.append(
            f"Ordinal ratings: their distance from the threshold is used with an ordinal weight of {weight:.2f} "
            "(0: not at all, 1: proportional odds)."
        )
    if "ordinal" in inactive:
        sentences.append(f"Ordinal ratings: inactive, {inactive['ordinal']}.")
    return sentences


def _results(model: Facts) -> list[str]:
    if not model["metrics"]:
        if model["evaluation"]:
            return [f"At the fit the AUC on the test was {model['evaluation']['auc']:.3f}."]
        return [NO_TEST]
    rows = {row["metric"]: row for row in model["metrics"]}
    chosen = [rows[name] for name in HEADLINE_METRICS if rows[name]["run"]["value"] is not None]
    listed = ", ".join(f"{row['name']} {row['run']['value']:.3f}{_interval(row['run']['interval'])}" for row in chosen)
    test = model["test"]
    how = "uniformly collected" if test["sample"] == "uniform" else "biased"
    sentences = [f"On {test['rows']:,} {how} ratings of {test['users']:,} users: {listed}."]
    if how == "biased":
        sentences += [BIASED_TEST, *_weighted(model["weighted"])]
    verdicts = {row["name"]: row["verdict"] for row in model["metrics"] if row.get("verdict")}
    if verdicts:
        sentences.append(f"Against the MF baseline (same log, no correction): {verdict_list(verdicts)}.")
    return sentences


def _weighted(weighted: Facts | None) -> list[str]:
    """The weighted estimates of the run, and the AUC of the baselines."""
    if weighted is None or weighted["reason"] is not None:
        return []
    run = weighted["models"]["run"]
    listed = ", ".join(
        f"{METRIC_NAMES[name].format(k=run['k'])} {run[name]:.3f}{_interval(run['intervals'].get(name))}"
        for name in HEADLINE_METRICS
        if run[name] is not None
    )
    others = [
        f"{MODEL_NAMES.get(n, n)} {m['auc']:.3f}" for n, m in weighted["models"].items() if n != "run" and m["auc"]
    ]
    beside = f" (AUC of {', '.join(others)})" if others else ""
    return [f"Estimated over all pairs by balanced weights: {listed}{beside}."]


def verdict_list(verdicts: Mapping[str, str]) -> str:
    """The metrics (name -> verdict) in which a model is better and worse than another, and how many are not clear."""
    listed = [
        f"{verdict} in {', '.join(names)}"
        for verdict in ("better", "worse")
        if (names := [name for name, found in verdicts.items() if found == verdict])
    ]
    unclear = sum(verdict == "not clear" for verdict in verdicts.values())
    if unclear:
        listed.append(f"no clear difference in {unclear} of {len(verdicts)} metrics")
    return "; ".join(listed)
