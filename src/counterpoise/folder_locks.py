"""One writer a folder at a time. The lock is on the folder itself: there is no file that a killed process leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from counterpoise.errors import DataError

try:
    import fcntl
except ImportError:  # not on every system: there, two writers at one moment are not kept apart
    fcntl = None  # type: ignore[assignment]

PATIENCE, PAUSE = 20.0, 0.01  # seconds


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the folder, or wait for who holds it; the system lets go when a process dies. False where it cannot be held.

    Not to be nested for one folder.
    """
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        yield descriptor is not None and _acquired(descriptor, folder)
    finally:
        if descriptor is not None:
            os.close(descriptor)


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
