"""A folder of results, one file a fit: it can be interrupted at any moment, resumed, and shared by processes.

A result is written beside and renamed, so it is there whole or not at all. Who works on a fit holds a lock on a file
of its own, which the system lets go when the process dies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from counterpoise.bench.jobs import Job
from counterpoise.errors import DataError
from counterpoise.storage import write_file


def failures(jobs: Iterable[Job], store: Store) -> list[str]:
    """A line for every fit that failed, with its reason."""
    rows = [(job, store.read(job)) for job in jobs]
    return [
        f"{job.method}, seed {job.seed}, {dict(job.settings)}: {row['failed']}"
        for job, row in rows
        if row is not None and row["failed"] is not None
    ]


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

    def path(self, job: Job) -> Path:
        """Where the row of a job is kept; the name says what it is."""
        words = (Path(job.dataset).name, job.method, job.backbone, job.protocol, job.config_hash, f"seed{job.seed}")
        return self.folder / "fits" / (".".join(re.sub(r"[^\w-]+", "_", word) for word in words) + ".json")

    def has(self, job: Job) -> bool:
        """Whether the fit is done."""
        return self.path(job).exists()

    def read(self, job: Job) -> dict[str, Any] | None:
        """The row of a job, None where it was not fitted yet."""
        path = self.path(job)
        if path.is_symlink():
            raise DataError(f"{path} is a link, and a folder of results holds none: it is not read. Delete it.")
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({error}). Delete it, and the fit is made again.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path} is no row of results. Delete it, and the fit is made again.")
        return row

    def write(self, job: Job, row: dict[str, Any]) -> None:
        """Keep the row of a job."""
        try:
            write_file(self.path(job), (json.dumps(row, default=str) + "\n").encode())
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{self.folder} cannot be written: {reason}. Make room: what is done is kept.") from None

    def forget_failures(self, jobs: Iterable[Job]) -> None:
        """Delete the rows of fits that failed, so that they are made again."""
        for job in jobs:
            row = self.read(job)
            if row is not None and row["failed"] is not None:
                self.path(job).unlink(missing_ok=True)

    def tidy(self, jobs: Iterable[Job]) -> None:
        """Remove the locks of processes that were killed when their fits were done."""
        for job in jobs:
            if self.path(job).with_suffix(".lock").exists() and self.has(job):
                with self.claim(job):
                    pass

    @contextmanager
    def claim(self, job: Job) -> Iterator[bool]:
        """Whether this process may fit the job: nobody else is at it, and it is not done."""
        self.open()  # also where somebody removed the folder meanwhile
        lock = FileLock(self.path(job).with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield not self.has(job)
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)  # whoever waits for this one finds the result
            lock.release()
