"""Make every number of README.md and docs/results.md again, from nothing, and say which differ: `make reproduce`.

    python benchmarks/results.py [--jobs 2] [--out results] [--only coat probes] [--fill] [--quick]

Each experiment is a command; what it finds is kept in the folder OUT, so that a run that was stopped goes on. The
tables of the pages are then read, and each number is compared with what was measured, as it is printed;
OUT/differences.md lists those that differ. Numbers in sentences are for people to compare: they rest on the files that
are named beside the commands. Speeds depend on the machine and are not made again.

`--fill`: write what was measured to the tables of docs/results.md that have a row for each method, with their marks.
`--quick`: three methods on one simulated log. The commands and the comparison run, the numbers are others.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from counterpoise.cli.main import main as counterpoise
from counterpoise.data.datasets import available
from counterpoise.methods import canonical_name

ROOT = Path(__file__).parents[1]
COAT = "--datasets coat --seeds"
EXPERIMENTS = {  # by the name of what they write to OUT
    "coat": f"bench table {COAT} 10 --methods all --baseline mf --name coat",
    "ablation": "python benchmarks/ablation.py --only coat",
    "ablation-paper": "python benchmarks/ablation.py --only coat --protocol paper",
    "published": f"bench table {COAT} 10 --methods all --protocol paper --preset both --name published",
    "tuned": f"bench table {COAT} 10 --methods all --tune 20 --baseline mf --name tuned",
    "published-tuned": f"bench table {COAT} 10 --methods all --protocol paper --preset paper --tune 20 "
    "--name published-tuned",
    "protocol-effect": f"bench protocol-effect {COAT} 10 --methods mf ips dr-jl dr-bias akb-dr skb-dr counterpoise",
    "sweep-n_functions": f"bench sweep --parameter n_functions {COAT} 3",
    "sweep-strength": f"bench sweep --parameter strength {COAT} 3",
    "bias": "bench bias",
    "bias-coat": "bench bias --data coat --methods none",
    "probes": "python benchmarks/probes.py",
    "kinds": "python benchmarks/kinds.py",
    "kinds-dr": "python benchmarks/kinds.py --against dr",
}
QUICK = {"coat": "bench table --datasets coat-like --seeds 1 --methods popularity mf wkb-dr --set epochs=3 --name coat"}
ONE_PROCESS = ("ablation", "ablation-paper", "bias", "bias-coat")
BEST = "best baseline"  # of the paper's table, by each metric
EVERY, BESIDE = "## All methods on Coat", "## Beside the published numbers"  # of the page
METRICS = {"AUC": "auc", "NDCG@5": "ndcg", "F1@5": "f1"}
PAPER_METRICS = ("auc", "ndcg_one", "f1_one")
PARTS = {  # rows of the page's ablation and of the script's
    "`mf`": "mf",
    "+ missingness model (`mnar`)": "mf + missingness model (mnar)",
    "+ exposure covariate": "mf + exposure",
    "+ both, as an ensemble": "mf + exposure + missingness model, ensemble",
    "+ side features alone": "mf + side features",
    "`counterpoise` without a probe": "counterpoise without a probe",
    "... without the ordinal loss": "counterpoise without the ordinal loss",
    "... without the labels of the probe": "counterpoise without the labels of the probe",
    "... with equal weights": "counterpoise with equal weights",
    "`counterpoise`": "counterpoise",
}
PROBED = {  # rows of the page's simulated logs and titles of the script's tables
    "`counterpoise` - `mf`, no probe": "counterpoise - mf, 0 probe rows",
    "the same with 200 rows of probe": "counterpoise - mf, 200 probe rows",
    "the same with 3,000 rows": "counterpoise - mf, 3,000 probe rows",
    "- `mf` on log and probe, 3,000 rows": "counterpoise - mf-with-probe, 3,000 probe rows",
}
NUMBER = re.compile(r"[+-]?(?:\d+\.\d+|\.\d+|\d+)")
Cells = dict[tuple[str, str], list[float]]  # by row and column: one value for each number, or for each method
Text = dict[tuple[str, str], str]


class Difference(NamedTuple):
    """A cell of a page whose number is another, or was not measured."""

    where: str
    row: str
    column: str
    printed: str
    measured: str | None  # None: not at all


# What is printed


def tables(text: str) -> Iterator[tuple[str, Text]]:
    """(the text above, the cells) of every table of a page in Markdown."""
    blocks = re.split(r"\n\s*\n", text)
    for above, block in zip(["", *blocks], blocks, strict=False):
        lines = [split(line) for line in block.splitlines()]
        if len(lines) > 2 and set("".join(lines[1])) == {"-"}:
            columns = lines[0][1:]
            pairs = [
                ((row[0], column), cell) for row in lines[2:] for column, cell in zip(columns, row[1:], strict=True)
            ]
            yield above.strip(), dict(pairs)


def split(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def table_of(text: str, mark: str) -> Text:
    """The first table below a mark."""
    return next(tables(text[text.index(mark) :]))[1]


# What was measured


def means(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """(preset, method) -> metric -> mean, of `bench table`; the best baseline by each metric has a name of its own."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    if not file.is_file():
        return found
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["mean"]:
                value, best = float(row["mean"]), found[row["preset"], BEST]
                found[row["preset"], name_of(row)][row["metric"]] = value
                if row["group"] == "baseline" and row["block"] in ("IPS", "DR"):
                    best[row["metric"]] = max(value, best.get(row["metric"], value))
    return found


def marks(file: Path) -> dict[tuple[str, str], str]:
    """(method, metric) -> the mark of the difference to the baseline under the defaults, as the page has it."""
    found = {}
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                if row["preset"] == "default" and row.get("significant") == "1":
                    mark = "\\*" if row["better"] == "1" else "↓"
                    found[name_of(row), row["metric"]] = mark + "†" * (row["significant_holm"] == "1")
    return found


def name_of(row: dict[str, str]) -> str:
    """A kernel method without its kernel is the Gaussian one."""
    return row["method"].removesuffix("-gau")


def first_numbers(cells: Text) -> Cells:
    """The first number of each cell."""
    return {place: [float(match[0])] for place, cell in cells.items() if (match := NUMBER.match(cell))}


def ablation(file: Path) -> Cells:
    """The rows of `ablation.py`, named as on the page."""
    if not file.is_file():
        return {}
    measured = first_numbers(table_of(file.read_text(encoding="utf-8"), "## coat"))
    own = {theirs: ours for ours, theirs in PARTS.items()}
    return {(own[row], column): values for (row, column), values in measured.items() if row in own}


def probed(file: Path) -> Cells:
    """The means of `probes.py`, and how many of its cells are marked as better and as worse."""
    found: Cells = {}
    measured = dict(tables(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    for row, title in PROBED.items():
        cells = measured.get(title, {})
        found |= {(row, column): values for (kind, column), values in first_numbers(cells).items() if kind == "mean"}
        if cells:
            marks = [cell[-1:] for cell in cells.values()]
            found[row, "better, worse"] = [marks.count("+"), marks.count("-")]
    return found


def of_methods(labels: Iterable[str], fits: dict[tuple[str, str], dict[str, float]]) -> Cells:
    """Rows that name methods: a value for each, under the defaults."""
    found: Cells = {}
    for label in labels:
        names = [canonical_name(name) for name in re.findall(r"`([\w-]+)`", label)]
        names = names or [BEST] * label.startswith(BEST)
        for column, metric in METRICS.items():
            values = [fits[key][metric] for name in names if metric in fits.get(key := ("default", name), {})]
            if values and len(values) == len(names):
                found[label, column] = values
    return found


def texts(labels: Iterable[str], column: str, file: Path, preset: str, metrics: Sequence[str], marked: bool) -> Text:
    """Cells of rows that name methods: ".785*†/.681-.683/.546", a range where methods differ, a mark they share."""
    fits, mark_of, found = means(file), marks(file) if marked else {}, {}
    for label in labels:
        names = [canonical_name(name) for name in re.findall(r"`([\w-]+)`", label)]
        if not all(metric in fits.get((preset, name), {}) for name in names for metric in metrics):
            continue
        parts = []
        for metric in metrics:
            values = [f"{fits[preset, name][metric]:.3f}".removeprefix("0") for name in names]
            shared = {mark_of.get((name, metric), "") for name in names}
            ends = dict.fromkeys([min(values), max(values)])
            parts.append("-".join(ends) + (shared.pop() if len(shared) == 1 else ""))
        found[label, column] = "/".join(parts)
    return found


def of_page(page: str, out: Path) -> dict[str, tuple[Text, Text]]:
    """{heading: printed and measured cells} of the tables of docs/results.md with a row a method."""
    every, beside = table_of(page, EVERY), table_of(page, BESIDE)
    own, published = out / "coat.csv", out / "published.csv"
    rows, others = dict.fromkeys(row for row, _ in every), dict.fromkeys(row for row, _ in beside)
    honest = tuple(METRICS.values())
    found = texts(rows, "as it comes", own, "default", honest, True)
    found |= texts(rows, "tuned", out / "tuned.csv", "default", honest, True)
    ours = texts(others, "our defaults", published, "default", PAPER_METRICS, False)
    ours |= texts(others, "the paper's settings", published, "paper", PAPER_METRICS, False)
    return {EVERY: (every, found), BESIDE: (beside, ours)}


def filled(page: str, mark: str, cells: Text) -> str:
    """The page with these cells in the first table below a mark."""
    above, below = page[: page.index(mark)], page[page.index(mark) :].split("\n")
    first = next(place for place, line in enumerate(below) if line.startswith("|"))
    columns = split(below[first])
    for place in range(first + 2, len(below)):
        if not below[place].startswith("|"):
            break
        row = split(below[place])
        shown = [cells.get((row[0], column), cell) for column, cell in zip(columns, row, strict=True)]
        below[place] = f"| {' | '.join(shown)} |".replace("|  |", "| |")
    return above + "\n".join(below)


# Both


def differing(where: str, printed: Text, measured: Cells) -> list[Difference]:
    """The cells with numbers whose values, rounded as they are printed, are others."""
    found = []
    for (row, column), cell in printed.items():
        numbers, values = NUMBER.findall(cell), measured.get((row, column))
        if not numbers or column == "published":
            continue
        if values is None:
            found.append(Difference(where, row, column, cell, None))
            continue
        if " to " in cell:
            pairs = [(numbers[0], min(values)), (numbers[1], max(values))]
        else:
            pairs = [
                (number, value) for number, value in zip(numbers * (len(values) // len(numbers)), values, strict=True)
            ]
        if not all(agree(number, value) for number, value in pairs):
            found.append(Difference(where, row, column, cell, ", ".join(f"{value:.5g}" for _, value in pairs)))
    return found


def agree(printed: str, value: float) -> bool:
    """Whether a value is printed like this."""
    digits = len(printed.partition(".")[2])
    return abs(float(printed) - value) <= 0.5 * 10**-digits + 1e-9


def compare(out: Path) -> tuple[int, list[Difference]]:
    """(how many numbers the tables of the pages have to compare, the cells that differ)."""
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
    coat, parts = means(out / "coat.csv"), ablation(out / "ablation.md")
    front = table_of(readme, "On Coat's uniform test")
    flagship = {"`counterpoise`, without a uniform sample": "`counterpoise` without a probe"}
    flagship["`counterpoise`, with 232 uniform ratings"] = "`counterpoise`"
    of_front = of_methods((row for row, _ in front if row not in flagship), coat)
    of_front |= {
        (row, name): parts[part, name] for row, part in flagship.items() for name in METRICS if (part, name) in parts
    }
    pairs = {
        "README.md": (front, of_front),
        "What each part brings": (table_of(page, "## What each part of"), parts),
        "Simulated logs": (table_of(page, "## Simulated logs"), probed(out / "probes.md")),
    }
    of_cells = of_page(page, out)
    found = [one for where, (text, measured) in pairs.items() for one in differing(where, text, measured)]
    found += [one for mark, pair in of_cells.items() for one in other_texts(mark.removeprefix("## "), *pair)]
    printed = [text for text, _ in (*pairs.values(), *of_cells.values())]
    cells = (cell for text in printed for (_, column), cell in text.items() if column != "published")
    return sum(len(NUMBER.findall(cell)) for cell in cells), found


def other_texts(where: str, printed: Text, measured: Text) -> list[Difference]:
    """The cells with numbers whose text is another."""
    places = [(*place, cell) for place, cell in printed.items() if NUMBER.search(cell) and place[1] != "published"]
    every = [Difference(where, row, column, cell, measured.get((row, column))) for row, column, cell in places]
    return [one for one in every if one.printed != one.measured]


def run(name: str, command: str, jobs: int, out: Path) -> None:
    """Run an experiment, unless what it writes is there. `bench` itself repeats no fit."""
    words = shlex.split(command) + ([] if name in ONE_PROCESS else ["--jobs", str(jobs)])
    print(f"{shlex.join(words)}  -> {out / name}.md", flush=True)
    if words[0] == "bench":
        code = counterpoise([*words, "--out", str(out), "--quiet"])
        if code:
            sys.exit(code)
        return
    file = out / f"{name}.md"
    if not file.is_file():
        printed = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        file.write_text(printed.stdout, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Run the experiments, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    chosen = QUICK if options.quick else {name: EXPERIMENTS[name] for name in options.only}
    coat = next(row for row in available() if row["name"] == "coat")
    if not options.quick and not coat["ready"]:
        way = "name the folder above `coat` in COUNTERPOISE_DATA"
        sys.exit(f"the numbers of the pages need the Coat ratings. {coat['obtain']}, and {way}.")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, command in chosen.items():
        run(name, command, options.jobs, options.out)
    if options.fill:
        file = ROOT / "docs/results.md"
        page = file.read_text(encoding="utf-8")
        for mark, (_, cells) in of_page(page, options.out).items():
            page = filled(page, mark, cells)
        file.write_text(page, encoding="utf-8")
    count, found = compare(options.out)
    other = [one for one in found if one.measured is not None]
    wrong = sum(len(NUMBER.findall(one.printed)) for one in found)
    lines = [f"Of {count} numbers {count - wrong} are in cells as printed; {len(other)} cells are others.", ""]
    lines += [f"- {one.where}, {one.row}, {one.column}: printed {one.printed}, now {one.measured}" for one in other]
    absent = Counter(one.where for one in found if one.measured is None)
    lines += [f"- {where}: {cells} cells were not measured" for where, cells in absent.items()]
    (options.out / "differences.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
