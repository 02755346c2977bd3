"""What grades bring to the prediction of labels: inside Coat's log, and on denser and denser logs of a known world.

    python benchmarks/grades.py [--repeats 3] [--worlds 2]

Inside Coat's log, found through COUNTERPOISE_DATA and left out where it is not there: rows are dealt into four folds,
`repeats` times; log loss, with a free level, and AUC of the labels that were held out, with and without grades, and the
paired differences with their standard errors. No test is looked at. The worlds are those of tests/graded_world.py, main
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


def held_out(method: str, log: cp.FeedbackLog, grades: bool, repeats: int) -> np.ndarray:
    """(log loss with a free level, AUC) of the labels of every fold."""
    found = []
    for repeat in range(repeats):
        fold = np.random.default_rng(repeat).integers(0, FOLDS, len(log))
        for number in range(FOLDS):
            train, test = (log.take(np.flatnonzero(rows)) for rows in (fold != number, fold == number))
            predicted = cp.make(method, seed=repeat, grades=grades).fit(train).predict_log(test)
            score = cp.evaluate(predicted, test, bootstrap=0)
            found.append((free_level_loss(logit(predicted.astype(np.float64)), test.labels), score.auc))
    return np.array(found)


def free_level_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """The log loss after a shift with which predictions average to the labels."""
    level = brentq(lambda shift: expit(logits + shift).mean() - labels.mean(), -20, 20)
    chance = expit(logits + level)
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
        plain, graded_too = (held_out(method, log, grades, repeats) for grades in (False, True))
        change, error_of = graded_too - plain, (graded_too - plain).std(0, ddof=1) / np.sqrt(len(plain))
        print(f"| `{method}` | {plain[:, 0].mean():.4f} | {plain[:, 1].mean():.4f} | |")
        pairs = zip(change.mean(0), error_of, strict=True)
        words = ", ".join(f"{mean:+.4f} ({error:.4f})" for mean, error in pairs)
        print(f"| `{method}`, grades | {graded_too[:, 0].mean():.4f} | {graded_too[:, 1].mean():.4f} | {words} |")


def denser(worlds: int) -> None:
    """Log loss by the share that is observed."""
    print("\n| observed | labels alone | with grades |\n| --- | --- | --- |", flush=True)
    for density in (0.1, 0.2, 0.4):
        losses = []
        for seed in range(worlds):
            data = graded(seed, n_users=300, n_items=200, density=density)
            models = [cp.make("counterpoise", seed=seed, grades=grades).fit(data.train) for grades in (False, True)]
            losses.append([cp.evaluate(model, data.test, bootstrap=0).log_loss for model in models])
        print(f"| {density:.0%} | {' | '.join(f'{loss:.4f}' for loss in np.mean(losses, 0))} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worlds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    inside_coat(options.repeats)
    denser(options.worlds)


if __name__ == "__main__":
    main()
