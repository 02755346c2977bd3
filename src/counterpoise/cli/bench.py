"""`counterpoise bench`: parse, make the fits that the results folder lacks, print and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import print_line, progress_bar, show_json, show_table
from counterpoise.cli.options import (
    Address,
    HoldoutOptions,
    LogColumns,
    OptionGroup,
    OutputOptions,
    PairColumns,
    RatingCol,
    Repeated,
    TimestampCol,
    command,
    flag,
    option,
    with_options,
    words,
)
from counterpoise.config import BenchPreset, EngineName
from counterpoise.data.protocols import find_protocol
from counterpoise.errors import RESUME_ADVICE, ConfigError, check_choice, check_number, did_you_mean, stoppable

if TYPE_CHECKING:
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.store import Task
    from counterpoise.bench.tables import Sheet

app = typer.Typer(help="The paper's table and figures, honest, with tests of significance.", no_args_is_help=True)
LISTS = ("--datasets", "--methods", "--values", "--metrics", "--matrices", "--estimators")  # may be written with spaces
PRESETS: dict[str, list[BenchPreset]] = {"default": ["default"], "paper": ["paper"], "both": ["default", "paper"]}
Datasets = Annotated[
    str,
    option(
        "Use these datasets or files: coat, yahoo-r3, kuairec, music-like, ...; paper: its three, or their stand-ins.",
        metavar="NAMES",
        panel="Data",
    ),
]
Methods = Annotated[
    str,
    option(
        "Fit these methods: names, all, paper, baselines, balancing, or module:function.",
        metavar="NAMES",
        panel="Method",
    ),
]
Seeds = Annotated[
    int,
    option(
        "Repeat with this many seeds; each draws probe, initial model and batches for all methods.",
        metavar="NUMBER",
        panel="Evaluation",
    ),
]
Preset = Annotated[
    BenchPreset,
    option(
        "Take our settings (default), or those of the paper's experiment (paper); --set changes either.",
        metavar="NAME",
        panel="Method",
    ),
]


@dataclass(frozen=True)
class RunOptions(OptionGroup):
    """How fits are made and where their results are stored."""

    panel = "Scale"
    jobs: Annotated[int, option("Fit in this many processes, which changes the time alone.", metavar="NUMBER")] = 1
    engine: Annotated[
        EngineName | None,
        option("Fit in processes of this machine (local), or in tasks of Ray (ray).", metavar="ENGINE", shown="local"),
    ] = None
    address: Address = None
    out: Annotated[
        Path,
        option("Keep results in this folder; fits that are in it are not repeated.", metavar="FOLDER", panel="Output"),
    ] = Path("results")
    retry: Annotated[bool, flag("Fit again what failed.", "--retry", "Output")] = False

    def fit(self, jobs: Sequence[Task], visible: bool, name: str = "fitting") -> list[dict[str, Any]]:
        """The rows of results of all jobs, after the missing ones were made."""
        from counterpoise.bench.runner import run
        from counterpoise.bench.store import Store

        store = Store(self.out)
        if self.retry:
            store.delete_failures(jobs)
        advice = f"Fits that are done are in {self.out}: {RESUME_ADVICE}"
        with progress_bar(name, visible, counting=True) as bar, stoppable(advice):
            run(jobs, store, self.jobs, bar, self.engine or "local", self.address)
        return store.read_all(jobs)


@dataclass(frozen=True)
class RatingFile(PairColumns):
    """How the file of the bias study is read."""

    rating_col: RatingCol = None
    timestamp_col: TimestampCol = None
    duplicates: Repeated = None


@dataclass(frozen=True)
class FitOptions(LogColumns, HoldoutOptions):
    """What all fits of an experiment have in common."""

    panel = "Data"

    settings: Annotated[
        list[str] | None,
        option("Change a setting of all methods; may be repeated.", "--set", metavar="NAME=VALUE", panel="Method"),
    ] = None

    def plan(
        self, datasets: str, methods: str, seeds: int, presets: Sequence[BenchPreset], protocols: Sequence[str]
    ) -> tuple[list[Job], list[dict[str, str]]]:
        """The fits of every method on every dataset, both lists separated by commas; and the datasets not found."""
        from counterpoise.bench.jobs import plan
        from counterpoise.runs import parse_settings

        names, settings = (words(datasets) or [], words(methods) or []), parse_settings(self.settings or [])
        own = ("threshold", "settings", "feedback")
        reading = {name: value for name, value in self.given().items() if name not in own}
        common: dict[str, Any] = {"threshold": self.threshold, "settings": settings, "read_options": reading}
        common["feedback"] = self.feedback
        planned, missing = plan(*names, seeds, presets, protocols, **common)
        if missing and not planned:
            ways = " ".join(f"{absent['dataset']} is missing. {absent['missing']}" for absent in missing)
            raise ConfigError(f"`datasets` names nothing that is here: {ways}")
        return planned, missing


def show_sheets(
    sheets: list[Sheet],
    missing: list[dict[str, str]],
    files: Path | None,
    output: OutputOptions,
    pictures: Sequence[Path] = (),
) -> None:
    """Print sheets and write them to `files`.md, .json and .csv; without `files`, nothing is written."""
    from counterpoise.bench.tables import write_sheets

    paths = [*write_sheets(sheets, files.parent, files.name), *pictures] if files else []
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
        if files and paths:
            print_line(f"Written to {files.parent}: {', '.join(sorted(path.name for path in paths))}")


@command(app)
@with_options
def table(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    datasets: Datasets = "coat",
    methods: Methods = "all",
    seeds: Seeds = 10,
    preset: Annotated[
        str,
        option(
            "Take our settings (default), those of the paper's experiment (paper), or both.",
            metavar="NAME",
            panel="Method",
        ),
    ] = "default",
    protocol: Annotated[
        str,
        option("Evaluate by this protocol of `counterpoise bench protocols`.", metavar="NAME", panel="Evaluation"),
    ] = "honest",
    baseline: Annotated[
        str | None,
        option(
            "Test all methods against this one.",
            metavar="NAME",
            shown="the best baseline of each block",
            panel="Evaluation",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        option(
            "Show these metrics: names, separated by commas.",
            metavar="NAMES",
            shown="auc,ndcg,f1; beside published numbers auc,ndcg_one,f1_one; others of clicks",
            panel="Evaluation",
        ),
    ] = None,
    tune: Annotated[
        int,
        option(
            "Search settings of each method inside the training log with this many trials.",
            metavar="NUMBER",
            panel="Method",
        ),
    ] = 0,
    name: Annotated[str, option("Begin the names of files with this.", metavar="NAME", panel="Output")] = "table",
) -> None:
    """The paper's Table 1: methods x datasets x seeds, with tests of significance from 5 seeds on.

    Published numbers stand beside ours only under the protocol of their own table, such as --protocol paper.
    Written to OUT as NAME.md, .tex, .csv and .json. Stop it at any time; the same command resumes. With --tune, the
    settings found for each method are written as NAME-settings.md, .csv and .json.

    For example:
        counterpoise bench table --datasets coat --methods mf,ips,skb-dr,counterpoise
        counterpoise bench table --datasets coat --methods all --seeds 10 --jobs 4
    """
    from counterpoise.bench.summary import baseline_title, check_metrics, summarise
    from counterpoise.bench.tables import FORMATS, as_terminal
    from counterpoise.bench.tuning import table_note
    from counterpoise.storage import write_text

    chosen = None if metrics is None else check_metrics(words(metrics) or [])
    rules = find_protocol(protocol)
    check_number("tune", tune, at_least=0, integer=True)
    check_choice("preset", preset, PRESETS)
    planned, missing = fits.plan(datasets, methods, seeds, PRESETS[preset], [protocol])
    if baseline is not None:
        baseline = baseline_title(baseline, {job.method: job.bench_method.title for job in planned})
    notes, chosen = biased_tests(planned), chosen or usual_metrics(planned, rules.metrics)
    if tune:
        planned, failures = tuned(planned, tune, run, run.out / f"{name}-settings", output.visible)
        notes += [table_note(tune, f"{name}-settings.md", planned), *failures]
    found = summarise(run.fit(planned, output.visible), missing, chosen, notes=notes, baseline=baseline)
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
        found_settings = sorted(path.name for path in run.out.glob(f"{name}-settings.*") if tune)
        print_line(
            f"\nWritten to {run.out}: " + ", ".join([*(f"{name}.{ending}" for ending in FORMATS), *found_settings])
        )


def usual_metrics(jobs: Sequence[Job], metrics: Sequence[str]) -> list[str]:
    """The metrics of a table, by the kinds of its logs and tests; `metrics`: those of its protocol."""
    from counterpoise.bench.summary import METRICS_OF_CLICKS
    from counterpoise.evaluation.full_ranking import RANKING_METRIC_NAMES

    found: dict[str, None] = {}
    for job in {job.dataset: job for job in jobs}.values():
        general = job.kind == "clicks" and find_protocol(job.protocol).feedback is None
        tested = METRICS_OF_CLICKS if general else metrics
        found |= dict.fromkeys(RANKING_METRIC_NAMES if job.load().ranked else tested)
    return list(found)


def biased_tests(jobs: Sequence[Job]) -> list[str]:
    """Notes on datasets whose tests are not uniform."""
    loaded = {(job.dataset, job.protocol): job.load() for job in jobs if job.seed == 0}
    tests = {names: data.test for names, data in loaded.items() if not data.ranked}
    biased = sorted(names for names, test in tests.items() if test is not None and test.sample != "uniform")
    weighted = "weighted estimates over all pairs; they assume that selection follows what the weights balance"
    naive = "metrics of the pairs that users chose, not of all pairs"
    meaning = {protocol: naive if find_protocol(protocol).keeps_seen else weighted for _, protocol in biased}
    return [f"Biased test of {name} ({protocol} protocol): {meaning[protocol]}." for name, protocol in biased]


def with_notes(sheets: Sequence[Sheet], notes: Sequence[str]) -> list[Sheet]:
    """The sheets with further notes below each."""
    return [replace(sheet, notes=(*sheet.notes, *notes)) for sheet in sheets]


def tuned(jobs: list[Job], trials: int, run: RunOptions, files: Path, visible: bool) -> tuple[list[Job], Sequence[str]]:
    """The jobs with the settings that a search found for each method, which are written to `files`; failed searches."""
    from counterpoise.bench.tables import write_sheets
    from counterpoise.bench.tuning import failed_searches, settings_sheets, tuned_jobs, tuning_jobs
    from counterpoise.tuning.study import load_optuna

    load_optuna()
    studies = None if run.engine == "ray" else run.out / "studies"
    rows = run.fit(tuning_jobs(jobs, trials, studies), visible, "tuning")
    write_sheets(settings_sheets(rows), files.parent, files.name)
    return tuned_jobs(jobs, rows), failed_searches(rows)


@command(app)
@with_options
def sweep(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    parameter: Annotated[
        str,
        option(
            "Vary this setting: n_functions, strength, tolerance, bandwidth, or any other.",
            metavar="NAME",
            panel="Method",
        ),
    ],
    values: Annotated[
        str | None, option("Give the setting these values.", metavar="NUMBERS", shown="a usual range", panel="Method")
    ] = None,
    datasets: Datasets = "paper",
    methods: Annotated[
        str | None,
        option("Fit these methods, as in table.", metavar="NAMES", shown="those of the figure", panel="Method"),
    ] = None,
    seeds: Seeds = 5,
    preset: Preset = "default",
    metrics: Annotated[str, option("Draw these metrics.", metavar="NAMES", panel="Evaluation")] = "auc,ndcg",
    name: Annotated[
        str | None,
        option("Begin the names of files with this.", metavar="NAME", shown="sweep-PARAMETER", panel="Output"),
    ] = None,
) -> None:
    """A setting swept over values, as a picture with bands and as a table.

    The paper's Figure 1 is --parameter n_functions, its Figure 2 --parameter strength; --preset paper has its units.
    IPS and DR panels stand side by side for each dataset. A method without the setting is a horizontal line.

    For example:
        counterpoise bench sweep --parameter strength --datasets coat
        counterpoise bench sweep --parameter dim --values 4,8,16 --methods mf
    """
    from counterpoise import plots  # raises without matplotlib, before any fit
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.summary import check_metrics
    from counterpoise.bench.sweep import ADAPTIVE, FIGURES, axis_label, metric_titles, points, sheets, sweep_job

    known = FIGURES.get(parameter)
    if values is None and known is None:
        hint = did_you_mean(parameter, FIGURES)
        raise ConfigError(f"`values` must be given for {parameter!r}: {', '.join(FIGURES)} have defaults.{hint}")
    chosen: Sequence[float] = numbers("values", values) if values is not None else ()
    if values is None and known is not None:
        chosen = known.paper_values if preset == "paper" else known.values
    methods = methods or (known.methods if known else ADAPTIVE)
    drawn = check_metrics(words(metrics) or [])
    planned, missing = fits.plan(datasets, methods, seeds, [preset], ["honest"])
    grid = [pair for job in planned for pair in sweep_job(job, parameter, chosen)]
    if grid and all(value is None for _, value in grid):
        raise ConfigError(
            f"`parameter` must be a setting of a method, got {parameter!r}: see `counterpoise methods NAME`."
        )
    rows = run.fit([job for job, _ in grid], output.visible)
    found, failures = points([value for _, value in grid], rows, drawn), describe_failures(rows)
    if failures and not found:
        raise ConfigError(f"every fit failed. The first: {failures[0]}")
    label = axis_label(parameter, [job for job, value in grid if value is not None])
    files, pictures = run.out / (name or f"sweep-{parameter}"), []
    for kind in ("png", "svg") if found else ():
        pictures.append(run.out / f"{files.name}.{kind}")
        plots.save(plots.sweep(found, label, titles=metric_titles(found)), pictures[-1])
    tables = with_notes(sheets(found, parameter, failures), biased_tests(planned))
    show_sheets(tables, missing, files, output, pictures)


@command(app)
@with_options
def protocols(
    output: OutputOptions,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Show these protocols in detail.", metavar="NAMES...", show_default="a list of all"),
    ] = None,
    out: Annotated[
        Path | None,
        option("Write the tables to this folder.", metavar="FOLDER", shown="nothing is written", panel="Output"),
    ] = None,
) -> None:
    """List the evaluation protocols with what is published under each, and the constructions of the bias study.

    For example:
        counterpoise bench protocols
        counterpoise bench protocols d-dr cdr
    """
    from counterpoise.bench.bias import construction_sheet
    from counterpoise.bench.protocol import protocol_sheets

    sheets = protocol_sheets(names or [])
    show_sheets(sheets if names else [*sheets, construction_sheet()], [], out and out / "protocols", output)


@command(app)
@with_options
def protocol_effect(
    fits: FitOptions,
    run: RunOptions,
    output: OutputOptions,
    datasets: Datasets = "coat",
    methods: Methods = "mf,ips,dr-jl,akb-ips,akb-dr,skb-dr",
    seeds: Seeds = 10,
    preset: Preset = "default",
) -> None:
    """How much of a published number is protocol: honest and paper splits, and two rules for empty users.

    For example:
        counterpoise bench protocol-effect --datasets coat --seeds 5
    """
    from counterpoise.bench.jobs import describe_failures
    from counterpoise.bench.protocol import COMPARED, sheets

    planned, missing = fits.plan(datasets, methods, seeds, [preset], COMPARED)
    rows = run.fit(planned, output.visible)
    tables = with_notes(sheets(rows, describe_failures(rows)), biased_tests(planned))
    show_sheets(tables, missing, run.out / "protocol-effect", output)


@command(app)
@with_options
def bias(
    columns: RatingFile,
    output: OutputOptions,
    data: Annotated[
        str | None,
        option(
            "Study this file of ratings, or a dataset such as ml-100k or coat.",
            metavar="DATA",
            shown="simulated",
            panel="Data",
        ),
    ] = None,
    protocol: Annotated[
        str,
        option(
            "Construct the known truth from ratings (schnabel) or from labels (mrdr).",
            metavar="NAME",
            panel="Evaluation",
        ),
    ] = "schnabel",
    estimators: Annotated[str, option("Study these risk estimators.", metavar="NAMES", panel="Method")] = "all",
    matrices: Annotated[
        str,
        option(
            "Study these predictions: one, three, four (or five), rotate, skew, crs, or all.",
            metavar="NAMES",
            panel="Method",
        ),
    ] = "all",
    repeats: Annotated[
        int, option("Draw this many logs from the known propensities.", metavar="NUMBER", panel="Evaluation")
    ] = 10,
    error: Annotated[
        str | None,
        option(
            "Take this error of a prediction: absolute, squared or log.",
            metavar="NAME",
            shown="absolute; of mrdr log",
            panel="Evaluation",
        ),
    ] = None,
    imputation: Annotated[
        str, option("Impute by this in DR: constant, learned, or cross-fitted.", metavar="NAME", panel="Method")
    ] = "constant",
    beta: Annotated[
        float | None,
        option(
            "Mix noisy propensities with this share of the truth.",
            metavar="SHARE",
            shown="drawn for each pair; of mrdr 0.5",
            panel="Method",
        ),
    ] = None,
    methods: Annotated[
        str, option("Train these methods on simulated logs: names, all, or none.", metavar="NAMES", panel="Method")
    ] = "all",
    seeds: Annotated[int, option("Train them on this many simulated logs.", metavar="NUMBER", panel="Evaluation")] = 4,
    seed: Annotated[int, option("Begin all random draws from this number.", metavar="NUMBER", panel="Data")] = 0,
    out: Annotated[Path, option("Write the tables to this folder.", metavar="FOLDER", panel="Output")] = Path(
        "results"
    ),
) -> None:
    """How far each estimate of the ideal loss is from the truth, where ratings and propensities of all pairs are known.

    Six predictions that are wrong in six ways, by either public construction (`counterpoise bench protocols`), then
    trained predictors on simulated logs.
    Stop it at any time; the same command resumes.

    For example:
        counterpoise bench bias
        counterpoise bench bias --data ratings.csv --methods none
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
            how: dict[str, Any] = {"protocol": protocol, "error": error, "imputation": imputation, "beta": beta}
            rows = study(log, *what, bar, **how, store=store)
        found = [study_sheet(rows, data or "simulated preferences", protocol, error)]
        if names != ["none"]:
            with progress_bar("fitting", output.visible, counting=True) as bar:
                found.append(fitted_sheet(fitted(names, seeds, bar, store)))
    show_sheets(
        found,
        [],
        out / "-".join(["bias", *([Path(data).stem] if data else []), *([protocol] * (protocol != "schnabel"))]),
        output,
    )


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
