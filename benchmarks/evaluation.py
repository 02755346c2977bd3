"""How long do all metrics take? 54,000 test rows of 5,400 users, one thread, against a loop over users."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.metrics import ndcg_score, roc_auc_score
from threadpoolctl import threadpool_limits

from counterpoise.data.log import FeedbackLog
from counterpoise.evaluation.evaluate import evaluate

USERS, ROWS_EACH, ITEMS, K = 5_400, 10, 1_000, 5
LIMIT = 0.1  # seconds, without the bootstrap


def example(seed: int = 0) -> tuple[FeedbackLog, Any]:
    """A test log in a random order of rows, and scores that are correlated with its labels."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(USERS), ROWS_EACH)
    items = np.concatenate([rng.choice(ITEMS, ROWS_EACH, replace=False) for _ in range(USERS)])
    scores = rng.random(len(users))
    labels = (rng.random(len(users)) < scores**3).astype(float)
    order = rng.permutation(len(users))
    return FeedbackLog.from_arrays(users[order], items[order], labels[order]), scores[order]


def loop(log: FeedbackLog, scores: Any) -> tuple[float, float]:
    """AUC and NDCG alone, the way scripts do it: scikit-learn called for one user after the other."""
    order = np.argsort(log.users, kind="stable")
    starts = np.flatnonzero(np.diff(log.users[order], prepend=-1))
    values = []
    for rows in np.split(order, starts[1:]):
        if log.labels[rows].any():
            values.append(ndcg_score([log.labels[rows]], [scores[rows]], k=K))
    return float(roc_auc_score(log.labels, scores)), float(np.mean(values))


def median_time(call: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, after one that warms up."""
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    """Print the times and their ratios."""
    log, scores = example()
    with threadpool_limits(1):
        result = evaluate(scores, log, K, bootstrap=0)
        auc, ndcg = loop(log, scores)
        assert np.allclose([result.auc, result.ndcg], [auc, ndcg])  # the same figures, so the same work
        ours = median_time(lambda: evaluate(scores, log, K, bootstrap=0), 9)
        intervals = median_time(lambda: evaluate(scores, log, K), 5)
        theirs = median_time(lambda: loop(log, scores), 1)
    print(f"{len(log):,} rows of {USERS:,} users, one thread")
    print(f"all nine metrics               {ours:8.4f} s   (limit {LIMIT} s: {'kept' if ours < LIMIT else 'BROKEN'})")
    print(f"and intervals, 200 resamples   {intervals:8.4f} s   {intervals / ours:8.1f} x")
    print(f"loop over users, AUC and NDCG  {theirs:8.4f} s   {theirs / ours:8.1f} x")


if __name__ == "__main__":
    main()
