"""`counterpoise tune`: parse, search, write, print."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.console import progress_bar, say, show_json, show_table
from counterpoise.cli.options import (
    Address,
    Data,
    EngineWord,
    Folder,
    ItemCol,
    ItemFile,
    Json,
    Method,
    ProbeFile,
    ProbeFraction,
    PropensityCol,
    Quiet,
    RatingCol,
    Repeated,
    Separator,
    Split,
    Threshold,
    TimestampCol,
    UserCol,
    UserFile,
    Workers,
)
from counterpoise.config import Space
from counterpoise.errors import GO_ON, stoppable

if TYPE_CHECKING:
    from counterpoise.evaluation.estimates import Spread
    from counterpoise.runs import FitConfig
    from counterpoise.tuning.study import Trial

BEST, TRIALS, STUDY = "best.toml", "trials.csv", "study.db"
SEARCH_HELP = "Search name=low:high, name=low:high:log or name=a,b,c."


def tune(
    data: Data = None,
    method: Method = None,
    trials: Annotated[int, typer.Option(help="Configurations to try, with those tried before.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder.", show_default="runs/tune-DATA-METHOD")] = None,
    space: Annotated[Space, typer.Option(help="What is searched; own: --search alone.")] = "default",
    search: Annotated[list[str] | None, typer.Option(help=SEARCH_HELP)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Fix a setting, as name=value.")] = None,
    folds: Annotated[int, typer.Option(help="Parts of the log, each held out once.")] = 5,
    rounds: Annotated[int | None, typer.Option(help="Folds that judge.", show_default="all")] = None,
    at_once: Annotated[int, typer.Option(help="Trials proposed together and fitted side by side.")] = 1,
    storage: Annotated[str | None, typer.Option(help="Optuna URL.", show_default="OUT/study.db")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, or a run; flags override it.")] = None,
    probe: ProbeFile = None,
    test: Annotated[str | None, typer.Option(help="File to draw a probe from; else not looked at.")] = None,
    users: UserFile = None,
    items: ItemFile = None,
    path: Folder = None,
    protocol: Split = None,
    threshold: Threshold = None,
    duplicates: Repeated = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    timestamp_col: TimestampCol = None,
    propensity_col: PropensityCol = None,
    separator: Separator = None,
    probe_fraction: ProbeFraction = None,
    seed: Annotated[int | None, typer.Option(help="Of probe, folds, search and fits.", show_default="0")] = None,
    engine: EngineWord = None,
    workers: Workers = None,
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search the settings of a method for the least debiased validation risk. The test is never looked at."""
    from counterpoise.runs import FitConfig, parse_settings, resolve

    arguments = locals()
    flags = {name: arguments[name] for name in FitConfig.model_fields if name in arguments and name != "settings"}
    configuration = resolve(config, flags, parse_settings(settings or []))

    from counterpoise.data.files import title_of
    from counterpoise.runs import load_data
    from counterpoise.storage import alone, check_folder
    from counterpoise.tuning.search_space import parse_words
    from counterpoise.tuning.study import load_optuna, reporting_storage
    from counterpoise.tuning.tune import tune as search_settings

    load_optuna()
    own = parse_words(search or [])
    title = f"{title_of(configuration.data)}-{configuration.method}"
    out = out or Path("runs") / f"tune-{title}"
    check_folder(out)
    dataset = load_data(configuration.model_copy(update={"engine": "local"}))  # Ray has the folds, not the rows
    log, unbiased, name = dataset.train, dataset.probe, dataset.name
    del dataset  # with the test, which has no say in what follows
    out.mkdir(parents=True, exist_ok=True)
    guard = alone(out) if storage is None else nullcontext()
    own_storage, storage = storage is None, storage or f"sqlite:///{(out / STUDY).as_posix()}"
    visible, kept = not (as_json or quiet), f"Trials that are done are in {out}: {GO_ON}"
    with (
        spread_over(configuration) as spread,
        progress_bar(f"tuning {configuration.method}", visible) as progress,
        stoppable(kept),
        reporting_storage(storage),
        guard,
    ):
        found = search_settings(
            log,
            configuration.method,
            trials,
            probe=unbiased,
            settings=configuration.settings,
            space=space,
            search=own,
            folds=folds,
            rounds=rounds,
            seed=configuration.seed,
            storage=storage,
            name=title,
            alone=own_storage,
            at_once=at_once,
            progress=progress,
            after=lambda done: write_files(out, configuration, done),
            spread=spread,
        )
    write_files(out, configuration, found.trials)
    if as_json:
        show_json({"out": str(out), "best": str(out / BEST), **found.to_dict()})
    if as_json or quiet:
        return
    judges = found.judges
    say(f"{name}: {log}")
    say(
        f"Judged by {judges['held_out_rows']:,} held-out rows, worth {judges['effective_sample_size']:,.0f} uniform "
        f"ones, and {judges['probe_rows']:,} of the probe; the test was not looked at."
    )
    if found.settings:
        show_table(
            ["setting", "best"],
            [[key, f"{value:.4g}" if isinstance(value, float) else value] for key, value in found.settings.items()],
        )
    say(found.summary())
    say(f"Next: counterpoise fit --config {out / BEST}")


@contextmanager
def spread_over(configuration: FitConfig) -> Iterator[Spread | None]:
    """Who fits the folds of a trial: tasks of Ray where they are asked for, else nobody but this process."""
    if configuration.engine == "local":
        yield None
        return
    from counterpoise.out_of_core.engines import Tasks, connected

    with connected(configuration.address, configuration.workers) as ray:
        yield Tasks(ray)


def write_files(out: Path, configuration: FitConfig, trials: tuple[Trial, ...]) -> None:
    """The trials as a table, and the best configuration so far; each file is whole at any moment."""
    from counterpoise.runs import to_toml
    from counterpoise.storage import write_text
    from counterpoise.tuning.study import best_of

    write_text(out / TRIALS, trials_table(trials))
    if any(trial.state == "complete" for trial in trials):
        settings = configuration.settings | best_of(trials).settings
        write_text(out / BEST, to_toml(configuration.model_copy(update={"settings": settings})))


def trials_table(trials: tuple[Trial, ...]) -> str:
    """CSV: a row for each trial, a column for each setting that was searched."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    facts = ["number", "state", "risk", "seconds", "default", "reason"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(facts + names)
    for trial in trials:
        table.writerow([getattr(trial, fact) for fact in facts] + [trial.settings.get(name) for name in names])
    return text.getvalue()
