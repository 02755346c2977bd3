"""`counterpoise fit`: train a recommender on a log, evaluate it on a test or a hold-out, and save it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from counterpoise.runs import Fitted


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
    settings = [f"{name}={value}" for name, value in training.given().items()]
    configuration = fit_config(method, data, columns, holdout, evaluation, scale, settings=settings)

    from counterpoise.data.files import title_of
    from counterpoise.runs import drop_stopped, fit_and_evaluate, prepare
    from counterpoise.storage import check_folder
    from counterpoise.training.events import by_epoch

    if output.out is not None:
        check_folder(output.out)
    feedback_given = configuration.feedback is not None
    configuration, dataset = prepare(configuration)
    out = output.out or Path("runs") / f"{title_of(configuration.data)}-{configuration.method}"
    check_folder(out)
    with progress_bar(f"fitting {configuration.method}", output.visible) as progress:
        fitted = fit_and_evaluate(configuration, by_epoch(progress), out, output.resume, dataset)
    fitted.model.save(out, **fitted.facts())
    drop_stopped(configuration, out)
    plain = next((found for name, found in fitted.baseline_models.items() if name != "popularity"), True)
    page = None
    if output.report:
        page = report_beside(out, fitted.model, fitted.dataset, plain, visible=output.visible)
    if output.as_json:
        own = {"configuration": fitted.model.to_config(), "parts": fitted.model.facts_}
        show_json({"run": str(out), "report": page and str(page), **own, **fitted.facts()})
    if output.visible:
        show_fit(fitted, out, page, feedback_given)


def show_fit(fitted: Fitted, out: Path, page: Path | None, feedback_given: bool) -> None:
    """Print what was read, what was corrected and how sure that is, how good the model is, and what to do next."""
    from counterpoise.cli import describe
    from counterpoise.data.feedback import words_of
    from counterpoise.runs import counted

    configuration, model, dataset = fitted.configuration, fitted.model, fitted.dataset
    method, known, words = str(configuration.method), dataset.description, words_of(dataset.train.feedback)
    kinds = {"trained_on": known["feedback"], "feedback": known.get("test_feedback")}
    read = describe.read_lines(dataset, feedback_given)
    if dataset.test is not None:
        read += describe.evaluated_on(known | kinds, configuration.test_kind is not None)
    print_line(describe.bullets("What was read", read))
    corrected = describe.fit_lines(model.facts_, len(model.ratio_))
    if configuration.users or configuration.items:
        corrected += describe.features_lines(model)
    corrected = [words(line) for line in corrected]
    epochs = counted(model.history_.best_epoch, "epoch")
    title = f"\nWhat was corrected ({method}, fitted in {fitted.seconds:.1f} s, {epochs})"
    print_line(describe.bullets(title, corrected))
    width, fancy = canvas()
    if imbalances := fitted.imbalances():
        print_line("")
        show_picture(love_lines(imbalances, "How the log differs from all pairs", width, fancy=fancy))
    print_line("\nHow good it is")
    if fitted.evaluation is None:
        print_line(describe.wrapped(fitted.unweighted or describe.NOT_EVALUATED))
    else:
        found = fitted.evaluation
        weighted = hasattr(found, "naive")
        verdict = describe.comparison_line(fitted.differences, known["feedback"], found.k)
        if verdict is not None:
            print_line(verdict)
        protocol, by = configuration.protocol, known.get("by")
        print_line(describe.wrapped(describe.evaluation_title(known["test_sample"], protocol, by, weighted, kinds)))
        print_line("\n".join(describe.beside_baselines(method, found, fitted.baselines, fitted.differences)))
        notes = [words(note) for note in describe.table_notes(found)]
        if fitted.unweighted is not None:
            notes.append(f"No weighted estimates: {fitted.unweighted}")
        print_line(describe.bullets("", notes))
    if fitted.truth is not None:
        print_line(describe.truth_line(fitted.truth))
    report = f"counterpoise report {out}" if page is None else f"open {page} in a browser"
    print_line(f"\nSaved in {out}. Next:\n  {report}\n  counterpoise recommend {out} --k 10 --out recs.csv")
