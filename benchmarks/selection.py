"""Which functions should be balanced? The error of the estimated ideal loss on a simulated log where it is known.

python benchmarks/selection.py [--seeds 8] [--markdown]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch

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


def design(seed: int, users: int = 500, items: int = 400, density: float = 0.05) -> Design:
    """Preference and selection both depend on s = A B' / sqrt(3) and on nonlinear terms of user and item features."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
    s = a @ b.T / np.sqrt(3)
    preference = _sigmoid(1.2 * s - 0.5 + 0.8 * np.sin(2 * a[:, :1]) * np.cos(2 * b[:, 0]))
    labels = rng.random(s.shape) < preference
    logit = 1.2 * s + abs(a[:, 1:2]) * np.tanh(2 * b[:, 1]) + 0.7 * np.sin(2 * a[:, :1])
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(logit + middle).mean() < density else (low, middle)
    propensity = _sigmoid(logit + low)
    chosen = np.nonzero(rng.random(s.shape) < propensity)
    prediction = _sigmoid(0.8 * s)
    errors = -np.where(labels, np.log(prediction), np.log1p(-prediction))
    pairs = Pairs(torch.from_numpy(a), torch.from_numpy(b))
    codes = tuple(torch.from_numpy(code) for code in chosen)
    return Design(
        pairs,
        pairs.at(*codes),
        torch.from_numpy(errors[chosen]),
        torch.from_numpy(propensity[chosen]),
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


def table(seeds: int) -> dict[str, dict[int, list[float]]]:
    """Relative errors by rule and number of functions, one for each seed."""
    results: dict[str, dict[int, list[float]]] = {}

    def note(name: str, size: int, error: float) -> None:
        results.setdefault(name, {}).setdefault(size, []).append(error)

    for seed in range(seeds):
        world = design(seed)
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
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    start = time.perf_counter()
    results = table(options.seeds)
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


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


if __name__ == "__main__":
    main()
