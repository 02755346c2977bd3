"""The style of figures: one column of a paper, colour-blind safe colours, text as text in SVG and PDF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.errors import ConfigError, check_choice
from counterpoise.storage import expanded, write_file

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter
except ImportError:
    raise ConfigError('plots need matplotlib: pip install "counterpoise[plots]".') from None

STAMPS = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # metadata that would differ from run to run
COLUMN_WIDTH = 3.4  # inches, of a paper in two columns
# Okabe and Ito 2008, without yellow, which is too light for lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")
BLUE, ORANGE = COLOURS[:2]
GREY = "#777777"
STYLE: Any = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    **{"axes.linewidth": 0.6, "axes.axisbelow": True, "grid.linewidth": 0.4, "grid.alpha": 0.4, "lines.linewidth": 1.2},
    **{"svg.fonttype": "none", "svg.hashsalt": "counterpoise", "pdf.fonttype": 42, "savefig.dpi": 200},
}


class Picture(Figure):
    """A matplotlib Figure that keeps this style when it is saved. It belongs to no window."""

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Save as matplotlib does, with text as text in PDF and SVG."""
        with rc_context(STYLE):
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        """The picture that a notebook displays."""
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=130, metadata={"Software": None})
        return picture.getvalue()


@contextmanager
def panels(
    rows: int = 1, columns: int = 1, width: float = COLUMN_WIDTH, height: float = 2.4
) -> Iterator[tuple[Picture, Any]]:
    """(a new figure, the flat list of its axes); `width` and `height` of the figure are in inches."""
    with rc_context(STYLE):
        figure = Picture(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False).flatten()


def save(figure: Any, path: str | Path) -> None:
    """Write a figure atomically as PNG, SVG or PDF, by the ending of `path`. The same figure gives the same bytes."""
    kind, picture = Path(path).suffix[1:], io.BytesIO()
    check_choice("ending", kind, STAMPS)
    figure.savefig(picture, format=kind, metadata={STAMPS[kind]: None})
    write_file(expanded(path), picture.getvalue())


def log_x_axis(axes: Any) -> None:
    """Make the x axis logarithmic, with tick labels such as 0.5, 1, 20. Call it after everything is drawn."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_xlim()
    axes.xaxis.set_minor_formatter("{x:g}" if high < 10 * low else NullFormatter())
