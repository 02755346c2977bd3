"""`counterpoise evaluate`: metrics of a saved run on unbiased ratings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import working
from counterpoise.cli.options import (
    EvaluationOptions,
    OptionGroup,
    OutputOptions,
    RatingColumns,
    Run,
    UnknownUsers,
    option,
    with_options,
)
from counterpoise.config import Protocol


@dataclass(frozen=True)
class TestOptions(OptionGroup):
    """Which part of the unbiased ratings is the test."""

    panel = "Data"
    path: Annotated[str | None, option("Folder with the files of a named dataset.")] = None
    protocol: Annotated[Protocol | None, option("honest leaves out pairs that the model has seen.")] = None
    seed: Annotated[int | None, option("Seed of the split of a named dataset.")] = None
    memory: Annotated[str | None, option("Memory that the test may take.", shown="4GB")] = None


@with_options
def evaluate(
    run: Run,
    test: Annotated[str, typer.Argument(help="Unbiased ratings (a file, folder or glob), or a dataset's name.")],
    split: TestOptions,
    columns: RatingColumns,
    evaluation: EvaluationOptions,
    output: OutputOptions,
    unknown: UnknownUsers = "error",
    out: Annotated[Path | None, option("Also write the metrics to this file, as JSON.", panel="Output")] = None,
) -> None:
    """Evaluate a saved run on unbiased ratings. The honest protocol leaves out pairs that the model has seen.

    Protocol, seed, threshold and columns are those of the run unless they are given.
    """
    from counterpoise.runs import EvaluationData, evaluate_run
    from counterpoise.storage import write_text

    reading = columns.given()
    data = EvaluationData(test, threshold=reading.pop("threshold", None), reading=reading, **split.given())
    with working("evaluating", output.visible):
        result = evaluate_run(run, data, unknown_users=unknown, **evaluation.given())
    facts = result.to_dict()
    if out is not None:
        write_text(out, json.dumps(facts, indent=2) + "\n")
    output.show({"run": str(run), "test": test, **facts}, str(result))
