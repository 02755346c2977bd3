"""Figures for papers: each function returns a matplotlib Figure and opens no window. Needs the extra `[plots]`.

`balance` (weights and their balance), `model` (learning curves, calibration) and `study` (experiments) draw in the
`style` of a paper's column. `figure.savefig("x.pdf")` and `save(figure, path)`
keep text as text. A function is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoise.plots.balance import balance_frontier, balance_path, dual_values, love_plot, weight_histogram
    from counterpoise.plots.model import calibration, learning_curves
    from counterpoise.plots.study import risk_estimates, sweep
    from counterpoise.plots.style import save

_HOME_OF = {
    "balance_frontier": "balance",
    "balance_path": "balance",
    "calibration": "model",
    "dual_values": "balance",
    "learning_curves": "model",
    "love_plot": "balance",
    "risk_estimates": "study",
    "save": "style",
    "sweep": "study",
    "weight_histogram": "balance",
}
__all__ = [
    "balance_frontier",
    "balance_path",
    "calibration",
    "dual_values",
    "learning_curves",
    "love_plot",
    "risk_estimates",
    "save",
    "sweep",
    "weight_histogram",
]


def __getattr__(name: str) -> Any:
    """Import a function when it is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
