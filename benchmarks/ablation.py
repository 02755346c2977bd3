"""Ablation: the backbone alone, and with weights, imputation, missingness model, exposure, ensemble and the rest.

    python benchmarks/ablation.py [--seeds 10] [--first-seed 0] [--only coat mixed] [--protocol honest|paper]
    python benchmarks/ablation.py --ratings FILE [--alpha 0.25]

On Coat, if it is found, and on simulated logs of its size, one for each kind of selection ("weak": the mixed one at
0.3 of its strength): seeds draw the probe, the test and the start, in the simulation also the log. Each cell: the mean,
in brackets the standard deviation over seeds, and a mark where the paired t-test against `mf` on the same seeds gives
p < 0.01: + better, - worse.

`--ratings`: a file of ratings of your own, or coat. Its matrix is completed, and logs are drawn from it by a known
selection in which a rating below 4 is observed less often, by a factor `alpha` for each star (`known_selection`);
labels are ratings of 3 and more. So methods are compared on users and items like yours, with a known truth.

Rows with the ordinal loss need a log of ratings: a simulated rating is a label.

- MSE x 1000 and log loss against the true preference, over all pairs (simulated); log loss on the test (Coat)
- AUC, NDCG@5 and F1@5 on the unbiased test; users without a positive in the test are left out, but on the protocol of
  the paper, where its numbers can be compared, they count as in the paper
- seconds of a fit on one thread
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import ttest_rel

import counterpoise as cp
from counterpoise.bench.bias import known_selection
from counterpoise.bench.tables import metric_name
from counterpoise.data.protocols import find_protocol
from counterpoise.evaluation.evaluate import metrics_and_replicates

KINDS = ("random", "weak", "features", "popularity", "preference", "both", "mixed")
STRENGTHS = {"random": 0.0, "weak": 0.3}
TEST_ROWS_A_USER = 16
K = 5
LOWER_IS_BETTER = {"log loss", "MSE"}
Build = Callable[[int], cp.DebiasedRecommender]
Truth = NDArray[np.float64]  # (users, items)
Draw = Callable[[int], tuple[cp.Dataset, Truth | None]]  # by its seed
Results = dict[str, dict[str, list[float]]]  # by row and column, a value for each seed


def rows(ordinal: bool) -> dict[str, tuple[Build, bool]]:
    """Every row by its name: how it is built from a seed, and whether it gets the probe.

    `ordinal`: also those with the ordinal loss.
    """
    own, sided = cp.MatrixFactorization(), cp.MatrixFactorization(side_features="auto")

    def named(name: str, backbone: cp.Backbone = own, **settings: object) -> Build:
        return lambda seed: cp.make(name, seed=seed, backbone=backbone, **settings)

    labels_only = {"ordinal": "none"}
    found = {
        "mf": (named("mf"), False),
        "mf + naive Bayes weights (ips)": (named("ips"), True),
        "mf + kernel balancing (skb-ips)": (named("skb-ips"), False),
        "mf + naive Bayes weights + learned imputation (dr-jl)": (named("dr-jl"), True),
        "mf + kernel balancing + learned imputation (skb-dr)": (named("skb-dr"), False),
        "mf + missingness model (mnar)": (named("mnar"), True),
        "mf + exposure": (named("mf", cp.ExposureCovariate(own)), False),
        "mf + exposure + naive Bayes weights": (named("ips", cp.ExposureCovariate(own)), True),
        "mf + exposure + missingness model": (
            named("counterpoise", cp.ExposureCovariate(own), ensemble="none", **labels_only),
            True,
        ),
        "mf + exposure + missingness model, ensemble": (
            named("counterpoise", cp.ExposureCovariate(own), **labels_only),
            True,
        ),
        "mf + side features": (named("mf", sided), False),
    }
    if ordinal:
        found |= {
            "mf + ordinal loss": (named("mf", ordinal=cp.OrdinalLoss()), False),
            "mf + exposure + missingness model, ensemble + ordinal loss": (
                named("counterpoise", cp.ExposureCovariate(own)),
                True,
            ),
            "counterpoise without the ordinal loss": (
                lambda seed: cp.make("counterpoise", seed=seed, **labels_only),
                True,
            ),
        }
    for name, settings in (
        ("equal weights", {"weights": "uniform"}),
        ("the labels of the probe", {"probe_labels": "none"}),
    ):
        without = "with" if "weights" in settings else "without"
        found[f"counterpoise {without} {name}"] = (partial(flagship, **settings), True)
    return found | {"counterpoise without a probe": (flagship, False), "counterpoise": (flagship, True)}


def flagship(seed: int, **settings: object) -> cp.DebiasedRecommender:
    """The default: balanced weights, exposure, missingness model, ensemble, ordinal loss, and side features if any."""
    return cp.make("counterpoise", seed=seed, **settings)


def simulated(kind: str, seed: int) -> tuple[cp.Dataset, Truth]:
    """A log of Coat's size, and the true preference of every pair."""
    selection = "mixed" if kind in STRENGTHS else kind
    size = {"n_users": 290, "n_items": 300, "density": 0.08, "test_rows_a_user": TEST_ROWS_A_USER}
    simulation = cp.simulate(seed=seed, strength=STRENGTHS.get(kind, 1.0), selection=selection, **size)
    return simulation.dataset, np.asarray(simulation.preference)


def semi_synthetic(ratings: str, alpha: float, seed: int) -> tuple[cp.Dataset, Truth]:
    """A log drawn from a completed matrix of ratings by a known selection, and the true label of every pair."""
    known, rng = known_selection(ratings, alpha=alpha), np.random.default_rng([7, seed])
    truth, (log, probe) = (known.ratings >= 3).astype(np.float64), known.observe(rng)
    pairs = np.setdiff1d(np.arange(truth.size), np.union1d(log.pairs, probe.pairs))
    drawn = np.sort(rng.choice(pairs, min(len(pairs), TEST_ROWS_A_USER * len(truth)), replace=False))

    def labelled(pairs: NDArray[np.int64]) -> cp.FeedbackLog:
        users, items = np.divmod(pairs, truth.shape[1])
        ids = {"user_ids": log.user_ids, "item_ids": log.item_ids}
        features = {"user_features": log.user_features, "item_features": log.item_features}
        ratings = known.ratings.flat[pairs].astype(np.float64)
        return cp.FeedbackLog.from_arrays(users, items, ratings, threshold=3, **ids, **features)

    return cp.Dataset(labelled(log.pairs), labelled(probe.pairs), labelled(drawn)), truth


def on_test(model: cp.DebiasedRecommender, data: cp.Dataset) -> dict[str, float]:
    """Metrics on unbiased ratings: those of `counterpoise bench table`, and the log loss."""
    assert data.test is not None
    found, _ = metrics_and_replicates(model, data.test, K)
    metrics = *find_protocol(data.description.get("protocol", "honest")).metrics, "log_loss"
    return {metric_name(metric, K): found[metric] for metric in metrics}


def against_truth(model: cp.DebiasedRecommender, truth: Truth) -> dict[str, float]:
    """Calibration over all pairs."""
    users, items = (codes.ravel() for codes in np.indices(truth.shape))
    predicted = model.predict(users, items).astype(np.float64).reshape(truth.shape).clip(1e-6, 1 - 1e-6)
    loss = -(truth * np.log(predicted) + (1 - truth) * np.log1p(-predicted)).mean()
    return {"MSE": float(1000 * np.mean((predicted - truth) ** 2)), "log loss": float(loss)}


def measure(data: cp.Dataset, truth: Truth | None, build: Build, seed: int, probed: bool) -> dict[str, float]:
    """Fit and evaluate one row on one log."""
    start = time.perf_counter()
    model = build(seed).fit(data.train, probe=data.probe if probed else None)
    seconds = time.perf_counter() - start
    found = on_test(model, data)
    return found | ({} if truth is None else against_truth(model, truth)) | {"seconds": seconds}


def table(log: str, draw: Draw, seeds: range) -> Results:
    """Every row on every seed."""
    results: Results = {}
    for seed in seeds:
        data, truth = draw(seed)
        for name, (build, probed) in rows(len(np.unique(data.train.ratings)) > 2).items():
            for column, value in measure(data, truth, build, seed, probed).items():
                results.setdefault(name, {}).setdefault(column, []).append(value)
        print(f"{log}, seed {seed}", file=sys.stderr, flush=True)
    return results


def mark(column: str, values: list[float], base: list[float]) -> str:
    """+ or - if the difference to the baseline on the same seeds is significant (p < 0.01)."""
    difference = np.subtract(values, base)
    if column == "seconds" or len(values) < 2 or np.ptp(difference) == 0 or ttest_rel(values, base).pvalue >= 0.01:
        return ""
    return " +" if (difference.mean() > 0) == (column not in LOWER_IS_BETTER) else " -"


def markdown(results: Results) -> str:
    """One row a method."""
    columns = list(results["mf"])
    lines = [["method", *columns], ["---"] * (len(columns) + 1)]
    for name, values in results.items():
        cells = []
        for column in columns:
            digits = 1 if column in ("MSE", "seconds") else 3
            mean, spread = np.mean(values[column]), np.std(values[column], ddof=1) if len(values[column]) > 1 else 0.0
            deviation = "" if column == "seconds" else f" ({spread:.{digits}f})"
            cells.append(f"{mean:.{digits}f}{deviation}{mark(column, values[column], results['mf'][column])}")
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print a table for each log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0, help="seeds from 100 on are in no reported table")
    parser.add_argument("--only", nargs="+", default=["coat", *KINDS], choices=["coat", *KINDS])
    parser.add_argument("--protocol", default="honest", choices=["honest", "paper"], help="of Coat")
    parser.add_argument("--ratings", help="a file of ratings, or coat: logs are drawn from its completed matrix")
    parser.add_argument("--alpha", type=float, default=0.25, help="of that selection: 1 is none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", cp.ConvergenceWarning)
    draws: dict[str, Draw] = {kind: partial(simulated, kind) for kind in KINDS}
    draws["coat"] = lambda seed: (cp.load_dataset("coat", seed=seed, protocol=options.protocol), None)
    if options.ratings:
        draws = {f"{options.ratings}, alpha {options.alpha:g}": partial(semi_synthetic, options.ratings, options.alpha)}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for log in draws if options.ratings else options.only:
        print(f"## {log}\n\n{markdown(table(log, draws[log], seeds))}\n", flush=True)


if __name__ == "__main__":
    main()
