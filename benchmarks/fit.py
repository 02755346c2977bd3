"""How long does a fit take, and how good is it? Coat and logs of other shapes, one thread.

    python benchmarks/fit.py [--seeds 10]

Coat is found through COUNTERPOISE_DATA and left out where it is not there. Limits for plain matrix factorisation on
Coat: a fit under 1 s, AUC at least 0.765 in the honest protocol.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import counterpoise as cp

SHAPES = {"coat-like": (290, 300, 0.08), "music-like": (15_400, 1_000, 0.0202)}


def coat(seeds: int) -> None:
    """Seconds and quality over seeds that vary probe and start together."""
    seconds, results = [], []
    for seed in range(seeds):
        data = cp.load_dataset("coat", seed=seed)
        started = time.perf_counter()
        model = cp.make("mf", seed=seed).fit(data.train, probe=data.probe)
        seconds.append(time.perf_counter() - started)
        rules = {rule: cp.evaluate(model, data.test, empty_users=rule, bootstrap=0) for rule in ("skip", "one")}
        results.append([rules["skip"].auc, rules["skip"].ndcg, rules["one"].ndcg, rules["one"].f1])
    mean, spread = np.mean(results, axis=0), np.std(results, axis=0)
    print(f"coat, mf, honest protocol, {seeds} seeds: median {np.median(seconds):.2f} s a fit")
    for name, value, deviation in zip(("AUC", "NDCG@5 skip", "NDCG@5 one", "F1@5 one"), mean, spread, strict=True):
        print(f"  {name:12} {value:.4f}  (sd over seeds {deviation:.4f})")


def shape(name: str) -> None:
    """Seconds an epoch on a simulated log of a known shape."""
    n_users, n_items, density = SHAPES[name]
    log = cp.simulate(n_users, n_items, density).dataset.train
    history = cp.make("mf", epochs=5).fit(log).history_
    print(f"{name}, mf, {len(log):,} rows: {history.seconds / 5:.3f} s an epoch")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        coat(arguments.seeds)
    except cp.DataError as error:
        print(f"coat left out: {error}")
    for name in SHAPES:
        shape(name)


if __name__ == "__main__":
    main()
