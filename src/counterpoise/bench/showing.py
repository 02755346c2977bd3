"""Tables of results on the screen and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.console import say, show_json, show_table

if TYPE_CHECKING:
    from counterpoise.bench.sheets import Sheet


def show_sheets(
    sheets: list[Sheet],
    missing: list[dict[str, str]],
    out: Path,
    name: str,
    as_json: bool,
    quiet: bool,
    pictures: Sequence[Path] = (),
) -> None:
    """Write them, and print them; without any, nothing is written."""
    from counterpoise.bench.sheets import write_sheets

    paths = [*write_sheets(sheets, out, name), *pictures] if sheets else []
    if as_json:
        show_json({"sheets": [sheet.to_dict() for sheet in sheets], "missing": missing, "files": list(map(str, paths))})
    elif not quiet:
        for sheet in sheets:
            say(sheet.title)
            show_table(list(sheet.columns), sheet.cells())
            say("\n".join(sheet.notes))
        for absent in missing:
            say(f"{absent['dataset']} is missing. {absent['missing']}")
        if paths:
            say(f"Written to {out}: {', '.join(sorted(path.name for path in paths))}")
