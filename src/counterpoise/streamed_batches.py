"""Batches of a log in shards: drawn uniformly across all of them, without loading any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.permutations import permuted
from counterpoise.ranks import Share
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
        self.passed = 0

    def pass_by(self, epochs: int) -> None:
        """Draw what so many epochs draw when they come, but read none of their rows."""
        self.passed = epochs

    def whole(self) -> Batch:
        """All rows at once: what a log that is streamed has no room for."""
        raise NotImplementedError("a streamed log is looked at in blocks")

    def blocks(self) -> Iterator[Batch]:
        """All rows in the order of the log."""
        for start in range(0, len(self.log), self.batch_size):
            rows = np.arange(start, min(start + self.batch_size, len(self.log)))
            yield self._batch(rows, self._uniform_pairs(len(rows) * (self.pairs_a_row or 0)))

    def epoch(self) -> Iterator[Batch]:
        """One pass over the log in random order: of every batch, the rows and pairs of this process."""
        key, ends = int(torch.randint(KEYS, (1,), generator=self.generator)), len(self) + 1
        passing, self.passed = self.passed > 0, max(0, self.passed - 1)
        for first, last in pairwise(np.linspace(0, len(self.log), ends).astype(np.int64).tolist()):
            start, stop = self.ranks.cut(first, last)
            places = np.arange(start, start if passing else stop)
            pairs = self._own_pairs(last - first, start - first, stop - first)
            yield self._batch(permuted(places, len(self.log), key), pairs, self.ranks.share(first, last))

    def _own_pairs(self, rows: int, start: int, stop: int) -> tuple[Tensor | None, Tensor | None]:
        """Of the uniform pairs of so many rows, which every process draws alike, those of some."""
        each = self.pairs_a_row or 0
        users, items = self._uniform_pairs(rows * each)
        if users is None or items is None:
            return None, None
        return users[start * each : stop * each], items[start * each : stop * each]

    def _batch(
        self, rows: NDArray[np.int64], pairs: tuple[Tensor | None, Tensor | None], share: Share | None = None
    ) -> Batch:
        users, items, ratings = (self._take(name, rows) for name in ("users", "items", "ratings"))
        columns = rows, users, items, self.log.labels_of(ratings)
        row, user, item, label = (torch.from_numpy(values).to(self.device) for values in columns)
        return Batch(row, user, item, label, *pairs, share or Share())

    def _take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.log.shards.take(name, rows, self._column)

    @cached_property
    def _column(self) -> Callable[[int, str], NDArray[Any]]:
        """Columns of shards, of which as many stay open as a part of the memory allows."""
        keep = lru_cache(max(3, self.log.memory // OPEN_SHARE // (8 * self.log.shards.shard_rows)))
        shards = list(self.log.shards)
        return keep(lambda number, name: shards[number].column(name))

    def __getstate__(self) -> dict[str, Any]:
        """Without open columns: another process opens its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_column"}
