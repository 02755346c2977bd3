"""What does the paper's generalization bound say? Its terms on simulated logs, where the ideal loss is known.

python benchmarks/bound.py [--seed 0]

Two predictors: the fixed sigmoid(0.8 s) of the other benchmarks, and a fitted MF. Weights are equal, or balance 30
eigenfunctions of a Gaussian kernel with 2 sigma^2 = 6 in the known features, without a cap or with one at ten times
the mean; the norm is taken in the same kernel. What is imputed for the doubly robust risk is the predictor's error
against the log's rate of positive labels.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from scipy.special import logit

import counterpoise as cp
from counterpoise.balance.features import observed_pairs
from counterpoise.balance.functions import KernelFunctions
from counterpoise.balance.kernels import Gaussian
from counterpoise.balance.population import Pairs
from counterpoise.balance.theory import GeneralizationBound, predictor_bound

SIZES = ((40, 50, 0.3), (500, 400, 0.05))  # users, items, density: interpolated; on 500 centres
KERNEL = Gaussian(3.0)
CAP = 10  # the largest weight over the mean, where weights are capped


def fitted_logits(world: cp.SimulatedData, seed: int) -> np.ndarray:
    """The logits of MF on all pairs."""
    users, items = np.indices(world.labels.shape)
    chances = cp.make("mf", seed=seed).fit(world.dataset.train).predict(users.ravel(), items.ravel())
    return logit(chances.astype(np.float64)).reshape(users.shape)


def bounds(users: int, items: int, density: float, seed: int) -> dict[str, tuple[float, GeneralizationBound]]:
    """(ideal loss, bound) by predictor and risk."""
    world = cp.simulate(users, items, density, seed)
    log, labels = world.dataset.train, np.asarray(world.labels)
    pairs = Pairs(torch.from_numpy(world.user_features), torch.from_numpy(world.item_features))
    observed = observed_pairs(log, pairs)
    functions = KernelFunctions(KERNEL, 30).fit(pairs)
    balanced = functions.balance(observed).weights
    capped = functions.balance(observed, max_weight=CAP / len(log)).weights
    fixed = 0.8 * world.user_features @ world.item_features.T / np.sqrt(3)
    found = {}
    for name, logits in {"fixed": fixed, "MF": fitted_logits(world, seed)}.items():
        ideal = float((np.logaddexp(0, logits) - labels * logits).mean())
        imputed = np.logaddexp(0, logits) - log.labels.mean() * logits
        settings = {"equal weights": (None, None), "KBIPS, capped": (capped, None)}
        settings |= {"KBIPS": (balanced, None), "KBDR": (balanced, imputed)}
        for risk, (weights, errors) in settings.items():
            bound = predictor_bound(
                logits, log.labels, observed, weights, ideal_loss=ideal, kernel=KERNEL, imputed_errors=errors
            )
            found[f"{name}, {risk}"] = (ideal, bound)
    return found


def row(name: str, ideal: float, bound: GeneralizationBound) -> str:
    """A line of the table."""
    cells = [f"{bound.n_pairs:,} pairs, {name}", f"{bound.largest_weight:,.1f}", f"{bound.norm:.1f}"]
    cells += [f"{term:,.3f}" if term < 10 else f"{term:,.0f}" for term in [*bound.terms.values(), bound.value]]
    return f"| {' | '.join([*cells, f'{bound.largest_error:.1f}', f'{ideal:.3f}'])} |"


def main() -> None:
    """Print the table, and one bound in full."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    heads = ["", "C", "M", "risk", "bias", "complexity", "confidence", "approximation"]
    heads += ["bound", "E0 + L M B", "ideal loss"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for size in SIZES:
        for name, (ideal, bound) in bounds(*size, options.seed).items():
            print(row(name, ideal, bound), flush=True)
    print(f"\n{bound}\n\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
