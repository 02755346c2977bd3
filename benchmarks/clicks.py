"""Methods for clicks on simulated logs where exposure and relevance are known: NDCG on uniform tests of relevance.

    python benchmarks/clicks.py [--methods wmf,bpr,counterpoise] [--against popularity,wmf,bpr] [--seeds 16]
                                [--first-seed 0] [--kinds features] [--k 10] [--set name=value]
                                [--workers 1] [--coat FOLDER]

For each kind and method: the mean NDCG over logs, and the mean difference of the first method after each of --against,
its standard error in brackets, paired by log; + or - where it is more than two of them; processor seconds a fit.
`true-exposure` is the default with the true exposure of each item. Logs have no side features: those of simulated data
are what relevance was made of. Choose settings on seeds from 100 on, report seeds from 0 on. `--workers`: processes.
`--coat`: instead, every method on Coat's ratings of 4 and 5 as clicks: NDCG@5, NDCG@10, recall@5 and AUC on its uniform
test, means over seeds, and the difference in NDCG@5 to wmf with its standard error over users.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.evaluation.metrics import Rankings, ndcg_per_user
from counterpoise.runs import parse_settings

SIZE: dict[str, Any] = {"n_users": 300, "n_items": 200, "test_rows_a_user": 40}
KINDS: dict[str, dict[str, Any]] = {
    "popularity": {"selection": "popularity", "density": 0.1},
    "popularity, dense": {"selection": "popularity", "density": 0.3},
    "popularity, personal": {"selection": "popularity", "density": 0.2, "main_effects": 0.3},
    "features": {"selection": "features", "density": 0.15},
    "relevance": {"selection": "mixed", "density": 0.15},
    "both": {"selection": "both", "density": 0.15},
    "random": {"strength": 0.0, "density": 0.15},
}
METHODS = [name for name, method in cp.METHODS.items() if "clicks" in method.feedback]


def simulated(kind: str, seed: int) -> tuple[cp.FeedbackLog, cp.FeedbackLog, cp.SimulatedData]:
    """The clicks of a kind and seed, the relevance of uniform pairs, and the truth."""
    data = cp.simulate(seed=seed, feedback="clicks", **SIZE, **KINDS[kind])
    assert data.dataset.test is not None
    train, test = (
        replace(log, user_features=None, item_features=None) for log in (data.dataset.train, data.dataset.test)
    )
    return train, test, data


def made(name: str, seed: int, data: cp.SimulatedData, settings: dict[str, Any]) -> cp.DebiasedRecommender:
    """A method by its name."""
    if name != "true-exposure":
        return cp.make(name, feedback="clicks", seed=seed, **settings)
    exposure = np.asarray(data.propensity)
    of_items = np.broadcast_to(exposure.mean(0), exposure.shape).copy()
    return cp.make("counterpoise", feedback="clicks", seed=seed, weights=cp.KnownPropensity(of_items), **settings)


def fitted(kind: str, seed: int, methods: list[str], k: int, settings: dict[str, Any]) -> NDArray[np.float64]:
    """NDCG and processor seconds of each method on one log. (methods, 2)"""
    torch.set_num_threads(1)
    (train, test, data), found = simulated(kind, seed), []
    for name in methods:
        started = time.process_time()
        model = made(name, seed, data, settings).fit(train)
        seconds = time.process_time() - started
        found.append((cp.evaluate(model, test, k, bootstrap=0).ndcg, seconds))
    return np.array(found)


def table(values: NDArray[np.float64], kinds: list[str], methods: list[str], against: list[str], seconds: Any) -> str:
    """The means (kinds, methods), then those over kinds, and the differences; `values`: (kinds, methods, seeds)."""
    width = max(map(len, methods)) + 2
    lines = [" " * width + "".join(f"{kind:>22}" for kind in [*kinds, "mean"]) + f"{'s':>7}"]
    for place, name in enumerate(methods):
        row = [*values[:, place].mean(1), values[:, place].mean()]
        lines.append(f"{name:<{width}}" + "".join(f"{value:22.4f}" for value in row) + f"{seconds[place]:7.2f}")
    for first in [name for name in methods if name not in against]:
        for other in [name for name in against if name in methods]:
            differences = values[:, methods.index(first)] - values[:, methods.index(other)]  # (kinds, seeds)
            cells = [_cell(row) for row in [*differences, differences.mean(0)]]
            lines.append(f"{first} - {other}\n" + " " * width + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def _cell(differences: NDArray[np.float64]) -> str:
    mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
    mark = " " if abs(mean) <= 2 * error else "+" if mean > 0 else "-"
    return f"{mean:.4f} ({error:.4f}) {mark}"


def fitted_on_coat(data: cp.Dataset, name: str, seed: int) -> tuple[tuple[float, ...], NDArray[np.float64]]:
    """NDCG@5, NDCG@10, recall@5 and AUC of a method, and the NDCG@5 of each user."""
    torch.set_num_threads(1)
    assert data.test is not None
    test = data.test.take(np.argsort(data.test.users, kind="stable"))
    model = cp.make(name, feedback="clicks", seed=seed).fit(data.train)
    five, ten = (cp.evaluate(model, test, k, bootstrap=0) for k in (5, 10))
    ranked = Rankings.of(test.users, model.predict_log(test), test.labels)
    return (five.ndcg, ten.ndcg, five.recall, five.auc), ndcg_per_user(ranked, 5)


def coat(folder: str, methods: list[str], seeds: int, workers: Parallel) -> str:
    """A row for each method; nothing is chosen on this test."""
    data = cp.load_dataset("coat", folder, feedback="clicks")
    assert data.test is not None
    lines = [f"{data.train}, test {data.test}", f"{'':16}NDCG@5  NDCG@10 recall@5      AUC   - wmf"]
    of_users: dict[str, NDArray[np.float64]] = {}
    for name in sorted(methods, key=lambda name: name != "wmf"):
        runs = workers(delayed(fitted_on_coat)(data, name, seed) for seed in range(seeds))
        found, of_seeds = zip(*runs, strict=True)
        of_users[name] = np.mean(of_seeds, axis=0)
        difference = of_users[name] - of_users["wmf"]
        difference = difference[np.isfinite(difference)]
        cell = f"{difference.mean():8.4f} ({difference.std(ddof=1) / len(difference) ** 0.5:.4f})"
        lines.append(f"{name:14}" + "".join(f"{value:8.4f} " for value in np.mean(found, axis=0)) + cell)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join([*METHODS, "true-exposure"]))
    parser.add_argument("--against", default="popularity,wmf,bpr")
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--coat")
    options = parser.parse_args()
    workers = Parallel(options.workers)
    methods, kinds = options.methods.split(","), options.kinds.split(";")
    if options.coat:
        print(coat(options.coat, [name for name in methods if name != "true-exposure"], options.seeds, workers))
        return
    settings = parse_settings(options.settings)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = workers(delayed(fitted)(kind, seed, methods, options.k, settings) for kind in kinds for seed in seeds)
    values, seconds = np.moveaxis(np.reshape(runs, (len(kinds), options.seeds, len(methods), 2)), (3, 2), (0, 2))
    print(table(values, kinds, methods, options.against.split(","), seconds.mean((0, 2))))


if __name__ == "__main__":
    main()
