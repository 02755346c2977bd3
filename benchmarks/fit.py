"""How long does a fit take, and how good is it? All methods on Coat, and epochs on logs of other shapes.

    python benchmarks/fit.py [--seeds 10] [--methods mf skb-dr ...] [--kernels gaussian exponential]
                             [--shapes music-like] [--device cpu] [--threads 1] [--algorithm-1]

Coat is found through COUNTERPOISE_DATA and left out where it is not there. Limits on one thread: plain matrix
factorisation under 1 s with AUC at least 0.765 in the honest protocol; every other method under 2 s, ASIPS and MR under
5 s; `--algorithm-1` (the paper's gradient steps for the weights: batches of 128, 40 epochs) under 8 s.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np
import torch

import counterpoise as cp

SHAPES = {"coat-like": (290, 300, 0.08), "music-like": (15_400, 1_000, 0.0202)}
ALGORITHM_1 = {"solver": "gradient", "batch_size": 128, "epochs": 40, "n": 3}
HEADER = ("method", "seconds", "AUC", "NDCG@5 skip", "NDCG@5 one", "F1@5 one", "effective sample")


def coat(name: str, settings: dict[str, Any], seeds: int) -> list[str]:
    """Seconds and quality over seeds that vary probe and start together: one row of the table."""
    seconds, results = [], []
    for seed in range(seeds):
        data = cp.load_dataset("coat", seed=seed)
        started = time.perf_counter()
        model = cp.make(name, seed=seed, **settings).fit(data.train, probe=data.probe)
        seconds.append(time.perf_counter() - started)
        rules = {rule: cp.evaluate(model, data.test, empty_users=rule, bootstrap=0) for rule in ("skip", "one")}
        share = model.facts_["weights"]["effective_sample_size"] / len(data.train)
        results.append([rules["skip"].auc, rules["skip"].ndcg, rules["one"].ndcg, rules["one"].f1, share])
    mean, spread = np.mean(results, axis=0), np.std(results, axis=0)
    cells = [f"{value:.4f} ({deviation:.4f})" for value, deviation in zip(mean[:4], spread[:4], strict=True)]
    kernel = settings.get("kernel", "")
    return [f"{name} {kernel}".strip(), f"{np.median(seconds):.2f}", *cells, f"{mean[4]:.0%}"]


def shape(shape_name: str, name: str, device: str) -> None:
    """Seconds an epoch and of set-up, and the memory, on a simulated log of a known shape.

    For adaptive balancing twice: with weights as they are, and with weights that are solved anew in every epoch.
    """
    n_users, n_items, density = SHAPES[shape_name]
    data = cp.simulate(n_users, n_items, density).dataset
    for settings in ({}, {"refresh": 1}) if name.startswith("akb") else ({},):
        ends: list[float] = []
        before, started = _memory(device), time.perf_counter()
        model = cp.make(name, epochs=6, device=device, **settings)
        model.fit(data.train, data.probe, progress=lambda *_, ends=ends: ends.append(time.perf_counter()))
        epoch = float(np.median(np.diff(ends)))
        words = "weights solved in every epoch, " if settings else ""
        print(
            f"{shape_name}, {name}, {device}, {len(data.train):,} rows, {words}{epoch:.3f} s an epoch, "
            f"{max(0.0, ends[0] - started - epoch):.1f} s before, {_memory(device) - before:.2f} GB more than before",
            flush=True,
        )


def _memory(device: str) -> float:
    """The most memory that was in use so far, in GB: of the device, or of this process."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=["mf"])
    parser.add_argument("--kernels", nargs="*", default=["gaussian"])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--algorithm-1", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = list(cp.METHODS) if arguments.methods == ["all"] else arguments.methods
    common = {"device": arguments.device, **(ALGORITHM_1 if arguments.algorithm_1 else {})}
    try:
        started = time.perf_counter()
        if arguments.seeds:
            print(f"coat, honest protocol, {arguments.seeds} seeds (standard deviation over seeds):")
            print("| " + " | ".join(HEADER) + " |\n" + "| --- " * len(HEADER) + "|")
        for name in names if arguments.seeds else ():
            for kernel in arguments.kernels if name[1:3] == "kb" else [None]:
                settings = common | ({} if kernel is None else {"kernel": kernel})
                print("| " + " | ".join(coat(name, settings, arguments.seeds)) + " |", flush=True)
        print(f"{time.perf_counter() - started:.0f} s in all")
    except cp.DataError as error:
        print(f"coat left out: {error}")
    for shape_name in arguments.shapes:
        for name in names:
            shape(shape_name, name, arguments.device)


if __name__ == "__main__":
    main()
