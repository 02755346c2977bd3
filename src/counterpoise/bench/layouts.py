"""One table in five layouts: for the terminal, Markdown, LaTeX (the paper's layout), CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from counterpoise.bench import grids, wording
from counterpoise.bench.grids import Grid
from counterpoise.bench.latex import latex_table
from counterpoise.bench.records import Line, Section, Table
from counterpoise.bench.statistics import Interval
from counterpoise.bench.wording import MARKDOWN, PLAIN, markdown

Titled = tuple[str, list[str], list[list[str]], list[str]]  # title, columns, rows, notes
NOT_FOUND = "datasets not found"
COLUMNS = (
    *("dataset", "backbone", "protocol", "k", "method", "title", "group", "family", "block", "metric"),
    *("seeds", "mean", "std", "low", "high", "best", "best_baseline"),
    *("published_mean", "published_std", "published_difference"),
    *("against", "common_seeds", "difference", "difference_low", "difference_high"),
    *("t_p", "t_p_holm", "wilcoxon_p", "wilcoxon_p_holm", "starred", "starred_holm"),
    *("seconds", "seeds_done", "seeds_failed", "seeds_pending", "note"),
)


def as_terminal(table: Table) -> list[Titled]:
    """(title, columns, rows, notes) for each table to show; datasets that are not there come last, without columns."""
    found = [make(table, section, PLAIN) for section in table.sections for make in (grids.means, grids.differences)]
    shown = [(grid.title, grid.columns, grid.rows, grid.notes) for grid in found if grid]
    missing = wording.missing_notes(table)
    return shown + ([(NOT_FOUND, [], [], missing)] if missing else [])


def as_markdown(table: Table) -> str:
    """Headed tables with their notes below."""
    makers = (grids.means, grids.differences, grids.intervals)
    found = [make(table, section, MARKDOWN) for section in table.sections for make in makers]
    pieces = [piece for grid in found if grid for piece in _markdown_pieces(grid)]
    missing = _bullets(wording.missing_notes(table))
    return "\n\n".join(pieces + ([f"### {NOT_FOUND}", *missing] if missing else [])) + "\n"


def as_latex(table: Table) -> str:
    """A table for each backbone and protocol, its datasets side by side; comments alone where there is no result."""
    groups = groupby(table.sections, key=lambda section: (section.backbone, section.protocol))
    found = [latex_table(table, list(sections)) for _, sections in groups]
    return "\n\n".join(found or [f"% {wording.plain(note)}" for note in wording.missing_notes(table)]) + "\n"


def as_json(table: Table) -> str:
    """All facts."""
    return json.dumps(table.to_dict(), indent=2, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """One row for each dataset, backbone, protocol, method and metric; of a dataset that is not there, its note."""
    rows = [_facts(section, line, m) for section in table.sections for line in section.lines for m in line.cells]
    rows += [{"dataset": dataset, "note": f"not found. {way}"} for dataset, way in table.missing.items()]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _entry(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _markdown_pieces(grid: Grid) -> list[str]:
    return [f"### {markdown(grid.title)}", markdown_table(grid.columns, grid.rows), *_bullets(grid.notes)]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned; the cells are Markdown already."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * max(3, width) for width in widths]
    return "\n".join(_markdown_row(cells, rule) for cells in (columns, rule, *rows))


def _markdown_row(cells: Sequence[str], rule: Sequence[str]) -> str:
    padded = (cell.ljust(len(dashes)) for cell, dashes in zip(cells, rule, strict=True))
    return f"| {' | '.join(padded)} |"


def _bullets(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {markdown(note)}" for note in notes)] if notes else []


def _facts(section: Section, line: Line, metric: str) -> dict[str, Any]:
    """One cell with all that is known of it, flat."""
    cell = line.cells[metric]
    facts = vars(section) | vars(line) | vars(cell) | {"metric": metric}
    facts |= {"seeds_done": len(line.done), "seeds_failed": len(line.failed), "seeds_pending": len(line.pending)}
    facts |= _bounds("", cell.interval) | {"note": wording.status(line, section) if line.failed or line.pending else ""}
    if cell.published:
        facts |= {"published_mean": cell.published.mean, "published_std": cell.published.std}
    if cell.comparison:
        own = {"common_seeds": cell.comparison.seeds} | _bounds("difference_", cell.comparison.interval)
        facts |= vars(cell.comparison) | {"seeds": cell.seeds} | own
    return {name: facts[name] for name in COLUMNS if name in facts}


def _bounds(prefix: str, interval: Interval) -> dict[str, float]:
    return dict(zip((f"{prefix}low", f"{prefix}high"), interval, strict=True))


def _entry(value: Any) -> Any:
    """As CSV has it: nothing for nan, 1 and 0 for true and false."""
    if isinstance(value, bool):
        return int(value)
    return None if isinstance(value, float) and math.isnan(value) else value
