"""Pictures, drawn from facts. Needs the extra `[plots]`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import ConfigError
from counterpoise.persistence import write_file

KINDS = ("png", "svg", "pdf")


def check_plots() -> None:
    """Raise `ConfigError` where nothing can be drawn: worth asking before long work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError('pictures need matplotlib: pip install "counterpoise[plots]".') from None


def draw_lines(panels: Sequence[dict[str, Any]], x_name: str, path: Path, *, logarithmic: bool = True) -> None:
    """Panels, four in a row, each `{"title", "y_name", "lines": [{"name", "x", "mean", "std"}]}`; bands of one std.

    A line whose x is [None] is a level: it is drawn across the panel.
    """
    check_plots()
    from matplotlib.figure import Figure

    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.0 * rows + 0.6), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, panel in zip(places, panels, strict=False):
        for number, line in enumerate(panel["lines"]):
            _draw_line(axes, line, f"C{number}")
        axes.set_xscale("log" if logarithmic else "linear")
        axes.set(title=panel["title"], xlabel=x_name, ylabel=panel["y_name"])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:], dpi=150)
    write_file(path, picture.getvalue())


def _draw_line(axes: Any, line: dict[str, Any], colour: str) -> None:
    if line["x"] == [None]:
        axes.axhline(line["mean"][0], color=colour, linestyle="--", label=line["name"])
        return
    axes.plot(line["x"], line["mean"], marker="o", markersize=3, color=colour, label=line["name"])
    low = [mean - std for mean, std in zip(line["mean"], line["std"], strict=True)]
    high = [mean + std for mean, std in zip(line["mean"], line["std"], strict=True)]
    axes.fill_between(line["x"], low, high, color=colour, alpha=0.15, linewidth=0)
