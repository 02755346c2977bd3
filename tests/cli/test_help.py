"""Every help page: options in groups, a sentence and a name of the value each, examples that can be run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from command_line import run

from counterpoise.cli.main import COMMANDS, make_app
from counterpoise.cli.options import PANELS

HELP_ITSELF = "--help"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of every command and of those of groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = {" ".join(words): command for words, command in commands(typer.main.get_command(make_app([])))}


def options(command: Any) -> list[Any]:
    return [found for found in command.params if found.param_type_name == "option" and HELP_ITSELF not in found.opts]


def test_every_command_is_found() -> None:
    assert {name.split()[0] for name in ALL} == set(COMMANDS)


@pytest.mark.parametrize("name", ALL)
def test_options_have_a_group_a_sentence_and_a_name_of_the_value(name: str) -> None:
    for found in options(ALL[name]):
        assert found.rich_help_panel in PANELS, found.name
        assert found.help[0].isupper(), found.help
        assert found.help.endswith("."), found.help
        assert len(found.help.split()) >= 3, found.help
        assert found.is_flag or found.metavar, f"{found.name}: no metavar"
        for word in found.type_descriptor.choices if found.type_descriptor.is_choice else ():
            assert re.search(rf"\b{word}\b", f"{found.help} {found.show_default}"), f"{found.name}: {word} is not named"
        assert not found.metavar or found.metavar.isupper(), found.metavar


@pytest.mark.parametrize("name", ALL)
def test_arguments_have_a_sentence_and_a_name(name: str) -> None:
    for found in ALL[name].params:
        if found.param_type_name == "argument":
            assert found.metavar.rstrip(".").isupper(), found.name
            assert found.help[0].isupper(), found.help
            assert found.help.endswith("."), found.help


@pytest.mark.parametrize("name", ALL)
def test_examples_stand_below_the_options_and_can_be_parsed(name: str) -> None:
    title, *lines = ALL[name].epilog.splitlines()
    assert title == "Examples:"
    assert 1 <= len(lines) <= 3
    code, text, _ = run(*name.split(), HELP_ITSELF)
    assert code == 0
    assert text.rstrip().endswith(lines[-1].strip())
    for line in lines:
        assert len(line) <= 80, "it would be wrapped"
        first, *words = shlex.split(line)
        assert first == "counterpoise"
        path = next(
            known for known in sorted(ALL, key=len, reverse=True) if words[: len(known.split())] == known.split()
        )
        ALL[path].make_context(path, words[len(path.split()) :])  # raises for what it does not take
