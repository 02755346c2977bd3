"""Measurements kept in a folder, one file for each unit of work: what is done is not done again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise import __version__
from counterpoise.errors import DataError
from counterpoise.storage import write_text

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class KeptRows:
    """A folder of rows. The name of a file is a hash of all that decides what is in it, our version included."""

    folder: Path

    def path(self, name: str, facts: Mapping[str, Any]) -> Path:
        """Where the rows of a unit of work are kept."""
        text = json.dumps({"version": __version__, **facts}, sort_keys=True, default=str)
        return self.folder / f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def get(self, name: str, facts: Mapping[str, Any], work: Callable[[], Rows]) -> Rows:
        """The rows that are kept, or those of the work, kept from now on."""
        path = self.path(name, facts)
        if path.exists():
            return _read(path)
        rows = work()
        write_text(path, json.dumps(rows) + "\n")
        return rows


def _read(path: Path) -> Rows:
    if path.is_symlink():
        raise DataError(f"{path} is a link, and a folder of results holds none: it is not read. Delete it.")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}). Delete it, and it is measured again.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} holds no rows of results. Delete it, and it is measured again.")
    return rows
