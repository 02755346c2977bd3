"""What is known of users and of items beside the log: files of ids and numbers, and logs that have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.columns import finite_numbers, whole_ids
from counterpoise.errors import DataError, RowError
from counterpoise.feedback import FeedbackLog
from counterpoise.ingest import AnyPath, as_plain_ids, read_beside
from counterpoise.tables import first_row
from counterpoise.vocabulary import Vocabulary

Key = TypeVar("Key")


def read_side(path: AnyPath, id_col: str, separator: str | None = None) -> tuple[Vocabulary, NDArray[np.float64]]:
    """The ids of users or items, and their features: every other column, all of them numbers."""
    frame = read_beside(path, pl.DataFrame(), separator=separator)
    if id_col not in frame.columns:
        raise DataError(f"{path}: there is no column {id_col!r}; the columns are {', '.join(frame.columns)}.")
    repeated = frame[id_col].filter(frame[id_col].is_duplicated()).drop_nulls()
    if len(repeated):
        raise DataError(f"{path}: column {id_col!r}: {repeated[0]!r} stands in more than one row. Keep one of them.")
    try:
        ids = Vocabulary(as_plain_ids(whole_ids(frame[id_col], id_col)))
        values = [finite_numbers(frame[name], name) for name in frame.columns if name != id_col]
    except RowError as error:
        raise error.located(str(path), first_row(Path(path).expanduser())) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not values:
        raise DataError(f"{path}: there is no feature beside {id_col!r}. Add columns of numbers.")
    return ids, np.stack(values, 1)


def with_sides(
    logs: dict[Key, FeedbackLog],
    users: AnyPath | None,
    items: AnyPath | None,
    *,
    user_col: str = "user_id",
    item_col: str = "item_id",
    separator: str | None = None,
) -> dict[Key, FeedbackLog]:
    """Logs of the same users and items with features from files; the files may have ids that the logs do not have."""
    first = next(iter(logs.values()))
    of_users = None if users is None else _of_ids(users, first.user_ids, user_col, separator, "user")
    of_items = None if items is None else _of_ids(items, first.item_ids, item_col, separator, "item")
    return {part: replace(log, user_features=of_users, item_features=of_items) for part, log in logs.items()}


def _of_ids(path: AnyPath, ids: Vocabulary, id_col: str, separator: str | None, who: str) -> NDArray[np.float32]:
    """A row of features for each id, in their order."""
    known, values = read_side(path, id_col, separator)
    rows = known.encode(ids.column)
    if (rows < 0).any():
        missing = ids.decode(np.flatnonzero(rows < 0)[:1])[0]
        raise DataError(
            f"{path}: there is no row for {int((rows < 0).sum()):,} of {len(rows):,} {who}s of the log, the first is "
            f"{missing!r}. Add them, or leave the file out."
        )
    if np.abs(values).max() > np.finfo(np.float32).max:
        raise DataError(f"{path}: the largest feature is {np.abs(values).max():.2g}, past float32. Scale it.")
    return values[rows].astype(np.float32)
