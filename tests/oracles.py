"""Slow, obvious versions of what the package computes, straight from the formulas: loops, no tricks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# ---- metrics ---------------------------------------------------------------------------------------------------------


def ranked_labels(users, items, scores, labels) -> dict[int, list[float]]:
    """Each user's labels, best score first, equal scores by item."""
    rows = sorted(zip(users, -np.asarray(scores), items, labels, strict=True))
    lists: dict[int, list[float]] = {}
    for user, _, _, label in rows:
        lists.setdefault(user, []).append(label)
    return lists


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


def all_metrics(users, items, scores, labels, k: int, empty_users: str) -> dict[str, float]:
    """Every field of an `Evaluation` that is a metric."""
    lists = list(ranked_labels(users, items, scores, labels).values())
    counted = [ranked for ranked in lists if sum(ranked) > 0 or empty_users != "skip"]
    p, r = mean([precision(ranked, k) for ranked in counted]), mean([recall(ranked, k) for ranked in counted])
    own = [auc(labels[users == user], scores[users == user]) for user in np.unique(users)]
    return {
        "auc": auc(labels, scores),
        "user_auc": mean([value for value in own if not math.isnan(value)]),
        "ndcg": mean([ndcg(ranked, k, empty=float(empty_users == "one")) for ranked in counted]),
        "precision": p,
        "recall": r,
        "f1": 2 * p * r / (p + r) if p + r != 0 else 0.0,
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
