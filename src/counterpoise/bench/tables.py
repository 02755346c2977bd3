"""Tables as text: the paper's table for the terminal, in Markdown, LaTeX, CSV and JSON; and plain sheets of facts.

A `summary.Table` becomes a `Grid` of text for each section (means, differences to the best baseline, intervals over
users), or LaTeX in the paper's layout. A `Sheet` is what the other experiments show: rows, columns and notes.
"""

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
from typing import Any, NamedTuple

from counterpoise.bench.published import published_on
from counterpoise.bench.statistics import MIN_SEEDS
from counterpoise.bench.summary import TABLE_METRIC_NAMES, Cell, Comparison, Line, Section, Table, line_order
from counterpoise.data.protocols import find_protocol
from counterpoise.evaluation.full_ranking import RANKING_METRIC_NAMES
from counterpoise.evaluation.metrics import (
    CLICK_METRIC_NAMES,
    EMPTY_USERS,
    LIST_METRICS,
    PAPER_EMPTY_USERS,
    PAPER_METRIC_NAMES,
)
from counterpoise.methods import METHODS
from counterpoise.storage import to_json, write_text

NOTHING = "-"  # in place of a number that is not known
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
LATEX |= {">": r"\textgreater{}", "|": r"\textbar{}", "±": r"\ensuremath{\pm}", "†": r"\dag{}"}
LATEX |= {"↓": r"\ensuremath{\downarrow}"}
LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
LATEX_NOTHING = "--"
OTHERS = "Methods of other families are held against all."
MARKS = "Bold: the best two of each block. Underlined: its best baseline."
LATEX_MARKS = (
    "The best two results are bold and the best baseline is underlined, for IPS-based and for DR-based methods."
)
BEST_BASELINE = "the best baseline of its block"
STARS = {
    "*": "better than {} by the paired t-test over seeds, p <= 0.05",
    "↓": "worse than it by the same test",
    "†": "also after Holm's correction over all methods compared here",
}
LATEX_SIGNS = {"*": "*", "↓": r"\downarrow", "†": r"\dagger"}
ON_CLICKS = "Learned from clicks, which are the positive rows of the log alone; tested on uniform pairs of both kinds."
CLICK_FORMULAS = {
    "map": "the sum over positives at ranks r <= k of the share of positives among the first r, over min(k, positives)",
    "dcg": "y_1 + sum over 2 <= r <= k of y_r / log2(r), not divided by that of the best list (Saito et al. 2020)",
}
RANKED_CLICKS = (
    "All items: held-out clicks ranked among all items that their users have not clicked, weighted by one over the "
    "square root of the item's clicks, which is its exposure if half of popularity is."
)
UNTESTED = f"With fewer than {MIN_SEEDS} seeds a difference is not tested and has no mark."
TESTED = "p tells whether other seeds would agree, the interval whether other users would."
PUBLISHED = "Published: {}. Its settings differ: read differences as a hint."
LEARN_PROBE_ROWS = ("mf-with-probe", "mf-probe", "cause", "kd-bridge", "kd-refine", "autodebias", "counterpoise")
NOT_FOUND = "datasets not found"
COLUMNS = (  # of the CSV
    *("dataset", "feedback", "preset", "protocol", "k", "method", "title", "group", "family", "block", "metric"),
    *("seeds", "mean", "std", "low", "high", "best", "best_baseline"),
    *("published_mean", "published_std", "published_difference"),
    *("against", "common_seeds", "difference", "difference_low", "difference_high"),
    *("t_p", "t_p_holm", "wilcoxon_p", "wilcoxon_p_holm", "better", "significant", "significant_holm"),
    *("seconds", "seeds_done", "seeds_failed", "seeds_pending", "note"),
)
Value = str | float | int | None


class Grid(NamedTuple):
    """A table of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def as_terminal(table: Table) -> list[Grid]:
    """The tables to show; datasets that were not found come last, without columns."""
    found = [make(table, section, PLAIN) for section in table.sections for make in (_means, _differences)]
    missing = _missing_notes(table)
    return [grid for grid in found if grid] + ([Grid(NOT_FOUND, [], [], missing)] if missing else [])


def as_markdown(table: Table) -> str:
    """Headed tables with their notes below."""
    makers = (_means, _differences, _intervals)
    pieces = []
    for grid in (make(table, section, MARKDOWN) for section in table.sections for make in makers):
        if grid:
            pieces += [f"### {_markdown(grid.title)}", _markdown_table(grid.columns, grid.rows), *_bullets(grid.notes)]
    missing = _bullets(_missing_notes(table))
    return "\n\n".join(pieces + ([f"### {NOT_FOUND}", *missing] if missing else [])) + "\n"


def as_latex(table: Table) -> str:
    """A table for each preset and protocol, which needs booktabs; only comments if there is no result."""
    groups = groupby(table.sections, key=lambda section: (section.preset, section.protocol))
    found = [_latex_table(table, list(sections)) for _, sections in groups]
    return "\n\n".join(found or [f"% {_plain(note)}" for note in _missing_notes(table)]) + "\n"


def as_json(table: Table) -> str:
    """All facts."""
    return json.dumps(table.to_dict(), indent=2, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """One row for each dataset, preset, protocol, method and metric; a note for a dataset that was not found."""
    rows = [_facts(section, line, m) for section in table.sections for line in section.lines for m in line.cells]
    rows += [{"dataset": dataset, "note": f"not found. {way}"} for dataset, way in table.missing.items()]
    return _csv(COLUMNS, [{name: _csv_value(value) for name, value in row.items()} for row in rows])


FORMATS: dict[str, Callable[[Table], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv, "json": as_json}


def _facts(section: Section, line: Line, metric: str) -> dict[str, Any]:
    """All facts of one cell, flat."""
    cell = line.cells[metric]
    facts = vars(section) | vars(line) | vars(cell) | {"metric": metric}
    facts |= {"seeds_done": len(line.done), "seeds_failed": len(line.failed), "seeds_pending": len(line.pending)}
    facts |= {"note": _status(line, section) if line.failed or line.pending else ""}
    facts["low"], facts["high"] = cell.interval
    if cell.published:
        facts |= {"published_mean": cell.published.mean, "published_std": cell.published.std}
    if cell.comparison:
        facts |= vars(cell.comparison) | {"seeds": cell.seeds, "common_seeds": cell.comparison.seeds}
        facts["difference_low"], facts["difference_high"] = cell.comparison.interval
    return {name: facts[name] for name in COLUMNS if name in facts}


def _csv_value(value: Any) -> Any:
    """Blank for nan, 1 and 0 for true and false."""
    if isinstance(value, bool):
        return int(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# Grids of one section


def _means(table: Table, section: Section, style: Style) -> Grid:
    """Every method: mean and deviation over seeds, beside the published number of the same test if there is one."""
    known = {metric for line in section.lines for metric, cell in line.cells.items() if cell.published}
    columns = ["method", "block", "seeds"]
    for metric in table.metrics:
        columns.append(metric_name(metric, section.k))
        columns += ["published", "diff"] if metric in known else []
    rows = []
    for line in section.lines:
        done, all_seeds = len(line.done), len(section.seeds)
        row = [style.text(line.title), line.block, f"{done}" if done == all_seeds else f"{done} of {all_seeds}"]
        for metric, cell in line.cells.items():
            row.append(_mean_cell(cell, line, style))
            row += _published_cells(cell) if metric in known else []
        rows.append(row)
    stars = _stars_shown([section])
    notes = [
        f"Mean ± standard deviation over {_counted(len(section.seeds), 'seed')}.",
        *([MARKS] if style is MARKDOWN else []),
        *(f"{star} {meaning}." for star, meaning in _meanings(table).items() if star in stars),
        *_test_notes([section]),
        *_block_notes(table, [section]),
        *_rule_notes(table.metrics, [section.k]),
        *_click_notes(table.metrics, section),
        *_probe_notes(section),
        *_published_notes(section),
        *table.notes,
        *_status_notes(section),
    ]
    return Grid(_title(section), columns, rows, notes)


def _differences(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method that is tested, against its baseline; None if there is no such method."""
    lines = [line for line in section.lines if any(cell.comparison for cell in line.cells.values())]
    if not lines:
        return None
    against = table.baseline or "best baseline"
    note = (
        f"{'Method' if table.baseline else 'Ours'} - {against} over the seeds that both have "
        f"[its {100 * table.level:g} % interval over users], p of the paired t-test (after Holm's correction). {TESTED}"
    )
    rows = _rows(lines, style, lambda cell: style.text(_comparison_cell(cell)))
    title = f"{_title(section)}: against {table.baseline or 'the best baseline'}"
    notes = [] if table.baseline else _baseline_notes(table, section)
    return Grid(title, _columns(table, section), rows, [note, *notes])


def _intervals(table: Table, section: Section, style: Style) -> Grid | None:
    """Every method's interval over users; None if no fit has replicates."""
    if all(math.isnan(cell.interval[0]) for line in section.lines for cell in line.cells.values()):
        return None
    note = f"{100 * table.level:g} % bootstrap intervals over users of the mean over seeds."
    rows = _rows(section.lines, style, _interval_cell)
    return Grid(f"{_title(section)}: over users", _columns(table, section), rows, [note])


def _columns(table: Table, section: Section) -> list[str]:
    return ["method", "block", *(metric_name(metric, section.k) for metric in table.metrics)]


def _rows(lines: Iterable[Line], style: Style, text: Callable[[Cell], str]) -> list[list[str]]:
    return [[style.text(line.title), line.block, *map(text, line.cells.values())] for line in lines]


# LaTeX


def _latex_table(table: Table, sections: Sequence[Section]) -> str:
    """The sections of one preset and one protocol in the paper's layout: a row a method, datasets side by side."""
    metrics = len(table.metrics)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_caption(table, sections)}}}",
        rf"\begin{{tabular}}{{l{(' ' + 'c' * metrics) * len(sections)}}}",
        r"\toprule",
        _latex_row([""] + [rf"\multicolumn{{{metrics}}}{{c}}{{{_small_caps(section)}}}" for section in sections]),
        " ".join(rf"\cmidrule(lr){{{2 + metrics * i}-{1 + metrics * (i + 1)}}}" for i in range(len(sections))),
        _latex_row(["Method"] + [_latex(metric_name(m, s.k)) for s in sections for m in table.metrics]),
        *_latex_body(table, sections),
        r"\bottomrule",
        r"\end{tabular}",
        *_latex_notes(table, sections),
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _small_caps(section: Section) -> str:
    return rf"\textsc{{{_latex(section.dataset)}}}"


def _caption(table: Table, sections: Sequence[Section]) -> str:
    counts = sorted({len(section.seeds) for section in sections})
    seeds = _counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    names = ", ".join(dict.fromkeys(map(_small_caps, sections)))
    where = f"preset {_latex(sections[0].preset)}, protocol {_latex(sections[0].protocol)}"
    text = f"Performance on {names}: mean and standard deviation over {seeds} ({where})."
    shown = _stars_shown(sections)
    others = map(_latex, [*_test_notes(sections), *_block_notes(table, sections)])
    marks = (
        f"$^{{{LATEX_SIGNS[star]}}}$ {_latex(meaning)}." for star, meaning in _meanings(table).items() if star in shown
    )
    return " ".join([text, LATEX_MARKS, *others, *marks])


def _latex_body(table: Table, sections: Sequence[Section]) -> list[str]:
    """Methods of all datasets in one order, a rule before each block."""
    by_method: dict[str, dict[int, Line]] = {}
    for number, section in enumerate(sections):
        for line in section.lines:
            by_method.setdefault(line.method, {})[number] = line
    lines, block = [], None
    for found in sorted(by_method.values(), key=lambda found: line_order(next(iter(found.values())))):
        first = next(iter(found.values()))
        lines += [r"\midrule"] if first.block != block else []
        block = first.block
        cells = [
            _latex_cell(found[number].cells[metric]) if number in found else LATEX_NOTHING
            for number in range(len(sections))
            for metric in table.metrics
        ]
        lines.append(_latex_row([_latex(first.title), *cells]))
    return lines


def _latex_cell(cell: Cell) -> str:
    r"""A cell as in the paper: \textbf{mean}$^{*}_{\pm deviation}$."""
    if not cell.seeds:
        return LATEX_NOTHING
    raised = "".join(LATEX_SIGNS[star] for star in _stars(cell.comparison))
    above = f"^{{{raised}}}" if raised else ""
    below = "" if math.isnan(cell.std) else rf"_{{\pm{cell.std:.3f}}}"
    return LATEX_STYLE.value(cell) + (f"${above}{below}$" if above or below else "")


def _latex_notes(table: Table, sections: Sequence[Section]) -> list[str]:
    """Rules, methods with failed or pending seeds, and datasets that were not found."""
    notes = _rule_notes(table.metrics, sorted({section.k for section in sections}))
    notes += [f"{section.dataset}, {note}" for section in sections for note in _status_notes(section)]
    notes += [*table.notes, *_missing_notes(table)]
    if not notes:
        return []
    lines = [rf"{_latex(note)}\par" for note in notes]
    return [r"\par\medskip", r"\begin{minipage}{0.95\linewidth}\footnotesize\raggedright", *lines, r"\end{minipage}"]


# Cells


def metric_name(metric: str, k: int) -> str:
    """The printed name: "NDCG@5"; "NDCG@5 (paper)" by the paper's rule for users without a positive label."""
    return TABLE_METRIC_NAMES[metric].format(k=k)


def _mean_cell(cell: Cell, line: Line, style: Style) -> str:
    """Mean ± deviation and stars; the number of seeds if the metric is not defined in all that are done."""
    if not cell.seeds:
        return NOTHING
    deviation = "" if math.isnan(cell.std) else f" ± {cell.std:.3f}"
    seeds = "" if cell.seeds == len(line.done) else f" ({_counted(cell.seeds, 'seed')})"
    return f"{style.value(cell)}{deviation}{style.text(_stars(cell.comparison))}{seeds}"


def _published_cells(cell: Cell) -> list[str]:
    """The paper's number, and ours minus it."""
    if cell.published is None:
        return [NOTHING, NOTHING]
    return [f"{cell.published.mean:.3f}", _signed(cell.published_difference)]


def _comparison_cell(cell: Cell) -> str:
    """Difference [interval over users] p (corrected p)."""
    found = cell.comparison
    if found is None or not found.seeds:
        return NOTHING
    low, high = found.interval
    interval = "" if math.isnan(low) else f" [{_signed(low)}, {_signed(high)}]"
    corrected = "" if math.isnan(found.t_p) else f" ({_probability(found.t_p_holm)})"
    return f"{_signed(found.difference)}{interval} p {_probability(found.t_p)}{corrected}"


def _interval_cell(cell: Cell) -> str:
    low, high = cell.interval
    return NOTHING if math.isnan(low) else f"{low:.3f} to {high:.3f}"


def _stars(comparison: Comparison | None) -> str:
    """The paper's star for significantly better, an arrow for worse; a dagger if it still is after correction."""
    if comparison is None or not comparison.significant:
        return ""
    return ("*" if comparison.better else "↓") + ("†" if comparison.significant_holm else "")


def _number(value: float, form: str = ".3f") -> str:
    return NOTHING if math.isnan(value) else format(value, form)


def _signed(value: float) -> str:
    """A number with its sign, unless it is printed as 0."""
    shown = _number(value, "+.3f")
    return "0.000" if shown in ("-0.000", "+0.000") else shown


def _probability(p: float) -> str:
    return "<0.001" if p < 0.0005 else _number(p)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


# Titles and notes


def _title(section: Section) -> str:
    kind = "" if section.feedback == "ratings" else f", {section.feedback}"
    return f"{section.dataset}{kind}, preset {section.preset}, protocol {section.protocol}"


def _rule_notes(metrics: Sequence[str], ks: Sequence[int]) -> list[str]:
    """Notes on users without a positive label, for the metrics that depend on them."""
    notes = []
    for concerned, rule in (
        ((*LIST_METRICS, *CLICK_METRIC_NAMES), EMPTY_USERS),
        (PAPER_METRIC_NAMES, PAPER_EMPTY_USERS),
    ):
        names = [metric_name(metric, k) for metric in metrics if metric in concerned for k in ks]
        notes += [f"{', '.join(names)}: {rule}."] if names else []
    return notes


def _click_notes(metrics: Sequence[str], section: Section) -> list[str]:
    """Notes on what methods for clicks learn from, and the formulas of their metrics."""
    if section.feedback != "clicks":
        return []
    names = {metric: metric_name(metric, section.k) for metric in metrics}
    notes = [ON_CLICKS] if any(metric not in RANKING_METRIC_NAMES for metric in names) else []
    notes += [f"{names[metric]}: {formula}." for metric, formula in CLICK_FORMULAS.items() if metric in names]
    return notes + ([RANKED_CLICKS] if any(metric in RANKING_METRIC_NAMES for metric in names) else [])


def _probe_notes(section: Section) -> list[str]:
    """Which methods have learned labels of the test, where the test keeps the rows of the probe."""
    learned = {METHODS[name].title for name in LEARN_PROBE_ROWS}
    seen = [line.title for line in section.lines if line.title in learned]
    if not find_protocol(section.protocol).keeps_probe or not seen:
        return []
    return [f"This test keeps the rows of the probe, whose labels {', '.join(seen)} have learned: no fair comparison."]


def _meanings(table: Table) -> dict[str, str]:
    """The meaning of each mark, and the methods that others are tested against."""
    return {star: meaning.format(table.baseline or BEST_BASELINE) for star, meaning in STARS.items()}


def _published_notes(section: Section) -> list[str]:
    """Whose the published numbers of the section's protocol are, and those of methods that are not in the table."""
    known = published_on(section.protocol, section.dataset)
    if not known:
        return []
    rules, shown = find_protocol(section.protocol), {line.title for line in section.lines}
    notes = [PUBLISHED.format(rules.citation)] + ([f"Protocol {rules.name}: {rules.note}."] if rules.note else [])
    absent = [
        f"{title} " + " / ".join(f"{number.mean:.3f}" for (_, k), number in numbers.items() if k in (None, section.k))
        for title, numbers in known.items()
        if title not in shown
    ]
    names = ", ".join(metric_name(metric, section.k) for metric in rules.metrics)
    return notes + ([f"Also published there ({names}): {'; '.join(absent)}."] if absent else [])


def _stars_shown(sections: Iterable[Section]) -> set[str]:
    cells = [cell for section in sections for line in section.lines for cell in line.cells.values()]
    return {star for cell in cells for star in _stars(cell.comparison)}


def _baseline_notes(table: Table, section: Section) -> list[str]:
    """The baseline that the methods of each block are compared with, for every metric."""
    notes = []
    for metric in table.metrics:
        compared = [(line.block, line.cells[metric].comparison) for line in section.lines]
        best = dict.fromkeys(f"{found.against} (block {block})" for block, found in compared if found)
        notes += [f"{metric_name(metric, section.k)} against {', '.join(best)}."] if best else []
    return notes


def _test_notes(sections: Iterable[Section]) -> list[str]:
    """A note where a difference over too few seeds was not tested."""
    cells = [cell for section in sections for line in section.lines for cell in line.cells.values()]
    untested = any(cell.comparison and cell.comparison.seeds < MIN_SEEDS for cell in cells)
    return [UNTESTED] if untested else []


def _block_notes(table: Table, sections: Iterable[Section]) -> list[str]:
    """A note on the comparison of methods outside of the paper's two blocks, if there are any."""
    if table.baseline is not None:
        return []
    return [OTHERS] if any(line.block == "other" for section in sections for line in section.lines) else []


def _status_notes(section: Section) -> list[str]:
    """A line for each method with failed or pending seeds."""
    return [f"{line.title}: {_status(line, section)}." for line in section.lines if line.failed or line.pending]


def _status(line: Line, section: Section) -> str:
    """The number of seeds that are done, those that failed and why, and the number pending."""
    by_message = defaultdict(list)
    for seed, message in line.failed.items():
        by_message[_plain(message).rstrip(".")].append(str(seed))
    parts = [f"{len(line.done)} of {_counted(len(section.seeds), 'seed')}"]
    for message, seeds in by_message.items():
        parts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)} failed ({message})")
    parts += [f"{len(line.pending)} not yet run"] if line.pending else []
    return "; ".join(parts)


def _missing_notes(table: Table) -> list[str]:
    return [f"{dataset}: not found. {way}" for dataset, way in table.missing.items()]


# Escaping and marks


def _plain(text: str) -> str:
    """Text on one line, without control characters of a terminal."""
    return "".join(letter for letter in " ".join(str(text).split()) if letter.isprintable())


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\`*_\[\]<>|~&$#])", r"\\\1", _plain(text))


def _latex(text: str) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(LATEX.get(letter, letter) for letter in _plain(text)).replace("--", "-{}-")


@dataclass(frozen=True)
class Style:
    """The functions that escape text and mark numbers in one format."""

    text: Callable[[str], str]
    bold: Callable[[str], str] = str
    underlined: Callable[[str], str] = str

    def value(self, cell: Cell) -> str:
        """The mean, bold for the best two of a block, underlined for its best baseline."""
        shown = _number(cell.mean)
        shown = self.bold(shown) if cell.best else shown
        return self.underlined(shown) if cell.best_baseline else shown


PLAIN = Style(_plain)
MARKDOWN = Style(_markdown, "**{}**".format, "<u>{}</u>".format)
LATEX_STYLE = Style(_latex, r"\textbf{{{}}}".format, r"\underline{{{}}}".format)


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned; the cells are escaped already."""
    widths = [max(3, *map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = (columns, ["-" * width for width in widths], *rows)
    padded = ([cell.ljust(width) for cell, width in zip(cells, widths, strict=True)] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def _bullets(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {_markdown(note)}" for note in notes)] if notes else []


@dataclass(frozen=True)
class Sheet:
    """A table of an experiment with rows as {column: value}; a value of None was not measured.

    `facts`: the same in long format, for CSV and JSON, if `rows` are laid out for reading.
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
        columns, *rows = [list(map(_markdown, line)) for line in (self.columns, *self.cells())]
        return "\n\n".join([f"### {_markdown(self.title)}", _markdown_table(columns, rows), *self.notes]) + "\n"

    def to_csv(self) -> str:
        """The sheet as CSV, with all digits; blank for None."""
        return _csv(tuple(self.facts[0]), self.facts) if self.facts else _csv(self.columns, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"title": self.title, "rows": [dict(row) for row in self.facts or self.rows], "notes": list(self.notes)}


def write_sheets(sheets: Sequence[Sheet], folder: Path, name: str) -> list[Path]:
    """Write `name`.md, `name`.json and one CSV for each sheet (`name`.csv, `name`-2.csv, ...); their paths."""
    files = {
        f"{name}.md": "\n".join(sheet.to_markdown() for sheet in sheets),
        f"{name}.json": to_json([sheet.to_dict() for sheet in sheets], indent=2) + "\n",
    }
    for number, sheet in enumerate(sheets, 1):
        files[f"{name}.csv" if number == 1 else f"{name}-{number}.csv"] = sheet.to_csv()
    for file, text in files.items():
        write_text(folder / file, text)
    return [folder / file for file in files]


def _text(value: Value) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3f}" if isinstance(value, float) else str(value)
