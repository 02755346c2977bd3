"""The bias study as tables to read: an estimator in each row, a predictor in each column."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.bench.bias import OWN, WEIGHTED, Row, summary
from counterpoise.bench.sheets import Sheet

CELLS = "|estimate - ideal| / ideal: mean (standard deviation) over {repeats} {draws}; then its mean with sign."


def study_sheet(rows: Sequence[Row], data: str) -> Sheet:
    """The six matrices side by side."""
    return _sheet(rows, f"Estimates of the error of six predictions, {data}", "draws of the log")


def fitted_sheet(rows: Sequence[Row]) -> Sheet:
    """What the weights of trained predictors say of their ideal loss, and what their own risks say."""
    notes = (
        f"{WEIGHTED}: of the weights alone, on errors that were to be expected. {OWN}: the estimate that the method "
        "minimised, on the labels that it learned from.",
    )
    return _sheet(rows, "Estimates of the ideal loss of trained predictors, simulated logs", "logs", notes)


def _sheet(rows: Sequence[Row], title: str, draws: str, notes: tuple[str, ...] = ()) -> Sheet:
    facts = summary(rows)
    matrices = list(dict.fromkeys(fact["matrix"] for fact in facts))
    cells: dict[str, dict[str, str | float | int | None]] = {}
    for fact in facts:
        spread = "" if fact["std"] is None else f" ({fact['std']:.3f})"
        row = cells.setdefault(fact["estimator"], {"estimator": fact["estimator"]})
        row[fact["matrix"]] = f"{fact['mean']:.3f}{spread} {fact['bias']:+.3f}"
    how = CELLS.format(repeats=max(fact["repeats"] for fact in facts), draws=draws)
    return Sheet(title, ("estimator", *matrices), list(cells.values()), (how, *notes), facts)
