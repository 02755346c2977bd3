"""One setting swept over values: the paper's Figures 1 (J, the number of functions) and 2 (gamma, the strength)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.bench.jobs import Job
from counterpoise.bench.sheets import Sheet
from counterpoise.bench.store import Store
from counterpoise.making import short_names
from counterpoise.recommender import DebiasedRecommender

# The words of the paper's figures -> settings of the methods, the first that a method has.
SETTINGS = {"n_functions": ("n", "order")}
DEFAULTS: dict[str, tuple[float, ...]] = {
    "n_functions": (1, 2, 3, 5, 10, 30),
    "strength": (1, 2, 5, 10, 20, 50),
    "tolerance": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "bandwidth": (0.5, 1.0, 2.0, 5.0),
}


SPREAD = "std: over seeds, after the level of each seed (its mean over all points) is taken out."


@dataclass(frozen=True)
class Point:
    """The metrics of a method at one value of the swept setting; `value` is None for a method without the setting."""

    dataset: str
    method: str
    title: str
    family: str  # ips or dr, whose panels stand apart
    value: float | None
    metric: str
    seeds: int
    mean: float
    std: float | None  # over seeds, without what moves all points of a seed alike (Cousineau 2005); None for one


def swept(job: Job, parameter: str, values: Iterable[float]) -> list[tuple[Job, float | None]]:
    """The job at each value; once, as it is, where its method does not have the setting."""
    model = job.model()
    known = short_names(model) if isinstance(model, DebiasedRecommender) else {}
    setting = next((name for name in SETTINGS.get(parameter, (parameter,)) if name in known), None)
    if setting is None or (setting == "n" and _looks_at_all(model)):
        return [(job, None)]
    return [(replace(job, settings={**job.settings, setting: value}), value) for value in values]


def _looks_at_all(model: DebiasedRecommender) -> bool:
    """Whether the rule takes all functions at once, so that their number says nothing: the worst case."""
    return bool(model.get_params()[short_names(model)["select"]] == "worst_case")


def points(jobs: Sequence[tuple[Job, float | None]], store: Store, metrics: Sequence[str]) -> list[Point]:
    """Mean and spread over seeds, of the fits that did not fail."""
    found = []
    for dataset in dict.fromkeys(job.dataset for job, _ in jobs):
        cells: dict[tuple[str, float | None], dict[int, dict[str, Any]]] = {}
        for job, value in jobs:
            row = store.read(job) if job.dataset == dataset else None
            if row is not None and row["failed"] is None:
                cells.setdefault((job.method, value), {})[job.seed] = row
        for metric in metrics:
            levels = _levels([{seed: row["metrics"][metric] for seed, row in cell.items()} for cell in cells.values()])
            for (method, value), cell in cells.items():
                seen = np.array([row["metrics"][metric] for row in cell.values()])
                spread = _std(seen - [levels.get(seed, 0.0) for seed in cell])
                row = next(iter(cell.values()))
                names = row["title"], "ips" if row["family"] == "naive" else row["family"]
                found.append(Point(dataset, method, *names, value, metric, len(seen), float(seen.mean()), spread))
    return found


def _levels(cells: Sequence[dict[int, float]]) -> dict[int, float]:
    """How high everything lies in each seed: its mean over the cells that all seeds have."""
    seeds = sorted(set().union(*cells))
    whole = [cell for cell in cells if len(cell) == len(seeds)]
    return {seed: float(np.mean([cell[seed] for cell in whole])) for seed in seeds} if len(whole) > 1 else {}


def _std(values: NDArray[np.float64]) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def sheets(found: Sequence[Point], parameter: str) -> list[Sheet]:
    """One tidy table a dataset."""
    columns = ("method", parameter, "metric", "seeds", "mean", "std")
    tables = []
    for dataset in dict.fromkeys(point.dataset for point in found):
        rows = [
            asdict(point) | {"method": point.title, parameter: point.value}
            for point in found
            if point.dataset == dataset
        ]
        tables.append(Sheet(f"{parameter} on {dataset}", columns, rows, ("std: over seeds.",)))
    return tables
