"""`counterpoise evaluate`: metrics of a saved run on unbiased ratings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import print_line, show_json, working
from counterpoise.cli.options import (
    EvaluationOptions,
    OptionGroup,
    OutputOptions,
    RatingColumns,
    Run,
    UnknownUsers,
    with_options,
)
from counterpoise.config import Protocol


@dataclass(frozen=True)
class TestOptions(OptionGroup):
    """Which part of the unbiased ratings is the test."""

    panel = "Data"
    path: Annotated[str | None, typer.Option(help="Folder with the files of a named dataset.")] = None
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="honest leaves out the pairs that the model has seen.", show_default="that of the run"),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Seed of the split of a named dataset.", show_default="that of the run")
    ] = None
    memory: Annotated[str | None, typer.Option(help="Memory that the test may take.", show_default="4GB")] = None


@dataclass(frozen=True)
class TestColumns(RatingColumns):
    """As in the run, where they are not given."""

    threshold: Annotated[
        float | None,
        typer.Option(help="Ratings at or above this value are positive labels.", show_default="that of the run"),
    ] = None


@dataclass(frozen=True)
class UserOptions(EvaluationOptions):
    """How ranking metrics are computed, with unknown users."""

    unknown: UnknownUsers = "error"


@dataclass(frozen=True)
class EvaluateOutput(OutputOptions):
    """Where the metrics are written."""

    out: Annotated[Path | None, typer.Option(help="Also write the evaluation to this file, as JSON.")] = None


@with_options
def evaluate(
    run: Run,
    test: Annotated[str, typer.Argument(help="Unbiased ratings (a file, folder or glob), or a dataset's name.")],
    split: TestOptions,
    columns: TestColumns,
    evaluation: UserOptions,
    output: EvaluateOutput,
) -> None:
    """Evaluate a saved run on unbiased ratings. The honest protocol leaves out pairs that the model has seen."""
    from counterpoise.runs import evaluate_run
    from counterpoise.storage import write_text

    reading, options = columns.given(), split.given() | evaluation.given()
    options |= {name: reading.pop(name) for name in ("threshold",) if name in reading}
    with working("evaluating", output.visible):
        result, seen, protocol = evaluate_run(run, test, reading=reading, **options)
    facts = {"protocol": protocol, "rows_seen_in_training": seen, **result.to_dict()}
    if output.out is not None:
        write_text(output.out, json.dumps(facts, indent=2) + "\n")
    if output.as_json:
        show_json({"run": str(run), "test": test, **facts})
    elif output.visible:
        counted = "left out" if protocol == "honest" else "counted"
        print_line(f"{result}\n{seen:>7,}  rows were seen in training or in the probe: {counted} ({protocol} protocol)")
