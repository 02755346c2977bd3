"""The love plot of the terminal, made of characters."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.balance.covariate_balance import Imbalance

MAX_ROWS = 8  # features shown
MIN_SCALE_WIDTH = 12  # characters; a narrower scale is left out
CIRCLES = {"before": "○", "after": "●", "both": "◉", "line": "─"}
ASCII = {"before": "o", "after": "x", "both": "8", "line": "-"}


def love_lines(
    rows: Sequence[Imbalance], title: str = "Imbalance", width: int = 72, *, fancy: bool = True
) -> list[str]:
    """Lines of a love plot: the title, then per feature its imbalance before and after weighting.

    `fancy` draws with circles, otherwise ASCII. If `width` leaves no room for a scale, only the numbers are printed.
    """
    shown, signs = list(rows[:MAX_ROWS]), CIRCLES if fancy else ASCII
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
    more = [f"and {len(rows) - MAX_ROWS} more with smaller imbalance"] if len(rows) > MAX_ROWS else []
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
