"""A Ray cluster of two nodes, of which one is killed in the middle of the work and another takes its place."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise import Dataset, make
from counterpoise.balance.functions import Moments
from counterpoise.balance.population import Pairs
from counterpoise.bench.jobs import Job
from counterpoise.bench.runner import run
from counterpoise.bench.store import Store
from counterpoise.out_of_core.balancing import balance_shards
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.engines import RayEngine
from counterpoise.out_of_core.fitting import fit_streamed
from counterpoise.out_of_core.log import StreamedLog
from counterpoise.out_of_core.shards import ShardedLog
from counterpoise.training.checkpoint import Checkpoint
from counterpoise.training.events import by_epoch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


class TwoNodes:
    """A cluster of a head and one more node, of one core each; the head, where this process is, stays."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.other = cluster, cluster.add_node(num_cpus=1)
        self.deaths: list[threading.Thread] = []
        self.engine = RayEngine(2, cluster.address)

    def kill_one(self) -> None:
        """Kill all processes of the other node; then start another."""
        self.cluster.worker_nodes.discard(self.other)
        for processes in self.other.all_processes.values():
            for info in processes:
                info.process.kill()  # workers end with their raylet

        def replace() -> None:
            self.other = self.cluster.add_node(num_cpus=1)

        self.deaths.append(threading.Thread(target=replace))
        self.deaths[-1].start()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'counterpoise[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)  # else no node from a thread
    try:
        yield (found := TwoNodes(cluster))
        for death in found.deaths:
            death.join()
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def sharded(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> ShardedLog:
    place = tmp_path_factory.mktemp("seen by both nodes")
    dataset.train.to_frame().write_parquet(place / "log.parquet")
    return shard_log(place / "log.parquet", cache=place / "cache", shard_rows=256)


class Killing:
    """An engine whose other node is killed in the middle of the second pass."""

    def __init__(self, nodes: TwoNodes) -> None:
        self.nodes, self.machines = nodes, list[set[str]]()

    @contextmanager
    def over(self, shards: Any, make_source: Callable[[], Any]) -> Iterator[Any]:
        with self.nodes.engine.over(shards, make_source) as (each, source):

            def killing(work: Any, *arguments: Any) -> list[Any]:
                self.machines.append(set(each(node)))
                if len(self.machines) != 2:
                    return each(work, *arguments)
                self.nodes.kill_one()
                return each(slowly, work, *arguments)

            yield killing, source


def node(source: Any, shard: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def slowly(source: Any, shard: Any, work: Any, *arguments: Any) -> Any:
    time.sleep(0.3)
    return work(source, shard, *arguments)


def test_balance_survives_a_node(sharded: ShardedLog, nodes: TwoNodes) -> None:
    rng = np.random.default_rng(0)
    users, items = (torch.from_numpy(rng.standard_normal((size, 2))) for size in sharded.shards.shape)
    settings = {"functions": Moments(2), "tolerance": 1e-3}
    expected = np.asarray(balance_shards(sharded.shards, Pairs(users, items), **settings).weights)
    engine = Killing(nodes)
    found = balance_shards(sharded.shards, Pairs(users, items), **settings, engine=engine)
    np.testing.assert_allclose(np.asarray(found.weights), expected, rtol=1e-10)
    assert [len(machines) for machines in engine.machines[:2]] == [2, 2]
    assert engine.machines[-1] != engine.machines[1]  # another node took its place


def test_fit_survives_a_node(sharded: ShardedLog, nodes: TwoNodes, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 8, "batch_size": 99, "dim": 4, "seed": 3, "device": "cpu"}
    expected = fit_streamed(make("mf", **settings), StreamedLog(sharded))
    epochs: list[int] = []

    def progress(done: int, planned: int, loss: float) -> None:
        epochs.append(done)
        if done >= 2 and not nodes.deaths:
            nodes.kill_one()

    log = StreamedLog(sharded, engine=nodes.engine)
    checkpoint = SlowCheckpoint(tmp_path / "run" / "checkpoint", "key", every=0.0)
    found = fit_streamed(make("mf", **settings), log, callback=by_epoch(progress), checkpoint=checkpoint)
    assert nodes.deaths
    assert epochs[-1] == 8
    assert found.history_.loss == pytest.approx(expected.history_.loss, rel=1e-5)
    for name, value in found.scorer_.state_dict().items():
        torch.testing.assert_close(value, expected.scorer_.state_dict()[name], rtol=1e-4, atol=2e-5)


class SlowCheckpoint(Checkpoint):
    """A checkpoint that takes a while, so that a node dies before the last epoch."""

    def write(self, learner: Any, losses: Any) -> None:
        time.sleep(0.5)
        super().write(learner, losses)


def test_bench_survives_a_node(dataset: Dataset, nodes: TwoNodes, tmp_path: Path) -> None:
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        part.to_frame().write_csv(tmp_path / f"{name}.csv")
    jobs = [Job(str(tmp_path), "mf", seed, settings={"epochs": 30, "dim": 2}) for seed in range(12)]
    here, there = (Store(tmp_path / name) for name in ("here", "there"))
    run(jobs, here)

    def progress(done: int, total: int) -> None:
        if done >= 1 and not nodes.deaths:
            nodes.kill_one()

    run(jobs, there, 2, progress, engine="ray", address=nodes.cluster.address)
    assert nodes.deaths
    for job in jobs:
        first, second = here.read(job), there.read(job)
        assert first is not None
        assert second is not None
        assert first["failed"] is None
        assert first["metrics"] == second["metrics"]
