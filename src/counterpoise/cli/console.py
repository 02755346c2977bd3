"""Printing: text, tables, JSON, plots and progress bars. Nothing else in this package prints."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from counterpoise.errors import HIDING, ReadingWarning

if TYPE_CHECKING:
    from counterpoise.balance.covariate_balance import Imbalance

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_ERROR_LENGTH = 600  # characters; the middle of a longer error is left out
MAX_LOVE_ROWS = 8  # features shown in a love plot
MIN_SCALE_WIDTH = 12  # characters; a narrower scale is left out
CIRCLES = {"before": "○", "after": "●", "both": "◉", "line": "─"}
ASCII = {"before": "o", "after": "x", "both": "8", "line": "-"}


def printable(text: str) -> str:
    """Text of files without what would steer a terminal: control characters and turned directions as Python's escapes.

    Also bytes of file names that are no text, which cannot be printed.
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def print_line(text: str) -> None:
    """Print text on standard output."""
    print(printable(text))


def print_error(text: str) -> None:
    """Print one line on standard error; of a long one the beginning and the end, where the advice stands."""
    line, half = printable(" ".join(text.split())), (MAX_ERROR_LENGTH - 5) // 2
    print(line if len(line) <= MAX_ERROR_LENGTH else f"{line[:half]} ... {line[-half:]}", file=sys.stderr)


@contextmanager
def reading_notes(visible: bool) -> Iterator[None]:
    """Print what is guessed about files inside the block, once, on standard error; other warnings are as always."""
    printed: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", ReadingWarning)

        def show(message: Warning | str, category: type[Warning], *place: Any, **further: Any) -> None:
            if not issubclass(category, ReadingWarning):
                usual(message, category, *place, **further)
            elif visible and str(message) not in printed:
                printed.add(str(message))
                print_error(str(message))

        warnings.showwarning = show
        yield


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Inside the block threads of other libraries print no backtraces: the error that they end in is one line."""
    before, HIDING[0] = HIDING[0], True
    try:
        yield
    finally:
        HIDING[0] = before


def show_json(facts: Any) -> None:
    """Print one JSON document."""
    from counterpoise.storage import to_json

    print(to_json(facts, indent=2))


def show_table(columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table with box-drawing lines; 160 columns wide where standard output is no terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*map(printable, columns))
    for row in rows:
        cells = (f"{value:.3f}" if isinstance(value, float) else printable(str(value)) for value in row)
        table.add_row(*cells, style=None)
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table, markup=False)


def canvas() -> tuple[int, bool]:
    """(columns to draw on, whether more than ASCII can be shown); (72, False) where standard output is no terminal."""
    if not sys.stdout.isatty():
        return 72, False
    from rich.console import Console

    console = Console()
    return min(console.width, 100), not console.options.ascii_only


def show_picture(lines: list[str]) -> None:
    """Print a plot made of characters; its circles are coloured on a terminal."""
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Circles(RegexHighlighter):
        highlights = [r"(?P<before>[○])", r"(?P<after>[●◉])", r"(?P<line>─+)"]  # noqa: RUF012

    if not sys.stdout.isatty():
        for line in lines:
            print_line(line)
        return
    colours = Theme({"before": "yellow", "after": "bold cyan", "line": "dim"})
    console = Console(theme=colours, highlighter=Circles(), markup=False)
    for line in lines:
        console.print(printable(line), soft_wrap=True)


def show_frame(frame: Any) -> None:
    """Print a data frame as a table."""
    show_table(list(frame.columns), [list(row) for row in frame.rows()])


@contextmanager
def working(title: str, visible: bool = True) -> Iterator[None]:
    """A spinner on standard error while the block runs, if that is a terminal."""
    if not (visible and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


@contextmanager
def progress_bar(title: str, visible: bool, counting: bool = False) -> Iterator[Callable[..., None] | None]:
    """A progress bar on standard error while the block runs; None if that is no terminal.

    It is updated with (epochs done, epochs planned, loss); if `counting`, with (fits done, fits planned).
    """
    if not (visible and sys.stderr.isatty()):
        yield None
        return
    from rich import progress
    from rich.console import Console

    time_left = progress.TimeRemainingColumn(elapsed_when_finished=counting)
    columns = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    if counting:
        columns += [progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TextColumn("left")]
    else:
        columns.append(progress.TextColumn("loss {task.fields[loss]:.4f}"))
    with progress.Progress(*columns, time_left, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, loss=math.nan)
        yield lambda done, total, loss=math.nan: bar.update(task, completed=done, total=total, loss=loss)


def love_lines(
    rows: Sequence[Imbalance], title: str = "Imbalance", width: int = 72, *, fancy: bool = True
) -> list[str]:
    """Lines of a love plot: the title, then per feature its imbalance before and after weighting.

    `fancy` draws with circles, otherwise ASCII. If `width` leaves no room for a scale, only the numbers are printed.
    """
    shown, signs = list(rows[:MAX_LOVE_ROWS]), CIRCLES if fancy else ASCII
    if not shown:
        return []
    weighted = any(abs(row.before - row.after) > 1e-9 for row in rows)
    longest = max(6, width // 3)
    names = [row.name if len(row.name) <= longest else row.name[: longest - 2] + ".." for row in shown]
    name_width = max(map(len, names))
    numbers = [f"{row.before:.2f} -> {row.after:.2f}" if weighted else f"{row.before:.2f}" for row in shown]
    room = width - name_width - max(map(len, numbers)) - 4
    largest = max(max(row.before, row.after) for row in shown)
    bars = [_bar(row, largest, room, signs) if room >= MIN_SCALE_WIDTH else "" for row in shown]
    lines = [
        f"{name:<{name_width}}  {bar}  {number}".rstrip()
        for name, bar, number in zip(names, bars, numbers, strict=True)
    ]
    more = [f"and {len(rows) - MAX_LOVE_ROWS} more with smaller imbalance"] if len(rows) > MAX_LOVE_ROWS else []
    return [*_legend(title, weighted, signs, width), *lines, *more]


def _legend(title: str, weighted: bool, signs: dict[str, str], width: int) -> list[str]:
    """The title and the key of the signs, on one line if they fit."""
    heading = f"{title}, in SD"
    if not weighted:
        return [heading]
    key = f"{signs['before']} before, {signs['after']} after"
    return [f"{heading}: {key}"] if len(heading) + len(key) + 2 <= width else [heading, key]


def _bar(row: Imbalance, largest: float, room: int, signs: dict[str, str]) -> str:
    """0 at the left, the largest imbalance at the right."""
    before, after = (round(size / largest * (room - 1)) if largest > 0 else 0 for size in (row.before, row.after))
    cells = [" "] * room
    for place in range(min(before, after), max(before, after)):
        cells[place] = signs["line"]
    cells[before], cells[after] = signs["before"], signs["after"]
    if before == after:
        cells[after] = signs["both"] if row.before != row.after else signs["before"]
    return "".join(cells)
