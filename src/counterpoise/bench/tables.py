"""The words of a table: names of metrics, cells and notes, in plain text, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from counterpoise.bench.published import CITATION
from counterpoise.bench.records import Cell, Comparison, Line, Section, Table, order
from counterpoise.bench.statistics import Interval
from counterpoise.bench.summary import split_metric
from counterpoise.evaluation.metrics import EMPTY_USER_RULES, METRIC_NAMES
from counterpoise.storage import write_text

NOTHING = "-"  # what stands where there is no number
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
LATEX |= {">": r"\textgreater{}", "|": r"\textbar{}", "±": r"\ensuremath{\pm}", "†": r"\dag{}"}
LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
OTHERS = "Methods of other families are held against all."
STARS = {
    "*": "better than the best baseline of its block by the paired t-test over seeds, p <= 0.05",
    "†": "also after Holm's correction over all methods compared here",
}
PUBLISHED = f"Published: Table 1 of {CITATION}. Its settings differ"
PROTOCOLS = {"honest": ", and its test keeps the probe and the pairs of the training log", "paper": ""}


def plain(text: str) -> str:
    """Text on one line, without characters that steer a terminal."""
    return "".join(letter for letter in " ".join(str(text).split()) if letter.isprintable())


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\`*_\[\]<>|~&$#])", r"\\\1", plain(text))


def latex(text: str) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(LATEX.get(letter, letter) for letter in plain(text)).replace("--", "-{}-")


@dataclass(frozen=True)
class Style:
    """How text is escaped and numbers are marked."""

    text: Callable[[str], str]
    bold: Callable[[str], str] = str
    underlined: Callable[[str], str] = str

    def value(self, cell: Cell) -> str:
        """The mean, bold for the best two of a block, underlined for its best baseline."""
        shown = number(cell.mean)
        shown = self.bold(shown) if cell.best else shown
        return self.underlined(shown) if cell.best_baseline else shown


PLAIN = Style(plain)
MARKDOWN = Style(markdown, "**{}**".format, "<u>{}</u>".format)
LATEX_STYLE = Style(latex, r"\textbf{{{}}}".format, r"\underline{{{}}}".format)


def number(value: float, form: str = ".3f") -> str:
    """Three decimals, or what stands where there is no number."""
    return NOTHING if math.isnan(value) else format(value, form)


def signed(value: float) -> str:
    """With its sign; a difference that is printed as 0 has none."""
    shown = number(value, "+.3f")
    return "0.000" if shown in ("-0.000", "+0.000") else shown


def probability(p: float) -> str:
    """Three decimals, and no 0."""
    return "<0.001" if p < 0.0005 else number(p)


def stars(comparison: Comparison | None) -> str:
    """As the paper: a star for significantly better. A dagger where that outlives the correction."""
    if comparison is None or not comparison.starred:
        return ""
    return "*†" if comparison.starred_holm else "*"


def mean_cell(cell: Cell, line: Line, style: Style) -> str:
    """Mean ± deviation and stars; the number of seeds where the metric is not defined in all that are done."""
    if not cell.seeds:
        return NOTHING
    deviation = "" if math.isnan(cell.std) else f" ± {cell.std:.3f}"
    seeds = "" if cell.seeds == len(line.done) else f" ({counted(cell.seeds, 'seed')})"
    return f"{style.value(cell)}{deviation}{style.text(stars(cell.comparison))}{seeds}"


def comparison_cell(cell: Cell) -> str:
    """Difference [interval over users] p (corrected p)."""
    found = cell.comparison
    if found is None or not found.seeds:
        return NOTHING
    low, high = found.interval
    interval = "" if math.isnan(low) else f" [{signed(low)}, {signed(high)}]"
    corrected = "" if math.isnan(found.t_p) else f" ({probability(found.t_p_holm)})"
    return f"{signed(found.difference)}{interval} p {probability(found.t_p)}{corrected}"


def published_cells(cell: Cell) -> list[str]:
    """The paper's number, and how far ours is from it."""
    if cell.published is None:
        return [NOTHING, NOTHING]
    return [f"{cell.published.mean:.3f}", signed(cell.published_difference)]


def interval_cell(cell: Cell) -> str:
    """From ... to ..."""
    low, high = cell.interval
    return NOTHING if math.isnan(low) else f"{low:.3f} to {high:.3f}"


def metric_name(metric: str, k: int, among: Sequence[str] = ()) -> str:
    """As it is printed, "NDCG@5"; with its rule where the table has the same metric by two rules."""
    name, rule = split_metric(metric)
    twice = len([other for other in among if split_metric(other)[0] == name]) > 1
    return METRIC_NAMES[name].format(k=k) + (f" ({rule})" if rule and twice else "")


def seeds_cell(line: Line, section: Section) -> str:
    """How many seeds are done, of how many."""
    return f"{len(line.done)}" if len(line.done) == len(section.seeds) else f"{len(line.done)} of {len(section.seeds)}"


def title(section: Section) -> str:
    """What the section shows."""
    return f"{section.dataset}, backbone {section.backbone}, protocol {section.protocol}"


def counted(number_of: int, word: str) -> str:
    """1 seed, 2 seeds."""
    return f"{number_of} {word}" + ("" if number_of == 1 else "s")


def rule_notes(metrics: Iterable[str], ks: Iterable[int]) -> list[str]:
    """What happens to users without a positive label, for the metrics that depend on it."""
    by_rule: dict[str, list[str]] = defaultdict(list)
    among = list(metrics)
    for metric in among:
        if (rule := split_metric(metric)[1]) is not None:
            by_rule[rule] += [metric_name(metric, k, among) for k in ks]
    return [
        f"{', '.join(names)}: users without a positive label are {EMPTY_USER_RULES[rule]}."
        for rule, names in by_rule.items()
    ]


def stars_shown(sections: Iterable[Section]) -> set[str]:
    """The stars that occur."""
    cells = [cell for section in sections for line in section.lines for cell in line.cells.values()]
    return {star for cell in cells for star in stars(cell.comparison)}


def star_notes(section: Section) -> list[str]:
    """What the stars mean, where there are any."""
    shown = stars_shown([section])
    return [f"{star} {meaning}." for star, meaning in STARS.items() if star in shown]


def baseline_notes(table: Table, section: Section) -> list[str]:
    """Whom the methods of each block are held against."""
    notes = []
    for metric in table.metrics:
        compared = [(line.block, line.cells[metric].comparison) for line in section.lines]
        best = dict.fromkeys(f"{found.against} (block {block})" for block, found in compared if found)
        notes += [f"{metric_name(metric, section.k, table.metrics)} against {', '.join(best)}."] if best else []
    return notes


def block_notes(sections: Iterable[Section]) -> list[str]:
    """What methods outside of the paper's two blocks are compared with, where there are any."""
    return [OTHERS] if any(line.block == "other" for section in sections for line in section.lines) else []


def share(level: float) -> str:
    """0.95 as 95 %."""
    return f"{100 * level:g} %"


def published_note(protocol: str) -> str:
    """Where the published numbers are from, and why they are no target."""
    return f"{PUBLISHED}{PROTOCOLS.get(protocol, '')}: read differences as a hint."


def status_notes(section: Section) -> list[str]:
    """A line for each method that is not complete: what failed and why, what is still to come."""
    return [f"{line.title}: {status(line, section)}." for line in section.lines if line.failed or line.pending]


def status(line: Line, section: Section) -> str:
    """How many seeds are done, which failed and why, how many are still to come."""
    by_message = defaultdict(list)
    for seed, message in line.failed.items():
        by_message[plain(message).rstrip(".")].append(str(seed))
    parts = [f"{len(line.done)} of {counted(len(section.seeds), 'seed')}"]
    for message, seeds in by_message.items():
        parts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)} failed ({message})")
    parts += [f"{len(line.pending)} not yet run"] if line.pending else []
    return "; ".join(parts)


def missing_notes(table: Table) -> list[str]:
    """A line for each dataset that is not there."""
    return [f"{dataset}: not found. {way}" for dataset, way in table.missing.items()]


# The tables of one section as rows of text: means, differences to the best baseline, intervals over users.

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
        columns.append(metric_name(metric, section.k, table.metrics))
        columns += ["published", "diff"] if metric in known else []
    rows = []
    for line in section.lines:
        row = [style.text(line.title), line.block, seeds_cell(line, section)]
        for metric, cell in line.cells.items():
            row.append(mean_cell(cell, line, style))
            row += published_cells(cell) if metric in known else []
        rows.append(row)
    return Grid(title(section), columns, rows, _notes(table, section, style, bool(known)))


def _notes(table: Table, section: Section, style: Style, with_published: bool) -> list[str]:
    return [
        f"Mean ± standard deviation over {counted(len(section.seeds), 'seed')}.",
        *([MARKS] if style is MARKDOWN else []),
        *star_notes(section),
        *block_notes([section]),
        *rule_notes(table.metrics, [section.k]),
        *([published_note(section.protocol)] if with_published else []),
        *status_notes(section),
    ]


def differences(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method that is no baseline, against the best one of its block; None where there is none."""
    lines = [line for line in section.lines if any(cell.comparison for cell in line.cells.values())]
    if not lines:
        return None
    names = [metric_name(metric, section.k, table.metrics) for metric in table.metrics]
    rows = [
        [
            style.text(line.title),
            line.block,
            *(style.text(comparison_cell(cell)) for cell in line.cells.values()),
        ]
        for line in lines
    ]
    notes = [
        f"Ours - best baseline over the seeds that both have [its {share(table.level)} interval over users], "
        f"p of the paired t-test (after Holm's correction). {TESTED}",
        *baseline_notes(table, section),
    ]
    return Grid(f"{title(section)}: against the best baseline", ["method", "block", *names], rows, notes)


def intervals(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method's interval over users; None where no fit has replicates."""
    rows = [
        [style.text(line.title), line.block, *(interval_cell(cell) for cell in line.cells.values())]
        for line in section.lines
    ]
    if all(cell == NOTHING for row in rows for cell in row[2:]):
        return None
    names = [metric_name(metric, section.k, table.metrics) for metric in table.metrics]
    note = f"{share(table.level)} bootstrap intervals over users of the mean over seeds."
    return Grid(f"{title(section)}: over users", ["method", "block", *names], rows, [note])


# The table in LaTeX, in the paper's layout: a row for each method, the metrics of each dataset side by side.

LATEX_MARKS = (
    "The best two results are bold and the best baseline is underlined, for IPS-based and for DR-based methods."
)
LATEX_STARS = {
    "*": r"$^{*}$ better than the best baseline by the paired t-test over seeds ($p \leq 0.05$).",
    "†": r"$^{\dagger}$ also after Holm's correction over all methods compared on the dataset.",
}
LATEX_NOTHING = "--"


def latex_table(table: Table, sections: Sequence[Section]) -> str:
    """The sections of one backbone and one protocol; needs the package booktabs."""
    metrics = len(table.metrics)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_caption(sections)}}}",
        rf"\begin{{tabular}}{{l{(' ' + 'c' * metrics) * len(sections)}}}",
        r"\toprule",
        _row([""] + [rf"\multicolumn{{{metrics}}}{{c}}{{{_name(section)}}}" for section in sections]),
        " ".join(rf"\cmidrule(lr){{{2 + metrics * i}-{1 + metrics * (i + 1)}}}" for i in range(len(sections))),
        _row(["Method"] + [latex(metric_name(m, s.k, table.metrics)) for s in sections for m in table.metrics]),
        *_body(table, sections),
        r"\bottomrule",
        r"\end{tabular}",
        *_latex_notes(table, sections),
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _name(section: Section) -> str:
    return rf"\textsc{{{latex(section.dataset)}}}"


def _caption(sections: Sequence[Section]) -> str:
    counts = sorted({len(section.seeds) for section in sections})
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    names = ", ".join(dict.fromkeys(map(_name, sections)))
    where = f"backbone {latex(sections[0].backbone)}, protocol {latex(sections[0].protocol)}"
    text = f"Performance on {names}: mean and standard deviation over {seeds} ({where})."
    shown = stars_shown(sections)
    others = map(latex, block_notes(sections))
    return " ".join([text, LATEX_MARKS, *others, *(meaning for star, meaning in LATEX_STARS.items() if star in shown)])


def _body(table: Table, sections: Sequence[Section]) -> list[str]:
    """Methods of all datasets in one order, a rule before each block."""
    found: dict[str, list[Line | None]] = {}
    known: dict[str, Line] = {}
    for place, section in enumerate(sections):
        for line in section.lines:
            found.setdefault(line.method, [None] * len(sections))[place] = line
            known.setdefault(line.method, line)
    lines, block = [], None
    for line in sorted(known.values(), key=lambda line: order(line.block, line.group, line.title, line.method)):
        lines += [r"\midrule"] if line.block != block else []
        block = line.block
        cells = [_cell(one.cells[m]) if one else LATEX_NOTHING for one in found[line.method] for m in table.metrics]
        lines.append(_row([latex(line.title), *cells]))
    return lines


def _cell(cell: Cell) -> str:
    r"""As the paper: \textbf{mean}$^{*}_{\pm deviation}$."""
    if not cell.seeds:
        return LATEX_NOTHING
    raised = stars(cell.comparison).replace("†", r"\dagger")
    above = f"^{{{raised}}}" if raised else ""
    below = "" if math.isnan(cell.std) else rf"_{{\pm{cell.std:.3f}}}"
    return LATEX_STYLE.value(cell) + (f"${above}{below}$" if above or below else "")


def _latex_notes(table: Table, sections: Sequence[Section]) -> list[str]:
    """What has to be said below: rules, methods that are not complete, datasets that are not there."""
    notes = rule_notes(table.metrics, sorted({section.k for section in sections}))
    notes += [f"{section.dataset}, {note}" for section in sections for note in status_notes(section)]
    notes += missing_notes(table)
    if not notes:
        return []
    lines = [rf"{latex(note)}\par" for note in notes]
    return [r"\par\medskip", r"\begin{minipage}{0.95\linewidth}\footnotesize\raggedright", *lines, r"\end{minipage}"]


# One table in five layouts: for the terminal, Markdown, LaTeX (the paper's layout), CSV and JSON.

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
    found = [make(table, section, PLAIN) for section in table.sections for make in (means, differences)]
    shown = [(grid.title, grid.columns, grid.rows, grid.notes) for grid in found if grid]
    missing = missing_notes(table)
    return shown + ([(NOT_FOUND, [], [], missing)] if missing else [])


def as_markdown(table: Table) -> str:
    """Headed tables with their notes below."""
    makers = (means, differences, intervals)
    found = [make(table, section, MARKDOWN) for section in table.sections for make in makers]
    pieces = [piece for grid in found if grid for piece in _markdown_pieces(grid)]
    missing = _bullets(missing_notes(table))
    return "\n\n".join(pieces + ([f"### {NOT_FOUND}", *missing] if missing else [])) + "\n"


def as_latex(table: Table) -> str:
    """A table for each backbone and protocol, its datasets side by side; comments alone where there is no result."""
    groups = groupby(table.sections, key=lambda section: (section.backbone, section.protocol))
    found = [latex_table(table, list(sections)) for _, sections in groups]
    return "\n\n".join(found or [f"% {plain(note)}" for note in missing_notes(table)]) + "\n"


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
    facts |= _bounds("", cell.interval) | {"note": status(line, section) if line.failed or line.pending else ""}
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


# A plain table of facts with a title and notes: for the terminal, as Markdown, CSV and JSON.

Value = str | float | int | None


@dataclass(frozen=True)
class Sheet:
    """Rows by the names of the columns; a value that is None was not measured.

    `facts`: the same as one fact a row, for machines, where `rows` are laid out for people.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Value]]
    notes: tuple[str, ...] = ()
    facts: Sequence[Mapping[str, Value]] = ()

    def cells(self) -> list[list[str]]:
        """The values as text."""
        return [[_text(row.get(column)) for column in self.columns] for row in self.rows]

    def to_markdown(self) -> str:
        """A heading, the table, and the notes below."""
        columns, *rows = [list(map(markdown, line)) for line in (self.columns, *self.cells())]
        return "\n\n".join([f"### {markdown(self.title)}", markdown_table(columns, rows), *self.notes]) + "\n"

    def to_csv(self) -> str:
        """With all digits; empty where nothing was measured."""
        text = io.StringIO()
        columns, rows = (tuple(self.facts[0]), self.facts) if self.facts else (self.columns, self.rows)
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"title": self.title, "rows": [dict(row) for row in self.facts or self.rows], "notes": list(self.notes)}


def write_sheets(sheets: Sequence[Sheet], folder: Path, name: str) -> list[Path]:
    """Write them as `name`.md, .json and one .csv each (`name`-2.csv ... for more than one); the paths."""
    files = {
        f"{name}.md": "\n".join(sheet.to_markdown() for sheet in sheets),
        f"{name}.json": json.dumps([sheet.to_dict() for sheet in sheets], indent=2) + "\n",
    }
    for number, sheet in enumerate(sheets, 1):
        files[f"{name}.csv" if number == 1 else f"{name}-{number}.csv"] = sheet.to_csv()
    for file, text in files.items():
        write_text(folder / file, text)
    return [folder / file for file in files]


def _text(value: Value) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
