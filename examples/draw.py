"""Every picture of `counterpoise.plots`, as PDF files for a paper.

python examples/draw.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import counterpoise as cp
from counterpoise import plots
from counterpoise.bench import bias


def balancer(seed: int = 0) -> cp.KernelBalancer:
    """Weights for a sample in which a large first feature is seen more often."""
    rng = np.random.default_rng(seed)
    population, drawn = rng.normal(size=(1500, 4)), rng.normal(size=(2000, 4))
    observed = drawn[rng.random(2000) < 1 / (1 + np.exp(-drawn[:, 0] - 0.5 * drawn[:, 1]))]
    return cp.KernelBalancer(n_functions=25, strength=1.0, random_state=0).fit(observed, population)


def main(folder: Path) -> None:
    """Weights, models and a study, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    weighted = balancer()
    data = cp.simulate(n_users=120, n_items=100, density=0.1, seed=0).dataset
    models = {name: cp.make(name, epochs=60, seed=0).fit(data.train, probe=data.probe) for name in ("mf", "skb-ips")}
    rows = bias.study(estimators=["naive", "ips-true", "snips-true"], matrices=["rotate", "skew"], repeats=2)
    pictures = {
        "love": plots.love_plot(weighted),
        "love-log": plots.love_plot(models["skb-ips"], data.train),
        "weights": plots.weight_histogram(weighted),
        "dual-values": plots.dual_values(weighted),
        "frontier": plots.balance_frontier(weighted),
        "curves": plots.learning_curves(models),
        "calibration": plots.calibration(models, data.test),
        "risks": plots.risk_estimates(rows),
    }
    for name, figure in pictures.items():
        figure.savefig(folder / f"{name}.pdf")
    print(f"{len(pictures)} pictures in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "pictures"))
