"""`counterpoise bench`: parse, run what is not done yet, print and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import counting_bar, print_line, show_json, show_table
from counterpoise.cli.options import (
    Address,
    EngineWord,
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

# From the words of a command to its fits: which there are, and who makes those that the folder does not have.

if TYPE_CHECKING:
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.store import Store

READING = ("user_col", "item_col", "rating_col", "timestamp_col", "propensity_col", "duplicates", "separator")


def reading_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How files of one's own are read, as far as it was given."""
    return given(**{name: arguments[name] for name in READING})


def plan(
    datasets: str,
    methods: str,
    seeds: int,
    backbones: Sequence[BenchBackbone],
    protocols: Sequence[Protocol],
    threshold: float | None,
    settings: list[str] | None,
    reading: Mapping[str, Any],
) -> tuple[list[Job], list[dict[str, str]]]:
    """(the fits, seed by seed, so that what is there after an interruption is a table of fewer seeds; what is missing).

    Every method and dataset is tried before the first fit: a mistake costs no time.
    """
    from counterpoise.bench.datasets import BENCH_DATASETS, ground
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.methods import entries
    from counterpoise.runs import parse_settings

    check_number("seeds", seeds, at_least=1, integer=True)
    grounds = [ground(name) for name in dict.fromkeys(words(datasets) or [])]
    absent = {where.name: text for where in grounds if (text := where.missing())}
    rows, own = entries(words(methods) or []), parse_settings(settings or [])
    if not grounds or not rows:
        raise ConfigError("`datasets` and `methods` must name at least one each.")
    if reading and all(where.name in BENCH_DATASETS for where in grounds):
        named = ", ".join(f"`{name}`" for name in reading)
        raise ConfigError(f"{named}: columns are of files of your own, and `datasets` names none.")
    jobs = [
        Job(where.name, row.name, seed, column, protocol, threshold, own, reading)
        for seed in range(seeds)
        for where in grounds
        if where.name not in absent
        for protocol in protocols
        for column in backbones
        for row in rows
    ]
    for job in jobs[: len(jobs) // seeds]:
        job.config_hash  # noqa: B018  builds the model: an unknown setting is an error now
    for where in grounds:
        for protocol in protocols:
            if where.name not in absent and (protocol == "paper" or not where.shape):
                where.load(protocol, 0, threshold, reading)
    return jobs, [{"dataset": name, "missing": text} for name, text in absent.items()]


def finish(
    jobs: list[Job],
    out: Path,
    processes: int,
    retry: bool,
    stack: bool,
    engine: EngineName | None,
    address: str | None,
    visible: bool,
) -> Store:
    """Fit what the folder does not have, with a bar that counts."""
    from counterpoise.bench.runner import run
    from counterpoise.bench.store import Store

    store = Store(out)
    if retry:
        store.forget_failures(jobs)
    with counting_bar("fitting", visible) as watch, stoppable(f"Fits that are done are in {out}: {GO_ON}"):
        run(jobs, store, processes, watch, stack, engine or "local", address)
    return store


# Tables of results on the screen and in files.

if TYPE_CHECKING:
    from counterpoise.bench.tables import Sheet


def show_sheets(
    sheets: list[Sheet],
    missing: list[dict[str, str]],
    out: Path,
    name: str,
    as_json: bool,
    quiet: bool,
    pictures: Sequence[Path] = (),
) -> None:
    """Write them, and print them; without any, nothing is written."""
    from counterpoise.bench.tables import write_sheets

    paths = [*write_sheets(sheets, out, name), *pictures] if sheets else []
    if as_json:
        show_json({"sheets": [sheet.to_dict() for sheet in sheets], "missing": missing, "files": list(map(str, paths))})
    elif not quiet:
        for sheet in sheets:
            print_line(sheet.title)
            show_table(list(sheet.columns), sheet.cells())
            print_line("\n".join(sheet.notes))
        for absent in missing:
            print_line(f"{absent['dataset']} is missing. {absent['missing']}")
        if paths:
            print_line(f"Written to {out}: {', '.join(sorted(path.name for path in paths))}")


# `counterpoise bench bias`: parse, measure what is not kept yet, print and write.

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
    from counterpoise.bench.bias import fitted, fitted_sheet, study, study_sheet
    from counterpoise.bench.kept_rows import KeptRows
    from counterpoise.data.datasets import load
    from counterpoise.methods import canonical_name

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


if TYPE_CHECKING:
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.store import Store

app = typer.Typer(help="The paper's table and figures, honest, with tests of significance.", no_args_is_help=True)

LISTS = (
    "--datasets",
    "--methods",
    "--values",
    "--metrics",
    "--matrices",
    "--estimators",
)  # `--methods mf ips` is `mf,ips`
Datasets = Annotated[str, typer.Option(help="Names or paths: coat, yahoo-r3, kuairec, coat-like, music-like, ...")]
Methods = Annotated[str, typer.Option(help="Names, all, paper, baselines, balancing, or module:function.")]
Seeds = Annotated[int, typer.Option(help="How many: each draws probe, start and batches, the same for all methods.")]
Jobs = Annotated[int, typer.Option(help="Processes. They change the time, never the results.")]
Out = Annotated[Path, typer.Option(help="Folder of results: what is there is not fitted again.")]
Backbone = Annotated[BenchBackbone, typer.Option(help="Our default, or the paper's: 4 dimensions, no biases.")]
Name = Annotated[str, typer.Option(help="Of the files that are written.")]
BACKBONES: dict[str, tuple[BenchBackbone, ...]] = {
    "strong": ("strong",),
    "paper": ("paper",),
    "both": ("strong", "paper"),
}
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of all methods, as name=value.")]
Stack = Annotated[bool, typer.Option("--stack", help="Fit all seeds of a method at once: equal up to rounding.")]
Retry = Annotated[bool, typer.Option("--retry", help="Fit again what failed.")]


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
    engine: EngineWord = None,
    address: Address = None,
    out: Out = Path("results"),
    name: Name = "table",
    stack: Stack = False,
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's Table 1: methods x datasets x seeds, beside the published numbers, with tests of significance.

    Written to OUT as NAME.md, .tex, .csv and .json. Stop it whenever you like; it goes on from there.
    """
    reading = reading_of(locals())
    from counterpoise.bench.summary import check_metrics, summarise
    from counterpoise.bench.tables import as_csv, as_latex, as_markdown, as_terminal
    from counterpoise.bench.tables import as_json as to_json
    from counterpoise.storage import write_text

    chosen = check_metrics(words(metrics) or [])
    check_choice("backbone", backbone, BACKBONES)
    planned, missing = plan(datasets, methods, seeds, BACKBONES[backbone], [protocol], threshold, settings, reading)
    if not planned:
        show_sheets([], missing, out, name, as_json, quiet)
        return
    store = finish(planned, out, jobs, retry, stack, engine, address, not (as_json or quiet))
    found = summarise([_row(job, store) for job in planned], missing, chosen)
    files = {"md": as_markdown, "tex": as_latex, "csv": as_csv, "json": to_json}
    for ending, layout in files.items():
        write_text(out / f"{name}.{ending}", layout(found))
    if as_json:
        show_json(found.to_dict())
    elif not quiet:
        for title, columns, rows, notes in as_terminal(found):
            print_line(f"\n{title}")
            if columns:
                show_table(columns, rows)
            print_line("\n".join(notes))
        print_line(f"\nWritten to {out}: " + ", ".join(f"{name}.{ending}" for ending in files))


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
    engine: EngineWord = None,
    address: Address = None,
    out: Out = Path("results"),
    stack: Stack = False,
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The paper's Figures 1 and 2: a setting swept over values, as a picture with bands and as a table.

    Methods that do not have the setting are drawn as a level.
    """
    reading = reading_of(locals())
    from counterpoise.bench.figures import draw_sweep  # an error without matplotlib: before long work
    from counterpoise.bench.store import failures
    from counterpoise.bench.summary import check_metrics
    from counterpoise.bench.sweep import DEFAULTS, points, sheets, swept

    chosen = numbers("values", values) if values is not None else DEFAULTS.get(parameter)
    if chosen is None:
        raise ConfigError(f"`values` must be given for {parameter!r}: defaults are known for {', '.join(DEFAULTS)}.")
    drawn = check_metrics(words(metrics) or [])
    planned, missing = plan(datasets, methods, seeds, [backbone], ["honest"], threshold, settings, reading)
    grid = [pair for job in planned for pair in swept(job, parameter, chosen)]
    if grid and all(value is None for _, value in grid):
        raise ConfigError(f"`parameter` must be a setting of one of the methods, got {parameter!r}.")
    planned_jobs, name = [job for job, _ in grid], f"sweep-{parameter}"
    store = finish(planned_jobs, out, jobs, retry, stack, engine, address, not (as_json or quiet))
    found = points(grid, store, drawn)
    failed = failures(planned_jobs, store)
    if failed and not found:
        raise ConfigError(f"every fit failed. The first: {failed[0]}")
    tables, pictures = sheets(found, parameter, failed), []
    for kind in ("png", "svg") if found else ():
        pictures.append(out / f"{name}.{kind}")
        draw_sweep(found, parameter, pictures[-1])
    show_sheets(tables, missing, out, name, as_json, quiet, pictures)


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
    engine: EngineWord = None,
    address: Address = None,
    out: Out = Path("results"),
    stack: Stack = False,
    retry: Retry = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """How much of a published number is protocol: honest and paper splits, and three rules of NDCG."""
    reading = reading_of(locals())
    from counterpoise.bench.protocol import PROTOCOLS, sheets
    from counterpoise.bench.store import failures

    planned, missing = plan(datasets, methods, seeds, [backbone], PROTOCOLS, threshold, settings, reading)
    store = finish(planned, out, jobs, retry, stack, engine, address, not (as_json or quiet))
    show_sheets(sheets(planned, store, failures(planned, store)), missing, out, "protocol", as_json, quiet)


app.command()(bias)


def numbers(name: str, text: str) -> list[float]:
    """Numbers separated by commas; whole ones stay whole."""
    try:
        values = [float(word) for word in words(text) or []]
    except ValueError:
        raise ConfigError(f"`{name}` must be numbers separated by commas, got {text!r}.") from None
    return [int(value) if value.is_integer() else value for value in values]


def join_lists(arguments: list[str]) -> list[str]:
    """`--methods mf ips` as `--methods mf,ips`, the way the command line of a table reads best."""
    joined: list[str] = []
    eating = False
    for word in arguments:
        if eating and not word.startswith("-") and joined[-1] not in LISTS:
            joined[-1] = f"{joined[-1].rstrip(',')},{word}"
        else:
            eating = word in LISTS or (eating and not word.startswith("-"))
            joined.append(word)
    return joined


def _row(job: Job, store: Store) -> dict[str, Any]:
    row = store.read(job)
    assert row is not None  # all fits are done
    return row
