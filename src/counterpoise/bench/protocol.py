"""Evaluation protocols: what each one is, its published numbers, and the effect of "paper" against "honest"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.bench.published import DATASETS, published_lines
from counterpoise.bench.tables import Sheet, Value, metric_name
from counterpoise.data.protocols import PROTOCOLS, Protocol, find_protocol
from counterpoise.evaluation.metrics import EMPTY_USERS, PAPER_EMPTY_USERS

COMPARED = ("honest", "paper")
METRICS = ("auc", "ndcg", "ndcg_one", "f1", "f1_one")
COLUMNS = ("method", "metric", "seeds", "honest", "paper", "difference", "std")
NOTE = (
    "honest: test pairs that stand in the training log or the probe are left out; paper: they are counted. "
    f"ndcg, f1: {EMPTY_USERS}; ndcg_one, f1_one: {PAPER_EMPTY_USERS}. "
    "Means over seeds; the difference is paper - honest over the same seeds, with its standard deviation."
)
COLUMNS_OF_PUBLISHED = ("protocol", "method", *DATASETS)
LISTED = ("protocol", "datasets", "test without", "empty users", "metrics", "tuned on")
MORE = "`counterpoise bench protocols NAME` shows what is not known of one, and its published numbers."
PUBLISHED_NOTE = (
    "Published means ({}). Compare within one protocol only: thresholds, tests, rules and models differ between them."
)


def protocol_sheets(names: Sequence[str]) -> list[Sheet]:
    """Sheets of the named protocols with their published numbers; without names, a list of all protocols."""
    chosen = [find_protocol(name) for name in names] or list(PROTOCOLS.values())
    notes = [f"{one.name}: {one.citation}." + (f" Note: {one.note}." if one.note and names else "") for one in chosen]
    notes += [] if names else [MORE]
    facts = [one.to_dict() for one in chosen]
    listed = Sheet("Protocols", LISTED, [_listed(one) for one in chosen], tuple(notes), facts)
    lines = published_lines([one.name for one in chosen]) if names else []
    if not lines:
        return [listed]
    shown = {line["protocol"]: _metrics(find_protocol(line["protocol"]), "/") for line in lines}
    note = PUBLISHED_NOTE.format("; ".join(f"{protocol}: {metrics}" for protocol, metrics in shown.items()))
    return [listed, Sheet("Published numbers", COLUMNS_OF_PUBLISHED, lines, (note,))]


def _listed(protocol: Protocol) -> dict[str, Value]:
    """A protocol in words."""
    settings = [f"{name} >= {one.threshold:g}, @{one.k}" for name, one in protocol.datasets.items()]
    shares = {"probe": protocol.probe * (not protocol.keeps_probe), "validation": protocol.validation}
    removed = ([] if protocol.keeps_seen else ["pairs of the log"]) + [f"{v:.0%} {n}" for n, v in shares.items() if v]
    kind = "" if protocol.feedback is None else f"{protocol.feedback}: "
    return {
        "protocol": protocol.name,
        "datasets": kind + ("; ".join(settings) or "any"),
        "test without": ", ".join(removed) or "nothing",
        "empty users": protocol.empty_users,
        "metrics": _metrics(protocol, ", "),
        "tuned on": protocol.tuned_on,
    }


def _metrics(protocol: Protocol, between: str) -> str:
    return between.join(metric_name(metric, 0).partition("@")[0] for metric in protocol.metrics)


def sheets(rows: Sequence[Mapping[str, Any]], failures: Sequence[str] = ()) -> list[Sheet]:
    """For every dataset the means over seeds under each protocol and the paired difference; failures as notes."""
    tables = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        lines = [
            _line([row for row in here if row["method"] == method], metric)
            for method in dict.fromkeys(row["method"] for row in here)
            for metric in METRICS
        ]
        tables.append(Sheet(f"Protocols on {dataset}", COLUMNS, lines, (NOTE, *failures)))
    return tables


def _line(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Value]:
    """One metric of one method."""
    values: dict[str, dict[int, float]] = {protocol: {} for protocol in COMPARED}
    title = rows[0]["method"]
    for row in rows:
        if row["failed"] is None and row["metrics"].get(metric) is not None:
            values[row["protocol"]][row["seed"]] = row["metrics"][metric]
            title = row["title"]
    seeds = sorted(set(values["honest"]) & set(values["paper"]))
    if not seeds:
        return {"method": title, "metric": metric, "seeds": 0}
    honest, paper = (np.array([values[protocol][seed] for seed in seeds]) for protocol in COMPARED)
    gap = paper - honest
    return {
        "method": title,
        "metric": metric,
        "seeds": len(seeds),
        "honest": float(honest.mean()),
        "paper": float(paper.mean()),
        "difference": float(gap.mean()),
        "std": float(gap.std(ddof=1)) if len(seeds) > 1 else None,
    }
