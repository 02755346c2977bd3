"""Run folders and other output: always the old content or the new, never a mixture, and nothing that executes.

A run folder holds data files and one manifest, `run.json`, that names them with their SHA-256. Writing puts new data
files beside the old ones under new names and then replaces the manifest, in one atomic step; the old files go last. So
an interruption at any moment leaves a folder that loads, and a damaged file is noticed when it is read.

One process writes to a folder at a time. Locks end with their process. What a killed process leaves has a name by
which the next one that writes there finds and removes it.

Every file that this package reads is opened by `open_file`, which takes regular files alone and never waits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import polars as pl
from filelock import FileLock, Timeout

from counterpoise.errors import ConfigError, CounterpoiseError, DataError, did_you_mean, short_repr

try:
    import fcntl
except ImportError:  # not on every system: there, two writers at one moment are not kept apart
    fcntl = None  # type: ignore[assignment]

MANIFEST = "run.json"
CHECKPOINT = "checkpoint.safetensors"  # of a fit that is not done, in the folder of the run to come
FORMAT = "counterpoise-run"
FORMAT_VERSION = 4  # 3: without the losses of rows; 2: ensembles of two fixed members; 1: before settings got names
TABLES_OF_FACTS = ("fit", "dataset", "evaluation", "baselines", "truth", "stopped", "demo")  # of callers, where given
STORED_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"  # a file of the folder itself: no path, not hidden
LOCK_TIMEOUT, LOCK_RETRY = 20.0, 0.01  # seconds that a writer waits for another, and between two attempts
MAKE_ROOM = "Choose another place, or make room."
MAX_TEXT_FILE = 1 << 26  # bytes of a manifest, a configuration, a row of results, a list of ids: more is none
MAX_SUGGESTED = 10_000  # files of a folder among which a misspelt one is looked for
PARTIAL = ".partial"  # the end of the name of what is not complete
READ_AT_ONCE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
INPUTS: ContextVar[tuple[Path, ...]] = ContextVar("inputs", default=())  # of the command that runs: never written to
TABLE_WRITERS: dict[str, Callable[[pl.DataFrame, IO[bytes]], Any]] = {
    ".parquet": lambda frame, stream: frame.write_parquet(stream),
    ".csv": lambda frame, stream: frame.write_csv(stream),
    ".tsv": lambda frame, stream: frame.write_csv(stream, separator="\t"),
}


class OldFormatError(DataError):
    """A run of an earlier format, which this version cannot read but may replace."""


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with `~` and `~name` as home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no such home folder. Write the path out, or as ./~...") from None


def open_file(path: str | os.PathLike[str], *, links: bool = True) -> IO[bytes]:
    """A regular file, opened to read; `DataError` for anything else, at once: a pipe or a device may never end.

    `links`: whether the name may be that of a link; not in folders whose content came from others.
    """
    try:
        _check_kind(path, Path(path).stat(follow_symlinks=links).st_mode)
        handle = os.open(path, READ_AT_ONCE | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
        try:
            _check_kind(path, os.fstat(handle).st_mode)  # it may be another by now
            return os.fdopen(handle, "rb")
        except BaseException:
            os.close(handle)
            raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.{_nearest_file(Path(path))}") from None
    except PermissionError:
        raise DataError(f"{path}: no permission to read it. Change its permissions or copy it.") from None
    except CounterpoiseError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error}).") from None


def _nearest_file(path: Path) -> str:
    """The end of a message: a file of the same folder whose name is close."""
    with suppress(OSError):
        return did_you_mean(path.name, (entry.name for entry in islice(os.scandir(path.parent), MAX_SUGGESTED)))
    return ""


def _check_kind(path: Any, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise DataError(f"{path}: is a folder, expected a file.")
    if stat.S_ISLNK(mode):
        raise DataError(f"{path}: is a link, and none is followed here. Put the file itself there.")
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: is not a regular file. Copy its content into one first.")


def check_file(path: str | os.PathLike[str], *, links: bool = True) -> None:
    """Raise `DataError` unless `open_file` opens it; called where another library opens a file by its name."""
    open_file(path, links=links).close()


def read_file(path: str | os.PathLike[str], *, links: bool = True, limit: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes; `links` as in `open_file`."""
    try:
        with open_file(path, links=links) as stream:
            content = stream.read() if limit is None else stream.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if limit is not None and len(content) > limit:
        raise DataError(f"{path}: has more than {limit >> 20} MiB, which no such file needs. Is it another file?")
    return content


def is_regular(path: Path, *, links: bool = True) -> bool:
    """Whether `open_file` may open it."""
    try:
        check_file(path, links=links)
    except DataError:
        return False
    return True


def to_json(facts: Any, indent: int | None = None) -> str:
    """JSON as other programs read it: null for what is no finite number, and text for what JSON does not know."""
    text = json.dumps(facts, default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda word: None), default=str)
    return text if indent is None else json.dumps(json.loads(text), indent=indent)


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text; `ValueError` for any other text, also one with NaN or of hostile depth."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(content, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def keeping(inputs: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Inside the block `check_output` refuses these files and folders as outputs, since they are inputs."""
    before = INPUTS.set(tuple(map(Path, inputs)))
    try:
        yield
    finally:
        INPUTS.reset(before)


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise `DataError` for an output that would replace what is none: a device, an input, a file of a saved run."""
    path = Path(path)
    try:
        found, parent = path.stat(), path.parent.resolve()
    except (OSError, ValueError):
        return  # nothing is there; what else is wrong, the writing says
    choose = "Choose another `out`: nothing was written."
    if stat.S_ISDIR(found.st_mode):
        raise DataError(f"{path}: is a folder, expected the name of a file. {choose}")
    if not stat.S_ISREG(found.st_mode) or parent == Path("/dev"):  # there links lead to this process's own files
        raise DataError(f"{path}: is not a regular file, so it is not replaced. {choose}")
    if any(_is_input(path, found, place) for place in INPUTS.get()):
        raise DataError(f"{path}: is read by this command, so it is not written. {choose}")
    if path.name in _stored_in(path.parent):
        raise DataError(f"{path}: is a file of the run saved there. {choose}")


def _is_input(path: Path, found: os.stat_result, place: Path) -> bool:
    """Whether an existing file is an input, or would be read as a part of one that is a folder of tables."""
    try:
        own = place.stat()
    except (OSError, ValueError):
        return False
    if not stat.S_ISDIR(own.st_mode):
        return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
    inside = place.resolve() in path.resolve().parents and not (place / MANIFEST).exists()
    return inside and path.suffix.lower() in TABLE_WRITERS


def _stored_in(folder: Path) -> set[str]:
    """The names of the files of the run that a folder holds; none where it holds none."""
    if not (folder / MANIFEST).exists():
        return set()
    try:
        entries = read_manifest(folder)["files"].values()
    except DataError:
        entries = ()
    return {MANIFEST, CHECKPOINT, *(entry["file"] for entry in entries)}


def write_folder(
    folder: str | Path, own_facts: Mapping[str, Any], files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> None:
    """Write `files` (name -> content) and the manifest into `folder`, replacing what it held before.

    The manifest holds `own_facts` and the `facts` of the caller, who may not use the names of the former.
    """
    folder, entries = expanded(folder), {}
    for name, content in files.items():  # `tensors.safetensors` is stored as `tensors.<start of its hash>.safetensors`
        (stem, _, suffix), digest = name.rpartition("."), hashlib.sha256(content).hexdigest()
        entries[name] = {"file": f"{stem}.{digest[:12]}.{suffix}", "sha256": digest}
    stored = {name: entry["file"] for name, entry in entries.items()}
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": entries, **own_facts}
    taken = sorted(set(manifest) & set(facts or {}))
    if taken:
        raise ConfigError(f"{', '.join(map(repr, taken))} is a name that the manifest uses itself. Choose another.")
    for name, found in _not_tables(facts or {}):
        raise ConfigError(f"`{name}` must be a dict of facts, got {short_repr(found)}. Nothing was written.")
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


def _not_tables(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The facts that must be tables and are not, by name."""
    return [(name, facts[name]) for name in TABLES_OF_FACTS if not isinstance(facts.get(name), Mapping | None)]


def remove_folder(folder: str | Path) -> None:
    """Remove a saved run: its manifest, its files, and the folder itself where nothing else is in it."""
    folder = expanded(folder)
    files = [entry["file"] for entry in read_manifest(folder)["files"].values()]
    with suppress(OSError):  # what cannot be removed stays
        with write_lock(folder):
            for name in (MANIFEST, *files):
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def check_folder(folder: str | Path) -> None:
    """Raise `DataError` where a run cannot be written; called before long work. An old run may be replaced."""
    folder = expanded(folder)
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
    folder = expanded(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "no permission to write there" if there.is_dir() else f"{there} is a file"
        raise DataError(f"{folder} cannot be written: {reason}. Choose another folder.")


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the content of its files, each checked against its hash.

    Where another process replaces them meanwhile, the new ones are read.
    """
    folder = expanded(folder)
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
        files[name] = read_file(path, links=False)
        if hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise DataError(f"{path} is damaged: its content is not what was saved. Fit and save again.")
    return files


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest alone, checked."""
    path = expanded(folder) / MANIFEST
    if not os.path.lexists(path):
        raise DataError(
            f"{Path(folder)} is not a saved run: there is no {MANIFEST}. Name the folder of one, as `counterpoise fit` "
            "and `save` write it."
        )
    content = read_file(path, links=False, limit=MAX_TEXT_FILE)
    try:
        manifest = parse_json(content)
    except ValueError as error:
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
    for name, found in _not_tables(manifest):
        raise DataError(f"{path} is damaged: {name!r} must be a table, got {short_repr(found)}.")
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
    temporary = {path: path.with_name(f".{path.name[:200]}{PARTIAL}") for path in contents}
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
    contents = {expanded(path): content for path, content in contents.items()}
    path = next(iter(contents))
    for each in contents:
        check_output(each)
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
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{lock.lock_file} cannot be written: {reason}. Remove it, or choose another folder.") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@dataclass(eq=False)
class ScratchFolder:
    """A folder for what is not complete, inside `.NAME.XXXXXXXX.partial`; gone when it is closed.

    Its process holds a lock on the outer folder, so the inner one can be locked by its writer, and renamed.
    One that nobody holds was left by a process that was killed: the next scratch folder in its place removes it.
    """

    path: Path
    descriptor: int | None = None

    @classmethod
    def make(cls, parent: Path, name: str, pattern: str | None = None) -> ScratchFolder:
        """A new one in `parent`, after those that were left there, of this name or of all that match `pattern`."""
        parent.mkdir(parents=True, exist_ok=True)
        with write_lock(parent):
            sweep(parent, pattern or re.escape(name))
            outer = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=PARTIAL, dir=parent))
            held = _held(outer)
        path = outer / "content"
        path.mkdir()
        return cls(path, held)

    def close(self) -> None:
        """Remove what is still there."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without the lock: it stays with the process that has it."""
        return {"path": self.path, "descriptor": None}


def sweep(parent: Path, pattern: str) -> None:
    """Remove the scratch folders that killed processes left in a folder, of names that match the pattern."""
    own = re.compile(rf"\.(?:{pattern})\.\w{{8}}{re.escape(PARTIAL)}")
    for left in [entry.path for entry in os.scandir(parent) if own.fullmatch(entry.name)]:
        _remove_abandoned(Path(left))


def _held(folder: Path) -> int | None:
    """A descriptor that holds a folder as long as it is open; None where there are no locks."""
    descriptor = None
    with suppress(OSError, AttributeError):  # a file system, or a whole system, without locks
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove_abandoned(folder: Path) -> None:
    """Remove a scratch folder that no process holds."""
    if folder.is_symlink():
        return
    with suppress(OSError, AttributeError):  # the latter where a system has no locks
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error where another process holds it
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
