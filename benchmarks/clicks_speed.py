"""Seconds to fit a million clicks, beside the `implicit` package in one run: least squares and pairwise learning.

    python benchmarks/clicks_speed.py [--rows 1000000] [--users 50000] [--items 10000] [--dim 64] [--threads 2]

Both learn as many factors in as many sweeps (15; `counterpoise` 8 on four fifths of the clicks, then 8 on all) or
passes (20, with one unclicked item for each click). Without `implicit` its rows are left out. Times are those of the
processor and of the clock: on a machine with other work the first compare better.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import counterpoise as cp

SWEEPS, PASSES = 15, 20


def clicks(rows: int, n_users: int, n_items: int) -> cp.FeedbackLog:
    """Distinct pairs of users of gamma activity and items of a power law."""
    rng = np.random.default_rng(0)
    popularity, activity = np.arange(1, n_items + 1) ** -0.7, rng.gamma(1.0, 1.0, n_users)
    users = rng.choice(n_users, 2 * rows, p=activity / activity.sum())
    items = rng.choice(n_items, 2 * rows, p=popularity / popularity.sum())
    pairs = rng.permutation(np.unique(users * n_items + items))[:rows]
    ids = {"user_ids": np.arange(n_users), "item_ids": np.arange(n_items)}
    return cp.FeedbackLog.from_arrays(pairs // n_items, pairs % n_items, **ids)


def fits(log: cp.FeedbackLog, dim: int, threads: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    least_squares = {"dim": dim, "rank": dim, "epochs": SWEEPS}
    found: dict[str, Callable[[], Any]] = {
        "wmf": lambda: cp.make("wmf", **least_squares).fit(log),
        "eals": lambda: cp.make("eals", **least_squares).fit(log),
        "counterpoise": lambda: cp.make("counterpoise", feedback="clicks", dim=dim, rank=dim).fit(log),
        "bpr": lambda: cp.make("bpr", dim=dim, epochs=PASSES, pairs=1).fit(log),
        "ubpr": lambda: cp.make("ubpr", dim=dim, epochs=PASSES, pairs=1).fit(log),
    }
    try:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking
        from scipy.sparse import csr_matrix
    except ImportError:
        return found
    table = csr_matrix((np.ones(len(log), np.float32), (log.users, log.items)), log.shape)
    common = {"factors": dim, "num_threads": threads, "use_gpu": False}
    als = AlternatingLeastSquares(iterations=SWEEPS, alpha=4.0, **common)
    ranking = BayesianPersonalizedRanking(iterations=PASSES, **common)
    return found | {
        "implicit, least squares": lambda: als.fit(table, show_progress=False),
        "implicit, pairwise": lambda: ranking.fit(table, show_progress=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 10**6, "users": 50_000, "items": 10_000, "dim": 64, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    log = clicks(options.rows, options.users, options.items)
    print(f"{log}, {options.dim} factors\n{'':26}{'processor s':>12}{'clock s':>10}")
    for name, fit in fits(log, options.dim, options.threads).items():
        started, used = time.perf_counter(), time.process_time()
        fit()
        print(f"{name:26}{time.process_time() - used:12.1f}{time.perf_counter() - started:10.1f}", flush=True)


if __name__ == "__main__":
    main()
