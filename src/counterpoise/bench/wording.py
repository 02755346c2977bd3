"""The words of a table: names of metrics, cells and notes, in plain text, Markdown or LaTeX."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from counterpoise.bench.published import CITATION
from counterpoise.bench.records import Cell, Comparison, Line, Section, Table
from counterpoise.bench.summary import split_metric
from counterpoise.evaluation import EMPTY_RULES, NAMES

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
    return NAMES[name].format(k=k) + (f" ({rule})" if rule and twice else "")


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
        f"{', '.join(names)}: users without a positive label are {EMPTY_RULES[rule]}."
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
