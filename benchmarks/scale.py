"""Balancing past memory: seconds, passes and peak memory from 1e6 to 1e8 simulated pairs, by threads, Ray or a GPU.

    python benchmarks/scale.py --rows 1e6 1e7 1e8              the curve, and its exponent
    python benchmarks/scale.py --rows 1e7 --engine ray         the same on two workers of a local Ray
    python benchmarks/scale.py --rows 1e8 --device cuda        shards streamed through one GPU
    python benchmarks/scale.py --rows 1e7 --ingest             the same log as a folder of Parquet files, made shards
    python benchmarks/scale.py --rows 1e7 --fit [--engine ray] plain MF trained on the log: seconds an epoch

1 million users x 100,000 items with features of 16 dimensions; J = 32 Gaussian kernels at random pairs of D (or, with
--functions moments, the 32 means); balanced to a duality gap of 1e-4. The log is made by shards and kept in --folder.
Needs numpy, scipy and torch only (and Ray where that is asked for).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

if find_spec("threadpoolctl") is None:  # a machine with nothing but numpy, scipy and torch
    no_limits = SimpleNamespace(limit=lambda **_: nullcontext())
    sys.modules["threadpoolctl"] = SimpleNamespace(ThreadpoolController=lambda: no_limits)  # type: ignore[assignment]

from counterpoise.balance.functions import KernelFunctions, Moments
from counterpoise.balance.population import Pairs
from counterpoise.out_of_core.balancing import balance_shards
from counterpoise.out_of_core.engines import Engine, make_engine
from counterpoise.out_of_core.shards import MANIFEST, SHARD_ROWS, Shards, ShardWriter
from counterpoise.training.events import by_epoch

DIMENSIONS = 16


def tables(n_users: int, n_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal features of users and items."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_users, DIMENSIONS)), rng.standard_normal((n_items, DIMENSIONS))


def simulated(folder: Path, rows: int, users: np.ndarray, items: np.ndarray) -> Shards:
    """Pairs chosen with P ~ exp(a_u'c + b_i'd) sigmoid(a_u'b_i over 4 dimensions), shard by shard, kept in a folder."""
    place = folder / f"{rows}-{len(users)}-{len(items)}"
    if (place / MANIFEST).exists():
        return Shards.open(place)
    tilt = np.zeros(DIMENSIONS)
    tilt[:4] = 0.4, -0.3, 0.2, -0.1
    cumulative = [np.cumsum(np.exp(table @ tilt)) for table in (users, items)]
    cumulative = [values / values[-1] for values in cumulative]
    near = [np.ascontiguousarray(table[:, 4:8]) for table in (users, items)]
    with ShardWriter(place) as writer:
        for number in range(math.ceil(rows / SHARD_ROWS)):
            rng, count = np.random.default_rng([1, number]), min(SHARD_ROWS, rows - number * SHARD_ROWS)
            kept: list[tuple[np.ndarray, np.ndarray]] = []
            while sum(len(part[0]) for part in kept) < count:
                codes = [np.searchsorted(values, np.sort(rng.random(count))) for values in cumulative]
                rng.shuffle(codes[1])
                taste = np.einsum("ij,ij->i", near[0][codes[0]], near[1][codes[1]])
                chosen = rng.random(count) < 1 / (1 + np.exp(-0.5 * taste))
                kept.append((codes[0][chosen], codes[1][chosen]))
            user, item = (np.concatenate(parts) for parts in zip(*kept, strict=True))
            order = rng.permutation(len(user))[:count]
            writer.append(users=user[order], items=item[order], ratings=(rng.random(count) < 0.4).astype(float))
        return writer.finish((len(users), len(items)))


def measure(rows: int, options: argparse.Namespace) -> dict[str, object]:
    """One balancing in this process: its certificate, its time and its memory."""
    users, items = tables(options.users, options.items)
    started = time.perf_counter()
    shards = simulated(options.folder, rows, users, items)
    made = time.perf_counter() - started
    pairs = Pairs(torch.from_numpy(users).to(options.device), torch.from_numpy(items).to(options.device))
    functions = Moments(1) if options.functions == "moments" else KernelFunctions(n=options.n, select="random")
    engine = Metered(make_engine(options.engine, options.workers))
    torch.set_num_threads(options.workers)
    with cluster(options) as began:
        started, spent = time.perf_counter(), time.process_time()
        settings = {"engine": engine, "memory": options.memory, "accuracy": options.accuracy}
        result = balance_shards(shards, pairs, functions, **settings)
        seconds, spent = time.perf_counter() - started, time.process_time() - spent + engine.others
        result.weights.remove()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    facts = {"rows": rows, "engine": options.engine, "workers": options.workers, "device": options.device}
    figures = {"seconds": round(seconds, 2), "cpu_seconds": round(spent, 2), "start": round(began, 2)}
    figures |= {"passes": result.passes, "gap": result.gap, "status": result.status}
    if options.device != "cpu":
        figures["device_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return facts | figures | {"peak_gb": round(peak / 1e9, 2), "made_in": round(made, 1)}


class Metered:
    """An engine, and the processor time of those of its workers that are other processes, their start included."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.others = engine, 0.0

    @contextmanager
    def over(self, shards: Shards, make: Callable[[], Any]) -> Iterator[Any]:
        """As the engine's."""
        with self.engine.over(shards, make) as (each, source):
            yield each, source
            self.others = sum({pid: spent for pid, spent in each(processor_time) if pid != os.getpid()}.values())


def processor_time(source: object, shard: object) -> tuple[int, float]:
    """(id, CPU time) of the process that works on a shard."""
    return os.getpid(), time.process_time()


def ingested(rows: int, options: argparse.Namespace) -> dict[str, object]:
    """A folder of Parquet files, a million rows each, scanned into shards: time and memory."""
    import polars as pl

    from counterpoise.out_of_core.encoding import shard_log

    place = options.folder / f"{rows}-parquet"
    if not place.exists():
        place.mkdir(parents=True)
        for shard in simulated(options.folder, rows, *tables(options.users, options.items)):
            columns = {f"{name[:-1]}_id": np.array(shard.column(name)) for name in ("users", "items")}
            frame = pl.DataFrame(columns | {"rating": np.array(shard.column("ratings"))})
            frame.write_parquet(place / f"part-{shard.number:05d}.parquet")
    with tempfile.TemporaryDirectory(dir=options.folder) as cache:
        started, spent = time.perf_counter(), time.process_time()
        log = shard_log(place, memory=options.memory, cache=cache)
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"seconds": round(seconds, 2), "cpu_seconds": round(spent, 2), "peak_gb": round(peak / 1e9, 2)}
    return {"rows": len(log), "ingest": True} | figures


def trained(rows: int, options: argparse.Namespace) -> dict[str, object]:
    """Plain MF on the streamed log, by one process or by workers of Ray: the time between the ends of two epochs."""
    from counterpoise import make
    from counterpoise.data.ids import Vocabulary
    from counterpoise.out_of_core.fitting import fit_streamed
    from counterpoise.out_of_core.log import StreamedLog
    from counterpoise.out_of_core.shards import ShardedLog

    shards = simulated(options.folder, rows, *tables(options.users, options.items))
    ids = (Vocabulary(np.arange(count)) for count in shards.shape)
    log = StreamedLog(ShardedLog(shards, *ids), engine=make_engine(options.engine, options.workers))
    ends: list[float] = []
    torch.set_num_threads(options.workers)
    started = time.perf_counter()
    model = make("mf", epochs=options.epochs, dim=options.n)
    fit_streamed(model, log, callback=by_epoch(lambda *_: ends.append(time.perf_counter())))
    facts = {"rows": rows, "engine": options.engine, "workers": options.workers}
    facts["steps"] = -(-rows // model.training.rows_per_step(rows))
    facts |= {"dim": options.n, "gradient_mb": round(4e-6 * sum(shards.shape) * (options.n + 1), 1)}
    epochs = np.diff(ends).tolist()
    return facts | {"to_first_epoch": round(ends[0] - started, 1), "epochs": [round(epoch, 2) for epoch in epochs]}


@contextmanager
def cluster(options: argparse.Namespace) -> Iterator[float]:
    """A local Ray that stands before the clock starts, as a cluster would, where one is asked for; seconds it took."""
    if options.engine == "local":
        yield 0.0
        return
    from counterpoise.out_of_core.engines import connected

    started = time.perf_counter()
    with connected(workers=options.workers):
        yield time.perf_counter() - started


def main() -> None:
    """Each size in a process of its own, so that the peak of memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--functions", choices=("kernels", "moments"), default="kernels")
    parser.add_argument("--n", type=int, default=32, help="kernel functions")
    parser.add_argument("--accuracy", type=float, default=1e-4, help="duality gap")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/counterpoise/scale").expanduser())
    parser.add_argument("--ingest", action="store_true", help="measure how files become shards")
    parser.add_argument("--fit", action="store_true", help="measure how a predictor is trained")
    parser.add_argument("--epochs", type=int, default=4, help="of a fit")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        work = ingested if options.ingest else trained if options.fit else measure
        print(json.dumps(work(int(options.rows[0]), options)))
        return
    records = []
    for rows in options.rows:
        words = [sys.executable, __file__, *sys.argv[1:], "--alone", "--rows", str(rows)]
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ}).stdout
        records.append(json.loads(output.splitlines()[-1]))
        print(json.dumps(records[-1]), flush=True)
    if len(records) > 1 and not options.fit:
        logs = np.log([[record["rows"], record["seconds"]] for record in records])
        print(f"time ~ rows^{np.polyfit(logs[:, 0], logs[:, 1], 1)[0]:.3f}")


if __name__ == "__main__":
    main()
