"""Figures for papers: each function returns a matplotlib Figure and opens no window. Needs the extra `[plots]`.

`balance` (weights and their balance), `model` (learning curves, calibration) and `study` (experiments) draw in the
`style` of a paper's column; `text` is the love plot of the terminal. `figure.savefig("x.pdf")` and `save(figure, path)`
keep text as text.
"""

from __future__ import annotations

from counterpoise.plots.balance import balance_frontier, dual_values, love_plot, weight_histogram
from counterpoise.plots.model import calibration, learning_curves
from counterpoise.plots.study import risk_estimates, sweep
from counterpoise.plots.style import save

__all__ = [
    "balance_frontier",
    "calibration",
    "dual_values",
    "learning_curves",
    "love_plot",
    "risk_estimates",
    "save",
    "sweep",
    "weight_histogram",
]
