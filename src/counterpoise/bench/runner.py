"""Make the fits that a store lacks, in this process, in several, or as tasks of Ray; interruptible at any moment."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, get_args

from counterpoise.bench.store import Store, Task
from counterpoise.config import EngineName
from counterpoise.errors import CounterpoiseError, ReadingWarning, check_choice, check_number
from counterpoise.out_of_core.engines import connected, results
from counterpoise.threads import one_blas_thread, one_thread

Progress = Callable[[int, int], None]  # (fits done, fits in all)
PAUSE = 0.2  # seconds between two looks at the folder


def run(
    jobs: Sequence[Task],
    store: Store,
    processes: int = 1,
    progress: Progress | None = None,
    engine: EngineName = "local",
    address: str | None = None,
) -> None:
    """Make the fits that the store lacks. A result depends neither on the number of processes nor on the order.

    `engine`: "local", processes of this machine; or "ray", one task a fit, on the cluster at `address` or on an
    instance of its own that runs `processes` tasks at a time.
    """
    check_choice("engine", engine, get_args(EngineName))
    check_number("jobs", processes, at_least=1, integer=True)
    store.open()
    todo = [job for job in jobs if not store.has(job)]
    done = len(jobs) - len(todo)

    def report(fitted: int) -> None:
        if progress is not None:
            progress(done + fitted, len(jobs))

    report(0)
    processes = min(processes, len(todo))
    if engine == "ray":
        _run_on_ray(todo, store, processes, address, report)
    elif processes <= 1:
        work(todo, store, report=report)
    else:
        _run_in_processes(todo, store, processes, report)
    store.delete_stale_locks(jobs)


def work(
    jobs: Sequence[Task], store: Store, parent: int | None = None, report: Callable[[int], None] | None = None
) -> None:
    """Make the fits that no other process makes, until all are done or the parent process is gone.

    Always on one thread: sums in another order would make results depend on the machine's load.
    """
    left = list(jobs)
    with one_thread(), one_blas_thread():
        while left:
            for job in left:
                if parent is not None and os.getppid() != parent:
                    return
                with store.claim(job) as free:
                    if free:
                        store.write(job, job.measure())
                if report is not None:
                    report(sum(map(store.has, jobs)))
            left = [job for job in left if not store.has(job)]  # another process works on these, and may die
            time.sleep(PAUSE if left else 0)


def _run_on_ray(
    jobs: Sequence[Task], store: Store, workers: int, address: str | None, report: Callable[[int], None]
) -> None:
    """One task a fit; rows come back to this process, which alone writes to the folder."""
    if not jobs:
        return
    with connected(address, max(1, workers)) as ray:
        task = ray.remote(num_cpus=1)(_measure_on_one_thread)
        waiting = {task.remote(job): job for job in jobs}
        while waiting:
            ready = ray.wait(list(waiting))[0][0]
            store.write(waiting.pop(ready), results(ray, [ready])[0])
            report(len(jobs) - len(waiting))


def _measure_on_one_thread(job: Task) -> dict[str, Any]:
    warnings.simplefilter("ignore", ReadingWarning)  # see `_worker`
    with one_thread(), one_blas_thread():
        return job.measure()


def _run_in_processes(jobs: Sequence[Task], store: Store, processes: int, report: Callable[[int], None]) -> None:
    context = multiprocessing.get_context("spawn")  # a forked torch may hang
    workers = [context.Process(target=_worker, args=(jobs, store, os.getpid())) for _ in range(processes)]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            report(sum(map(store.has, jobs)))
            time.sleep(PAUSE)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    report(sum(map(store.has, jobs)))
    if not all(map(store.has, jobs)):
        raise CounterpoiseError("a worker stopped before the end (see above). Results so far are kept: start again.")


def _worker(jobs: Sequence[Task], store: Store, parent: int) -> None:
    warnings.simplefilter("ignore", ReadingWarning)  # the parent has read the files and warned of them
    with suppress(KeyboardInterrupt):  # the parent reports it
        try:
            work(jobs, store, parent)
        except (CounterpoiseError, OSError) as error:
            sys.exit(f"error: {error}")
