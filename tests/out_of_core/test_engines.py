"""Engines: passes over shards give the weights of memory, for any engine and any number of shards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Dataset, tune
from counterpoise.balance.functions import KernelFunctions, Moments
from counterpoise.balance.kernels import Exponential
from counterpoise.balance.path import balance_keeping
from counterpoise.balance.population import Pairs
from counterpoise.bench.jobs import Job
from counterpoise.bench.runner import run
from counterpoise.bench.store import Store
from counterpoise.errors import ConfigError, DataError
from counterpoise.out_of_core.balancing import balance_shards, sample_pairs
from counterpoise.out_of_core.engines import (
    Engine,
    RayEngine,
    Tasks,
    ThreadEngine,
    batches_of,
    connected,
    dispatch,
    make_engine,
)
from counterpoise.out_of_core.shards import Shards, ShardWriter

USERS, ITEMS, ROWS = 300, 80, 6000
RNG = np.random.default_rng(0)
TABLES = RNG.standard_normal((USERS, 3)), RNG.standard_normal((ITEMS, 2))
CODES = [RNG.choice(len(table), ROWS, p=(chance := np.exp(0.5 * table[:, 0])) / chance.sum()) for table in TABLES]
CODES[0][::7] = 0  # a user that appears in every shard
PAIRS = Pairs(*map(torch.from_numpy, TABLES))
FUNCTIONS = KernelFunctions(n=8, select="spectral", candidates=20)


def sharded(folder: Path, shard_rows: int, rows: int = ROWS) -> Shards:
    with ShardWriter(folder / str(shard_rows), shard_rows) as writer:
        writer.append(users=CODES[0][:rows], items=CODES[1][:rows], ratings=np.ones(rows))
        return writer.finish((USERS, ITEMS))


def weights(shards: Shards, engine: Engine | None = None, functions: Any = FUNCTIONS, **options: Any) -> Any:
    return np.asarray(balance_shards(shards, PAIRS, functions, tolerance=1e-3, engine=engine, **options).weights)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return sharded(tmp_path_factory.mktemp("shards"), 1000)


@pytest.fixture(scope="module")
def expected(shards: Shards) -> Any:
    return weights(shards)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray", reason="Ray is not installed: pip install 'counterpoise[ray]'")
    with connected(workers=2):
        yield module
    assert not module.is_initialized()


@pytest.mark.parametrize(
    "functions",
    [
        FUNCTIONS,
        KernelFunctions(n=8, select="random"),
        KernelFunctions(Exponential(), n=8),
        KernelFunctions(n=8, select="worst_case", candidates=30),
        KernelFunctions(n=8, select="greedy", candidates=30),
        Moments(2),
    ],
    ids=["spectral", "random", "exponential", "worst case", "greedy", "moments"],
)
def test_weights_over_shards_are_those_in_memory(shards: Shards, functions: Any) -> None:
    result = balance_shards(shards, PAIRS, functions)
    observed = PAIRS.at(*map(torch.from_numpy, CODES))
    memory = functions.fit(PAIRS, observed, generator=torch.Generator().manual_seed(0)).balance(observed)
    assert (result.status, len(result.weights)) == ("solved", ROWS)
    np.testing.assert_allclose(np.asarray(result.weights), memory.weights.numpy(), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(result.weights).sum(), 1, rtol=1e-12)
    assert result.objective == pytest.approx(memory.objective, abs=1e-8)


@pytest.mark.parametrize("select", ["spectral", "worst_case"])
@pytest.mark.parametrize("kept", [0.95, 1.0])
def test_a_share_kept_over_shards_is_that_in_memory(shards: Shards, select: Any, kept: float) -> None:
    """The population is the log's users, each as often as in the log, with all items."""
    functions = KernelFunctions(n=8, select=select, candidates=30)
    result = balance_shards(shards, PAIRS, functions, kept=kept)
    shares = torch.from_numpy(np.bincount(CODES[0], minlength=USERS) / ROWS)
    observed, generator = PAIRS.at(*map(torch.from_numpy, CODES)), torch.Generator().manual_seed(0)
    fitted = functions.fit(replace(PAIRS, user_shares=shares), observed, generator=generator)
    memory, found = balance_keeping(fitted, observed, kept), np.asarray(result.weights)
    np.testing.assert_allclose(found, memory.result.weights.numpy(), rtol=1e-4)
    assert 1 / (found**2).sum() / ROWS >= kept - 1e-6


def test_a_share_is_kept_by_a_long_log_too(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strength is found on a draw, the tolerance is that of all rows."""
    monkeypatch.setattr("counterpoise.out_of_core.balancing.MAX_GREEDY_ROWS", 3000)
    result = balance_shards(shards, PAIRS, FUNCTIONS, kept=0.95)
    found = np.asarray(result.weights)
    assert 1 / (found**2).sum() / ROWS == pytest.approx(0.95, abs=0.02)
    assert result.tolerance / result.scale == pytest.approx(2 / np.sqrt(ROWS))
    given = balance_shards(shards, PAIRS, FUNCTIONS, kept=0.95, tolerance=0.0)
    assert not given.tolerance.any()


def test_raw_units_over_shards_are_those_in_memory(shards: Shards) -> None:
    functions, penalty = KernelFunctions(n=8, select="random"), {"tolerance": 0.01, "strength": 2.0}
    observed = PAIRS.at(*map(torch.from_numpy, CODES))
    fitted = functions.fit(PAIRS, observed, generator=torch.Generator().manual_seed(0))
    memory = {units: fitted.balance(observed, **penalty, units=units).weights.numpy() for units in ("sd", "raw")}
    found = np.asarray(balance_shards(shards, PAIRS, functions, **penalty, units="raw").weights)
    np.testing.assert_allclose(found, memory["raw"], rtol=1e-5)
    assert abs(found / memory["sd"] - 1).max() > 0.1


@pytest.mark.parametrize("shard_rows", [7000, 999, 1])
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_do_not_depend_on_shards_or_threads(
    tmp_path: Path, expected: Any, shard_rows: int, threads: int
) -> None:
    rows = ROWS if shard_rows > 1 else 60  # more shards than threads, and one row in each
    whole = expected if shard_rows > 1 else weights(sharded(tmp_path, 50, rows))
    found = weights(sharded(tmp_path, shard_rows, rows), ThreadEngine(threads))
    np.testing.assert_allclose(found, whole, rtol=1e-10)


def test_warm_start_does_not_depend_on_shards(tmp_path: Path) -> None:
    rows = 80_000
    codes = [np.tile(code, 14)[:rows] for code in CODES]
    results = []
    for shard_rows in (rows, 7777):
        with ShardWriter(tmp_path / str(shard_rows), shard_rows) as writer:
            writer.append(users=codes[0], items=codes[1], ratings=np.ones(rows))
            results.append(weights(writer.finish((USERS, ITEMS)), functions=Moments(1), accuracy=1e-4))
    np.testing.assert_allclose(*results, rtol=1e-10)


def test_large_kernel_tables_are_replaced_by_features(
    shards: Shards, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.out_of_core.balancing.MAX_TABLE_MEMORY_SHARE", 0)
    np.testing.assert_allclose(weights(shards), expected, rtol=1e-6)


def test_long_log_chooses_on_a_sample_and_balances_all(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.out_of_core.balancing.MAX_GREEDY_ROWS", 500)
    some = sample_pairs(shards, PAIRS, torch.Generator().manual_seed(0))
    drawn = torch.randint(ROWS, (500,), generator=torch.Generator().manual_seed(0)).numpy()
    assert [codes.tolist() for codes in (some.users, some.items)] == [code[drawn].tolist() for code in CODES]
    result = balance_shards(shards, PAIRS, KernelFunctions(n=8, select="greedy", candidates=30))
    assert len(result.weights) == ROWS
    assert result.max_violation < 1e-6


def test_errors_name_what_shards_cannot_do(shards: Shards) -> None:
    with pytest.raises(ConfigError, match="`base_weights` and `max_weight` need all rows in one place"):
        weights(shards, max_weight=0.1)
    with pytest.raises(ConfigError, match=r"`select` must be .* for a log in shards, got \"adaptive\""):
        weights(shards, functions=KernelFunctions(select="adaptive"))
    with pytest.raises(DataError, match=r"the features are for 300 x 1 pairs, the log for \(300, 80\)"):
        balance_shards(shards, Pairs(PAIRS.users, PAIRS.items[:1]))
    with pytest.raises(ConfigError, match="`engine` must be one of 'local', 'ray', got 'spark'"):
        make_engine("spark")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`workers` must be an integer >= 1"):
        make_engine("local", 0)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    shards = sharded(tmp_path, 1000)
    list(shards)[2].path("items").unlink()
    with pytest.raises(DataError, match=r"items-000002\.npy: this part of the log is not there"):
        weights(shards)


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ray_gives_the_weights_of_threads(tmp_path: Path, ray: Any) -> None:
    found = weights(sharded(tmp_path, 1, 20), RayEngine(2))
    np.testing.assert_allclose(found, weights(sharded(tmp_path, 50, 20)), rtol=1e-10)
    assert ray.is_initialized()  # what the caller started is the caller's to stop


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_killed_worker_changes_nothing(shards: Shards, expected: Any, ray: Any) -> None:
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    engine = KillingEngine(RayEngine(2))
    np.testing.assert_allclose(weights(shards, engine), expected, rtol=1e-10)
    assert len(engine.killed) == 2
    assert engine.killed[0] not in engine.alive


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_error_of_a_worker_equals_that_of_a_thread(tmp_path: Path, ray: Any) -> None:
    shards = sharded(tmp_path, 1000)
    list(shards)[2].path("items").unlink()
    with pytest.raises(DataError, match=r"items-000002\.npy: this part of the log is not there") as caught:
        weights(shards, RayEngine(2))
    assert type(caught.value) is DataError


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_bench_fits_as_ray_tasks_give_the_same_results(tmp_path: Path, dataset: Dataset, ray: Any) -> None:
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        part.to_frame().write_csv(tmp_path / f"{name}.csv")
    jobs = [Job(str(tmp_path), "mf", seed, settings={"epochs": 3, "dim": 2}) for seed in range(2)]
    stores, counts = [Store(tmp_path / name) for name in ("here", "there")], []
    run(jobs, stores[0])
    run(jobs, stores[1], 2, lambda done, total: counts.append((done, total)), engine="ray")
    for job in jobs:
        here, there = (store.read(job) for store in stores)
        assert here is not None
        assert there is not None
        assert here["failed"] is None
        assert here["metrics"] == there["metrics"]
    assert counts == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_tuning_folds_as_ray_tasks_give_the_same_results(dataset: Dataset, ray: Any) -> None:
    fast = {"epochs": 2, "dim": 2, "device": "cpu"}
    settings = {"settings": fast, "space": "own", "search": {"l2": "1:64:log"}, "folds": 2}
    here = tune(dataset.train, "mf", 3, **settings)
    there = tune(dataset.train, "mf", 3, **settings, parallel_map=Tasks(ray))
    for first, second in zip(here.trials, there.trials, strict=True):
        assert (first.settings, first.state, first.risk) == (second.settings, second.state, second.risk)


def test_only_unfinished_tasks_are_cancelled() -> None:
    cancelled: list[int] = []

    class Calls:
        """What `Tasks` asks of Ray: every task is its own result."""

        exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError)
        cancel = staticmethod(cancelled.append)
        get = staticmethod(list)

        @staticmethod
        def remote(**_: Any) -> Any:
            return lambda function: SimpleNamespace(remote=function)

    assert list(Tasks(Calls)(abs, [(-1,), (2,), (-3,)])) == [1, 2, 3]
    assert cancelled == []
    some = Tasks(Calls)(abs, [(-1,), (2,), (-3,)])
    assert next(some) == 1  # type: ignore[call-overload]
    some.close()  # type: ignore[attr-defined]
    assert cancelled == [2, 3]


@pytest.mark.parametrize(("count", "workers", "size"), [(1, 2, 1), (40, 2, 2), (70, 3, 2), (1000, 3, 16)])
def test_every_shard_is_in_one_batch_of_its_worker(tmp_path: Path, count: int, workers: int, size: int) -> None:
    shards = list(Shards(tmp_path, count, (1, 1), 1))
    queues = batches_of(shards, workers)
    numbers = [[shard.number for batch in queue for shard in batch] for queue in queues]
    assert numbers == [list(range(at, count, workers)) for at in range(workers)]
    assert max(len(batch) for queue in queues for batch in queue) == size


def test_idle_worker_takes_the_last_batches_of_the_busiest(tmp_path: Path) -> None:
    """The first worker answers at once, the second never before the first has nothing left to do."""

    class Calls:
        exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError)
        get = staticmethod(lambda tasks: [[shard.number for shard in batch] for _, batch in tasks])

        @staticmethod
        def wait(running: list[Any]) -> tuple[list[Any], list[Any]]:
            running = sorted(running, key=lambda task: task[0])  # stable: the first worker's first
            return running[:1], running[1:]

    queues = batches_of(list(Shards(tmp_path, 12, (1, 1), 1)), 2)
    made: list[tuple[int, int]] = []

    def call(worker: int, batch: Any) -> Any:
        made.append((worker, batch[0].number))
        return worker, tuple(batch)

    found = [values for _, values in dispatch(Calls, call, queues)]
    assert sorted(found) == [[number] for number in range(12)]
    assert [number for worker, number in made if worker == 0] == [0, 2, 4, 6, 8, 10, 11, 9, 7, 5]
    assert [number for worker, number in made if worker == 1] == [1, 3]


def test_missing_ray_is_an_error_with_the_install_command(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"`engine` needs ray, which is not installed\. Run: pip install"):
        weights(shards, RayEngine())


@pytest.mark.parametrize(
    ("address", "message"),
    [("nowhere", "`address` must be auto or HOST:PORT"), ("127.0.0.1:1", "no Ray cluster answers there")],
)
def test_unreachable_address_is_an_error(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("ray", reason="Ray is not installed: pip install 'counterpoise[ray]'")
    monkeypatch.setattr(module, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=message), connected(address):
        pytest.fail("connected")


class KillingEngine:
    """An engine whose workers are killed in the middle of its second and third pass."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine, self.killed, self.alive = engine, [], set()

    @contextmanager
    def over(self, shards: Shards, make: Any) -> Iterator[Any]:
        with self.engine.over(shards, make) as (each, source):
            passes = 0

            def killing(work: Any, *arguments: Any) -> list[Any]:
                nonlocal passes
                passes += 1
                if passes not in (2, 3):
                    return each(work, *arguments)
                victim = each(process)[passes - 2]
                self.killed.append(victim)
                threading.Timer(0.05, os.kill, (victim, signal.SIGKILL)).start()
                found = each(slowly, work, *arguments)
                self.alive = set(each(process))
                return found

            yield killing, source


def process(source: Any, shard: Any) -> int:
    return os.getpid()


def slowly(source: Any, shard: Any, work: Any, *arguments: Any) -> Any:
    time.sleep(0.05)
    return work(source, shard, *arguments)
