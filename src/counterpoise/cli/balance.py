"""`counterpoise balance`: weights for a table of observed rows, without any recommender."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import canvas, say, show_json, show_picture, show_table, working
from counterpoise.cli.options import (
    OUT_HELP,
    TABLE_FIELDS,
    Address,
    Cache,
    EngineWord,
    ItemCol,
    Json,
    Memory,
    Quiet,
    Separator,
    UserCol,
    Workers,
    given,
    words,
)
from counterpoise.config import EngineName, KernelName, SelectForSamples
from counterpoise.errors import ConfigError, DataError, check_number

if TYPE_CHECKING:
    from counterpoise.balance.functions import Functions


def balance(
    observed: Annotated[Path, typer.Argument(help="A file with the observed rows; or a log.", show_default=False)],
    population: Annotated[Path | None, typer.Argument(help="A file with the rows to resemble.")] = None,
    out: Annotated[Path | None, typer.Option(help=f"{OUT_HELP} For a log a folder.", show_default=False)] = None,
    users: Annotated[Path | None, typer.Option(help="Of a log: a file with ids and features of all users.")] = None,
    items: Annotated[Path | None, typer.Option(help="Of a log: a file with ids and features of all items.")] = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    separator: Separator = None,
    memory: Memory = None,
    engine: EngineWord = None,
    workers: Workers = None,
    address: Address = None,
    cache: Cache = None,
    features: Annotated[str | None, typer.Option(help="Columns, separated by commas.", show_default="all")] = None,
    moments: Annotated[int | None, typer.Option(help="Balance moments up to this order, not kernels.")] = None,
    kernel: Annotated[KernelName, typer.Option(help="Kernel of the balanced functions.")] = "gaussian",
    n_functions: Annotated[int, typer.Option(help="How many kernel functions; at most, for greedy.")] = 50,
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
    With --users and --items in the place of POPULATION, the observed rows are pairs of a log (a file, a folder or a
    glob) and the population is all pairs. The log may be longer than memory.
    """
    from counterpoise.balance.covariate_balance import imbalances
    from counterpoise.balance.estimators import balance_samples
    from counterpoise.balance.functions import KernelFunctions, Moments
    from counterpoise.balance.kernels import KERNELS
    from counterpoise.data.files import is_many
    from counterpoise.data.reading import read_beside, read_features
    from counterpoise.plots.text import love_lines
    from counterpoise.storage import check_table_name, write_table

    check_number("seed", seed, at_least=0, integer=True)
    check_number("n_functions", n_functions, at_least=1, integer=True)
    if moments is not None:
        check_number("moments", moments, at_least=1, integer=True)
    if out is None:
        raise ConfigError("`out` must be given (--out): where the weights go.")
    chosen = Moments(moments) if moments is not None else KernelFunctions(KERNELS[kernel](), n_functions, select)
    if users is not None or items is not None or is_many(observed):
        if users is None or items is None or population is not None:
            raise ConfigError("a log is balanced against all pairs: give --users and --items, and no POPULATION.")
        if max_weight is not None or features is not None:
            raise ConfigError("--max-weight and --features go with a POPULATION, not with a log and --users, --items.")
        reading = given(user_col=user_col, item_col=item_col, separator=separator, memory=memory, cache=cache)
        prices = {"tolerance": tolerance, "strength": strength, "seed": seed}
        tables = str(observed), users, items
        _balance_log(*tables, out, chosen, (engine or "local", workers, address), reading | prices, as_json, quiet)
        return
    if population is None:
        raise ConfigError("`population` must be given: a file with the rows to resemble; or --users and --items.")
    check_table_name(out)
    with working("balancing", not (as_json or quiet)):
        first = read_features(observed, words(features))
        table = read_beside(observed, first)
        if "weight" in table.columns:
            raise DataError(f"{observed}: the column 'weight' has the name of the result. Rename it.")
        second = read_features(population, first.columns)
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


def _balance_log(
    log: str,
    users: Path,
    items: Path,
    out: Path,
    functions: Functions,
    engine: tuple[EngineName, int | None, str | None],
    options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    from counterpoise.out_of_core.balancing import balance_log
    from counterpoise.out_of_core.engines import make_engine

    with working("balancing", not (as_json or quiet)):
        balanced = balance_log(log, users, items, out, functions, engine=make_engine(*engine), **options)
    if as_json:
        show_json({"out": str(out), **balanced.to_dict()})
    elif not quiet:
        say(f"{balanced.summary()}\nWeights, which sum to 1, written to {out}")
