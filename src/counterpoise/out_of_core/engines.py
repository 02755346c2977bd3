"""Engines: where passes over shards run, in threads of this process or on workers of a Ray cluster; same results.

`ThreadEngine` and `RayEngine` implement `Engine`; `make_engine` makes one by its name. `Tasks` runs independent calls,
such as the fits of a search, as tasks of Ray.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TypeVar, get_args

import torch

from counterpoise.config import EngineName
from counterpoise.errors import ConfigError, CounterpoiseError, check_choice, check_number
from counterpoise.out_of_core.shards import Shards
from counterpoise.threads import one_thread

Source = TypeVar("Source")
CONNECT_TIMEOUT = 5.0  # seconds in which a cluster must answer
UNLIMITED = -1  # restarts of a worker that dies, and retries of the call that it was at
MAX_SHARDS_PER_CALL = 16  # a call costs the driver a millisecond; a worker that dies repeats no more than these shards
MIN_CALLS_PER_WORKER = 8  # in a pass, where there are so many shards: faster workers can then take over from others
CALLS_IN_FLIGHT = 2  # of each worker, so that it need not wait for the driver


class Unit(Protocol):
    """A unit of work, such as a shard."""

    @property
    def number(self) -> int:
        """Its place among all units."""


AnyUnit = TypeVar("AnyUnit", bound=Unit)
UnitBatch = Sequence[Unit]  # the units of one call of a worker


@dataclass(frozen=True)
class Each:
    """Calls of `work(source, unit, *arguments)` for all units, where the workers are."""

    units: Sequence[Unit]
    run: Callable[[Callable[..., Any], Sequence[Unit], tuple[Any, ...]], Iterator[tuple[Unit, Any]]]

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """All results, in the order of units."""
        pairs = self.run(work, self.units, arguments)
        return [value for _, value in sorted(pairs, key=lambda pair: pair[0].number)]

    def stream(
        self, work: Callable[..., Any], units: Sequence[AnyUnit], *arguments: Any
    ) -> Iterator[tuple[AnyUnit, Any]]:
        """(unit, result) of these units as they come, so that few are in memory."""
        return self.run(work, units, arguments)  # type: ignore[return-value]


class Engine(Protocol):
    """Works on all shards of a log, or on other units."""

    def over(
        self, units: Sequence[Unit] | Shards, make: Callable[[], Source]
    ) -> AbstractContextManager[tuple[Each, Source]]:
        """(`each`, `source`): `each(work, *arguments)` gives `[work(source, unit, *arguments) for unit in units]`.

        `work` is a function of a module. `source` is what every worker keeps meanwhile; `make` makes it, here.
        """


@dataclass(frozen=True)
class ThreadEngine:
    """Threads of this process, each on one shard at a time; by default as many as torch uses."""

    threads: int | None = None

    @contextmanager
    def over(self, units: Sequence[Unit] | Shards, make: Callable[[], Source]) -> Iterator[tuple[Each, Source]]:
        """Results come in the order of units, whichever thread is first."""
        source, threads = make(), self.threads or torch.get_num_threads()
        with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:

            def run(
                work: Callable[..., Any], units: Sequence[Unit], arguments: tuple[Any, ...]
            ) -> Iterator[tuple[Unit, Any]]:
                running: deque[tuple[Unit, Any]] = deque()
                for unit in units:
                    running.append((unit, pool.submit(work, source, unit, *arguments)))
                    if len(running) > CALLS_IN_FLIGHT * threads:
                        first, call = running.popleft()
                        yield first, call.result()
                for unit, call in running:
                    yield unit, call.result()

            yield Each(list(units), run), source


class _Worker:
    """Keeps the source; Ray makes an actor of it."""

    source: Any = None

    def run(self, work: Callable[..., Any], units: UnitBatch, arguments: Sequence[Any], kept: list[Any]) -> list[Any]:
        """Work on some units; the source is fetched with the first call, also after a restart."""
        if self.source is None:
            self.source = import_ray().get(kept[0])  # in a list: a reference, not its content, comes with the call
        with one_thread():  # a worker has one core, whatever the environment says
            return [work(self.source, unit, *arguments) for unit in units]


@dataclass(frozen=True)
class RayEngine:
    """`workers` actors with one core each, by default as many as the cluster has cores.

    `address`: "auto" or HOST:PORT of a cluster, whose machines must see the folder of the shards and have this package
    installed; None starts Ray here and stops it afterwards, unless the caller has started it.
    """

    workers: int | None = None
    address: str | None = None

    def runs_already(self) -> bool:
        """Whether there is a Ray to connect to, so that none would be started."""
        return self.address is not None or ("ray" in sys.modules and bool(import_ray().is_initialized()))

    def count(self, ray: Any) -> int:
        """The number of workers; Ray would wait forever for more than there are cores."""
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        if self.workers is not None and self.workers > cores:
            raise ConfigError(f"`workers` must be at most {cores}, the cores of the Ray cluster, got {self.workers}.")
        return self.workers or cores

    @contextmanager
    def over(self, units: Sequence[Unit] | Shards, make: Callable[[], Source]) -> Iterator[tuple[Each, Source]]:
        """Unit k is with worker k modulo their number unless another is idle."""
        with one_thread(), connected(self.address, self.workers) as ray:
            count = self.count(ray)
            actor = ray.remote(max_restarts=UNLIMITED, max_task_retries=UNLIMITED, num_cpus=1)(_Worker)
            actors = [actor.remote() for _ in range(min(count, max(1, len(units))))]
            source = make()  # while the workers start
            kept = [ray.put(source)]

            def run(
                work: Callable[..., Any], units: Sequence[Unit], arguments: tuple[Any, ...]
            ) -> Iterator[tuple[Unit, Any]]:
                sent = ray.put(arguments)

                def call(worker: int, batch: UnitBatch) -> Any:
                    return actors[worker].run.remote(work, batch, sent, kept)

                for batch, values in dispatch(ray, call, batches_of(units, len(actors))):
                    yield from zip(batch, values, strict=True)

            try:
                yield Each(list(units), run), source
            finally:
                for worker in actors:
                    ray.kill(worker)


def batches_of(units: Sequence[Unit], workers: int) -> list[list[UnitBatch]]:
    """The calls of each worker: worker k of n has the units k, k + n, k + 2n, ..., in batches."""
    size = min(max(1, len(units) // (workers * MIN_CALLS_PER_WORKER)), MAX_SHARDS_PER_CALL)
    owned = [units[at::workers] for at in range(workers)]
    return [[own[start : start + size] for start in range(0, len(own), size)] for own in owned]


def dispatch(
    ray: Any, call: Callable[[int, UnitBatch], Any], queues: Sequence[Sequence[UnitBatch]]
) -> Iterator[tuple[UnitBatch, list[Any]]]:
    """(a batch, the results of `call(worker, batch)` for its units) for all batches, as they come.

    Workers take from their own queue, and from the end of the longest one when theirs is empty.
    """
    waiting, running = [deque(queue) for queue in queues], {}

    def begin(worker: int) -> None:
        longest = max(waiting, key=len)
        if longest:
            batch = waiting[worker].popleft() if waiting[worker] else longest.pop()
            running[call(worker, batch)] = worker, batch

    for worker in CALLS_IN_FLIGHT * list(range(len(queues))):
        begin(worker)
    while running:
        done, _ = ray.wait(list(running))
        worker, batch = running.pop(done[0])
        begin(worker)
        yield batch, results(ray, done)[0]


@contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster or to an instance of its own."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address is not None and address != "auto" and not address.startswith("ray://"):
        _check_answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    own = {"address": "local", "num_cpus": workers, "include_dashboard": False}  # also beside another instance
    place = own if address is None else {"address": address}
    try:
        ray.init(**place, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"`address` {address!r}: no connection to a Ray cluster ({reason}). "
            "If the cluster needs a token, set RAY_AUTH_MODE=token and put the token where Ray looks for it."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise `ConfigError` where no cluster listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"`address` must be auto or HOST:PORT, got {address!r}.")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"`address` {address!r}: no Ray cluster answers there ({error}).") from None


def results(ray: Any, tasks: Sequence[Any]) -> list[Any]:
    """The results of tasks; an error of this package is raised as it was in the task."""
    try:
        return list(ray.get(list(tasks)))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CounterpoiseError):
            raise error.cause from None
        raise


def import_ray(name: str = "ray") -> Any:
    """A module of Ray; `ConfigError` where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"`engine` needs {name}, which is not installed. Run: pip install 'counterpoise[ray]'."
        ) from None


@dataclass
class Tasks:
    """Calls of a function as tasks of Ray; what they share, such as a log, is sent once."""

    ray: Any
    sent: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: (the object, its reference)

    def __call__(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The results in the order of calls; tasks that are no longer waited for are cancelled."""
        task = self.ray.remote(num_cpus=1)(function)
        waiting = [task.remote(*(self._reference(argument) for argument in call)) for call in calls]
        try:
            while waiting:
                result = results(self.ray, waiting[:1])[0]
                del waiting[0]  # Ray may abort this process where a task is cancelled that has just ended
                yield result
        finally:
            for reference in waiting:
                self.ray.cancel(reference)

    def _reference(self, argument: Any) -> Any:
        if not isinstance(argument, tuple):
            return argument
        if id(argument) not in self.sent:
            self.sent[id(argument)] = argument, self.ray.put(argument)
        return self.sent[id(argument)][1]


def make_engine(name: EngineName = "local", workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by its name; `address` (of a Ray cluster) and `workers` are those of `RayEngine`."""
    check_choice("engine", name, get_args(EngineName))
    if workers is not None:
        check_number("workers", workers, at_least=1, integer=True)
    if name == "local":
        return ThreadEngine(workers)
    return RayEngine(workers, address)
