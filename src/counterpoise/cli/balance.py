"""`counterpoise balance`: weights for a table of observed rows, without any recommender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from counterpoise.config import KernelName, MissingValues, SelectForSamples, Target, Units
from counterpoise.errors import ConfigError, DataError, RowError, check_number, did_you_mean

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.balance.covariate_balance import FeatureBalance, Imbalance
    from counterpoise.balance.estimators import KernelBalancer, MomentBalancer
    from counterpoise.balance.functions import Functions
    from counterpoise.data.side_tables import TableEncoder

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
    users: Annotated[
        Path | None,
        option("Read ids and features of all users from this file, for a log.", metavar="FILE", shown="none"),
    ] = None
    items: Annotated[
        Path | None,
        option("Read ids and features of all items from this file, for a log.", metavar="FILE", shown="none"),
    ] = None
    features: Annotated[
        str | None, option("Balance these columns: names, separated by commas.", metavar="COLUMNS", shown="all but ids")
    ] = None
    categorical: Annotated[
        str | None, option("Read the numbers in these columns as categories.", metavar="COLUMNS", shown="none")
    ] = None
    missing: Annotated[
        MissingValues,
        option(
            "Replace a missing number by the mean and mark it (indicator), by the mean alone (mean), or stop (error).",
            metavar="RULE",
        ),
    ] = "indicator"
    treatment: Annotated[
        str | None,
        option(
            "Compare treated rows (1 in this column) with controls (0); goes without POPULATION.",
            metavar="COLUMN",
            shown="none",
        ),
    ] = None
    target: Annotated[
        Target,
        option("Resemble all rows (ate), the treated (att) or the controls (atc), with --treatment.", metavar="ROWS"),
    ] = "ate"
    sample_weights: Annotated[
        str | None,
        option("Start from the sampling weights in this column of the observed rows.", metavar="COLUMN", shown="none"),
    ] = None
    population_weights: Annotated[
        str | None, option("Weight the population by this column of sampling weights.", metavar="COLUMN", shown="none")
    ] = None

    def encoder(self, table: pl.DataFrame) -> TableEncoder:
        """How the columns of the observed file become features."""
        from counterpoise.data.side_tables import TableEncoder, check_names

        named, codes = words(self.features), tuple(words(self.categorical) or ())
        check_names("features", named or (), table.columns)
        check_names("categorical", codes, table.columns)
        return TableEncoder(named, codes, self.missing)


@dataclass(frozen=True)
class BalanceOptions(OptionGroup):
    """The balanced functions, and how closely they are balanced."""

    panel = "Method"
    moments: Annotated[
        int | None,
        option("Balance moments up to this order instead of kernel functions.", metavar="ORDER", shown="none"),
    ] = None
    kernel: Annotated[
        KernelName, option("Balance functions of this kernel: gaussian or exponential.", metavar="KERNEL")
    ] = "gaussian"
    n_functions: Annotated[
        int, option("Balance this many kernel functions; with --select greedy at most.", metavar="NUMBER")
    ] = 50
    select: Annotated[
        SelectForSamples,
        option("Choose the kernel functions by this rule: random, worst_case, greedy or spectral.", metavar="RULE"),
    ] = "spectral"
    tolerance: Annotated[float, option("Allow this much imbalance of each function, in --units.", metavar="NUMBER")] = (
        1e-3
    )
    strength: Annotated[
        float | None,
        option(
            "Relax functions that would cost more than this for a unit of imbalance.",
            metavar="NUMBER",
            shown="no limit",
        ),
    ] = None
    units: Annotated[
        Units,
        option(
            "Measure imbalance in standard deviations of each function (sd), or in its own values (raw).",
            metavar="UNIT",
        ),
    ] = "sd"
    max_weight: Annotated[
        float | None, option("Let no weight exceed this; all weights sum to 1.", metavar="NUMBER", shown="no limit")
    ] = None
    seed: Annotated[int, option("Draw the candidate functions from this seed.", metavar="NUMBER")] = 0

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

    def balancer(self, encoder: TableEncoder) -> KernelBalancer | MomentBalancer:
        """The same as an estimator."""
        from counterpoise.balance.estimators import KernelBalancer, MomentBalancer

        options: dict[str, Any] = encoder.get_params(deep=False)
        options = {name: options[name] for name in ("columns", "categorical", "missing")}
        options |= {name: getattr(self, name) for name in ("tolerance", "strength", "units", "max_weight")}
        if self.moments is not None:
            return MomentBalancer(self.moments, **options)
        return KernelBalancer(self.n_functions, self.select, kernel=self.kernel, random_state=self.seed, **options)


@with_options
def balance(
    observed: Annotated[
        Path, typer.Argument(help="File of the observed rows, or a log.", metavar="OBSERVED", show_default=False)
    ],
    features: FeatureOptions,
    columns: PairColumns,
    method: BalanceOptions,
    output: OutputOptions,
    scale: ScaleOptions,
    population: Annotated[
        Path | None, typer.Argument(help="File of the rows to resemble.", metavar="POPULATION")
    ] = None,
    out: Annotated[
        Path | None,
        option(f"{OUT_HELP} For a log it is a folder.", metavar="FILE", shown="must be given", panel="Output"),
    ] = None,
) -> None:
    """Weight observed rows so that they resemble a population: balancing without any recommender.

    The file OUT has all columns of the observed file and `weight`, its rows in the same order. Columns may hold text,
    dates, lists and gaps. --features names those that are balanced; without it ids, names, and columns that the
    population does not have (outcomes) are left out, and the output says so.

    With --treatment in the place of POPULATION, treated and controls are weighted to resemble the rows of --target.

    With --users and --items the observed rows are pairs of a log (a file, a folder or a glob) and the population is all
    pairs. The log may be larger than memory.

    For example:
        counterpoise balance respondents.csv population.csv --out weights.csv
        counterpoise balance rows.csv --treatment drug --features age,sex --out w.csv
        counterpoise balance log.csv --users users.csv --items items.csv --out weights
    """
    from counterpoise.data.files import is_many

    functions = method.functions()
    if out is None:
        raise ConfigError("`out` must be given (--out): where the weights are written.")
    reading = columns.given("separator", "header")
    if features.treatment is not None:
        if population is not None or features.users is not None or features.items is not None:
            raise ConfigError("--treatment compares rows of one file: leave out POPULATION, --users and --items.")
        _balance_treatment(observed, features, reading, method, output, out)
        return
    if features.users is None and features.items is None and not is_many(observed):
        if population is None:
            raise ConfigError(
                "`population` must be given: a file with the rows to resemble; or --users and --items; or --treatment."
            )
        _balance_files((observed, population), features, reading, functions, method, output, out)
        return
    if features.users is None or features.items is None or population is not None:
        raise ConfigError("a log is balanced against all pairs: give --users and --items, and no POPULATION.")
    if method.max_weight is not None or features.features is not None or features.sample_weights is not None:
        words_ = "--max-weight, --features and --sample-weights"
        raise ConfigError(f"{words_} go with a POPULATION, not with a log and --users, --items.")

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
            categorical=words(features.categorical) or (),
            **columns.given(),
            **scale.given("memory", "cache"),
        )
    facts = {"out": str(out), **balanced.to_dict()}
    output.show(facts, f"{balanced.summary()}\nWeights, which sum to 1, written to {out}")


def _balance_files(
    files: tuple[Path, Path],
    features: FeatureOptions,
    reading: dict[str, Any],
    functions: Functions,
    method: BalanceOptions,
    output: OutputOptions,
    out: Path,
) -> None:
    """Weight the rows of one file so that they resemble those of another."""
    from counterpoise.balance.covariate_balance import imbalances
    from counterpoise.balance.estimators import balance_samples
    from counterpoise.data.files import first_row, layout_of

    with working("balancing", output.visible):
        table, population = _read(files[0], reading, out), _read(files[1], reading)
        named = (features.sample_weights, features.population_weights)
        weights = [_column(*given) for given in zip((table, population), files, named, strict=True)]
        try:
            report = balance_samples(
                table.drop([name for name in named if name in table.columns]),
                population.drop([name for name in named if name in population.columns]),
                functions,
                tolerance=method.tolerance,
                strength=method.strength,
                units=method.units,
                base_weights=weights[0],
                population_weights=weights[1],
                max_weight=method.max_weight,
                seed=method.seed,
                encoder=features.encoder(table),
            )
        except RowError as error:
            file = files["(`population`)" in error.reason]
            raise error.located(str(file), first_row(file, layout_of(file, (), **reading))) from None
        _write(table, report.weights, out)
    _show_table(report.diagnosis.table, output)
    _show_love(imbalances(report), "Observed rows against the population", output)
    facts = {"out": str(out), **report.to_dict()}
    output.show(facts, f"{report.summary()}\n{len(table):,} weights, which sum to 1, written to {out}")


def _balance_treatment(
    file: Path,
    features: FeatureOptions,
    reading: dict[str, Any],
    method: BalanceOptions,
    output: OutputOptions,
    out: Path,
) -> None:
    """Weight the treated and the controls of one file so that both resemble the rows of the target."""
    from counterpoise.balance.covariate_balance import imbalances
    from counterpoise.balance.estimators import TreatmentBalancer
    from counterpoise.data.files import first_row, layout_of

    if features.features is None:
        raise ConfigError(
            "`features` must be given with --treatment: the columns to balance. An outcome must not be among them."
        )
    with working("balancing", output.visible):
        table = _read(file, reading, out)
        treatment, weights = (_column(table, file, name) for name in (features.treatment, features.sample_weights))
        balancer = TreatmentBalancer(method.balancer(features.encoder(table)), features.target)
        covariates = table.drop([name for name in (features.treatment, features.sample_weights) if name is not None])
        try:
            balancer.fit(covariates, treatment, sample_weight=weights)
        except RowError as error:
            raise error.located(str(file), first_row(file, layout_of(file, (), **reading))) from None
        _write(table, balancer.weights_, out)
    _show_table(balancer.feature_balances(), output)
    target = {"ate": "all rows", "att": "the treated", "atc": "the controls"}[features.target]
    _show_love(imbalances(balancer), f"Treated and controls against {target}", output)
    solved = {group: found.result_.to_dict() for group, found in balancer.balancers_.items()}
    facts = {"out": str(out), "target": features.target, "solver": solved, "left_out": balancer.left_out_}
    facts["table"] = [asdict(row) for row in balancer.feature_balances()]
    written = f"{len(table):,} weights, which sum to 1 in each group, written to {out}"
    output.show(facts, f"{balancer.summary()}\n{written}")


def _read(file: Path, reading: dict[str, Any], out: Path | None = None) -> pl.DataFrame:
    """All columns of a file; with `out`, checked that the weights can be written beside them."""
    from counterpoise.data.reading import read_all_columns
    from counterpoise.storage import check_table_name

    if out is not None:
        check_table_name(out)
    table = read_all_columns(file, **reading)
    if out is not None and "weight" in table.columns:
        raise DataError(f"{file}: the column 'weight' has the name of the result. Rename it.")
    return table


def _column(table: pl.DataFrame, file: Path, name: str | None) -> pl.Series | None:
    """A column by its name; None where none is named."""
    if name is not None and name not in table.columns:
        hint = did_you_mean(name, table.columns)
        raise DataError(f"{file}: there is no column {name!r}; the columns are {', '.join(table.columns)}.{hint}")
    return None if name is None else table[name]


def _write(table: pl.DataFrame, weights: Any, out: Path) -> None:
    from counterpoise.storage import write_table

    write_table(table.with_columns(weight=weights), out)


def _show_table(found: Sequence[FeatureBalance], output: OutputOptions) -> None:
    if output.visible:
        rows = [[getattr(row, field) for field in TABLE_COLUMNS.values()] for row in found]
        show_table(list(TABLE_COLUMNS), [["-" if value is None else value for value in row] for row in rows])


def _show_love(rows: list[Imbalance], title: str, output: OutputOptions) -> None:
    if output.visible:
        width, fancy = canvas()
        show_picture(love_lines(rows, title, width, fancy=fancy))
