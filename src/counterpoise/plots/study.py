"""Figures of experiments: metrics over a sweep of one setting, and the bias of risk estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.bench.bias import Row, summary
from counterpoise.bench.sweep import Point
from counterpoise.errors import ConfigError
from counterpoise.plots.style import BLUE, COLOURS, GREY, Picture, line_with_band, log_x_axis, panels


def sweep(
    points: Sequence[Point], parameter: str = "value", *, titles: Mapping[tuple[str, str], str] | None = None
) -> Picture:
    """Metrics against one setting: a panel per dataset, family and metric, a line with a band per method.

    `points`: see `bench.sweep.points`. `titles`: labels by (dataset, metric).
    """
    found = []
    for dataset, family, metric in dict.fromkeys((point.dataset, point.family, point.metric) for point in points):
        here = [point for point in points if (point.dataset, point.family, point.metric) == (dataset, family, metric)]
        title = f"{dataset}, {family.upper()}"
        found.append({"title": title, "y_name": (titles or {}).get((dataset, metric), metric), "lines": _lines(here)})
    positive = all(point.value is None or point.value > 0 for point in points)
    return line_panels(found, parameter, logarithmic=positive)


def line_panels(facts: Sequence[dict[str, Any]], x_name: str, *, logarithmic: bool = True) -> Picture:
    """Panels, four in a row, each `{"title", "y_name", "lines": [{"name", "x", "mean", "std"}]}`; bands of one std.

    A line whose x is [None], of a method without the setting, is drawn across the panel.
    """
    columns = min(len(facts), 4)
    rows = -(-len(facts) // columns)
    with panels(rows, columns, 2.4 * columns + 1, 2.2 * rows + 0.3) as (figure, places):
        for axes in places[len(facts) :]:
            axes.remove()
        for axes, panel in zip(places, facts, strict=False):
            for number, line in enumerate(panel["lines"]):
                line_with_band(axes, line, COLOURS[number % len(COLOURS)])
            if logarithmic:
                log_x_axis(axes)
            axes.set(title=panel["title"], xlabel=x_name, ylabel=panel["y_name"])
            axes.grid()
            axes.legend(fontsize=6)
    return figure


def risk_estimates(rows: Sequence[Row]) -> Picture:
    """Relative error of each risk estimate to the ideal loss, mean and spread over draws, one panel per predictor.

    `rows`: see `bench.bias.study` and `bench.bias.fitted`. 0 is unbiased; beyond 1 the scale is logarithmic.
    """
    if not rows:
        raise ConfigError("`rows` must not be empty. Make some with bench.bias.study().")
    facts = summary(rows)
    matrices, names = (list(dict.fromkeys(fact[key] for fact in facts)) for key in ("matrix", "estimator"))
    with panels(1, len(matrices), 1.4 + 1.25 * len(matrices), 0.8 + 0.15 * len(names)) as (figure, places):
        for axes, matrix in zip(places, matrices, strict=True):
            here = {fact["estimator"]: fact for fact in facts if fact["matrix"] == matrix}
            _deviations(axes, [here.get(name) for name in names])
            axes.set(title=matrix, ylim=(len(names) - 0.5, -0.5))
            axes.set_yticks(range(len(names)), names if axes is places[0] else [])
        figure.supxlabel("estimate / ideal - 1", fontsize=8)
    return figure


def _deviations(axes: Any, facts: Sequence[dict[str, Any] | None]) -> None:
    known = [(place, fact) for place, fact in enumerate(facts) if fact is not None]
    middle, spread = [fact["bias"] for _, fact in known], [fact["spread"] or 0.0 for _, fact in known]
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.errorbar(middle, [place for place, _ in known], xerr=spread, fmt="o", markersize=3, elinewidth=0.8, color=BLUE)
    if max(map(abs, middle)) > 1:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x")


def _lines(points: Sequence[Point]) -> list[dict[str, Any]]:
    lines = []
    for method in dict.fromkeys(point.method for point in points):
        own = [point for point in points if point.method == method]
        values, means = [point.value for point in own], [point.mean for point in own]
        spreads = [point.std or 0.0 for point in own]
        lines.append({"name": own[0].title, "x": values, "mean": means, "std": spreads})
    return lines
