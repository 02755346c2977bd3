"""The commands, and what their errors look like: one line on standard error and exit code 2."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from counterpoise import __version__
from counterpoise.cli.console import print_error, print_line, quiet_threads, reading_notes
from counterpoise.cli.options import command, flag, option_names, with_option_names
from counterpoise.cli.usage import usage_message
from counterpoise.errors import CounterpoiseError, StoppedError, short_repr

INTERRUPTED = 130  # exit code after Ctrl-C
BROKEN_PIPE = 141  # exit code where the reader of standard output has gone, as of a process that the signal ends
DEBUG = "COUNTERPOISE_DEBUG"  # environment variable: errors that nobody foresaw with their traceback

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


def _root(version: Annotated[bool, flag("Print the version.", "--version")] = False) -> None:
    if version:
        print_line(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code.

    Bad input is one line on standard error and exit code 2, what nobody foresaw is one line and exit code 1.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with reading_notes("--quiet" not in words), quiet_threads():
            code = _run(words)
            sys.stdout.flush()  # an error now, not when Python ends
    except BrokenPipeError:  # who reads has seen enough
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return BROKEN_PIPE
    except StoppedError as stop:
        print_error(str(stop))
        return INTERRUPTED
    except TyperException as error:
        message = usage_message(error)
        if message:
            print_error(f"error: {message}")
        return 2
    except CounterpoiseError as error:
        print_error(f"error: {with_option_names(str(error), _option_names(words))}")
        return 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except UnicodeEncodeError as error:  # bytes of the command line that are no text
        print_error(f"error: {short_repr(error.object)} is not UTF-8. Write it in UTF-8, or rename the file.")
        return 2
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        memory = isinstance(error, RuntimeError) and "memory" in str(error)
        if memory or isinstance(error, OSError | MemoryError):
            print_error(f"error: the operating system refused: {str(error) or 'out of memory'}")
            return 2
        print_error(f"error: {_unforeseen(error)}")
        return 1
    if code == INTERRUPTED:
        print_error("stopped before the end. Nothing was written. The same command starts anew.")
    return code


def _run(words: list[str]) -> int:
    app = make_app(words)
    if words[:1] == ["bench"]:
        from counterpoise.cli.bench import join_lists

        words = join_lists(words)
    try:
        code = app(words, prog_name="counterpoise", standalone_mode=False)
    except SystemExit:  # typer's answer where the reader of standard output has gone
        raise BrokenPipeError from None
    return code if isinstance(code, int) else 0


def _option_names(words: list[str]) -> dict[str, str]:
    return option_names(typer.main.get_command(make_app(words)), words)


def _unforeseen(error: Exception) -> str:
    """One line about an error that is a defect of this package, or of one below it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "counterpoise" in frame.filename] or frames
    reason = (str(error).splitlines() or [""])[0]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return (
        f"this should not happen: {type(error).__name__}: {reason} ({where}). Please report it; "
        f"{DEBUG}=1 shows where it came from."
    )


if __name__ == "__main__":
    sys.exit(main())
