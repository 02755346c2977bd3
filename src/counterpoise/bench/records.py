"""What a table of results is made of: one fit as it comes in, and the facts that every layout is drawn from."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from counterpoise.bench.published import CITATION, Published, places
from counterpoise.bench.statistics import Floats, Interval, mean_and_deviation
from counterpoise.errors import DataError, short_repr
from counterpoise.evaluation.metrics import LOWER_IS_BETTER

Block = Literal["IPS", "DR", "other"]
BLOCKS: dict[str, Block] = {"naive": "IPS", "ips": "IPS", "dr": "DR", "imputation": "DR"}  # of each family
NEEDED = ("dataset", "method", "title", "group", "family", "backbone", "protocol", "seed", "k")


@dataclass(frozen=True, eq=False)
class Fit:
    """One method on one dataset with one seed: done, failed, or not yet run."""

    dataset: str
    method: str
    title: str
    group: str  # baseline, ours, own
    family: str
    backbone: str
    protocol: str
    seed: int
    k: int
    seconds: float | None
    failed: str | None
    metrics: Mapping[str, float | None]  # empty: not yet run
    replicates: Mapping[str, list[float | None]]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Fit:
        """From a row of results; one without `metrics` and without `failed` is a fit that is still to come."""
        absent = [name for name in NEEDED if row.get(name) is None]
        if absent:
            raise DataError(f"a row of results must have {', '.join(map(repr, absent))}, got {_shown(row)}.")
        wrong = [name for name, is_right in RULES.items() if not is_right(row.get(name))]
        if wrong:
            raise DataError(
                f"a row of results has an unusable {wrong[0]!r}: {short_repr(row.get(wrong[0]))}. Fit it again."
            )
        return cls(
            **{name: row[name] for name in NEEDED},
            seconds=row.get("seconds"),
            failed=row.get("failed"),
            metrics=row.get("metrics") or {},
            replicates=row.get("replicates") or {},
        )

    @property
    def done(self) -> bool:
        """Whether it has results."""
        return self.failed is None and bool(self.metrics)


def _shown(row: Mapping[str, Any]) -> str:
    return short_repr({name: row[name] for name in NEEDED if name in row})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """A finite one, or none or nan where a metric is not defined."""
    if value is None or isinstance(value, bool):
        return value is None
    return isinstance(value, float | int) and (value != value or abs(value) <= sys.float_info.max)


def _are_numbers(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(map(_is_number, value.values())))


def _are_lists(value: Any) -> bool:
    lists = value.values() if isinstance(value, Mapping) else []
    whole = all(isinstance(one, list) and all(map(_is_number, one)) for one in lists)
    return value is None or (isinstance(value, Mapping) and whole)


RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(NEEDED, _is_text),
    **{"seed": _is_count, "k": _is_count, "seconds": _is_number, "metrics": _are_numbers, "replicates": _are_lists},
    "failed": lambda value: value is None or isinstance(value, str),
}


@dataclass(frozen=True)
class Comparison:
    """A method against the best baseline of its block, paired over the seeds that both have."""

    against: str  # the baseline's title
    seeds: int
    difference: float  # ours - theirs, the mean over these seeds
    interval: Interval  # of the difference, over users
    t_p: float
    wilcoxon_p: float
    better: bool
    t_p_holm: float
    wilcoxon_p_holm: float
    starred: bool  # better, and t_p <= 0.05
    starred_holm: bool  # better, and t_p_holm <= 0.05


@dataclass(frozen=True)
class Cell:
    """One metric of one method."""

    seeds: int  # those in which the metric is defined
    mean: float
    std: float
    interval: Interval  # of the mean, over users
    published: Published | None
    published_difference: float  # ours - published
    best: bool  # one of the best two of its block, as printed
    best_baseline: bool  # as printed, so that there may be two
    comparison: Comparison | None  # None for baselines, and where there is none to compare with


@dataclass(frozen=True)
class Line:
    """One method on one dataset."""

    method: str
    title: str
    group: str
    family: str
    block: Block
    done: list[int]  # seeds
    failed: dict[int, str]  # seed -> message
    pending: list[int]  # seeds that other methods of the section have, and this one has not yet
    seconds: float  # of a fit, the mean
    cells: dict[str, Cell]  # by metric


@dataclass(frozen=True)
class Section:
    """One dataset under one backbone and one protocol."""

    dataset: str
    backbone: str
    protocol: str
    k: int
    seeds: list[int]
    lines: list[Line]


@dataclass(frozen=True)
class Table:
    """All sections, and the datasets that are not there with the way to get them."""

    metrics: list[str]
    level: float
    sections: list[Section]
    missing: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Everything in types that JSON has; None for nan."""
        facts = json.dumps(asdict(self) | {"published": CITATION})
        return dict(json.loads(facts, parse_constant=lambda nan: None))


# The fits of one method in one section of the table, by seed.

GROUPS = ("baseline", "ours", "own")
Order = tuple[int, int, int, str, str]


@dataclass(frozen=True, eq=False)
class Runs:
    """All fits of one method under one backbone and protocol on one dataset."""

    fits: list[Fit]

    @classmethod
    def of(cls, fits: Iterable[Fit]) -> Runs:
        """In the order of their seeds, which must differ."""
        ordered = sorted(fits, key=lambda fit: fit.seed)
        for fit, following in pairwise(ordered):
            if fit.seed == following.seed:
                where = f"{fit.method!r} on {fit.dataset!r} (backbone {fit.backbone!r}, protocol {fit.protocol!r})"
                raise DataError(f"{where} has two rows with seed {fit.seed}. Keep one row for each fit.")
        return cls(ordered)

    @property
    def method(self) -> str:
        """Our name of the method."""
        return self.fits[0].method

    @property
    def title(self) -> str:
        """The name that is shown."""
        return self.fits[0].title

    @property
    def block(self) -> Block:
        """The block of the paper's table in which it stands."""
        return BLOCKS.get(self.fits[0].family, "other")

    @property
    def is_baseline(self) -> bool:
        """Whether others are held against it."""
        return self.fits[0].group == "baseline"

    def order(self) -> Order:
        """Where it stands in its section."""
        return order(self.block, self.fits[0].group, self.title, self.method)

    def line(self, seeds: Sequence[int], cells: dict[str, Cell]) -> Line:
        """The method's line of a section that has these seeds."""
        done = [fit for fit in self.fits if fit.done]
        failed = {fit.seed: fit.failed for fit in self.fits if fit.failed is not None}
        seconds, _ = mean_and_deviation([fit.seconds for fit in done if fit.seconds is not None])
        first, settled = self.fits[0], {fit.seed for fit in done} | set(failed)
        return Line(
            *(self.method, self.title, first.group, first.family, self.block),
            done=[fit.seed for fit in done],
            failed=failed,
            pending=[seed for seed in seeds if seed not in settled],
            seconds=seconds,
            cells=cells,
        )


@dataclass(frozen=True, eq=False)
class Series:
    """One metric of one method: its values by seed, where the fit is done and the metric defined."""

    runs: Runs
    metric: str
    values: dict[int, float]
    mean: float
    std: float

    @classmethod
    def of(cls, runs: Runs, metric: str) -> Series:
        """From the fits of a method."""
        found = {fit.seed: fit.metrics.get(metric) for fit in runs.fits if fit.done}
        values = {seed: float(value) for seed, value in found.items() if value is not None and not math.isnan(value)}
        return cls(runs, metric, values, *mean_and_deviation(list(values.values())))

    @property
    def sign(self) -> float:
        """-1 where less is better, else 1."""
        return -1.0 if self.metric in LOWER_IS_BETTER else 1.0

    @property
    def score(self) -> float:
        """The mean, of which more is better."""
        return self.sign * self.mean

    def replicates(self, seeds: Iterable[int]) -> Floats:
        """(seeds, replicates); nothing where one of the seeds has none, or another number of them."""
        wanted = set(seeds)
        found = [fit.replicates.get(self.metric) or [] for fit in self.runs.fits if fit.seed in wanted]
        return np.array(found if len({len(one) for one in found}) == 1 else [], np.float64)


def order(block: Block, group: str, title: str, method: str) -> Order:
    """By block, baselines first, then as in the paper's table, then by title."""
    rank = GROUPS.index(group) if group in GROUPS else len(GROUPS)
    return get_args(Block).index(block), rank, places().get(title, len(places())), title, method
