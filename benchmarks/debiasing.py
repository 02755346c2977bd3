"""Bias of every method on simulated logs, where the preference and the ideal loss of all pairs are known.

    python benchmarks/debiasing.py [--seeds 8] [--main-effects 1] [--strength 1] [--only ips skb-ips]
                                   [--set NAME=VALUE ...] [--markdown]

For every method, and some with the simulator's features or its true propensities:

- MSE: of the predicted preference over all pairs, x 1000; "- mf": the paired difference to `mf` on the same logs
- own risk: the method's estimate of its ideal loss, relative to that loss, minus 1. It is made on the training labels,
  so it is too low even if the weights are right
- weighted: the same for the weights alone, applied to expected errors instead of errors on the training labels
- ESS: the effective sample size of the weights as a share of the log
- AUC on the unbiased test, and seconds

Means over seeds, standard errors in brackets.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import counterpoise as cp
from counterpoise.runs import parse_settings

Row = tuple[str, dict[str, Any]]  # a method and its settings
Results = dict[str, dict[str, list[float]]]  # by row and column, a value for each log
COLUMNS = ("MSE", "MSE - mf", "own risk", "weighted", "ESS", "AUC", "seconds")


def rows(simulated: cp.SimulatedData) -> dict[str, Row]:
    """Every row of the table by its name, in the order of the methods."""
    found: dict[str, Row] = {}
    for name in cp.METHODS:
        found[name] = name, {}
        if name.startswith(("rkb", "wkb", "akb", "skb", "mb")):
            found[f"{name}, side features"] = name, {"features": "side"}
        if name == "ips":
            found["ips, logistic on side features"] = name, {"weights": cp.Logistic(("side",))}
            found["ips, logistic on activity"] = name, {"weights": cp.Logistic(("activity",))}
            found["ips, propensity model"] = name, {"weights": "propensity"}
        if name in ("ips", "dr-jl"):
            found[f"{name}, true propensities"] = name, {"weights": cp.KnownPropensity(simulated.propensity, clip=0)}
    return found


def measure(simulated: cp.SimulatedData, row: Row, seed: int, settings: dict[str, Any]) -> dict[str, float]:
    """Fit on the log and compare with the truth."""
    data, start = simulated.dataset, time.perf_counter()
    own = {} if row[0] == "mf" else settings  # mf is the baseline
    model = cp.make(row[0], seed=seed, **own | row[1]).fit(data.train, probe=data.probe)
    assert data.test is not None
    seconds = time.perf_counter() - start
    return {
        "MSE": 1000 * squared_error(simulated, model),
        "own risk": 100 * (model.facts_["risk"] / simulated.ideal_risk(model) - 1),
        "weighted": 100 * simulated.selection_bias(model, model.ratio_),
        "ESS": 100 * model.facts_["weights"]["effective_sample_size"] / len(data.train),
        "AUC": cp.evaluate(model, data.test, bootstrap=0).auc,
        "seconds": seconds,
    }


def predictions(simulated: cp.SimulatedData, model: cp.DebiasedRecommender) -> NDArray[np.float64]:
    """The predictions for all pairs. (users, items)"""
    users, items = (codes.ravel() for codes in np.indices(simulated.preference.shape))
    return model.predict(users, items).astype(np.float64).reshape(simulated.preference.shape)


def squared_error(simulated: cp.SimulatedData, model: cp.DebiasedRecommender) -> float:
    """Mean over all pairs of (predicted - true preference)^2."""
    return float(np.mean((predictions(simulated, model) - np.asarray(simulated.preference)) ** 2))


def table(methods: list[str], simulations: dict[int, cp.SimulatedData], settings: dict[str, Any]) -> Results:
    """Measure every row on every simulated log."""
    results: Results = {}
    for seed, simulated in simulations.items():
        start = time.perf_counter()
        for name, row in rows(simulated).items():
            if row[0] in methods:
                for column, value in measure(simulated, row, seed, settings).items():
                    results.setdefault(name, {}).setdefault(column, []).append(value)
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for values in results.values():
        values["MSE - mf"] = list(np.subtract(values["MSE"], results["mf"]["MSE"]))
    return results


def print_table(results: Results, markdown: bool) -> None:
    """One row a method."""
    lines = [["method", *COLUMNS]]
    for name, values in results.items():
        lines.append([name, *(cell(column, values[column]) for column in COLUMNS)])
    if markdown:
        lines.insert(1, ["---"] * len(lines[0]))
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)))


def cell(column: str, values: list[float]) -> str:
    """Mean and standard error."""
    mean, error = np.mean(values), np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    written = {
        "MSE": f"{mean:.1f} ({error:.1f})",
        "MSE - mf": f"{mean:+.1f} ({error:.1f})",
        "own risk": f"{mean:+.1f} % ({error:.1f})",
        "weighted": f"{mean:+.1f} % ({error:.1f})",
        "ESS": f"{mean:.0f} %",
        "AUC": f"{mean:.3f} ({error:.3f})",
        "seconds": f"{mean:.1f}",
    }
    return written[column]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--main-effects", type=float, default=1.0)
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", default=list(cp.METHODS), help="methods; mf is always among them")
    parser.add_argument("--set", nargs="*", default=[], help="name=value, for all methods but mf: backbone__l2=4.0")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", cp.ConvergenceWarning)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    simulations = {
        seed: cp.simulate(seed=seed, main_effects=options.main_effects, strength=options.strength) for seed in seeds
    }
    print_table(table(["mf", *options.only], simulations, parse_settings(options.set)), options.markdown)
    constant = [1000 * np.var(np.asarray(simulated.preference)) for simulated in simulations.values()]
    print(f"\nMSE of a constant, the mean preference: {cell('MSE', constant)}")


if __name__ == "__main__":
    main()
