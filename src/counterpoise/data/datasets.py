"""`load_dataset`: a public dataset by its name, simulated data, or own files, split into train, probe and test.

Everything is read into memory; `out_of_core.datasets` streams logs that do not fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from counterpoise.config import Holdout, Protocol, Sample, UnknownInTest
from counterpoise.data.files import TABLES, first_fields, is_many, kind_of, title_of
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.reading import AnyPath, read_log, read_logs, read_logs_with_features
from counterpoise.data.splits import Split
from counterpoise.errors import ConfigError, DataError, did_you_mean

Logs = tuple[FeedbackLog, FeedbackLog, dict[str, Any]]  # the biased log, unbiased ratings, notes for the description
Reader = Callable[[Path, float | None, np.random.Generator], Logs]  # of (folder, threshold, generator)
FilesReader = Callable[..., Mapping[str, FeedbackLog]]  # of (files by part, users, items, threshold=..., **options)
WATCHED: dict[str, Any] = {"item_col": "video_id", "rating_col": "watch_ratio", "duplicates": "mean"}  # of KuaiRec
PARTS = ("train", "probe", "test")
YAHOO_FILES = ("ydata-ymusic-rating-study-v1_0-train.txt", "ydata-ymusic-rating-study-v1_0-test.txt")


@dataclass(frozen=True)
class Source:
    """A dataset that `load_dataset` knows by name. `readers`: the files that must be there, and what reads them."""

    name: str
    title: str
    licence: str
    size: str
    obtain: str
    citation: str
    threshold: float | None = None
    readers: Mapping[tuple[str, ...], Reader] = field(default_factory=dict, repr=False)

    def find(self, folder: Path) -> tuple[Path, Reader] | None:
        """The folder with the files, itself or its `data`, and their reader; None where they are not there."""
        for place in (folder, folder / "data"):
            for files, reader in self.readers.items():
                if all((place / file).is_file() for file in files):
                    return place, reader
        return None


def read_coat(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Two dense matrices in which 0 means not rated, and binary side features where their files exist."""
    features = {}
    for side in ("user_features", "item_features"):
        file = folder / "user_item_features" / f"{side}.ascii"
        features[side] = _matrix(file) if file.is_file() else None
    logs = []
    for file in (folder / "train.ascii", folder / "test.ascii"):
        ratings = _matrix(file)
        try:
            logs.append(FeedbackLog.from_csr(ratings, ratings != 0, threshold=threshold, **features))
        except DataError as error:
            raise DataError(f"{file}: {error}") from None
    return logs[0], logs[1], {}


def read_yahoo(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Rows of user, item and rating without a header; users 1 to 15,400, items 1 to 1,000."""
    ids = {"user_ids": Vocabulary(np.arange(1, 15_401)), "item_ids": Vocabulary(np.arange(1, 1_001))}
    columns = {"header": ("user_id", "item_id", "rating"), "separator": "\t"}
    return _train_and_test(folder, YAHOO_FILES, threshold=threshold, duplicates="last", **columns, **ids)


def read_kuairec_split(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The literature's files of rows user, item, watch ratio; with or without a header."""
    columns = ["user", "item", "watch_ratio"]
    has_header = first_fields(folder / "user.txt", ",")[:3] == columns
    options = {"user_col": "user", "item_col": "item", "header": None if has_header else columns}
    return _train_and_test(folder, ("user.txt", "random.txt"), threshold=threshold, **WATCHED | options)


def read_kuairec_matrices(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The big matrix is the biased log, the small one, nearly full, the unbiased ratings."""
    return _train_and_test(folder, ("big_matrix.csv", "small_matrix.csv"), threshold=threshold, **WATCHED)


def _train_and_test(folder: Path, files: tuple[str, str], **options: Any) -> Logs:
    logs = read_logs({"train": folder / files[0], "test": folder / files[1]}, **options)
    return logs["train"], logs["test"], {}


def read_kuairec_small(
    folder: Path, threshold: float | None, rng: np.random.Generator, density: float = 0.05, rows_a_user: int = 83
) -> Logs:
    """A semi-synthetic log, drawn from the small matrix, which is nearly full.

    P(a pair enters the log) = sigmoid(offset + z), z the standardised log(1 + watch ratio), mean `density`.
    The unbiased ratings are `rows_a_user` uniform pairs of each user.
    """
    full = read_log(folder / "small_matrix.csv", threshold=threshold, **WATCHED)
    watched = np.log1p(np.maximum(full.ratings, 0))
    score = (watched - watched.mean()) / max(watched.std(), 1e-12)
    offset = brentq(lambda b: expit(b + score).mean() - density, -100, 100)
    train = full.take(rng.random(len(full)) < expit(offset + score))
    unbiased = full.take(_draw_from_each(full.users, rows_a_user, rng))
    note = f"semi-synthetic: the log was drawn with P = sigmoid({offset:.3f} + standardised log(1 + watch ratio))"
    return train, unbiased, {"note": note}


def _draw_from_each(groups: NDArray[np.int32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of `count` uniformly drawn members of each group (all of a smaller one), ascending."""
    order = np.lexsort((rng.random(len(groups)), groups))
    ordered = groups[order]
    rank = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return np.sort(order[rank < count])


def _matrix(file: Path) -> NDArray[np.float64]:
    try:
        return np.loadtxt(file, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as a table of numbers ({str(error).splitlines()[0]}).") from None


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="coat",
            title="Coat shopping ratings: chosen and uniformly drawn coats",
            licence="none stated; for research, cite the paper",
            size="290 users x 300 items, 6,960 + 4,640 ratings, side features, under 1 MB",
            obtain="Download it from https://www.cs.cornell.edu/~schnabts/mnar/",
            citation="Schnabel et al., Recommendations as Treatments, ICML 2016",
            threshold=3,
            readers={("train.ascii", "test.ascii"): read_coat},
        ),
        Source(
            name="yahoo-r3",
            title="Yahoo! R3: music ratings for user selected and randomly selected songs",
            licence="Yahoo! Webscope data sharing agreement: academic use, may not be passed on",
            size="15,400 users x 1,000 items, 311,704 + 54,000 ratings, about 5 MB",
            obtain="Its terms forbid passing it on, so it is never downloaded: ask the Yahoo! Webscope programme for "
            "dataset R3 and sign its agreement (https://webscope.sandbox.yahoo.com)",
            citation="Marlin and Zemel, Collaborative Prediction and Ranking with Non-Random Missing Data, RecSys 2009",
            threshold=3,
            readers={YAHOO_FILES: read_yahoo},
        ),
        Source(
            name="kuairec",
            title="KuaiRec: watch ratios of short videos, nearly fully observed",
            licence="CC BY-SA 4.0",
            size="1,411 users x 3,327 items, 4,676,570 ratings (small matrix), about 0.4 GB",
            obtain="Download it from https://kuairec.com; user.txt and random.txt are the split of the literature",
            citation="Gao et al., KuaiRec: A Fully-Observed Dataset, CIKM 2022",
            threshold=2,
            readers={
                ("user.txt", "random.txt"): read_kuairec_split,
                ("big_matrix.csv", "small_matrix.csv"): read_kuairec_matrices,
                ("small_matrix.csv",): read_kuairec_small,
            },
        ),
        Source(
            name="simulated",
            title="Simulated log with known propensities and a known ideal loss",
            licence="made here, free",
            size="500 users x 400 items by default",
            obtain="Nothing to get",
            citation="",
        ),
    )
}
NAMES = ", ".join(map(repr, SOURCES))


def load_dataset(
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
    read: FilesReader = read_logs_with_features,
    test_kind: Sample | None = None,
    holdout: float | None = None,
    by: Holdout | None = None,
    unknown_users: UnknownInTest = "popular",
    unknown_items: UnknownInTest = "popular",
    **options: Any,
) -> Dataset:
    """A dataset by its name (see `available`), or from files of your own, in memory.

    `name`: a known name; the biased log as a file, a folder of files or a glob (then `test` and `probe` may name two
    more); or a folder with `train.*` and maybe `test.*` and `probe.*`. Without a probe file the protocol draws the
    probe from the test, if that is a uniform sample.
    `path`: the folder of a known dataset; by default $COUNTERPOISE_DATA/<name>, then the user's cache folder.
    `protocol`: "honest" or "paper", see `apply_protocol`; `seed` draws the probe. What was removed is in `description`.
    `threshold`: ratings at or above it are positive; by default the dataset's own, for files none.
    `users`, `items`: with files of your own, two more with side features: a column of ids, named as in the log, and
    numbers.
    `read`: what turns files of your own into logs.
    `test_kind`: how the pairs of your own test were collected, "uniform" (drawn at random) or "biased", which is
    assumed unless you say so. The probe is uniform by definition, and so are the tests of known datasets.
    `holdout`, `by`: without a test, which rows of your log to evaluate on, as in `split`.
    `unknown_users`, `unknown_items`: what to do with rows of the test whose user or item has no row in the training
    log: an "error", "drop" them, or keep them ("popular"): the model scores them by what it knows of the other side.
    `options`: for files those of `read_logs`, for "simulated" those of `simulate`.
    """
    split = Split(protocol, probe_fraction, seed, test_kind, holdout, by, unknown_users, unknown_items)
    if str(name) not in SOURCES:
        if path is not None:
            raise ConfigError(f"`path` goes with one of the names {NAMES}; {str(name)!r} is a path itself.")
        logs = read(_files(Path(name).expanduser(), test, probe), users, items, threshold=threshold, **options)
        about = {"source": str(name), "threshold": threshold}
        return split.of_files(title_of(name), logs["train"], logs.get("test"), logs.get("probe"), about)
    source = SOURCES[str(name)]
    if any(file is not None for file in (test, probe, users, items)):
        raise ConfigError(f"`test`, `probe`, `users` and `items` go with your own files; {source.name!r} has its own.")
    if split.holds_out or test_kind is not None:
        raise ConfigError(
            f"`holdout`, `by` and `test_kind` go with your own files; {source.name!r} has a uniform test."
        )
    unknown = set(options)
    if source.name == "simulated":
        from counterpoise.data.simulation import simulate

        unknown -= set(signature(simulate).parameters)
    if unknown:
        listed = ", ".join(f"`{option}`" for option in sorted(unknown))
        raise ConfigError(f"{source.name!r} does not take {listed}: they go with files of your own.")
    if source.name == "simulated":
        if path is not None or threshold is not None or protocol != "honest":
            raise ConfigError("'simulated' takes no `path` and no `threshold`, and its protocol is 'honest'.")
        return simulate(seed=seed, probe_fraction=probe_fraction, **options).dataset
    threshold = source.threshold if threshold is None else threshold
    folder, reader = find(source, path)
    train, unbiased, notes = reader(folder, threshold, split.rng)
    train, unbiased = replace(train, sample="biased"), replace(unbiased, sample="uniform")
    about = {"source": source.title, "licence": source.licence, "citation": source.citation, "threshold": threshold}
    return split.dataset(source.name, train, unbiased, None, about | notes)


def available() -> list[dict[str, Any]]:
    """The named datasets: title, licence, size, where to get them, and the folder where each was found or None."""
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
    """The file of each part, train first: from a folder with train.*, probe.*, test.*, or as named one by one."""
    files: dict[str, AnyPath] = {"train": path}
    if path.is_dir() and any(any(path.glob(f"{part}.*")) for part in PARTS):
        files = _files_in(path)
    elif not is_many(path) and not path.exists() and path.name == str(path) and kind_of(path) == "":
        hint = did_you_mean(path, SOURCES)
        raise ConfigError(f"unknown dataset {str(path)!r}.{hint} Use one of {NAMES}, or a path to your own files.")
    return files | {part: file for part, file in (("probe", probe), ("test", test)) if file is not None}


def _files_in(folder: Path) -> dict[str, AnyPath]:
    files: dict[str, AnyPath] = {}
    for part in PARTS:
        tables = [file for file in folder.glob(f"{part}.*") if kind_of(file) in TABLES]
        found = sorted(file for file in tables if file.name.split(".")[0] == part)
        if len(found) > 1:
            raise DataError(f"{folder}: several files are called {part}: {', '.join(file.name for file in found)}.")
        if found:
            files[part] = found[0]
    if "train" not in files:
        raise DataError(f"{folder}: there is no train.csv, train.tsv or train.parquet in this folder.")
    return files
