"""Figures of experiments: metrics over a sweep of one setting, and the bias of risk estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from counterpoise.bench.bias import Row, summary
from counterpoise.bench.sweep import Point
from counterpoise.errors import ConfigError
from counterpoise.plots.style import BLUE, COLOURS, GREY, Picture, log_x_axis, panels

FAMILIES = ("ips", "dr")  # of panels, from left to right; others follow
MAX_TICKS = 7  # values of a setting that are all written below a panel


def sweep(
    points: Sequence[Point], parameter: str = "value", *, titles: Mapping[tuple[str, str], str] | None = None
) -> Picture:
    """Metrics against one setting: a row per dataset, a panel per family and metric, a line per method with a band.

    As in the paper's Figure 1, the metrics of IPS-based methods stand left of those of DR-based ones. The band is one
    standard deviation. `points`: see `bench.sweep.points`. `titles`: labels by (dataset, metric). A method without the
    setting is drawn as a line across the panel.
    """
    datasets, families, metrics = (
        list(dict.fromkeys(getattr(point, name) for point in points)) for name in ("dataset", "family", "metric")
    )
    families.sort(key=lambda family: FAMILIES.index(family) if family in FAMILIES else len(FAMILIES))
    shown = [(dataset, family, metric) for dataset in datasets for family in families for metric in metrics]
    values = sorted({point.value for point in points if point.value is not None})
    rows, columns = len(datasets), len(families) * len(metrics)
    with panels(rows, columns, 2.5 * columns + 0.5, 2 * rows + 1) as (figure, places):
        for axes, (dataset, family, metric) in zip(places, shown, strict=True):
            methods = dict.fromkeys(point.method for point in points if point.family == family)
            for colour, method in zip(cycle(COLOURS), methods, strict=False):
                of_method = (point for point in points if (point.dataset, point.method) == (dataset, method))
                _line_with_band(axes, [point for point in of_method if point.metric == metric], colour)
            if values and values[0] > 0:
                log_x_axis(axes)
                axes.set_xticks(values if len(values) <= MAX_TICKS else values[::2])
                axes.minorticks_off()
            label = (titles or {}).get((dataset, metric), metric)
            axes.set(title=f"{dataset}, {family.upper()}", ylabel=label)
            axes.grid()
            if dataset == datasets[-1]:
                axes.set(xlabel=parameter)
                axes.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2)
    return figure


def _line_with_band(axes: Any, points: Sequence[Point], colour: str) -> None:
    if not points:  # its fits failed
        return
    values, title = [point.value for point in points], points[0].title
    if values == [None]:
        axes.axhline(points[0].mean, color=colour, linestyle="--", label=title)
        return
    axes.plot(values, [point.mean for point in points], marker="o", markersize=3, color=colour, label=title)
    low, high = ([point.mean + sign * (point.std or 0.0) for point in points] for sign in (-1, 1))
    axes.fill_between(values, low, high, color=colour, alpha=0.15, linewidth=0)


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
            here = [fact for fact in facts if fact["matrix"] == matrix]
            bias, spread = [fact["bias"] for fact in here], [fact["spread"] or 0.0 for fact in here]
            rows_of = [names.index(fact["estimator"]) for fact in here]
            axes.axvline(0, color=GREY, linewidth=0.8)
            axes.errorbar(bias, rows_of, xerr=spread, fmt="o", markersize=3, elinewidth=0.8, color=BLUE)
            if max(map(abs, bias)) > 1:
                axes.set_xscale("symlog", linthresh=1)
                axes.xaxis.set_major_formatter("{x:g}")
            axes.grid(axis="x")
            axes.set(title=matrix, ylim=(len(names) - 0.5, -0.5))
            axes.set_yticks(range(len(names)), names if axes is places[0] else [])
        figure.supxlabel("estimate / ideal - 1", fontsize=8)
    return figure
