"""The fits of one method in one section of the table, by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np

from counterpoise.bench.published import places
from counterpoise.bench.records import BLOCKS, Block, Cell, Fit, Line
from counterpoise.bench.statistics import Floats, mean_and_deviation
from counterpoise.errors import DataError

LOWER_IS_BETTER = ("mse", "mae", "log_loss")
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
