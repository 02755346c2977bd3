"""`counterpoise balance`: weights for a table of observed rows, without any recommender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.console import canvas, love_lines, show_picture, show_table, working
from counterpoise.cli.options import (
    OUT_HELP,
    OptionGroup,
    OutputOptions,
    PairColumns,
    ScaleOptions,
    option,
    with_options,
    words,
)
from counterpoise.config import KernelName, SelectForSamples, Units
from counterpoise.errors import ConfigError, DataError, check_number

if TYPE_CHECKING:
    from counterpoise.balance.functions import Functions

TABLE_COLUMNS = {  # heading: field of a row of the balance table
    "feature": "name",
    "population mean": "population_mean",
    "mean before": "mean_before",
    "mean after": "mean_after",
    "SMD before": "smd_before",
    "SMD after": "smd_after",
}


@dataclass(frozen=True)
class FeatureOptions(OptionGroup):
    """The features that are balanced: columns of the observed file, or those of users and items."""

    panel = "Data"
    users: Annotated[Path | None, option("For a log: file of the ids and features of all users.")] = None
    items: Annotated[Path | None, option("For a log: file of the ids and features of all items.")] = None
    features: Annotated[str | None, option("Columns to balance, separated by commas.", shown="all")] = None


@dataclass(frozen=True)
class BalanceOptions(OptionGroup):
    """The balanced functions, and how closely they are balanced."""

    panel = "Method"
    moments: Annotated[int | None, option("Balance moments up to this order instead of kernel functions.")] = None
    kernel: Annotated[KernelName, option("Kernel of the balanced functions.")] = "gaussian"
    n_functions: Annotated[int, option("Number of kernel functions; with --select greedy the largest number.")] = 50
    select: Annotated[SelectForSamples, option("How the kernel functions are chosen.")] = "spectral"
    tolerance: Annotated[float, option("Imbalance that is allowed, in --units.")] = 1e-3
    strength: Annotated[float | None, option("Penalty weight of one unit of imbalance.")] = None
    units: Annotated[Units, option("Units of both: population SDs of each function, or its own values.")] = "sd"
    max_weight: Annotated[float | None, option("Largest weight allowed; all weights sum to 1.")] = None
    seed: Annotated[int, option("Seed of the draw of candidate kernel functions.")] = 0

    def functions(self) -> Functions:
        """The functions to balance, checked."""
        from counterpoise.balance.functions import KernelFunctions, Moments
        from counterpoise.balance.kernels import KERNELS

        check_number("seed", self.seed, at_least=0, integer=True)
        check_number("n_functions", self.n_functions, at_least=1, integer=True)
        if self.moments is None:
            return KernelFunctions(KERNELS[self.kernel](), self.n_functions, self.select)
        check_number("moments", self.moments, at_least=1, integer=True)
        return Moments(self.moments)


@with_options
def balance(
    observed: Annotated[Path, typer.Argument(help="File of the observed rows, or a log.", show_default=False)],
    features: FeatureOptions,
    columns: PairColumns,
    method: BalanceOptions,
    output: OutputOptions,
    scale: ScaleOptions,
    population: Annotated[Path | None, typer.Argument(help="File of the rows to resemble.")] = None,
    out: Annotated[Path | None, option(f"{OUT_HELP} For a log a folder.", shown=False, panel="Output")] = None,
) -> None:
    """Weight observed rows so that they resemble a population: balancing without any recommender.

    The file OUT has all columns of the observed file and `weight`, its rows in the same order. --features names the
    columns that are balanced; the others (ids, outcomes) are kept as they stand.
    With --users and --items in the place of POPULATION, the observed rows are pairs of a log (a file, a folder or a
    glob) and the population is all pairs. The log may be larger than memory.
    """
    from counterpoise.data.files import is_many

    functions = method.functions()
    if out is None:
        raise ConfigError("`out` must be given (--out): where the weights are written.")
    if features.users is None and features.items is None and not is_many(observed):
        if population is None:
            raise ConfigError("`population` must be given: a file with the rows to resemble; or --users and --items.")
        _balance_files(observed, population, out, functions, words(features.features), method, output)
        return
    if features.users is None or features.items is None or population is not None:
        raise ConfigError("a log is balanced against all pairs: give --users and --items, and no POPULATION.")
    if method.max_weight is not None or features.features is not None:
        raise ConfigError("--max-weight and --features go with a POPULATION, not with a log and --users, --items.")

    from counterpoise.out_of_core.balancing import balance_log
    from counterpoise.out_of_core.engines import make_engine

    with working("balancing", output.visible):
        balanced = balance_log(
            str(observed),
            features.users,
            features.items,
            out,
            functions,
            engine=make_engine(scale.engine or "local", scale.workers, scale.address),
            tolerance=method.tolerance,
            strength=method.strength,
            units=method.units,
            seed=method.seed,
            **columns.given(),
            **scale.given("memory", "cache"),
        )
    facts = {"out": str(out), **balanced.to_dict()}
    output.show(facts, f"{balanced.summary()}\nWeights, which sum to 1, written to {out}")


def _balance_files(
    observed: Path,
    population: Path,
    out: Path,
    functions: Functions,
    features: list[str] | None,
    method: BalanceOptions,
    output: OutputOptions,
) -> None:
    """Weight the rows of one file so that they resemble those of another."""
    from counterpoise.balance.covariate_balance import imbalances
    from counterpoise.balance.estimators import balance_samples
    from counterpoise.data.reading import read_all_columns, read_features
    from counterpoise.storage import check_table_name, write_table

    check_table_name(out)
    with working("balancing", output.visible):
        first = read_features(observed, features)
        table = read_all_columns(observed, first)
        if "weight" in table.columns:
            raise DataError(f"{observed}: the column 'weight' has the name of the result. Rename it.")
        report = balance_samples(
            first,
            read_features(population, first.columns),
            functions,
            tolerance=method.tolerance,
            strength=method.strength,
            units=method.units,
            max_weight=method.max_weight,
            seed=method.seed,
        )
        write_table(table.with_columns(weight=report.weights), out)
    if output.visible:
        rows = [[getattr(row, field) for field in TABLE_COLUMNS.values()] for row in report.diagnosis.table]
        show_table(list(TABLE_COLUMNS), [["-" if value is None else value for value in row] for row in rows])
        width, fancy = canvas()
        show_picture(love_lines(imbalances(report), "Observed rows against the population", width, fancy=fancy))
    facts = {"out": str(out), **report.to_dict()}
    output.show(facts, f"{report.summary()}\n{len(first):,} weights, which sum to 1, written to {out}")
