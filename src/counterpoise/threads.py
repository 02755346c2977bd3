"""Limits on the threads of torch and of the linear algebra of numpy and scipy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController

_INSIDE: ContextVar[bool] = ContextVar("inside a block of one BLAS thread", default=False)


@contextmanager
def one_thread(when: bool = True) -> Iterator[None]:
    """One thread of torch inside the block: on small arrays a second one waits longer than it computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if when else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread inside the block for numpy's and scipy's linear algebra.

    A factorisation of a few hundred rows gains nothing from a second thread, which waits long on a busy machine.
    Setting the number takes a third of a millisecond, so a block inside another does not set it again.
    """
    if _INSIDE.get():
        yield
        return
    token = _INSIDE.set(True)
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _INSIDE.reset(token)


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
