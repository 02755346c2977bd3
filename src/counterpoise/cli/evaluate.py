"""`counterpoise evaluate`: metrics of a saved run on other ratings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import working
from counterpoise.cli.options import (
    EvaluationOptions,
    LogColumns,
    OptionGroup,
    OutputOptions,
    Run,
    TestOptions,
    option,
    with_options,
)
from counterpoise.config import Protocol


@dataclass(frozen=True)
class WeightOptions(OptionGroup):
    """How biased ratings are weighted."""

    panel = "Evaluation"
    weights: Annotated[
        str | None,
        option(
            "Weights for estimates over all pairs: balanced, logistic, propensity, popularity, naive-bayes, known "
            "(--propensity-col), or none.",
            shown="balanced for biased ratings",
        ),
    ] = None


@dataclass(frozen=True)
class SplitOptions(OptionGroup):
    """Which part of the ratings is the test."""

    panel = "Data"
    path: Annotated[str | None, option("Folder with the files of a named dataset.")] = None
    protocol: Annotated[Protocol | None, option("honest leaves out pairs that the model has seen.")] = None
    seed: Annotated[int | None, option("Seed of the split of a named dataset.")] = None
    memory: Annotated[str | None, option("Memory that the test may take.", shown="4GB")] = None


@with_options
def evaluate(
    run: Run,
    test: Annotated[str, typer.Argument(help="Ratings (a file, folder or glob), or a dataset's name.")],
    kind: TestOptions,
    split: SplitOptions,
    weights: WeightOptions,
    columns: LogColumns,
    evaluation: EvaluationOptions,
    output: OutputOptions,
    out: Annotated[Path | None, option("Also write the metrics to this file, as JSON.", panel="Output")] = None,
) -> None:
    """Evaluate a saved run on other ratings. The honest protocol leaves out pairs that the model has seen.

    Protocol, seed, threshold and columns are those of the run unless they are given.
    """
    from counterpoise.cli.describe import evaluation_title
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
    title = evaluation_title(known["sample"], protocol, weighted=hasattr(result, "naive"), kinds=known)
    lines = [title, "", words_of(known["trained_on"])(str(result)), *cold_sentences(known)]
    if known["not_used"]:
        listed = " and ".join(known["not_used"])
        lines.append(
            f"A run keeps its pairs, not {listed}: the weights are learned without. In Python: `train`, `probe`."
        )
    if known["unweighted"] is not None:
        lines.append(f"No weighted estimates: {known['unweighted']}")
    output.show({"run": str(run), "test": test, **facts}, "\n".join(lines))
