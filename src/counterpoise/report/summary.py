"""The summary in plain words, from facts alone: what the log is, what was done, what it brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADLINE_METRICS = ("auc", "ndcg", "log_loss")
OWN = "of one's own"  # a method without a name of ours
EACH = "weights each rating by the inverse of its estimated chance of being observed"
WEIGHT_WORDS = {
    "Uniform": "gives every rating the same weight",
    "UnitWeights": "gives every rating the same weight",
    "NaiveBayes": "weights positive and negative ratings so that they are as frequent as in the probe",
    "Balancing": "weights the ratings so that functions of user and item average as they do over all pairs",
    "Given": "weights each rating by the inverse of its known chance of being observed",
    "Popularity": "weights each rating by the inverse of its item's popularity",
} | dict.fromkeys(("Logistic", "Propensity", "BalancedPropensity", "StabilizedPropensity"), EACH)
SMALL = 0.1  # standardised differences within it are usually called balanced


def summary(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Paragraphs, each with a heading."""
    parts = {
        "Not a whole fit": [] if facts["stopped"] is None else [stopped_words("This run", facts["stopped"])],
        "The log": _log_words(facts["log"]),
        "How biased it is": _bias_words(facts["log"]),
        "What was done": _method_words(facts),
        "What it brought": _result_words(facts),
    }
    return [{"title": title, "text": " ".join(words)} for title, words in parts.items() if words]


def headline(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """A few numbers for the top of the page: value, what it is, and a note; `term` names its definition."""
    found = []
    for row in facts["model"]["metrics"]:
        if row["metric"] in HEADLINE_METRICS and row["run"]["value"] is not None:
            term = "NDCG" if row["metric"] == "ndcg" else row["name"]
            found.append(
                {"value": f"{row['run']['value']:.3f}", "label": row["name"], "note": _note(row), "term": term}
            )
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    uniform = rates.get("test", rates.get("probe"))
    if uniform is not None:
        note = f"{uniform:.1%} in a uniform sample"
        found.append(
            {"value": f"{rates['log']:.1%}", "label": "positive in the log", "note": note, "term": "label rate"}
        )
    weights = facts["weights"]
    if not weights["uniform"]:
        share = weights["effective_sample_size"] / weights["rows"]
        note = f"of {weights['rows']:,} rows ({share:.0%})"
        value = f"{weights['effective_sample_size']:,.0f}"
        found.append({"value": value, "label": "effective sample size", "note": note, "term": "effective sample size"})
    return found


def stopped_words(run: str, stopped: Mapping[str, int]) -> str:
    """What to say of a fit that came to no end."""
    return (
        f"{run} was stopped after epoch {stopped['epoch']:,} of {stopped['epochs']:,}: it has learned less than the "
        "whole fit would have."
    )


def _note(row: Mapping[str, Any]) -> str:
    difference = row.get("difference")
    if difference is None or difference["value"] is None:
        return _within(row["run"]["interval"]).strip()
    span = "" if difference["low"] is None else f" ({difference['low']:+.3f} to {difference['high']:+.3f})"
    words = {"not clear": "no clear difference from"}.get(row["verdict"], f"{row['verdict']} than")
    return f"{words} plain MF: {difference['value']:+.3f}{span}"


def _within(interval: Sequence[float | None] | None) -> str:
    """An interval in brackets; nothing where there is none."""
    return f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval and None not in interval else ""


def _log_words(log: Mapping[str, Any]) -> list[str]:
    name = f"{log['name']}: " if log["name"] else ""
    return [
        f"{name}{log['rows']:,} ratings of {log['items']:,} items by {log['users']:,} users, {log['density']:.2%} of "
        f"all pairs. Half of the users rated at most {log['activity']['median']:,.0f} items; half of the items have at "
        f"most {log['popularity']['median']:,.0f} ratings."
    ]


def _bias_words(log: Mapping[str, Any]) -> list[str]:
    words = [
        f"The most popular tenth of the items holds {log['popularity']['top_tenth_share']:.0%} of the ratings, the "
        f"most active tenth of the users {log['activity']['top_tenth_share']:.0%} (10% if all were equal)."
    ]
    rates = {rate["sample"]: rate for rate in log["label_rates"]}
    uniform = next((rates[name] for name in ("probe", "test") if name in rates), None)
    if uniform is None:
        return [*words, "No uniform sample is at hand, so nobody can tell how far its labels are selected."]
    low, high = uniform["interval"]
    rate = rates["log"]["rate"]
    sample = f"in the uniform {uniform['sample']} {uniform['rate']:.1%} ({low:.1%} to {high:.1%})"
    words.append(f"In the log {rate:.1%} of the labels are positive, {sample}:")
    outside = rate < low or rate > high
    direction = "people rated what they like" if rate > high else "people rated what they dislike"
    words.append(f"{direction}." if outside else "no selection by label that this sample could show.")
    return words


def _method_words(facts: Mapping[str, Any]) -> list[str]:
    method, weights = facts["method"], facts["weights"]
    words = [_part_words(method)]
    if weights["uniform"]:
        return [*words, *_silence_words(facts["model"]), *_setting_words(facts["model"])]
    share = weights["effective_sample_size"] / weights["rows"]
    words.append(
        f"With its weights the {weights['rows']:,} rows are worth {weights['effective_sample_size']:,.0f} "
        f"({share:.0%}); the heaviest row counts {weights['max_over_mean']:.1f} times the mean."
    )
    rates = {rate["sample"]: rate["rate"] for rate in facts["log"]["label_rates"]}
    if "log, weighted" in rates:
        words.append(f"The weighted label rate of the log is {rates['log, weighted']:.1%}.")
    held_out = facts["balance"]["held_out"]
    if held_out and held_out["after"]:
        before, after = held_out["before"]["rms_sd"], held_out["after"]["rms_sd"]
        verb = "fell" if after < before else "rose"
        words.append(f"Imbalance in functions that no method was told of {verb} from {before:.3f} to {after:.3f} SD.")
    worse = [row for row in facts["balance"]["features"] if _grew(row)]
    if worse:
        verb = "features are" if len(worse) > 1 else "feature is"
        words.append(f"{len(worse)} {verb} out of balance by more than {SMALL} SD and worse than before.")
    return [*words, *_setting_words(facts["model"])]


def _part_words(method: Mapping[str, Any]) -> str:
    """What a method does about selection, by its parts."""
    weights = WEIGHT_WORDS.get(method["weights"], "gives every row a weight")
    name = "This method" if method["name"] == OWN else f"The method {method['name']}"
    filled = " and fills in the errors of pairs that nobody rated" if method["risk"] in ("dr", "direct") else ""
    return f"{name} {weights}{filled}."


def _grew(row: Mapping[str, Any]) -> bool:
    before, after = row["smd_before"], row["smd_after"]
    return before is not None and after is not None and abs(after) > max(SMALL, abs(before) + 1e-9)


def _silence_words(model: Mapping[str, Any]) -> list[str]:
    facts, words = model["imputation"], []
    if facts.get("contrast"):
        times = facts["positive"] / facts["negative"]
        words.append(
            f"It reads silence instead: a pair that would be rated positively is {times:.1f} times as likely to be "
            "observed as one that would not, so a pair without a rating is a little less likely to please."
        )
    elif "contrast" in facts:
        words.append("It would read silence instead, but no probe shows that the log's labels differ from all pairs'.")
    if "level" in facts:
        words.append("That is believed by half: a second predictor learns from ratings alone.")
    if model["exposure_coefficients"]:
        words.append("And it is told how exposed each user, item and pair is; labels decide how much that counts.")
    return words


def _setting_words(model: Mapping[str, Any]) -> list[str]:
    """What hedge and grades did, and why they did nothing where they were asked for in vain."""
    inactive_settings, words = model["inactive_settings"], []
    if "hedge" in inactive_settings:
        words.append(
            f"A second predictor was to doubt the imputation, but there is none: {inactive_settings['hedge']}."
        )
    if model["grades"]:
        say = f"with a say of {model['grades']['say']:.2f} (0: none, 1: all that it could have)"
        words.append(f"The grade of a rating, how far it is from the threshold, counts beside its label, {say}.")
    if "grades" in inactive_settings:
        words.append(f"Grades of ratings were to count beside labels, but had no say: {inactive_settings['grades']}.")
    return words


def _result_words(facts: Mapping[str, Any]) -> list[str]:
    model = facts["model"]
    if not model["metrics"]:
        if model["evaluation"]:
            return [f"At the fit the AUC on unbiased ratings was {model['evaluation']['auc']:.3f}."]
        return ["There are no uniformly collected ratings to judge it by: give some with --test FILE."]
    rows = {row["metric"]: row for row in model["metrics"]}
    chosen = [rows[name] for name in HEADLINE_METRICS if rows[name]["run"]["value"] is not None]
    listed = ", ".join(f"{row['name']} {row['run']['value']:.3f}{_within(row['run']['interval'])}" for row in chosen)
    words = [f"On {model['test']['rows']:,} uniformly collected ratings of {model['test']['users']:,} users: {listed}."]
    compared = [row for row in model["metrics"] if row.get("verdict")]
    if not compared:
        return words
    better, worse = ([row["name"] for row in compared if row["verdict"] == word] for word in ("better", "worse"))
    if better:
        words.append(f"Against plain MF on the same log it is better in {', '.join(better)}.")
    if worse:
        words.append(f"{'It' if better else 'Against plain MF it'} is worse in {', '.join(worse)}.")
    unclear = len(compared) - len(better) - len(worse)
    if unclear:
        words.append(f"In {unclear} of {len(compared)} metrics the test cannot tell the two apart.")
    return words
