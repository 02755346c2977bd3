"""What a fit corrected, in plain sentences, from the facts of a fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.data.feedback import words_of
from counterpoise.models.exposure import MIN_COEFFICIENT

Facts = Mapping[str, Any]
MIN_CHANGE = 0.005  # of a factor: smaller ones print as 1


def is_corrected(facts: Facts) -> bool:
    """Whether anything was done about selection: weights, imputation, exposure, or a probe."""
    if facts.get("feedback") == "clicks":  # where all methods impute: the label 0 corrects nothing
        return _is_weighted(facts) or bool(set(facts["imputation"]) - {"label"})
    imputed = bool(facts["imputation"]) and facts["imputation"].get("log_odds_ratio") != 0
    judged = bool(facts.get("probe", {}).get("learned")) or "ensemble" in facts
    return _is_weighted(facts) or imputed or bool(facts.get("imputed")) or _exposure_counts(facts) or judged


def correction_sentences(facts: Facts, rows: int) -> list[str]:
    """What was done about selection, and what was not; `rows`: of the log."""
    if facts.get("probe", {}).get("alone"):
        return [f"Probe: {_rows(facts)}; the model learned from nothing else."]
    if facts.get("feedback") == "clicks":
        unused = ["The probe is not used: no method for clicks learns from one."] if "probe" in facts else []
        return [words_of("clicks").unknown_pairs, *unused, _weights(facts, rows), *_clicked(facts)]
    return [
        _probe(facts),
        _weights(facts, rows),
        *_imputed(facts),
        *_exposure(facts),
        *_missingness(facts),
        _level(facts),
    ]


def _rows(facts: Facts) -> str:
    count = facts["probe"]["rows"]
    return f"{count:,} row{'' if count == 1 else 's'}"


def _probe(facts: Facts) -> str:
    probe = facts.get("probe")
    if probe is None:
        return words_of(facts.get("feedback")).unknown_pairs
    if not probe["learned"]:
        rate = "ratio_of_positive" in facts["weights"] or {"log_odds_ratio", "label"} & set(facts["imputation"])
        judged = "it judged the predictors, and its labels were not learned" if "ensemble" in facts else ""
        used = judged or ("only its label rate was used" if rate else "its labels were not learned")
        return f"Probe: {_rows(facts)}; {used}."
    share = f" with {probe['share']:.0%} of the weight" if "share" in probe else ""
    return f"Probe: {_rows(facts)}, learned beside the log{share}."


def _is_weighted(facts: Facts) -> bool:
    return bool(facts["weights"].get("design_effect", 1.0) > 1 + 1e-9)


def _weights(facts: Facts, rows: int) -> str:
    weights = facts["weights"]
    if not _is_weighted(facts):
        return "Every row of the log counts the same."
    known = {"held_out_before": " to look more like all pairs", "ratio_of_positive": " by their label"}
    known |= {"clipped_rows": " by inverse propensities"}
    how = next((words for name, words in known.items() if name in weights), "")
    size = f"{weights['effective_sample_size']:,.0f} of {rows:,}"
    return f"Rows of the log are weighted{how}: effective sample size {size}."


def _clicked(facts: Facts) -> list[str]:
    """How exposure, the chance that a pair was seen, was told from relevance."""
    if "exposure" in facts["weights"]:
        mean = facts["weights"]["exposure"]["mean"]
        return [
            f"Exposure, the chance of being seen, is {mean:.2f} for a clicked pair on average, if that of the most "
            "exposed is 1: a part of popularity is taken for exposure, the rest for relevance."
        ]
    if "exposure" in facts["imputation"]:
        mean = facts["imputation"]["exposure"]["mean"]
        return [f"Exposure, the chance of being seen, was learned beside the prediction: {mean:.2f} on average."]
    return [] if is_corrected(facts) else ["Nothing was done about exposure: often seen items are favoured."]


def _imputed(facts: Facts) -> list[str]:
    words = words_of(facts.get("feedback"))
    return [words("Errors of pairs that were not rated were imputed.")] if facts.get("imputed") else []


def _exposure_counts(facts: Facts) -> bool:
    coefficients = facts.get("exposure", {}).get("coefficients", [0.0])
    return bool(max(map(abs, coefficients)) >= MIN_COEFFICIENT)


def _exposure(facts: Facts) -> list[str]:
    if not facts.get("exposure"):
        return []
    if not _exposure_counts(facts):
        return ["Exposure, what was observed at all, was modelled and says nothing about the labels here."]
    share = facts.get("ensemble", {}).get("exposure", 1.0)
    judged = f"; the probe sets its share to {share:.0%}" if abs(share - 1) >= MIN_CHANGE else ""
    return [f"Exposure, what was observed at all, was modelled and counts in the prediction{judged}."]


def _missingness(facts: Facts) -> list[str]:
    imputation, combined = facts["imputation"], facts.get("ensemble", {})
    if "log_odds_ratio" not in imputation:
        return []
    if imputation["log_odds_ratio"] == 0:
        why = "without a probe it cannot be known"
        if "probe" in facts:
            why = "the label rates of log and probe do not differ by more than chance"
        return [f"Whether liking makes people rate (labels not missing at random) was not modelled: {why}."]
    times = imputation["positive"] / imputation["negative"]
    model = f"Positive pairs are {times:.1f}x as likely to be observed as negative ones, by the label rates"
    if "weight" not in combined:
        return [f"{model}; this was modelled."]
    return [f"{model}; the predictor that models this has {combined['weight']:.0%} of the prediction, by the probe."]


def _level(facts: Facts) -> str:
    shift = facts.get("intercept_shift", {}).get("shift")
    if "ensemble" in facts:
        slope = facts["ensemble"]["slope"]
        spread = f"; their spread was multiplied by {slope:.2f}" if abs(slope - 1) >= MIN_CHANGE else ""
        return f"The level of predictions is that of the probe{spread}."
    if "share" in facts.get("probe", {}):
        return "The level of predictions was learned from log and probe."
    if shift:
        return f"The level of predictions was moved by {shift:+.2f} in log odds, to where balancing weights put it."
    return f"The level of predictions is that of the log{', as corrected' if is_corrected(facts) else ''}."
