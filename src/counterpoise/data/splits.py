"""Hold-outs of a log, and how the ratings of a test become a probe and a test.

Of the rules by name in `protocols`, "honest" keeps probe, test and training log apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import Holdout, Sample, UnknownInTest, takes_options
from counterpoise.data.log import DEFAULTS, Dataset, FeedbackLog, LogOptions, as_log
from counterpoise.data.protocols import find_protocol
from counterpoise.errors import ConfigError, DataError, check_choice, check_number, short_repr

Rows = NDArray[np.bool_]
DEFAULT_HOLDOUT = 0.2


class HoldoutSplit(NamedTuple):
    """A log in two parts, and counts of rows, users and items; cold ones have rows in the hold-out alone."""

    train: FeedbackLog
    holdout: FeedbackLog
    facts: dict[str, Any]


@takes_options(LogOptions, DEFAULTS)
def split(
    log: Any,
    holdout: float = DEFAULT_HOLDOUT,
    by: Holdout = "random",
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> HoldoutSplit:
    """A log to learn from and a hold-out of its rows to evaluate on, both over all its users and items.

    `log`: a log, or a frame with `options` as in `FeedbackLog.from_frame`.
    `by` says which rows are held out:
    "random"      a share `holdout` of all rows, drawn uniformly
    "user"        that share of each user's rows, drawn uniformly (rounded up or down at random)
    "time"        the latest share of the log; rows of one timestamp stay together, so that all of the training log is
                  older
    "leave-last"  the last row of each user; `holdout` does not matter
    "user" and "leave-last" leave each user at least one row to learn from. The hold-out of a log that is not uniform
    is biased as the log is (`sample`), however its rows were drawn.
    """
    log = as_log("log", log, **options)
    check_number("holdout", holdout, above=0, at_most=1, advice="It is a share of the rows, such as 0.2.")
    check_choice("by", by, get_args(Holdout))
    check_number("seed", seed, at_least=0, integer=True)
    if by in ("time", "leave-last") and log.timestamps is None:
        raise DataError(
            f'by="{by}" needs timestamps, and the log has none. Read them with `timestamp_col`, or use by="random".'
        )
    held_out = _held_out_rows(log, holdout, by, np.random.default_rng(seed))
    if not held_out.any() or held_out.all():
        part, way = ("hold-out", "more") if not held_out.any() else ("training log", "less")
        ways = f"Hold out {way} (`holdout`)" + ("" if by == "random" else ', use by="random",') + " or bring more rows."
        raise DataError(
            f'by="{by}" leaves the {part} empty: {held_out.sum():,} of {len(log):,} rows are held out. {ways}'
        )
    train, test = log.keep(~held_out), log.take(held_out)
    test = replace(test, sample="uniform" if log.sample == "uniform" else "biased")
    facts = {"by": by, "holdout": None if by == "leave-last" else holdout, "seed": seed}
    facts |= {"train_rows": len(train), "holdout_rows": len(test)} | cold_counts(test, cold_rows(train, test))
    return HoldoutSplit(train, test, facts)


class ColdRows(NamedTuple):
    """Masks of the rows of a test whose user, and whose item, has no row in the training log."""

    users: Rows
    items: Rows


def cold_rows(train: FeedbackLog, test: FeedbackLog) -> ColdRows:
    """The cold rows of a test over the same users and items as the training log."""
    users, items = (np.bincount(codes, minlength=size) for codes, size in zip(_codes(train), train.shape, strict=True))
    return ColdRows(users[test.users] == 0, items[test.items] == 0)


def cold_counts(test: FeedbackLog, cold: ColdRows) -> dict[str, int]:
    """The number of cold users and items of a test, and of rows of one of them."""
    users, items = (len(np.unique(codes[rows])) for codes, rows in zip(_codes(test), cold, strict=True))
    return {"cold_users": users, "cold_items": items, "cold_rows": int((cold.users | cold.items).sum())}


def drop_cold(
    test: FeedbackLog, cold: ColdRows, unknown_users: UnknownInTest, unknown_items: UnknownInTest
) -> tuple[FeedbackLog, dict[str, int]]:
    """(a test without the rows that are to be dropped, counts of what was cold and of the rows dropped)."""
    dropped = (cold.users & (unknown_users == "drop")) | (cold.items & (unknown_items == "drop"))
    if dropped.all():
        raise DataError(
            f"all {len(test):,} rows of the test are of users or items without rows in the training log, and dropped. "
            'Use "popular" to score them, or bring other ratings. Are ids written as in the log?'
        )
    counts = cold_counts(test, cold) | {"dropped_rows": int(dropped.sum())}
    return test.take(~dropped) if dropped.any() else test, counts


def _codes(log: FeedbackLog) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return log.users, log.items


def _held_out_rows(log: FeedbackLog, share: float, by: Holdout, rng: np.random.Generator) -> Rows:
    """A mask of the rows of the hold-out."""
    if by == "time":
        assert log.timestamps is not None
        return _latest(log.timestamps, share)
    if by == "random":
        held_out = np.zeros(len(log), dtype=bool)
        held_out[rng.choice(len(log), round(share * len(log)), replace=False)] = True
        return held_out
    counts = np.bincount(log.users, minlength=log.shape[0])
    wanted = np.ones(len(counts)) if by == "leave-last" else np.floor(share * counts + rng.random(len(counts)))
    wanted = np.minimum(wanted, counts - 1)  # something of each user is left to learn from
    keys: Any = rng.random(len(log)) if by == "user" else log.timestamps
    order = np.lexsort((keys, log.users))
    users = log.users[order]  # each user's rows one after another, the last ones to be held out
    rows_after = np.cumsum(counts)[users] - 1 - np.arange(len(users))
    held_out = np.empty(len(log), dtype=bool)
    held_out[order] = rows_after < wanted[users]
    return held_out


def _latest(times: NDArray[np.int64], share: float) -> Rows:
    """The latest rows, about this share: rows of one timestamp stay together."""
    cut = np.sort(times)[len(times) - max(1, round(share * len(times)))]
    choices = [rows for rows in (times >= cut, times > cut) if rows.any() and not rows.all()]
    return min(choices, key=lambda rows: abs(rows.mean() - share), default=times >= cut)


def apply_protocol(
    train: FeedbackLog,
    ratings: FeedbackLog,
    protocol: str = "honest",
    probe_fraction: float = 0.05,
    *,
    rng: np.random.Generator,
    probe: FeedbackLog | None = None,
) -> tuple[FeedbackLog | None, FeedbackLog, dict[str, int]]:
    """(probe, test, counts of rows: all ratings, those removed from the test and why, those left).

    The probe is the one that is given, or a uniform draw of round(probe_fraction * rows) of the ratings; None where
    that is no row, and where the ratings are not a uniform sample: a biased probe would teach the bias.
    `protocol`: a name of `PROTOCOLS`. By "honest" the test loses the pairs of the probe, and those that are also in the
    training log; by "paper" it keeps both; others take a further uniform part away.
    The same generator state draws the same probe under all protocols.
    """
    rules = find_protocol(protocol)
    check_number("probe_fraction", probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
    if probe is None:
        probe = ratings.split(probe_fraction if ratings.sample == "uniform" else 0, rng)[0]
    in_probe = np.isin(ratings.pairs, probe.pairs)
    in_train = np.isin(ratings.pairs, train.pairs)
    as_probe = in_probe & (not rules.keeps_probe)
    as_validation = np.zeros(len(ratings), dtype=bool)
    if rules.validation and ratings.sample == "uniform":
        others = np.flatnonzero(~in_probe)
        as_validation[rng.choice(others, min(len(others), round(rules.validation * len(ratings))), replace=False)] = (
            True
        )
    as_seen = in_train & (not rules.keeps_seen)
    leaves = as_probe | as_validation | as_seen
    test = ratings.take(~leaves) if leaves.any() else ratings
    if len(test) == 0:
        raise DataError(
            f"the protocol leaves no test: of {len(ratings)} test ratings {in_probe.sum()} are in the probe and "
            f"{in_train.sum()} in the training log. Bring ratings of other pairs, hold rows of the log out "
            "(`holdout`), or lower `probe_fraction`."
        )
    removed = {
        "given_rows": len(ratings),
        "probe_rows": len(probe),
        "rows_in_train": int(in_train.sum()),
        "removed_as_probe": int(as_probe.sum()),
        "removed_as_validation": int(as_validation.sum()),
        "removed_as_in_train": int((as_seen & ~as_probe & ~as_validation).sum()),
        "test_rows": len(test),
    }
    return (probe if len(probe) else None), test, removed


@dataclass
class Split:
    """The settings by which a dataset is split, and the generator that draws probe and hold-out.

    `test_kind`: how a test of the user's own was collected. `holdout`, `by`: rows of the log to evaluate on, as in
    `split`; none where both are None. `unknown_users`, `unknown_items`: what to do with rows of the test whose user or
    item has no row in the training log: "error", "drop" them, or keep them ("popular"), to be scored by the rest.
    """

    protocol: str
    probe_fraction: float
    seed: int
    test_kind: Sample | None
    holdout: float | None
    by: Holdout | None
    unknown_users: UnknownInTest
    unknown_items: UnknownInTest

    def __post_init__(self) -> None:
        """Check the settings, also where there is nothing to split."""
        find_protocol(self.protocol)
        check_number("probe_fraction", self.probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
        check_number("seed", self.seed, at_least=0, integer=True)
        for name, choices in (("test_kind", Sample), ("by", Holdout)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), get_args(choices))
        for name in ("unknown_users", "unknown_items"):
            check_choice(name, getattr(self, name), get_args(UnknownInTest))
        self.rng = np.random.default_rng(self.seed)

    @property
    def holds_out(self) -> bool:
        """Whether rows of the log are held out."""
        return self.holdout is not None or self.by is not None

    def of_files(
        self,
        name: str,
        log: FeedbackLog,
        test: FeedbackLog | None,
        probe: FeedbackLog | None,
        about: dict[str, Any],
    ) -> Dataset:
        """The dataset of files of the user's own. A test whose kind was not said counts as biased."""
        if probe is not None:
            probe = replace(probe, sample="uniform")
        if self.holds_out:
            if test is not None:
                raise ConfigError("`holdout` and `test` are two ways to evaluate: give one of them.")
            share = DEFAULT_HOLDOUT if self.holdout is None else self.holdout
            log, test, held_out = split(log, share, self.by or "random", self.seed)
            about = about | held_out
        if test is None or self.holds_out:
            if self.test_kind is not None:
                raise ConfigError(
                    "`test_kind` says how a test file was collected, and there is none. "
                    "Rows held out of a biased log are biased, however they are drawn."
                )
        else:
            test = replace(test, sample=self.test_kind or "biased")
        return self.dataset(name, log, test, probe, about)

    def dataset(
        self,
        name: str,
        train: FeedbackLog,
        ratings: FeedbackLog | None,
        probe: FeedbackLog | None,
        about: dict[str, Any],
    ) -> Dataset:
        """The dataset, with the settings and the counts of rows in its description."""
        about = about | {name: getattr(self, name) for name in ("protocol", "probe_fraction", "seed")}
        about |= {"train_rows": len(train), "feedback": train.feedback}
        if ratings is None:
            return Dataset(train, probe, None, name, about)
        rules = self.protocol, self.probe_fraction
        probe, test, counts = apply_protocol(train, ratings, *rules, rng=self.rng, probe=probe)
        cold = cold_rows(train, test)
        self._check_cold(test, cold)
        test, cold_facts = drop_cold(test, cold, self.unknown_users, self.unknown_items)
        counts |= cold_facts | {"test_rows": len(test)}
        kinds = {"test_sample": test.sample, "test_feedback": test.feedback}
        return Dataset(train, probe, test, name, about | kinds | counts)

    def _check_cold(self, test: FeedbackLog, cold: ColdRows) -> None:
        sides = (("user", test.user_ids, test.users, cold.users), ("item", test.item_ids, test.items, cold.items))
        for kind, ids, codes, rows in sides:
            if getattr(self, f"unknown_{kind}s") == "error" and rows.any():
                first = short_repr(ids.decode(codes[rows][:1])[0])
                raise DataError(
                    f"{rows.sum():,} of {len(test):,} rows of the test are of {len(np.unique(codes[rows])):,} {kind}s "
                    f"without rows in the training log, the first is {first}. "
                    f'Use unknown_{kind}s="drop" to leave them out, or "popular" to keep them.'
                )
