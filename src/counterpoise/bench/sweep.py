"""One setting swept over values: the paper's Figures 1 (J, the number of functions) and 2 (gamma, the strength)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.bench.tables import Sheet
from counterpoise.methods import short_names
from counterpoise.recommender import DebiasedRecommender

# The words of the paper's figures -> settings of the methods, the first that a method has.
SETTINGS = {"n_functions": ("n", "order"), "strength": ("weights__strength",)}
DEFAULTS: dict[str, tuple[float, ...]] = {
    "n_functions": (1, 2, 3, 5, 10, 30),
    "strength": (1, 2, 5, 10, 20, 50),
    "tolerance": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "bandwidth": (0.5, 1.0, 2.0, 5.0),
}


SPREAD = "std: over seeds, after the level of each seed (its mean over all points) is taken out, where there is one."


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
    setting = next((name for name in SETTINGS.get(parameter, (parameter,)) if name in (*known, *known.values())), None)
    if setting is None or (setting in ("n", "weights__strength") and _looks_at_all(model)):
        return [(job, None)]
    return [(replace(job, settings={**job.settings, setting: value}), value) for value in values]


def _looks_at_all(model: DebiasedRecommender) -> bool:
    """Whether it is the worst case: it takes all functions at once, and its strength is on another scale."""
    return getattr(getattr(model.weights, "functions", None), "select", None) == "worst_case"


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
            measured = {key: _defined(cell, metric) for key, cell in cells.items()}
            levels = _levels(list(measured.values()))
            for (method, value), by_seed in measured.items():
                if not by_seed:
                    continue
                seen = np.array(list(by_seed.values()))
                spread = _std(seen - [levels.get(seed, 0.0) for seed in by_seed], len(measured) if levels else 0)
                row = next(iter(cells[method, value].values()))
                names = row["title"], "ips" if row["family"] == "naive" else row["family"]
                found.append(Point(dataset, method, *names, value, metric, len(seen), float(seen.mean()), spread))
    return found


def _defined(cell: dict[int, dict[str, Any]], metric: str) -> dict[int, float]:
    """The values of a metric by seed, where it is defined."""
    return {seed: row["metrics"][metric] for seed, row in cell.items() if row["metrics"][metric] is not None}


def _levels(cells: Sequence[dict[int, float]]) -> dict[int, float]:
    """How high everything lies in each seed: its mean over the cells that all seeds have."""
    seeds = sorted(set().union(*cells))
    whole = [cell for cell in cells if len(cell) == len(seeds)]
    return {seed: float(np.mean([cell[seed] for cell in whole])) for seed in seeds} if len(whole) > 1 else {}


def _std(values: NDArray[np.float64], points: int) -> float | None:
    """With the factor that makes up for the levels being means of so many points (Morey 2008)."""
    factor = (points / (points - 1)) ** 0.5 if points > 1 else 1.0
    return factor * float(values.std(ddof=1)) if len(values) > 1 else None


def sheets(found: Sequence[Point], parameter: str, failed: Sequence[str] = ()) -> list[Sheet]:
    """One tidy table a dataset; what failed is named below."""
    columns = ("method", parameter, "metric", "seeds", "mean", "std")
    tables = []
    for dataset in dict.fromkeys(point.dataset for point in found):
        here = [point for point in found if point.dataset == dataset]
        rows = [asdict(point) | {"method": point.title, parameter: point.value} for point in here]
        tables.append(Sheet(f"{parameter} on {dataset}", columns, rows, (SPREAD, *failed)))
    return tables
