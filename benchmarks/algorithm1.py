"""The paper's Algorithm 1 beside the exact solution of the same problem: the same features, kernels, gamma and C = 0.

    python benchmarks/algorithm1.py [--strengths 1 5] [--functions 10] [--epochs 40] [--batch-size 128] [--seed 0]

Coat's training log (COUNTERPOISE_DATA; left out if it is not found) and three simulated logs of 500 x 400 pairs. The
features are those of an exposure model, learned once for a log; kernels at random pairs, drawn once. Printed:

- imbalance: the largest and the root mean square over the functions, in standard deviations over all pairs
- ESS: effective sample size over rows
- objective: KL(w || uniform) + gamma sum_j |tau_j| on the whole log, which the exact solution minimises
- bias: of the weighted mean of the expected error of the fitted predictor, relative to its ideal loss; AUC and log loss
  on the uniform test (simulated logs only)
- seconds of the fit, predictor and features included

Algorithm 1 by its defaults allows each function the standard error of a batch (its tolerance C), and its learning rate
falls with the root of the share of the log in a batch; "C = 0" has no tolerance; "C = 0, full rate" has neither.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any
from unittest import mock

import numpy as np
import torch

import counterpoise as cp
from counterpoise.balance.features import observed_pairs
from counterpoise.balance.functions import CustomFunctions, FittedFunctions, KernelFunctions
from counterpoise.balance.population import Pairs
from counterpoise.errors import ConvergenceWarning, CounterpoiseError
from counterpoise.training.contracts import FitContext
from counterpoise.weights import gradient
from counterpoise.weights.balancing import Balancing

Log = tuple[cp.Dataset, cp.SimulatedData | None]
COLUMNS = ("gamma", "weights", "largest", "rms", "ESS", "objective", "bias", "AUC", "log loss", "seconds")
SELECTIONS = ("mixed", "features", "popularity")


def logs(seed: int) -> dict[str, Log]:
    """Every log by its name."""
    found: dict[str, Log] = {}
    try:
        found["Coat"] = cp.load_dataset("coat", seed=seed), None
    except CounterpoiseError as error:
        print(f"Coat is left out: {error}")
    for selection in SELECTIONS:
        simulated = cp.simulate(500, 400, density=0.05, selection=selection, seed=seed)
        found[f"simulated, {selection}"] = simulated.dataset, simulated
    return found


def fixed_functions(data: cp.Dataset, count: int, seed: int) -> tuple[Pairs, FittedFunctions, Any]:
    """All pairs with their features, and kernels at `count` of them, fixed for all that follows."""
    training, generator = cp.Training(seed=seed), torch.Generator().manual_seed(seed)
    context = FitContext(data.train, None, cp.MatrixFactorization(), training, torch.device("cpu"), generator)
    pairs = Balancing().pairs(context)
    fitted = KernelFunctions(n=count, select="random").fit(pairs, generator=generator)
    return pairs, fitted, CustomFunctions(fitted.values)


def fit(data: cp.Dataset, pairs: Pairs, functions: Any, training: cp.Training, rate: bool, **settings: Any) -> Any:
    """(a fitted recommender with these weights, seconds); `rate`: the learning rate falls with the batch."""
    part = Balancing(functions, folds=1, **settings)
    own = gradient.WeightModel.step

    def step(weights: Any, inputs: Any, imputed: Any, on_pairs: Any, factor: float) -> None:
        share = 1.0 if rate else len(inputs.batch.rows) / len(data.train)
        own(weights, inputs, imputed, on_pairs, factor / share**0.5)

    with mock.patch.object(part, "pairs", return_value=pairs), mock.patch.object(gradient.WeightModel, "step", step):
        start = time.perf_counter()
        model = cp.DebiasedRecommender(part, training=training).fit(data.train)
        return model, time.perf_counter() - start


def measure(
    log: Log, pairs: Pairs, fitted: FittedFunctions, gamma: float, model: Any, ratio: Any, seconds: float
) -> list[str]:
    """Cells of the table, from imbalance on."""
    data, simulated = log
    values = fitted.values(observed_pairs(data.train, pairs).features(slice(None)))
    mass = torch.from_numpy(np.asarray(ratio, dtype=np.float64))
    mass = mass / mass.sum()
    imbalance = ((mass @ values - fitted.targets) / fitted.units).abs()
    log_mass = mass.clamp(min=1e-300).log()
    objective = gradient.weight_loss(log_mass, torch.zeros(len(mass)).double(), values, fitted, 0.0, gamma)
    share = float(1 / mass.square().sum()) / len(mass)
    cells = [f"{imbalance.max():.3f}", f"{imbalance.square().mean().sqrt():.3f}", f"{share:.1%}", f"{objective:.3f}"]
    if simulated is None or data.test is None or model is None:
        return [*cells, "", "", "", f"{seconds:.1f}"]
    result = cp.evaluate(model, data.test, bootstrap=0)
    bias = simulated.selection_bias(model, np.asarray(ratio))
    return [*cells, f"{bias:+.1%}", f"{result.auc:.4f}", f"{result.log_loss:.4f}", f"{seconds:.1f}"]


def main() -> None:
    """Print a table for each log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--functions", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    training = cp.Training(epochs=chosen.epochs, batch_size=chosen.batch_size, seed=chosen.seed)
    ways: dict[str, dict[str, Any]] = {
        "exact": {"solver": "dual", "rate": True},
        "Algorithm 1": {"solver": "gradient", "rate": True},
        "Algorithm 1, C = 0": {"solver": "gradient", "tolerance": 0.0, "rate": True},
        "Algorithm 1, C = 0, full rate": {"solver": "gradient", "tolerance": 0.0, "rate": False},
    }
    for name, log in logs(chosen.seed).items():
        pairs, fitted, functions = fixed_functions(log[0], chosen.functions, chosen.seed)
        print(f"\n{name}: {len(log[0].train):,} rows, {chosen.functions} functions\n")
        print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
        start = time.perf_counter()
        plain = cp.DebiasedRecommender(training=training).fit(log[0].train)
        seconds = time.perf_counter() - start
        for gamma in chosen.strengths:
            rows = {"equal": (plain, seconds)}
            rows |= {way: fit(log[0], pairs, functions, training, strength=gamma, **own) for way, own in ways.items()}
            for way, (model, taken) in rows.items():
                cells = measure(log, pairs, fitted, gamma, model, model.ratio_, taken)
                print(f"| {gamma:g} | {way} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
