"""How well does the debiased validation risk order configurations? Measured on simulated data, with a known ideal loss.

    python benchmarks/validation.py

For each simulated dataset: nine configurations (`l2` x `l2_biases`), their validation risk by four estimators, and
their ideal loss over all pairs when fitted to the whole log. Printed, as means over datasets:
  error of differences  root mean square of (risk - its mean over configurations) against the same of the ideal loss
  correlation           of the two over configurations
  regret                the ideal loss of the configuration with the least risk, above the least ideal loss
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.evaluation.estimates import Errors, Validation, debiased_risk, pooled

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


def main() -> None:
    """Print a table for each method and strength of selection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=200)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for method, strength in (("mf", 1.0), ("mf", 2.0), ("skb-ips", 1.0)):
        means = np.mean([one_dataset(method, strength, seed) for seed in seeds], axis=0)
        print(f"\n{method}, selection of strength {strength:g}, {len(seeds)} datasets", flush=True)
        print(f"{'estimator':28} error of differences  correlation  regret")
        for name, (error, correlation, regret) in zip(ESTIMATORS, means, strict=True):
            print(f"{name:28} {error:20.4f} {correlation:12.3f} {regret:7.4f}", flush=True)


if __name__ == "__main__":
    main()
