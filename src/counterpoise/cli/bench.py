"""`counterpoise bench`: parse, make the fits that the results folder lacks, print and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import print_line, progress_bar, show_json, show_table
from counterpoise.cli.options import (
    Address,
    LogColumns,
    OptionGroup,
    OutputOptions,
    PairColumns,
    RatingCol,
    Repeated,
    TimestampCol,
    option,
    with_options,
    words,
)
from counterpoise.config import BenchBackbone, EngineName, Protocol
from counterpoise.errors import RESUME_ADVICE, ConfigError, check_choice, check_number, stoppable

if TYPE_CHECKING:
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.tables import Sheet

app = typer.Typer(help="The paper's table and figures, honest, with tests of significance.", no_args_is_help=True)
LISTS = ("--datasets", "--methods", "--values", "--metrics", "--matrices", "--estimators")  # may be written with spaces
BACKBONES: dict[str, list[BenchBackbone]] = {"strong": ["strong"], "paper": ["paper"], "both": ["strong", "paper"]}
Datasets = Annotated[str, option("Names or paths of datasets: coat, yahoo-r3, kuairec, coat-like, music-like, ...")]
Methods = Annotated[str, option("Names of methods, or all, paper, baselines, balancing, or module:function.")]
Seeds = Annotated[int, option("Number of seeds; each draws probe, initial model and batches for all methods.")]
Backbone = Annotated[BenchBackbone, option("Model that predicts: strong (default) or paper (4 dimensions, no biases).")]


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """How fits are made and where their results are stored."""

    panel = "Run"
    jobs: Annotated[int, option("Number of processes. It changes the time, never the results.")] = 1
    engine: Annotated[EngineName | None, option("Where fits run: processes here, or tasks of Ray.", shown="local")] = (
        None
    )
    address: Address = None
    out: Annotated[Path, option("Folder of results; fits that are in it are not repeated.")] = Path("results")
    retry: Annotated[bool, option("Fit again what failed.", "--retry")] = False

    def fit(self, jobs: Sequence[Job], visible: bool) -> list[dict[str, Any]]:
        """The rows of results of all jobs, after the missing fits were made."""
        from counterpoise.bench.runner import run
        from counterpoise.bench.store import Store

        store = Store(self.out)
        if self.retry:
            store.delete_failures(jobs)
        advice = f"Fits that are done are in {self.out}: {RESUME_ADVICE}"
        with progress_bar("fitting", visible, counting=True) as bar, stoppable(advice):
            run(jobs, store, self.jobs, bar, self.engine or "local", self.address)
        return store.read_all(jobs)


@dataclass(frozen=True)
class RatingFile(PairColumns):
    """How the file of the bias study is read."""

    rating_col: RatingCol = None
    timestamp_col: TimestampCol = None
    duplicates: Repeated = None


@dataclass(frozen=True)
class FitOptions(LogColumns):
    """What all fits of an experiment have in common."""

    settings: Annotated[list[str] | None, option("A setting of all methods, as name=value.", "--set")] = None

    def plan(
        self, datasets: str, methods: str, seeds: int, backbones: Sequence[BenchBackbone], protocols: Sequence[Protocol]
    ) -> tuple[list[Job], list[dict[str, str]]]:
        """The fits of every method on every dataset, both lists separated by commas; and the datasets not found."""
        from counterpoise.bench.jobs import plan
        from counterpoise.runs import parse_settings

        names, settings = (words(datasets) or [], words(methods) or []), parse_settings(self.settings or [])
        reading = {name: value for name, value in self.given().items() if name not in ("threshold", "settings")}
        common: dict[str, Any] = {"threshold": self.threshold, "settings": settings, "read_options": reading}
        return plan(*names, seeds, backbones, protocols, **common)


def show_sheets(
    sheets: list[Sheet],
    missing: list[dict[str, str]],
    files: Path,
    output: OutputOptions,
    pictures: Sequence[Path] = (),
) -> None:
    """Print sheets and write them to `files`.md, .json and .csv; without any, nothing is written."""
    from counterpoise.bench.tables import write_sheets

    paths = [*write_sheets(sheets, files.parent, files.name), *pictures] if sheets else []
    if output.as_json:
        facts = [sheet.to_dict() for sheet in sheets]
        show_json({"sheets": facts, "missing": missing, "files": list(map(str, paths))})
    elif output.visible:
        for sheet in sheets:
            print_line(sheet.title)
            show_table(list(sheet.columns), sheet.cells())
            print_line("\n".join(sheet.notes))
        for absent in missing:
            print_line(f"{absent['dataset']} is missing. {absent['missing']}")
        if paths:
            print_line(f"Written to {files.parent}: {', '.join(sorted(path.name for path in paths))}")


@app.command()
@with_options
def table(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    datasets: Datasets = "coat",
    methods: Methods = "all",
    seeds: Seeds = 10,
    backbone: Annotated[str, option("Model: strong (default), paper (4 dimensions, no biases), both.")] = "strong",
    protocol: Annotated[Protocol, option("How probe and test are split from the unbiased ratings.")] = "honest",
    metrics: Annotated[
        str | None, option("Metrics.", shown="auc,ndcg,f1; auc,ndcg_one,f1_one beside published numbers")
    ] = None,
    name: Annotated[str, option("Name of the files to write.")] = "table",
) -> None:
    """The paper's Table 1: methods x datasets x seeds, with tests of significance from 5 seeds on.

    Published numbers are of the paper's protocol, and stand beside ours only with --protocol paper.
    Written to OUT as NAME.md, .tex, .csv and .json. Stop it at any time; the same command resumes.
    """
    from counterpoise.bench.summary import METRICS, check_metrics, summarise
    from counterpoise.bench.tables import FORMATS, as_terminal
    from counterpoise.storage import write_text

    chosen = check_metrics(METRICS[protocol] if metrics is None else words(metrics) or [])
    check_choice("backbone", backbone, BACKBONES)
    planned, missing = fits.plan(datasets, methods, seeds, BACKBONES[backbone], [protocol])
    if not planned:
        show_sheets([], missing, run.out / name, output)
        return
    found = summarise(run.fit(planned, output.visible), missing, chosen)
    for ending, layout in FORMATS.items():
        write_text(run.out / f"{name}.{ending}", layout(found))
    if output.as_json:
        show_json(found.to_dict())
    elif output.visible:
        for grid in as_terminal(found):
            print_line(f"\n{grid.title}")
            if grid.columns:
                show_table(grid.columns, grid.rows)
            print_line("\n".join(grid.notes))
        print_line(f"\nWritten to {run.out}: " + ", ".join(f"{name}.{ending}" for ending in FORMATS))


@app.command()
@with_options
def sweep(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    parameter: Annotated[str, option("Setting to vary: n_functions, strength, tolerance, bandwidth, or any other.")],
    values: Annotated[str | None, option("Values of the setting.", shown="a usual range")] = None,
    datasets: Datasets = "product-like",
    methods: Methods = "mf,rkb-ips,wkb-ips,akb-ips,skb-ips,mb-ips,rkb-dr,wkb-dr,akb-dr,skb-dr,mb-dr",
    seeds: Seeds = 5,
    backbone: Backbone = "strong",
    metrics: Annotated[str, option("Metrics that are drawn.")] = "auc,ndcg",
) -> None:
    """The paper's Figures 1 and 2: a setting swept over values, as a picture with bands and as a table.

    Methods that do not have the setting are drawn as a horizontal line.
    """
    from counterpoise import plots  # raises without matplotlib, before any fit
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.summary import check_metrics
    from counterpoise.bench.sweep import AXES, DEFAULTS, metric_titles, points, sheets, sweep_job

    chosen = numbers("values", values) if values is not None else DEFAULTS.get(parameter)
    if chosen is None:
        raise ConfigError(f"`values` must be given for {parameter!r}: defaults are known for {', '.join(DEFAULTS)}.")
    drawn = check_metrics(words(metrics) or [])
    planned, missing = fits.plan(datasets, methods, seeds, [backbone], ["honest"])
    grid = [pair for job in planned for pair in sweep_job(job, parameter, chosen)]
    if grid and all(value is None for _, value in grid):
        raise ConfigError(f"`parameter` must be a setting of one of the methods, got {parameter!r}.")
    rows = run.fit([job for job, _ in grid], output.visible)
    found, failures = points([value for _, value in grid], rows, drawn), describe_failures(rows)
    if failures and not found:
        raise ConfigError(f"every fit failed. The first: {failures[0]}")
    files, pictures = run.out / f"sweep-{parameter}", []
    for kind in ("png", "svg") if found else ():
        pictures.append(run.out / f"{files.name}.{kind}")
        plots.save(plots.sweep(found, AXES.get(parameter, parameter), titles=metric_titles(found)), pictures[-1])
    show_sheets(sheets(found, parameter, failures), missing, files, output, pictures)


@app.command()
@with_options
def protocol(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    datasets: Datasets = "coat",
    methods: Methods = "mf,ips,dr-jl,akb-ips,akb-dr,skb-dr",
    seeds: Seeds = 10,
    backbone: Backbone = "strong",
) -> None:
    """How much of a published number is protocol: honest and paper splits, and two rules for empty users."""
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.protocol import PROTOCOLS, sheets

    planned, missing = fits.plan(datasets, methods, seeds, [backbone], PROTOCOLS)
    rows = run.fit(planned, output.visible)
    show_sheets(sheets(rows, describe_failures(rows)), missing, run.out / "protocol", output)


@app.command()
@with_options
def bias(
    columns: RatingFile,
    output: OutputOptions,
    data: Annotated[str | None, option("A file of ratings, or coat.", shown="simulated")] = None,
    estimators: Annotated[str, option("Names of risk estimators, or all.")] = "all",
    matrices: Annotated[str, option("Prediction matrices: one, three, four, rotate, skew, crs, or all.")] = "all",
    repeats: Annotated[int, option("Number of logs drawn from the known propensities.")] = 10,
    error: Annotated[str, option("Error of a prediction: absolute or squared.")] = "absolute",
    imputation: Annotated[str, option("Imputation of DR: constant, learned, or cross-fitted.")] = "constant",
    methods: Annotated[str, option("Trained predictors on simulated logs: names, all, or none.")] = "all",
    seeds: Annotated[int, option("Number of simulated logs for the trained predictors.")] = 4,
    seed: Annotated[int, option("Seed of ratings, logs and probes.")] = 0,
    out: Annotated[Path, option("Folder for the tables.")] = Path("results"),
) -> None:
    """How far each estimate of the ideal loss is from the truth, where ratings and propensities of all pairs are known.

    Six predictions that are wrong in six ways (Schnabel et al. 2016), then trained predictors on simulated logs.
    Stop it at any time; the same command resumes.
    """
    from counterpoise.bench.bias import fitted, fitted_sheet, study, study_sheet
    from counterpoise.bench.store import Store
    from counterpoise.data.datasets import load_dataset
    from counterpoise.methods import canonical_name

    names = _names(methods)
    check_number("seeds", seeds, at_least=1, integer=True)
    if names not in ("all", ["none"]):
        names = [canonical_name(name) for name in names]
    if columns.given() and data is None:
        named = ", ".join(f"`{name}`" for name in columns.given())
        raise ConfigError(f"{named}: only for a file, and --data names none.")
    log, store = None if data is None else load_dataset(data, **columns.given()).train, Store(out)
    with stoppable(f"Measurements that are done are in {out}: {RESUME_ADVICE}"):
        with progress_bar("drawing logs", output.visible, counting=True) as bar:
            what = _names(estimators), _names(matrices), repeats, seed
            rows = study(log, *what, bar, error=error, imputation=imputation, store=store)
        found = [study_sheet(rows, data or "simulated preferences")]
        if names != ["none"]:
            with progress_bar("fitting", output.visible, counting=True) as bar:
                found.append(fitted_sheet(fitted(names, seeds, bar, store)))
    show_sheets(found, [], out / ("bias" if data is None else f"bias-{Path(data).stem}"), output)


def _names(text: str) -> str | list[str]:
    return "all" if text == "all" else words(text) or []


def numbers(name: str, text: str) -> list[float]:
    """Numbers separated by commas; whole ones stay whole."""
    try:
        values = [float(word) for word in words(text) or []]
    except ValueError:
        raise ConfigError(f"`{name}` must be numbers separated by commas, got {text!r}.") from None
    return [int(value) if value.is_integer() else value for value in values]


def join_lists(arguments: list[str]) -> list[str]:
    """`--methods mf ips` as `--methods mf,ips`, for every option of `LISTS`."""
    joined: list[str] = []
    in_list = False
    for word in arguments:
        if in_list and not word.startswith("-") and joined[-1] not in LISTS:
            joined[-1] = f"{joined[-1].rstrip(',')},{word}"
        else:
            in_list = word in LISTS or (in_list and not word.startswith("-"))
            joined.append(word)
    return joined
