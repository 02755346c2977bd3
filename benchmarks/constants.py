"""How much the constants matter that no theory gives: quality on simulated logs at other values of each.

    python benchmarks/constants.py [--seeds 3] [--only clip folds]

For every constant and value: AUC, NDCG@5 and log loss on the unbiased test, as means over logs and seeds, and the
effective sample size of the weights as a share of the log. The value in use is marked. Balancing has a strength of 0.3.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterpoise as cp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from graded_world import graded

Log = Callable[[int], cp.Dataset]  # by its seed
SELECTIONS: tuple[Any, ...] = ("mixed", "features", "popularity")


def simulated(selection: Any, density: float = 0.06, **options: Any) -> Log:
    """A log of 300 x 250 pairs."""
    return lambda seed: cp.simulate(300, 250, density, seed=400 + seed, selection=selection, **options).dataset


def rated(density: float) -> Log:
    """Ratings 1 to 5."""
    return lambda seed: graded(400 + seed, 150, 100, density)


USUAL = tuple(simulated(selection) for selection in SELECTIONS)


@dataclass(frozen=True)
class Constant:
    """A setting of a method, or a constant `module:NAME`; the values to compare, the one in use first."""

    name: str
    values: tuple[Any, ...]
    method: str
    settings: dict[str, Any]
    logs: tuple[Log, ...] = USUAL


CONSTANTS = {
    "l2_biases": Constant("l2_biases", ("auto", 1.0, 2.0, 4.0, 8.0), "mf", {}),
    "clip": Constant("clip", (0.05, 0.0, 0.02, 0.1, 0.2), "ips", {"weights": "logistic"}),
    "clip, factors": Constant("clip", (0.05, 0.0, 0.02, 0.1, 0.2), "ips", {"weights": "propensity"}),
    "folds": Constant("folds", (2, 1, 4), "skb-ips", {"strength": 0.3}),
    "cap, factors": Constant("cap", (2.0, 1.0, 3.0, 5.0, 10.0, 20.0), "d-ips", {"weights__weights": "propensity"}),
    "cap": Constant("cap", (2.0, 1.0, 3.0, 5.0, 10.0, 20.0), "d-ips", {}),
    "cap, dr": Constant("cap", (5.0, 1.0, 2.0, 3.0, 10.0, 20.0), "d-dr", {}),
    "method": Constant("method", ("platt", "temperature", "isotonic", "experts"), "ips", {"weights": "calibrated"}),
    "folds, calibrated": Constant("folds", (2, 1, 4, 8), "ips", {"weights": "calibrated"}),
    "experts": Constant("weights__experts", (5, 1, 2, 10), "dce-dr", {}),
    "experts, labels": Constant("imputation__experts", (5, 1, 2, 10), "dce-dr", {}),
    "refresh, labels": Constant("refresh", (10, 3, 30), "dce-dr", {}),
    "max_variation": Constant("max_variation", (0.1, 0.05, 0.2, 0.5, 1.0), "cdr", {}),
    "refresh": Constant("refresh", (30, 10, 75, 150), "akb-ips", {"strength": 0.3}),
    "n": Constant("n", (50, 10, 25, 100), "skb-ips", {"strength": 0.3}),
    "MIN_SPREAD": Constant(
        "models.exposure:MIN_SPREAD",
        (0.1, 0.01, 0.3, 1.0),
        "counterpoise",
        {},
        (*USUAL, simulated("mixed", strength=0.0)),
    ),
    "MAX_PROPENSITY": Constant(
        "imputation.mnar:MAX_PROPENSITY", (0.95, 0.9, 0.99), "mnar", {}, (simulated("preference", 0.6, strength=4.0),)
    ),
    "PRIOR_ROWS": Constant(
        "training.ordinal:PRIOR_ROWS", (5.0, 1.0, 2.0, 10.0, 20.0), "counterpoise", {}, (rated(0.1), rated(0.2))
    ),
    "MIN_INITIAL_GAP": Constant(
        "training.ordinal:MIN_INITIAL_GAP", (0.05, 0.01, 0.5), "counterpoise", {}, (rated(0.1), rated(0.2))
    ),
}


def measure(constant: Constant, value: float, seeds: int) -> list[float]:
    """(AUC, NDCG, log loss, share of the effective sample size), over all logs and seeds."""
    module, _, attribute = constant.name.partition(":")
    own = {} if attribute else {constant.name: value}
    place = import_module(f"counterpoise.{module}") if attribute else None
    found = []
    if place is not None:
        setattr(place, attribute, value)
    for log in constant.logs:
        for seed in range(seeds):
            data = log(seed)
            assert data.test is not None
            model = cp.make(constant.method, seed=seed, **constant.settings | own).fit(data.train, probe=data.probe)
            score = cp.evaluate(model, data.test, bootstrap=0)
            share = model.facts_["weights"]["effective_sample_size"] / len(data.train)
            found.append((score.auc, score.ndcg, score.log_loss, share))
    if place is not None:
        setattr(place, attribute, constant.values[0])
    return list(np.mean(found, 0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CONSTANTS), choices=list(CONSTANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| constant | method | value | AUC | NDCG@5 | log loss | ESS |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.only:
        constant = CONSTANTS[name]
        for number, value in enumerate(constant.values):
            auc, ndcg, loss, share = measure(constant, value, options.seeds)
            shown = f"{value}{'' if number else ' (in use)'}"
            print(
                f"| {name} | {constant.method} | {shown} | {auc:.4f} | {ndcg:.4f} | {loss:.4f} | {share:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
