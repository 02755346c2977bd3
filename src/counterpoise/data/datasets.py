"""`load_dataset`: a public dataset by its name, simulated data, or own files, split into train, probe and test.

Everything is read into memory; `out_of_core.datasets` streams logs that do not fit.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from counterpoise.config import Feedback, Holdout, Sample, UnknownInTest
from counterpoise.data.files import TABLES, is_many, kind_of, title_of
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.protocols import find_protocol
from counterpoise.data.reading import (
    AnyPath,
    header_of,
    read_all_columns,
    read_columns,
    read_log,
    read_logs,
    read_logs_with_features,
    read_unquoted,
)
from counterpoise.data.side_tables import NoFeatures
from counterpoise.data.splits import Split
from counterpoise.errors import ConfigError, DataError, ReadingWarning, check_choice, did_you_mean
from counterpoise.storage import check_file, expanded, read_file


class Logs(NamedTuple):
    """The logs in the files of a dataset, as its reader returns them."""

    log: FeedbackLog  # to learn from
    uniform: FeedbackLog | None = None  # ratings of uniformly drawn pairs
    notes: Mapping[str, Any] = {}  # for the description
    item_names: pl.DataFrame | None = None  # see `Dataset`


Reader = Callable[[Path, float | None, np.random.Generator], Logs]  # of (folder, threshold, generator)
FilesReader = Callable[..., Mapping[str, FeedbackLog]]  # of (files by part, users, items, threshold=..., **options)
WATCHED: dict[str, Any] = {"item_col": "video_id", "rating_col": "watch_ratio", "duplicates": "mean"}  # of KuaiRec
PARTS = ("train", "probe", "test")
MAX_BYTES_OF_NAMES = 1 << 20  # of a file that names columns
CLICKED: dict[str, Any] = {"item_col": "video_id", "rating_col": "is_click", "timestamp_col": "time_ms"}  # of KuaiRand
KUAIRAND_CATEGORIES = r"^(onehot_feat\d+|author_id|music_id|music_type|tag|visible_status)$"  # numbers that are names
MOVIELENS_LOG = ("user_id", "item_id", "rating", "timestamp")
MOVIELENS_USERS = ("user_id", "age", "gender", "occupation", "zip_code")
MOVIELENS_GENRES = (
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
MOVIELENS_ITEMS = ("item_id", "title", "release_date", "video_release_date", "imdb_url", *MOVIELENS_GENRES)
POLICIES = ("bts", "random")  # of the Open Bandit Dataset: Bernoulli Thompson sampling, and uniform
YAHOO_FILES = ("ydata-ymusic-rating-study-v1_0-train.txt", "ydata-ymusic-rating-study-v1_0-test.txt")


@dataclass(frozen=True)
class Source:
    """A dataset that `load_dataset` knows by name.

    `readers`: the files (or patterns) that must be there, and what reads them. `folders`: other names of its folder.
    `uniform`: it always has uniform ratings to evaluate on; else rows may be held out.
    """

    name: str
    title: str
    licence: str
    size: str
    obtain: str
    citation: str
    threshold: float | None = None
    click_threshold: float | None = None  # ratings at or above it are relevant where the log is read as clicks
    readers: Mapping[tuple[str, ...], Reader] = field(default_factory=dict, repr=False)
    folders: tuple[str, ...] = ()
    uniform: bool = True

    def find(self, folder: Path) -> tuple[Path, Reader] | None:
        """The folder with the files, itself or its `data`, and their reader; None where they are not there."""
        for place in (folder, folder / "data"):
            for files, reader in self.readers.items():
                if all(any(found.is_file() for found in place.glob(file)) for file in files):
                    return place, reader
        return None


def read_coat(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Two dense matrices in which 0 means not rated, and binary side features where their files exist."""
    logs = []
    for file in (folder / "train.ascii", folder / "test.ascii"):
        ratings = _matrix(file)
        try:
            logs.append(FeedbackLog.from_csr(ratings, ratings != 0, threshold=threshold))
        except DataError as error:
            raise DataError(f"{file}: {error}") from None
    features = folder / "user_item_features"
    sides = [_coat_features(features, side, rows) for side, rows in zip(("user", "item"), logs[0].shape, strict=True)]
    return Logs(_side_tables(logs[0], *sides), _side_tables(logs[1], *sides))


def _coat_features(folder: Path, side: str, rows: int) -> pl.DataFrame | None:
    """The features of users or items, whose names are in a file of their own; None without a file of features."""
    file, names_file = folder / f"{side}_features.ascii", folder / f"{side}_features_map.txt"
    if not file.is_file():
        return None
    matrix = _matrix(file)
    names = [f"feature {column + 1}" for column in range(matrix.shape[1])]
    if names_file.is_file():
        names = read_file(names_file, limit=MAX_BYTES_OF_NAMES).decode("utf-8", "replace").splitlines()
    if len(matrix) != rows or len(set(names)) != matrix.shape[1]:
        raise DataError(
            f"{file}: must have a row for each of {rows:,} {side}s and a column for each line of {names_file.name}, "
            f"got {len(matrix):,} rows and {matrix.shape[1]:,} columns for {len(set(names)):,} names."
        )
    return pl.DataFrame({f"{side}_id": np.arange(rows)} | dict(zip(names, matrix.T, strict=True)))


def read_yahoo(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Rows of user, item and rating without a header; users 1 to 15,400, items 1 to 1,000."""
    ids = {"user_ids": Vocabulary(np.arange(1, 15_401)), "item_ids": Vocabulary(np.arange(1, 1_001))}
    columns = {"header": ("user_id", "item_id", "rating"), "separator": "\t"}
    return _train_and_test(folder, YAHOO_FILES, threshold=threshold, duplicates="last", **columns, **ids)


def read_kuairec_split(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The literature's files of rows user, item, watch ratio; with or without a header."""
    options = {"user_col": "user", "item_col": "item", "header": ["user", "item", "watch_ratio"], "separator": ","}
    return _train_and_test(folder, ("user.txt", "random.txt"), threshold=threshold, **WATCHED | options)


def read_kuairec_matrices(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """The big matrix is the biased log, the small one, nearly full, the unbiased ratings."""
    return _train_and_test(folder, ("big_matrix.csv", "small_matrix.csv"), threshold=threshold, **WATCHED)


def _train_and_test(folder: Path, files: tuple[str, str], **options: Any) -> Logs:
    logs = read_logs({"train": folder / files[0], "test": folder / files[1]}, **options)
    return Logs(logs["train"], logs["test"])


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
    return Logs(train, unbiased, {"note": note})


def read_movielens_100k(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """u.data (tabs), and u.user, u.item (pipes, Latin-1) where they are there. Movies have a column for each genre."""
    log = read_log(folder / "u.data", header=MOVIELENS_LOG, separator="\t", threshold=threshold)
    users = _if_there(folder / "u.user", lambda file: read_unquoted(file, "|", MOVIELENS_USERS))
    items = _if_there(folder / "u.item", lambda file: read_unquoted(file, "|", MOVIELENS_ITEMS))
    return _movielens(log, users, items)


def read_movielens_1m(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """ratings.dat, and users.dat, movies.dat where they are there; between fields '::', Latin-1.

    Ages and occupations are codes of groups. Files of MovieLens 10M have this form too, without users.dat.
    """
    log = read_log(folder / "ratings.dat", header=MOVIELENS_LOG, separator="::", threshold=threshold)
    names = ("user_id", "gender", "age", "occupation", "zip_code")
    users = _if_there(folder / "users.dat", lambda file: read_unquoted(file, "::", names))
    columns = ("item_id", "title", "genres")
    items = _if_there(folder / "movies.dat", lambda file: read_unquoted(file, "::", columns))
    return _movielens(log, users, items)


def read_movielens_csv(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """ratings.csv, and movies.csv where it is there: 20M, 25M, 32M and latest."""
    columns: dict[str, Any] = {"user_col": "userId", "item_col": "movieId", "timestamp_col": "timestamp"}
    log = read_log(folder / "ratings.csv", threshold=threshold, **columns)
    items = _if_there(folder / "movies.csv", lambda file: read_all_columns(file))
    return _movielens(log, None, None if items is None else items.rename({"movieId": "item_id"}))


def _if_there(file: Path, read: Callable[[Path], pl.DataFrame]) -> pl.DataFrame | None:
    return read(file) if file.is_file() else None


def _movielens(log: FeedbackLog, users: pl.DataFrame | None, items: pl.DataFrame | None) -> Logs:
    if users is not None:
        users = users.with_columns(pl.col("occupation", "zip_code").cast(pl.String))  # numbers that are names
    names = None if items is None else items.select("item_id", name=pl.col("title").cast(pl.String))
    return Logs(_side_tables(log, users, items), item_names=names)


def read_kuairand(folder: Path, threshold: float | None, rng: np.random.Generator) -> Logs:
    """Clicks in log_standard_*.csv, and in log_random_*.csv, where videos were drawn at random from a pool.

    The last row of each pair counts. The features are those of user_features_*.csv and video_features_basic_*.csv.
    """
    parts = {"log": folder / "log_standard_*.csv", "uniform": folder / "log_random_*.csv"}
    logs = read_logs(parts, threshold=threshold, duplicates="last", **CLICKED)
    sides: list[pl.DataFrame | None] = []
    for pattern, id_col in (("user_features_*.csv", "user_id"), ("video_features_basic_*.csv", "video_id")):
        frames = [read_all_columns(file) for file in sorted(folder.glob(pattern))]
        side = (
            pl.concat(frames, how="vertical_relaxed").rename({id_col: id_col.replace("video", "item")})
            if frames
            else None
        )
        sides.append(None if side is None else side.with_columns(pl.col(KUAIRAND_CATEGORIES).cast(pl.String)))
    return Logs(_side_tables(logs["log"], *sides), _side_tables(logs["uniform"], *sides))


def read_open_bandit(
    folder: Path,
    threshold: float | None,
    rng: np.random.Generator,
    campaign: str,
    policies: Sequence[str],
) -> Logs:
    """Clicks on one to three items shown in an impression, with the logged chance of each item at its position.

    There are no ids of users: rows with the same four user features are one user. Of each pair the last row counts. Its
    known propensity is the chance that the pair was logged, 1 - (1 - p)^n, with p the mean logged chance of its rows
    and n the rows of its user. The policy `random` showed uniformly drawn items, so its rows are the uniform ratings.
    """
    roles = {"item": "item_id", "click": "click", "chance": "propensity_score", "timestamp": "timestamp"}
    features = [f"user_feature_{number}" for number in range(4)]
    rows = pl.concat(
        read_columns(
            folder / policy / campaign / f"{campaign}.csv", roles | {name: name for name in features}
        ).with_columns(policy=pl.lit(policy), chance=pl.col("chance").cast(pl.Float64, strict=False))
        for policy in policies
    )
    rows = rows.with_columns(user=pl.concat_str(features, separator="|", ignore_nulls=True).rank("dense"))
    n_rows, chance = pl.len().over("policy", "user"), pl.col("chance").mean().over("policy", "user", "item")
    rows = rows.with_columns(chance=(1 - (1 - chance) ** n_rows).clip(upper_bound=1))
    user_ids, item_ids = Vocabulary.of(rows["user"]), Vocabulary.of(rows["item"])
    users = rows.unique("user", keep="first", maintain_order=True).select(pl.col("user").alias("user_id"), *features)
    context = _if_there(folder / policies[0] / campaign / "item_context.csv", lambda file: read_all_columns(file))
    names = {"item": "item_id", "rating": "click", "propensity": "propensity_score"}
    logs = []
    for policy in policies:
        part = rows.filter(pl.col("policy") == policy)
        log = FeedbackLog.from_arrays(
            part["user"],
            part["item"],
            part["click"],
            timestamps=part["timestamp"],
            propensities=part["chance"],
            threshold=threshold,
            duplicates="last",
            names=names,
            user_ids=user_ids,
            item_ids=item_ids,
        )
        logs.append(_side_tables(log, users, context))
    if policies[0] == "random":
        return Logs(replace(logs[0], sample="uniform"))
    return Logs(logs[0], logs[1] if len(logs) > 1 else None)


def _side_tables(log: FeedbackLog, users: pl.DataFrame | None, items: pl.DataFrame | None) -> FeedbackLog:
    """A log with the features of raw tables that have the columns `user_id` and `item_id`, where they have any.

    Whole numbers that a reader left as text are codes.
    """
    for side, frame in (("user", users), ("item", items)):
        if frame is None:
            continue
        texts = frame.select(pl.col(pl.String)).drop(f"{side}_id", strict=False)
        codes = [column.name for column in texts if column.str.contains("^[0-9]+$").all()]
        tables: dict[str, Any] = {f"{side}s": frame, "categorical": codes}
        with warnings.catch_warnings(), suppress(NoFeatures):
            warnings.simplefilter("ignore", ReadingWarning)  # known tables: names, addresses and codes are left out
            log = log.with_side_tables(**tables)
    return log


def _draw_from_each(groups: NDArray[np.int32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of `count` uniformly drawn members of each group (all of a smaller one), ascending."""
    order = np.lexsort((rng.random(len(groups)), groups))
    ordered = groups[order]
    rank = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return np.sort(order[rank < count])


def _matrix(file: Path) -> NDArray[np.float64]:
    check_file(file)
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
            click_threshold=4,
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
            click_threshold=4,
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
            name="movielens",
            title="MovieLens: ratings of movies that users chose, with titles, genres and times",
            licence="for research, with citation; not for commercial use, not to be passed on without permission (see "
            "the README of each release)",
            size="100K, 1M, 10M, 20M, 25M, 32M ratings, or the latest",
            obtain="Download a release from https://grouplens.org/datasets/movielens and unpack it. There is no "
            "uniform test, so hold rows out, for example by time",
            citation="Harper and Konstan, The MovieLens Datasets: History and Context, ACM TiiS 2015",
            threshold=4,
            readers={
                ("u.data",): read_movielens_100k,
                ("ratings.dat",): read_movielens_1m,
                ("ratings.csv",): read_movielens_csv,
            },
            folders=("ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m", "ml-32m", "ml-latest-small", "ml-latest"),
            uniform=False,
        ),
        Source(
            name="ml-100k",
            title="MovieLens 100K, the log of the semi-synthetic studies",
            licence="as movielens",
            size="943 users x 1,682 items, 100,000 ratings, about 2 MB",
            obtain="Download ml-100k.zip from https://grouplens.org/datasets/movielens and unpack it",
            citation="Harper and Konstan, The MovieLens Datasets: History and Context, ACM TiiS 2015",
            threshold=4,
            readers={("u.data",): read_movielens_100k},
            uniform=False,
        ),
        Source(
            name="kuairand",
            title="KuaiRand: clicks on short videos, recommended and drawn at random",
            licence="CC BY-SA 4.0",
            size="27,285 users x 7,583 videos, 1,436,609 + 1,186,059 rows (Pure), about 0.2 GB; 1K: 11.7 million rows",
            obtain="Download KuaiRand-Pure or KuaiRand-1K from https://kuairand.com",
            citation="Gao et al., KuaiRand: An Unbiased Sequential Recommendation Dataset, CIKM 2022",
            readers={("log_standard_*.csv", "log_random_*.csv"): read_kuairand},
            folders=("KuaiRand-Pure", "KuaiRand-1K"),
        ),
        *(
            Source(
                name="open-bandit" if campaign == "all" else f"open-bandit-{campaign}",
                title=f"Open Bandit Dataset, campaign {campaign}: clicks on fashion items, with logged propensities",
                licence="see the page of the download; cite the paper",
                size=f"{n_items} items, two policies; 26 million rows in all campaigns, 10,000 of each in the sample",
                obtain="Download it from https://research.zozo.com/data.html, or the sample obd/ of "
                "https://github.com/st-tech/zr-obp",
                citation="Saito et al., Open Bandit Dataset and Pipeline, NeurIPS 2021 Datasets and Benchmarks",
                readers={
                    tuple(f"{policy}/{campaign}/{campaign}.csv" for policy in policies): partial(
                        read_open_bandit, campaign=campaign, policies=policies
                    )
                    for policies in (POLICIES, POLICIES[:1], POLICIES[1:])
                },
                folders=("open-bandit", "open_bandit_dataset", "obd"),
                uniform=False,
            )
            for campaign, n_items in (("all", 80), ("men", 34), ("women", 46))
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
    protocol: str = "honest",
    seed: int = 0,
    *,
    feedback: Feedback | None = None,
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
    `protocol`: "honest", "paper", or that of a published table of a known dataset (see `PROTOCOLS`), which sets
    threshold and kind of feedback too; `seed` draws the probe. What was removed is in `description`.
    `feedback`: what the rows of the log are, see `FeedbackLog.from_arrays`; "clicks" keeps the positive rows of a log
    of ratings. The test keeps both labels. No probe is drawn for clicks: none of their methods learns from one.
    `threshold`: ratings at or above it are positive; by default the dataset's own (of clicks: 4 of 5), for files none.
    `users`, `items`: with files of your own, two more (or frames) with a column of ids, named as in the log, and
    features: columns of any kind, see `FeedbackLog.with_side_tables`. `categorical` (an option) names numbers that are
    codes.
    `read`: what turns files of your own into logs.
    `test_kind`: how the pairs of your own test were collected, "uniform" (drawn at random) or "biased", which is
    the default. The probe is uniform by definition, and so are the tests of known datasets.
    `holdout`, `by`: without a test, which rows of your log to evaluate on, as in `split`; by time with the column
    `timestamp`, if no other is named.
    `unknown_users`, `unknown_items`: what to do with rows of the test whose user or item has no row in the training
    log: an "error", "drop" them, or keep them ("popular"): the model scores them by what it knows of the other side.
    `options`: for files those of `read_logs`, for "simulated" those of `simulate`.
    """
    if feedback is not None:
        check_choice("feedback", feedback, get_args(Feedback))
    rules = find_protocol(protocol)
    setting, feedback = rules.setting(str(name), feedback), feedback or rules.feedback
    threshold = setting.threshold if threshold is None and setting else threshold
    if feedback is not None:
        options["feedback"] = feedback
    probe_fraction = 0.0 if feedback == "clicks" else probe_fraction
    split = Split(protocol, probe_fraction, seed, test_kind, holdout, by, unknown_users, unknown_items)
    own = {"test": test, "probe": probe, "users": users, "items": items}
    if str(name) not in SOURCES:
        if path is not None:
            hint = did_you_mean(name, SOURCES)
            raise ConfigError(f"`path` goes with one of the names {NAMES}; {str(name)!r} is a path itself.{hint}")
        return _from_files(name, split, own, read, threshold, options)
    source = SOURCES[str(name)]
    _check_named(source, split, own, options)
    if source.name != "simulated":
        return _from_source(source, path, split, threshold, feedback)
    from counterpoise.data.simulation import simulate

    if path is not None or threshold is not None or protocol != "honest":
        raise ConfigError("'simulated' takes no `path` and no `threshold`, and its protocol is 'honest'.")
    return simulate(seed=seed, probe_fraction=probe_fraction, **options).dataset


def _from_files(
    name: AnyPath,
    split: Split,
    own: Mapping[str, AnyPath | None],
    read: FilesReader,
    threshold: float | None,
    options: dict[str, Any],
) -> Dataset:
    """The dataset of files of the user's own; `own`: those besides the log."""
    files = _files(expanded(name), own["test"], own["probe"])
    if split.by in ("time", "leave-last") and options.get("timestamp_col") is None:
        options |= _usual_timestamps(files["train"], options.get("separator"))
    try:
        logs = read(files, own["users"], own["items"], threshold=threshold, **options)
    except DataError as error:
        known = [source.name for source in SOURCES.values() if source.find(expanded(name))]
        rule = "give that name, and the folder as `path` (--path)"
        raise DataError(f"{error} If the folder holds {known[0]!r}, {rule}." if known else str(error)) from None
    if logs["train"].feedback == "clicks":
        split.probe_fraction = 0.0
    about: dict[str, Any] = {"source": str(name), "threshold": threshold}
    return split.of_files(title_of(name), logs["train"], logs.get("test"), logs.get("probe"), about)


def _check_named(source: Source, split: Split, own: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for arguments that go with files alone."""
    if any(file is not None for file in own.values()):
        raise ConfigError(f"`test`, `probe`, `users` and `items` go with your own files; {source.name!r} has its own.")
    if split.test_kind is not None:
        raise ConfigError(
            f"`test_kind` goes with your own files; how the ratings of {source.name!r} were collected is known."
        )
    if split.holds_out and source.uniform:
        raise _refused_holdout(source)
    taken = {name for name, value in signature(load_dataset).parameters.items() if value.kind != value.VAR_KEYWORD}
    if source.name == "simulated":
        from counterpoise.data.simulation import simulate

        taken |= set(signature(simulate).parameters)
    if unknown := set(options) - taken:
        listed = ", ".join(f"`{option}`" for option in sorted(unknown))
        hint = did_you_mean(min(unknown), taken)
        raise ConfigError(f"{source.name!r} does not take {listed}: they go with files of your own.{hint}")


def _refused_holdout(source: Source) -> ConfigError:
    return ConfigError(f"`holdout` and `by` go with your own files; {source.name!r} has a uniform test.")


def _from_source(
    source: Source, path: AnyPath | None, split: Split, threshold: float | None, feedback: Feedback | None
) -> Dataset:
    """A known dataset, read from its folder."""
    if threshold is None:
        threshold = (source.click_threshold if feedback == "clicks" else None) or source.threshold
    folder, reader = find(source, path)
    found = reader(folder, threshold, split.rng)
    about: dict[str, Any] = {"source": source.title, "licence": source.licence, "citation": source.citation}
    about |= {"threshold": threshold, **found.notes}
    train = replace(found.log, sample=found.log.sample or "biased")
    if feedback is not None:
        train = train.positives() if feedback == "clicks" else replace(train, feedback=feedback)
    if found.uniform is None:
        dataset = split.of_files(source.name, train, None, None, about)
    elif split.holds_out:
        raise _refused_holdout(source)
    else:
        dataset = split.dataset(source.name, train, replace(found.uniform, sample="uniform"), None, about)
    return replace(dataset, item_names=found.item_names)


def available() -> list[dict[str, Any]]:
    """The named datasets: title, licence, size, where to get them, and the folder where each was found or None."""
    rows = []
    for source in SOURCES.values():
        found = next(filter(None, map(source.find, search_folders(source.name))), None)
        facts = {key: value for key, value in asdict(source).items() if key not in ("readers", "folders", "uniform")}
        rows.append(facts | {"folder": str(found[0]) if found else None, "ready": bool(found) or not source.readers})
    return rows


def search_folders(name: str) -> list[Path]:
    """$COUNTERPOISE_DATA/<name> where that is set, then <cache>/counterpoise/<name>, and other names of the folder."""
    above = [Path(os.environ["COUNTERPOISE_DATA"])] if os.environ.get("COUNTERPOISE_DATA") else []
    above.append(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "counterpoise")
    folders = SOURCES[name].folders if name in SOURCES else ()
    return [expanded(place / folder) for place in above for folder in dict.fromkeys((name, *folders))]


def find(source: Source, path: AnyPath | None = None) -> tuple[Path, Reader]:
    """The folder with the files of a known dataset, and their reader."""
    folders = [expanded(path)] if path is not None else search_folders(source.name)
    for found in map(source.find, folders):
        if found is not None:
            return found
    shown = folders if path is not None else [folder for folder in folders if folder.name == source.name]
    needed = " or ".join(" + ".join(files) for files in source.readers)
    raise DataError(
        f"{source.name!r} ({needed}) was not found in {' or '.join(map(str, shown))}. {source.obtain}. "
        "Then give its folder as `path`, or set COUNTERPOISE_DATA to the folder above it."
    )


def _usual_timestamps(file: AnyPath, separator: str | None) -> dict[str, str]:
    """The option that reads the column `timestamp` of a file, where it has one of this name."""
    try:
        return {"timestamp_col": "timestamp"} if "timestamp" in header_of(file, separator) else {}
    except DataError:  # which reading it will raise
        return {}


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
            raise DataError(
                f"{folder}: several files are called {part}: {', '.join(file.name for file in found)}. Keep one."
            )
        if found:
            files[part] = found[0]
    if "train" not in files:
        raise DataError(f"{folder}: there is no train.csv, train.tsv or train.parquet in this folder. Or name a file.")
    return files
