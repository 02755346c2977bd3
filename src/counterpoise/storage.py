"""Run folders and other output: always the old content or the new, never a mixture, and nothing that executes.

A run folder holds data files and one manifest, `run.json`, that names them with their SHA-256. Writing puts new data
files beside the old ones under new names and then replaces the manifest, in one atomic step; the old files go last. So
an interruption at any moment leaves a folder that loads, and a damaged file is noticed when it is read.

One process writes to a folder at a time. Locks end with their process.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import polars as pl
from filelock import FileLock, Timeout

from counterpoise.errors import ConfigError, DataError, short_repr

try:
    import fcntl
except ImportError:  # not on every system: there, two writers at one moment are not kept apart
    fcntl = None  # type: ignore[assignment]

MANIFEST = "run.json"
CHECKPOINT = "checkpoint.safetensors"  # of a fit that is not done, in the folder of the run to come
FORMAT = "counterpoise-run"
FORMAT_VERSION = 4  # 3: without the losses of rows; 2: ensembles of two fixed members; 1: before settings got names
STORED_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"  # a file of the folder itself: no path, not hidden
LOCK_TIMEOUT, LOCK_RETRY = 20.0, 0.01  # seconds that a writer waits for another, and between two attempts
MAKE_ROOM = "Choose another place, or make room."
TABLE_WRITERS: dict[str, Callable[[pl.DataFrame, IO[bytes]], Any]] = {
    ".parquet": lambda frame, stream: frame.write_parquet(stream),
    ".csv": lambda frame, stream: frame.write_csv(stream),
    ".tsv": lambda frame, stream: frame.write_csv(stream, separator="\t"),
}


class OldFormatError(DataError):
    """A run of an earlier format, which this version cannot read but may replace."""


def write_folder(
    folder: str | Path, own_facts: Mapping[str, Any], files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> None:
    """Write `files` (name -> content) and the manifest into `folder`, replacing what it held before.

    The manifest holds `own_facts` and the `facts` of the caller, who may not use the names of the former.
    """
    folder, entries = Path(folder), {}
    for name, content in files.items():  # `tensors.safetensors` is stored as `tensors.<start of its hash>.safetensors`
        (stem, _, suffix), digest = name.rpartition("."), hashlib.sha256(content).hexdigest()
        entries[name] = {"file": f"{stem}.{digest[:12]}.{suffix}", "sha256": digest}
    stored = {name: entry["file"] for name, entry in entries.items()}
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": entries, **own_facts}
    taken = sorted(set(manifest) & set(facts or {}))
    if taken:
        raise ConfigError(f"{', '.join(map(repr, taken))} is a name that the manifest uses itself. Choose another.")
    try:
        text = json.dumps(manifest | dict(facts or {}), indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the facts to save must be plain JSON values: {error}. Nothing was written.") from None
    try:
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with write_lock(folder):
            before = _files_of_run(folder)
            _write_and_rename({folder / stored[name]: content for name, content in files.items()})
            _write_and_rename({folder / MANIFEST: text.encode()})
            for stale in _written_earlier(folder, {*files, *before}) - set(stored.values()):
                (folder / stale).unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{folder} cannot be written: {reason}. What was there is unharmed. {MAKE_ROOM}") from error


def remove_folder(folder: str | Path) -> None:
    """Remove a saved run: its manifest, its files, and the folder itself where nothing else is in it."""
    folder = Path(folder)
    files = [entry["file"] for entry in read_manifest(folder)["files"].values()]
    with suppress(OSError):  # what cannot be removed stays
        with write_lock(folder):
            for name in (MANIFEST, *files):
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def check_folder(folder: str | Path) -> None:
    """Raise `DataError` where a run cannot be written; called before long work. An old run may be replaced."""
    folder = Path(folder)
    if (folder / MANIFEST).exists():
        try:
            read_manifest(folder)
        except OldFormatError:
            pass
        except DataError:
            reason = f"holds a {MANIFEST} that is not a saved run"
            raise DataError(f"{folder} {reason}. Choose another folder: nothing was written.") from None
    check_writable(folder)


def check_writable(folder: str | Path) -> None:
    """Raise `DataError` where nothing can be written into a folder, which need not exist yet."""
    folder = Path(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "no permission to write there" if there.is_dir() else f"{there} is a file"
        raise DataError(f"{folder} cannot be written: {reason}. Choose another folder.")


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the content of its files, each checked against its hash.

    Where another process replaces them meanwhile, the new ones are read.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, _read_files(folder, manifest)
        except DataError:
            before, manifest = manifest, read_manifest(folder)
            if manifest == before:
                raise


def _read_files(folder: Path, manifest: dict[str, Any]) -> dict[str, bytes]:
    files = {}
    for name, entry in manifest["files"].items():
        path = folder / entry["file"]
        if path.is_symlink():
            raise DataError(f"{path} is a link, and a saved run holds none: it is not read.")
        files[name] = _read(path)
        if hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise DataError(f"{path} is damaged: its content is not what was saved. Fit and save again.")
    return files


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest alone, checked."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(f"{Path(folder)} is not a saved run: there is no {MANIFEST}. Save a model there first.")
    if path.is_symlink():
        raise DataError(f"{path} is a link, and a saved run holds none: it is not read.")
    try:
        manifest = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} was not written by counterpoise.")
    version = manifest.get("format_version")
    if version in range(1, FORMAT_VERSION):
        raise OldFormatError(
            f"{path} is a run of format {version}, of an earlier counterpoise; this version reads format "
            f"{FORMAT_VERSION}. Fit it again with this version."
        )
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {short_repr(version)}; this version of counterpoise reads {FORMAT_VERSION}. "
            "Upgrade counterpoise, or fit and save again."
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DataError(f"{path} is damaged: its list of files cannot be read. Fit and save again.")
    for entry in files.values():
        if not re.fullmatch(STORED_NAME, entry["file"]):
            raise DataError(f"{path} names {entry['file']!r}, which is not a file of this folder.")
    return manifest


def write_file(path: Path, content: bytes) -> None:
    """Write a file; an interruption leaves the old one."""
    with write_lock(path.parent):
        _write_and_rename({path: content})


def _write_and_rename(contents: Mapping[Path, bytes]) -> None:
    """Write all files under other names, then rename them: a full disk leaves all of the old ones.

    The caller holds the folder, so a partial file found here was left by a process that was killed.
    """
    temporary = {path: path.with_name(f".{path.name[:200]}.partial") for path in contents}
    try:
        for path, content in contents.items():
            temporary[path].unlink(missing_ok=True)
            handle = os.open(temporary[path], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for path in contents:
            temporary[path].replace(path)
    except BaseException:
        for partial in temporary.values():
            partial.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file; an interruption leaves the old one."""
    write_texts({Path(path): text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write text files of one folder: all of them or none."""
    _write_output({path: text.encode() for path, text in texts.items()})


def check_table_name(path: str | Path) -> None:
    """Raise `ConfigError` unless the ending is one of `TABLE_WRITERS`; called before long work."""
    if Path(path).suffix.lower() not in TABLE_WRITERS:
        raise ConfigError(f"`out` must end in {', '.join(TABLE_WRITERS)}, got {str(path)!r}.")


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet, CSV or TSV, by the ending of the path."""
    check_table_name(path)
    buffer = io.BytesIO()
    try:
        TABLE_WRITERS[Path(path).suffix.lower()](frame, buffer)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: the table cannot be written in this format ({reason}). Try .parquet.") from None
    _write_output({Path(path): buffer.getvalue()})


def _write_output(contents: Mapping[Path, bytes]) -> None:
    path = next(iter(contents))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_lock(path.parent):
            _write_and_rename(contents)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}. {MAKE_ROOM}") from None


def _files_of_run(folder: Path) -> list[str]:
    """The names of the files of the run that a folder holds; none where it holds none that can be read."""
    try:
        return list(read_manifest(folder)["files"])
    except DataError:
        return []


def _written_earlier(folder: Path, names: Iterable[str]) -> set[str]:
    """Data files of these names from earlier writes, and partial files of interrupted ones; no other files."""
    parts = [name.rpartition(".") for name in names]
    ours = "|".join(rf"{re.escape(stem)}\.[0-9a-f]{{12}}\.{re.escape(suffix)}" for stem, _, suffix in parts)
    pattern = re.compile(rf"(?:{ours})|\.(?:{ours}|{re.escape(MANIFEST)})(?:\.[^.]*)?\.partial")
    return {path.name for path in folder.iterdir() if pattern.fullmatch(path.name)}


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("file"), str) and isinstance(entry.get("sha256"), str)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold a folder while something is written, or wait for the process that holds it. Not to be nested.

    The lock is on the folder itself, so a killed process leaves no lock file. A file system without locks has none.
    """
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            _acquire(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire(descriptor: int, folder: Path) -> None:
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                reason = f"is being written by another process for more than {LOCK_TIMEOUT:.0f} s"
                raise DataError(f"{folder} {reason}. Wait for it, or choose another folder.") from None
            time.sleep(LOCK_RETRY)
        except OSError:  # a file system without locks
            return


@contextmanager
def exclusive_use(folder: Path) -> Iterator[None]:
    """A folder for one process alone as long as the block runs; `DataError` where another process has it."""
    lock = FileLock(folder / ".at-work.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        way_out = "Wait until it has finished, or choose another folder."
        raise DataError(f"{folder} is used by another process. {way_out}") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
