"""The page at /: for a user two lists side by side, for an item those most like it. It needs no script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from markupsafe import Markup

from counterpoise import __version__
from counterpoise.data.feedback import words_of
from counterpoise.errors import ConfigError, CounterpoiseError
from counterpoise.report.page import csp_hash, load_template
from counterpoise.serve.lists import Items
from counterpoise.serve.model import ServedRun
from counterpoise.serve.schema import MAX_K

MAX_HISTORY = 5  # items of the user's own that are shown
SCORE_HEADS = {  # the head of a column of scores, and their form
    "ratings": ("Probability of a positive rating", "{:.1%}"),
    "clicks": ("Relevance", "{:.3f}"),
    "impressions": ("Probability of a click", "{:.1%}"),
}
SIMILARITY = "Similarity", "{:.3f}"
REPORT_POLICY = "sandbox allow-scripts; connect-src 'none'; form-action 'none'"  # gives the report an origin of its own


def render_page(run: ServedRun, user: str, k: str, item: str = "") -> tuple[str, int]:
    """The page as HTML, and its status: 404 for an unknown user or item, 422 for a wrong k.

    Without a user and an item it shows an example: a user with as many ratings as the median user.
    """
    is_example = not user and not item
    user = str(run.users.values[run.example]) if is_example else user
    lists, error, status = [], "", 200
    try:
        lists = [similar_list(run, item, _length(k))] if item else user_lists(run, user, _length(k))
    except CounterpoiseError as problem:
        error, status = str(problem), 422 if isinstance(problem, ConfigError) else 404
    code = None if item or error else run.users.code(user)
    text = load_template("counterpoise.serve").render(
        run=run,
        user=user,
        k=k,
        item=run.named(run.items.require(item)) if item and lists else None,
        is_example=is_example,
        history=history(run, code),
        lists=lists,
        error=error,
        max_k=MAX_K,
        words=words_of(run.feedback),
        version=__version__,
        style=Markup(style()),  # a file of this package  # nosec B704
    )
    return text, status


def history(run: ServedRun, user: int | None) -> tuple[list[dict[str, Any]], int]:
    """(some items that a user has rated, the most rated first; how many there are)."""
    seen = run.lists.seen(user)
    most = seen[np.argsort(-run.lists.popularity[seen], kind="stable")[:MAX_HISTORY]]
    return [run.named(item) for item in most.tolist()], len(seen)


def user_lists(run: ServedRun, user: str, k: int) -> list[dict[str, Any]]:
    """The list of the run, next to that of the baseline run or else of the most rated items."""
    code, words = run.user(user), words_of(run.feedback)
    title = f"{'Debiased' if run.is_corrected else 'Not corrected'}: {run.method}"
    note = "Best first; items in the user's log are left out."
    if code is None:
        note = words("This user is unknown: the items with the best rates of positive labels.")
    head = SCORE_HEADS[run.feedback if run.feedback in SCORE_HEADS else "ratings"]
    own = _page_list(run, title, note, head, *run.lists.recommend(code, k))
    if run.baseline is not None:
        beside = run.baseline.recommend(code, k)
        return [own, _page_list(run, "For comparison, not corrected", words.beside, head, *beside)]
    note = "For comparison. A run without correction can stand here: serve --baseline RUN."
    return [own, _page_list(run, words("Most rated, not seen yet"), note, None, run.lists.most_popular(code, k))]


def similar_list(run: ServedRun, item: str, k: int) -> dict[str, Any]:
    """The items most like one."""
    note = "Most similar first, by the directions of the learned factors; 1 is the most. Little evidence counts little."
    return _page_list(run, "Similar items", note, SIMILARITY, *run.lists.similar(run.items.require(item), k))


def _page_list(
    run: ServedRun, title: str, note: str, head: tuple[str, str] | None, items: Items, scores: Any = None
) -> dict[str, Any]:
    """A list on the page: the head of its scores, and rows of item, score as text and number of ratings in the log."""
    form = "" if head is None else head[1]
    values = [form] * len(items) if scores is None else [form.format(score) for score in scores.tolist()]
    names, ratings = [run.named(item) for item in items.tolist()], run.lists.popularity[items].tolist()
    return {
        "title": title,
        "note": note,
        "head": head and head[0],
        "rows": list(zip(names, values, ratings, strict=True)),
    }


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
