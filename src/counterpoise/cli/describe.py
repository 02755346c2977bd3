"""Methods and fitted weights in words: what `counterpoise methods` and `counterpoise fit` print."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from counterpoise.config import Configurable
from counterpoise.methods import METHODS, PARTS, canonical_name, make, short_names
from counterpoise.recommender import DebiasedRecommender

WIDTH = 110  # of a paragraph
COLUMNS = ("name", "family", "weights", "risk", "imputation", "needs", "citation")
WORDS = {kind: word for _, words in PARTS.values() for word, kind in words.items()}
FLAGS = {"seed": "--seed"}  # settings that are no settings on the command line, but flags


def method_rows() -> list[list[str]]:
    """A row for each method under `COLUMNS`: parts by their words, of a citation authors and year alone."""
    rows = []
    for method in METHODS.values():
        model = method.build()
        parts = [_plain(model.weights), model.risk, _plain(model.imputation)]
        rows.append([method.name, method.family, *parts, method.needs, short_citation(method.citation)])
    return rows


def short_citation(citation: str) -> str:
    """Authors and year of the first work cited: "Saito 2020", "Li et al. 2023"."""
    found = re.match(r"(.+?) (\d{4}),", citation)
    if found is None:
        return citation
    authors = re.split(r", | and ", found[1])
    return f"{found[1] if len(authors) < 3 else authors[0] + ' et al.'} {found[2]}"


def method_facts(name: str) -> dict[str, Any]:
    """JSON-able: all about one method, by our name or the paper's; `settings` by the names that `--set` takes."""
    model, method = make(name), METHODS[canonical_name(name)]
    settings = {short: _plain(_value(model, full)) for short, full in short_names(model).items()}
    return method.to_dict() | {"asked_for": name, "settings": settings, "configuration": model.to_config()}


def method_text(name: str) -> str:
    """One method in a paragraph, with its formula and its settings."""
    model, method = make(name), METHODS[canonical_name(name)]
    parts = [f"{type(part).__name__}: {_first_line(part)}" for part in (model.weights, model.imputation)]
    lines = [
        f"{'' if name == method.name else f'{name}: '}{method.name} ({method.title}), of the family {method.family}",
        "",
        *textwrap.wrap(method.about, WIDTH),
        "",
        *(f"  {line}" for piece in method.formula.split(",   ") for line in textwrap.wrap(piece, WIDTH - 2)),
        "",
        *_labelled("weights", parts[0]),
        *_labelled("risk", model.risk),
        *_labelled("imputation", parts[1]),
        *_labelled("needs", method.needs),
        *_labelled("citation", method.citation),
        "",
        "Settings and their defaults, by the names that --set takes:",
        *_setting_lines(model),
    ]
    return "\n".join(lines)


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{label:<12}", subsequent_indent=" " * 12)


def _first_line(part: Configurable) -> str:
    return (inspect.getdoc(type(part)) or "").partition("\n")[0]


def _setting_lines(model: DebiasedRecommender) -> list[str]:
    """A line for each setting, those of a part below it."""
    names = {full: FLAGS.get(short, short) for short, full in short_names(model).items()}
    lines = []
    for full in sorted(names, key=lambda name: _order(model, name)):
        label = "  " * (1 + full.count("__")) + names[full]
        lines.append(f"{label:<38} {_as_set(_plain(_value(model, full)))}")
    return lines


def _order(model: Configurable, full: str) -> list[int]:
    """Where a setting stands: each level in the order of its part's fields, a part's settings right after it."""
    places, part = [], model
    for word in full.split("__"):
        places.append(list(part.get_params(deep=False)).index(word))
        part = getattr(part, word)
    return places


def _value(model: Configurable, full: str) -> Any:
    return model.get_params()[full]


def _plain(value: Any) -> Any:
    """A part by the word for it where there is one, else by its class; parts in a tuple as Python writes them."""
    if isinstance(value, Configurable):
        return WORDS.get(type(value), type(value).__name__)
    if not isinstance(value, tuple):
        return value
    return repr(value) if any(isinstance(inner, Configurable) for inner in value) else list(value)


def _as_set(value: Any) -> str:
    """A value as `--set` reads it."""
    return "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fit_lines(facts: Mapping[str, Any], rows: int) -> list[str]:
    """How far to trust the weights of a fitted model, from its `facts_` and the rows of its log."""
    weights, imputation = facts["weights"], facts["imputation"]
    elsewhere = "share_agreed" in imputation or imputation.get("propensities")  # the weights that matter lie in there
    lines = [] if elsewhere else [_sample_line(weights, rows), *_part_lines(weights)]
    if "label" in (base := imputation.get("base", imputation)):
        lines.append(f"Imputed label: {base['label']:.3f}.")
    if "contrast" in imputation:
        lines.append(_silence_line(imputation))
    elif "level" in imputation:
        lines.append("The imputation is believed by half: a second predictor learns without it.")
    if "grades" in facts:
        lines.append(f"Grades: how far ratings are from the threshold counts too, by {facts['grades']['say']:.0%}.")
    inactive_settings = facts.get("inactive_settings", {})
    if "hedge" in inactive_settings:
        lines.append(
            f"Hedge: one predictor as without it, since {inactive_settings['hedge']} that a second could doubt."
        )
    if "grades" in inactive_settings:
        lines.append(f"Grades: no say, since {inactive_settings['grades']}.")
    if "share_agreed" in imputation:
        lines.append(f"The two models agree on {imputation['share_agreed']:.1%} of all pairs, which the third learns.")
    for candidate in imputation.get("propensities", []):
        lines += _part_lines(candidate)
    if facts["risk"] < 0:
        combined = "propensities" in imputation
        why = "the weights of the regression may be negative" if combined else "corrected labels leave [0, 1]"
        way_out = "Choose another method." if combined else "Raise l2, or learn the imputation (dr-jl, tdr-jl)."
        lines.append(f"The risk is {facts['risk']:.2f}, below 0: {why}. {way_out}")
    return lines


def features_lines(model: DebiasedRecommender) -> list[str]:
    """A warning where the features of users and items that were given are used by nobody."""
    sided = any(getattr(module, "uses_side_features", False) for module in model.scorer_.modules())
    if sided or "side" in getattr(model.weights, "sources", ()):
        return []
    return ["The features of users and items are not used here. Matrix factorisation takes --set side_features=true."]


def _silence_line(facts: Mapping[str, Any]) -> str:
    if not facts["contrast"]:
        return "Silence: says nothing, since no probe shows that the log's labels differ from those of all pairs."
    half = ", believed by half" if "level" in facts else ""
    times = facts["positive"] / facts["negative"]
    return f"Silence: a positive pair is {times:.1f} times as likely to be in the log as a negative one{half}."


def truth_line(truth: Mapping[str, float]) -> str:
    """What is known of a fit on simulated data, and of no other."""
    off = truth["bias_of_the_log"]
    line = f"In truth: ideal loss {truth['ideal_loss']:.3f}. The log's mean error is off by {off:+.1%}"
    if "bias_of_the_weights" in truth:
        line += f", with these weights by {truth['bias_of_the_weights']:+.1%}"
    return line + " (of the errors to be expected)."


def _sample_line(facts: Mapping[str, Any], rows: int) -> str:
    if facts["design_effect"] < 1 + 1e-9:
        return "Weights: every row counts the same."
    return (
        f"Weights: effective sample size {facts['effective_sample_size']:,.0f} of {rows:,} rows, "
        f"the largest is {facts['max_over_mean']:.1f} times the mean."
    )


def _part_lines(facts: Mapping[str, Any]) -> list[str]:
    """What one weights part has to say, by the facts that it has."""
    lines = []
    if "ratio_of_positive" in facts:
        positive, negative = facts["ratio_of_positive"], facts["ratio_of_negative"]
        lines.append(f"By label: a positive counts {positive:.2f}, a negative {negative:.2f}.")
    if "clipped_rows" in facts:
        low, high, mean = (facts[name] for name in ("smallest_propensity", "largest_propensity", "mean_ratio"))
        clipped, share, removed = (facts[name] for name in ("clipped_rows", "clipped_share", "weight_removed"))
        lines.append(
            f"Propensities from {low:.2g} to {high:.2g}, mean ratio {mean:.2f} (about 1 if they are right); "
            f"clipped {clipped:,} rows ({share:.1%}), {removed:.1%} of the weight."
        )
    gaps = [f"{name.replace('_', ' ')} {facts[name]:.3f}" for name in ("balance_gap", "stability_gap") if name in facts]
    lines += [f"Left to balance: {', '.join(gaps)} (0 if it is met)."] if gaps else []
    return lines + _balance_lines(facts)


def _balance_lines(facts: Mapping[str, Any]) -> list[str]:
    if facts.get("solver") == "gradient":
        return [f"Balanced by Algorithm 1: weight loss {facts['last_weight_loss']:.3f} in the last batch."]
    if "relaxed" not in facts:
        return []
    folds = facts.get("balanced", [])  # which may have chosen different numbers of functions
    total = sum(len(fold["names"]) for fold in folds) if folds else facts["functions"]
    relaxed = f"{facts['relaxed']} of {total} functions given up"
    if facts["status"] != "solved":
        relaxed += f", {facts['status']} with a gap of {facts['gap']:.1e}"
    before, after = facts["held_out_before"], facts["held_out_after"]
    if before is None or after is None:
        return [f"Balanced: {relaxed}."]
    return [
        f"Balanced: imbalance of other functions, root mean square, {before['rms_sd']:.2g} SD before and "
        f"{after['rms_sd']:.2g} SD after; {relaxed}."
    ]
