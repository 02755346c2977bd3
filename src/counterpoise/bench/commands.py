"""`counterpoise bench`: parse, run what is not done yet, print and write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.bench.bias_command import bias
from counterpoise.bench.planning import finish, plan, reading_of
from counterpoise.bench.showing import show_sheets
from counterpoise.console import say, show_json, show_table
from counterpoise.errors import ConfigError, check_choice
from counterpoise.options import (
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
    words,
)
from counterpoise.words import BenchBackbone, Protocol

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
    from counterpoise.bench.layouts import as_csv, as_latex, as_markdown, as_terminal
    from counterpoise.bench.layouts import as_json as to_json
    from counterpoise.bench.summary import check_metrics, summarise
    from counterpoise.persistence import write_text

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
            say(f"\n{title}")
            if columns:
                show_table(columns, rows)
            say("\n".join(notes))
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
