"""Which functions should be balanced? The error of the estimated ideal loss on a simulated log where it is known.

python benchmarks/selection.py [--seeds 8] [--main-effects 0]

With main effects 0 preference is interaction alone; with 1, the default of `simulate`, some items are better.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit

import counterpoise as cp
from counterpoise.errors import ConvergenceWarning
from counterpoise.functions import KernelFunctions, Moments
from counterpoise.kernels import Gaussian
from counterpoise.population import ObservedPairs, Pairs
from counterpoise.solver import BalanceResult, entropy_balance, worst_case_balance

RULES = ("random", "spectral", "adaptive_spectral", "adaptive", "worst_case_top")
SIZES = (1, 3, 10, 30, 100)
CANDIDATES = 600


class Design(NamedTuple):
    """A log with known features, propensities and errors on all pairs."""

    pairs: Pairs
    observed: ObservedPairs
    errors: torch.Tensor  # (n,) at the observed pairs
    propensities: torch.Tensor  # (n,)
    ideal: float


def design(seed: int, main_effects: float) -> Design:
    """`simulate` with its features known; the predictor whose ideal loss is sought is sigmoid(0.8 s)."""
    world = cp.simulate(seed=seed, main_effects=main_effects)
    log = world.dataset.train
    pairs = Pairs(torch.from_numpy(world.user_features), torch.from_numpy(world.item_features))
    prediction = expit(0.8 * world.user_features @ world.item_features.T / np.sqrt(3))
    labels = np.asarray(world.labels)
    errors = -np.where(labels > 0, np.log(prediction), np.log1p(-prediction))
    codes = [torch.from_numpy(codes.astype(np.int64)) for codes in (log.users, log.items)]
    return Design(
        pairs,
        pairs.at(*codes),
        torch.from_numpy(errors[log.users, log.items]),
        torch.from_numpy(world.propensity[log.users, log.items]),
        float(errors.mean()),
    )


def balanced(world: Design, functions: KernelFunctions | Moments, seed: int) -> BalanceResult:
    """Weights with (nearly) no tolerance; functions that cannot be balanced are given up at a high price."""
    fitted = functions.fit(world.pairs, world.observed, world.errors, None, torch.Generator().manual_seed(seed))
    rows = fitted.rows(world.observed)
    if fitted.matrix is not None:
        return worst_case_balance(rows, fitted.targets, fitted.matrix, strength=1e4)
    return entropy_balance(rows, fitted.targets, tolerance=1e-6, strength=1e3)


def relative_error(world: Design, weights: torch.Tensor) -> float:
    """|estimated - ideal| / ideal for the self-normalised weighted mean of the errors."""
    return abs(float(weights @ world.errors / weights.sum()) / world.ideal - 1)


def table(seeds: int, main_effects: float) -> dict[str, dict[int, list[float]]]:
    """Relative errors by rule and number of functions, one for each seed."""
    results: dict[str, dict[int, list[float]]] = {}

    def note(name: str, size: int, error: float) -> None:
        results.setdefault(name, {}).setdefault(size, []).append(error)

    for seed in range(seeds):
        world = design(seed, main_effects)
        note("none", 0, relative_error(world, torch.ones(len(world.errors)).double()))
        note("inverse of the true propensity", 0, relative_error(world, 1 / world.propensities))
        for order in (1, 2, 3):
            note(f"moments of order {order}", 0, relative_error(world, balanced(world, Moments(order), seed).weights))
        kernel = Gaussian(3.0)  # 2 sigma^2 = 6
        wide = KernelFunctions(kernel, 100, "worst_case", CANDIDATES)
        note("worst_case", 0, relative_error(world, balanced(world, wide, seed).weights))
        for rule, ridge in [(rule, 0.1) for rule in RULES] + [("adaptive", 1e-4)]:
            for size in SIZES:
                functions = KernelFunctions(kernel, size, rule, CANDIDATES, ridge)
                name = rule if ridge == 0.1 else f"{rule}, ridge {ridge:g}"
                note(name, size, relative_error(world, balanced(world, functions, seed).weights))
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--main-effects", type=float, default=0.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    start = time.perf_counter()
    results = table(options.seeds, options.main_effects)
    print(
        f"| relative error of the ideal loss, mean of {options.seeds} seeds (standard error) | "
        + " | ".join(f"J={j}" for j in SIZES)
        + " |"
    )
    print("| --- |" + " --- |" * len(SIZES))
    for name, by_size in results.items():
        cells = [_cell(by_size[size]) for size in by_size]
        print(f"| {name} | " + " | ".join(cells + [""] * (len(SIZES) - len(cells))) + " |")
    print(f"\n{time.perf_counter() - start:.0f} s")


def _cell(errors: list[float]) -> str:
    return f"{100 * np.mean(errors):.2f} % ({100 * np.std(errors, ddof=1) / len(errors) ** 0.5:.2f})"


if __name__ == "__main__":
    main()
