"""Time and quality of fits: all methods on Coat, logs of other shapes, and logs of growing size.

    python benchmarks/fit.py [--seeds 10] [--methods mf skb-dr ...] [--kernels gaussian exponential]
                             [--many 10] [--graphs] [--shapes music-like] [--epochs 6] [--rows 1e4 1e5 ...]
                             [--device cpu] [--threads 1] [--algorithm-1]

Coat is found through COUNTERPOISE_DATA and left out if it is not found. Limits on one thread: matrix
factorisation under 1 s with AUC at least 0.765 in the honest protocol; every other method under 2 s, ASIPS and MR under
5 s; `--algorithm-1` (the paper's gradient steps for the weights: batches of 128, 40 epochs) under 8 s.

`--many`: this many seeds on Coat by `fit_many`, beside one. `--graphs`: one fit with and without CUDA graphs.
`--epochs`: of the fits to other shapes; 0 for the methods' own. `--rows`: two epochs on random logs of this many rows
with a user for every 50 and an item for every 500, so that |U| x |I| grows with the square of the rows; each in a
process of its own, to measure its memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch

import counterpoise as cp
from counterpoise.training.events import by_epoch
from counterpoise.training.loop import Batches

SHAPES = {"coat-like": (290, 300, 0.08), "music-like": (15_400, 1_000, 0.0202)}
ALGORITHM_1 = {"solver": "gradient", "batch_size": 128, "epochs": 40, "n": 3}
QUALITY = ("method", "seconds", "AUC", "NDCG@5", "F1@5", "effective sample")
COST = ("method", "log", "seconds a fit", "an epoch", "more memory", "passes over the log")


def coat(name: str, settings: dict[str, Any], seeds: int) -> list[str]:
    """Seconds and quality over seeds, which draw probe and start: one row of the table."""
    seconds, results = [], []
    for seed in range(seeds):
        data = cp.load_dataset("coat", seed=seed)
        started = time.perf_counter()
        model = cp.make(name, seed=seed, **settings).fit(data.train, probe=data.probe)
        seconds.append(time.perf_counter() - started)
        found = cp.evaluate(model, data.test, bootstrap=0)
        share = model.facts_["weights"]["effective_sample_size"] / len(data.train)
        results.append([found.auc, found.ndcg, found.f1, share])
    mean, spread = np.mean(results, axis=0), np.std(results, axis=0)
    cells = [f"{value:.4f} ({deviation:.4f})" for value, deviation in zip(mean[:3], spread[:3], strict=True)]
    kernel = settings.get("kernel", "")
    return [f"{name} {kernel}".strip(), f"{np.median(seconds):.2f}", *cells, f"{mean[3]:.0%}"]


def graphs(name: str, device: str) -> str:
    """The time of a fit with its steps replayed as a CUDA graph, and without, each the best of three."""
    data = cp.load_dataset("coat", seed=0)

    def best(graph: bool) -> float:
        model = cp.make(name, device=device, graph=graph)
        return min(_seconds(lambda: model.fit(data.train, probe=data.probe)) for _ in range(3))

    return f"{name} on {device}: {best(True):.3f} s, without graphs {best(False):.3f} s"


def many(name: str, count: int, device: str) -> str:
    """The time of many seeds at once beside that of one, each the best of three."""
    data = [cp.load_dataset("coat", seed=seed) for seed in range(count)]
    probes, log, model = [dataset.probe for dataset in data], data[0].train, cp.make(name, device=device)
    one = min(_seconds(lambda: model.fit(log, probe=probes[0])) for _ in range(3))
    together = min(_seconds(lambda: cp.fit_many(model, log, probes, seeds=range(count))) for _ in range(3))
    threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
    times = f"one seed {one:.2f} s, {count} seeds {together:.2f} s: {together / one:.1f} times one"
    return f"coat, {name}, {device}{threads}: {times}"


def shape(shape_name: str, name: str, device: str, epochs: int) -> list[list[str]]:
    """A fit to a simulated log of a known shape, as rows of the table.

    For adaptive balancing twice: with weights as they are, and with weights that are solved again in every epoch.
    """
    n_users, n_items, density = SHAPES[shape_name]
    data, rows = cp.simulate(n_users, n_items, density).dataset, []
    for own in ({}, {"refresh": 1}) if name.startswith("akb") else ({},):
        settings = {"device": device, **own, **({"epochs": epochs} if epochs else {})}
        title = f"{name}, weights solved in every epoch" if own else name
        rows.append([title, f"{shape_name}, {device}", *cost(name, settings, data.train, data.probe)])
    return rows


def growing(name: str, rows: int, device: str, threads: int) -> list[str]:
    """Two epochs on a random log, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_growing, (name, rows, device, threads))


def _growing(name: str, rows: int, device: str, threads: int) -> list[str]:
    torch.set_num_threads(threads)
    rng, shape = np.random.default_rng(0), (max(20, rows // 50), max(20, rows // 500))
    pairs = np.unique(rng.integers(0, shape[0] * shape[1], rows))
    labels = (rng.random(len(pairs)) < 0.3).astype(np.float32)
    ids = {"user_ids": np.arange(shape[0]), "item_ids": np.arange(shape[1])}
    log = cp.FeedbackLog.from_arrays(pairs // shape[1], pairs % shape[1], labels, **ids)
    title = f"{len(log):.1e} rows, {shape[0]:,} x {shape[1]:,}, {device}"
    del pairs, labels
    return [name, title, *cost(name, {"device": device, "epochs": 2}, log, log.take(np.arange(1000)))]


def cost(name: str, settings: dict[str, Any], log: cp.FeedbackLog, probe: cp.FeedbackLog | None) -> list[str]:
    """Seconds, seconds an epoch, additional memory, and passes over the log."""
    ends: list[float] = []
    before, started = _memory(settings["device"]), time.perf_counter()
    with mock.patch.object(Batches, "epoch", autospec=True, side_effect=Batches.epoch) as epochs:
        cp.make(name, **settings).fit(log, probe, callback=by_epoch(lambda *_: ends.append(time.perf_counter())))
    seconds, epoch = time.perf_counter() - started, float(np.median(np.diff(ends)))
    memory = _memory(settings["device"]) - before
    return [f"{seconds:.2f} s", f"{epoch:.3f} s", f"{memory:.2f} GB", f"{epochs.call_count}"]


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _memory(device: str) -> float:
    """The most memory that was in use so far, in GB: of the device, or of this process."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def _print_head(cells: tuple[str, ...]) -> None:
    _print_row(list(cells))
    print("| --- " * len(cells) + "|")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", default=["mf"])
    parser.add_argument("--kernels", nargs="*", default=["gaussian"])
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", nargs="*", type=float, default=[])
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
            _print_head(QUALITY)
        for name in names if arguments.seeds else ():
            for kernel in arguments.kernels if name[1:3] == "kb" else [None]:
                settings = common | ({} if kernel is None else {"kernel": kernel})
                _print_row(coat(name, settings, arguments.seeds))
        print(f"{time.perf_counter() - started:.0f} s in all")
        for name in names if arguments.graphs else ():
            print(graphs(name, arguments.device), flush=True)
        for name in names if arguments.many else ():
            print(many(name, arguments.many, arguments.device), flush=True)
    except cp.DataError as error:
        print(f"coat left out: {error}")
    if arguments.shapes or arguments.rows:
        _print_head(COST)
    for name in names:
        for shape_name in arguments.shapes:
            for row in shape(shape_name, name, arguments.device, arguments.epochs):
                _print_row(row)
        for rows in map(int, arguments.rows):
            _print_row(growing(name, rows, arguments.device, arguments.threads))


if __name__ == "__main__":
    main()
