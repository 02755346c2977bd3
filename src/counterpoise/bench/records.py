"""What a table of results is made of: one fit as it comes in, and the facts that every layout is drawn from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from counterpoise.bench.published import CITATION, Published
from counterpoise.bench.statistics import Interval
from counterpoise.errors import DataError, shown

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
            raise DataError(f"a row of results has an unusable {wrong[0]!r}: {shown(row.get(wrong[0]))}. Fit it again.")
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
    return shown({name: row[name] for name in NEEDED if name in row})


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
