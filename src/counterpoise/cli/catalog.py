"""`counterpoise datasets` and `counterpoise methods`: what is known by name."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.cli.console import print_line, show_json
from counterpoise.cli.options import Json

MORE = "counterpoise methods NAME explains one; docs/choosing.md helps to choose."


def datasets(as_json: Json = False) -> None:
    """List the datasets that are known by name: licence, size, and where to get them.

    For example:
        counterpoise datasets
        counterpoise datasets --json
    """
    from counterpoise.data.datasets import available

    rows = available()
    if as_json:
        show_json(rows)
        return
    for row in rows:
        place = f"found in {row['folder']}" if row["folder"] else "built in" if row["ready"] else row["obtain"]
        print_line(f"{row['name']}: {row['title']}\n  {row['size']}\n  licence: {row['licence']}\n  {place}\n")


def methods(
    name: Annotated[str | None, typer.Argument(help="Method to explain.", metavar="NAME", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List the methods by their idea, or explain one, by our name or the paper's (AKBDR-Gau).

    For example:
        counterpoise methods
        counterpoise methods skb-dr
    """
    from counterpoise.cli.describe import method_facts, method_lines, method_text
    from counterpoise.methods import METHODS

    if name is not None:
        show_json(method_facts(name)) if as_json else print_line(method_text(name))
    elif as_json:
        show_json([method.to_dict() for method in METHODS.values()])
    else:
        print_line("\n".join([*method_lines(), "", MORE]))
