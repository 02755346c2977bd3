"""Work through the fits of a table, alone or in several processes; every one may be stopped at any moment."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, get_args

from counterpoise.bench.jobs import Job, measure, measure_together
from counterpoise.bench.store import Store
from counterpoise.config import EngineName
from counterpoise.errors import CounterpoiseError, check_choice, check_number
from counterpoise.out_of_core.engines import connected, results
from counterpoise.threads import one_blas_thread, one_thread

Watch = Callable[[int, int], None]  # (fits done, fits in all)
Tell = Callable[[int], None]  # (fits done by this run)
PAUSE = 0.2  # seconds between two looks at the folder


def run(
    jobs: Sequence[Job],
    store: Store,
    processes: int = 1,
    watch: Watch | None = None,
    stack: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
) -> None:
    """Fit what the store does not have. A result depends neither on the number of processes nor on the order.

    `stack`: fit all jobs of a method on one log at once. It is faster, and a result then depends in its last digits on
    what it was fitted beside. `engine`: processes of this machine, or tasks of Ray (see `RayEngine`), of which
    `processes` is the number at a time on an instance of its own.
    """
    check_choice("engine", engine, get_args(EngineName))
    check_number("jobs", processes, at_least=1, integer=True)
    store.open()
    todo = [job for job in jobs if not store.has(job)]
    done = len(jobs) - len(todo)

    def tell(fitted: int) -> None:
        if watch is not None:
            watch(done + fitted, len(jobs))

    tell(0)
    processes = min(processes, len(todo))
    if engine == "ray":
        _run_on_ray(_groups(todo, stack), store, processes, address, tell)
    elif processes <= 1:
        work(todo, store, tell=tell, stack=stack)
    else:
        _run_in_processes(todo, store, processes, tell, stack)
    store.tidy(jobs)


def work(
    jobs: Sequence[Job], store: Store, parent: int | None = None, tell: Tell | None = None, stack: bool = False
) -> None:
    """Fit whatever nobody else fits, until all is done; or until the parent process is gone.

    On one thread, always: sums in another order would make results depend on the machine's load.
    """
    left = _groups(jobs, stack)
    with one_thread(), one_blas_thread():
        while left:
            busy = []
            for group in left:
                if parent is not None and os.getppid() != parent:
                    return
                with ExitStack() as claims:
                    free = [job for job in group if claims.enter_context(store.claim(job))]
                    for job, row in zip(free, _measured(free), strict=True):
                        store.write(job, row)
                taken = [job for job in group if not store.has(job)]
                busy += [taken] if taken else []  # another process is at them: it may die
                if tell is not None:
                    tell(sum(map(store.has, jobs)))
            left = busy
            time.sleep(PAUSE if left else 0)


def _groups(jobs: Sequence[Job], stack: bool) -> list[list[Job]]:
    """Every job by itself; in stacks those that may share a log: seeds and settings of one method.

    Every seed of a simulated dataset is another log.
    """
    groups: dict[Any, list[Job]] = {}
    for number, job in enumerate(jobs):
        seed = job.seed if job.ground.shape else None
        shared = (job.dataset, job.method, job.backbone, job.protocol, job.threshold, seed)
        groups.setdefault(shared if stack else number, []).append(job)
    return list(groups.values())


def _measured(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The rows of a group."""
    return measure_together(jobs) if len(jobs) > 1 else [measure(job) for job in jobs]


def _run_on_ray(groups: Sequence[list[Job]], store: Store, workers: int, address: str | None, tell: Tell) -> None:
    """A task for each group; rows come back to this process, which alone writes to the folder."""
    if not groups:
        return
    done = 0
    with connected(address, max(1, workers)) as ray:
        task = ray.remote(num_cpus=1)(_measured_on_one_thread)
        waiting = {task.remote(group): group for group in groups}
        while waiting:
            ready = ray.wait(list(waiting))[0][0]
            for job, row in zip(waiting.pop(ready), results(ray, [ready])[0], strict=True):
                store.write(job, row)
                done += 1
            tell(done)


def _measured_on_one_thread(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    with one_thread(), one_blas_thread():
        return _measured(jobs)


def _run_in_processes(jobs: Sequence[Job], store: Store, processes: int, tell: Tell, stack: bool) -> None:
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    workers = [context.Process(target=_worker, args=(jobs, store, os.getpid(), stack)) for _ in range(processes)]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            tell(sum(map(store.has, jobs)))
            time.sleep(PAUSE)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    tell(sum(map(store.has, jobs)))
    if not all(map(store.has, jobs)):
        raise CounterpoiseError("a worker stopped before the end (see above). What is done is kept: start again.")


def _worker(jobs: Sequence[Job], store: Store, parent: int, stack: bool) -> None:
    with suppress(KeyboardInterrupt):  # the parent says so
        try:
            work(jobs, store, parent, stack=stack)
        except (CounterpoiseError, OSError) as error:
            sys.exit(f"error: {error}")
