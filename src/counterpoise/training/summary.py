"""What a fit corrected, in plain sentences, from the facts of a fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.models.exposure import MIN_COEFFICIENT

Facts = Mapping[str, Any]


def is_corrected(facts: Facts) -> bool:
    """Whether anything was done about selection: weights, imputation, exposure, or labels of a probe."""
    imputed = bool(facts["imputation"]) and facts["imputation"].get("log_odds_ratio") != 0
    weighted = facts["weights"].get("design_effect", 1.0) > 1 + 1e-9
    return weighted or imputed or _exposure_counts(facts) or bool(facts.get("probe", {}).get("learned"))


def correction_sentences(facts: Facts, rows: int) -> list[str]:
    """What was done about selection, and what was not; `rows`: of the log."""
    return [_probe(facts), _weights(facts, rows), *_exposure(facts), *_missingness(facts), _level(facts)]


def _probe(facts: Facts) -> str:
    probe = facts.get("probe")
    if probe is None:
        return "No probe: nothing is known of pairs that were not rated but what the log shows."
    if not probe["learned"]:
        rate = "ratio_of_positive" in facts["weights"] or "log_odds_ratio" in facts["imputation"]
        used = (
            "only its label rate was used" if rate or "label" in facts["imputation"] else "its labels were not learned"
        )
        return f"Probe: {probe['rows']:,} rows; {used}."
    return f"Probe: {probe['rows']:,} rows, learned beside the log with {probe['share']:.0%} of the weight."


def _weights(facts: Facts, rows: int) -> str:
    weights = facts["weights"]
    if weights.get("design_effect", 1.0) < 1 + 1e-9:
        return "Every row of the log counts the same."
    how = "to look more like all pairs" if "relaxed" in weights else "by how likely they were to be observed"
    size = f"{weights['effective_sample_size']:,.0f} of {rows:,}"
    return f"Rows of the log are weighted {how}: effective sample size {size}."


def _exposure_counts(facts: Facts) -> bool:
    coefficients = facts.get("exposure", {}).get("coefficients", [0.0])
    return bool(max(map(abs, coefficients)) >= MIN_COEFFICIENT)


def _exposure(facts: Facts) -> list[str]:
    if not facts.get("exposure"):
        return []
    if not _exposure_counts(facts):
        return ["Exposure, what was observed at all, was modelled and says nothing about the labels here."]
    share = facts.get("ensemble", {}).get("exposure", 1.0)
    judged = f"; the probe sets its share to {share:.0%}" if abs(share - 1) >= 0.005 else ""
    return [f"Exposure, what was observed at all, was modelled and counts in the prediction{judged}."]


def _missingness(facts: Facts) -> list[str]:
    imputation, combined = facts["imputation"], facts.get("ensemble", {})
    if "log_odds_ratio" not in imputation:
        return []
    if imputation["log_odds_ratio"] == 0:
        why = "without a probe it cannot be known" if "probe" not in facts else "the probe shows none"
        return [f"Whether liking makes people rate (labels not missing at random) was not modelled: {why}."]
    times = imputation["positive"] / imputation["negative"]
    model = f"Positive pairs are {times:.1f}x as likely to be observed as negative ones, by the label rates"
    if combined.get("members", 1) < 2:
        return [f"{model}; this was modelled."]
    return [f"{model}; the predictor that models this has {combined['weight']:.0%} of the prediction, by the probe."]


def _level(facts: Facts) -> str:
    shift = facts.get("intercept_shift", {}).get("shift")
    if "ensemble" in facts and "intercept" in facts["ensemble"]:
        slope = facts["ensemble"]["slope"]
        spread = f", their spread by a factor of {slope:.2f}" if slope != 1 else ""
        return f"The level of predictions is that of the probe{spread}."
    if facts.get("probe", {}).get("learned"):
        return "The level of predictions is that of the probe."
    if shift:
        return f"The level of predictions was moved by {shift:+.2f} in log odds, to where balancing weights put it."
    if "ratio_of_positive" in facts["weights"] or facts["imputation"].get("log_odds_ratio"):
        return "The level of predictions is that of the probe's label rate."
    return "The level of predictions is that of the log."
