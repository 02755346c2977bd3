"""Pictures of our objects: each function returns a matplotlib Figure and shows nothing. Needs the extra `[plots]`.

`figure.savefig("x.pdf")` writes it at the width of a paper's column, with text as text; so does `save(figure, path)`.
"""

from __future__ import annotations

from counterpoise.plots.balance import balance_frontier, dual_prices, love_plot, weight_histogram
from counterpoise.plots.model import calibration, learning_curves
from counterpoise.plots.study import risk_estimates, sweep
from counterpoise.plots.style import save

__all__ = [
    "balance_frontier",
    "calibration",
    "dual_prices",
    "learning_curves",
    "love_plot",
    "risk_estimates",
    "save",
    "sweep",
    "weight_histogram",
]
