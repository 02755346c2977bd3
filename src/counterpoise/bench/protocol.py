"""How much of a published number is protocol: the same methods, honest and paper splits, three rules of NDCG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.bench.tables import Sheet
from counterpoise.config import Protocol

PROTOCOLS: tuple[Protocol, ...] = ("honest", "paper")
METRICS = ("auc", "ndcg_one", "ndcg_skip", "ndcg_zero", "f1_one", "f1_skip")


def sheets(jobs: Sequence[Job], store: Store, failed: Sequence[str] = ()) -> list[Sheet]:
    """For every dataset: means over seeds under each protocol, and the paired difference; then what failed."""
    notes = (
        "honest: test pairs that stand in the training log or the probe are left out; paper: they are counted. "
        "one, skip, zero: how a user without a positive label counts. Means over seeds; the difference is paper - "
        "honest over the same seeds, with its standard deviation.",
    )
    tables = []
    for dataset in dict.fromkeys(job.dataset for job in jobs):
        here = [job for job in jobs if job.dataset == dataset]
        rows = [
            _row(here, method, metric, store) for method in dict.fromkeys(j.method for j in here) for metric in METRICS
        ]
        columns = ("method", "metric", "seeds", "honest", "paper", "difference", "std")
        tables.append(Sheet(f"Protocols on {dataset}", columns, rows, (*notes, *failed)))
    return tables


def _row(jobs: Sequence[Job], method: str, metric: str, store: Store) -> dict[str, str | float | int | None]:
    values: dict[str, dict[int, float]] = {protocol: {} for protocol in PROTOCOLS}
    title = method
    for job in jobs:
        row = store.read(job) if job.method == method else None
        if row is not None and row["failed"] is None and row["metrics"][metric] is not None:
            values[job.protocol][job.seed] = row["metrics"][metric]
            title = row["title"]
    seeds = sorted(set(values["honest"]) & set(values["paper"]))
    honest, paper = (np.array([values[protocol][seed] for seed in seeds]) for protocol in PROTOCOLS)
    if not seeds:
        return {"method": title, "metric": metric, "seeds": 0}
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
