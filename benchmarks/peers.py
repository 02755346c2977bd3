"""LensKit, implicit and ours on the same simulated logs: time, memory and quality, in one run.

    python benchmarks/peers.py [--rows 1e5 1e6 1e7] [--methods mf counterpoise] [--repeats 3] [--threads 2]

Logs of `simulate(rows / 50, 2000, 0.025, seed=3)`: about 50 rows a user. Each fit runs in a process of
its own; wall-clock and processor seconds are the least of the repeats, which alternate between the packages. Memory is
what the process grew by during the fit, at its peak. AUC and NDCG@5 are those of the uniform test, as are the ratios of
seconds to those of LensKit. `counterpoise` gets the probe of 5 % of the uniform pairs, which nobody else has a use for.

LensKit's ALS learns from the labels as ratings; implicit's learns from the rows with a positive label, since it knows
no negative ones. Both have 32 dimensions and otherwise their defaults (10 and 15 iterations), so more epochs or tuning
might do better. On a GPU, where ours are trained if there is one, a log of 10,000 rows is fitted first: CUDA starts
meanwhile. `pip install lenskit implicit` for both; one that is missing is said to be, and left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

PEERS = {"LensKit ALS": "lenskit", "implicit ALS": "implicit"}  # names, and the packages that they need
DIM = 32


class Found(NamedTuple):
    """One fit."""

    seconds: float
    processor_seconds: float
    megabytes: float
    auc: float
    ndcg: float


def simulated(rows: float) -> Any:
    """The dataset of about so many rows, with five uniform pairs of each user as probe and test."""
    import counterpoise as cp

    return cp.simulate(round(rows / 50), 2_000, 0.025, seed=3, test_rows_a_user=5).dataset


def fit_lenskit(dataset: Any) -> Callable[[], Any]:
    """Biased matrix factorisation by alternating least squares, as a fit to call that returns scores of the test."""
    import pandas as pd
    from lenskit.als import BiasedMFScorer
    from lenskit.data import from_interactions_df
    from lenskit.training import TrainingOptions

    log, test = dataset.train, dataset.test
    frame = pd.DataFrame({"user_id": log.users, "item_id": log.items, "rating": log.labels})
    data = from_interactions_df(frame)
    scorer = BiasedMFScorer(embedding_size=DIM)

    def fit() -> Any:
        scorer.train(data, TrainingOptions(rng=0))

        def scores() -> Any:  # 0 for what the log does not know
            sides = (scorer.users, test.users), (scorer.items, test.items)
            places = [ids.numbers(codes, missing="negative") for ids, codes in sides]
            tables = scorer.user_embeddings, scorer.item_embeddings
            users, items = (np.vstack([np.asarray(table), np.zeros(DIM)]) for table in tables)
            biases = [np.append(np.asarray(values), 0) for values in (scorer.bias.user_biases, scorer.bias.item_biases)]
            products = np.einsum("ij,ij->i", users[places[0]], items[places[1]])
            return products + biases[0][places[0]] + biases[1][places[1]]

        return scores

    return fit


def fit_implicit(dataset: Any) -> Callable[[], Any]:
    """Matrix factorisation of implicit feedback by alternating least squares, on the rows with a positive label."""
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    log, test = dataset.train, dataset.test
    liked = log.labels > 0
    ones = np.ones(int(liked.sum()), np.float32)
    matrix = csr_matrix((ones, (log.users[liked], log.items[liked])), shape=log.shape)
    model = AlternatingLeastSquares(factors=DIM, random_state=0)

    def fit() -> Any:
        model.fit(matrix, show_progress=False)
        return lambda: np.einsum("ij,ij->i", model.user_factors[test.users], model.item_factors[test.items])

    return fit


def fit_ours(name: str, dataset: Any) -> Callable[[], Any]:
    """A method of this package, as it comes."""
    import counterpoise as cp

    model = cp.make(name, seed=0)

    def fit() -> Any:
        model.fit(dataset.train, probe=dataset.probe)
        return lambda: model.predict_log(dataset.test)

    return fit


class PeakMemory(threading.Thread):
    """The largest resident size of this process while the block runs, over that at its start, in MB."""

    def __enter__(self) -> Self:
        self.over, self.first = threading.Event(), _resident()
        self.peak = self.first
        self.start()
        return self

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()

    @property
    def megabytes(self) -> float:
        return (self.peak - self.first) / 1e6


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str, rows: float, threads: int) -> Found:
    """One fit, in a process of its own."""
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "LK_NUM_THREADS"), str(threads)))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (name, rows))


def _measure(name: str, rows: float) -> Found:
    warnings.simplefilter("ignore")
    import torch

    import counterpoise as cp

    dataset = simulated(rows)
    if torch.cuda.is_available() and name not in PEERS:
        fit_ours(name, simulated(1e4))()
    makers: dict[str, Callable[[Any], Callable[[], Any]]] = {"LensKit ALS": fit_lenskit, "implicit ALS": fit_implicit}
    fit = makers[name](dataset) if name in makers else fit_ours(name, dataset)
    with PeakMemory(daemon=True) as memory:
        started, processor = time.perf_counter(), time.process_time()
        scores = fit()
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
    found = cp.evaluate(np.asarray(scores()), dataset.test, bootstrap=0)
    return Found(seconds, processor, memory.megabytes, found.auc, found.ndcg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6])
    parser.add_argument("--methods", nargs="*", default=["mf", "counterpoise"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    names = []
    for name, package in PEERS.items():
        if find_spec(package) is None:
            print(f"{name} is left out: it is not installed (pip install {package}).")
        else:
            names.append(name)
    names += options.methods
    print("| rows | model | seconds | of LensKit's | processor seconds | of LensKit's | MB | AUC | NDCG@5 |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for rows in options.rows:
        runs = [{name: measure(name, rows, options.threads) for name in names} for _ in range(options.repeats)]
        best = {name: Found(*np.min([run[name] for run in runs], axis=0)) for name in names}
        base = best.get("LensKit ALS")
        for name, own in best.items():
            times = [
                cell
                for figure in ("seconds", "processor_seconds")
                for cell in (
                    f"{getattr(own, figure):.1f}",
                    f"{getattr(own, figure) / getattr(base, figure):.2f} x" if base else "",
                )
            ]
            cells = [f"{rows:.0e}", name, *times, f"{own.megabytes:.0f}", f"{own.auc:.4f}", f"{own.ndcg:.4f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
