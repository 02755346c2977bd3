"""Which functions should be balanced between two tables? Means of known outcomes under the weights of each rule.

python benchmarks/two_samples.py [--samples 48] [--rows 1000] [--jobs 2]

Populations are standard normal, the observed rows are those of the population that a rule selects. Four outcomes each:
a sum, a square, waves, a product. Printed: the root of the mean squared error of their means, in standard deviations,
without noise / with noise of one standard deviation in every observed outcome (which adds the sum of squared weights).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from counterpoise.balance.estimators import KernelBalancer, MomentBalancer
from counterpoise.errors import ConvergenceWarning

Floats = NDArray[np.float64]
SELECTIONS: dict[str, Callable[[Floats], Floats]] = {
    "x0 - x1 / 2": lambda x: x[:, 0] - 0.5 * x[:, 1],
    "x0^2 + x0 x1": lambda x: x[:, 0] ** 2 - 1 + x[:, 0] * x[:, 1],
    "2 x0 + x1": lambda x: 2 * x[:, 0] + x[:, 1],
    "x0 > -0.3": lambda x: np.where(x[:, 0] > -0.3, 20.0, -20.0),
}
OUTCOMES: tuple[Callable[[Floats], Floats], ...] = (
    lambda x: x.sum(1),
    lambda x: x[:, 0] ** 2 + x[:, 1],
    lambda x: np.sin(2 * x[:, 0]) + np.cos(x[:, 1]),
    lambda x: x[:, 0] * x[:, 1] + x[:, 0],
)
RULES: dict[str, Callable[[int], KernelBalancer | MomentBalancer]] = {
    "moments of order 1": lambda seed: MomentBalancer(1, strength=100.0),
    "moments of order 2": lambda seed: MomentBalancer(2, strength=100.0),
    "spectral, 10": lambda seed: KernelBalancer(10, random_state=seed),
    "spectral, 50": lambda seed: KernelBalancer(random_state=seed),
    "greedy": lambda seed: KernelBalancer(select="greedy", random_state=seed),
    "worst_case": lambda seed: KernelBalancer(select="worst_case", random_state=seed),
}


def errors(selection: str, rows: int, columns: int, seed: int) -> list[tuple[float, float]]:
    """Without weights and by rule: (mean squared error of the outcomes' means, sum of squared weights)."""
    rng = np.random.default_rng(seed)
    population = rng.normal(size=(rows, columns))
    observed = population[rng.random(rows) < expit(SELECTIONS[selection](population) - 1)]
    found = [np.full(len(observed), 1 / len(observed))]
    found += [rule(seed).fit(observed, population).weights_ for rule in RULES.values()]
    results = []
    for weights in found:
        off = [(weights @ y(observed) - y(population).mean()) / y(population).std() for y in OUTCOMES]
        results.append((float(np.mean(np.square(off))), float((weights**2).sum())))
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    heads = [f"{options.rows:,} rows, {options.samples} samples", "none", *RULES]
    print("| " + " | ".join(heads) + " |\n| --- |" + " --- |" * (len(heads) - 1))
    with ProcessPoolExecutor(options.jobs, initializer=_quiet) as pool:
        for columns in (2, 5, 10):
            for selection in SELECTIONS:
                work = partial(errors, selection, options.rows, columns)
                squares = np.mean(list(pool.map(work, range(options.samples))), 0)
                cells = [f"{bias**0.5:.3f} / {(bias + noise) ** 0.5:.3f}" for bias, noise in squares]
                print(f"| {columns} features, by {selection} | " + " | ".join(cells) + " |", flush=True)


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)


if __name__ == "__main__":
    main()
