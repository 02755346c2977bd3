"""Balancing weights without any recommender: a sample that answered, a population, and what weights repair.

python examples/weights_only.py
"""

from __future__ import annotations

import numpy as np

import counterpoise as cp


def survey(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(a sample in which a large first feature answers more often, and so do those whose others agree; everybody)."""
    rng = np.random.default_rng(seed)
    population, drawn = rng.normal(size=(4000, 3)), rng.normal(size=(5000, 3))
    answers = 1 / (1 + np.exp(1 - drawn[:, 0] - drawn[:, 1] * drawn[:, 2]))
    return drawn[rng.random(5000) < answers], population


def main() -> None:
    """The mean of an outcome, whose true mean is 0, by three kinds of weights."""
    sample, population = survey()
    outcome = sample[:, 0] + sample[:, 1] * sample[:, 2]
    print(f"no weights  {outcome.mean():+.3f}")
    for name, balancer in (
        ("means", cp.MomentBalancer(order=1)),
        ("kernels", cp.KernelBalancer(n_functions=50, random_state=0)),
    ):
        balancer.fit(sample, population)
        print(f"{name:<10}  {balancer.weights_ @ outcome:+.3f}  {balancer.result_}")
    print(cp.balance_samples(sample, population).summary())


if __name__ == "__main__":
    main()
