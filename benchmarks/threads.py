"""The cost of threads: fits with one thread and with two, in turn, and the ratio of their times.

    python benchmarks/threads.py [--methods mf counterpoise skb-dr] [--threads 2] [--repeats 5]

On a small log (Coat's shape), where a second thread waits longer than it computes, and on a larger one. The time is the
least of the repeats; the difference is the largest between predicted probabilities. Threads that wait sleep, as under
the command line; OMP_WAIT_POLICY=ACTIVE lets them spin, which on a busy machine costs most.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import counterpoise as cp

SHAPES = {"coat-like": (290, 300, 0.08, 150), "larger": (3_000, 1_000, 0.07, 3)}  # users, items, density, epochs


def fitted(method: str, data: cp.Dataset, epochs: int, threads: int) -> tuple[float, np.ndarray]:
    """(seconds, predictions on the log) of a fit with this many threads."""
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        started = time.perf_counter()
        model = cp.make(method, epochs=epochs, device="cpu").fit(data.train, probe=data.probe)
        return time.perf_counter() - started, model.predict_log(data.train)


def row(method: str, shape: str, threads: int, repeats: int) -> str:
    """One line of the table."""
    users, items, density, epochs = SHAPES[shape]
    data = cp.simulate(n_users=users, n_items=items, density=density, seed=0).dataset
    one, more = [], []
    for _ in range(repeats):
        one.append(fitted(method, data, epochs, 1))
        more.append(fitted(method, data, epochs, threads))
    seconds = min(time for time, _ in one), min(time for time, _ in more)
    difference = np.abs(one[0][1] - more[0][1]).max()
    cells = [f"{value:.3f}" for value in (*seconds, seconds[1] / seconds[0])]
    return f"{method:14} {shape:10} {len(data.train):>9,} {cells[0]:>8} {cells[1]:>8} {cells[2]:>7} {difference:>11.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=["mf", "counterpoise", "skb-dr"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(f"method         log             rows      1 th    {given.threads} th   ratio  difference")
    for shape in SHAPES:
        for method in given.methods:
            print(row(method, shape, given.threads, given.repeats), flush=True)


if __name__ == "__main__":
    main()
