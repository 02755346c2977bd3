"""Does a method lose to another anywhere? Ten kinds of simulated logs, differences paired by log.

    python benchmarks/kinds.py [--methods rkb-ips,skb-ips,akb-ips,wkb-ips] [--against mf] [--seeds 16] [--first-seed 0]
                               [--kinds mixed,features] [--probe-rows 200] [--set name=value] [--jobs 2] [--device cpu]

`--against dr` compares every `x-dr` with its `x-ips`. For each kind and method: AUC, NDCG@5 (users without a positive
are left out) and log loss on the uniform test minus those of the other, x 10,000, the standard error of the mean
difference in brackets, + or - where it is more than two of them; the effective sample as a share; seconds a fit.
`--probe-rows`: uniform ratings that become the probe, by default 5 %.
Choose on seeds from 100 on, report seeds from 0 on.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch

import counterpoise as cp
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.runs import parse_settings

KINDS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "features": {"selection": "features"},
    "popularity": {"selection": "popularity"},
    "preference": {"selection": "preference"},
    "both": {"selection": "both"},
    "weak": {"strength": 0.3},
    "random": {"strength": 0.0},
    "long tail": {"n_users": 1400, "n_items": 2400, "density": 0.007, "selection": "both", "strength": 1.5},
    "dense": {"n_users": 300, "n_items": 200, "density": 0.3},
    "large": {"n_users": 3000, "n_items": 1500, "density": 0.02, "selection": "features"},
}
KERNEL_METHODS = ("rkb", "skb", "akb", "wkb")
METRICS = ("auc", "ndcg", "log_loss")
LOWER_IS_BETTER = ("log_loss",)


class Fit(NamedTuple):
    """One method on one log."""

    auc: float
    ndcg: float
    log_loss: float
    kept: float
    seconds: float


def simulated(kind: str, seed: int, probe_rows: int | None) -> cp.Dataset:
    """The log of a kind and seed, with a probe of so many rows."""
    design = {"n_users": 500, "test_rows_a_user": 20, **KINDS[kind]}
    if probe_rows is not None:
        design["probe_fraction"] = probe_rows / (design["n_users"] * design["test_rows_a_user"])
    return cp.simulate(seed=seed, **design).dataset


def fit_all(
    kind: str, seed: int, probe_rows: int | None, methods: list[str], settings: dict[str, Any], device: str
) -> dict[str, Fit]:
    """Every method on the log of a kind and seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data, fits = simulated(kind, seed, probe_rows), {}
    for name in methods:
        known = {setting: value for setting, value in settings.items() if name != "mf"}
        model, started = cp.make(name, seed=seed, device=device, **known), time.perf_counter()
        model.fit(data.train, data.probe)
        seconds = time.perf_counter() - started
        found = cp.evaluate(model, data.test, bootstrap=0)
        kept = effective_sample_size(model.ratio_) / len(model.ratio_)
        fits[name] = Fit(found.auc, found.ndcg, found.log_loss, kept, seconds)
    return fits


def difference(fits: list[dict[str, Fit]], method: str, other: str, metric: str) -> str:
    """Mean, standard error and mark of the paired differences."""
    values = 1e4 * np.array([getattr(fit[method], metric) - getattr(fit[other], metric) for fit in fits])
    mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
    better = -mean if metric in LOWER_IS_BETTER else mean
    return f"{mean:.1f} ({error:.1f}){'+' if better > 2 * error else '-' if better < -2 * error else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(f"{rule}-ips" for rule in KERNEL_METHODS))
    parser.add_argument("--against", default="mf")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--probe-rows", type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    chosen, kinds = options.methods.split(","), options.kinds.split(",")
    pairs = [(name, options.against) for name in chosen if name != options.against]
    if options.against == "dr":
        pairs = [(f"{rule}-dr", f"{rule}-ips") for rule in KERNEL_METHODS]
    methods = list(dict.fromkeys(name for pair in pairs for name in pair[::-1]))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    settings, calls = parse_settings(options.set), list(product(kinds, seeds))
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = [pool.submit(fit_all, *call, options.probe_rows, methods, settings, options.device) for call in calls]
        fits = dict(zip(calls, (future.result() for future in futures), strict=True))
    print("| kind | method | AUC | NDCG@5 | log loss | kept | seconds |\n| --- | --- | --- | --- | --- | --- | --- |")
    for kind, (name, other) in product(kinds, pairs):
        own = [fits[kind, seed] for seed in seeds]
        cells = [difference(own, name, other, metric) for metric in METRICS]
        kept, seconds = (np.mean([getattr(fit[name], figure) for fit in own]) for figure in ("kept", "seconds"))
        print(f"| {kind} | {name} - {other} | {' | '.join(cells)} | {kept:.3f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
