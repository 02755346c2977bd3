"""A log that is too long to be held in memory as a whole, where a `FeedbackLog` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.engines import Engine, Local
from counterpoise.errors import ConfigError
from counterpoise.feedback import FeedbackLog
from counterpoise.ingest import AnyPath, read_logs
from counterpoise.log_files import count_rows, files_of, is_many
from counterpoise.ray_engine import RayEngine
from counterpoise.sharding import ShardedLog, shard_log
from counterpoise.shards import Shards, as_bytes
from counterpoise.vocabulary import Codes

IN_MEMORY_ROW = 160  # bytes of a row while files become a log in memory
STREAMED_ROW = 40  # bytes of a row that a fit needs at most at a time: its weight, and that its pair was seen


class StreamedLog(FeedbackLog):
    """The same log over shards: one column at a time is read where all of it is asked for, and none is kept.

    Training draws its batches from the shards, and balancing makes its passes over them, by `engine`.
    """

    def __init__(
        self, log: ShardedLog, threshold: float | None = None, engine: Engine | None = None, memory: int = 4 * 10**9
    ) -> None:
        values: dict[str, Any] = {"shards": log.shards, "threshold": threshold, "engine": engine or Local()}
        values |= {"user_ids": log.user_ids, "item_ids": log.item_ids, "memory": memory}
        for name in ("timestamps", "user_features", "item_features", "propensities", "source"):
            values[name] = None
        for name, value in values.items():
            object.__setattr__(self, name, value)

    shards: Shards
    engine: Engine
    memory: int

    @property
    def users(self) -> Codes:
        """All codes, read anew."""
        return self.shards.whole("users")

    @property
    def items(self) -> Codes:
        """All codes, read anew."""
        return self.shards.whole("items")

    @property
    def ratings(self) -> NDArray[np.float64]:
        """All ratings, read anew."""
        return self.shards.whole("ratings")

    @property
    def labels(self) -> NDArray[np.float32]:
        """All labels, made shard by shard."""
        return np.concatenate([self.labels_of(ratings) for (ratings,) in self.shards.columns("ratings")])

    @property
    def pairs(self) -> NDArray[np.int64]:
        """Each row's pair as one number, made anew."""
        return self.users.astype(np.int64) * self.shape[1] + self.items

    def labels_of(self, ratings: NDArray[np.float64]) -> NDArray[np.float32]:
        """1 where rating >= threshold, else 0; the ratings themselves where there is no threshold."""
        return (ratings if self.threshold is None else ratings >= self.threshold).astype(np.float32)

    def take(self, rows: Any) -> FeedbackLog:
        """Some rows (indices or a mask) as a log in memory."""
        chosen = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        users, items, ratings = (self.shards.take(name, chosen) for name in ("users", "items", "ratings"))
        return FeedbackLog(users, items, ratings, self.user_ids, self.item_ids, self.threshold)

    def by(self, engine: Engine) -> StreamedLog:
        """The same log, its shards worked on by another engine."""
        found = copy(self)
        object.__setattr__(found, "engine", engine)
        return found

    def __len__(self) -> int:
        """The number of rows, |O|."""
        return self.shards.n_rows

    def __repr__(self) -> str:
        """Rows, users, items and shards."""
        users, items = self.shape
        return f"<StreamedLog: {len(self):,} rows, {users:,} users x {items:,} items, {len(self.shards)} shards>"


def way_out(engine: Engine | None) -> str:
    """How to have the log in memory instead."""
    return "leave out --engine ray" if isinstance(engine, RayEngine) else "raise --memory"


def too_long(path: AnyPath, memory: str | float) -> bool:
    """Whether the log in a folder or a glob would take more than `memory` as a log in memory."""
    budget = as_bytes(memory)  # also where one file is read whole: a mistyped size is an error
    return is_many(path) and count_rows(files_of(path)) * IN_MEMORY_ROW > budget


def read_streamed(
    paths: Mapping[str, AnyPath],
    *,
    memory: str | float,
    cache: AnyPath | None = None,
    engine: Engine | None = None,
    threshold: float | None = None,
    **options: Any,
) -> dict[str, FeedbackLog]:
    """As `read_logs`, with the first log streamed and the others in memory."""
    read = ("user_col", "item_col", "rating_col", "separator")
    columns: dict[str, Any] = {name: options.pop(name) for name in read if name in options}
    if options:
        raise ConfigError(
            f"a log that is streamed does not take {', '.join(map(repr, options))}: it has users, items and ratings, "
            f"and every row counts. To read it into memory, {way_out(engine)}."
        )
    (name, first), *others = paths.items()
    sharded = shard_log(first, **columns, beside=[path for _, path in others], memory=memory, cache=cache)
    log, budget = StreamedLog(sharded, threshold, engine, as_bytes(memory)), as_bytes(memory)
    if len(log) * STREAMED_ROW > budget:
        raise ConfigError(
            f"`memory` must be at least {len(log) * STREAMED_ROW / 1e9:.1f}GB to fit {len(log):,} rows, as a run "
            f"remembers every pair that it has seen, got {memory!r}."
        )
    ids: dict[str, Any] = {"user_ids": log.user_ids, "item_ids": log.item_ids}
    more = read_logs(dict(others), **columns, **ids, threshold=threshold) if others else {}
    return {name: log, **more}
