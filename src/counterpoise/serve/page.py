"""The page at /: two lists for a user side by side, with the popularity of each item. It needs no script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from counterpoise import __version__
from counterpoise.data.feedback import words_of
from counterpoise.errors import ConfigError, CounterpoiseError
from counterpoise.report.page import csp_hash, load_template
from counterpoise.serve.lists import Items
from counterpoise.serve.model import ServedRun
from counterpoise.serve.schema import MAX_K

REPORT_POLICY = "sandbox allow-scripts; connect-src 'none'; form-action 'none'"  # gives the report an origin of its own


def render_page(run: ServedRun, user: str, k: str) -> tuple[str, int]:
    """The page as HTML, and its status: 404 for an unknown user, 422 for a wrong k."""
    lists, error, status = [], "", 200
    try:
        lists = page_lists(run, user, _length(k)) if user else []
    except CounterpoiseError as problem:
        error, status = str(problem), 422 if isinstance(problem, ConfigError) else 404
    text = load_template("counterpoise.serve").render(
        run=run,
        user=user,
        k=k,
        lists=lists,
        error=error,
        max_k=MAX_K,
        words=words_of(run.feedback),
        version=__version__,
        style=Markup(style()),  # a file of this package  # nosec B704
    )
    return text, status


def page_lists(run: ServedRun, user: str, k: int) -> list[dict[str, Any]]:
    """The list of the run, next to that of the baseline run or else of the most rated items."""
    code = run.user(user)
    title = f"{'Debiased' if run.is_corrected else 'Not corrected'}: {run.method}"
    words = words_of(run.feedback)
    unknown = (
        "" if code is not None else words(" This user is unknown: the items with the best rates of positive labels.")
    )
    own = _page_list(run, title, f"Recommendations of this run.{unknown}", *run.lists.recommend(code, k))
    if run.baseline is not None:
        note = words.beside
        return [own, _page_list(run, "Baseline", note, *run.baseline.recommend(code, k))]
    note = words("No baseline run was given (serve --baseline RUN), so the most rated items are shown.")
    return [own, _page_list(run, words("Most rated, not seen yet"), note, run.lists.most_popular(code, k))]


def _page_list(run: ServedRun, title: str, note: str, items: Items, scores: Any = None) -> dict[str, Any]:
    """A list on the page: rows of item (id and maybe name), score (None where there is none) and ratings in the log."""
    values = [None] * len(items) if scores is None else scores.tolist()
    ratings = run.lists.popularity[items].tolist()
    names = [run.named(item) for item in items.tolist()]
    return {"title": title, "note": note, "rows": list(zip(names, values, ratings, strict=True))}


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_K):
        raise ConfigError(f"`k` must be an integer from 1 to {MAX_K}, got {text[:20]!r}.")
    return int(text)


@cache
def style() -> str:
    """The stylesheet of the report, and that of the form."""
    own = files("counterpoise.serve") / "templates" / "form.css"
    report = files("counterpoise.report") / "templates" / "style.css"
    return report.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


@cache
def page_headers() -> dict[str, str]:
    """Headers that forbid scripts, loading anything from elsewhere, and framing."""
    rules = f"default-src 'none'; img-src data:; style-src {csp_hash(style())}; form-action 'self'"
    return {
        "Content-Security-Policy": f"{rules}; base-uri 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
