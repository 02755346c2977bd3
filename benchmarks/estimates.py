"""How far are estimates from a biased hold-out from the truth? Simulated logs, where every label is known.

    python benchmarks/estimates.py [--seeds 16] [--first-seed 0] [--kinds features popularity ...]
                                   [--users 1200] [--items 1000]
    python benchmarks/estimates.py --speed

A log is simulated by each kind of selection, a fifth of its rows is held out at random, and five models are fitted to
the rest. Their metrics over all pairs that were not trained on are known; they are estimated from the hold-out with
equal weights (naive), by logistic IPS, by balanced weights, by these with the label balanced to a probe, and by the
true propensities, which show what the size of the hold-out alone costs. Printed:
  the mean absolute error of each estimate, over models and seeds
  the share of 95 % intervals of the balanced estimates that hold the truth, and of sensitivity intervals (odds ratio 2)
  how often the model with the least estimated log loss is within 1 % of the least true one
Settings (`ROWS_PER_FUNCTION`, `MAX_FUNCTIONS`) were chosen on seeds from 100 on.
`--speed`: seconds for a hold-out of a million rows, and for full rankings of 20,000 x 20,000 pairs.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import hypergeom

import counterpoise as cp
from counterpoise.evaluation import metrics
from counterpoise.evaluation.holdout_weights import HoldoutWeights, exposure_features, weigh_holdout
from counterpoise.evaluation.weighted import Rank, WeightedEvaluation, calibration_slope, expected_in_lists, pair_auc

Floats = NDArray[np.float64]
KINDS = ("features", "popularity", "both", "preference", "mixed")
SIZE: dict[str, Any] = {"n_users": 1200, "n_items": 1000, "density": 0.1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {}),
    "mf": ("mf", {}),
    "mf, weak prior": ("mf", {"l2": 0.5}),
    "mf by logistic IPS": ("snips", {"weights": "logistic"}),
    "skb-ips": ("skb-ips", {}),
}
WAYS = ("naive", "logistic", "balanced", "balanced + probe", "true propensity")
METRICS = (
    "auc",
    "user_auc",
    "ndcg",
    "precision",
    "recall",
    "log_loss",
    "mse",
    "calibration_level",
    "calibration_slope",
)
K = 5


def truth(data: cp.SimulatedData, train: cp.FeedbackLog, model: Any) -> dict[str, float]:
    """The metrics of `WeightedEvaluation` over all pairs that are not in the training log."""
    n_users = train.shape[0]
    unseen = np.ones(train.shape, bool)
    unseen[train.users, train.items] = False
    users, items = np.nonzero(unseen)
    scores = model._probabilities(users.astype(np.int32), items.astype(np.int32)).astype(np.float64)
    labels = np.asarray(data.labels)[unseen]
    order = np.lexsort((-scores, users))
    sizes = unseen.sum(1)
    above = np.empty(len(users), np.int64)
    above[order] = np.arange(len(users)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    length, discounts = 4 * K, 1 / np.log2(2 + np.arange(K))
    rows = labels > 0
    rank = Rank(above[rows], np.zeros(rows.sum(), np.int64), sizes[users[rows]] - 1)
    gains, hits = (expected_in_lists(rank, values, length) for values in (discounts, np.ones(K)))
    positives = np.bincount(users, labels).astype(np.int64)
    share = sizes / sizes.sum()
    gain, hit = (share @ (length * np.bincount(users[rows], worth, n_users) / sizes) for worth in (gains, hits))
    chance = hypergeom.pmf(np.arange(length + 1)[None], sizes[:, None], positives[:, None], length)
    ideal = share @ chance @ np.r_[0, np.cumsum(discounts)][np.minimum(np.arange(length + 1), K)]
    ones = np.ones(len(users))
    return {
        "auc": pair_auc(labels, scores, ones, np.zeros(len(users), np.int64)).value,
        "user_auc": pair_auc(labels, scores, ones, users).value,
        "ndcg": gain / ideal,
        "precision": hit / K,
        "recall": hit / (share @ (length * positives / sizes)),
        "log_loss": float(metrics.log_losses(labels, scores).mean()),
        "mse": float(metrics.squared_errors(labels, scores).mean()),
        "calibration_level": float((labels - scores).mean()),
        "calibration_slope": calibration_slope(labels, scores, ones).value,
    }


def one_log(kind: str, seed: int) -> list[tuple[dict[str, float], dict[str, WeightedEvaluation]]]:
    """For each model (its true metrics, its estimates by each way)."""
    data = cp.simulate(seed=seed, selection=kind, **SIZE)  # type: ignore[arg-type]
    train, holdout, _ = cp.split(data.dataset.train, 0.2, seed=seed)
    chance = data.propensity[holdout.users, holdout.items]
    ways: dict[str, HoldoutWeights] = {
        "logistic": weigh_holdout(holdout, train, "logistic"),
        "balanced": weigh_holdout(holdout, train),
        "balanced + probe": weigh_holdout(holdout, train, probe=data.dataset.probe),
        "true propensity": weigh_holdout(holdout, train, 1 / chance - 0.8),  # (1 - 0.8 p) / p: of pairs not in `train`
    }
    found = []
    for name, settings in MODELS.values():
        model = cp.make(name, seed=seed, **settings).fit(train)
        found.append((truth(data, train, model), {way: _evaluate(model, holdout, w) for way, w in ways.items()}))
    return found


def _evaluate(model: Any, holdout: cp.FeedbackLog, weights: HoldoutWeights) -> WeightedEvaluation:
    found = cp.evaluate(model, holdout, K, weights=weights)
    assert isinstance(found, WeightedEvaluation)
    return found


def report(kind: str, logs: list[list[tuple[dict[str, float], dict[str, WeightedEvaluation]]]]) -> dict[str, Floats]:
    """Print the tables of one kind of selection; the mean absolute errors (metrics,) by way."""
    pairs = [pair for log in logs for pair in log]
    errors: dict[str, Floats] = {}
    for way in WAYS:
        values = [
            [(found["balanced"].naive[m] if way == "naive" else getattr(found[way], m)) - true[m] for m in METRICS]
            for true, found in pairs
        ]
        errors[way] = np.abs(values).mean(0)
    balanced = [(true, found["balanced"]) for true, found in pairs]
    within = [[found.intervals[m][0] <= true[m] <= found.intervals[m][1] for m in METRICS] for true, found in balanced]
    wide = [
        np.mean([found.sensitivity[m]["2"][0] <= true[m] <= found.sensitivity[m]["2"][1] for true, found in balanced])
        if m in balanced[0][1].sensitivity
        else np.nan
        for m in METRICS
    ]
    rows, size = balanced[0][1].n_rows, np.mean([found.effective_sample_size / found.n_rows for _, found in balanced])
    print(f"\n{kind}: {len(logs)} logs, {rows:,} rows held out, {size:.0%} effective")
    print("| mean absolute error | " + " | ".join(METRICS) + " |\n" + "| --- " * (len(METRICS) + 1) + "|")
    for way, means in errors.items():
        print(f"| {way} | " + " | ".join(f"{value:.4f}" for value in means) + " |")
    print("| 95 % interval covers | " + " | ".join(f"{value:.0%}" for value in np.mean(within, 0)) + " |")
    cells = ["" if np.isnan(value) else f"{value:.0%}" for value in wide]
    print("| sensitivity, odds ratio 2, covers | " + " | ".join(cells) + " |")
    print("a model within 1 % of the best is chosen: " + ", ".join(f"{way} {chosen(logs, way):.0%}" for way in WAYS))
    print(flush=True, end="")
    return errors


def chosen(logs: list[list[tuple[dict[str, float], dict[str, WeightedEvaluation]]]], way: str) -> float:
    """How often the model with the least estimated log loss has a true one within 1 % of the best."""
    good = []
    for log in logs:
        true = np.array([each["log_loss"] for each, _ in log])
        least = [found["balanced"].naive["log_loss"] if way == "naive" else found[way].log_loss for _, found in log]
        good.append(true[np.argmin(least)] <= 1.01 * true.min())
    return float(np.mean(good))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--users", type=int, default=SIZE["n_users"])
    parser.add_argument("--items", type=int, default=SIZE["n_items"])
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    SIZE.update(n_users=options.users, n_items=options.items)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", cp.ConvergenceWarning)
    errors, start = {}, time.perf_counter()
    for kind in options.kinds:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        errors[kind] = report(kind, [one_log(kind, seed) for seed in seeds])
    known = [errors[kind] for kind in ("features", "popularity") if kind in errors]
    if known:
        means = {way: np.mean([each[way] for each in known], 0) for way in WAYS}
        print("\nfeatures and popularity: error of balanced weights over that of others")
        print("| | " + " | ".join(METRICS) + " |\n" + "| --- " * (len(METRICS) + 1) + "|")
        for way in ("naive", "logistic", "true propensity"):
            print(f"| {way} | " + " | ".join(f"{r:.2f}" for r in means["balanced"] / means[way]) + " |")
    print(f"\n{time.perf_counter() - start:.0f} s")


def speed() -> None:
    """Seconds of weights and metrics of a million rows, and of full rankings of 20,000 x 20,000 pairs."""
    torch.set_num_threads(2)
    train, holdout = large_log(20_000, 20_000, 1_000_000)
    fitted = cp.make("mf", epochs=1).fit(train)
    before = peak_memory()
    equal = np.ones(len(holdout))
    _timed("full rankings, 20,000 x 20,000", lambda: cp.evaluate_ranking(fitted, holdout, weights=equal))
    print(f"memory beyond what was used before: {peak_memory() - before:.0f} MB")
    train, holdout = large_log(50_000, 5_000, 5_000_000)
    rng = np.random.default_rng(1)
    users, items = rng.standard_normal((50_000, 8)) / 2, rng.standard_normal((5_000, 8)) / 2

    def model(user: Any, item: Any) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.einsum("rd,rd->r", users[user], items[item]))))

    _timed("a model of being observed", lambda: exposure_features(train))
    weights = _timed("with it balanced weights, 50 functions", lambda: weigh_holdout(holdout, train, n_functions=50))
    _timed("all metrics, intervals, ranges", lambda: cp.evaluate(model, holdout, weights=weights, train=train))
    scores = model(holdout.users, holdout.items)
    _timed("the same without lists", lambda: cp.evaluate(scores, holdout, weights=weights, train=train))


def peak_memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large_log(n_users: int, n_items: int, rows: int) -> tuple[cp.FeedbackLog, cp.FeedbackLog]:
    """A log whose items differ in popularity, split at random: a fifth is held out."""
    rng = np.random.default_rng(0)
    popularity = rng.pareto(2, n_items) + 0.1
    items = rng.choice(n_items, 2 * rows, p=popularity / popularity.sum())
    pairs = rng.integers(n_users, size=2 * rows) * n_items + items
    pairs = rng.permutation(np.unique(pairs))[:rows]
    ids = {"user_ids": np.arange(n_users), "item_ids": np.arange(n_items)}
    labels = rng.integers(2, size=len(pairs))
    log = cp.FeedbackLog.from_arrays(pairs // n_items, pairs % n_items, labels, sample="biased", **ids)
    return cp.split(log, 0.2)[:2]


def _timed(what: str, call: Callable[[], Any]) -> Any:
    start, own = time.perf_counter(), time.process_time()
    result = call()
    wall, processor = time.perf_counter() - start, time.process_time() - own
    print(f"{what:38} {wall:6.1f} s ({processor:.1f} s of processor time)", flush=True)
    return result


if __name__ == "__main__":
    main()
