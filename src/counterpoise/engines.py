"""Where passes over shards run: threads of this process, or workers of a Ray cluster. The answer is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_args

import torch

from counterpoise.errors import check_choice, check_number
from counterpoise.shards import Shards
from counterpoise.threads import one_thread
from counterpoise.words import EngineName

Each = Callable[..., list[Any]]
Source = TypeVar("Source")


class Engine(Protocol):
    """Works on all shards of a log."""

    def over(self, shards: Shards, make: Callable[[], Source]) -> AbstractContextManager[tuple[Each, Source]]:
        """(`each`, `source`): `each(work, *arguments)` gives `[work(source, shard, *arguments) for shard in shards]`.

        `work` is a function of a module. `source` is what every worker keeps meanwhile; `make` makes it, here.
        """


@dataclass(frozen=True)
class Local:
    """Threads of this process, each on one shard at a time; by default as many as torch uses."""

    threads: int | None = None

    @contextmanager
    def over(self, shards: Shards, make: Callable[[], Source]) -> Iterator[tuple[Each, Source]]:
        """Results come in the order of shards, whichever thread is first."""
        source, threads = make(), self.threads or torch.get_num_threads()
        with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:

            def each(work: Callable[..., Any], *arguments: Any) -> list[Any]:
                return list(pool.map(lambda shard: work(source, shard, *arguments), shards))

            yield each, source


def make_engine(name: EngineName = "local", workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by its name; `address` (of a Ray cluster) and `workers` are those of `RayEngine`."""
    check_choice("engine", name, get_args(EngineName))
    if workers is not None:
        check_number("workers", workers, at_least=1, integer=True)
    if name == "local":
        return Local(workers)
    from counterpoise.ray_engine import RayEngine

    return RayEngine(workers, address)
