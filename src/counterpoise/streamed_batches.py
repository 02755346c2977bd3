"""Batches of a log in shards: drawn uniformly across all of them, without loading any."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.permutations import permuted
from counterpoise.shards import ShardColumn
from counterpoise.streamed_log import StreamedLog
from counterpoise.training import Batch, Batches

OPEN_SHARE = 4  # a quarter of the memory may be columns that stay open
KEYS = 2**62


class StreamedBatches(Batches):
    """Every row once an epoch, in an order that is drawn anew for each; see `Batches`."""

    def __init__(
        self,
        log: StreamedLog,
        batch_size: int,
        device: torch.device,
        generator: torch.Generator,
        pairs_a_row: int | None = 0,
    ) -> None:
        self.log, self.shape, self.batch_size, self.device = log, log.shape, batch_size, device
        self.generator, self.pairs_a_row = generator, pairs_a_row
        self.labels = ShardColumn(log.shards, "ratings")  # type: ignore[assignment]  # only its length is asked for
        largest = 8 * log.shards.shard_rows
        keep = lru_cache(max(3, log.memory // OPEN_SHARE // largest))
        shards = list(log.shards)
        self._column = keep(lambda number, name: shards[number].column(name))

    def whole(self) -> Batch:
        """All rows at once: what a log that is streamed has no room for."""
        raise NotImplementedError("a streamed log is looked at in blocks")

    def blocks(self) -> Iterator[Batch]:
        """All rows in the order of the log."""
        for start in range(0, len(self.log), self.batch_size):
            yield self._batch(np.arange(start, min(start + self.batch_size, len(self.log))))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log in random order."""
        key = int(torch.randint(KEYS, (1,), generator=self.generator))
        borders = np.linspace(0, len(self.log), len(self) + 1).astype(np.int64)
        for first, last in pairwise(borders):
            yield self._batch(permuted(np.arange(first, last), len(self.log), key))

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        users, items, ratings = (self._take(name, rows) for name in ("users", "items", "ratings"))
        columns = rows, users, items, self.log.labels_of(ratings)
        row, user, item, label = (torch.from_numpy(values).to(self.device) for values in columns)
        return Batch(row, user, item, label, *self._uniform_pairs(len(rows) * (self.pairs_a_row or 0)))

    def _take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.log.shards.take(name, rows, self._column)
