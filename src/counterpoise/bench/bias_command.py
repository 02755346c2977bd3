"""`counterpoise bench bias`: parse, measure what is not kept yet, print and write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.bench.showing import show_sheets
from counterpoise.console import counting_bar
from counterpoise.errors import GO_ON, ConfigError, check_number, stoppable
from counterpoise.options import (
    ItemCol,
    Json,
    Quiet,
    RatingCol,
    Repeated,
    Separator,
    TimestampCol,
    UserCol,
    given,
    words,
)

KEPT = "measurements"  # the folder in OUT of what is done


def bias(
    data: Annotated[str | None, typer.Option(help="A file of ratings, or coat.", show_default="simulated")] = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    timestamp_col: TimestampCol = None,
    duplicates: Repeated = None,
    separator: Separator = None,
    estimators: Annotated[str, typer.Option(help="Names, or all.")] = "all",
    matrices: Annotated[str, typer.Option(help="one, three, four, rotate, skew, crs, or all.")] = "all",
    repeats: Annotated[int, typer.Option(help="Logs drawn from the known propensities.")] = 10,
    error: Annotated[str, typer.Option(help="absolute or squared.")] = "absolute",
    imputation: Annotated[str, typer.Option(help="For DR: constant, learned, or cross-fitted.")] = "constant",
    methods: Annotated[str, typer.Option(help="Trained predictors on simulated logs: names, all, or none.")] = "all",
    seeds: Annotated[int, typer.Option(help="Simulated logs for the trained predictors.")] = 4,
    seed: Annotated[int, typer.Option(help="Draws ratings, logs and probes.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("results"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """How far each estimate of the ideal loss is from the truth, where ratings and propensities of all pairs are known.

    Six predictions that are wrong in six ways (Schnabel et al. 2016), then trained predictors on simulated logs.
    Stop it whenever you like; it goes on from there.
    """
    from counterpoise.bench.bias import fitted, study
    from counterpoise.bench.bias_tables import fitted_sheet, study_sheet
    from counterpoise.bench.kept_rows import KeptRows
    from counterpoise.datasets import load
    from counterpoise.making import canonical_name

    visible, names = not (as_json or quiet), _names(methods)
    check_number("seeds", seeds, at_least=1, integer=True)
    if names not in ("all", ["none"]):
        names = [canonical_name(name) for name in names]
    columns = given(user_col=user_col, item_col=item_col, rating_col=rating_col, timestamp_col=timestamp_col)
    columns |= given(duplicates=duplicates, separator=separator)
    if columns and data is None:
        named = ", ".join(f"`{name}`" for name in columns)
        raise ConfigError(f"{named}: columns are of a file, name it with --data.")
    log = None if data is None else load(data, **columns).train
    kept = KeptRows(out / KEPT)
    with stoppable(f"What is measured is in {kept.folder}: {GO_ON}"):
        with counting_bar("drawing logs", visible) as watch:
            what = _names(estimators), _names(matrices), repeats, seed
            rows = study(log, *what, watch, error=error, imputation=imputation, kept=kept)
        found = [study_sheet(rows, data or "simulated preferences")]
        if names != ["none"]:
            with counting_bar("fitting", visible) as watch:
                found.append(fitted_sheet(fitted(names, seeds, watch, kept)))
    show_sheets(found, [], out, "bias" if data is None else f"bias-{Path(data).stem}", as_json, quiet)


def _names(text: str) -> str | list[str]:
    return "all" if text == "all" else words(text) or []
