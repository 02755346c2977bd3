"""The commands, and what their errors look like: one line on standard error and exit code 2."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from counterpoise import __version__
from counterpoise.cli.console import print_error, print_line, reading_notes
from counterpoise.cli.options import command, option_names, with_option_names
from counterpoise.errors import CounterpoiseError, StoppedError

INTERRUPTED = 130  # exit code after Ctrl-C

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: spinning, they take the cores of others

COMMANDS = {  # name of a command: its module in this package
    "demo": "demo",
    "fit": "fit",
    "tune": "tune",
    "evaluate": "evaluate",
    "predict": "recommend",
    "recommend": "recommend",
    "export": "recommend",
    "balance": "balance",
    "report": "report",
    "serve": "serve",
    "datasets": "catalog",
    "methods": "catalog",
    "bench": "bench",
    "doctor": "doctor",
}


def make_app(words: list[str]) -> typer.Typer:
    """The command that the first word names; without one, all of them."""
    app = typer.Typer(
        name="counterpoise",
        help="Debiased recommenders: collaborative filtering that corrects for selection bias in the log.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = import_module(f"counterpoise.cli.{COMMANDS[name]}")
        if name == "bench":
            app.add_typer(module.app, name=name)
        else:
            command(app)(getattr(module, name))
    return app


def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print_line(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code. Bad input is one line on standard error and exit code 2."""
    words = sys.argv[1:] if arguments is None else arguments
    app = make_app(words)
    if words[:1] == ["bench"]:
        from counterpoise.cli.bench import join_lists

        words = join_lists(words)
    try:
        with reading_notes("--quiet" not in words):
            app(words)
        code = 0
    except StoppedError as stop:
        print_error(str(stop))
        return INTERRUPTED
    except CounterpoiseError as error:
        print_error(f"error: {with_option_names(str(error), option_names(typer.main.get_command(app), words))}")
        code = 2
    except (MemoryError, RuntimeError, OSError) as error:
        if not (isinstance(error, OSError | MemoryError) or "memory" in str(error)):
            raise
        print_error(f"error: the operating system refused: {str(error) or 'out of memory'}")
        code = 2
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    if code == INTERRUPTED:
        print_error("stopped before the end. Nothing was written. The same command starts anew.")
    return code


if __name__ == "__main__":
    sys.exit(main())
