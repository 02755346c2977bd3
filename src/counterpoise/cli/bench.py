"""`counterpoise bench`: parse, make the fits that the results folder lacks, print and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import counting_bar, say, show_json, show_table
from counterpoise.cli.options import (
    Address,
    ItemCol,
    Json,
    PropensityCol,
    Quiet,
    RatingCol,
    Repeated,
    Separator,
    Threshold,
    TimestampCol,
    UserCol,
    given,
    words,
)
from counterpoise.config import BenchBackbone, EngineName, Protocol
from counterpoise.errors import GO_ON, ConfigError, check_choice, check_number, stoppable

if TYPE_CHECKING:
    from counterpoise.bench.jobs import Experiment, Job
    from counterpoise.bench.tables import Sheet

app = typer.Typer(help="The paper's table and figures, honest, with tests of significance.", no_args_is_help=True)
LISTS = ("--datasets", "--methods", "--values", "--metrics", "--matrices", "--estimators")  # may be written with spaces
READ_OPTIONS = ("user_col", "item_col", "rating_col", "timestamp_col", "propensity_col", "duplicates", "separator")
BACKBONES: dict[str, tuple[BenchBackbone, ...]] = {
    "strong": ("strong",),
    "paper": ("paper",),
    "both": ("strong", "paper"),
}
Datasets = Annotated[str, typer.Option(help="Names or paths: coat, yahoo-r3, kuairec, coat-like, music-like, ...")]
Methods = Annotated[str, typer.Option(help="Names, all, paper, baselines, balancing, or module:function.")]
Seeds = Annotated[int, typer.Option(help="How many: each draws probe, start and batches, the same for all methods.")]
Jobs = Annotated[int, typer.Option(help="Processes. They change the time, never the results.")]
Out = Annotated[Path, typer.Option(help="Folder of results: fits that are there are not made again.")]
Backbone = Annotated[BenchBackbone, typer.Option(help="Our default, or the paper's: 4 dimensions, no biases.")]
Name = Annotated[str, typer.Option(help="Name of the files to write.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of all methods, as name=value.")]
Engine = Annotated[
    EngineName | None, typer.Option("--engine", help="Where fits run: processes here, or Ray.", show_default="local")
]
Retry = Annotated[bool, typer.Option("--retry", help="Fit again what failed.")]


@dataclass(frozen=True)
class Execution:
    """How fits are made: where results are kept, by how many processes or by Ray, and with a progress bar or not."""

    out: Path
    jobs: int
    engine: EngineName | None
    address: str | None
    retry: bool
    visible: bool

    def fit(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """The rows of results of all jobs, after the missing fits were made."""
        from counterpoise.bench.runner import run
        from counterpoise.bench.store import Store

        store = Store(self.out)
        if self.retry:
            store.delete_failures(jobs)
        with counting_bar("fitting", self.visible) as bar, stoppable(f"Fits that are done are in {self.out}: {GO_ON}"):
            run(jobs, store, self.jobs, bar, self.engine or "local", self.address)
        return store.read_all(jobs)


@dataclass(frozen=True)
class Output:
    """Where tables go: files `name`.* in `out`, and the terminal, one JSON document or nothing."""

    out: Path
    name: str
    as_json: bool
    quiet: bool

    def show(self, sheets: list[Sheet], missing: list[dict[str, str]], pictures: Sequence[Path] = ()) -> None:
        """Write and print sheets; without any, nothing is written."""
        from counterpoise.bench.tables import write_sheets

        paths = [*write_sheets(sheets, self.out, self.name), *pictures] if sheets else []
        if self.as_json:
            facts = [sheet.to_dict() for sheet in sheets]
            show_json({"sheets": facts, "missing": missing, "files": list(map(str, paths))})
        elif not self.quiet:
            for sheet in sheets:
                say(sheet.title)
                show_table(list(sheet.columns), sheet.cells())
                say("\n".join(sheet.notes))
            for absent in missing:
                say(f"{absent['dataset']} is missing. {absent['missing']}")
            if paths:
                say(f"Written to {self.out}: {', '.join(sorted(path.name for path in paths))}")


def experiment(
    options: Mapping[str, Any], backbones: Sequence[BenchBackbone], protocols: Sequence[Protocol]
) -> Experiment:
    """The experiment that the options of a command describe."""
    from counterpoise.bench.jobs import Experiment
    from counterpoise.runs import parse_settings

    return Experiment(
        *(words(options["datasets"]) or [], words(options["methods"]) or [], options["seeds"], backbones, protocols),
        threshold=options["threshold"],
        settings=parse_settings(options["settings"] or []),
        read_options=given(**{name: options[name] for name in READ_OPTIONS}),
    )


@app.command()
def table(
    datasets: Datasets = "coat",
    methods: Methods = "all",
    seeds: Seeds = 10,
    backbone: Annotated[
        str, typer.Option(help="strong (our default), paper (4 dimensions, no biases), both.")
    ] = "strong",
    protocol: Annotated[Protocol, typer.Option(help="Of the split of the unbiased ratings.")] = "honest",
    threshold: Threshold = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    timestamp_col: TimestampCol = None,
    propensity_col: PropensityCol = None,
    duplicates: Repeated = None,
    separator: Separator = None,
    metrics: Annotated[str, typer.Option(help="Columns; ndcg and f1 with their rule.")] = "auc,ndcg_one,f1_one",
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    out: Out = Path("results"),
    name: Name = "table",
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's Table 1: methods x datasets x seeds, beside the published numbers, with tests of significance.

    Written to OUT as NAME.md, .tex, .csv and .json. Stop it at any time; the same command resumes.
    """
    options = locals()
    from counterpoise.bench.summary import check_metrics, summarise
    from counterpoise.bench.tables import as_csv, as_latex, as_markdown, as_terminal
    from counterpoise.bench.tables import as_json as to_json
    from counterpoise.storage import write_text

    chosen = check_metrics(words(metrics) or [])
    check_choice("backbone", backbone, BACKBONES)
    planned, missing = experiment(options, BACKBONES[backbone], [protocol]).plan()
    if not planned:
        Output(out, name, as_json, quiet).show([], missing)
        return
    rows = Execution(out, jobs, engine, address, retry, not (as_json or quiet)).fit(planned)
    found = summarise(rows, missing, chosen)
    files = {"md": as_markdown, "tex": as_latex, "csv": as_csv, "json": to_json}
    for ending, layout in files.items():
        write_text(out / f"{name}.{ending}", layout(found))
    if as_json:
        show_json(found.to_dict())
    elif not quiet:
        for grid in as_terminal(found):
            say(f"\n{grid.title}")
            if grid.columns:
                show_table(grid.columns, grid.rows)
            say("\n".join(grid.notes))
        say(f"\nWritten to {out}: " + ", ".join(f"{name}.{ending}" for ending in files))


@app.command()
def sweep(
    parameter: Annotated[str, typer.Option(help="n_functions, strength, tolerance, bandwidth, or any setting.")],
    values: Annotated[str | None, typer.Option(help="What to try.", show_default="a range that suits it")] = None,
    datasets: Datasets = "product-like",
    methods: Methods = "mf,rkb-ips,wkb-ips,akb-ips,skb-ips,mb-ips,rkb-dr,wkb-dr,akb-dr,skb-dr,mb-dr",
    seeds: Seeds = 5,
    backbone: Backbone = "strong",
    threshold: Threshold = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    timestamp_col: TimestampCol = None,
    propensity_col: PropensityCol = None,
    duplicates: Repeated = None,
    separator: Separator = None,
    metrics: Annotated[str, typer.Option(help="What is drawn.")] = "auc,ndcg_one",
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    out: Out = Path("results"),
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's Figures 1 and 2: a setting swept over values, as a picture with bands and as a table.

    Methods that do not have the setting are drawn as a horizontal line.
    """
    options = locals()
    from counterpoise import plots  # raises without matplotlib, before any fit
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.summary import check_metrics
    from counterpoise.bench.sweep import AXES, DEFAULTS, metric_titles, points, sheets, sweep_job

    chosen = numbers("values", values) if values is not None else DEFAULTS.get(parameter)
    if chosen is None:
        raise ConfigError(f"`values` must be given for {parameter!r}: defaults are known for {', '.join(DEFAULTS)}.")
    drawn = check_metrics(words(metrics) or [])
    planned, missing = experiment(options, [backbone], ["honest"]).plan()
    grid = [pair for job in planned for pair in sweep_job(job, parameter, chosen)]
    if grid and all(value is None for _, value in grid):
        raise ConfigError(f"`parameter` must be a setting of one of the methods, got {parameter!r}.")
    rows = Execution(out, jobs, engine, address, retry, not (as_json or quiet)).fit([job for job, _ in grid])
    found, failures = points([value for _, value in grid], rows, drawn), describe_failures(rows)
    if failures and not found:
        raise ConfigError(f"every fit failed. The first: {failures[0]}")
    output, pictures = Output(out, f"sweep-{parameter}", as_json, quiet), []
    for kind in ("png", "svg") if found else ():
        pictures.append(out / f"{output.name}.{kind}")
        plots.save(plots.sweep(found, AXES.get(parameter, parameter), titles=metric_titles(found)), pictures[-1])
    output.show(sheets(found, parameter, failures), missing, pictures)


@app.command()
def protocol(
    datasets: Datasets = "coat",
    methods: Methods = "mf,ips,dr-jl,akb-ips,akb-dr,skb-dr",
    seeds: Seeds = 10,
    backbone: Backbone = "strong",
    threshold: Threshold = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    timestamp_col: TimestampCol = None,
    propensity_col: PropensityCol = None,
    duplicates: Repeated = None,
    separator: Separator = None,
    settings: Settings = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    out: Out = Path("results"),
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """How much of a published number is protocol: honest and paper splits, and three rules of NDCG."""
    options = locals()
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.protocol import PROTOCOLS, sheets

    planned, missing = experiment(options, [backbone], PROTOCOLS).plan()
    rows = Execution(out, jobs, engine, address, retry, not (as_json or quiet)).fit(planned)
    Output(out, "protocol", as_json, quiet).show(sheets(rows, describe_failures(rows)), missing)


@app.command()
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
    Stop it at any time; the same command resumes.
    """
    read_options = given(**{name: value for name, value in locals().items() if name in READ_OPTIONS})
    from counterpoise.bench.bias import fitted, fitted_sheet, study, study_sheet
    from counterpoise.bench.store import Store
    from counterpoise.data.datasets import load_dataset
    from counterpoise.methods import canonical_name

    visible, names = not (as_json or quiet), _names(methods)
    check_number("seeds", seeds, at_least=1, integer=True)
    if names not in ("all", ["none"]):
        names = [canonical_name(name) for name in names]
    if read_options and data is None:
        named = ", ".join(f"`{name}`" for name in read_options)
        raise ConfigError(f"{named}: only for a file, and --data names none.")
    log, store = None if data is None else load_dataset(data, **read_options).train, Store(out)
    with stoppable(f"Measurements that are done are in {out}: {GO_ON}"):
        with counting_bar("drawing logs", visible) as bar:
            what = _names(estimators), _names(matrices), repeats, seed
            rows = study(log, *what, bar, error=error, imputation=imputation, store=store)
        found = [study_sheet(rows, data or "simulated preferences")]
        if names != ["none"]:
            with counting_bar("fitting", visible) as bar:
                found.append(fitted_sheet(fitted(names, seeds, bar, store)))
    Output(out, "bias" if data is None else f"bias-{Path(data).stem}", as_json, quiet).show(found, [])


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
