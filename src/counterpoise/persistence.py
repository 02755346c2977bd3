"""Folders on disk that are always whole: the old content or the new, never a mixture, and nothing that executes.

A folder holds data files and one manifest, `run.json`, that names them with their SHA-256. Writing puts new data files
beside the old ones under new names and then replaces the manifest, in one atomic step; the old files go last. So an
interruption at any moment leaves a folder that loads, and a damaged file is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import polars as pl

from counterpoise.errors import ConfigError, DataError

MANIFEST = "run.json"
FORMAT = "counterpoise-run"
FORMAT_VERSION = 1
STORED_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"  # a file of the folder itself: no path, not hidden
TABLES: dict[str, Callable[[pl.DataFrame, IO[bytes]], Any]] = {
    ".parquet": lambda frame, stream: frame.write_parquet(stream),
    ".csv": lambda frame, stream: frame.write_csv(stream),
    ".tsv": lambda frame, stream: frame.write_csv(stream, separator="\t"),
}


def write_folder(folder: str | Path, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write `files` (name -> content) and the manifest with `facts` into `folder`, replacing what it held before."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _data_files(folder)
        entries = {}
        for name, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            stem, _, suffix = name.rpartition(".")
            stored = f"{stem}.{digest[:12]}.{suffix}"
            entries[name] = {"file": stored, "sha256": digest}
            write_file(folder / stored, content)
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": entries, **facts}
        text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
        write_file(folder / MANIFEST, text.encode())
        for stale in before - {entry["file"] for entry in entries.values()}:
            (folder / stale).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror or error}. What was there is unharmed."
        ) from error


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the content of its files, each checked against its hash."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    files = {}
    for name, entry in manifest["files"].items():
        path = folder / entry["file"]
        if path.is_symlink():
            raise DataError(f"{path} is a link, and a saved run holds none: it is not read.")
        files[name] = _read(path)
        if hashlib.sha256(files[name]).hexdigest() != entry["sha256"]:
            raise DataError(f"{path} is damaged: its content is not what was saved. Fit and save again.")
    return manifest, files


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest alone, checked."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir() or not path.is_file():
        raise DataError(f"{folder} is not a saved run: there is no {MANIFEST}. Save a model there first.")
    try:
        manifest = json.loads(_read(path))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} was not written by counterpoise.")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {manifest.get('format_version')!r}; this version of counterpoise reads "
            f"{FORMAT_VERSION}. Upgrade counterpoise, or fit and save again."
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DataError(f"{path} is damaged: its list of files cannot be read. Fit and save again.")
    for entry in files.values():
        if not re.fullmatch(STORED_NAME, entry["file"]):
            raise DataError(f"{path} names {entry['file']!r}, which is not a file of this folder.")
    return manifest


def write_file(path: Path, content: bytes) -> None:
    """Write beside and rename: the path holds its old content or all of the new, whatever happens meanwhile."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file beside and rename it."""
    _write_output(Path(path), text.encode())


def check_table_name(path: str | Path) -> None:
    """Raise `ConfigError` unless the ending says which kind of table to write; worth asking before long work."""
    if Path(path).suffix not in TABLES:
        raise ConfigError(f"`out` must end in {', '.join(TABLES)}, got {str(path)!r}.")


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a frame as Parquet, CSV or TSV, by the ending of the path, beside and renamed."""
    check_table_name(path)
    buffer = io.BytesIO()
    TABLES[Path(path).suffix](frame, buffer)
    _write_output(Path(path), buffer.getvalue())


def _write_output(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _data_files(folder: Path) -> set[str]:
    """Everything in the folder that an earlier write left: its data files, and partial ones of interrupted writes."""
    names = {path.name for path in folder.glob(".*.partial")}
    if (folder / MANIFEST).exists():
        try:
            names |= {entry["file"] for entry in read_manifest(folder)["files"].values()}
        except DataError:
            raise DataError(
                f"{folder} holds a {MANIFEST} that is not a saved run. Choose another folder: nothing was written."
            ) from None
    return names


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("file"), str) and isinstance(entry.get("sha256"), str)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
