"""The pictures of the experiments, from their facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoise.bench.datasets import ground
from counterpoise.bench.sweep import Point
from counterpoise.bench.tables import metric_name
from counterpoise.plots import save, sweep

PAPER_LETTERS = {"n_functions": "J (balancing functions)", "strength": "gamma (strength)", "tolerance": "C (tolerance)"}


def draw_sweep(points: Sequence[Point], parameter: str, path: Path) -> None:
    """A panel for each dataset, family and metric, a line for each method."""
    metrics = list(dict.fromkeys(point.metric for point in points))
    names = dict.fromkeys((point.dataset, point.metric) for point in points)
    titles = {(dataset, metric): metric_name(metric, ground(dataset).k, metrics) for dataset, metric in names}
    save(sweep(points, PAPER_LETTERS.get(parameter, parameter), titles=titles), path)
