"""Sentences on what a fit corrected, from the facts of a fitted model."""

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
    """Sentences on what was done about selection, and what was not; `rows`: of the log."""
    if facts.get("probe", {}).get("alone"):
        return [f"The model learned from the probe ({_rows(facts)}) alone."]
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
        judged = "they judged the predictions and were not learned" if "ensemble" in facts else ""
        used = judged or ("only its share of positives was used" if rate else "its labels were not learned")
        return f"The probe has {_rows(facts)}: {used}."
    share = f", with {probe['share']:.0%} of the weight" if "share" in probe else ""
    return f"The probe has {_rows(facts)}, learned together with the log{share}."


def _is_weighted(facts: Facts) -> bool:
    return bool(facts["weights"].get("design_effect", 1.0) > 1 + 1e-9)


def _weights(facts: Facts, rows: int) -> str:
    weights = facts["weights"]
    if facts.get("exposed") and _is_weighted(facts):
        return "Each pair, clicked or not, counts by its chance of having been seen (exposure)."
    if not _is_weighted(facts):
        return "Every row of the log counts the same."
    known = {"held_out_before": " to resemble all pairs more closely", "ratio_of_positive": " by their label"}
    known |= {"clipped_rows": " by inverse propensities"}
    how = next((words for name, words in known.items() if name in weights), "")
    size = f"{weights['effective_sample_size']:,.0f}"
    return f"Rows are weighted{how}; the {rows:,} rows count as {size} of equal weight (effective sample size)."


def _clicked(facts: Facts) -> list[str]:
    """Sentences on how exposure, the chance that a pair was seen, was separated from relevance."""
    if "exposure" in facts["weights"]:
        mean = facts["weights"]["exposure"]["mean"]
        return [
            f"Part of popularity is taken for exposure, the chance of being seen, the rest for relevance: a clicked "
            f"pair has {mean:.2f} of the largest exposure on average."
        ]
    if "exposure" in facts["imputation"]:
        mean = facts["imputation"]["exposure"]["mean"]
        return [f"Exposure, the chance of being seen, was learned together with relevance: {mean:.2f} on average."]
    return [] if is_corrected(facts) else ["Nothing corrects for exposure: items that are often seen are favoured."]


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
        return ["Which pairs are observed was modelled (exposure), and it has nothing to do with the labels here."]
    share = facts.get("ensemble", {}).get("exposure", 1.0)
    judged = f"; the probe's labels multiply its effect by {share:.2f}" if abs(share - 1) >= MIN_CHANGE else ""
    return [f"Which pairs are observed was modelled and used as a sign of preference (exposure){judged}."]


def _missingness(facts: Facts) -> list[str]:
    imputation, combined = facts["imputation"], facts.get("ensemble", {})
    if "log_odds_ratio" not in imputation:
        return []
    if imputation["log_odds_ratio"] == 0:
        why = "without a probe it cannot be known"
        if "probe" in facts:
            why = "log and probe do not differ in their shares of positives by more than chance"
        return [f"That positives may be observed more often (labels missing not at random) was not corrected: {why}."]
    times = imputation["positive"] / imputation["negative"]
    model = f"Positive pairs are taken to be {times:.1f} times as likely to be observed as negative ones"
    if imputation.get("interval"):
        low, high = imputation["interval"]
        model += f" (the probe allows {low:.1f} to {high:.1f} times)"
    if "weight" not in combined:
        return [f"{model}, and labels are corrected for that."]
    share = f"{combined['weight']:.0%}"
    return [f"{model}. The prediction averages a model that corrects for this ({share}) and one that does not."]


def _level(facts: Facts) -> str:
    if "ensemble" in facts:
        slope = facts["ensemble"]["slope"]
        spread = f"; their log odds were multiplied by {slope:.2f}" if abs(slope - 1) >= MIN_CHANGE else ""
        return f"The mean prediction is set to the mean label of the probe{spread}."
    if "share" in facts.get("probe", {}):
        return "The mean prediction was learned from log and probe."
    if facts.get("intercept_shift", {}).get("shift"):
        return intercept_sentence(facts["intercept_shift"])
    return f"The mean prediction is that of the log's labels{', corrected' if is_corrected(facts) else ''}."


def intercept_sentence(shift: Mapping[str, float]) -> str:
    """A sentence on the shift of the intercept after training; from the facts of a fit."""
    return (
        f"All predictions were moved by {shift['shift']:+.2f} in log odds (standard error "
        f"{shift['standard_error']:.2f}), to the mean that exactly balanced weights give."
    )
