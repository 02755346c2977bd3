"""Labels predicted with and without the ordinal loss: inside Coat's log, and on simulated logs of growing density.

    python benchmarks/ordinal.py [--repeats 3] [--logs 2]

Inside Coat's log, found through COUNTERPOISE_DATA and left out if it is not found: four folds, `repeats` times; log
loss after fitting an intercept, and AUC of the held-out labels, with and without the ordinal loss, and the paired
differences with their standard errors. No test is used. The simulated logs are those of tests/graded_world.py, main
effects of 300 users x 200 items: log loss on all pairs that were not observed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit, logit

import counterpoise as cp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from graded_world import graded

FOLDS = 4
METHODS = ("mf", "counterpoise")
LOSSES = {False: "none", True: cp.OrdinalLoss()}


def held_out(method: str, log: cp.FeedbackLog, ordinal: bool, repeats: int) -> np.ndarray:
    """(log loss with a fitted intercept, AUC) of the labels of every fold."""
    found = []
    for repeat in range(repeats):
        fold = np.random.default_rng(repeat).integers(0, FOLDS, len(log))
        for number in range(FOLDS):
            train, test = (log.take(np.flatnonzero(rows)) for rows in (fold != number, fold == number))
            predicted = cp.make(method, seed=repeat, ordinal=LOSSES[ordinal]).fit(train).predict_log(test)
            score = cp.evaluate(predicted, test, bootstrap=0)
            found.append((recentred_loss(logit(predicted.astype(np.float64)), test.labels), score.auc))
    return np.array(found)


def recentred_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """The log loss after adding the intercept with which predictions average to the labels."""
    intercept = brentq(lambda shift: expit(logits + shift).mean() - labels.mean(), -20, 20)
    chance = expit(logits + intercept)
    return float(-np.where(labels > 0, np.log(chance), np.log1p(-chance)).mean())


def inside_coat(repeats: int) -> None:
    """Two rows a method."""
    try:
        log = cp.load_dataset("coat").train
    except cp.DataError as error:
        print(error)
        return
    print("| inside Coat's log | log loss | AUC | difference |\n| --- | --- | --- | --- |")
    for method in METHODS:
        baseline, ordinal = (held_out(method, log, on, repeats) for on in (False, True))
        change = ordinal - baseline
        errors = change.std(0, ddof=1) / np.sqrt(len(change))
        print(f"| `{method}` | {baseline[:, 0].mean():.4f} | {baseline[:, 1].mean():.4f} | |")
        pairs = zip(change.mean(0), errors, strict=True)
        differences = ", ".join(f"{mean:+.4f} ({error:.4f})" for mean, error in pairs)
        print(f"| `{method}`, ordinal | {ordinal[:, 0].mean():.4f} | {ordinal[:, 1].mean():.4f} | {differences} |")


def denser(logs: int) -> None:
    """Log loss by the observed share of pairs."""
    print("\n| observed | labels only | ordinal |\n| --- | --- | --- |", flush=True)
    for density in (0.1, 0.2, 0.4):
        losses = []
        for seed in range(logs):
            data = graded(seed, n_users=300, n_items=200, density=density)
            models = [cp.make("counterpoise", seed=seed, ordinal=loss).fit(data.train) for loss in LOSSES.values()]
            losses.append([cp.evaluate(model, data.test, bootstrap=0).log_loss for model in models])
        print(f"| {density:.0%} | {' | '.join(f'{loss:.4f}' for loss in np.mean(losses, 0))} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--logs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    inside_coat(options.repeats)
    denser(options.logs)


if __name__ == "__main__":
    main()
