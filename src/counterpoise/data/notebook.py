"""HTML of objects in a notebook: a title, sentences and tables, escaped, without scripts.

No colours are set, so that the page's own are readable in light and in dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Rows = Sequence[Sequence[Any]]
Block = str | Rows | Mapping[str, Any]
MAX_ROWS = 20  # of a table; more are counted in a last line
CELL = "padding:2px 12px 2px 0;border-bottom:1px solid #8884;text-align:"


def notebook_html(title: str, *blocks: Block) -> str:
    """HTML of a title and blocks: a sentence, {name: value}, or the rows of a table, of which the first is its head.

    Empty blocks are left out.
    """
    parts = [f"<strong>{_text(title)}</strong>"]
    for block in blocks:
        if isinstance(block, str):
            parts.append(f'<p style="margin:.4em 0;white-space:pre-wrap">{_text(block)}</p>' if block else "")
        elif isinstance(block, Mapping):
            parts.append(_table(None, list(block.items())))
        else:
            parts.append(_table(block[0], block[1:]) if len(block) > 1 else "")
    return f'<div style="max-width:60em;overflow-x:auto;line-height:1.4">{"".join(parts)}</div>'


def _table(head: Sequence[Any] | None, rows: Rows) -> str:
    if not rows:
        return ""
    shown = rows[:MAX_ROWS]
    numeric = [all(_is_number(row[place]) or row[place] is None for row in shown) for place in range(len(shown[0]))]
    top = "" if head is None else f"<thead>{_row('th', head, numeric)}</thead>"
    body = "".join(_row("td", row, numeric) for row in shown)
    more = f"<p>and {len(rows) - len(shown):,} more</p>" if len(rows) > len(shown) else ""
    return f'<table style="border-collapse:collapse;margin:.4em 0">{top}<tbody>{body}</tbody></table>{more}'


def _row(tag: str, cells: Sequence[Any], numeric: Sequence[bool]) -> str:
    styles = [CELL + ("right" if number else "left") for number in numeric]
    inside = (f'<{tag} style="{style}">{_text(cell)}</{tag}>' for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(inside)}</tr>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """A value as escaped text: None and nan as a dash, numbers with separators or four digits."""
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}" if 0.001 <= abs(value) < 1000 and value != int(value) else f"{value:,.4g}"
    return f"{value:,}" if _is_number(value) else escape(str(value))
