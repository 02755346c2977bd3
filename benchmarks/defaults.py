"""The default regularisation, chosen by cross-validation inside biased logs. No test is used.

    python benchmarks/defaults.py [--preset paper | --training]

For each log: the log loss of held-out parts of the *log* (4 folds) over a grid of settings of `mf`, and its excess
over the best of the grid. The default should be near the best on all logs. With `--preset
paper`: the same for the paper's factorisation and batches in `counterpoise bench`, its learning rates and the L2. With
`--training`: dimension, learning rate and epochs of our own.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import numpy as np

import counterpoise as cp
from counterpoise.bench.datasets import BENCH_DATASETS
from counterpoise.bench.presets import preset_settings

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "default": {"l2": (1, 2, 4, 8), "l2_biases": (1, 2, 4, 8)},
    "paper": {"l2": (1, 2, 3, 4), "learning_rate": (0.01, 0.03, 0.05, 0.1)},
    "training": {"dim": (8, 16, 32, 64), "learning_rate": (0.02, 0.05, 0.1), "epochs": (50, 150, 300)},
}
FOLDS = 4


def logs() -> dict[str, cp.FeedbackLog]:
    """Coat's log if it is found, and simulated ones of several densities and strengths of selection."""
    found = {
        f"simulated, density {density}, strength {strength}": cp.simulate(
            density=density, strength=strength
        ).dataset.train
        for density, strength in ((0.05, 1.0), (0.15, 1.0), (0.1, 0.0))
    }
    try:
        found["coat"] = cp.load_dataset("coat").train
    except cp.DataError as error:
        print(f"coat left out: {error}")
    return found


def held_out_loss(log: cp.FeedbackLog, settings: dict[str, Any]) -> float:
    """Mean log loss over folds of the log."""
    fold = np.random.default_rng(0).permutation(len(log)) % FOLDS
    losses = []
    for number in range(FOLDS):
        model = cp.make("mf", **settings).fit(log.take(fold != number))
        losses.append(cp.evaluate(model, log.take(fold == number), bootstrap=0).log_loss)
    return float(np.mean(losses))


def main() -> None:
    """Print the excess of each setting on each log, and its mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("default", "paper"), default="default")
    parser.add_argument("--training", action="store_true", help="search dimension, learning rate and epochs")
    arguments = parser.parse_args()
    axes = GRIDS["training" if arguments.training else arguments.preset]
    fixed = preset_settings(arguments.preset, BENCH_DATASETS["coat"], cp.make("mf"))
    grid = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    excess = {}
    for name, log in logs().items():
        losses = np.array([held_out_loss(log, fixed | settings) for settings in grid])
        excess[name] = losses - losses.min()
        print(f"{name}: {len(log):,} rows, best held-out log loss {losses.min():.4f}", flush=True)
    print("\n" + "  ".join(f"{name:>13}" for name in axes) + "   mean excess   excess on each log")
    mean = np.mean(list(excess.values()), axis=0)
    for number in np.argsort(mean):
        setting = "  ".join(f"{value:13}" for value in grid[number].values())
        each = "  ".join(f"{values[number]:.4f}" for values in excess.values())
        print(f"{setting} {mean[number]:13.4f}   {each}")


if __name__ == "__main__":
    main()
