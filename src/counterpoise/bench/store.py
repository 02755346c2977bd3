"""A folder of results with one file for each fit: it can be interrupted, resumed, and shared by processes.

Files are written beside and renamed, so a result is there whole or not at all. A process that works on a fit holds a
lock on a file next to it, which the system releases when the process dies.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from counterpoise.errors import DataError
from counterpoise.storage import MAX_TEXT_FILE, read_file, write_file


class Measurement(Protocol):
    """A unit of work whose file name tells it from every other: it contains a hash of all that decides the result."""

    @property
    def file_name(self) -> str:
        """Without the ending."""


class Task(Measurement, Protocol):
    """A measurement that can be made anywhere: in this process, in another, or by Ray."""

    def measure(self) -> dict[str, Any]:
        """Do the work: a row of results, JSON-able, whose `failed` is None or the reason."""


def hash_facts(facts: Mapping[str, Any]) -> str:
    """A short hash of JSON-able facts, for file names."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Store:
    """The results folder."""

    folder: Path

    def open(self) -> None:
        """Make the folder, or raise `DataError`."""
        try:
            (self.folder / "fits").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder} cannot be a folder of results: {error.strerror}. Choose another.") from None

    def path(self, job: Measurement) -> Path:
        """The file of a job's result."""
        return self.folder / "fits" / f"{job.file_name}.json"

    def has(self, job: Measurement) -> bool:
        """Whether the job is done."""
        return self.path(job).exists()

    def read(self, job: Measurement) -> dict[str, Any] | None:
        """The result of a job; None if there is none yet."""
        path = self.path(job)
        if not os.path.lexists(path):
            return None
        try:
            row = json.loads(read_file(path, links=False, limit=MAX_TEXT_FILE))
        except (DataError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({error}). Delete it, and the fit is made again.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path} is no row of results. Delete it, and the fit is made again.")
        return row

    def read_all(self, jobs: Iterable[Measurement]) -> list[dict[str, Any]]:
        """The results of jobs that are all done."""
        rows = []
        for job in jobs:
            row = self.read(job)
            if row is None:
                raise DataError(f"{self.path(job)} was deleted in the meantime. Start the same command again.")
            rows.append(row)
        return rows

    def write(self, job: Measurement, row: Mapping[str, Any]) -> None:
        """Store the result of a job."""
        try:
            write_file(self.path(job), (json.dumps(row, default=str) + "\n").encode())
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{self.folder} cannot be written: {reason}. Make room: results so far are kept.") from None

    def delete_failures(self, jobs: Iterable[Measurement]) -> None:
        """Delete the rows of fits that failed, so that they are made again."""
        for job in jobs:
            row = self.read(job)
            if row is not None and row["failed"] is not None:
                self.path(job).unlink(missing_ok=True)

    def delete_stale_locks(self, jobs: Iterable[Measurement]) -> None:
        """Remove the locks of processes that were killed after their fits were stored."""
        for job in jobs:
            if self.path(job).with_suffix(".lock").exists() and self.has(job):
                with self.claim(job):
                    pass

    @contextmanager
    def claim(self, job: Measurement) -> Iterator[bool]:
        """Whether this process may do the job: no other process is at it, and it is not done."""
        self.open()  # again, in case the folder was removed in the meantime
        lock = FileLock(self.path(job).with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield not self.has(job)
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)  # a process that waits for this lock finds the result
            lock.release()
