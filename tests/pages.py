"""The code of the pages: every block is run, or says in a comment above it why not.

Blocks of a page run in order, in one namespace and one folder; `counterpoise` commands run through the command line.
`<!-- not run: REASON -->` on the line above a block leaves it out. Commands that would train for long are run with two
epochs, one seed and two trials.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.cli.main import main
from counterpoise.data.datasets import available

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("python", "sh")
SHORT = {"--seeds": "1", "--trials": "2", "--jobs": "1", "--folds": "2"}
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One block of code on a page."""

    kind: str
    text: str
    reason: str | None  # why it is not run

    @property
    def runs(self) -> bool:
        """Whether the test has something to do."""
        return self.kind in RUN and self.reason is None


def blocks(page: Path) -> list[Block]:
    """The blocks of code of a page."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["kind"], match["text"], match["reason"]) for match in found]


def run_page(page: Path) -> dict[str, Any]:
    """Run all blocks; the names that the Python leaves."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.runs and block.kind == "python":
            exec(compile(block.text, f"{page.name}: {block.text[:40]!r}", "exec", dont_inherit=True), names)
        elif block.runs:
            for line in commands(block.text):
                run_command(line)
    return names


def commands(text: str) -> Iterator[str]:
    """The lines of a shell block without comments; those that end in a backslash go on."""
    for line in text.replace("\\\n", " ").splitlines():
        words = re.sub(r"(^|\s)#.*$", "", line).strip()
        if words:
            yield words


def run_command(line: str) -> None:
    """Run a command of ours; check that what others need is there."""
    words = shlex.split(line)
    if words[0] == "counterpoise":
        code = main(shortened(words[1:]))
        assert code == expected(line), (line, code)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[1] in targets, line
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), line
    else:
        assert words[:2] == ["pip", "install"], f"mark the block as not run, or teach the test: {line}"


def shortened(words: list[str]) -> list[str]:
    """The same command with less to train."""
    words = [SHORT.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    extra = {"fit": ["--epochs", "2"], "tune": ["--set", "epochs=2"]}.get(words[0], [])
    return words if "--epochs" in words else [*words, *extra]


def expected(line: str) -> int:
    """The exit code: 2 where a command names data that is not there."""
    missing = [row["name"] for row in available() if not row["ready"]]
    return 2 if any(re.search(rf"\b{name}\b(?!-like)", line) for name in missing) else 0
