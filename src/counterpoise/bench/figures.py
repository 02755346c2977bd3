"""The pictures of the experiments, from their facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.bench.grounds import ground
from counterpoise.bench.sweep import Point
from counterpoise.bench.wording import metric_name
from counterpoise.plots import draw_lines

PAPER_LETTERS = {"n_functions": "J (balancing functions)", "strength": "gamma (strength)", "tolerance": "C (tolerance)"}


def draw_sweep(points: Sequence[Point], parameter: str, path: Path) -> None:
    """A panel for each dataset, family and metric, a line for each method."""
    panels, metrics = [], list(dict.fromkeys(point.metric for point in points))
    for dataset, family in dict.fromkeys((point.dataset, point.family) for point in points):
        for metric in metrics:
            here = [p for p in points if (p.dataset, p.family, p.metric) == (dataset, family, metric)]
            name = metric_name(metric, ground(dataset).k, metrics)
            panels.append({"title": f"{dataset}, {family.upper()}", "y_name": name, "lines": _lines(here)})
    positive = all(point.value is None or point.value > 0 for point in points)
    draw_lines(panels, PAPER_LETTERS.get(parameter, parameter), path, logarithmic=positive)


def _lines(points: Sequence[Point]) -> list[dict[str, Any]]:
    lines = []
    for method in dict.fromkeys(point.method for point in points):
        own = [point for point in points if point.method == method]
        lines.append(
            {
                "name": own[0].title,
                "x": [point.value for point in own],
                "mean": [point.mean for point in own],
                "std": [point.std or 0.0 for point in own],
            }
        )
    return lines
