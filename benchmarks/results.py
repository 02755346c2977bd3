"""Everything that docs/results.md shows, from fits to tables and figures: `make results`.

    python benchmarks/results.py [--jobs 2] [--out results]

Runs the commands below, which resume where they were stopped and repeat no fit, and puts
what they wrote between the marks of that page. The text between the tables is written by hand: read it again when
numbers change.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path

from counterpoise.cli.main import main as counterpoise

DOCS = Path(__file__).parents[1] / "docs"
PUBLISHED = "table --datasets coat --protocol paper"  # the test of the published numbers
SWEPT = ("n_functions", "strength", "tolerance", "bandwidth")
COMMANDS = (
    "table --datasets coat --methods all --seeds 10",
    f"{PUBLISHED} --methods all --seeds 10 --preset both --name published",
    "table --datasets coat --methods all --seeds 10 --tune 20 --name tuned",
    f"{PUBLISHED} --methods all --seeds 10 --preset paper --tune 20 --name published-tuned",
    "protocols upo superdr d-dr cdr",
    "protocol-effect --datasets coat --methods mf ips dr-jl dr-bias akb-dr skb-dr counterpoise --seeds 10",
    "bias",
    "bias --data coat --methods none",
    *(f"sweep --parameter {name} --datasets coat --seeds 3" for name in SWEPT),
    *(f"sweep --parameter {name} --datasets coat --seeds 3 --preset paper --name sweep-{name}-paper" for name in SWEPT),
)
FIGURES = tuple(f"sweep-{name}{preset}.png" for name in SWEPT for preset in ("", "-paper"))
MARK = re.compile(r"(<!-- (?P<file>\S+\.md)(?: (?P<heading>[^>]+?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Path) -> str:
    """The page with the content that its marks name: a file, or the section of a file below a heading."""

    def content(mark: re.Match[str]) -> str:
        text = (results / mark["file"]).read_text(encoding="utf-8")
        if mark["heading"]:
            text = section(text, mark["heading"])
        return f"{mark[1]}\n{text.strip()}\n\n{mark[4]}"

    return MARK.sub(content, page)


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next."""
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        if title.replace("\\", "") == heading:
            return body
    raise SystemExit(f"there is no section {heading!r}")


def main() -> None:
    """Run the commands, then fill the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    for command in COMMANDS:
        print(f"counterpoise bench {command}", flush=True)
        jobs = [] if command.startswith(("bias", "protocols")) else ["--jobs", str(arguments.jobs)]
        code = counterpoise(["bench", *shlex.split(command), *jobs, "--out", str(arguments.out), "--quiet"])
        if code:
            sys.exit(code)
    page = DOCS / "results.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), arguments.out), encoding="utf-8")
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        shutil.copy(arguments.out / name, DOCS / "figures" / name)


if __name__ == "__main__":
    main()
