"""Names (titles) of items, looked up by their ids."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from counterpoise.data.columns import whole_ids
from counterpoise.data.frames import as_frame, column_of
from counterpoise.data.ids import Vocabulary, as_column, as_text, read_stored, stored_ids
from counterpoise.errors import DataError, did_you_mean

NAME_COLUMNS = ("name", "title", "item_name", "item_title")  # what a column of names is usually called
DISTINCT_SHARE = 0.9  # of the rows: a column with fewer different texts is no column of names
LIKE_NO_NAME = r"^[-+]?[0-9.]+$|^[a-z]+://|^www\."
MAX_NAME = 200  # characters of a name that are kept: lists and pages show it whole


@dataclass(frozen=True, eq=False)
class ItemNames:
    """The names of some items; an item without one is called by its id."""

    ids: Vocabulary
    names: pl.Series  # (items,) text, in the order of the ids
    source: str = ""  # the column that they came from

    @classmethod
    def from_frame(cls, frame: Any, item_col: str = "item_id", name_col: str | None = None) -> ItemNames:
        """The names in a frame of pandas, polars or pyarrow with a row for each item.

        `name_col`: by default the column that is called name or title (`movie_title`), or the only one beside the ids.
        Rows without a name are left out.
        """
        table = as_frame(frame, "item_names")
        ids = whole_ids(column_of(table, item_col, "The ids of items must be in a column of that name."), item_col)
        name_col = guess_name_column(table, item_col) if name_col is None else name_col
        column = as_column(column_of(table, name_col))
        if not isinstance(column, pl.Series):
            raise DataError(
                f"column {name_col!r}: expected one name in each row, got {type(column[0]).__name__}. Name another."
            )
        names = column.cast(pl.String, strict=False).str.strip_chars().str.slice(0, MAX_NAME)
        kept = (names.is_not_null() & (names != "")).to_numpy()
        rows = kept.nonzero()[0]
        ids = ids.gather(rows) if isinstance(ids, pl.Series) else [ids[row] for row in rows]
        try:
            return cls(Vocabulary(ids), names.gather(rows), name_col)
        except DataError:
            raise DataError(
                f"there must be one row for each item, and {item_col!r} has repetitions. Drop them."
            ) from None

    def of(self, ids: Any) -> pl.Series:
        """The name of each item; its id where it has none."""
        column = as_column(ids)
        codes = pl.Series(self.ids.encode(column))
        own = as_text(column) if isinstance(column, pl.Series) else pl.Series(map(str, column), dtype=pl.String)
        if len(self.ids) == 0:
            return own.alias("item_name")
        found = self.names.gather(codes.clip(lower_bound=0))
        return found.zip_with(codes >= 0, own).alias("item_name")

    def with_new(self, frame: Any, item_col: str) -> ItemNames:
        """These and the names of further items, where a frame has a column that is called name or title."""
        name_col = named_so(as_frame(frame, "new_items").columns)
        if name_col is None:
            return self
        found = ItemNames.from_frame(frame, item_col, name_col).table
        new = found.filter(pl.Series(self.ids.encode(found["item_id"]) < 0))
        return ItemNames(self.ids.extended(new["item_id"]), pl.concat([self.names.alias("name"), new["name"]]))

    def to_parquet(self) -> bytes:
        """Ids and names as the content of a Parquet file."""
        buffer = io.BytesIO()
        self.ids.to_parquet()  # an error for ids that cannot be saved
        self.table.write_parquet(buffer)
        return buffer.getvalue()

    @classmethod
    def from_parquet(cls, content: bytes | None) -> ItemNames | None:
        """The names that `to_parquet` wrote; None for None."""
        if content is None:
            return None
        table = read_stored(content, "the names of items")
        if table.schema.get("name") != pl.String or table["name"].has_nulls():
            raise DataError("the names of items must be text.")
        return cls(Vocabulary(stored_ids(table, "item_id", "the items with names")), table["name"])

    def count(self, items: Vocabulary) -> int:
        """The number of these items with a name; an error if none has, as where the ids are those of something else."""
        named = int((self.ids.encode(items.column) >= 0).sum())
        if named == 0:
            raise DataError(
                f"no item of the log has a name: names are of {self.ids.describe('item')}, the log has "
                f"{items.describe('item')}. Write ids as in the log."
            )
        return named

    @cached_property
    def table(self) -> pl.DataFrame:
        """Columns `item_id` and `name`."""
        return pl.DataFrame({"item_id": self.ids.decode(range(len(self.ids))), "name": self.names})

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<ItemNames: {len(self):,} names>"


def guess_name_column(table: Any, item_col: str) -> str:
    """The column of names: one that is called so, the only one beside the ids, or the first text that differs by item.

    `table`: a narwhals frame.
    """
    others = [column for column in table.columns if column != item_col]
    if (called := named_so(others)) is not None:
        return called
    if len(others) == 1:
        return str(others[0])
    for column in others:
        values = as_column(table.get_column(column).to_native())
        if isinstance(values, pl.Series) and _tells_apart(values):
            return str(column)
    listed = ", ".join(map(repr, others[:20])) or "none"
    hint = did_you_mean("title", map(str, others)) or did_you_mean("name", map(str, others))
    raise DataError(f"which column has the names? Call it name or title (`item_name_col`), not one of {listed}.{hint}")


def named_so(columns: Sequence[str]) -> str | None:
    """The column that is called name or title, or else ends so; None without one."""
    for fits in (lambda name: name in NAME_COLUMNS, lambda name: name.endswith(("name", "title"))):
        found = [str(column) for column in columns if fits(str(column).lower())]
        if found:
            return found[0]
    return None


def _tells_apart(values: pl.Series) -> bool:
    """Whether it is text, but no numbers and no addresses, and differs from item to item."""
    if values.dtype != pl.String or values.str.contains(LIKE_NO_NAME).any():
        return False
    return len(values) > 1 and values.drop_nulls().n_unique() >= DISTINCT_SHARE * len(values)
