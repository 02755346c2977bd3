"""Where the default regularisation comes from: cross-validation inside biased logs. No test is looked at.

    python benchmarks/defaults.py

For each log: the log loss of held-out parts of the *log* (4 folds) over a grid of `l2` and `l2_biases`, and its
excess over the best of the grid. The default should be near the best everywhere, not the best anywhere.
"""

from __future__ import annotations

import itertools

import numpy as np

import counterpoise as cp

GRID = list(itertools.product((1, 2, 4, 8), (1, 2, 4, 8)))
FOLDS = 4


def logs() -> dict[str, cp.FeedbackLog]:
    """Coat's log where it is there, and simulated ones of several densities and strengths of selection."""
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


def held_out_loss(log: cp.FeedbackLog, l2: float, l2_biases: float) -> float:
    """Mean log loss over folds of the log."""
    fold = np.random.default_rng(0).permutation(len(log)) % FOLDS
    losses = []
    for number in range(FOLDS):
        model = cp.make("mf", l2=l2, l2_biases=l2_biases).fit(log.take(fold != number))
        losses.append(cp.evaluate(model, log.take(fold == number), bootstrap=0).log_loss)
    return float(np.mean(losses))


def main() -> None:
    """Print the excess of each setting on each log, and its mean."""
    excess = {}
    for name, log in logs().items():
        losses = np.array([held_out_loss(log, *setting) for setting in GRID])
        excess[name] = losses - losses.min()
        print(f"{name}: {len(log):,} rows, best held-out log loss {losses.min():.4f}", flush=True)
    print("\n  l2  l2_biases  mean excess   excess on each log")
    mean = np.mean(list(excess.values()), axis=0)
    for number in np.argsort(mean):
        each = "  ".join(f"{values[number]:.4f}" for values in excess.values())
        print(f"{GRID[number][0]:4} {GRID[number][1]:10} {mean[number]:12.4f}   {each}")


if __name__ == "__main__":
    main()
