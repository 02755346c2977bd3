"""Headline and summary of a report in sentences, computed from its facts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.balance.covariate_balance import BALANCED_SMD
from counterpoise.data.feedback import WORDS, Words, words_of
from counterpoise.evaluation.full_ranking import MEASURES
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.models.base import factor_sentence
from counterpoise.report.path import path_sentence

Facts = Mapping[str, Any]
NO_TEST = "There is no test: hold out rows at the fit (--holdout 0.2), or give some with --test FILE."
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
    "RelativeExposure": "weights each rating by its inverse exposure",
    "Popularity": "weights each rating by the inverse popularity of its item",
    "Calibrated": "weights each rating by its inverse estimated propensity, calibrated to how often pairs are observed",
    "Capped": "weights each rating by its inverse estimated propensity, up to a cap",
} | dict.fromkeys(("Logistic", "Propensity", "BalancedPropensity", "StabilizedPropensity"), INVERSE_PROPENSITY)


def biased_test(words: Words) -> str:
    """A sentence on what metrics of a biased test are."""
    return (
        f"These {words.tested} are of pairs {words.selected}, so the metrics are those of such pairs, not of all pairs."
    )


def summary(facts: Facts) -> list[dict[str, Any]]:
    """Paragraphs, each with a title, and the lines that they are made of."""
    words = words_of(facts["feedback"])
    parts = {
        "Incomplete fit": [] if facts["stopped"] is None else [stopped_note("This run", facts["stopped"])],
        "Log": _log(facts["log"], words),
        "Selection bias": _selection_bias(facts["log"], words),
        "Method": [
            *map(words, _method(facts)),
            *_balance(facts["balance"]),
            *_outcome(facts),
            *_corrections(facts["model"]),
        ],
        "Results": _results(facts["model"], words),
    }
    return [{"title": title, "text": " ".join(lines), "lines": lines} for title, lines in parts.items() if lines]


def overall_verdict(facts: Facts) -> dict[str, str]:
    """The first line of the page: whether the run is better than an uncorrected model, in which tone, and why."""
    model, words = facts["model"], words_of(facts["feedback"])
    than = "plain WMF" if facts["feedback"] == "clicks" else "plain MF"
    if model["test"] is None:
        text = f"No test: cannot tell whether this run is better than {than}."
        return {"text": text, "tone": "unclear", "grounds": NO_TEST}
    rows, weighted = model["test"]["rows"], model["ranking"] or model["weighted"]
    grounds = f"By {rows:,} {words.tested} of pairs drawn at random."
    if model["test"]["sample"] != "uniform":
        grounds = f"By {rows:,} {words.tested} of pairs {words.selected}: the difference over other pairs is not known."
    if weighted and weighted["reason"] is None:
        tested = "clicks" if model["ranking"] else words.tested
        grounds = f"Estimated over all pairs from {rows:,} {tested} of pairs {words.selected}, by weights."
    verdicts = run_verdicts(facts)
    if not verdicts:
        plain = facts["method"]["name"] in ("mf", "wmf")
        text = f"This run is {than} itself: nothing was corrected." if plain else f"Not compared with {than}."
        return {"text": text, "tone": "unclear", "grounds": grounds}
    better, worse = "better" in verdicts.values(), "worse" in verdicts.values()
    tone = "mixed" if better and worse else "good" if better else "warn" if worse else "unclear"
    return {"text": compare_sentence(verdicts, than), "tone": tone, "grounds": grounds}


def run_verdicts(facts: Facts) -> dict[str, str]:
    """{name of a main metric: verdict against the baseline}, by weighted differences where there are some."""
    model, words = facts["model"], words_of(facts["feedback"])
    if model["ranking"]:
        own, k = model["ranking"]["differences"].get("run", {}), model["ranking"]["models"].get("run", {}).get("k")
        return {f"{MEASURES[name]}@{k}": own[name]["verdict"] for name in ("dcg", "recall") if name in own}
    rows = [row for row in model["metrics"] if row["metric"] in headline_metrics(words)]
    weighted = model["weighted"]
    if weighted and weighted["reason"] is None:
        own = weighted["differences"].get("run", {})
        return {row["name"]: own[row["metric"]]["verdict"] for row in rows if row["metric"] in own}
    return {row["name"]: row["verdict"] for row in rows if row.get("verdict")}


def headline(facts: Facts) -> list[dict[str, str]]:
    """A few numbers for the top of the page: value, label, note, and the `term` that defines it."""
    words = words_of(facts["feedback"])
    metrics = [row for row in facts["model"]["metrics"] if row["metric"] in headline_metrics(words)]
    verdicts = run_verdicts(facts)
    found = [
        headline_metric(row, row["run"]["value"], words(_note(row)))
        for row in metrics
        if row["run"]["value"] is not None
    ]
    weighted = (facts["model"]["weighted"] or {}).get("models", {}).get("run")
    if weighted is not None:
        found = [
            headline_metric(
                row,
                weighted[name],
                f"estimated over all pairs{_interval(weighted['intervals'].get(name))}; of {words.done} pairs alone: "
                f"{row['run']['value']:.3f}",
            )
            for row in metrics
            if weighted[name := row["metric"]] is not None and row["run"]["value"] is not None
        ]
    found += _ranked(facts["model"]["ranking"])
    for number in found:
        number["tone"] = {"better": "good", "worse": "warn"}.get(verdicts.get(number["label"], ""), "")
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    uniform = rates.get("test", rates.get("probe"))
    if uniform is not None and facts["feedback"] != "clicks":
        note, term = f"{uniform:.1%} in a uniform sample", "label rate"
        label = {"label": "positive in the log", "note": note, "term": term, "tone": ""}
        found.append({"value": f"{rates['log']:.1%}"} | label)
    weights = facts["weights"]
    if not weights["uniform"] and facts["method"]["risk"] != "exposed":
        size, term = weights["effective_sample_size"], "effective sample size"
        note = f"of {weights['rows']:,} rows ({size / weights['rows']:.0%})"
        found.append({"value": f"{size:,.0f}", "label": term, "note": note, "term": term, "tone": ""})
    return found


def _ranked(ranking: Facts | None) -> list[dict[str, str]]:
    """The headline metrics of held-out clicks, for the top of the page."""
    run = (ranking or {}).get("models", {}).get("run")
    if run is None:
        return []
    found = []
    for name in ("dcg", "recall"):
        note = f"weighted by exposure{_interval(run['intervals'].get(name))}; of the clicks as they are "
        label = {"label": f"{MEASURES[name]}@{run['k']}", "note": f"{note}{run['naive'][name]:.3f}"}
        found.append({"value": f"{run[name]:.3f}", "term": "full ranking"} | label)
    return found


def headline_metrics(words: Words) -> Sequence[str]:
    """The metrics to show first: of clicks without the log loss, whose level is not known."""
    return [name for name in HEADLINE_METRICS if name != "log_loss" or words is not WORDS["clicks"]]


def headline_metric(row: Facts, value: float, note: str) -> dict[str, str]:
    """A metric for the top of a page."""
    term = "NDCG" if row["metric"] == "ndcg" else row["name"]
    return {"value": f"{value:.3f}", "label": row["name"], "note": note, "term": term, "tone": ""}


def stopped_note(run: str, stopped: Mapping[str, int]) -> str:
    """A note where a fit was stopped before its last epoch."""
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


def _log(log: Facts, words: Words) -> list[str]:
    return [
        f"{words.count(log['rows'])} of {log['items']:,} items by {log['users']:,} users, {log['density']:.2%} of "
        f"all pairs. Median: {log['activity']['median']:,.0f} {words.row}s per user, "
        f"{log['popularity']['median']:,.0f} per item."
    ]


def _selection_bias(log: Facts, words: Words) -> list[str]:
    tenth = words(
        f"The most popular tenth of the items has {log['popularity']['top_tenth_share']:.0%} of the ratings, the most "
        f"active tenth of the users {log['activity']['top_tenth_share']:.0%} (10% if all were equal)."
    )
    if words is WORDS["clicks"]:
        return [tenth]
    rates = {rate["sample"]: rate for rate in log["label_rates"]}
    uniform = next((rates[name] for name in ("probe", "test") if name in rates), None)
    if uniform is None:
        return [tenth, "There is no uniform sample, so the selection of labels cannot be measured."]
    rate, (low, high) = rates["log"]["rate"], uniform["interval"]
    verdict = "no selection by label can be shown with this sample"
    if rate < low or rate > high:
        verdict = f"{'positive' if rate > high else 'negative'} {words.row}s are over-represented in the log"
    return [
        tenth,
        f"In the log {rate:.1%} of the labels are positive, in the uniform {uniform['sample']} {uniform['rate']:.1%} "
        f"({low:.1%} to {high:.1%}): {verdict}.",
    ]


def _method(facts: Facts) -> list[str]:
    method, weights = facts["method"], facts["weights"]
    name = "This custom method" if method["name"] == CUSTOM else f"The method {method['name']}"
    imputes = " and imputes the errors of unobserved pairs" if method["risk"] in ("dr", "direct") else ""
    if facts["feedback"] == "clicks":
        imputes = ", beside pairs without a click"
    how = SOFT_BALANCING if facts["balance"]["path"] else WEIGHTS.get(method["weights"], "weights the ratings")
    if method["risk"] == "exposed" and not weights["uniform"]:
        how, imputes = "counts each pair, clicked or not, by its chance of having been seen (exposure)", ""
    sentences = [f"{name} {how}{imputes}."]
    if weights["uniform"]:
        return sentences
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    if "log, weighted" in rates and facts["feedback"] != "clicks":
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
        shown, verb = (f"{before:.3f}", f"{after:.3f}"), "fell" if after < before else "rose"
        change = f"stayed at {shown[1]}" if shown[0] == shown[1] else f"{verb} from {shown[0]} to {shown[1]}"
        sentences.append(f"Imbalance of held-out functions {change} SD (RMS).")
    changes = [(row["smd_before"], row["smd_after"]) for row in balance["features"]]
    known = [(abs(before), abs(after)) for before, after in changes if before is not None and after is not None]
    worse = sum(after > max(BALANCED_SMD, before + 1e-9) for before, after in known)
    if worse:
        features = f"{worse} features have" if worse > 1 else "1 feature has"
        sentences.append(f"{features} a standardised mean difference above {BALANCED_SMD} that weighting increased.")
    return sentences


def _outcome(facts: Facts) -> list[str]:
    """The outcome model."""
    model, sentences = facts["model"], []
    if facts["method"]["imputation"] == "OutcomeModel":
        exposure = "with exposure as a covariate" if model["outcome_coefficients"] else "without an exposure covariate"
        sentences.append(f"Outcome model: a model trained first, by the same weights, imputes labels, {exposure}.")
    return sentences


def _corrections(model: Facts) -> list[str]:
    """Sentences on what was done about selection and what was not, and on ordinal ratings."""
    inactive, sentences = model["inactive"], list(model["corrections"])
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


def _results(model: Facts, words: Words) -> list[str]:
    if model["ranking"]:
        return _ranking(model["ranking"], model["test"], words)
    if not model["metrics"]:
        if model["evaluation"] and "auc" in model["evaluation"]:
            return [f"At the fit the AUC on the test was {model['evaluation']['auc']:.3f}."]
        return []  # the verdict says so
    rows = {row["metric"]: row for row in model["metrics"]}
    chosen = [rows[name] for name in headline_metrics(words) if rows[name]["run"]["value"] is not None]
    listed = ", ".join(f"{row['name']} {row['run']['value']:.3f}{_interval(row['run']['interval'])}" for row in chosen)
    test = model["test"]
    how = "uniformly collected" if test["sample"] == "uniform" else "biased"
    sentences = [f"On {test['rows']:,} {how} {words.tested} of {test['users']:,} users: {listed}."]
    if how == "biased":
        sentences += [biased_test(words), *_weighted(model["weighted"])]
    return sentences


def _ranking(ranking: Facts, test: Facts, words: Words) -> list[str]:
    """Sentences on the ranks of held-out clicks, by the run and by the baselines."""
    if ranking["reason"] is not None:
        return [f"The clicks of the test could not be ranked: {ranking['reason']}."]
    run = ranking["models"]["run"]
    names = {name: f"{MEASURES[name]}@{run['k']}" for name in ("dcg", "recall")}
    listed = ", ".join(
        f"{title} {run[name]:.3f}{_interval(run['intervals'].get(name))}" for name, title in names.items()
    )
    naive = ", ".join(f"{run['naive'][name]:.3f}" for name in names)
    others = [
        f"{words(MODEL_NAMES.get(n, n))} {found['dcg']:.3f}" for n, found in ranking["models"].items() if n != "run"
    ]
    beside = f" {names['dcg']} of {', '.join(others)}." if others else ""
    return [
        f"{test['rows']:,} held-out clicks of {test['users']:,} users, ranked among all items that the user has not "
        f"clicked and weighted by exposure: {listed}. Of the clicks as they are: {naive}.{beside}"
    ]


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


def compare_sentence(verdicts: Mapping[str, str], than: str) -> str:
    """A sentence on the metrics (name -> verdict) in which a model is better and worse than another."""
    named = {
        verdict: listed([name for name, found in verdicts.items() if found == verdict])
        for verdict in ("better", "worse", "not clear")
    }
    parts = [f"{verdict} in {named[verdict]}" for verdict in ("better", "worse") if named[verdict]]
    if not parts:
        return f"No clear difference from {than} in {named['not clear']}."
    parts[0] = parts[0].replace(" in ", f" than {than} in ", 1)
    unclear = f"; no clear difference in {named['not clear']}" if named["not clear"] else ""
    sentence = f"{', '.join(parts)}{unclear}."
    return sentence[0].upper() + sentence[1:]


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
