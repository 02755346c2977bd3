"""Ids between JSON and codes: compared by how they are written, answered as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from counterpoise.errors import DataError
from counterpoise.vocabulary import Vocabulary, as_text

Id = int | str
SHOWN = 80  # letters of an unknown id in a message


class UnknownId(DataError):
    """An id that the log does not have."""


class Ids:
    """One side of a log: `written` has the code of each id as text, `plain` the id of each code as JSON has it."""

    def __init__(self, vocabulary: Vocabulary, kind: str) -> None:
        self.vocabulary, self.kind = vocabulary, kind
        column = vocabulary.column
        assert isinstance(column, pl.Series)  # whatever was saved is a column
        text: list[Any] = as_text(column).to_list()
        self.written: dict[str, int] = {name: code for code, name in enumerate(text)}
        self.plain: list[Id] = column.to_list() if column.dtype.is_integer() else text

    def code(self, name: Id) -> int | None:
        """The code of an id; None where it is unknown. The text "7" is the integer 7, "007" is not."""
        return self.written.get(str(name))

    def require(self, name: Id) -> int:
        """The code of an id, or an error that names it."""
        code = self.code(name)
        if code is None:
            shown = repr(name)
            shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
            raise UnknownId(f"unknown {self.kind} {shown}: this log has {self.vocabulary.describe(self.kind)}.")
        return code

    def require_all(self, names: Sequence[Id]) -> list[int]:
        """The codes of ids, or an error that names the first unknown one."""
        return [self.require(name) for name in names]

    def known(self, names: Sequence[Id]) -> list[int]:
        """The codes of those ids that are known."""
        return [code for name in names if (code := self.code(name)) is not None]
