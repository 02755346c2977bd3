"""Pictures of our objects: each function returns a matplotlib Figure and shows nothing. Needs the extra `[plots]`.

`figure.savefig("x.pdf")` writes it at the width of a paper's column, with text as text; so does `save(figure, path)`.
"""

from __future__ import annotations

from counterpoise.balance_plots import balance_frontier, dual_prices, love_plot, weight_histogram
from counterpoise.drawing import save
from counterpoise.model_plots import calibration, learning_curves
from counterpoise.study_plots import risk_estimates, sweep

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
