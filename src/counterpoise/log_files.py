"""The files of one log: a single file, a folder with partitions, or a glob."""

from __future__ import annotations

import glob
import hashlib
import json
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from counterpoise.errors import DataError
from counterpoise.tables import COMPRESSED, FAILURES, PARQUET, SEPARATORS, broken_parquet, kind_of

TEXT_ROW = 12  # bytes that a row of a text file has at least, nearly always
PACKED = 4  # how much smaller a compressed text file is, roughly


def is_many(path: str | PathLike[str]) -> bool:
    """Whether a path names a folder, or is a glob and not the name of a file."""
    place = Path(path).expanduser()
    return place.is_dir() or (glob.has_magic(str(place)) and not place.exists())


def title_of(path: str | PathLike[str]) -> str:
    """What a log is called: its file or folder without ending; of a glob, the last part that is no pattern."""
    place = Path(path).expanduser()
    plain = [part for part in place.parts if not glob.has_magic(part)] if is_many(place) else [place.name]
    return plain[-1].split(".")[0].strip("/") or "log" if plain else "log"


def files_of(path: str | PathLike[str]) -> list[Path]:
    """The files of a log in the order of their names; of a folder those at any depth, but none that begin with . or _.

    Files that are not tables by their ending, such as Spark's _SUCCESS, are not looked at.
    """
    place = Path(path).expanduser()
    if not is_many(place):
        return [place]
    found = place.rglob("*") if place.is_dir() else map(Path, glob.glob(str(place), recursive=True))  # noqa: PTH207
    root = len(place.parts) if place.is_dir() else 0
    tables = (*SEPARATORS, *PARQUET)
    files = sorted(
        file
        for file in found
        if kind_of(file) in tables and file.is_file() and not any(part[0] in "._" for part in file.parts[root:][-1:])
    )
    if not files:
        where = "in this folder" if place.is_dir() else "of that name"
        raise DataError(f"{path}: there is no file {where} that ends in {', '.join(tables)}.")
    return files


def count_rows(files: list[Path]) -> int:
    """The rows of all files: exact for Parquet, no less than there are (nearly always) for text."""
    total = 0
    for file in files:
        if kind_of(file) in PARQUET:
            try:
                total += int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())
            except FAILURES as error:
                raise broken_parquet(file, error) from None
        else:
            total += file.stat().st_size * (PACKED if file.suffix.lower() in COMPRESSED else 1) // TEXT_ROW
    return total


def fingerprint(files: list[Path], *facts: Any) -> str:
    """A short hash of the names, sizes and times of the files and of how they are read."""
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, *facts]).encode()).hexdigest()[:16]
