"""One setting swept over values: the paper's Figures 1 (J, the number of functions) and 2 (gamma, the strength).

Also C (the tolerance) and sigma^2 (the bandwidth), for which the paper has grids and no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from counterpoise.bench.datasets import find_dataset
from counterpoise.bench.jobs import Job
from counterpoise.bench.tables import Sheet, metric_name
from counterpoise.methods import short_names
from counterpoise.recommender import DebiasedRecommender

SETTINGS = {"n_functions": ("n", "order"), "strength": ("weights__strength",)}  # the first that a method has
WITHOUT_IN_WORST_CASE = ("n", "weights__strength", "tolerance")  # it takes all functions, and its strength is another
ADAPTIVE = "mf,ips,akb-ips-gau,akb-ips-exp,skb-ips-gau,dr-jl,akb-dr-gau,akb-dr-exp,skb-dr-gau"


@dataclass(frozen=True)
class FigureDefaults:
    """The defaults of a figure of one setting; the paper's values where it has some."""

    axis: str
    values: tuple[float, ...]
    paper_values: tuple[float, ...]  # with the preset "paper", whose gamma and C are in units of the function
    methods: str = ADAPTIVE
    per_unit: bool = False  # whether its values are in `units` of the balancing functions


FIGURES = {
    "n_functions": FigureDefaults(
        "J (balancing functions)",
        (1, 2, 3, 5, 10, 30),
        (1, 2, 3, 5, 10, 30),
        "mf,rkb-ips,wkb-ips,akb-ips,skb-ips,mb-ips,dr-jl,rkb-dr,wkb-dr,akb-dr,skb-dr,mb-dr",
    ),
    "strength": FigureDefaults(
        "gamma (strength)", (0.03, 0.1, 0.3, 1, 3, 10, 100), (1, 2, 5, 10, 20, 50), per_unit=True
    ),
    "tolerance": FigureDefaults(
        "C (tolerance)",
        (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1),
        (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1),
        per_unit=True,
    ),
    "bandwidth": FigureDefaults("sigma^2 (bandwidth)", (0.5, 1, 2, 5, 10, 30), (0.5, 1, 5, 10, 30)),
}
UNITS = {"sd": "SD units", "raw": "raw units"}
NOTE = "std: over seeds, after the level of each seed (its mean over all points) is taken out, where there is one."


@dataclass(frozen=True)
class Point:
    """One metric of a method at one value of the swept setting; `value` is None for a method without the setting."""

    dataset: str
    method: str
    title: str
    family: str  # ips or dr, in panels of their own
    value: float | None
    metric: str
    seeds: int
    mean: float
    std: float | None  # over seeds, less what all points of a seed have in common (Cousineau 2005); None for one seed


def sweep_job(job: Job, parameter: str, values: Iterable[float]) -> list[tuple[Job, float | None]]:
    """The job at each value; unchanged and once, with value None, if its method does not have the setting."""
    model = job.model()
    known = short_names(model) if isinstance(model, DebiasedRecommender) else {}
    setting = next((name for name in SETTINGS.get(parameter, (parameter,)) if name in (*known, *known.values())), None)
    if setting is None or (setting in WITHOUT_IN_WORST_CASE and _is_worst_case(model)):
        return [(job, None)]
    return [(replace(job, settings={**job.settings, setting: value}), value) for value in values]


def axis_label(parameter: str, swept: Iterable[Job]) -> str:
    """The name of the setting, and the units of its values where all methods have the same."""
    known = FIGURES.get(parameter)
    if known is None:
        return parameter
    units = {job.model().weights.units for job in swept} if known.per_unit else set()
    return f"{known.axis}, {UNITS[units.pop()]}" if len(units) == 1 else known.axis


def _is_worst_case(model: DebiasedRecommender) -> bool:
    return getattr(getattr(model.weights, "functions", None), "select", None) == "worst_case"


def points(values: Sequence[float | None], rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[Point]:
    """Mean and spread over seeds of the fits that did not fail; `values` are those of the swept setting, row by row."""
    found = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        cells: dict[tuple[str, float | None], dict[int, Mapping[str, Any]]] = {}
        for value, row in zip(values, rows, strict=True):
            if row["dataset"] == dataset and row["failed"] is None:
                cells.setdefault((row["method"], value), {})[row["seed"]] = row
        for metric in metrics:
            found += _points(dataset, metric, cells)
    return found


def _points(
    dataset: str, metric: str, cells: Mapping[tuple[str, float | None], Mapping[int, Mapping[str, Any]]]
) -> list[Point]:
    """One metric; `cells`: rows by seed, for every method and value.

    The level of a seed is its mean over the cells that have all seeds, where there are two or more.
    """
    found = []
    measured = {
        key: {seed: row["metrics"][metric] for seed, row in cell.items() if row["metrics"][metric] is not None}
        for key, cell in cells.items()
    }
    seeds: set[int] = set().union(*measured.values())
    whole = [cell for cell in measured.values() if len(cell) == len(seeds)]
    levels, factor = dict.fromkeys(seeds, 0.0), 1.0
    if len(whole) > 1:
        levels = {seed: float(np.mean([cell[seed] for cell in whole])) for seed in seeds}
        factor = (len(measured) / (len(measured) - 1)) ** 0.5  # levels are means of so many points (Morey 2008)
    for (method, value), by_seed in measured.items():
        if by_seed:
            row = next(iter(cells[method, value].values()))
            names = row["title"], "ips" if row["family"] == "naive" else row["family"]
            seen = np.array(list(by_seed.values()))
            centred = seen - [levels[seed] for seed in by_seed]
            std = factor * float(centred.std(ddof=1)) if len(seen) > 1 else None
            found.append(Point(dataset, method, *names, value, metric, len(seen), float(seen.mean()), std))
    return found


def sheets(found: Sequence[Point], parameter: str, failures: Sequence[str] = ()) -> list[Sheet]:
    """One tidy table for each dataset; failures as notes."""
    columns = ("method", parameter, "metric", "seeds", "mean", "std")
    tables = []
    for dataset in dict.fromkeys(point.dataset for point in found):
        here = [point for point in found if point.dataset == dataset]
        rows = [asdict(point) | {"method": point.title, parameter: point.value} for point in here]
        tables.append(Sheet(f"{parameter} on {dataset}", columns, rows, (NOTE, *failures)))
    return tables


def metric_titles(points: Sequence[Point]) -> dict[tuple[str, str], str]:
    """The printed name of every (dataset, metric)."""
    pairs = dict.fromkeys((point.dataset, point.metric) for point in points)
    return {(dataset, metric): metric_name(metric, find_dataset(dataset).k) for dataset, metric in pairs}
