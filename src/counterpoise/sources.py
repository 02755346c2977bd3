"""The public datasets of the field: where they come from, and a short reader for each.

A reader takes (folder, threshold, generator) and returns (biased log, unbiased ratings, notes for the description).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from counterpoise.errors import DataError
from counterpoise.feedback import FeedbackLog
from counterpoise.ingest import read_log, read_logs
from counterpoise.tables import first_fields
from counterpoise.vocabulary import Vocabulary

Logs = tuple[FeedbackLog, FeedbackLog, dict[str, Any]]
Reader = Callable[[Path, float | None, np.random.Generator], Logs]
YAHOO_FILES = ("ydata-ymusic-rating-study-v1_0-train.txt", "ydata-ymusic-rating-study-v1_0-test.txt")


@dataclass(frozen=True)
class Source:
    """A dataset that `load` knows by name. `readers` maps the files that must be there to who reads them."""

    name: str
    title: str
    licence: str
    size: str
    obtain: str
    citation: str
    threshold: float | None = None
    readers: Mapping[tuple[str, ...], Reader] = field(default_factory=dict, repr=False)

    def find(self, folder: Path) -> tuple[Path, Reader] | None:
        """The folder that holds the files, itself or its `data`, and their reader; None where they are not there."""
        for place in (folder, folder / "data"):
            for files, reader in self.readers.items():
                if all((place / file).is_file() for file in files):
                    return place, reader
        return None


def read_coat(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Two dense matrices in which 0 means not rated, and binary features where they are there."""
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
    train, test = (folder / file for file in YAHOO_FILES)
    logs = read_logs(
        {"train": train, "test": test},
        header=("user_id", "item_id", "rating"),
        separator="\t",
        threshold=threshold,
        duplicates="last",
        user_ids=Vocabulary(np.arange(1, 15_401)),
        item_ids=Vocabulary(np.arange(1, 1_001)),
    )
    return logs["train"], logs["test"], {}


def read_kuairec_split(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The literature's files of rows user, item, watch ratio; with or without a header."""
    columns = ["user", "item", "watch_ratio"]
    has_header = first_fields(folder / "user.txt", ",")[:3] == columns
    logs = read_logs(
        {"train": folder / "user.txt", "test": folder / "random.txt"},
        user_col="user",
        item_col="item",
        rating_col="watch_ratio",
        header=None if has_header else columns,
        threshold=threshold,
        duplicates="mean",
    )
    return logs["train"], logs["test"], {}


def read_kuairec_matrices(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The big matrix is the biased log, the small one, nearly full, the unbiased ratings."""
    files = {"train": folder / "big_matrix.csv", "test": folder / "small_matrix.csv"}
    logs = read_logs(files, item_col="video_id", rating_col="watch_ratio", threshold=threshold, duplicates="mean")
    return logs["train"], logs["test"], {}


def read_kuairec_small(
    folder: Path, threshold: float | None, rng: np.random.Generator, density: float = 0.05, rows_a_user: int = 83
) -> Logs:
    """Only the small matrix, nearly full: a biased log is drawn from it, so that its propensities are known.

    P(a pair enters the log) = sigmoid(offset + z), z the standardised log(1 + watch ratio), mean `density`.
    The unbiased ratings are `rows_a_user` uniform pairs of each user.
    """
    full = read_log(
        folder / "small_matrix.csv",
        item_col="video_id",
        rating_col="watch_ratio",
        threshold=threshold,
        duplicates="mean",
    )
    level = np.log1p(np.maximum(full.ratings, 0))
    score = (level - level.mean()) / max(level.std(), 1e-12)
    offset = brentq(lambda b: expit(b + score).mean() - density, -100, 100)
    train = full.take(rng.random(len(full)) < expit(offset + score))
    unbiased = full.take(_some_of_each(full.users, rows_a_user, rng))
    note = f"semi-synthetic: the log was drawn with P = sigmoid({offset:.3f} + standardised log(1 + watch ratio))"
    return train, unbiased, {"note": note}


def _some_of_each(groups: NDArray[np.int32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The positions of `count` uniformly drawn members of each group (all of a smaller one), in order."""
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
