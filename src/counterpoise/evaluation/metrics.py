"""Metrics: of rankings, per user; AUC over all rows; errors of probabilities.

Labels are 0 or 1. Rows of equal score have no order: a ranking metric is its expected value over all orders of them, so
it depends neither on the order of rows nor on the codes of items. A user without a positive label is left out of
ranking metrics. An undefined value is nan, for the reason in the function's docstring; no value makes a function raise
or warn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CLIP = 1e-7  # of probabilities in the log loss

# Attributes of `Evaluation` and the names that people read.
METRIC_NAMES = {
    "auc": "AUC",
    "user_auc": "AUC per user",
    "ndcg": "NDCG@{k}",
    "precision": "precision@{k}",
    "recall": "recall@{k}",
    "f1": "F1@{k}",
    "mse": "MSE",
    "mae": "MAE",
    "log_loss": "log loss",
}
LOWER_IS_BETTER = ("mse", "mae", "log_loss")
LIST_METRICS = ("ndcg", "precision", "recall", "f1")  # not defined for a user without a positive label
EMPTY_USERS = "users without a positive in the test are left out"
# Published numbers count these users; only beside such numbers, ours do too.
PAPER_METRIC_NAMES = {"ndcg_one": "NDCG@{k} (paper)", "f1_one": "F1@{k} (paper)"}
PAPER_EMPTY_USERS = "users without a positive in the test count with NDCG 1, precision 0 and recall 0, as in the paper"
# Metrics of tests of relevance, in tables of methods for clicks.
CLICK_METRIC_NAMES = {"map": "MAP@{k}", "dcg": "DCG@{k}"}


@dataclass(frozen=True, eq=False)
class Rankings:
    """All users' ranked lists, one after the other: one sort for every ranking metric."""

    users: NDArray[Any]  # (users,) ascending
    starts: Integers  # (users,) where each list begins
    groups: Integers  # (rows,) position of the row's user in `users`
    ranks: Integers  # (rows,) 1, 2, ... in each list; rows of equal score in any order
    scores: Floats  # (rows,)
    labels: Floats  # (rows,)

    @classmethod
    def of(cls, users: ArrayLike, scores: ArrayLike, labels: ArrayLike) -> Rankings:
        """Rows ordered by user, then descending score."""
        by_user, by_score = np.asarray(users), np.asarray(scores, np.float64)
        order = np.lexsort((-by_score, by_user))
        sorted_users = by_user[order]
        first = np.ones(len(order), bool)
        first[1:] = sorted_users[1:] != sorted_users[:-1]
        starts = np.flatnonzero(first)
        groups = np.cumsum(first) - 1
        ranks = np.arange(1, len(order) + 1) - starts[groups]
        sorted_labels = np.asarray(labels, np.float64)[order]
        return cls(sorted_users[starts], starts, groups, ranks, by_score[order], sorted_labels)

    def total(self, values: Floats) -> Floats:
        """Sum over each user's rows."""
        return np.add.reduceat(values, self.starts)

    @cached_property
    def sizes(self) -> Integers:
        """Rows of each user, n_u."""
        return np.diff(self.starts, append=len(self.groups))

    @cached_property
    def positives(self) -> Floats:
        """Positive labels of each user, g_u."""
        return self.total(self.labels)

    @cached_property
    def possible_ranks(self) -> Integers:
        """0 (no rank), 1, 2, ... up to the length of the longest list."""
        return np.arange(self.sizes.max(initial=0) + 1)

    @cached_property
    def ties(self) -> tuple[Integers, Integers] | None:
        """(the first row, the number of rows) of each group of a user's rows of equal score; None if all differ."""
        same = (self.scores[1:] == self.scores[:-1]) & (self.groups[1:] == self.groups[:-1])
        if not same.any():
            return None
        first = np.flatnonzero(np.r_[True, ~same])
        return first, np.diff(first, append=len(self.scores))

    def expected(self, values: Floats) -> Floats:
        """values[rank] of each row, where values[0] is 0: the mean over the ranks that rows of equal score share.

        In a random order of m rows of equal score each has each of their ranks with probability 1 / m.
        """
        if self.ties is None:
            return values[self.ranks]
        first, lengths = self.ties
        sums, ranks = np.cumsum(values), self.ranks[first]
        return np.repeat((sums[ranks + lengths - 1] - sums[ranks - 1]) / lengths, lengths)

    def hits(self, k: int) -> Floats:
        """Expected positive labels among the first k of each list."""
        among_first = (self.possible_ranks > 0) & (self.possible_ranks <= k)
        return self.total(self.labels * self.expected(among_first.astype(np.float64)))


def ndcg_per_user(rankings: Rankings, k: int) -> Floats:
    """sum_{r <= K} y_(r) / log2(1 + r), over the same sum with the positives first; both stop at min(K, n_u).

    nan for a user without a positive, who has no best list.
    """
    ranks = rankings.possible_ranks
    discounts = np.where((ranks > 0) & (ranks <= k), 1 / np.log2(1 + np.maximum(ranks, 1)), 0)
    gains = rankings.total(rankings.labels * rankings.expected(discounts))
    return ratio(gains, np.cumsum(discounts)[rankings.positives.astype(np.int64)])


def dcg_per_user(rankings: Rankings, k: int) -> Floats:
    """y_(1) + sum_{2 <= r <= K} y_(r) / log2(r), as for clicks alone (Saito et al. 2020); nan without a positive.

    Not the gain within `ndcg_per_user`, whose discounts begin at the second rank.
    """
    ranks = rankings.possible_ranks
    discounts = np.where((ranks > 0) & (ranks <= k), 1 / np.log2(np.maximum(ranks, 2)), 0)
    gains = rankings.total(rankings.labels * rankings.expected(discounts))
    return np.where(rankings.positives > 0, gains, np.nan)


def average_precision_per_user(rankings: Rankings, k: int) -> Floats:
    """sum_{r <= K} y_(r) P_r / min(K, g_u), P_r the share of positives among the first r; nan without a positive.

    In a random order of m tied rows with g positives behind a other positives, the j-th of them is positive with
    probability g / m, and then follows a + (j - 1) (g - 1) / (m - 1) positives on average.
    """
    rows = np.arange(len(rankings.groups))
    first, lengths = (rows, np.ones_like(rows)) if rankings.ties is None else rankings.ties
    m = np.repeat(lengths, lengths)
    g = np.repeat(np.add.reduceat(rankings.labels, first), lengths)
    before = np.cumsum(rankings.labels) - rankings.labels  # in the whole table
    above = np.repeat((before - before[rankings.starts][rankings.groups])[first], lengths)
    j = rows - np.repeat(first, lengths)  # rows of the tie before this one
    ahead = above + j * np.maximum(g - 1, 0) / np.maximum(m - 1, 1)
    gains = np.where(rankings.ranks <= k, g / m * (ahead + 1) / rankings.ranks, 0)
    return ratio(rankings.total(gains), np.minimum(k, rankings.positives))


def precision_per_user(rankings: Rankings, k: int) -> Floats:
    """Hits among the first K, over K (also for lists shorter than K); nan for a user without a positive."""
    return np.where(rankings.positives > 0, rankings.hits(k) / k, np.nan)


def recall_per_user(rankings: Rankings, k: int) -> Floats:
    """Hits among the first K, over the positives g_u; nan for a user without a positive."""
    return ratio(rankings.hits(k), rankings.positives)


def auc_per_user(rankings: Rankings) -> Floats:
    """Share of (positive, negative) pairs of a user in the right order, ties 1/2; nan unless both classes occur.

    By ranks (Mann and Whitney, 1947), rows of equal score sharing their mean rank m (1 is the best):
    1 - (sum over positives of m - g (g + 1) / 2) / (g (n - g)).
    """
    g = rankings.positives
    pairs = g * (rankings.sizes - g)
    mean_ranks = rankings.expected(rankings.possible_ranks.astype(np.float64))
    above = rankings.total(rankings.labels * mean_ranks) - g * (g + 1) / 2
    return ratio(pairs - above, pairs)


def ratio(top: Floats, bottom: Floats, undefined: float = np.nan) -> Floats:
    """The quotient top / bottom, and `undefined` where bottom is 0."""
    defined = bottom != 0
    return np.where(defined, top / np.where(defined, bottom, 1), undefined)


def f1(precision: ArrayLike, recall: ArrayLike) -> Any:
    """2 P R / (P + R) of the means over users, as the paper; 0 where both are 0, nan where one is nan."""
    p, r = np.asarray(precision, np.float64), np.asarray(recall, np.float64)
    return ratio(2 * p * r, p + r, undefined=0.0)[()]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The rows of the two classes in ascending order of score: one sort for the AUC under any weights."""

    positives: Integers  # (positives,) the group of each positive row
    negatives: Integers  # (negatives,) the group of each negative row
    below: Integers  # (positives,) how many negatives have a smaller score
    up_to: Integers  # (positives,) how many have no larger score

    @classmethod
    def of(cls, labels: ArrayLike, scores: ArrayLike, groups: ArrayLike) -> Comparison:
        """`groups`: the row's column in the weights that `weighted_auc` takes."""
        order = np.argsort(scores)
        by_score, group, positive = np.asarray(scores)[order], np.asarray(groups)[order], np.asarray(labels)[order] > 0
        below, up_to = (np.searchsorted(by_score[~positive], by_score[positive], side) for side in ("left", "right"))
        return cls(group[positive], group[~positive], below, up_to)


def weighted_auc(comparison: Comparison, weights: Floats) -> Floats:
    """The AUC for each row of `weights` (replicates, groups), where a row of data weighs as much as its group.

    sum_{i positive, j negative} w_i w_j ([s_i > s_j] + [s_i = s_j] / 2) / (sum_i w_i  sum_j w_j): (replicates,);
    nan where the positives or the negatives have no weight. What lies below a positive is a cumulative sum.
    """
    positive = np.take(weights, comparison.positives, axis=1)  # (replicates, positives)
    lower = np.zeros((len(weights), len(comparison.negatives) + 1))
    np.cumsum(np.take(weights, comparison.negatives, axis=1), axis=1, out=lower[:, 1:])
    wins = np.einsum("rp,rp->r", positive, np.take(lower, comparison.below, axis=1))
    wins_and_ties = np.einsum("rp,rp->r", positive, np.take(lower, comparison.up_to, axis=1))
    return ratio((wins + wins_and_ties) / 2, positive.sum(axis=1) * lower[:, -1])


def squared_errors(labels: ArrayLike, probabilities: ArrayLike) -> Floats:
    """(y - p)^2 of each row."""
    return np.subtract(labels, probabilities, dtype=np.float64) ** 2


def absolute_errors(labels: ArrayLike, probabilities: ArrayLike) -> Floats:
    """|y - p| of each row."""
    return np.abs(np.subtract(labels, probabilities, dtype=np.float64))


def log_losses(labels: ArrayLike, probabilities: ArrayLike) -> Floats:
    """-y log p - (1 - y) log(1 - p) of each row, with p clipped to [1e-7, 1 - 1e-7]."""
    y, p = np.asarray(labels, np.float64), np.clip(np.asarray(probabilities, np.float64), CLIP, 1 - CLIP)
    return -(y * np.log(p) + (1 - y) * np.log1p(-p))
