"""`counterpoise tune`: search the settings of a method by the debiased validation risk."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from counterpoise.cli.console import print_line, progress_bar, show_json, show_table
from counterpoise.cli.options import (
    ClusterOptions,
    DataOptions,
    HoldoutOptions,
    LogColumns,
    MethodOptions,
    OptionGroup,
    OutputOptions,
    fit_config,
    option,
    with_options,
)
from counterpoise.config import Space
from counterpoise.errors import RESUME_ADVICE, stoppable

if TYPE_CHECKING:
    from counterpoise.evaluation.estimates import ParallelMap
    from counterpoise.runs import FitConfig
    from counterpoise.tuning.result import Trial

SEARCH_HELP = "Search this range of a setting: name=low:high, name=low:high:log or name=a,b,c; may be repeated."
BEST, TRIALS, STUDY = "best.toml", "trials.csv", "study.db"


@dataclass(frozen=True)
class SearchOptions(OptionGroup):
    """What is searched, and how each trial is judged."""

    panel = "Method"
    trials: Annotated[int, option("Try this many configurations, those tried before included.", metavar="NUMBER")] = 20
    space: Annotated[
        Space,
        option(
            "Search the usual settings (default), those of the paper (paper), or those of --search alone (own).",
            metavar="NAME",
        ),
    ] = "default"
    search: Annotated[list[str] | None, option(SEARCH_HELP, metavar="NAME=RANGE")] = None
    folds: Annotated[
        int, option("Cut the log into this many parts, each held out once.", metavar="NUMBER", panel="Evaluation")
    ] = 5
    eval_folds: Annotated[
        int | None,
        option("Judge each trial on this many of these parts.", metavar="NUMBER", shown="all", panel="Evaluation"),
    ] = None
    parallel_trials: Annotated[int, option("Fit this many trials side by side.", metavar="NUMBER", panel="Scale")] = 1
    storage: Annotated[
        str | None,
        option("Keep the trials in this Optuna storage.", metavar="URL", shown="OUT/study.db", panel="Output"),
    ] = None


@with_options
def tune(
    data: DataOptions,
    columns: LogColumns,
    holdout: HoldoutOptions,
    method: MethodOptions,
    search: SearchOptions,
    output: OutputOptions,
    cluster: ClusterOptions,
    out: Annotated[
        Path | None,
        option("Write the results to this folder.", metavar="FOLDER", shown="runs/tune-DATA-METHOD", panel="Output"),
    ] = None,
) -> None:
    """Search the settings of a method that predict held-out rows best, weighted to stand for all pairs.

    Trials are never judged by the test, nor by rows of --holdout: these are left for `fit --config OUT/best.toml`.

    For example:
        counterpoise tune ratings.csv --threshold 4 --trials 40
        counterpoise tune coat --method skb-dr --space own --search l2=1e-6:1e-3:log
        counterpoise fit --config runs/tune-ratings-counterpoise/best.toml
    """
    configuration = fit_config(method, data, columns, holdout, cluster)

    from counterpoise.cli.describe import read_line
    from counterpoise.data.files import title_of
    from counterpoise.runs import prepare
    from counterpoise.storage import check_folder, exclusive_use
    from counterpoise.tuning.search_space import parse_words
    from counterpoise.tuning.study import load_optuna, reporting_storage
    from counterpoise.tuning.tune import tune as search_settings

    load_optuna()
    own_space = parse_words(search.search or [])
    if out is not None:
        check_folder(out)
    feedback_given, engine = configuration.feedback is not None, configuration.engine
    configuration, dataset = prepare(configuration.model_copy(update={"engine": "local"}))  # Ray fits folds, reads none
    configuration = configuration.model_copy(update={"engine": engine})
    method_name = str(configuration.method)
    title = f"{title_of(configuration.data)}-{method_name}"
    out = out or Path("runs") / f"tune-{title}"
    check_folder(out)
    log, unbiased, announced = dataset.train, dataset.probe, read_line(dataset, feedback_given)
    del dataset  # and with it the test, which must not be used below
    out.mkdir(parents=True, exist_ok=True)
    own_storage = search.storage is None
    storage = search.storage or f"sqlite:///{(out / STUDY).as_posix()}"
    with (
        folds_on_ray(configuration) as parallel_map,
        progress_bar(f"tuning {method_name}", output.visible) as progress,
        stoppable(f"Trials that are done are in {out}: {RESUME_ADVICE}"),
        reporting_storage(storage),
        exclusive_use(out) if own_storage else nullcontext(),
    ):
        found = search_settings(
            log,
            method_name,
            search.trials,
            probe=unbiased,
            settings=configuration.settings,
            space=search.space,
            search=own_space,
            folds=search.folds,
            eval_folds=search.eval_folds,
            seed=configuration.seed,
            storage=storage,
            name=title,
            exclusive=own_storage,
            parallel_trials=search.parallel_trials,
            progress=progress,
            callback=lambda done: write_files(out, configuration, done),
            parallel_map=parallel_map,
        )
    write_files(out, configuration, found.trials)
    if output.as_json:
        show_json({"out": str(out), "best": str(out / BEST), **found.to_dict()})
    if not output.visible:
        return
    print_line(f"{announced}\n{judged_by(found.validation)}")
    if found.settings:
        show_table(
            ["setting", "best"],
            [[key, f"{value:.4g}" if isinstance(value, float) else value] for key, value in found.settings.items()],
        )
    print_line(found.summary())
    print_line(f"Next: counterpoise fit --config {out / BEST}")


def judged_by(validation: Mapping[str, Any]) -> str:
    """What trials were judged by."""
    rows, size = validation["held_out_rows"], f"{validation['effective_sample_size']:,.0f}"
    if validation["measure"] != "log loss":
        by = f"Judged by where {rows:,} held-out clicks rank among all items, weighted by 1 / P(exposed) (worth {size} "
        return f"{by}clicks of equal weight): the risk is {validation['measure']}. The test was not looked at."
    probe = f" and {validation['probe_rows']:,} of the probe" if validation["probe_rows"] else ""
    judged = f"Judged by {rows:,} held-out rows{probe}, weighted to stand for all pairs ({size} of equal weight)"
    return f"{judged}; the test was not looked at."


@contextmanager
def folds_on_ray(configuration: FitConfig) -> Iterator[ParallelMap | None]:
    """What fits the folds of a trial: Ray tasks with --engine ray, else None for this process."""
    if configuration.engine == "local":
        yield None
        return
    from counterpoise.out_of_core.engines import Tasks, connected

    with connected(configuration.address, configuration.workers) as ray:
        yield Tasks(ray)


def write_files(out: Path, configuration: FitConfig, trials: tuple[Trial, ...]) -> None:
    """Write the trials as a table, and the best configuration so far; each file is replaced atomically."""
    from counterpoise.runs import to_toml
    from counterpoise.storage import write_text
    from counterpoise.tuning.result import best_trial

    write_text(out / TRIALS, trials_table(trials))
    if any(trial.state == "complete" for trial in trials):
        settings = configuration.settings | best_trial(trials).settings
        write_text(out / BEST, to_toml(configuration.model_copy(update={"settings": settings})))


def trials_table(trials: tuple[Trial, ...]) -> str:
    """CSV with a row for each trial and a column for each setting that was searched."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    facts = ["number", "state", "risk", "seconds", "default", "reason"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(facts + names)
    for trial in trials:
        table.writerow([getattr(trial, fact) for fact in facts] + [trial.settings.get(name) for name in names])
    return text.getvalue()
