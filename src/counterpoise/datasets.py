"""`load` a dataset by name or from files, split by a protocol into a biased log, a probe and a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import numpy as np

from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.feedback import Dataset, FeedbackLog
from counterpoise.ingest import AnyPath, read_logs
from counterpoise.log_files import is_many, title_of
from counterpoise.protocols import apply_protocol
from counterpoise.ray_engine import RayEngine
from counterpoise.side_tables import with_sides
from counterpoise.sources import SOURCES, Reader, Source
from counterpoise.streamed_log import read_streamed, too_long
from counterpoise.tables import PARQUET, SEPARATORS, kind_of
from counterpoise.words import Protocol

PARTS = ("train", "probe", "test")


@dataclass
class Split:
    """How unbiased ratings are split, and the generator that draws."""

    protocol: Protocol
    probe_fraction: float
    seed: int

    def __post_init__(self) -> None:
        """Check the settings, also where nothing is to be drawn."""
        check_choice("protocol", self.protocol, get_args(Protocol))
        check_number("probe_fraction", self.probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
        check_number("seed", self.seed, at_least=0, integer=True)
        self.rng = np.random.default_rng(self.seed)

    def dataset(
        self,
        name: str,
        train: FeedbackLog,
        unbiased: FeedbackLog | None,
        probe: FeedbackLog | None,
        about: dict[str, Any],
    ) -> Dataset:
        """The dataset, with the settings and the counts of rows in its description."""
        about = about | asdict(self) | {"train_rows": len(train)}
        if unbiased is None:
            return Dataset(train, probe, None, name, about)
        probe, test, counts = apply_protocol(
            train, unbiased, self.protocol, self.probe_fraction, rng=self.rng, probe=probe
        )
        return Dataset(train, probe, test, name, about | counts)


def load(
    name: AnyPath,
    path: AnyPath | None = None,
    protocol: Protocol = "honest",
    seed: int = 0,
    *,
    probe_fraction: float = 0.05,
    threshold: float | None = None,
    test: AnyPath | None = None,
    probe: AnyPath | None = None,
    users: AnyPath | None = None,
    items: AnyPath | None = None,
    memory: str | float | None = None,
    streaming: Mapping[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """A dataset by its name (see `available`), or from files of your own.

    `name`: a known name; the biased log as a file, a folder of files or a glob (then `test` and `probe` may name two
    more); or a folder with `train.*` and maybe `test.*` and `probe.*`. Without a probe file the protocol draws the
    probe from the test.
    `path`: the folder of a known dataset; by default $COUNTERPOISE_DATA/<name>, then the user's cache folder.
    `protocol`: "honest" or "paper", see `apply_protocol`; `seed` draws the probe. What was removed is in `description`.
    `threshold`: ratings at or above it are positive; by default the dataset's own, for files none.
    `users`, `items`: with files of your own, two more with side features: a column of ids, named as in the log, and
    numbers.
    `memory`: a log in a folder or a glob that would take more is streamed (see `StreamedLog`), with the options
    `streaming`: `cache` and `engine`. By default none is. With a `RayEngine` every log is, also a single file.
    `options`: for files those of `read_logs`, for "simulated" those of `simulate`.
    """
    split, over_ray = Split(protocol, probe_fraction, seed), isinstance((streaming or {}).get("engine"), RayEngine)
    if str(name) not in SOURCES:
        if path is not None:
            raise ConfigError(f"`path` goes with one of the names {_names()}; {str(name)!r} is a path itself.")
        files = _files(Path(name).expanduser(), test, probe)
        if memory is not None and (too_long(files["train"], memory) or over_ray):
            if users is not None or items is not None:
                raise ConfigError(
                    "`users` and `items` do not go with a log that is streamed. Raise `memory`, or leave Ray out."
                )
            ordered = {"train": files.pop("train"), **files}
            logs = read_streamed(ordered, threshold=threshold, memory=memory, **(streaming or {}), **options)
        else:
            columns = {name: options[name] for name in ("user_col", "item_col", "separator") if name in options}
            logs = with_sides(read_logs(files, threshold=threshold, **options), users, items, **columns)
        about = {"source": str(name), "threshold": threshold}
        return split.dataset(title_of(name), logs["train"], logs.get("test"), logs.get("probe"), about)
    source = SOURCES[str(name)]
    if over_ray:
        raise ConfigError(f"`engine` 'ray' works on files of your own; {source.name!r} fits into memory: leave it out.")
    if any(file is not None for file in (test, probe, users, items)):
        raise ConfigError(
            f"`test`, `probe`, `users` and `items` go with files of your own; {source.name!r} has its own."
        )
    if source.name == "simulated":
        if path is not None or threshold is not None or protocol != "honest":
            raise ConfigError("'simulated' takes no `path` and no `threshold`, and its protocol is 'honest'.")
        from counterpoise.simulation import simulate

        unknown = sorted(set(options) - set(signature(simulate).parameters))
        if unknown:
            named = ", ".join(f"`{option}`" for option in unknown)
            raise ConfigError(f"'simulated' does not take {named}: they go with files.")
        return simulate(seed=seed, probe_fraction=probe_fraction, **options).dataset
    if options:
        named = ", ".join(f"`{option}`" for option in options)
        raise ConfigError(f"{source.name!r} does not take {named}: they go with files of your own.")
    threshold = source.threshold if threshold is None else threshold
    folder, read = find(source, path)
    train, unbiased, notes = read(folder, threshold, split.rng)
    about = {"source": source.title, "licence": source.licence, "citation": source.citation, "threshold": threshold}
    return split.dataset(source.name, train, unbiased, None, about | notes)


def available() -> list[dict[str, Any]]:
    """What `load` knows by name: title, licence, size, where to get it, and the folder where it was found or None."""
    rows = []
    for source in SOURCES.values():
        found = next(filter(None, map(source.find, search_folders(source.name))), None)
        facts = {key: value for key, value in asdict(source).items() if key != "readers"}
        rows.append(facts | {"folder": str(found[0]) if found else None, "ready": bool(found) or not source.readers})
    return rows


def search_folders(name: str) -> list[Path]:
    """$COUNTERPOISE_DATA/<name> where that is set, then <cache>/counterpoise/<name>."""
    folders = [Path(os.environ["COUNTERPOISE_DATA"]) / name] if os.environ.get("COUNTERPOISE_DATA") else []
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [folder.expanduser() for folder in (*folders, Path(cache) / "counterpoise" / name)]


def find(source: Source, path: AnyPath | None = None) -> tuple[Path, Reader]:
    """The folder with the files of a known dataset, and their reader."""
    folders = [Path(path).expanduser()] if path is not None else search_folders(source.name)
    for found in map(source.find, folders):
        if found is not None:
            return found
    needed = " or ".join(" + ".join(files) for files in source.readers)
    raise DataError(
        f"{source.name!r} ({needed}) was not found in {' or '.join(map(str, folders))}. {source.obtain}. "
        "Then give its folder as `path`, or set COUNTERPOISE_DATA to the folder above it."
    )


def _files(path: Path, test: AnyPath | None, probe: AnyPath | None) -> dict[str, AnyPath]:
    """The file of each part: from a folder with train.*, probe.*, test.*, or as named one by one."""
    given = {"probe": probe, "test": test}
    files: dict[str, AnyPath] = {part: file for part, file in given.items() if file is not None}
    if not path.is_dir() or not any(any(path.glob(f"{part}.*")) for part in PARTS):
        if not is_many(path) and not path.exists() and path.name == str(path) and kind_of(path) == "":
            raise ConfigError(f"unknown dataset {str(path)!r}. Use one of {_names()}, or a path to your own files.")
        return {"train": path, **files}
    for part in PARTS:
        found = sorted(
            file
            for file in path.glob(f"{part}.*")
            if file.name.split(".")[0] == part and kind_of(file) in (*SEPARATORS, *PARQUET)
        )
        if len(found) > 1:
            raise DataError(f"{path}: several files are called {part}: {', '.join(file.name for file in found)}.")
        if found and part not in files:
            files[part] = found[0]
    if "train" not in files:
        raise DataError(f"{path}: there is no train.csv, train.tsv or train.parquet in this folder.")
    return files


def _names() -> str:
    return ", ".join(map(repr, SOURCES))
