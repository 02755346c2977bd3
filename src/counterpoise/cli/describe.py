"""The sentences that `counterpoise methods` and `counterpoise fit` print about methods and fitted models."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Mapping
from typing import Any

from counterpoise.config import Configurable
from counterpoise.data.feedback import LEVEL_OF_CLICKS, words_of
from counterpoise.data.log import Dataset
from counterpoise.evaluation.evaluate import Evaluation
from counterpoise.evaluation.full_ranking import MEASURES, RankingEvaluation
from counterpoise.methods import FAMILIES, METHODS, PARTS, canonical_name, make, short_names
from counterpoise.models.base import factor_sentence
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.path import intercept_sentence, path_of, path_sentence
from counterpoise.runs import counted
from counterpoise.training.summary import correction_sentences

NO_KINDS: Mapping[str, Any] = {}  # a test of ratings, for a model of ratings
NOT_EVALUATED = "Not evaluated: there is no test. Hold rows of the log out with --holdout 0.2, or give --test FILE."
WIDTH = 110  # characters in a line of a paragraph
WORDS = {kind: word for _, words in PARTS.values() for word, kind in words.items()}
OWN_OPTIONS = {"seed": "--seed"}  # settings that --set does not take, because the command has an option for them


def method_lines() -> list[str]:
    """All methods by family, a line of at most 80 characters each: name, year, what it needs, when it is right."""
    lines = [_row("", "", "needs", "right when")]
    for family in FAMILIES:
        lines += ["", family.capitalize()]
        lines += [_row(m.name, str(m.year), m.needs, m.when) for m in METHODS.values() if m.family == family]
    return lines


def _row(name: str, year: str, needs: str, when: str) -> str:
    return f"  {name:<14} {year:<4} {needs:<16} {when}".rstrip()


def method_facts(name: str) -> dict[str, Any]:
    """JSON-able: one method, by our name or the paper's; `settings` has the names that `--set` takes."""
    model, method = make(name), METHODS[canonical_name(name)]
    values = model.get_params()
    settings = {short: _short(values[full]) for short, full in short_names(model).items()}
    return method.to_dict() | {"asked_for": name, "settings": settings, "configuration": model.to_config()}


def method_text(name: str) -> str:
    """One method in a paragraph, with its formula and its settings."""
    model, method = make(name), METHODS[canonical_name(name)]
    labelled = {"weights": _about(model.weights), "risk": model.risk, "imputation": _about(model.imputation)}
    labelled |= {"right when": method.when, "needs": method.needs, "citation": method.citation}
    asked = "" if name == method.name else f"{name}: "
    lines = [
        f"{asked}{method.name} ({method.title}), {method.year}, family: {method.family}",
        "",
        *textwrap.wrap(method.about, WIDTH),
        "",
        *(f"  {line}" for piece in method.formula.split(",   ") for line in textwrap.wrap(piece, WIDTH - 2)),
        "",
        *(
            textwrap.fill(text, WIDTH, initial_indent=f"{label:<12}", subsequent_indent=" " * 12)
            for label, text in labelled.items()
        ),
        "",
        "Settings and their defaults, by the names that --set takes:",
        *_setting_lines(model),
    ]
    return "\n".join(lines)


def _about(part: Configurable) -> str:
    first_line = (inspect.getdoc(type(part)) or "").partition("\n")[0]
    return f"{type(part).__name__}: {first_line}"


def _setting_lines(model: DebiasedRecommender) -> list[str]:
    """A line for each setting, with those of a part indented below it."""
    names = {full: OWN_OPTIONS.get(short, short) for short, full in short_names(model).items()}
    values, lines = model.get_params(), []
    for full in sorted(names, key=lambda name: _position(model, name)):
        label, value = "  " * (1 + full.count("__")) + names[full], _short(values[full])
        shown = "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else value
        lines.append(f"{label:<38} {shown}")
    return lines


def _position(model: Configurable, full: str) -> list[int]:
    """Sort key of a setting: the position of each level among the fields of its part."""
    position, part = [], model
    for word in full.split("__"):
        position.append(list(part.get_params(deep=False)).index(word))
        part = getattr(part, word)
    return position


def _short(value: Any) -> Any:
    """A part as the word that `--set` takes for it, else its class name; a tuple of parts as its repr."""
    if isinstance(value, Configurable):
        return WORDS.get(type(value).__name__, type(value).__name__)
    if not isinstance(value, tuple):
        return value
    return repr(value) if any(isinstance(inner, Configurable) for inner in value) else list(value)


def fit_lines(facts: Mapping[str, Any], rows: int) -> list[str]:
    """What was learned besides the predictor, and how far to trust the weights.

    `facts` are the `facts_` of a fitted model, `rows` the number of rows of its log.
    """
    weights, imputation = facts["weights"], facts["imputation"]
    inside = "share_agreed" in imputation or imputation.get("propensities")  # the weights are in the imputation
    lines = textwrap.wrap(" ".join(correction_sentences(facts, rows)), WIDTH)
    if not inside:
        if weights["design_effect"] < 1 + 1e-9:
            sample = "every row counts the same"
        else:
            sample = f"effective sample size {weights['effective_sample_size']:,.0f} of {rows:,} rows; "
            sample += f"the largest weight is {weights['max_over_mean']:.1f} times the mean"
        lines += [f"Weights: {sample}.", *_weights_lines(weights), *_intercept_lines(facts)]
    if "label" in (base := imputation.get("base", imputation)) and facts.get("feedback") != "clicks":
        lines.append(f"Imputed label: {base['label']:.3f}.")
    lines += _imputation_lines(imputation)
    lines += [factor_sentence(facts["factors"])] if "factors" in facts else []
    if "ordinal" in facts:
        weight = facts["ordinal"]["weight"]
        lines.append(f"Ordinal loss: ratings beyond the label are learned with weight {weight:.0%}.")
    if "ordinal" in facts.get("inactive", {}):
        lines.append(f"Ordinal loss off: {facts['inactive']['ordinal']}.")
    for candidate in imputation.get("propensities", []):
        lines += _weights_lines(candidate)
    if facts["risk"] < 0:
        combined = "propensities" in imputation
        why = "the weights of the regression may be negative" if combined else "corrected labels leave [0, 1]"
        advice = "Choose another method." if combined else "Raise l2, or learn the imputation (dr-jl, tdr-jl)."
        lines.append(f"The risk is {facts['risk']:.2f}, below 0: {why}. {advice}")
    return lines


def read_line(dataset: Dataset, told: bool) -> str:
    """What the training log is; of clicks and impressions why, and what changes that unless `told` by an option."""
    log, words = dataset.train, words_of(dataset.train.feedback)
    if log.feedback == "ratings":
        return f"{dataset.name}: {log}"
    (users, items), clicked = log.shape, ""
    if log.feedback == "impressions":
        clicked = f", {log.labels.mean():.1%} of them clicked"
    way = "" if told else "; --feedback changes that"
    pairs = f"{words.count(len(log))} of {counted(users, 'user')} on {counted(items, 'item')}{clicked}"
    return f"{dataset.name}: {pairs} ({words.log}{way})."


def _tested(kinds: Mapping[str, Any]) -> str:
    """What the rows of a test are called; `kinds`: of the training log ("trained_on") and of the test ("feedback")."""
    both = (kinds.get("trained_on"), kinds.get("feedback")) == ("clicks", "clicks")
    return "clicks" if both else words_of(kinds.get("trained_on")).tested


def evaluation_title(
    sample: str | None,
    protocol: str,
    by: str | None = None,
    weighted: bool = False,
    kinds: Mapping[str, Any] = NO_KINDS,
) -> str:
    """The heading of metrics, by how the pairs of the test were collected; `by` names a hold-out of the log."""
    tested = _tested(kinds)
    if tested == "clicks":
        which = "the clicks of the test" if by is None else f"held-out clicks ({by})"
        weighted_by = "weighted by 1 / P(exposed) to estimate metrics over all relevant pairs"
        return f"How {which} rank among all items, {weighted_by}; naive: of the clicks as they are:"
    if sample == "uniform":
        note = f"{LEVEL_OF_CLICKS}\n" if kinds.get("trained_on") == "clicks" else ""
        return f"{note}On unbiased {tested} ({protocol} protocol):"
    selected = words_of(kinds.get("trained_on")).selected
    which = f"biased {tested} ({protocol} protocol)" if by is None else f"a hold-out of the log ({by})"
    if weighted:
        return f"On {which}, weighted to estimate metrics over all pairs; naive: of the pairs {selected}:"
    return f"On {which}; these are metrics of the pairs {selected}, not of all pairs:"


def beside_baselines(models: Mapping[str, Evaluation | RankingEvaluation]) -> list[str]:
    """A small table of weighted and naive metrics, a line for each model."""
    first = next(iter(models.values()))
    names = {"auc": "AUC", "ndcg": f"NDCG@{first.k}", "log_loss": "log loss"}
    if isinstance(first, RankingEvaluation):
        names = {name: f"{title}@{first.k}" for name, title in MEASURES.items()}
    width = max(map(len, models))
    lines = [f"{'weighted (naive)':<{max(width, 16)}}  " + "  ".join(f"{name:<15}" for name in names.values())]
    for model, found in models.items():
        cells = [
            f"{getattr(found, name):.4f} ({getattr(found, 'naive', {}).get(name, math.nan):.4f})" for name in names
        ]
        lines.append(f"{model:<{max(width, 16)}}  " + "  ".join(f"{cell:<15}" for cell in cells))
    return [line.rstrip() for line in lines]


def evaluated_on(known: Mapping[str, Any], kind_was_said: bool) -> list[str]:
    """What the test is, what was left out of it, and its cold users and items; `known`: the dataset's description."""
    tested = _tested(known)
    lines = [f"Test: {known['test_rows']:,} {tested}."]
    if known["test_sample"] == "biased" and tested != "clicks" and "by" not in known and not kind_was_said:
        lines[0] += (
            " They count as biased. If their pairs were drawn at random from all pairs, say --test-kind uniform: then "
            "metrics are unbiased, and a part can serve as probe."
        )
    removed = {"removed_as_in_train": "in the log", "removed_as_probe": "taken as probe"}
    removed["dropped_rows"] = "of users or items without rows in the log"
    listed = [f"{known[rows]:,} {why}" for rows, why in removed.items() if known[rows]]
    lines += [f"Left out of {known['given_rows']:,}: {', '.join(listed)}."] if listed else []
    cold = f"{counted(known['cold_users'], 'user')} and {counted(known['cold_items'], 'item')}"
    lines.append(f"Cold (no rows in the log): {cold}, {known['cold_rows']:,} {tested} of the test.")
    return lines


def features_lines(model: DebiasedRecommender) -> list[str]:
    """A warning where the given features of users and items are not used by any part."""
    sided = any(getattr(module, "uses_side_features", False) for module in model.scorer_.modules())
    sources = [value for name, value in model.weights.get_params().items() if name.rpartition("__")[2] == "sources"]
    if sided or any("side" in value for value in sources):
        return []
    return ["The features of users and items are not used here. Matrix factorisation takes --set side_features=true."]


def truth_line(truth: Mapping[str, float]) -> str:
    """The true loss and the true biases of a fit on simulated data."""
    line = f"Truth: ideal loss {truth['ideal_loss']:.3f}. Bias of the log's mean error {truth['bias_of_the_log']:+.1%}"
    if "bias_of_the_weights" in truth:
        line += f", of the weighted mean error {truth['bias_of_the_weights']:+.1%}"
    return line + " (relative to the expected error)."


def _imputation_lines(facts: Mapping[str, Any]) -> list[str]:
    """Tri-training and filtered errors, where there are such."""
    lines = []
    if "kept_share" in facts:
        lines.append(f"Filtered: {facts['kept_share']:.1%} of all pairs keep their imputed error.")
    if "share_agreed" in facts:
        share = f"{facts['share_agreed']:.1%}"
        lines.append(f"Tri-training: two models agree on {share} of all pairs; the third learns these.")
    return lines


def _weights_lines(facts: Mapping[str, Any]) -> list[str]:
    """Diagnostics of one weights part, according to the facts that it has."""
    lines = []
    if "ratio_of_positive" in facts:
        positive, negative = facts["ratio_of_positive"], facts["ratio_of_negative"]
        lines.append(f"Relative weight of a positive row {positive:.2f}, of a negative row {negative:.2f}.")
    if "clipped_rows" in facts:
        low, high, mean = (facts[name] for name in ("smallest_propensity", "largest_propensity", "mean_ratio"))
        clipped, share, removed = (facts[name] for name in ("clipped_rows", "clipped_share", "weight_removed"))
        lines.append(
            f"Propensities from {low:.2g} to {high:.2g}, mean ratio {mean:.2f} (about 1 if they are right); "
            f"clipped {clipped:,} rows ({share:.1%}), {removed:.1%} of the weight."
        )
    if "calibration" in facts:
        how = facts["calibration"]
        before, after = how["error_before"], how["error_after"]
        lines.append(f"Calibrated by {how['method']}: mean error of propensities {before:.4f} -> {after:.4f}.")
    if "capped_share" in facts:
        lines.append(f"Capped: the weights of {facts['capped_share']:.1%} of the rows.")
    gaps = [f"{name.replace('_', ' ')} {facts[name]:.3f}" for name in ("balance_gap", "stability_gap") if name in facts]
    lines += [f"Constraints: {', '.join(gaps)} (0 if met)."] if gaps else []
    if facts.get("solver") == "gradient":
        loss = f"weight loss {facts['last_weight_loss']:.3f} in the last batch"
        lines.append(f"Balanced by Algorithm 1: {_held_out(facts)}{loss}.")
    elif "relaxed" in facts:
        lines += [_balance_line(facts), *_path_lines(facts)]
    lines += [f"Warning: {facts['warning']}"] if facts.get("warning") else []
    return lines


def _balance_line(facts: Mapping[str, Any]) -> str:
    folds = facts.get("balanced", [])  # folds may have chosen different numbers of functions
    total = sum(len(fold["names"]) for fold in folds) if folds else facts["functions"]
    relaxed = f"{facts['relaxed']} of {total} functions relaxed"
    if facts["status"] != "solved":
        relaxed += f", {facts['status']} with a gap of {facts['gap']:.1e}"
    return f"Balanced: {_held_out(facts)}{relaxed}."


def _path_lines(facts: Mapping[str, Any]) -> list[str]:
    path = path_of(facts)
    return [] if path is None else [path_sentence(path)]


def _intercept_lines(facts: Mapping[str, Any]) -> list[str]:
    found = facts.get("intercept_shift")
    return [intercept_sentence(found)] if found and found["shift"] else []


def _held_out(facts: Mapping[str, Any]) -> str:
    """Imbalance of held-out functions, where there are some; what follows comes after it."""
    before, after = facts["held_out_before"], facts["held_out_after"]
    if before is None or after is None:
        return ""
    sizes = f"{before['rms_sd']:.2g} SD before and {after['rms_sd']:.2g} SD after"
    return f"root mean square imbalance of held-out functions {sizes}; "
