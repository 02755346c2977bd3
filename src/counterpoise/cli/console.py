"""What the command line shows: text, tables, JSON and progress bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 1000  # letters of a complaint
Update = Callable[[int, int, float], None]  # (epochs done, epochs planned, loss)


def say(text: str) -> None:
    """A piece of text on standard output."""
    print(text)


def complain(text: str) -> None:
    """One line on standard error, of bounded length: the way out stands at its end."""
    line = " ".join(text.split())
    print(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}", file=sys.stderr)


def show_json(facts: Any) -> None:
    """One JSON document."""
    print(json.dumps(facts, indent=2, default=str))


def show_table(columns: list[str], rows: list[list[Any]]) -> None:
    """A table in box-drawing lines; wide where nobody looks at a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row), style=None)
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table, markup=False)


def canvas() -> tuple[int, bool]:
    """(columns to draw on, whether more than ASCII can be shown): 72 and no where nobody looks at a terminal."""
    if not sys.stdout.isatty():
        return 72, False
    from rich.console import Console

    console = Console()
    return min(console.width, 100), not console.options.ascii_only


def show_picture(lines: list[str]) -> None:
    """A picture made of letters; its circles in colours on a terminal."""
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Circles(RegexHighlighter):
        highlights = [r"(?P<before>[○])", r"(?P<after>[●◉])", r"(?P<line>─+)"]  # noqa: RUF012

    if not sys.stdout.isatty():
        for line in lines:
            say(line)
        return
    colours = Theme({"before": "yellow", "after": "bold cyan", "line": "dim"})
    console = Console(theme=colours, highlighter=Circles(), markup=False)
    for line in lines:
        console.print(line, soft_wrap=True)


def show_frame(frame: Any) -> None:
    """A data frame as a table."""
    show_table(list(frame.columns), [list(row) for row in frame.rows()])


@contextmanager
def working(title: str, wanted: bool = True) -> Iterator[None]:
    """A sign of life on standard error while the block runs; nothing where nobody looks at it."""
    if not (wanted and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


@contextmanager
def progress_bar(title: str, wanted: bool) -> Iterator[Update | None]:
    """A progress bar on standard error while the block runs; nothing where nobody looks at it."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, loss=float("nan"))
        yield lambda done, total, loss: bar.update(task, completed=done, total=total, loss=loss)


@contextmanager
def counting_bar(title: str, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error that counts pieces of work, with the time left; nothing where nobody looks at it."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, *left, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
