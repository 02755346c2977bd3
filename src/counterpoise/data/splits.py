"""Hold-outs of a log, and how unbiased ratings become a probe and a test.

The honest protocol keeps probe, test and training log apart; the other is that of the paper's released code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import Holdout, Protocol
from counterpoise.data.log import Dataset, FeedbackLog, check_log
from counterpoise.errors import DataError, check_choice, check_number

Rows = NDArray[np.bool_]


class HoldoutSplit(NamedTuple):
    """A log in two parts, and counts of rows, users and items; cold ones have rows in the hold-out alone."""

    train: FeedbackLog
    holdout: FeedbackLog
    facts: dict[str, Any]


def split(log: FeedbackLog, holdout: float = 0.2, by: Holdout = "random", seed: int = 0) -> HoldoutSplit:
    """A log to learn from and a hold-out of its rows to evaluate on, both over all its users and items.

    `by` says which rows are held out:
    "random"      a share `holdout` of all rows, drawn uniformly
    "user"        that share of each user's rows, drawn uniformly (rounded up or down at random)
    "time"        the latest share of the log: no row of the hold-out is older than one of the training log
    "leave-last"  the last row of each user; `holdout` does not matter
    "user" and "leave-last" leave each user at least one row to learn from. The hold-out of a log that is not uniform
    is biased as the log is (`sample`), however its rows were drawn.
    """
    check_log("log", log)
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
        raise DataError(
            f'by="{by}" leaves the {part} empty: {held_out.sum():,} of {len(log):,} rows are held out. '
            f'Hold out {way} (`holdout`), use by="random", or bring more rows.'
        )
    train, test = log.take(~held_out), log.take(held_out)
    test = replace(test, sample="uniform" if log.sample == "uniform" else "biased")
    facts = {"by": by, "holdout": None if by == "leave-last" else holdout, "seed": seed}
    facts |= {"train_rows": len(train), "holdout_rows": len(test)} | cold_counts(train, test)
    return HoldoutSplit(train, test, facts)


def cold_counts(train: FeedbackLog, test: FeedbackLog) -> dict[str, int]:
    """How many users and items of the test have no row in the training log, and how many rows of the test are theirs.

    Both logs have the same users and items.
    """
    in_train = [np.bincount(codes, minlength=size) > 0 for codes, size in zip(_codes(train), train.shape, strict=True)]
    cold = [~known[codes] for known, codes in zip(in_train, _codes(test), strict=True)]
    users, items = (len(np.unique(codes[rows])) for codes, rows in zip(_codes(test), cold, strict=True))
    return {"cold_users": users, "cold_items": items, "cold_rows": int((cold[0] | cold[1]).sum())}


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
    unbiased: FeedbackLog,
    protocol: Protocol = "honest",
    probe_fraction: float = 0.05,
    *,
    rng: np.random.Generator,
    probe: FeedbackLog | None = None,
) -> tuple[FeedbackLog | None, FeedbackLog, dict[str, int]]:
    """(probe, test, counts of rows: all unbiased ratings, those removed from the test and why, those left).

    The probe is a uniform draw of round(probe_fraction * rows) of all unbiased ratings, None where that is no row, or
    the `probe` that is given.
    "honest": the test loses the pairs of the probe, and those that are also in the training log.
    "paper": the test keeps both, as the paper's released code does.
    The same generator state draws the same probe under both protocols.
    """
    check_choice("protocol", protocol, get_args(Protocol))
    check_number("probe_fraction", probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
    if probe is None:
        probe = unbiased.split(probe_fraction, rng)[0]
    in_probe = np.isin(unbiased.pairs, probe.pairs)
    in_train = np.isin(unbiased.pairs, train.pairs)
    test = unbiased if protocol == "paper" else unbiased.take(~in_probe & ~in_train)
    if len(test) == 0:
        raise DataError(
            f"the protocol leaves no test: of {len(unbiased)} unbiased ratings {in_probe.sum()} are in the probe and "
            f"{in_train.sum()} in the training log. Lower `probe_fraction` or bring more unbiased ratings."
        )
    removed_as_probe = 0 if protocol == "paper" else int(in_probe.sum())
    removed = {
        "unbiased_rows": len(unbiased),
        "probe_rows": len(probe),
        "rows_in_train": int(in_train.sum()),
        "removed_as_probe": removed_as_probe,
        "removed_as_in_train": len(unbiased) - len(test) - removed_as_probe,
        "test_rows": len(test),
    }
    return (probe if len(probe) else None), test, removed


@dataclass
class Split:
    """The settings of a split of unbiased ratings, and the generator that draws the probe."""

    protocol: Protocol
    probe_fraction: float
    seed: int

    def __post_init__(self) -> None:
        """Check the settings, also where there is nothing to split."""
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
        rules = self.protocol, self.probe_fraction
        probe, test, counts = apply_protocol(train, unbiased, *rules, rng=self.rng, probe=probe)
        return Dataset(train, probe, test, name, about | counts)
