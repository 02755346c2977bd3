"""How well does the debiased validation risk order configurations? Measured where the truth is known.

    python benchmarks/validation.py

For each simulated world: nine configurations (`l2` x `l2_biases`), their validation risk by four judges, and their
ideal loss over all pairs when fitted to the whole log. Printed, as means over worlds:
  error of differences  root mean square of (risk - its mean over configurations) against the same of the ideal loss
  correlation           of the two over configurations
  regret                the ideal loss of the configuration that the judge prefers, above the least one
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.evaluation.estimates import Errors, Validation, debiased_risk, pooled

GRID = [{"l2": l2, "l2_biases": biases} for l2 in (0.5, 4, 32) for biases in (0.5, 2, 16)]
JUDGES = {
    "held-out loss, unweighted": lambda errors: errors.on_log.mean(),
    "held-out loss, balanced": lambda errors: np.average(errors.on_log, weights=errors.weights),
    "the probe alone": lambda errors: errors.on_probe.mean(),
    "both: the debiased risk": lambda errors: debiased_risk(errors).value,
}


def scores(judged: list[Errors], ideal: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """(error of differences, correlation, regret) of each judge."""
    rows = []
    for judge in JUDGES.values():
        risk = np.array([judge(errors) for errors in judged])
        own, true = risk - risk.mean(), ideal - ideal.mean()
        error = float(np.sqrt(((own - true) ** 2).mean()))
        rows.append((error, float(np.corrcoef(own, true)[0, 1]), float(ideal[risk.argmin()] - ideal.min())))
    return rows


def one_world(method: str, strength: float, seed: int) -> list[tuple[float, float, float]]:
    """The judges on one world."""
    world = cp.simulate(n_users=200, n_items=150, density=0.08, strength=strength, seed=seed)
    validation = Validation.of(world.dataset, seed=seed)
    makers = [partial(cp.make, method, dim=16, **settings) for settings in GRID]
    judged = [pooled(list(validation.errors_by_fold(maker))) for maker in makers]
    fitted = [maker().fit(world.dataset.train, world.dataset.probe) for maker in makers]
    return scores(judged, np.array([world.ideal_risk(model) for model in fitted]))


def main() -> None:
    """Print a table for each method and strength of selection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=200)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for method, strength in (("mf", 1.0), ("mf", 2.0), ("skb-ips", 1.0)):
        means = np.mean([one_world(method, strength, seed) for seed in seeds], axis=0)
        print(f"\n{method}, selection of strength {strength:g}, {len(seeds)} worlds", flush=True)
        print(f"{'judge':28} error of differences  correlation  regret")
        for judge, (error, correlation, regret) in zip(JUDGES, means, strict=True):
            print(f"{judge:28} {error:20.4f} {correlation:12.3f} {regret:7.4f}", flush=True)


if __name__ == "__main__":
    main()
