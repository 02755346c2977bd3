"""One writer a folder at a time, and where work cannot be shared one worker. Locks go when their process dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from counterpoise.errors import DataError

try:
    import fcntl
except ImportError:  # not on every system: there, two writers at one moment are not kept apart
    fcntl = None  # type: ignore[assignment]

PATIENCE, PAUSE = 20.0, 0.01  # seconds


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the folder, or wait for who holds it; False where it cannot be held. Not to be nested for one folder.

    The lock is on the folder itself: there is no file that a killed process leaves.
    """
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        yield descriptor is not None and _acquired(descriptor, folder)
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Whole work in a folder that two processes cannot share; `DataError` where another is at it."""
    lock = FileLock(folder / ".at-work.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DataError(
            f"{folder} belongs to another process that is at work there. Wait for its end, or choose another folder."
        ) from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _acquired(descriptor: int, folder: Path) -> bool:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                raise DataError(
                    f"{folder} is being written by another process for more than {PATIENCE:.0f} s. "
                    "Wait for it, or choose another folder."
                ) from None
            time.sleep(PAUSE)
        except OSError:  # a file system without locks
            return False
