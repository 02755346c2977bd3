"""`counterpoise fit`: train a recommender on a log, evaluate it where there are unbiased ratings, and save it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import canvas, progress_bar, say, show_json, show_picture
from counterpoise.cli.options import (
    Address,
    Cache,
    Data,
    Empty,
    EngineWord,
    Folder,
    ItemCol,
    ItemFile,
    Json,
    Memory,
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
    TopK,
    UserCol,
    UserFile,
    Workers,
)
from counterpoise.cli.report import report_beside


def fit(
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run.", show_default="runs/DATA-METHOD")] = None,
    method: Method = None,
    probe: ProbeFile = None,
    test: Annotated[str | None, typer.Option(help="File with unbiased ratings to evaluate on.")] = None,
    users: UserFile = None,
    items: ItemFile = None,
    config: Annotated[Path | None, typer.Option(help="TOML file, or a run to repeat; flags override it.")] = None,
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
    seed: Annotated[int | None, typer.Option(help="Draws probe, start and batches.", show_default="0")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the log.")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Rows a step, full or auto.", show_default="auto")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop early after so many worse epochs.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")] = None,
    backbone: Annotated[str | None, typer.Option(help="mf or ncf.", show_default="mf")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as name=value.")] = None,
    k: TopK = None,
    empty_users: Empty = None,
    report: Annotated[bool, typer.Option("--report", help="Also write OUT/report.html.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a long fit that was stopped.")] = False,
    memory: Memory = None,
    engine: EngineWord = None,
    workers: Workers = None,
    address: Address = None,
    cache: Cache = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a recommender on a biased log, evaluate it on unbiased ratings where there are some, and save it."""
    from counterpoise.runs import FitConfig, parse_settings, resolve

    arguments = locals()
    shortcuts = ("epochs", "batch_size", "learning_rate", "patience", "device", "backbone")
    given = [f"{name}={arguments[name]}" for name in shortcuts if arguments[name] is not None]
    flags = {name: arguments[name] for name in FitConfig.model_fields if name in arguments and name != "settings"}
    configuration = resolve(config, flags, parse_settings([*(settings or []), *given]))

    from counterpoise.cli.describe import features_lines, fit_lines, truth_line
    from counterpoise.data.files import title_of
    from counterpoise.plots.text import love_lines
    from counterpoise.runs import drop_stopped, fit_and_evaluate
    from counterpoise.storage import check_folder
    from counterpoise.training.checkpoint import FILE

    out = out or Path("runs") / f"{title_of(configuration.data)}-{configuration.method}"
    check_folder(out)
    with progress_bar(f"fitting {configuration.method}", not (as_json or quiet)) as progress:
        fitted = fit_and_evaluate(configuration, progress, out, resume)
    fitted.model.save(out, **fitted.facts())
    (out / FILE).unlink(missing_ok=True)
    drop_stopped(configuration, out)
    shown = not (as_json or quiet)
    page = report_beside(out, fitted.model, fitted.dataset, wanted=shown) if report else None
    if as_json:
        own = {"configuration": fitted.model.to_config(), "parts": fitted.model.facts_}
        show_json({"run": str(out), "report": page and str(page), **own, **fitted.facts()})
    if as_json or quiet:
        return
    say(f"{fitted.dataset.name}: {fitted.dataset.train}")
    say(f"Fitted {configuration.method} in {fitted.seconds:.1f} s, {fitted.model.history_.best_epoch} epochs.")
    said = fit_lines(fitted.model.facts_, len(fitted.model.ratio_))
    if configuration.users or configuration.items:
        said += features_lines(fitted.model)
    say("\n".join(said))
    width, fancy = canvas()
    show_picture(love_lines(fitted.imbalances(), "Logged pairs against all pairs", width, fancy=fancy))
    if fitted.evaluation is None:
        say("No unbiased ratings to evaluate on. Give some with --test FILE.")
    else:
        say(f"On unbiased ratings ({configuration.protocol} protocol):\n\n{fitted.evaluation}\n")
    if fitted.truth is not None:
        say(truth_line(fitted.truth))
    look = f"counterpoise report {out}" if page is None else f"look at {page} in a browser"
    say(f"Saved in {out}. Next: {look}, or counterpoise recommend {out} --out recs.csv")
