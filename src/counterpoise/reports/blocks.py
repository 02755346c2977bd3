"""What a page is made of: paragraphs, tables and figures, in sections. Rendering knows these and nothing of facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from counterpoise.reports.definitions import DEFINITIONS

FORMATS = {
    "count": "{:,.0f}",
    "number": "{:.3g}",
    "metric": "{:.4f}",
    "signed": "{:+.4f}",
    "sd": "{:+.3f}",
    "share": "{:.1%}",
    "chance": "{:.2f}",
    "seconds": "{:.1f} s",
}


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Column:
    """The head of a column: its name, the format of its numbers, and the definition that it links to."""

    name: str
    format: str = "text"
    term: str | None = None

    def __post_init__(self) -> None:
        """Every term is defined."""
        assert self.term is None or self.term in DEFINITIONS, self.term

    @property
    def numeric(self) -> bool:
        """Whether its cells are numbers."""
        return self.format != "text"

    def show(self, value: Any) -> str:
        """A value as text; (value, low, high) with its interval."""
        if value is None:
            return "–"
        if isinstance(value, list | tuple):
            return f"{self.show(value[0])} ({self.show(value[1])} to {self.show(value[2])})"
        return FORMATS[self.format].format(value) if self.format in FORMATS else str(value)

    def key(self, value: Any) -> Any:
        """What a value is sorted by."""
        return self.key(value[0]) if isinstance(value, list | tuple) else "" if value is None else value


@dataclass(frozen=True)
class Table:
    """Rows under columns; `folded` where it is behind a line to open, `half` where it may stand beside another."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    folded: bool = False
    half: bool = False
    sortable: bool = True
    kind: str = "table"


@dataclass(frozen=True)
class Figure:
    """A chart with a title, a legend (name -> class of its marks), a caption, and its numbers as a table."""

    title: str
    svg: Markup
    caption: str = ""
    legend: dict[str, str] = field(default_factory=dict)
    numbers: Table | None = None
    term: str | None = None
    tall: bool = False
    kind: str = "figure"


@dataclass(frozen=True)
class Section:
    """A title and what stands under it."""

    name: str  # of the anchor
    title: str
    blocks: Sequence[Text | Table | Figure]


def slug(term: str) -> str:
    """The anchor of a definition."""
    return "def-" + "".join(letter if letter.isalnum() else "-" for letter in term.lower())
