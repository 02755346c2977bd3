"""How far are full-ranking metrics of held-out clicks from the truth? Simulated clicks, where relevance is known.

    python benchmarks/click_estimates.py [--seeds 5] [--kinds mixed popularity ...]

Clicks are simulated by each kind of exposure, 30 % of them are held out at random, and models are fitted to the rest.
Their DCG@10 over all relevant pairs that were not trained on, seen or not, is known; it is estimated from the held-out
clicks as they are (naive), by 1 / P(exposed) with the square root of popularity for P, the default, and by the true
exposure. Printed: the mean over models and seeds of |estimate / truth - 1|, and of the absolute error of the difference
between two models.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import numpy as np

import counterpoise as cp

KINDS = ("mixed", "features", "popularity", "both", "preference")
MODELS = ("popularity", "wmf", "bpr", "counterpoise")
WAYS = ("naive", "popularity", "true exposure")
K = 10


def errors(kind: str, seed: int) -> dict[str, tuple[list[float], list[float]]]:
    """For each way: the relative errors of the models, and the errors of their differences."""
    data = cp.simulate(400, 300, density=0.08, selection=kind, seed=seed, feedback="clicks")
    log, relevant = data.dataset.train, np.asarray(data.labels) > 0
    train, holdout, _ = cp.split(log, 0.3, seed=seed)
    relevant[train.users, train.items] = False
    everything = cp.FeedbackLog.from_arrays(*np.nonzero(relevant), user_ids=log.user_ids, item_ids=log.item_ids)
    chances = np.asarray(data.propensity)[holdout.users, holdout.items]
    weights = {"naive": None, "popularity": "popularity", "true exposure": 1 / chances}
    models = [cp.make(name, feedback="clicks", seed=seed).fit(train) for name in MODELS]
    truth = [cp.evaluate_ranking(model, everything, K, weights=None).dcg for model in models]
    found = {}
    for way, given in weights.items():
        estimates = [cp.evaluate_ranking(model, holdout, K, weights=given).dcg for model in models]
        relative = [abs(estimate / true - 1) for estimate, true in zip(estimates, truth, strict=True)]
        pairs = combinations(range(len(models)), 2)
        found[way] = relative, [abs(estimates[a] - estimates[b] - truth[a] + truth[b]) for a, b in pairs]
    return found


def main() -> None:
    """Print a line for each kind of exposure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments = parser.parse_args()
    print(f"{'exposure follows':<18}" + "".join(f"{way:>24}" for way in WAYS))
    for kind in arguments.kinds:
        runs = [errors(kind, seed) for seed in range(arguments.seeds)]
        cells = []
        for way in WAYS:
            relative, differences = (np.mean([run[way][place] for run in runs]) for place in (0, 1))
            cells.append(f"{relative:>16.0%}  {differences:.4f}")
        print(f"{kind:<18}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
