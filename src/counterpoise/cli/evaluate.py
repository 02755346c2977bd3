"""`counterpoise evaluate`: metrics of a saved run on other ratings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import working
from counterpoise.cli.options import (
    PATH_HELP,
    PATH_SHOWN,
    EvaluationOptions,
    LogColumns,
    OptionGroup,
    OutputOptions,
    Run,
    TestOptions,
    option,
    with_options,
)


@dataclass(frozen=True)
class WeightOptions(OptionGroup):
    """How biased ratings are weighted."""

    panel = "Evaluation"
    weights: Annotated[
        str | None,
        option(
            "Weight biased ratings to estimate metrics over all pairs: by balanced, logistic, propensity, popularity, "
            "naive-bayes or known (--propensity-col) weights, or not at all (none).",
            metavar="NAME",
            shown="balanced for biased ratings",
        ),
    ] = None


@dataclass(frozen=True)
class SplitOptions(OptionGroup):
    """Which part of the ratings is the test."""

    panel = "Data"
    path: Annotated[str | None, option(PATH_HELP, metavar="FOLDER", shown=PATH_SHOWN)] = None
    protocol: Annotated[
        str | None,
        option(
            "Leave out pairs that the model was trained on (honest), or count them (paper).",
            metavar="NAME",
            shown="of the run",
        ),
    ] = None
    seed: Annotated[int | None, option("Split a named dataset by this seed.", metavar="NUMBER", shown="of the run")] = (
        None
    )
    memory: Annotated[
        str | None, option("Refuse a test of many files that needs more memory.", metavar="SIZE", shown="4GB")
    ] = None


@with_options
def evaluate(
    run: Run,
    test: Annotated[
        str,
        typer.Argument(
            help="Ratings to evaluate on: a file, folder or glob, or the name of a dataset.", metavar="TEST"
        ),
    ],
    kind: TestOptions,
    split: SplitOptions,
    weights: WeightOptions,
    columns: LogColumns,
    evaluation: EvaluationOptions,
    output: OutputOptions,
    out: Annotated[
        Path | None,
        option("Write the metrics to this file too, as JSON.", metavar="FILE", shown="none", panel="Output"),
    ] = None,
) -> None:
    """Evaluate a saved run on other ratings, without pairs that it was trained on.

    Protocol, seed, threshold and columns are those of the run unless they are given.

    For example:
        counterpoise evaluate runs/mine later.csv
        counterpoise evaluate runs/mine uniform.csv --test-kind uniform --k 10
        counterpoise evaluate runs/mine later.csv --unknown-users drop
    """
    from counterpoise.cli.describe import evaluation_title, wrapped
    from counterpoise.data.feedback import words_of
    from counterpoise.runs import EvaluationData, cold_sentences, evaluate_run
    from counterpoise.storage import to_json, write_text

    reading = columns.given()
    threshold = reading.pop("threshold", None)
    data = EvaluationData(
        test, threshold=threshold, reading=reading, **kind.given(), **split.given(), **weights.given()
    )
    with working("evaluating", output.visible):
        result, known = evaluate_run(run, data, **evaluation.given())
    facts = known | result.to_dict()
    if out is not None:
        write_text(out, to_json(facts, indent=2) + "\n")
    protocol = getattr(result, "protocol", "honest")
    title = evaluation_title(known["sample"], protocol, by=None, weighted=hasattr(result, "naive"), kinds=known)
    lines = [title, "", words_of(known["trained_on"])(str(result)), *cold_sentences(known)]
    if known["not_used"]:
        listed = " and ".join(known["not_used"])
        lines.append(
            f"A run keeps its pairs, not {listed}: the weights are learned without. In Python: `train`, `probe`."
        )
    if known["unweighted"] is not None:
        lines.append(f"No weighted estimates: {known['unweighted']}")
    output.show({"run": str(run), "test": test, **facts}, wrapped("\n".join(lines)))
