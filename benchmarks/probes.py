"""Does the default lose to plain matrix factorisation anywhere, without a probe or with one?

    python benchmarks/probes.py [--seeds 16] [--first-seed 0] [--kinds mixed,features] [--probes 0,200,3000]
                                [--methods counterpoise,mf-probe] [--set name=value] [--features] [--jobs 2]
                                [--device cpu] [--out FILE.json]

The ten kinds of simulated logs of `kinds.py`. For each kind and number of probe rows: AUC, NDCG@5, F1@5 (users without
a positive are left out), log loss and MSE on the uniform test minus those of `mf`, x 10,000, paired by log; in brackets
the standard error of the mean difference, + better and - worse where it is more than two of them. Then the same against
`mf-with-probe`, which trains on the rows of both. `mf` has no use for features, so that the simulation's, which are
the true ones, are kept from the other methods too, unless `--features`. Choose on seeds from 100 on, report seeds from
0 on.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kinds import KINDS

import counterpoise as cp
from counterpoise.runs import parse_settings

METRICS = {"auc": "AUC", "ndcg": "NDCG@5", "f1": "F1@5", "log_loss": "log loss", "mse": "MSE"}
LOWER_IS_BETTER = ("log_loss", "mse")
TEST_ROWS_A_USER = 20
BASELINE, WITH_PROBE = "mf", "mf-with-probe"
Values = dict[str, dict[str, float]]  # of each method, by metric


def fit_all(
    call: tuple[str, int, int], methods: list[str], settings: dict[str, Any], sided: bool, device: str
) -> Values:
    """Every method on the log of a kind, seed and number of probe rows."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind, seed, rows = call
    users = KINDS[kind].get("n_users", 500)
    share = max(rows, 1) / (users * TEST_ROWS_A_USER)
    data = cp.simulate(seed=seed, test_rows_a_user=TEST_ROWS_A_USER, probe_fraction=share, **KINDS[kind]).dataset
    found = {}
    for name in [BASELINE, *([WITH_PROBE] if rows else []), *methods]:
        own = {} if name in (BASELINE, WITH_PROBE) else settings
        model, started = cp.make(name, seed=seed, device=device, **own), time.perf_counter()
        if not sided and name == "counterpoise":
            model.set_params(backbone__backbone__side_features=False)
        model.fit(data.train, data.probe if rows else None)
        seconds = time.perf_counter() - started
        result = cp.evaluate(model, data.test, bootstrap=0)
        found[name] = {metric: getattr(result, metric) for metric in METRICS} | {"seconds": seconds}
    return found


def differences(fits: list[Values], method: str, other: str, metric: str) -> np.ndarray:
    """x 10,000, one for each log."""
    return 1e4 * np.array([fit[method][metric] - fit[other][metric] for fit in fits])


def cell(values: np.ndarray, metric: str) -> str:
    """Mean, standard error and mark."""
    mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
    better = -mean if metric in LOWER_IS_BETTER else mean
    return f"{mean:.1f} ({error:.1f}){'+' if better > 2 * error else '-' if better < -2 * error else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="counterpoise")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--probes", default="0,200,3000")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--features", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    methods, kinds, probes = (
        options.methods.split(","),
        options.kinds.split(","),
        list(map(int, options.probes.split(","))),
    )
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    calls = list(product(kinds, seeds, probes))
    rest = methods, parse_settings(options.set), options.features, options.device
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = [pool.submit(fit_all, call, *rest) for call in calls]
        fits = dict(zip(calls, (future.result() for future in futures), strict=True))
    if options.out:
        options.out.write_text(json.dumps([[*call, found] for call, found in fits.items()]))
    for rows, name, other in product(probes, methods, (BASELINE, WITH_PROBE)):
        if other == WITH_PROBE and not rows:
            continue
        print(f"\n{name} - {other}, {rows:,} probe rows\n\n| kind | {' | '.join(METRICS.values())} | seconds |")
        print("| --- " * (len(METRICS) + 2) + "|")
        means = []
        for kind in kinds:
            own = [fits[kind, seed, rows] for seed in seeds]
            values = {metric: differences(own, name, other, metric) for metric in METRICS}
            means.append([found.mean() for found in values.values()])
            cells = [cell(found, metric) for metric, found in values.items()]
            print(f"| {kind} | {' | '.join(cells)} | {np.mean([fit[name]['seconds'] for fit in own]):.2f} |")
        print(f"| mean | {' | '.join(f'{mean:.1f}' for mean in np.mean(means, 0))} | |")


if __name__ == "__main__":
    main()
