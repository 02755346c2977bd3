"""The effect of the evaluation protocol: the same methods on honest and paper splits, two rules for empty users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.bench.tables import Sheet, Value
from counterpoise.config import Protocol
from counterpoise.evaluation.metrics import EMPTY_USERS, PAPER_EMPTY_USERS

PROTOCOLS: tuple[Protocol, ...] = ("honest", "paper")
METRICS = ("auc", "ndcg", "ndcg_one", "f1", "f1_one")
COLUMNS = ("method", "metric", "seeds", "honest", "paper", "difference", "std")
NOTE = (
    "honest: test pairs that stand in the training log or the probe are left out; paper: they are counted. "
    f"ndcg, f1: {EMPTY_USERS}; ndcg_one, f1_one: {PAPER_EMPTY_USERS}. "
    "Means over seeds; the difference is paper - honest over the same seeds, with its standard deviation."
)


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
    values: dict[str, dict[int, float]] = {protocol: {} for protocol in PROTOCOLS}
    title = rows[0]["method"]
    for row in rows:
        if row["failed"] is None and row["metrics"].get(metric) is not None:
            values[row["protocol"]][row["seed"]] = row["metrics"][metric]
            title = row["title"]
    seeds = sorted(set(values["honest"]) & set(values["paper"]))
    if not seeds:
        return {"method": title, "metric": metric, "seeds": 0}
    honest, paper = (np.array([values[protocol][seed] for seed in seeds]) for protocol in PROTOCOLS)
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
