"""How far are estimates from a biased hold-out from the truth? Simulated logs, where every label is known.

    python benchmarks/estimates.py [--seeds 16] [--first-seed 0] [--kinds features popularity ...]
                                   [--users 1200] [--items 1000] [--jobs 2]
    python benchmarks/estimates.py --speed

A log is simulated by each kind of selection, a fifth of its rows is held out at random, and five models are fitted to
the rest. Their metrics over all pairs that were not trained on are known; they are estimated from the hold-out with
equal weights (naive), by logistic IPS, by balanced weights, by these with the label balanced to a probe, by the true
propensities, and by an oracle that is doubly robust with the true propensities and the true probabilities of labels:
about the least error that a hold-out of this size leaves. Printed:
  the mean absolute error of each estimate, over models and seeds
  the share of 95 % intervals of the balanced estimates that hold the truth, and of sensitivity intervals (odds ratio 2)
  how often the model with the least estimated log loss is within 1 % of the least true one
Settings (`ROWS_PER_FUNCTION`, `MAX_FUNCTIONS`) were chosen on seeds from 100 on.
`--speed`: seconds for a hold-out of a million rows, and for full rankings of 20,000 x 20,000 pairs.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import hypergeom

import counterpoise as cp
from counterpoise.evaluation import metrics
from counterpoise.evaluation.holdout_weights import HoldoutWeights, exposure_features, weigh_holdout
from counterpoise.evaluation.weighted import (
    Lists,
    Rank,
    ScoreOrder,
    WeightedEvaluation,
    calibration_slope,
)

Floats = NDArray[np.float64]
KINDS = ("features", "popularity", "both", "preference", "mixed")
DENSITY = 0.1
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {}),
    "mf": ("mf", {}),
    "mf, weak prior": ("mf", {"l2": 0.5}),
    "mf by logistic IPS": ("snips", {"weights": "logistic"}),
    "skb-ips": ("skb-ips", {}),
}
WAYS = ("naive", "logistic", "balanced", "balanced + probe", "true propensity", "oracle")
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


class Population:
    """The pairs that are not in a training log: what estimates are of."""

    def __init__(self, data: cp.SimulatedData, train: cp.FeedbackLog, holdout: cp.FeedbackLog) -> None:
        unseen = np.ones(train.shape, bool)
        unseen[train.users, train.items] = False
        place = np.cumsum(unseen).reshape(train.shape) - 1
        self.users, self.items = np.nonzero(unseen)
        self.sizes = unseen.sum(1)
        self.labels = np.asarray(data.labels)[unseen].astype(np.float64)
        self.chance = np.asarray(data.preference)[unseen].astype(np.float64)  # of a positive label
        self.rows, self.holdout = place[holdout.users, holdout.items], holdout


class ScoredPopulation:
    """The same with the scores of a model, for metrics of any shares of positives."""

    def __init__(self, pairs: Population, model: Any) -> None:
        users, self.pairs = pairs.users, pairs
        self.scores = model._probabilities(users.astype(np.int32), pairs.items.astype(np.int32)).astype(np.float64)
        self.order, self.within_users = ScoreOrder.of(self.scores), ScoreOrder.of(self.scores, users)
        descending = np.lexsort((-self.scores, users))
        above = np.empty(len(users), np.int64)
        above[descending] = np.arange(len(users)) - np.repeat(np.cumsum(pairs.sizes) - pairs.sizes, pairs.sizes)
        self.lists = Lists.of(Rank(above, np.zeros(len(users), np.int64), pairs.sizes[users] - 1), K)

    def metrics(self, positive: Floats) -> dict[str, float]:
        """All metrics where so much of each pair is positive, of 1 / N; doubly robust shares may be below 0."""
        pairs, lists, scores = self.pairs, self.lists, self.scores
        negative, ones = 1 / len(positive) - positive, np.ones(len(positive))
        of_user, squares = (np.bincount(pairs.users, part) for part in (positive, positive**2))
        two = float((of_user**2 - squares).sum() / (pairs.sizes * (pairs.sizes - 1.0)).sum() * len(positive) ** 2)
        found = {
            "auc": measure_auc(positive, negative, self.order),
            "user_auc": measure_auc(positive, negative, self.within_users),
            "ndcg": float(positive @ lists.gains / lists.gains.mean()) / lists.ideal(float(positive.sum()), two),
            "precision": float(positive @ lists.hits / lists.hits.mean()),
            "recall": float(positive @ lists.hits / positive.sum()),
        }
        for name, error in (("log_loss", metrics.log_losses), ("mse", metrics.squared_errors)):
            found[name] = float(positive @ error(ones, scores) + negative @ error(0 * ones, scores))
        return found | {"calibration_level": float(positive.sum() - scores.mean())}

    def truth(self) -> dict[str, float]:
        """The metrics of `WeightedEvaluation` over all pairs."""
        pairs, length = self.pairs, self.lists.length
        found = self.metrics(pairs.labels / len(pairs.labels))
        positives = np.bincount(pairs.users, pairs.labels).astype(np.int64)
        chance = hypergeom.pmf(np.arange(length + 1)[None], pairs.sizes[:, None], positives[:, None], length)
        gains = np.r_[0, np.cumsum(self.lists.discounts)][np.minimum(np.arange(length + 1), K)]
        ideal = float(pairs.sizes / pairs.sizes.sum() @ chance @ gains)
        gain = float(pairs.labels @ self.lists.gains / self.lists.gains.sum() * self.lists.discounts.sum())
        slope = calibration_slope(pairs.labels, self.scores, np.ones(len(self.scores))).value
        return found | {"ndcg": gain / ideal, "calibration_slope": slope}

    def oracle(self, weights: Floats) -> dict[str, float]:
        """Doubly robust: the true chance m of a positive label on every pair, and weight x (label - m) on each row."""
        pairs = self.pairs
        positive = pairs.chance / len(pairs.chance)
        positive[pairs.rows] += weights * (pairs.holdout.labels - pairs.chance[pairs.rows])
        return self.metrics(positive) | {"calibration_slope": np.nan}


def measure_auc(positive: Floats, negative: Floats, sort: ScoreOrder) -> float:
    """`pair_auc` where every pair is partly positive and partly negative; it is not compared with itself."""
    order, starts, tie, first = sort
    p, q = positive[order], negative[order]
    sums = np.r_[0, np.cumsum(q)]
    below = ((sums[starts] + sums[np.r_[starts[1:], len(q)]]) / 2)[tie]
    below -= np.repeat(sums[first], np.diff(first, append=len(q))) + q / 2
    return float(p @ below / (np.add.reduceat(p, first) @ np.add.reduceat(q, first) - p @ q))


class Found(NamedTuple):
    """What is known of one model: its true metrics, and its estimates by each way."""

    truth: dict[str, float]
    estimates: dict[str, dict[str, float]]
    balanced: WeightedEvaluation


def one_log(kind: Any, size: dict[str, Any], seed: int) -> list[Found]:
    """The estimates of each model, by each way to weight the hold-out of one log."""
    data = cp.simulate(seed=seed, selection=kind, **size)
    train, holdout, _ = cp.split(data.dataset.train, 0.2, seed=seed)
    chance = data.propensity[holdout.users, holdout.items]
    ways: dict[str, HoldoutWeights] = {
        "logistic": weigh_holdout(holdout, train, "logistic"),
        "balanced": weigh_holdout(holdout, train),
        "balanced + probe": weigh_holdout(holdout, train, probe=data.dataset.probe),
        "true propensity": weigh_holdout(holdout, train, 1 / chance - 0.8),  # (1 - 0.8 p) / p: of pairs not in `train`
    }
    found, pairs = [], Population(data, train, holdout)
    for name, settings in MODELS.values():
        model = cp.make(name, seed=seed, **settings).fit(train)
        scored = ScoredPopulation(pairs, model)
        evaluations = {way: _evaluate(model, holdout, weights) for way, weights in ways.items()}
        balanced = evaluations["balanced"]
        estimates = {way: {metric: getattr(each, metric) for metric in METRICS} for way, each in evaluations.items()}
        estimates |= {"naive": balanced.naive, "oracle": scored.oracle(ways["true propensity"].values)}
        found.append(Found(scored.truth(), estimates, replace(balanced, influences=None)))
    return found


def _evaluate(model: Any, holdout: cp.FeedbackLog, weights: HoldoutWeights) -> WeightedEvaluation:
    found = cp.evaluate(model, holdout, K, weights=weights)
    assert isinstance(found, WeightedEvaluation)
    return found


def report(kind: str, logs: list[list[Found]]) -> dict[str, Floats]:
    """Print the tables of one kind of selection; the mean absolute errors (metrics,) by way."""
    models = [found for log in logs for found in log]
    errors: dict[str, Floats] = {}
    for way in WAYS:
        values = [[found.estimates[way][m] - found.truth[m] for m in METRICS] for found in models]
        errors[way] = np.abs(values).mean(0)

    def covered(ranges: Callable[[WeightedEvaluation, str], tuple[float, float]]) -> str:
        cells = []
        for m in METRICS:
            ends = [(found.truth[m], *ranges(found.balanced, m)) for found in models]
            share = np.mean([low <= true <= high for true, low, high in ends])
            cells.append("" if np.isnan(ends).any() else f"{share:.0%}")
        return " | ".join(cells)

    balanced = [found.balanced for found in models]
    rows, size = balanced[0].n_rows, np.mean([found.effective_sample_size / found.n_rows for found in balanced])
    print(f"\n{kind}: {len(logs)} logs, {rows:,} rows held out, {size:.0%} effective")
    print("| mean absolute error | " + " | ".join(METRICS) + " |\n" + "| --- " * (len(METRICS) + 1) + "|")
    for way, means in errors.items():
        print(f"| {way} | " + " | ".join("" if np.isnan(value) else f"{value:.4f}" for value in means) + " |")
    print(f"| 95 % interval covers | {covered(lambda found, m: found.intervals[m])} |")
    wide = covered(lambda found, m: found.sensitivity.get(m, {}).get("2", (np.nan, np.nan)))
    print(f"| sensitivity, odds ratio 2, covers | {wide} |")
    print("a model within 1 % of the best is chosen: " + ", ".join(f"{way} {chosen(logs, way):.0%}" for way in WAYS))
    print(flush=True, end="")
    return errors


def chosen(logs: list[list[Found]], way: str) -> float:
    """How often the model with the least estimated log loss has a true one within 1 % of the best."""
    good = []
    for log in logs:
        true = np.array([found.truth["log_loss"] for found in log])
        good.append(true[np.argmin([found.estimates[way]["log_loss"] for found in log])] <= 1.01 * true.min())
    return float(np.mean(good))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--users", type=int, default=1200)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    size = {"n_users": options.users, "n_items": options.items, "density": DENSITY}
    errors, start = {}, time.perf_counter()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    context = get_context("spawn")  # torch in this process must not be forked
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_quiet) as pool:
        for kind in options.kinds:
            errors[kind] = report(kind, list(pool.map(partial(one_log, kind, size), seeds)))
    known = [errors[kind] for kind in ("features", "popularity") if kind in errors]
    if known:
        means = {way: np.mean([each[way] for each in known], 0) for way in WAYS}
        print("\nfeatures and popularity: error of balanced weights over that of others")
        print("| | " + " | ".join(METRICS) + " |\n" + "| --- " * (len(METRICS) + 1) + "|")
        for way in ("naive", "logistic", "true propensity", "oracle"):
            print(f"| {way} | " + " | ".join(f"{r:.2f}" for r in means["balanced"] / means[way]) + " |")
        cells = " | ".join(f"{r:.2f}" for r in means["oracle"] / means["logistic"])
        print(f"| error of the oracle over that of logistic IPS | {cells} |")
    print(f"\n{time.perf_counter() - start:.0f} s")


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", cp.ConvergenceWarning)


def speed() -> None:
    """Seconds of weights and metrics of a million rows, and of full rankings of 20,000 x 20,000 pairs."""
    torch.set_num_threads(2)
    train, holdout = large_log(20_000, 20_000, 1_000_000)
    fitted = cp.make("mf", epochs=1).fit(train)
    equal, before = np.ones(len(holdout)), peak_memory(reset=True)
    _timed("full rankings, 20,000 x 20,000", lambda: cp.evaluate_ranking(fitted, holdout, weights=equal))
    print(f"most memory beyond that of logs and model: {peak_memory() - before:.0f} MB")
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


def peak_memory(reset: bool = False) -> float:
    """The most that this process has held, in MB, since it was last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


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
