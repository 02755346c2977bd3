"""Sections of paragraphs, tables and figures, rendered as one self-contained HTML page (Jinja2 with autoescape)."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from counterpoise.report.definitions import BASIC_TERMS, DEFINITIONS

Facts = Mapping[str, Any]
MOST_PHONE_COLUMNS = 3
OPTION = re.compile(r"(--[a-z-]+(?: [A-Z][A-Z]+| [\d.]*\d)?)")
FORMATS = {"count": "{:,.0f}", "number": "{:.3g}", "metric": "{:.4f}", "signed": "{:+.4f}", "sd": "{:+.3f}"}
FORMATS |= {"share": "{:.1%}", "probability": "{:.2f}", "text": "{}", "verdict": "{}"}
VERDICTS = {"better": ("▲", "good"), "worse": ("▼", "warn"), "not clear": ("≈", "unclear")}  # sign, class of the style


@dataclass(frozen=True)
class Column:
    """The head of a column: its name, the format of its numbers, and the definition that it links to."""

    name: str
    format: str = "text"
    term: str | None = None

    def __post_init__(self) -> None:
        """Every term must be defined."""
        assert self.term is None or self.term in DEFINITIONS, self.term

    @property
    def numeric(self) -> bool:
        """Whether its cells are numbers."""
        return self.format not in ("text", "verdict")

    def style(self, value: Any) -> str:
        """The class of a cell."""
        return "number" if self.numeric else VERDICTS[value][1] if self.format == "verdict" and value else ""

    def show(self, value: Any) -> str:
        """A value as text; (value, low, high) with its interval."""
        if value is None:
            return "–"
        if self.format == "verdict":
            return f"{VERDICTS[value][0]} {value}"
        if isinstance(value, list | tuple):
            return f"{self.show(value[0])} ({self.show(value[1])} to {self.show(value[2])})"
        return FORMATS[self.format].format(value)

    def key(self, value: Any) -> Any:
        """The sort key of a value."""
        return self.key(value[0]) if isinstance(value, list | tuple) else "" if value is None else value


@dataclass(frozen=True)
class Table:
    """Rows under columns; `folded` into a line that opens, `half` where it may stand beside another block."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    folded: bool = False
    half: bool = False
    sortable: bool = True

    @property
    def wide(self) -> bool:
        """Whether it has too many columns for a phone, where each row then becomes a card."""
        return len(self.columns) > MOST_PHONE_COLUMNS

    @property
    def terms(self) -> set[str]:
        """The defined terms that its heads link to."""
        return {column.term for column in self.columns if column.term}


@dataclass(frozen=True)
class Figure:
    """A chart with a title, a caption, a legend (name -> class of its marks), and its numbers as a table."""

    title: str
    svg: Markup
    caption: str = ""
    legend: dict[str, str] = field(default_factory=dict)
    numbers: Table | None = None
    term: str | None = None
    folded: bool = False

    @property
    def terms(self) -> set[str]:
        """The defined terms that it links to."""
        own = {self.term} if self.term else set()
        return own | (self.numbers.terms if self.numbers else set())


Block = str | Table | Figure  # a string is a paragraph


@dataclass(frozen=True)
class Section:
    """A title and its blocks."""

    name: str  # of the anchor
    title: str
    blocks: Sequence[Block]


def records(caption: str, rows: Iterable[Facts], *columns: str | tuple[str, ...], **options: bool) -> Table:
    """A table of dictionaries. A column is (key, name, format, term), the last two optional, or a key alone."""
    described = [(column, column) if isinstance(column, str) else column for column in columns]
    cells = [[row[key] for key, *_ in described] for row in rows]
    return Table(caption, [Column(*column[1:]) for column in described], cells, **options)


def pairs(caption: str, values: Facts, **options: bool) -> Table:
    """A table of names and values."""
    rows = [[name, "not set" if value is None else str(value)] for name, value in values.items()]
    return Table(caption, [Column("name"), Column("value")], rows, **options)


def slug(term: str) -> str:
    """The anchor of a definition."""
    return "def-" + "".join(letter if letter.isalnum() else "-" for letter in term.lower())


@cache
def load_template(package: str) -> Template:
    """page.html of a package, which escapes all values and refuses names that it is not given."""
    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["with_options"] = with_options
    return environment.get_template("page.html")


def with_options(text: str) -> Markup:
    """A sentence whose options of the command line, such as `--holdout 0.2`, are not broken over lines."""
    parts = OPTION.split(text)  # every second one is an option
    return Markup("").join(
        Markup('<span class="option">{}</span>').format(p) if n % 2 else p for n, p in enumerate(parts)
    )


def render(title: str, subtitle: str, facts: Facts, sections: Sequence[Section]) -> str:
    """A page: the verdict, headline, notes and summary of the facts, the sections, and the terms that they use."""
    blocks = [block for section in sections for block in section.blocks if not isinstance(block, str)]
    used = BASIC_TERMS | {number["term"] for number in facts["headline"]}.union(*(block.terms for block in blocks))
    folder = files("counterpoise.report") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return load_template("counterpoise.report").render(
        title=title,
        subtitle=subtitle,
        facts=facts,
        sections=sections,
        glossary={term: text for term, text in facts["definitions"].items() if term in used},
        slug=slug,
        style=Markup(style),  # a file of this package  # nosec B704
        script=Markup(script),  # nosec B704
        policy=f"default-src 'none'; img-src data:; style-src {csp_hash(style)}; script-src {csp_hash(script)}",
    )


def csp_hash(text: str) -> str:
    """The source of an inline style or script in a content security policy; browsers run no others."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
