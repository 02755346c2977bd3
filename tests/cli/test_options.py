"""Options as dataclasses: expanded for Typer, grouped in --help, handed to the command as instances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from command_line import run
from typer.testing import CliRunner

from counterpoise.cli.options import OptionGroup, with_options


@dataclass(frozen=True)
class ReadingOptions(OptionGroup):
    panel = "Data"
    name: Annotated[str | None, typer.Argument(help="Name of the file.")] = None
    user_col: Annotated[str, typer.Option(help="Name of the column.")] = "user_id"


@dataclass(frozen=True)
class Reading(ReadingOptions):
    rows: Annotated[int | None, typer.Option("--n", help="Number of rows.")] = None


@dataclass(frozen=True)
class Writing(OptionGroup):
    panel = "Output"
    out: Annotated[Path, typer.Option(help="File to write.")]
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


def invoke(*words: str) -> tuple[list[object], str, int]:
    """(what the command was called with, its output, the exit code)."""
    calls: list[object] = []

    @with_options
    def show(reading: Reading, writing: Writing, seed: Annotated[int, typer.Option(help="Seed.")] = 7) -> None:
        """Show its options."""
        calls.append((reading, writing, seed))

    app = typer.Typer()
    app.command()(show)
    result = CliRunner().invoke(app, list(words), terminal_width=100)
    return calls, result.output, result.exit_code


def test_groups_are_built_from_options() -> None:
    calls, _, code = invoke("a.csv", "--n", "3", "--out", "b.csv", "--json", "--seed", "1")
    assert (calls, code) == ([(Reading("a.csv", "user_id", 3), Writing(Path("b.csv"), True), 1)], 0)


def test_defaults_of_groups_are_kept() -> None:
    calls, _, _ = invoke("--out", "b.csv")
    assert calls == [(Reading(), Writing(Path("b.csv")), 7)]
    assert Reading(rows=3).given() == {"user_col": "user_id", "rows": 3}


def test_field_without_default_is_required() -> None:
    calls, text, code = invoke("a.csv")
    assert (calls, code) == ([], 2)
    assert "Missing option '--out'" in text


def test_help_shows_groups_in_panels() -> None:
    _, text, code = invoke("--help")
    assert code == 0
    assert "Show its options." in text
    titles = ["Arguments", "Options", "Data", "Output"]
    places = [text.index(f"─ {title} ─") for title in titles]
    assert places == sorted(places)
    assert text.index("--user-col") > places[2]
    assert places[1] < text.index("--seed") < places[2]
    assert "--json" in text[places[3] :]


def test_groups_must_not_share_an_option() -> None:
    def twice(one: ReadingOptions, two: Reading) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name"):
        with_options(twice)


@pytest.mark.parametrize(
    ("command", "panels"),
    [
        ("fit", ["Data", "Method", "Evaluation", "Output", "Scale"]),
        ("tune", ["Data", "Method", "Evaluation", "Output", "Scale"]),
        ("evaluate", ["Data", "Evaluation", "Output"]),
        ("balance", ["Data", "Method", "Output", "Scale"]),
        ("recommend", ["Data", "Output"]),
        ("report", ["Data", "Evaluation", "Output"]),
        ("serve", ["Data", "Output", "Scale"]),
    ],
)
def test_options_of_commands_stand_in_panels(command: str, panels: list[str]) -> None:
    code, text, _ = run(command, "--help")
    assert code == 0
    places = [text.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)


def test_misspelt_option_and_command_get_a_suggestion() -> None:
    assert "--method" in run("fit", "coat", "--methd", "mf")[2]
    assert "Did you mean 'fit'?" in run("fti")[2]
