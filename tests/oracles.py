"""Slow, obvious versions of what the package computes, straight from the formulas: loops, no tricks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

# ---- metrics ---------------------------------------------------------------------------------------------------------


def rankings(users, scores, labels) -> dict[int, list[list[float]]]:
    """For each user the labels of every ranking with descending scores: all orders of rows of equal score."""
    found = {}
    for user in sorted(set(users)):
        own = sorted(((s, y) for u, s, y in zip(users, scores, labels, strict=True) if u == user), reverse=True)
        tied = [[y for _, y in group] for _, group in itertools.groupby(own, key=lambda row: row[0])]
        orders = itertools.product(*map(itertools.permutations, tied))
        found[user] = [list(itertools.chain.from_iterable(order)) for order in orders]
    return found


def dcg(ranked: Sequence[float], k: int) -> float:
    """Sum over the first K of label / log2(1 + rank)."""
    return sum(label / math.log2(1 + rank) for rank, label in enumerate(ranked[:k], start=1))


def ndcg(ranked: Sequence[float], k: int, empty: float) -> float:
    """The gain of the list over that of the best list; `empty` where no list has a gain."""
    best = dcg(sorted(ranked, reverse=True), k)
    return dcg(ranked, k) / best if best > 0 else empty


def precision(ranked: Sequence[float], k: int) -> float:
    """Hits over K, always K."""
    return sum(ranked[:k]) / k


def recall(ranked: Sequence[float], k: int) -> float:
    """Hits over the positives, or over 1 where there is none."""
    return sum(ranked[:k]) / max(1, sum(ranked))


def average_precision(ranked: Sequence[float], k: int) -> float:
    hits = [sum(ranked[: place + 1]) / (place + 1) for place in range(min(k, len(ranked))) if ranked[place]]
    return sum(hits) / min(k, sum(ranked))


def dcg_of_clicks(ranked: Sequence[float], k: int) -> float:
    """Without a discount at the second rank."""
    return sum(label / (1 if rank == 1 else math.log2(rank)) for rank, label in enumerate(ranked[:k], start=1))


def auc(labels, scores) -> float:
    """The Mann-Whitney statistic: every positive against every negative, ties 1/2; nan with one class."""
    positives = [score for label, score in zip(labels, scores, strict=True) if label == 1]
    negatives = [score for label, score in zip(labels, scores, strict=True) if label == 0]
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives)) if positives and negatives else math.nan


def log_loss(labels, probabilities) -> float:
    """Mean of -log(probability of the label), probabilities clipped at 1e-7."""
    clipped = [min(max(p, 1e-7), 1 - 1e-7) for p in probabilities]
    return mean([-math.log(p if label == 1 else 1 - p) for label, p in zip(labels, clipped, strict=True)])


def all_metrics(users, scores, labels, k: int) -> dict[str, float]:
    """The fields of an `Evaluation`, `ndcg_one` and `f1_one` with users without a positive, and `map` and `dcg`."""
    orders = rankings(users, scores, labels).values()
    with_positive = [lists for lists in orders if sum(lists[0]) > 0]

    def list_metrics(counted, empty: float) -> list[float]:
        """NDCG and F1, precision, recall: means over users of the mean over orders of tied rows."""
        n = mean([mean([ndcg(ranked, k, empty) for ranked in lists]) for lists in counted])
        p = mean([mean([precision(ranked, k) for ranked in lists]) for lists in counted])
        r = mean([mean([recall(ranked, k) for ranked in lists]) for lists in counted])
        return [n, 2 * p * r / (p + r) if p + r != 0 else 0.0, p, r]

    n, f, p, r = list_metrics(with_positive, math.nan)
    ndcg_one, f1_one, _, _ = list_metrics(orders, 1.0)
    own = [auc(labels[users == user], scores[users == user]) for user in np.unique(users)]
    return {
        "auc": auc(labels, scores),
        "user_auc": mean([value for value in own if not math.isnan(value)]),
        "ndcg": n,
        "precision": p,
        "recall": r,
        "f1": f,
        "ndcg_one": ndcg_one,
        "f1_one": f1_one,
        "map": mean([mean([average_precision(ranked, k) for ranked in lists]) for lists in with_positive]),
        "dcg": mean([mean([dcg_of_clicks(ranked, k) for ranked in lists]) for lists in with_positive]),
        "mse": mean([(label - score) ** 2 for label, score in zip(labels, scores, strict=True)]),
        "mae": mean([abs(label - score) for label, score in zip(labels, scores, strict=True)]),
        "log_loss": log_loss(labels, scores),
    }


def resample(users, drawn) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the drawn users, one copy for each time, and a fresh user code for each copy."""
    rows = [np.flatnonzero(users == user) for user in drawn]
    copies = [np.full(len(own), copy) for copy, own in enumerate(rows)]
    return np.concatenate(rows), np.concatenate(copies)


def mean(values: Sequence[float]) -> float:
    """The mean; nan of nothing."""
    return sum(values) / len(values) if len(values) else math.nan
