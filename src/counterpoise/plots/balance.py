"""Figures of weights: love plot, histogram, dual values, and effective sample size against balance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.balance.covariate_balance import BALANCED_SMD, imbalances
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.estimators import TOLERANCES, FrontierPoint
from counterpoise.balance.estimators import balance_frontier as frontier_points
from counterpoise.balance.solver import BalanceResult
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.plots.style import BLUE, GREY, ORANGE, Picture, log_x_axis, panels
from counterpoise.report.path import path_of

MAX_LINEAR_RATIO = 4  # largest / smallest weight up to which a histogram has a linear x axis


def love_plot(
    result: Any, log: FeedbackLog | None = None, *, names: Sequence[str] | None = None, max_rows: int = 30
) -> Picture:
    """Love plot: imbalance of each feature or function before and after weighting, the largest before on top.

    `result`: see `imbalances`; of more than `max_rows` rows those with the largest imbalance are shown.
    """
    rows = imbalances(result, log, names)
    shown = sorted(sorted(rows, key=lambda row: -max(row.before, row.after))[:max_rows], key=lambda row: row.before)
    places = range(len(shown))
    before, after = [row.before for row in shown], [row.after for row in shown]
    with panels(height=0.9 + 0.14 * len(shown)) as (figure, (axes,)):
        axes.hlines(places, before, after, color=GREY, linewidth=0.6, zorder=1)
        axes.scatter(before, places, s=16, facecolors="white", edgecolors=ORANGE, label="before", zorder=2)
        axes.scatter(after, places, s=14, color=BLUE, label="after", zorder=3)
        axes.axvline(BALANCED_SMD, color=GREY, linewidth=0.6, linestyle=":", zorder=0)
        axes.set_yticks(places, [row.name for row in shown], parse_math=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("imbalance, in standard deviations")
        axes.grid(axis="y")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0)
        if len(shown) < len(rows):
            axes.set_title(f"the {len(shown)} largest of {len(rows)}", loc="left")
    return figure


def weight_histogram(result: Any, *, bins: int = 40) -> Picture:
    """Histogram of the weights divided by their mean, with the effective sample size in the title.

    `result`: an object with weights (a BalanceResult, a balancer, a BalanceReport, a fitted recommender), or an array.
    """
    ratio = _weights(result)
    ratio = ratio / ratio.mean()
    positive, size = ratio[ratio > 0], effective_sample_size(ratio)
    low, high = positive.min(), positive.max()
    logarithmic = high > MAX_LINEAR_RATIO * low
    edges = np.geomspace(low, high, bins + 1) if logarithmic else np.linspace(min(low, 0.9), max(high, 1.1), bins + 1)
    with panels() as (figure, (axes,)):
        axes.hist(positive, bins=edges, color=BLUE)
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        if logarithmic:
            log_x_axis(axes)
        axes.set(xlabel="weight / mean weight", ylabel="rows")
        zeros = f", {len(ratio) - len(positive):,} with weight 0" if len(positive) < len(ratio) else ""
        axes.set_title(f"{len(ratio):,} rows, effective sample size {size:,.0f}{zeros}", loc="left")
    return figure


def dual_values(result: Any, *, names: Sequence[str] | None = None, max_rows: int = 30) -> Picture:
    """Dual value |l_j| of each balanced function per standard deviation of imbalance, the largest on top.

    A function whose dual value has reached its `strength` (a mark) was relaxed (orange). `result`: a BalanceResult, a
    fitted balancer or a BalanceReport.
    """
    found = getattr(result, "result_", getattr(result, "result", result))
    if not isinstance(found, BalanceResult):
        kind = type(result).__name__
        raise ConfigError(f"`result` must be a BalanceResult, a fitted balancer or a BalanceReport, got {kind}.")
    known = getattr(result, "function_names", getattr(getattr(result, "_functions", None), "names", None))
    labels = names if names is not None else known or [f"h{j}" for j in range(1, len(found.dual) + 1)]
    values, limits = abs(found.dual) * found.scale, found.strength * found.scale
    order = np.argsort(-values, kind="stable")[:max_rows][::-1]
    capped = [j for j in range(len(order)) if np.isfinite(limits[order[j]]) and found.worst_case_bias is None]
    with panels(height=0.9 + 0.14 * len(order)) as (figure, (axes,)):
        colours = [ORANGE if found.relaxed[j] else BLUE for j in order]
        axes.barh(range(len(order)), values[order], color=colours, height=0.7)
        axes.scatter(limits[order][capped], capped, marker="|", s=40, color=GREY, label="strength")
        axes.set_yticks(range(len(order)), [labels[j] for j in order])
        axes.set_xlabel("dual value per standard deviation")
        if values.max() > 0 and (len(capped) == 0 or limits[order][capped].max() > 20 * values.max()):
            axes.set_xlim(0, 1.05 * values.max())  # no limit is near
        elif capped:
            axes.legend(loc="lower right")
        axes.set_title(f"{int(found.relaxed.sum())} of {len(values)} functions relaxed", loc="left")
    return figure


def balance_frontier(balancer: Any, tolerances: Sequence[float] = TOLERANCES) -> Picture:
    """Effective sample size against the remaining imbalance, by tolerance.

    `balancer`: a fitted balancer, or its points from `balance.estimators.balance_frontier`.
    """
    given = isinstance(balancer, Sequence) and all(isinstance(point, FrontierPoint) for point in balancer)
    points = list(balancer) if given else frontier_points(balancer, tolerances)
    sizes = [point.effective_sample_size for point in points]
    with panels() as (figure, (axes,)):
        axes.plot([point.rms_imbalance for point in points], sizes, marker="o", markersize=3, color=BLUE)
        axes.axhline(points[0].rows, color=GREY, linewidth=0.8, linestyle=":")
        for point in points[:: max(1, len(points) // 5)]:
            place = (point.rms_imbalance, point.effective_sample_size)
            axes.annotate(f"{point.tolerance:g}", place, (3, -8), textcoords="offset points", fontsize=6, color=GREY)
        axes.set(xlabel="imbalance of the functions, root mean square, SD", ylabel="effective sample size")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_title(f"{points[0].rows:,} rows, by tolerance (small numbers)", loc="left")
        axes.grid()
    return figure


def balance_path(model: Any) -> Picture:
    """Share of the effective sample kept against the largest imbalance left, along the path of `strength="auto"`.

    A line for each fold, in features learned from the others; the chosen points are orange, the dotted line is the
    share to keep. `model`: a fitted recommender.
    """
    path = path_of(getattr(model, "facts_", {}).get("weights", {}))
    if path is None:
        kind = type(model).__name__
        raise ConfigError(f'`model` must be a recommender fitted with Balancing(strength="auto"), got {kind} without.')
    with panels() as (figure, (axes,)):
        for points in path["folds"]:
            axes.plot(*_places(points), marker="o", markersize=3, color=BLUE)
        chosen = [point for points in path["folds"] for point in points if point["chosen"]]
        axes.scatter(*_places(chosen), s=30, facecolors="white", edgecolors=ORANGE, label="chosen", zorder=3)
        axes.axhline(100 * path["kept_at_least"], color=GREY, linewidth=0.8, linestyle=":")
        axes.set(xlabel="largest imbalance of the functions, SD", ylabel="% of the effective sample")
        axes.set_title(f"strength {path['strength']:.3g}, keeps {path['kept']:.1%}", loc="left")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)
        axes.grid()
    return figure


def _places(points: Sequence[Any]) -> tuple[list[float], list[float]]:
    return [point["imbalance"] for point in points], [100 * point["kept"] for point in points]


def _weights(source: Any) -> NDArray[np.float64]:
    """The weights of a result, a balancer, a recommender, or an array."""
    for name in ("ratio_", "weights_", "weights"):
        source = getattr(source, name, source)
    values = np.asarray(source.cpu() if hasattr(source, "cpu") else source)
    if values.ndim != 1 or values.dtype.kind not in "fiu" or not np.isfinite(values).all() or values.sum() <= 0:
        raise ConfigError("`result` must have weights: a BalanceResult, a fitted balancer or recommender, or a column.")
    return values.astype(np.float64)
