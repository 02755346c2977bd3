"""The sentences that `counterpoise methods` and `counterpoise fit` print about methods and fitted models."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.config import Configurable
from counterpoise.data.feedback import LEVEL_OF_CLICKS, words_of
from counterpoise.data.log import Dataset
from counterpoise.evaluation.evaluate import Difference, Evaluation, verdict
from counterpoise.evaluation.full_ranking import MEASURES, RankingEvaluation
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.methods import FAMILIES, METHODS, PARTS, canonical_name, make, short_names
from counterpoise.models.base import factor_sentence
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.path import path_of, path_sentence
from counterpoise.report.summary import compare_sentence
from counterpoise.runs import counted
from counterpoise.training.summary import correction_sentences

NOT_EVALUATED = (
    "Not evaluated: there is no test, so nothing tells whether this is better than a plain model. Hold rows of the log "
    "out with --holdout 0.2, or give --test FILE."
)
MAIN_METRICS = ("auc", "ndcg", "log_loss")  # of the sentence that compares
MAIN_RANKING_METRICS = ("dcg", "recall")  # the same, of clicks that rank among all items
LOWER = "Lower is better in MSE, MAE and log loss."
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
    prefix = "" if name == method.name else f"{name}: "
    lines = [
        f"{prefix}{method.name} ({method.title}), {method.year}, family: {method.family}",
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
    """What was corrected, how sure that is, and what was learned besides: a sentence or two a line.

    `facts` are the `facts_` of a fitted model, `rows` the number of rows of its log.
    """
    weights, imputation = facts["weights"], facts["imputation"]
    inside = "share_agreed" in imputation or imputation.get("propensities")  # the weights are in the imputation
    clicks = facts.get("feedback") == "clicks"
    lines = correction_sentences(facts, rows)
    if not inside and not facts.get("exposed"):
        if weights["design_effect"] >= 1 + 1e-9:
            lines.append(f"The largest weight of a row is {weights['max_over_mean']:.1f} times the mean.")
        lines += _weights_lines(weights, clicks)
    if "label" in (base := imputation.get("base", imputation)) and not clicks:
        lines.append(f"Pairs without a rating count with the label {base['label']:.3f}.")
    lines += _imputation_lines(imputation)
    lines += [factor_sentence(facts["factors"])] if "factors" in facts else []
    if "ordinal" in facts:
        weight = facts["ordinal"]["weight"]
        lines.append(f"How far a rating is from the threshold is learned too, with weight {weight:.0%} (ordinal loss).")
    if "ordinal" in facts.get("inactive", {}):
        lines.append(f"Ordinal loss off: {facts['inactive']['ordinal']}.")
    for candidate in imputation.get("propensities", []):
        lines += _weights_lines(candidate, clicks)
    if facts["risk"] < 0:
        combined = "propensities" in imputation
        why = "the weights of the regression may be negative" if combined else "corrected labels leave [0, 1]"
        other = "choose one without large weights (eals)" if clicks else "learn the imputation (dr-jl, tdr-jl)"
        advice = "Choose another method." if combined else f"Raise l2, or {other}."
        lines.append(f"The risk is {facts['risk']:.2f}, below 0: {why}. {advice}")
    return lines


def wrapped(text: str) -> str:
    """Each line of a text, in lines that are not too long."""
    return "\n".join(textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in text.splitlines())


def bullets(title: str, lines: Sequence[str]) -> str:
    """A title and its lines, wrapped."""
    wrap = textwrap.TextWrapper(WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    found = [wrap.fill(line) for line in lines]
    return "\n".join([title, *found] if title else found)


def read_line(dataset: Dataset, feedback_given: bool) -> str:
    """The training log in a line; for clicks and impressions also why, and what changes that if nobody gave it."""
    log, words = dataset.train, words_of(dataset.train.feedback)
    users, items = log.shape
    line = f"{dataset.name}: {words.count(len(log))} of {counted(items, 'item')} by {counted(users, 'user')}"
    line += f" ({percent(len(log) / (users * items))} of all pairs)"
    if log.feedback == "ratings":
        positive = f"; {log.labels.mean():.1%} are positive" if log.in_memory else ""
        return f"{line}{positive}{f' (rated {log.threshold:g} or more)' if log.threshold is not None else ''}."
    clicked = f"; {log.labels.mean():.1%} of them clicked" if log.feedback == "impressions" else ""
    way = "" if feedback_given else "; --feedback changes that"
    return f"{line}{clicked}; {words.log}{way}."


def percent(share: float) -> str:
    """A share as a percentage with two significant digits: 8.0%, 0.013%."""
    digits = max(0, 1 - math.floor(math.log10(100 * share))) if share > 0 else 0
    return f"{100 * share:.{digits}f}%"


def read_lines(dataset: Dataset, feedback_given: bool) -> list[str]:
    """What was read: the log, the names of items, and the probe."""
    lines, words = [read_line(dataset, feedback_given)], words_of(dataset.train.feedback)
    if "item_names" in dataset.description:
        lines.append(f"Names: {dataset.description['item_names']}.")
    if dataset.probe is not None:
        lines.append(f"Probe: {words.count(len(dataset.probe))} of pairs that were drawn at random.")
    return lines


def _tested(kinds: Mapping[str, Any]) -> str:
    """What the rows of a test are called; `kinds`: of the training log ("trained_on") and of the test ("feedback")."""
    both = (kinds.get("trained_on"), kinds.get("feedback")) == ("clicks", "clicks")
    return "clicks" if both else words_of(kinds.get("trained_on")).tested


def evaluation_title(
    sample: str | None,
    protocol: str,
    by: str | None,
    weighted: bool,
    kinds: Mapping[str, Any],
) -> str:
    """The heading of metrics, by how the pairs of the test were collected; `by` names a hold-out of the log."""
    tested, trained = _tested(kinds), "; pairs that were trained on count too" if protocol == "paper" else ""
    if tested == "clicks":
        which = "the clicks of the test" if by is None else f"held-out clicks ({by})"
        weighted_by = "weighted by 1 / P(exposed) to estimate metrics over all relevant pairs"
        return f"How {which} rank among all items, {weighted_by}; naive: of the clicks as they are:"
    if sample == "uniform":
        note = f"{LEVEL_OF_CLICKS}\n" if kinds.get("trained_on") == "clicks" else ""
        return f"{note}On {tested} of pairs drawn at random (unbiased{trained}):"
    selected = words_of(kinds.get("trained_on")).selected
    which = (
        f"biased {tested}{f' ({trained[2:]})' if trained else ''}" if by is None else f"a hold-out of the log ({by})"
    )
    if weighted:
        return f"On {which}, weighted to estimate metrics over all pairs; naive: of the pairs {selected}:"
    return f"On {which}; these are metrics of the pairs {selected}, not of all pairs:"


def beside_baselines(
    name: str,
    evaluation: Evaluation | RankingEvaluation,
    baselines: Mapping[str, Evaluation | RankingEvaluation],
    differences: Mapping[str, Mapping[str, Difference]],
) -> list[str]:
    """A table: every metric with its interval, those of the baselines, and the paired difference from the last one."""
    ranking = isinstance(evaluation, RankingEvaluation)
    titles = {key: f"{title}@{{k}}" for key, title in MEASURES.items()} if ranking else METRIC_NAMES
    naive: Mapping[str, float] = getattr(evaluation, "naive", {})
    last = list(baselines)[-1] if baselines else None
    head = ["metric", name, f"{100 * evaluation.level:g}% interval", *(["naive"] if naive else []), *baselines]
    head += [f"against {last}"] if last and differences.get(last) else []
    rows = [head]
    for key, title in titles.items():
        low, high = evaluation.intervals.get(key, (math.nan, math.nan))
        cells = [title.format(k=evaluation.k), _number(getattr(evaluation, key))]
        cells += ["" if math.isnan(low) else f"{low:.4f} to {high:.4f}"]
        cells += [_number(naive.get(key, math.nan))] if naive else []
        cells += [_number(getattr(found, key)) for found in baselines.values()]
        if last and key in differences.get(last, {}):
            found = differences[last][key]
            cells += [f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f}), {verdict(key, found)}"]
        rows.append(cells)
    widths = [max(len(row[place]) for row in rows if place < len(row)) for place in range(len(head))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) for row in rows]
    return [line.rstrip() for line in lines]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def table_notes(evaluation: Evaluation | RankingEvaluation) -> list[str]:
    """What the table of metrics rests on."""
    weighted = isinstance(evaluation, RankingEvaluation) or hasattr(evaluation, "naive")
    if weighted:
        size = f"{evaluation.effective_sample_size:,.0f}"  # type: ignore[union-attr]
        rows = evaluation.n_positives if isinstance(evaluation, RankingEvaluation) else evaluation.n_rows
        lower = "" if isinstance(evaluation, RankingEvaluation) else f" {LOWER}"
        return [f"Weighted, the {rows:,} rows count as {size}.{lower} {evaluation.assumption}"]
    assert isinstance(evaluation, Evaluation)
    left_out = f" {counted(evaluation.n_empty_users, 'user')} without a positive in the test: left out of NDCG to F1."
    undefined = [
        f" No {METRIC_NAMES[name].format(k=evaluation.k)}: {why}." for name, why in evaluation.undefined.items()
    ]
    notes = f"Intervals are over {evaluation.n_users:,} users. {LOWER}"
    return [notes + (left_out if evaluation.n_empty_users else "") + "".join(undefined)]


def comparison_line(differences: Mapping[str, Mapping[str, Difference]], feedback: str, k: int) -> str | None:
    """In which of the main metrics a model is better and worse than the uncorrected baseline; None without one."""
    if not differences:
        return None
    name = list(differences)[-1]
    titles = {key: f"{title}@{k}" for key, title in MEASURES.items()} | METRIC_NAMES
    main = MAIN_METRICS if "auc" in differences[name] else MAIN_RANKING_METRICS
    shown = [key for key in main if feedback != "clicks" or key != "log_loss"]
    verdicts = {titles[key].format(k=k): verdict(key, differences[name][key]) for key in shown}
    return compare_sentence(verdicts, f"plain {name.upper()}" if name in ("mf", "wmf") else name)


def evaluated_on(known: Mapping[str, Any], kind_given: bool) -> list[str]:
    """The test, what was left out of it, and its cold users and items; `known`: the dataset's description."""
    tested = _tested(known)
    lines = [f"Test: {known['test_rows']:,} {tested}."]
    if known["test_sample"] == "biased" and tested != "clicks" and "by" not in known and not kind_given:
        lines[0] += (
            " They count as biased. If their pairs were drawn at random from all pairs, add --test-kind uniform: then "
            "metrics are unbiased, and a part can serve as probe."
        )
    removed = {"removed_as_in_train": "in the log", "removed_as_probe": "taken as probe"}
    removed["dropped_rows"] = "of users or items without rows in the log"
    listed = [f"{known[rows]:,} {why}" for rows, why in removed.items() if known[rows]]
    lines[0] += f" Left out of {known['given_rows']:,}: {', '.join(listed)}." if listed else ""
    if known["cold_rows"]:
        cold = " and ".join(counted(known[f"cold_{who}s"], who) for who in ("user", "item") if known[f"cold_{who}s"])
        lines.append(f"{known['cold_rows']:,} {tested} of the test are of {cold} without rows in the log.")
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


def _weights_lines(facts: Mapping[str, Any], clicks: bool) -> list[str]:
    """Diagnostics of one weights part, according to the facts that it has."""
    lines = []
    if "ratio_of_positive" in facts:
        positive, negative = facts["ratio_of_positive"], facts["ratio_of_negative"]
        lines.append(f"Relative weight of a positive row {positive:.2f}, of a negative row {negative:.2f}.")
    if "clipped_rows" in facts and "exposure" not in facts:  # else they are chances of a click, not of being seen
        right = "the share of relevant pairs" if clicks else "about 1"
        low, high, mean = (facts[name] for name in ("smallest_propensity", "largest_propensity", "mean_ratio"))
        clipped, share, removed = (facts[name] for name in ("clipped_rows", "clipped_share", "weight_removed"))
        lines.append(
            f"Propensities from {low:.2g} to {high:.2g}, mean ratio {mean:.2f} ({right} if they are right); "
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
        loss = f"Balanced by Algorithm 1: weight loss {facts['last_weight_loss']:.3f} in the last batch."
        lines.append(f"{loss}{_held_out(facts)}")
    elif "relaxed" in facts:
        lines += [*_path_lines(facts), _balance_line(facts)]
    lines += [f"Warning: {facts['warning']}"] if facts.get("warning") else []
    return lines


def _balance_line(facts: Mapping[str, Any]) -> str:
    folds = facts.get("balanced", [])  # folds may have chosen different numbers of functions
    total = sum(len(fold["names"]) for fold in folds) if folds else facts["functions"]
    found = f"{facts['relaxed']} of {total} functions keep some imbalance (relaxed)"
    if facts["status"] != "solved":
        found += f", {facts['status']} with a gap of {facts['gap']:.1e}"
    return f"Balanced: {found}.{_held_out(facts)}"


def _path_lines(facts: Mapping[str, Any]) -> list[str]:
    path = path_of(facts)
    return [] if path is None else [path_sentence(path)]


def _held_out(facts: Mapping[str, Any]) -> str:
    """Imbalance of functions that were not balanced, which shows whether balancing generalises."""
    before, after = facts["held_out_before"], facts["held_out_after"]
    if before is None or after is None:
        return ""
    sizes = f"{before['rms_sd']:.2g} SD before and {after['rms_sd']:.2g} SD after"
    return f" Check on functions that were not balanced: imbalance {sizes} (root mean square)."
