"""How many threads a piece of work may use."""

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


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
