"""The tables of one section as rows of text: means, differences to the best baseline, intervals over users."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.bench import wording
from counterpoise.bench.records import Section, Table
from counterpoise.bench.wording import MARKDOWN, Style

MARKS = "Bold: the best two of each block. Underlined: its best baseline."
TESTED = "p tells whether other seeds would agree, the interval whether other users would."


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def means(table: Table, section: Section, style: Style) -> Grid:
    """Every method: mean and deviation over seeds, and what was published beside."""
    known = {metric for line in section.lines for metric, cell in line.cells.items() if cell.published}
    columns = ["method", "block", "seeds"]
    for metric in table.metrics:
        columns.append(wording.metric_name(metric, section.k, table.metrics))
        columns += ["published", "diff"] if metric in known else []
    rows = []
    for line in section.lines:
        row = [style.text(line.title), line.block, wording.seeds_cell(line, section)]
        for metric, cell in line.cells.items():
            row.append(wording.mean_cell(cell, line, style))
            row += wording.published_cells(cell) if metric in known else []
        rows.append(row)
    return Grid(wording.title(section), columns, rows, _notes(table, section, style, bool(known)))


def _notes(table: Table, section: Section, style: Style, with_published: bool) -> list[str]:
    return [
        f"Mean ± standard deviation over {wording.counted(len(section.seeds), 'seed')}.",
        *([MARKS] if style is MARKDOWN else []),
        *wording.star_notes(section),
        *wording.block_notes([section]),
        *wording.rule_notes(table.metrics, [section.k]),
        *([wording.published_note(section.protocol)] if with_published else []),
        *wording.status_notes(section),
    ]


def differences(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method that is no baseline, against the best one of its block; None where there is none."""
    lines = [line for line in section.lines if any(cell.comparison for cell in line.cells.values())]
    if not lines:
        return None
    names = [wording.metric_name(metric, section.k, table.metrics) for metric in table.metrics]
    rows = [
        [
            style.text(line.title),
            line.block,
            *(style.text(wording.comparison_cell(cell)) for cell in line.cells.values()),
        ]
        for line in lines
    ]
    notes = [
        f"Ours - best baseline over the seeds that both have [its {wording.share(table.level)} interval over users], "
        f"p of the paired t-test (after Holm's correction). {TESTED}",
        *wording.baseline_notes(table, section),
    ]
    return Grid(f"{wording.title(section)}: against the best baseline", ["method", "block", *names], rows, notes)


def intervals(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method's interval over users; None where no fit has replicates."""
    rows = [
        [style.text(line.title), line.block, *(wording.interval_cell(cell) for cell in line.cells.values())]
        for line in section.lines
    ]
    if all(cell == wording.NOTHING for row in rows for cell in row[2:]):
        return None
    names = [wording.metric_name(metric, section.k, table.metrics) for metric in table.metrics]
    note = f"{wording.share(table.level)} bootstrap intervals over users of the mean over seeds."
    return Grid(f"{wording.title(section)}: over users", ["method", "block", *names], rows, [note])
