"""Figures of models: learning curves and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from counterpoise.data.log import as_log
from counterpoise.errors import ConfigError
from counterpoise.evaluation.calibration import calibration_bins, calibration_error
from counterpoise.plots.style import COLOURS, GREY, Picture, panels


def learning_curves(models: Any) -> Picture:
    """Training loss by epoch, held-out risk where there is one, and the epoch whose parameters were kept.

    `models`: a fitted recommender or its History, or several by name.
    """
    histories = {name: getattr(model, "history_", model) for name, model in _named(models).items()}
    for history in histories.values():
        if not hasattr(history, "held_out_risk"):
            raise ConfigError(f"`models` must be fitted recommenders or histories, got {type(history).__name__}.")
    with panels() as (figure, (axes,)):
        for colour, (name, history) in zip(cycle(COLOURS), histories.items(), strict=False):
            epochs = range(1, len(history.loss) + 1)
            axes.plot(epochs, history.loss, color=colour, label=f"{name} training loss".strip())
            if history.held_out_risk:
                label = f"{name} held-out risk".strip()
                axes.plot(epochs, history.held_out_risk, color=colour, linestyle="--", label=label)
                kept = history.best_epoch
                axes.plot(kept, history.held_out_risk[kept - 1], marker="o", markersize=4, color=colour)
        axes.set(xlabel="epoch", ylabel="loss")
        axes.grid()
        axes.legend()
    return figure


def calibration(models: Any, log: Any, *, bins: int = 10) -> Picture:
    """Share of positive labels against the predicted probability, in bins; the diagonal is perfect calibration.

    `models`: a fitted model (or its scores for the rows of `log`), or several by name. The log should be unbiased: on a
    biased one this shows how well the selection was learned. Bars are 95 % intervals (Wilson).
    """
    named = _named(models)
    log = as_log("log", log, next(iter(named.values()), None))
    with panels(height=3.0) as (figure, (axes,)):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
        for colour, (name, model) in zip(cycle(COLOURS), named.items(), strict=False):
            scores = model.predict_log(log) if hasattr(model, "predict_log") else model
            found = calibration_bins(scores, log.labels, bins)
            x, y = [one.predicted for one in found], [one.observed for one in found]
            bars = [[one.observed - one.low for one in found], [one.high - one.observed for one in found]]
            label = f"{name} (ECE {calibration_error(found):.3f})".strip()
            axes.errorbar(x, y, bars, marker="o", markersize=3, linewidth=1, elinewidth=0.6, color=colour, label=label)
        axes.set(xlabel="predicted probability", ylabel="share of positive labels", xlim=(0, 1), ylim=(0, 1))
        axes.set_aspect("equal")
        axes.grid()
        axes.legend(loc="upper left")
    return figure


def _named(models: Any) -> dict[str, Any]:
    """Models by name; the name of a single one is empty."""
    return dict(models) if isinstance(models, Mapping) else {"": models}
