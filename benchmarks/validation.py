"""How well does the debiased validation risk order configurations? Measured on simulated data, with a known ideal loss.

    python benchmarks/validation.py
    python benchmarks/validation.py --search [--jobs 2]

For each simulated dataset: nine configurations (`l2` x `l2_biases`), their validation risk by four estimators, and
their ideal loss over all pairs when fitted to the whole log. Printed, as means over datasets:
  error of differences  root mean square of (risk - its mean over configurations) against the same of the ideal loss
  correlation           of the two over configurations
  regret                the ideal loss of the configuration with the least risk, above the least ideal loss

`--search`: by which measure should a search without a probe judge settings? For each method and kind of selection, the
defaults and eight draws from the search space; AUC, NDCG@5 and log loss on the uniform test of what each judge takes,
minus those of the defaults, x 10,000, means with standard errors. Logs have about the shape of Coat.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from kinds import KINDS
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.evaluation.estimates import Errors, Validation, debiased_risk, held_out_errors, pooled
from counterpoise.tuning.search_space import search_space

SEARCHED = ("mf", "eib", "dr-bias", "skb-ips", "skb-dr")
SEARCHED_KINDS = ("mixed", "preference", "features")
DRAWS = 8
JUDGES = {"log loss, unweighted": (False, "log loss"), "log loss, weighted": (True, "log loss")}
JUDGES |= {"AUC, unweighted": (False, "1 - AUC"), "AUC, weighted": (True, "1 - AUC")}
GRID = [{"l2": l2, "l2_biases": biases} for l2 in (0.5, 4, 32) for biases in (0.5, 2, 16)]
ESTIMATORS = {
    "held-out loss, unweighted": lambda errors: errors.on_log.mean(),
    "held-out loss, balanced": lambda errors: np.average(errors.on_log, weights=errors.weights),
    "probe alone": lambda errors: errors.on_probe.mean(),
    "both: debiased risk": lambda errors: debiased_risk(errors).value,
}


def scores(held_out: list[Errors], ideal: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """(error of differences, correlation, regret) of each estimator."""
    rows = []
    for estimate in ESTIMATORS.values():
        risk = np.array([estimate(errors) for errors in held_out])
        own, true = risk - risk.mean(), ideal - ideal.mean()
        error = float(np.sqrt(((own - true) ** 2).mean()))
        rows.append((error, float(np.corrcoef(own, true)[0, 1]), float(ideal[risk.argmin()] - ideal.min())))
    return rows


def one_dataset(method: str, strength: float, seed: int) -> list[tuple[float, float, float]]:
    """The scores of the estimators on one simulated dataset."""
    data = cp.simulate(n_users=200, n_items=150, density=0.08, strength=strength, seed=seed)
    validation = Validation.of(data.dataset, seed=seed)
    makers = [partial(cp.make, method, dim=16, **settings) for settings in GRID]
    held_out = [pooled(list(validation.errors_by_fold(maker))) for maker in makers]
    fitted = [maker().fit(data.dataset.train, data.dataset.probe) for maker in makers]
    return scores(held_out, np.array([data.ideal_risk(model) for model in fitted]))


def search(method: str, kind: str, seed: int) -> list[NDArray[np.float64]]:
    """What each judge's choice gains over the defaults on the test: AUC, NDCG@5 and log loss."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    shape = {"n_users": 290, "n_items": 300, "density": 0.08, "test_rows_a_user": 20}
    data = cp.simulate(seed=seed, **{**shape, **KINDS[kind]}).dataset
    validation = Validation.of(data.train, data.probe, eval_folds=3, hold_out_probe=False)
    study, tried = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)), [dict[str, Any]()]
    for _ in range(DRAWS):
        trial, settings = study.ask(), {}
        for dimension in search_space(method, {}, 1):
            settings |= dimension.settings(dimension.suggest(trial))
        tried.append(settings)
    risks, found = [], []
    for settings in tried:
        make = partial(cp.make, method, seed=0, device="cpu", **settings)
        models = [(fold, make().fit(fold.log, fold.probe)) for fold in validation.folds]
        own = []
        for weighted, measure in JUDGES.values():
            folds = [(fold._replace(measure=measure), model) for fold, model in models]
            if not weighted:
                folds = [(fold._replace(weights=np.ones_like(fold.weights)), model) for fold, model in folds]
            own.append(debiased_risk(pooled([held_out_errors(fold, model) for fold, model in folds])).value)
        tested = cp.evaluate(make().fit(data.train, data.probe), data.test, bootstrap=0)
        risks.append(own)
        found.append([tested.auc, tested.ndcg, tested.log_loss])
    return [np.subtract(found[place], found[0]) for place in np.argmin(risks, axis=0)]


def searches(seeds: range, jobs: int) -> None:
    """Print a line for each judge."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        calls = product(SEARCHED, SEARCHED_KINDS, seeds)
        gains = 1e4 * np.array(list(pool.map(search, *zip(*calls, strict=True))))  # (searches, judges, metrics)
    errors = gains.std(axis=0, ddof=1) / len(gains) ** 0.5
    print("| judge | AUC | NDCG@5 | log loss |\n| --- | --- | --- | --- |")
    for judge, means, own in zip(JUDGES, gains.mean(axis=0), errors, strict=True):
        cells = " | ".join(f"{mean:+.0f} ({error:.0f})" for mean, error in zip(means, own, strict=True))
        print(f"| {judge} | {cells} |")


def main() -> None:
    """Print a table for each method and strength of selection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.search:
        searches(range(arguments.first_seed, arguments.first_seed + arguments.seeds), arguments.jobs)
        return
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for method, strength in (("mf", 1.0), ("mf", 2.0), ("skb-ips", 1.0)):
        means = np.mean([one_dataset(method, strength, seed) for seed in seeds], axis=0)
        print(f"\n{method}, selection of strength {strength:g}, {len(seeds)} datasets", flush=True)
        print(f"{'estimator':28} error of differences  correlation  regret")
        for name, (error, correlation, regret) in zip(ESTIMATORS, means, strict=True):
            print(f"{name:28} {error:20.4f} {correlation:12.3f} {regret:7.4f}", flush=True)


if __name__ == "__main__":
    main()
