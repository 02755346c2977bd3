"""The page at /: the lists of one user side by side, with how popular each item is. Works without any script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from counterpoise import __version__
from counterpoise.errors import ConfigError, CounterpoiseError
from counterpoise.report.page import csp_hash
from counterpoise.serve.lists import Items
from counterpoise.serve.model import Served
from counterpoise.serve.schema import MOST_K

POPULAR = "Most rated, not seen yet"
REPORT_POLICY = "sandbox allow-scripts; connect-src 'none'; form-action 'none'"  # an origin of its own


@dataclass(frozen=True)
class Shown:
    """A list as the page shows it: rows of item, score (None where there is none) and ratings in the log."""

    title: str
    note: str
    rows: list[tuple[Any, float | None, int]]

    @property
    def mean_ratings(self) -> float:
        """How popular its items are on average."""
        return sum(row[2] for row in self.rows) / max(1, len(self.rows))


def show_page(run: Served, user: str, k: str) -> tuple[str, int]:
    """The page as HTML, and its status: 404 for an unknown user, 422 for a wrong k."""
    lists, error, status = [], "", 200
    try:
        lists = shown_lists(run, user, _length(k)) if user else []
    except CounterpoiseError as problem:
        error, status = str(problem), 422 if isinstance(problem, ConfigError) else 404
    text = _template().render(
        run=run,
        user=user,
        k=k,
        lists=lists,
        error=error,
        most_k=MOST_K,
        version=__version__,
        style=Markup(style()),  # a file of this package  # nosec B704
    )
    return text, status


def shown_lists(run: Served, user: str, k: int) -> list[Shown]:
    """What the run recommends; beside it the plain run's list, where there is one, and what is rated most."""
    code = run.user(user)
    own = "Plain" if run.is_plain else "Debiased"
    stranger = "" if code is not None else " A stranger to the log gets the items that are liked most."
    lists = [_shown(run, f"{own}: {run.method}", f"What this run recommends.{stranger}", *run.lists.recommend(code, k))]
    if run.plain is not None:
        note = "Matrix factorisation that takes the log as it is."
        lists.append(_shown(run, "Plain", note, *run.plain.recommend(code, k)))
    else:
        note = "No plain run was given (serve --plain RUN), so popularity stands here."
        lists.append(_shown(run, POPULAR, note, run.lists.most_popular(code, k)))
    return lists


def _shown(run: Served, title: str, note: str, items: Items, scores: Any = None) -> Shown:
    values = [None] * len(items) if scores is None else scores.tolist()
    ratings = run.lists.popularity[items].tolist()
    names = [run.items.plain[item] for item in items.tolist()]
    return Shown(title, note, list(zip(names, values, ratings, strict=True)))


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_K):
        raise ConfigError(f"`k` must be an integer from 1 to {MOST_K}, got {text[:20]!r}.")
    return int(text)


@lru_cache(maxsize=1)
def style() -> str:
    """The report's look, and what a form needs."""
    own = files("counterpoise.serve") / "templates" / "form.css"
    report = files("counterpoise.report") / "templates" / "style.css"
    return report.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def page_headers() -> dict[str, str]:
    """A browser loads nothing from elsewhere, runs no script, and shows the page in no other."""
    rules = f"default-src 'none'; img-src data:; style-src {csp_hash(style())}; form-action 'self'"
    return {
        "Content-Security-Policy": f"{rules}; base-uri 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("counterpoise.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("look.html")
