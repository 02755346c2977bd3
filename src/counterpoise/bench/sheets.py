"""A plain table of facts with a title and notes: for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.bench.layouts import markdown_table
from counterpoise.bench.wording import markdown
from counterpoise.persistence import write_text

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
