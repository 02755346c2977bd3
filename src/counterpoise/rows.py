"""Balancing functions at the observed rows, block by block, so that they need never lie in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

CPU_BLOCK = 2**19  # values of a block that are computed: 4 MB of float64, between cache misses and call overhead
MATRIX_BLOCK = 2**20  # values that lie in memory already
DEVICE_BLOCK = 2**26  # an accelerator wants few, large blocks
CHUNKS = 64  # parts of the rows that threads work on
KEPT_VALUES = 2**23  # functions x rows, 64 MB, that are computed once

Result = TypeVar("Result")


@dataclass(frozen=True)
class Rows:
    """n rows of J functions; `take(rows)` gives the values (rows, J) for a slice or a tensor of row numbers.

    Everything the solver needs is a sum over rows, added up block by block in a fixed order. A matrix is the
    trivial case; two kernel tables and the log's codes are another; a shard of a larger log is a third.
    """

    n_rows: int
    n_functions: int
    device: torch.device
    take: Callable[[slice | Tensor], Tensor]
    width: int = 0  # values that `take` holds for one row, where more than J
    cpu_block: int = CPU_BLOCK

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Rows `first` to `last` in order: (the slice, its values in float64)."""
        last, step = self.n_rows if last is None else last, self._block_rows
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            yield part, self.take(part).double()

    def each_chunk(self, work: Callable[[Iterator[tuple[slice, Tensor]]], Result]) -> list[Result]:
        """`work` on the blocks of every chunk, in order. The chunks do not depend on the number of threads.

        On the CPU as many chunks at a time as torch has threads, each with one: threads inside operations on such
        tall and narrow blocks gain little, and lose a lot where other programs want the cores too.
        """
        block = self._block_rows
        step = block * max(1, -(-self.n_rows // (block * CHUNKS)))
        chunks = [self.blocks(start, min(start + step, self.n_rows)) for start in range(0, self.n_rows, step)]
        workers = torch.get_num_threads() if self.device.type == "cpu" else 1
        if workers == 1:
            return [work(chunk) for chunk in chunks]
        torch.set_num_threads(1)
        try:
            if len(chunks) == 1:
                return [work(chunks[0])]
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(work, chunks))
        finally:
            torch.set_num_threads(workers)

    def kept(self) -> Rows:
        """The same, in memory where they are few: who sums over them does so a dozen times."""
        if self.n_rows * self.n_functions > KEPT_VALUES:
            return self
        return matrix_rows(torch.cat([values for _, values in self.blocks()]))

    def at(self, numbers: Tensor) -> Rows:
        """The rows with these numbers."""
        return replace(self, n_rows=len(numbers), take=lambda rows: self.take(numbers[rows]))

    @property
    def _block_rows(self) -> int:
        size = self.cpu_block if self.device.type == "cpu" else DEVICE_BLOCK
        return max(64, size // max(1, self.width, self.n_functions))


@dataclass(frozen=True)
class ShardedRows:
    """Rows of J functions in shards that are never together in one place.

    `each(work, *arguments)` calls `work(source, shard, *arguments)` for every shard, wherever it lies, and gives the
    results in the order of shards; `source.rows(shard)` there are its `Rows`. Sums over shards are sums over rows.
    """

    n_rows: int
    n_functions: int
    each: Callable[..., list[Any]]
    column: Callable[[str], Any]  # what all shards have written under a name


def matrix_rows(matrix: Tensor) -> Rows:
    """The rows of a matrix (n, J) in memory."""

    def take(rows: slice | Tensor) -> Tensor:
        return matrix[rows] if isinstance(rows, slice) else matrix.index_select(0, rows)

    return Rows(len(matrix), matrix.shape[1], matrix.device, take, cpu_block=MATRIX_BLOCK)


def pair_rows(
    user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor, mixing: Tensor | None = None
) -> Rows:
    """h(x_ui) = user_table[u] * item_table[i], and its product with `mixing` (candidates, J) if that is given.

    For functions that factorise over users and items, such as Gaussian kernels of x_ui = [user row; item row].
    """

    def take(rows: slice | Tensor) -> Tensor:
        values = user_table.index_select(0, users[rows]).mul_(item_table.index_select(0, items[rows]))
        return values if mixing is None else values @ mixing

    count = user_table.shape[1]
    return Rows(len(users), count if mixing is None else mixing.shape[1], user_table.device, take, width=2 * count)
