"""The table in LaTeX, in the paper's layout: a row for each method, the metrics of each dataset side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from counterpoise.bench import wording
from counterpoise.bench.records import Cell, Line, Section, Table
from counterpoise.bench.runs import order
from counterpoise.bench.wording import LATEX_STYLE, latex

MARKS = "The best two results are bold and the best baseline is underlined, for IPS-based and for DR-based methods."
STARS = {
    "*": r"$^{*}$ better than the best baseline by the paired t-test over seeds ($p \leq 0.05$).",
    "†": r"$^{\dagger}$ also after Holm's correction over all methods compared on the dataset.",
}
NOTHING = "--"


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
        _row(["Method"] + [latex(wording.metric_name(m, s.k, table.metrics)) for s in sections for m in table.metrics]),
        *_body(table, sections),
        r"\bottomrule",
        r"\end{tabular}",
        *_notes(table, sections),
        r"\end{table*}",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _name(section: Section) -> str:
    return rf"\textsc{{{latex(section.dataset)}}}"


def _caption(sections: Sequence[Section]) -> str:
    counts = sorted({len(section.seeds) for section in sections})
    seeds = wording.counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    names = ", ".join(dict.fromkeys(map(_name, sections)))
    where = f"backbone {latex(sections[0].backbone)}, protocol {latex(sections[0].protocol)}"
    text = f"Performance on {names}: mean and standard deviation over {seeds} ({where})."
    shown = wording.stars_shown(sections)
    others = map(latex, wording.block_notes(sections))
    return " ".join([text, MARKS, *others, *(meaning for star, meaning in STARS.items() if star in shown)])


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
        cells = [_cell(one.cells[m]) if one else NOTHING for one in found[line.method] for m in table.metrics]
        lines.append(_row([latex(line.title), *cells]))
    return lines


def _cell(cell: Cell) -> str:
    r"""As the paper: \textbf{mean}$^{*}_{\pm deviation}$."""
    if not cell.seeds:
        return NOTHING
    raised = wording.stars(cell.comparison).replace("†", r"\dagger")
    above = f"^{{{raised}}}" if raised else ""
    below = "" if math.isnan(cell.std) else rf"_{{\pm{cell.std:.3f}}}"
    return LATEX_STYLE.value(cell) + (f"${above}{below}$" if above or below else "")


def _notes(table: Table, sections: Sequence[Section]) -> list[str]:
    """What has to be said below: rules, methods that are not complete, datasets that are not there."""
    notes = wording.rule_notes(table.metrics, sorted({section.k for section in sections}))
    notes += [f"{section.dataset}, {note}" for section in sections for note in wording.status_notes(section)]
    notes += wording.missing_notes(table)
    if not notes:
        return []
    lines = [rf"{latex(note)}\par" for note in notes]
    return [r"\par\medskip", r"\begin{minipage}{0.95\linewidth}\footnotesize\raggedright", *lines, r"\end{minipage}"]
