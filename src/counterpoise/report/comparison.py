"""Several runs side by side: one test for all, metrics with paired differences, weights and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise import __version__
from counterpoise.config import Unknown
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, DataError, short_repr
from counterpoise.evaluation.evaluate import Resampled, paired_differences, resampled_evaluation
from counterpoise.evaluation.metrics import LOWER_IS_BETTER, METRIC_NAMES
from counterpoise.report.context import ReportContext, material_of_run, words_on_strangers
from counterpoise.report.definitions import DEFINITIONS
from counterpoise.report.facts import flat, method_name, plain_json, verdict, versions
from counterpoise.report.summary import stopped_words

HEADLINE = ("auc", "ndcg", "log_loss")
WEIGHT_FACTS = ("effective_sample_size", "design_effect", "top_1_percent_share", "max_over_mean")


def comparison_facts(runs: Sequence[str | Path], test: str | None = None, unknown: Unknown = "error") -> dict[str, Any]:
    """JSON-able: the runs, their metrics on a common test, and differences from the first run, paired over users."""
    if len(runs) < 2:
        raise ConfigError(f"`compare` needs at least two runs, got {len(runs)}. Give RUN1 RUN2 ...")
    first = material_of_run(runs[0], test, unknown)
    materials = _named([first, *(material_of_run(run, unknown=unknown) for run in runs[1:])])
    log, notes = common_test(materials)
    found = [] if log is None else [_evaluated(material, log, materials[0]) for material in materials]
    gathered: dict[str, Any] = {
        "format": "counterpoise-comparison",
        "version": __version__,
        "notes": [*(stopped_words(m.name, m.stopped) for m in materials if m.stopped is not None), *notes],
        "runs": [_run_facts(material) for material in materials],
        "asked": differing([flat(dict(material.configuration)) for material in materials]),
        "settings": differing([flat(material.model.configuration_) for material in materials]),
        "test": None if log is None else {"name": materials[0].test_name, "rows": len(log), "k": materials[0].k},
        "metrics": [_metric(name, materials, found) for name in METRIC_NAMES] if found else [],
        "versions": versions(),
        "definitions": DEFINITIONS,
    }
    facts = plain_json(gathered)
    return facts | {"headline": _headline(facts), "summary": _summary(facts)}


def _named(materials: Sequence[ReportContext]) -> list[ReportContext]:
    """With names that differ: where two folders have one name, the place of the run is added."""
    names = [material.name for material in materials]
    return [
        replace(material, name=f"{name} ({place})") if names.count(name) > 1 else material
        for place, (name, material) in enumerate(zip(names, materials, strict=True), start=1)
    ]


def common_test(materials: Sequence[ReportContext]) -> tuple[FeedbackLog | None, list[str]]:
    """The test of the first run without the pairs that any run has seen in training, and what there is to say."""
    log = materials[0].test
    if log is None:
        return None, [
            f"{materials[0].name} has no test that could be read, so the runs are not judged: give --test FILE."
        ]
    for material in materials[1:]:
        check_knows(material, log, materials[0])
    unknown_users = [note for material in materials for note in words_on_strangers(material, log)]
    if materials[0].configuration.get("protocol", "honest") == "paper":
        kept = "Pairs seen in training are kept in the test, as in the paper's protocol of the first run."
        return log, [kept, *unknown_users]
    seen = np.logical_or.reduce([material.model.has_seen(log) for material in materials])
    if seen.all():
        raise DataError("every pair of the test was seen by one of the runs. Give another with --test FILE.")
    note = f"{seen.sum():,} pairs of the test of {materials[0].name} were seen by another run and are left out of all."
    return log.take(~seen), [*([note] if seen.any() else []), *unknown_users]


def check_knows(material: ReportContext, log: FeedbackLog, first: ReportContext) -> None:
    """Raise `DataError` unless a run knows all items of the test of the first, and all users that it has to."""
    model = material.model
    kinds = [("items", model.item_ids_, log.item_ids, log.items)]
    if material.unknown == "error":
        kinds.insert(0, ("users", model.user_ids_, log.user_ids, log.users))
    for kind, known, ids, codes in kinds:
        tested = ids.decode(np.unique(codes))
        unknown = tested.filter(known.encode(tested) < 0)
        if len(unknown):
            raise DataError(
                f"{material.name} does not know {len(unknown):,} of the {len(tested):,} {kind} of the test of "
                f"{first.name}, the first is {short_repr(unknown[0])}: it was fitted on other data "
                f"({material.configuration.get('data', 'unknown')}). Compare runs of one log, or give --test FILE with "
                "users and items that all runs know."
            )


def _evaluated(material: ReportContext, log: FeedbackLog, first: ReportContext) -> Resampled:
    scores = material.model.predict_log(log, unknown=material.unknown)
    return resampled_evaluation(scores, log, first.k, first.empty_users)


def _metric(name: str, materials: Sequence[ReportContext], found: Sequence[Resampled]) -> dict[str, Any]:
    """One metric of all runs, each with its interval and its difference from the first."""
    rows = []
    for material, resampled in zip(materials, found, strict=True):
        value = getattr(resampled.evaluation, name)
        row: dict[str, Any] = {"run": material.name, "value": value, "interval": resampled.evaluation.intervals[name]}
        if resampled is not found[0]:
            difference = paired_differences(resampled, found[0])[name]
            row |= {"difference": difference._asdict(), "verdict": verdict(name, difference)}
        rows.append(row)
    title = METRIC_NAMES[name].format(k=found[0].evaluation.k)
    return {"metric": name, "name": title, "lower_is_better": name in LOWER_IS_BETTER, "runs": rows}


def _run_facts(material: ReportContext) -> dict[str, Any]:
    model, manifest = material.model, material.manifest
    weights = model.facts_["weights"]
    held_out = [weights.get(f"held_out_{when}") for when in ("before", "after")]
    return {
        "run": material.name,
        "method": material.configuration.get("method") or method_name(model),
        "data": material.configuration.get("data", "unknown"),
        "seed": model.training.seed,
        "rows": model.log_facts_["rows"],
        "seconds": manifest.get("seconds", model.history_.seconds),
        "epochs": model.history_.best_epoch,
        "risk": model.facts_["risk"],
        **{name: weights[name] for name in WEIGHT_FACTS},
        "held_out_before": held_out[0] and held_out[0]["rms_sd"],
        "held_out_after": held_out[1] and held_out[1]["rms_sd"],
        "evaluation": manifest.get("evaluation"),
    }


def differing(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings in which runs differ, with the value of each run."""
    names = list(dict.fromkeys(name for settings in every for name in settings))
    rows = [{"setting": name, "values": [settings.get(name, "–") for settings in every]} for name in names]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _headline(facts: dict[str, Any]) -> list[dict[str, str]]:
    """The best run by each of three metrics."""
    found = []
    for row in facts["metrics"]:
        known = [run for run in row["runs"] if run["value"] is not None]
        if row["metric"] in HEADLINE and known:
            best = (min if row["lower_is_better"] else max)(known, key=lambda run: run["value"])
            term = "NDCG" if row["metric"] == "ndcg" else row["name"]
            note = f"best of {len(known)}: {best['run']}"
            found.append({"value": f"{best['value']:.3f}", "label": row["name"], "note": note, "term": term})
    return found


def _summary(facts: dict[str, Any]) -> list[dict[str, str]]:
    """A paragraph for each run but the first: where it is better, worse, or not to be told apart."""
    first, parts = facts["runs"][0]["run"], []
    for place, run in enumerate(facts["runs"][1:], start=1):
        if not facts["metrics"]:
            continue
        verdicts = {row["name"]: row["runs"][place]["verdict"] for row in facts["metrics"]}
        words = [
            f"{word} in {', '.join(names)}"
            for word in ("better", "worse")
            if (names := [name for name, said in verdicts.items() if said == word])
        ]
        said = "; ".join(words) if words else "no metric can tell them apart on this test"
        parts.append({"title": f"{run['run']} against {first}", "text": said[0].upper() + said[1:] + "."})
    return parts
