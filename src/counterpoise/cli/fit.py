"""`counterpoise fit`: train a recommender on a log, evaluate it on a test or a hold-out, and save it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from counterpoise.cli.console import canvas, love_lines, print_line, progress_bar, show_json, show_picture
from counterpoise.cli.options import (
    DataOptions,
    EvaluationOptions,
    HoldoutOptions,
    LogColumns,
    MethodOptions,
    OptionGroup,
    OutputOptions,
    ScaleOptions,
    fit_config,
    flag,
    option,
    with_options,
)
from counterpoise.cli.report import report_beside


@dataclass(frozen=True)
class TrainingOptions(OptionGroup):
    """Settings that have an option of their own beside --set."""

    panel = "Method"
    epochs: Annotated[int | None, option("Pass over the log this many times.", metavar="NUMBER", shown="by method")] = (
        None
    )
    batch_size: Annotated[
        str | None, option("Train on this many rows in a step: a number, full or auto.", metavar="ROWS", shown="auto")
    ] = None
    learning_rate: Annotated[
        float | None, option("Train with this learning rate of Adam.", metavar="RATE", shown="by method")
    ] = None
    patience: Annotated[
        int | None,
        option("Stop after this many epochs without a lower risk on rows held out.", metavar="NUMBER", shown="never"),
    ] = None
    device: Annotated[
        str | None, option("Train on this device: auto, cpu or cuda.", metavar="DEVICE", shown="auto")
    ] = None
    backbone: Annotated[
        str | None, option("Predict with this model: mf, ncf or popularity.", metavar="NAME", shown="mf")
    ] = None


@dataclass(frozen=True)
class FitOutput(OutputOptions):
    """Where the run is written."""

    out: Annotated[Path | None, option("Save the run in this folder.", metavar="FOLDER", shown="runs/DATA-METHOD")] = (
        None
    )
    report: Annotated[bool, flag("Write a report too, OUT/report.html.", "--report")] = False
    resume: Annotated[bool, flag("Continue a long fit that was stopped.", "--resume")] = False


@with_options
def fit(
    data: DataOptions,
    columns: LogColumns,
    method: MethodOptions,
    training: TrainingOptions,
    holdout: HoldoutOptions,
    evaluation: EvaluationOptions,
    output: FitOutput,
    scale: ScaleOptions,
) -> None:
    """Train a recommender on a biased log, evaluate it on a test or on rows held out, and save it.

    For example:
        counterpoise fit ratings.csv --threshold 4 --holdout 0.2 --report
        counterpoise fit ratings.csv --threshold 4 --probe uniform.csv --out runs/mine
        counterpoise fit clicks.csv --feedback clicks --holdout 0.2 --by leave-last
    """
    words = [f"{name}={value}" for name, value in training.given().items()]
    configuration = fit_config(method, data, columns, holdout, evaluation, scale, settings=words)

    from counterpoise.data.feedback import words_of
    from counterpoise.data.files import title_of
    from counterpoise.runs import drop_stopped, fit_and_evaluate, prepare
    from counterpoise.storage import check_folder
    from counterpoise.training.events import by_epoch

    if output.out is not None:
        check_folder(output.out)
    told = configuration.feedback is not None
    configuration, dataset = prepare(configuration)
    out = output.out or Path("runs") / f"{title_of(configuration.data)}-{configuration.method}"
    check_folder(out)
    with progress_bar(f"fitting {configuration.method}", output.visible) as progress:
        fitted = fit_and_evaluate(configuration, by_epoch(progress), out, output.resume, dataset)
    fitted.model.save(out, **fitted.facts())
    drop_stopped(configuration, out)
    page = report_beside(out, fitted.model, fitted.dataset, visible=output.visible) if output.report else None
    if output.as_json:
        own = {"configuration": fitted.model.to_config(), "parts": fitted.model.facts_}
        show_json({"run": str(out), "report": page and str(page), **own, **fitted.facts()})
    if not output.visible:
        return
    from counterpoise.cli.describe import (
        NOT_EVALUATED,
        beside_baselines,
        evaluated_on,
        evaluation_title,
        features_lines,
        fit_lines,
        read_line,
        truth_line,
    )

    print_line(read_line(fitted.dataset, told))
    if "item_names" in fitted.dataset.description:
        print_line(f"Names: {fitted.dataset.description['item_names']}.")
    print_line(f"Fitted {configuration.method} in {fitted.seconds:.1f} s, {fitted.model.history_.best_epoch} epochs.")
    lines = fit_lines(fitted.model.facts_, len(fitted.model.ratio_))
    if configuration.users or configuration.items:
        lines += features_lines(fitted.model)
    print_line("\n".join(lines))
    width, fancy = canvas()
    show_picture(love_lines(fitted.imbalances(), "Logged pairs against all pairs", width, fancy=fancy))
    if fitted.evaluation is None:
        print_line(fitted.unweighted or NOT_EVALUATED)
    else:
        known = fitted.dataset.description
        kinds = {"trained_on": known["feedback"], "feedback": known["test_feedback"]}
        print_line("\n".join(evaluated_on(known | kinds, configuration.test_kind is not None)))
        weighted = hasattr(fitted.evaluation, "naive")
        title = evaluation_title(known["test_sample"], configuration.protocol, known.get("by"), weighted, kinds)
        print_line(f"{title}\n\n{words_of(known['feedback'])(str(fitted.evaluation))}\n")
        if fitted.baselines:
            models = {str(configuration.method): fitted.evaluation, **fitted.baselines}
            print_line("\n".join(beside_baselines(models)) + "\n")
        if fitted.unweighted is not None:
            print_line(f"No weighted estimates: {fitted.unweighted}")
    if fitted.truth is not None:
        print_line(truth_line(fitted.truth))
    next_step = f"counterpoise report {out}" if page is None else f"open {page} in a browser"
    print_line(f"Saved in {out}. Next: {next_step}, or counterpoise recommend {out} --out recs.csv")
