"""A log in shards in the place of a `FeedbackLog`, and batches drawn uniformly across its shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.data.batches import Batch, Batches
from counterpoise.data.ids import Codes
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.out_of_core.engines import Engine, RayEngine, ThreadEngine
from counterpoise.out_of_core.process_group import BatchShard, ProcessGroup
from counterpoise.out_of_core.shards import COLUMNS, MANIFEST, ShardColumn, ShardedLog, Shards, ShardWriter, permuted

OPEN_SHARE = 4  # a quarter of the memory may be columns that stay open
KEYS = 2**62  # of the order of an epoch


class StreamedLog(FeedbackLog):
    """A log over shards: one column at a time is read where all of it is used, and none is kept.

    Training draws its batches from the shards, and balancing makes its passes over them, by `engine`.
    """

    def __init__(
        self,
        log: ShardedLog,
        threshold: float | None = None,
        engine: Engine | None = None,
        memory: int = 4 * 10**9,
        column_names: Mapping[str, str] | None = None,
    ) -> None:
        absent: tuple[str, ...] = (
            "timestamps",
            "user_features",
            "item_features",
            "propensities",
            "parent_propensities",
            "sample",
        )
        absent += ("user_encoder", "item_encoder")
        values: dict[str, Any] = dict.fromkeys(absent)
        values |= {"shards": log.shards, "user_ids": log.user_ids, "item_ids": log.item_ids, "threshold": threshold}
        values |= {"engine": engine or ThreadEngine(), "memory": memory, "column_names": column_names}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    shards: Shards
    engine: Engine
    memory: int
    in_memory = False

    # Columns are read anew each time.

    @property
    def users(self) -> Codes:
        return self.shards.whole("users")

    @property
    def items(self) -> Codes:
        return self.shards.whole("items")

    @property
    def ratings(self) -> NDArray[np.float64]:
        return self.shards.whole("ratings")

    @property
    def labels(self) -> NDArray[np.float32]:
        return np.concatenate([self.labels_of(shard.column("ratings")) for shard in self.shards])

    @property
    def pairs(self) -> NDArray[np.int64]:
        return self.users.astype(np.int64) * self.shape[1] + self.items

    def labels_of(self, ratings: NDArray[np.float64]) -> NDArray[np.float32]:
        """1 where rating >= threshold, else 0; the ratings themselves where there is no threshold."""
        return (ratings if self.threshold is None else ratings >= self.threshold).astype(np.float32)

    def take(self, rows: Any) -> FeedbackLog:
        """Some rows (indices or a mask) as a log in memory."""
        chosen = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        users, items, ratings = (self.shards.take(name, chosen) for name in ("users", "items", "ratings"))
        ids = self.user_ids, self.item_ids
        return FeedbackLog(users, items, ratings, *ids, self.threshold, column_names=self.column_names)

    def keep(self, rows: NDArray[np.bool_]) -> StreamedLog:
        """The log of the rows of a mask, in shards beside these, which a second start reuses."""
        digest = hashlib.sha256(np.packbits(rows).tobytes()).hexdigest()[:16]
        folder = self.shards.folder.with_name(f"{self.shards.folder.name}-{digest}")
        if not (folder / MANIFEST).exists():
            with ShardWriter(folder, self.shards.shard_rows) as writer:
                for shard in self.shards:
                    chosen = rows[shard.first : shard.first + shard.n_rows]
                    writer.append(**{name: shard.column(name)[chosen] for name in COLUMNS})
                writer.finish(self.shards.shape)
        found = copy(self)
        object.__setattr__(found, "shards", Shards.open(folder))
        return found

    def batches(
        self, batch_size: int, device: Any, generator: Any, pairs_per_row: int | None = 0, own_users: bool = False
    ) -> StreamedBatches:
        """Epochs of batches drawn across the shards."""
        if own_users:
            raise ConfigError("`risk` 'pairwise' needs the log in memory. Raise `memory`.")
        return StreamedBatches(self, batch_size, device, generator, pairs_per_row)

    def by(self, engine: Engine) -> StreamedLog:
        """The same log, its shards worked on by another engine."""
        found = copy(self)
        object.__setattr__(found, "engine", engine)
        return found

    def __len__(self) -> int:
        return self.shards.n_rows

    def __repr__(self) -> str:
        users, items = self.shape
        return f"<StreamedLog: {len(self):,} rows, {users:,} users x {items:,} items, {len(self.shards)} shards>"


def way_out(engine: Engine | None) -> str:
    """Advice on having the log in memory instead."""
    return "leave out --engine ray" if isinstance(engine, RayEngine) else "raise --memory"


class StreamedBatches(Batches):
    """Every row once an epoch, in an order that is drawn anew for each; see `Batches`.

    With a process `group`, the shard of every batch that is of this process: every process makes the same draws.
    """

    group: ProcessGroup | None = None

    def __init__(
        self, log: StreamedLog, batch_size: int, device: Any, generator: torch.Generator, pairs_per_row: int | None = 0
    ) -> None:
        self.log, self.shape, self.batch_size, self.device = log, log.shape, batch_size, device
        self.generator, self.pairs_per_row = generator, pairs_per_row
        self.labels = ShardColumn(log.shards, "ratings")  # type: ignore[assignment]  # only its length is asked for
        self.skipped = 0

    def skip(self, epochs: int) -> None:
        """Make the draws of so many epochs when they come, but read none of their rows."""
        self.skipped = epochs

    def codes(self) -> Iterator[tuple[Tensor, Tensor]]:
        for shard in self.log.shards:
            users, items = (torch.from_numpy(np.array(shard.column(name))) for name in ("users", "items"))
            yield users.to(self.device), items.to(self.device)

    def whole(self) -> Batch:
        raise NotImplementedError("a streamed log is read in blocks")

    def final(self) -> Iterator[Batch]:
        """All rows in the order of the log, in blocks."""
        for start in range(0, len(self.log), self.batch_size):
            rows = np.arange(start, min(start + self.batch_size, len(self.log)))
            yield self._batch(rows, self._uniform_pairs(len(rows) * (self.pairs_per_row or 0)))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log in random order."""
        key, ends = int(torch.randint(KEYS, (1,), generator=self.generator)), len(self) + 1
        skipping, self.skipped = self.skipped > 0, max(0, self.skipped - 1)
        group = self.group or ProcessGroup()
        for first, last in pairwise(np.linspace(0, len(self.log), ends).astype(np.int64).tolist()):
            start, stop = group.cut(first, last)
            places = np.arange(start, start if skipping else stop)
            each = self.pairs_per_row or 0
            drawn = self._uniform_pairs((last - first) * each)  # by every process alike
            own = slice((start - first) * each, (stop - first) * each)
            pairs = [None if codes is None else codes[own] for codes in drawn]
            batch = self._batch(permuted(places, len(self.log), key), pairs)
            if self.group is None:
                yield batch
            else:
                weight = group.size * (stop - start) / (last - first)
                yield BatchShard(**vars(batch), group=group, weight=weight)

    def _batch(self, rows: NDArray[np.int64], pairs: Iterable[Tensor | None]) -> Batch:
        users, items, ratings = (
            self.log.shards.take(name, rows, self._column) for name in ("users", "items", "ratings")
        )
        columns = rows, users, items, self.log.labels_of(ratings)
        row, user, item, label = (torch.from_numpy(values).to(self.device) for values in columns)
        return Batch(row, user, item, label, *pairs)

    @cached_property
    def _column(self) -> Callable[[int, str], NDArray[Any]]:
        """Columns of shards, of which as many stay open as a part of the memory allows."""
        keep = lru_cache(max(3, self.log.memory // OPEN_SHARE // (8 * self.log.shards.shard_rows)))
        shards = list(self.log.shards)
        return keep(lambda number, name: shards[number].column(name))

    def __getstate__(self) -> dict[str, Any]:
        """Without open columns: another process opens its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_column"}
