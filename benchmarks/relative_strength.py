"""Which functions are relaxed first? Equal strengths for all eigenfunctions against strengths by eigenvalue.

python benchmarks/relative_strength.py [--samples 8]

Populations are standard normal, the observed rows are those of the population that a rule selects. Printed: the largest
standardised difference of a feature (mean over samples, standard error) and the effective share of the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings

import numpy as np
import torch
from scipy.special import expit

from counterpoise.balance.covariate_balance import balance_table
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.estimators import Standardised
from counterpoise.balance.functions import KernelFunctions
from counterpoise.balance.population import Sample
from counterpoise.errors import ConvergenceWarning

CASES = {
    "300 rows, 2 features, observed where x0 > -0.3": (300, 2, lambda x, rng: x[:, 0] > -0.3),
    "500 rows, 3 features, logistic in x0": (500, 3, lambda x, rng: rng.random(len(x)) < expit(x[:, 0])),
    "4,000 rows, 3 features, logistic in x0": (4000, 3, lambda x, rng: rng.random(len(x)) < expit(x[:, 0])),
}


def balance(seed: int, rows: int, columns: int, select) -> dict[str, tuple[float, float]]:
    """(largest standardised difference, effective share) before, with equal strengths, and by eigenvalue."""
    rng = np.random.default_rng(seed)
    population = rng.normal(size=(rows, columns))
    observed = population[select(population, rng)]
    scaled = Standardised.of(torch.from_numpy(observed), torch.from_numpy(population))
    fitted = KernelFunctions().fit(scaled.population, scaled.observed, generator=torch.Generator().manual_seed(seed))
    found = {"before": np.ones(len(observed))}
    for name, functions in (
        ("equal strengths", dataclasses.replace(fitted, relative_strength=None)),
        ("by eigenvalue", fitted),
    ):
        found[name] = functions.balance(scaled.observed, 1e-3).weights.numpy()
    results = {}
    for name, weights in found.items():
        table = balance_table(Sample(torch.from_numpy(observed)), weights, Sample(torch.from_numpy(population)))
        largest = max(abs(row.smd_after or 0.0) for row in table)
        results[name] = largest, effective_sample_size(weights) / len(weights)
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8)
    samples = parser.parse_args().samples
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| population, selection | before | equal strengths | by eigenvalue |\n| --- | --- | --- | --- |")
    for case, (rows, columns, select) in CASES.items():
        results = [balance(seed, rows, columns, select) for seed in range(samples)]
        cells = []
        for name in ("before", "equal strengths", "by eigenvalue"):
            differences, shares = np.array([result[name] for result in results]).T
            error = differences.std(ddof=1) / samples**0.5
            cells.append(f"{differences.mean():.3f} ({error:.3f}), {shares.mean():.0%}")
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
