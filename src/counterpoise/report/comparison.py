"""Several runs side by side: their facts on a common test, and the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise import __version__
from counterpoise.config import UnknownInTest
from counterpoise.data.feedback import words_of
from counterpoise.data.log import FeedbackLog
from counterpoise.data.protocols import find_protocol
from counterpoise.data.splits import drop_cold
from counterpoise.errors import ConfigError, DataError, short_repr
from counterpoise.evaluation.evaluate import difference_facts, paired_differences, resampled_evaluation
from counterpoise.evaluation.full_ranking import MEASURES
from counterpoise.evaluation.metrics import EMPTY_USERS, METRIC_NAMES
from counterpoise.report.context import ReportContext, load_context
from counterpoise.report.definitions import definitions
from counterpoise.report.facts import (
    as_json,
    flat,
    method_name,
    metric_facts,
    ranking_facts,
    versions,
    weighted_facts,
)
from counterpoise.report.page import Block, Column, Facts, Section, Table, pairs, records, render
from counterpoise.report.sections import (
    METRIC_TERMS,
    ROWS,
    WEIGHT_COLUMNS,
    difference_figure,
    metric_heading,
    ranking_tables,
    weighted_tables,
    with_interval,
)
from counterpoise.report.summary import HEADLINE_METRICS, biased_test, compare_sentence, headline_metric, stopped_note
from counterpoise.runs import EvaluationData, cold_sentences


def comparison_facts(
    runs: Sequence[str | Path],
    data: EvaluationData | None = None,
    unknown_users: UnknownInTest = "error",
    unknown_items: UnknownInTest = "error",
    log_path: str | Path | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """JSON-able: the runs, their metrics on a common test, and paired differences from the first run."""
    if len(runs) < 2:
        raise ConfigError(f"`compare` needs at least two runs, got {len(runs)}. Give RUN1 RUN2 ...")
    rules = unknown_users, unknown_items
    rest = *rules, log_path, cache
    contexts = [load_context(run, None if place else data, *rest) for place, run in enumerate(runs)]
    names = [context.name for context in contexts]
    contexts = [  # runs of one name are numbered
        replace(context, name=f"{context.name} ({place})") if names.count(context.name) > 1 else context
        for place, context in enumerate(contexts, start=1)
    ]
    first = contexts[0]
    log, notes = common_test(contexts)
    clicks, models = log is not None and log.feedback == first.feedback == "clicks", {c.name: c.model for c in contexts}
    gathered: dict[str, Any] = {
        "format": "counterpoise-comparison",
        "version": __version__,
        "notes": [*(stopped_note(c.name, c.stopped) for c in contexts if c.stopped is not None), *notes],
        "runs": [_run_facts(context) for context in contexts],
        "options": differing([flat(dict(context.configuration)) for context in contexts]),
        "settings": differing([flat(context.model.configuration_) for context in contexts]),
        "test": None if log is None else _test_facts(first, log),
        "metrics": [] if log is None or clicks else _metrics(contexts, log),
        "weighted": None if log is None or clicks else weighted_facts(models, first, log),
        "ranking": ranking_facts(models, first, log) if log is not None and clicks else None,
        "versions": versions(),
        "definitions": definitions(first.feedback),
        "feedback": first.feedback,
    }
    facts = as_json(gathered)
    return facts | {"verdict": _verdict(facts), "headline": _headline(facts), "summary": []}


def _test_facts(first: ReportContext, log: FeedbackLog) -> dict[str, Any]:
    return {"name": first.test_name, "sample": log.sample, "rows": len(log), "k": first.k}


def common_test(contexts: Sequence[ReportContext]) -> tuple[FeedbackLog | None, list[str]]:
    """(the test of the first run without the pairs that any run was trained on, notes on it)."""
    first = contexts[0]
    log = first.test
    if log is None:
        return None, [f"{first.name} has no test that could be read, so the runs are not evaluated: give --test FILE."]
    notes = list(first.notes)
    for context in contexts[1:]:
        check_knows(context, log, first)
        log, cold = drop_cold(log, context.model.cold_rows(log), context.unknown_users, context.unknown_items)
        notes += [f"{context.name}: {sentence}" for sentence in cold_sentences(cold) if sentence not in notes]
    protocol = first.configuration.get("protocol", "honest")
    if find_protocol(protocol).keeps_seen:
        kept = f"Pairs seen in training are kept in the test: the first run has the protocol {protocol}."
        return log, [kept, *notes]
    seen = np.logical_or.reduce([context.model.has_seen(log) for context in contexts])
    if seen.all():
        raise DataError("every pair of the test was seen by one of the runs. Give another with --test FILE.")
    note = f"{seen.sum():,} pairs of the test of {first.name} were in the training data of a run and are left out."
    return log.take(~seen), [*([note] if seen.any() else []), *notes]


def check_knows(context: ReportContext, log: FeedbackLog, first: ReportContext) -> None:
    """Raise `DataError` unless a run knows the users and items of the test, where unknown ones are an error."""
    model = context.model
    kinds = (
        ("users", context.unknown_users, model.user_ids_, log.user_ids, log.users),
        ("items", context.unknown_items, model.item_ids_, log.item_ids, log.items),
    )
    for kind, rule, known, ids, codes in kinds:
        if rule != "error":
            continue
        tested = ids.decode(np.unique(codes))
        unknown = tested.filter(known.encode(tested) < 0)
        if len(unknown):
            raise DataError(
                f"{context.name} does not know {len(unknown):,} of the {len(tested):,} {kind} of the test of "
                f"{first.name}, the first is {short_repr(unknown[0])}: it was fitted on other data "
                f"({context.configuration.get('data', 'unknown')}). Compare runs of one log, or give --test FILE with "
                "users and items that all runs know."
            )


def _metrics(contexts: Sequence[ReportContext], log: FeedbackLog) -> list[dict[str, Any]]:
    """Every metric of all runs on a test, each with its interval and its difference from the first run."""
    k = contexts[0].k
    scores = [context.model.predict_log(log, unknown_users="popular", unknown_items="popular") for context in contexts]
    found = [resampled_evaluation(values, log, k) for values in scores]
    differences = [paired_differences(resampled, found[0]) for resampled in found]
    metrics = []
    for name in METRIC_NAMES:
        rows = []
        for context, resampled, difference in zip(contexts, found, differences, strict=True):
            evaluation = resampled.evaluation
            row = {"run": context.name, "value": getattr(evaluation, name), "interval": evaluation.intervals[name]}
            rows.append(row if resampled is found[0] else row | difference_facts(name, difference[name]))
        metrics.append(metric_facts(name, k) | {"runs": rows})
    return metrics


def _run_facts(context: ReportContext) -> dict[str, Any]:
    model, manifest, fit = context.model, context.manifest, context.model.facts_
    weights = fit["weights"]
    held_out = {key: weights.get(key) for key in ("held_out_before", "held_out_after")}
    return {
        "run": context.name,
        "method": context.configuration.get("method") or method_name(model),
        "data": context.configuration.get("data", "unknown"),
        "seed": model.training.seed,
        "rows": model.log_facts_["rows"],
        "seconds": manifest.get("seconds", model.history_.seconds),
        "epochs": model.history_.best_epoch,
        "risk": fit["risk"],
        **{key: weights[key] for key, *_ in WEIGHT_COLUMNS},
        **{key: imbalance and imbalance["rms_sd"] for key, imbalance in held_out.items()},
        "evaluation": manifest.get("evaluation"),
    }


def differing(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings in which runs differ, with the value of each run."""
    names = list(dict.fromkeys(name for settings in every for name in settings))
    rows = [{"setting": name, "values": [settings.get(name, "–") for settings in every]} for name in names]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _headline(facts: Facts) -> list[dict[str, str]]:
    """The best run by each of the headline metrics, weighted where the test is biased and can be weighted."""
    found, weighted = [], (facts["weighted"] or {}).get("models", {})
    for row in facts["metrics"]:
        values = {run["run"]: run["value"] for run in row["runs"]}
        values |= {name: evaluation[row["metric"]] for name, evaluation in weighted.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if row["metric"] in HEADLINE_METRICS and known:
            best = (min if row["lower_is_better"] else max)(known, key=lambda name: known[name])
            found.append(headline_metric(row, known[best], f"best of {len(known)}: {best}"))
    return found


def _verdict(facts: Facts) -> dict[str, str]:
    """A line for each run but the first: the metrics in which it is better or worse than the first."""
    first, *others = [run["run"] for run in facts["runs"]]
    weighted, ranking = facts["weighted"], facts["ranking"]
    titles = {row["metric"]: row["name"] for row in facts["metrics"] if row["metric"] in HEADLINE_METRICS}
    if ranking:
        titles = {name: f"{MEASURES[name]}@{facts['test']['k']}" for name in ("dcg", "recall")}
    estimated = ranking or weighted
    if estimated and estimated["reason"] is None:
        found = {
            name: {
                titles[metric]: one["verdict"]
                for metric, one in estimated["differences"][name].items()
                if metric in titles
            }
            for name in others
        }
        grounds = f"Estimated over all pairs from {facts['test']['rows']:,} rows, by weights."
    elif facts["metrics"]:
        found = {
            name: {
                titles[row["metric"]]: row["runs"][place]["verdict"]
                for row in facts["metrics"]
                if row["metric"] in titles
            }
            for place, name in enumerate(others, start=1)
        }
        grounds = f"By {facts['test']['rows']:,} rows of {facts['test']['name']}."
    else:
        text = "No common test: cannot tell which run is better."
        return {"text": text, "tone": "unclear", "grounds": "Give one: --test FILE."}
    lines = [f"{name}: {compare_sentence(verdicts, first)}" for name, verdicts in found.items()]
    return {"text": "\n".join(lines), "tone": "unclear", "grounds": grounds}


def comparison_page(facts: Facts) -> str:
    """The HTML page of several runs: metrics, weights, and settings in which they differ."""
    runs = [run["run"] for run in facts["runs"]]
    sections = [_metrics_section(facts, runs), _runs_section(facts["runs"]), _settings_section(facts, runs)]
    return render("Comparison of runs", f"{', '.join(runs[1:])} against {runs[0]}", facts, sections)


def _metrics_section(facts: Facts, runs: Sequence[str]) -> Section:
    words = words_of(facts["feedback"])
    if facts["ranking"]:
        return Section("metrics", "Metrics", ranking_tables(facts["ranking"], facts["test"], words))
    if not facts["metrics"]:
        return Section("metrics", "Metrics", ["There is no common test.", _fit_metrics(facts["runs"])])
    test = facts["test"]
    columns = [Column("metric", term="AUC"), *(Column(run, "metric", "interval") for run in runs)]
    rows = [[metric_heading(row), *(with_interval(run) for run in row["runs"])] for row in facts["metrics"]]
    blocks: list[Block] = [
        f"All runs are evaluated on {test['name']}, {test['rows']:,} rows; differences are from {runs[0]}. "
        f"In NDCG, precision, recall and F1, {EMPTY_USERS}."
        + ("" if test["sample"] == "uniform" else f" {biased_test(words)}"),
        Table("Metrics with 95% intervals over users", columns, rows),
    ]
    columns, differences = [Column("metric", term="difference")], [[metric_heading(row)] for row in facts["metrics"]]
    for place, run in enumerate(runs[1:], start=1):
        shown = [{**row, **row["runs"][place]} for row in facts["metrics"]]
        blocks.append(difference_figure(shown, f"{run} against {runs[0]}", "worse  ←  difference  →  better"))
        columns += [Column(run, "signed", "difference"), Column("verdict", "verdict", "verdict")]
        for cells, row in zip(differences, shown, strict=True):
            cells += [with_interval(row["difference"]), row["verdict"]]
    if facts["weighted"]:
        blocks += weighted_tables(facts["weighted"], words)
    return Section("metrics", "Metrics", [*blocks, Table(f"Differences from {runs[0]}", columns, differences)])


def _fit_metrics(runs: Sequence[Facts]) -> Table:
    """The metrics that each run kept of its own fit. The tests may differ, so nothing is compared."""
    metrics = {name: term for name, term in METRIC_TERMS.items() if name != "user_auc"}
    columns = [Column("run"), *(Column(term, "metric", term) for term in metrics.values())]
    rows = [[run["run"], *((run["evaluation"] or {}).get(name) for name in metrics)] for run in runs]
    return Table("Metrics of each run at its fit, on its own test", columns, rows)


def _runs_section(runs: Sequence[Facts]) -> Section:
    table = records(
        "Runs",
        runs,
        "run",
        "method",
        "data",
        ("seed", "seed", "count", "seed"),
        ROWS,
        ("seconds", "seconds", "number", "seconds"),
        ("epochs", "epochs", "count"),
        ("risk", "risk", "metric", "risk"),
    )
    term = "held-out functions of the method"
    held_out = [(f"held_out_{when}", f"held-out {when}", "number", term) for when in ("before", "after")]
    return Section("runs", "Runs", [table, records("Weights", runs, "run", *WEIGHT_COLUMNS, *held_out)])


def _settings_section(facts: Facts, runs: Sequence[str]) -> Section:
    columns = [Column("setting"), *(Column(run) for run in runs)]
    blocks: list[Block] = [] if facts["options"] else ["All runs have the same options."]
    for key, caption in (("options", "Options that differ"), ("settings", "Settings of every part that differ")):
        if facts[key]:
            rows = [[row["setting"], *map(str, row["values"])] for row in facts[key]]
            blocks.append(Table(caption, columns, rows, folded=key == "settings"))
    blocks.append(pairs("Versions that made this page", facts["versions"], sortable=False))
    return Section("settings", "Settings", blocks)
