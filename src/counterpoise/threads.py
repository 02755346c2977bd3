"""How many threads a piece of work may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from threading import Event
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")
_INSIDE: ContextVar[bool] = ContextVar("inside a block of one BLAS thread", default=False)


@contextmanager
def one_thread(when: bool = True) -> Iterator[None]:
    """One thread inside the block: on small arrays a second one waits longer than it computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if when else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread inside the block for numpy's and scipy's linear algebra.

    A factorisation of a few hundred rows gains nothing from a second one, which waits long on a busy machine. Asking
    the libraries takes a third of a millisecond, so a block inside another does not ask again.
    """
    if _INSIDE.get():
        yield
        return
    token = _INSIDE.set(True)
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _INSIDE.reset(token)


def keep_freed_memory() -> None:
    """Let steps find the memory that the step before has freed, instead of asking the system for fresh pages.

    glibc gives free memory back as soon as there is twice the largest array that was ever freed, up to 32 MB: so one of
    nearly that size, which is never touched, is freed here.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def at_once(work: Callable[[Task, Event], None], parts: Sequence[Task]) -> None:
    """Work on each of some parts in a thread of its own, the first in this one; inside each, torch has one thread.

    Threads that share every operation wait for each other a few hundred times a step; these meet once, at the end. The
    event is set when one of them has failed or was interrupted: the others should stop where they can, by any error.
    """
    over = Event()

    def watched(part: Task) -> None:
        try:
            work(part, over)
        except BaseException:
            over.set()
            raise

    with one_thread(), one_blas_thread(), ThreadPoolExecutor(max(1, len(parts) - 1)) as pool:
        others = [pool.submit(watched, part) for part in parts[1:]]
        try:
            work(parts[0], over)
            for other in others:
                other.result()
        except BaseException:
            over.set()
            raise


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
