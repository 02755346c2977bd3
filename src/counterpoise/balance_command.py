"""`counterpoise balance`: weights for a table of observed rows, without any recommender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.console import canvas, say, show_json, show_picture, show_table, working
from counterpoise.errors import DataError, check_number
from counterpoise.options import OUT_HELP, TABLE_FIELDS, Json, Quiet, words
from counterpoise.words import KernelName, SelectForSamples


def balance(
    observed: Annotated[Path, typer.Argument(help="A file with the observed rows.", show_default=False)],
    population: Annotated[Path, typer.Argument(help="A file with the rows to resemble.", show_default=False)],
    out: Annotated[Path, typer.Option(help=OUT_HELP, show_default=False)],
    features: Annotated[str | None, typer.Option(help="Columns, separated by commas.", show_default="all")] = None,
    moments: Annotated[int | None, typer.Option(help="Balance moments up to this order, not kernels.")] = None,
    kernel: Annotated[KernelName, typer.Option(help="Kernel of the balanced functions.")] = "gaussian",
    n_functions: Annotated[int, typer.Option(help="How many kernel functions.")] = 50,
    select: Annotated[SelectForSamples, typer.Option(help="How they are chosen.")] = "spectral",
    tolerance: Annotated[float, typer.Option(help="Imbalance allowed, in standard deviations.")] = 1e-3,
    strength: Annotated[float | None, typer.Option(help="What one SD of imbalance is worth.")] = None,
    max_weight: Annotated[float | None, typer.Option(help="Cap on a weight; weights sum to 1.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the candidate kernels.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Weight observed rows so that they resemble a population: balancing without any recommender.

    The file OUT has all columns of the observed file and `weight`, its rows in the same order. --features says which
    columns are balanced; the others (ids, outcomes) are kept as they stand.
    """
    from counterpoise.functions import KernelFunctions, Moments
    from counterpoise.imbalances import imbalances
    from counterpoise.ingest import read_beside, read_features
    from counterpoise.kernels import KERNELS
    from counterpoise.persistence import check_table_name, write_table
    from counterpoise.text_plots import love_lines
    from counterpoise.two_samples import balance_samples

    check_table_name(out)
    check_number("seed", seed, at_least=0, integer=True)
    with working("balancing", not (as_json or quiet)):
        first = read_features(observed, words(features))
        table = read_beside(observed, first)
        if "weight" in table.columns:
            raise DataError(f"{observed}: the column 'weight' has the name of the result. Rename it.")
        second = read_features(population, first.columns)
        chosen = Moments(moments) if moments is not None else KernelFunctions(KERNELS[kernel](), n_functions, select)
        report = balance_samples(
            first, second, chosen, tolerance=tolerance, strength=strength, max_weight=max_weight, seed=seed
        )
        write_table(table.with_columns(weight=report.weights), out)
    if as_json:
        show_json({"out": str(out), **report.to_dict()})
    elif not quiet:
        columns = ["feature", "population mean", "mean before", "mean after", "SMD before", "SMD after"]
        rows = [[getattr(row, name) for name in TABLE_FIELDS] for row in report.diagnosis.table]
        show_table(columns, [["-" if value is None else value for value in row] for row in rows])
        width, fancy = canvas()
        show_picture(love_lines(imbalances(report), "Observed rows against the population", width, fancy=fancy))
        say(f"{report.summary()}\n{len(first):,} weights, which sum to 1, written to {out}")
