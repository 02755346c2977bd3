"""Pairs as numbers, user * |I| + item: values that belong to them, and pairs that occur more than once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import DataError


class PairValues(NamedTuple):
    """A number for each of some pairs."""

    pairs: NDArray[np.int64]  # as in `FeedbackLog.pairs`, in increasing order
    values: NDArray[np.float64]

    def at(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values of these pairs; nan where there is none."""
        place = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[place] == pairs, self.values[place], np.nan)


@dataclass(frozen=True, eq=False)
class Repeats:
    """The rows of a log, those of one pair side by side, the last of them last."""

    order: NDArray[np.intp]  # (rows,) by pair, then by time, then by row
    starts: NDArray[np.intp]  # (pairs,) where the rows of the next pair begin in `order`

    @property
    def count(self) -> int:
        """How many rows repeat a pair."""
        return len(self.order) - len(self.starts)

    @property
    def first(self) -> int:
        """The first row that repeats a pair."""
        return int(np.delete(self.order, self.starts).min())

    @property
    def last_rows(self) -> NDArray[np.intp]:
        """The last row of each pair."""
        ends = np.r_[self.starts[1:], len(self.order)]
        last: NDArray[np.intp] = self.order[ends - 1]
        return last

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of each pair's values, in the order of `last_rows`."""
        with np.errstate(over="ignore"):
            totals = np.add.reduceat(values[self.order], self.starts)
        if not np.isfinite(totals).all():
            raise DataError('the mean of repeated ratings is past the range of numbers. Choose duplicates="last".')
        means: NDArray[np.float64] = totals / np.diff(np.r_[self.starts, len(self.order)])
        return means


def find_repeats(pairs: NDArray[np.int64], times: NDArray[np.int64] | None) -> Repeats | None:
    """The rows by pair, where some pair occurs more than once; otherwise None."""
    in_order = np.sort(pairs)  # ten times faster than the sort of rows below, which few logs need
    if not (in_order[1:] == in_order[:-1]).any():
        return None
    order = np.lexsort((*(() if times is None else (times,)), pairs))  # stable: rows of one pair and time stay
    sorted_pairs = pairs[order]
    return Repeats(order, np.flatnonzero(np.r_[True, sorted_pairs[1:] != sorted_pairs[:-1]]))
