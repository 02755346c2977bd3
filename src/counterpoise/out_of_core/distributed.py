"""Training by the workers of a Ray cluster: torch's DDP in processes that Ray Train starts and restarts.

What comes before the first step is made here, once, and sent to the workers: fresh models and the weights of all rows.
Each worker maps the shards and takes its shard of the rows and pairs of every batch (`process_group`); Adam's steps are
the same in all. The first worker writes checkpoints and, in the end, what was learned. Where a worker dies, all start
again from the last checkpoint.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.errors import ConfigError, CounterpoiseError, DataError
from counterpoise.out_of_core.engines import RayEngine, connected, import_ray
from counterpoise.out_of_core.log import StreamedBatches
from counterpoise.out_of_core.process_group import ProcessGroup, ProcessGroupLearner
from counterpoise.out_of_core.progress_actor import ProgressActor
from counterpoise.storage import CHECKPOINT, ScratchFolder
from counterpoise.threads import one_thread
from counterpoise.training.checkpoint import Checkpoint
from counterpoise.training.ensemble import EnsembleLearner
from counterpoise.training.events import Callback
from counterpoise.training.learner import Learner
from counterpoise.training.loop import DivergenceError, History, Interrupted, Training, train

LEARNED = "learned.safetensors"
MAX_RESTARTS = 5  # of all workers, after one has died
POLL_SECONDS = 0.2  # between two looks at the progress of the workers


@dataclass(frozen=True, eq=False)
class WorkerTask:
    """The task of every worker."""

    learner: Learner | EnsembleLearner
    batches: StreamedBatches
    training: Training
    checkpoint: Checkpoint  # to resume from after a death
    learned: Checkpoint  # of the end
    progress: Any  # a `ProgressActor`


def run_worker(config: Mapping[str, WorkerTask]) -> None:
    """Train on shards of batches, and report.

    An error of ours would come again: it is left with the progress actor, where restarted workers find it and end.
    """
    ray, task, group = import_ray(), config["task"], ProcessGroup.of_this_process()
    if ray.get(task.progress.failure.remote()) is not None:
        return
    losses: list[float] = []
    try:
        with one_thread():
            losses = _train_worker(task, group)
    except CounterpoiseError as error:
        if isinstance(error, DivergenceError) and error.history:
            losses = error.history.loss
        ray.get(task.progress.fail.remote(error))
    if group.rank == 0 and losses:
        task.learned.write(task.learner, [torch.tensor(loss) for loss in losses])


def _train_worker(task: WorkerTask, group: ProcessGroup) -> list[float]:
    """The losses of all epochs; what was learned is then in the learner."""
    learner, batches, folder = task.learner, task.batches, task.checkpoint.file.parent
    device = import_ray("ray.train.torch").get_device()
    move(learner, device)
    move(batches, device)
    if not folder.is_dir():
        raise DataError(f"{folder} is not on a disk that all workers see. Put --out on one.")
    resumable = replace(task.checkpoint, writes=group.rank == 0).of(ProcessGroupLearner(learner))
    done = resumable.epochs_done
    if float(group.average(torch.tensor(float(done), device=device))) != done:
        raise OSError(f"{folder}: workers see checkpoints of different ages")  # all start again
    batches.skip(done)
    batches.group = group
    report = task.progress.report.remote if group.rank == 0 else None
    return train(resumable, batches, None, task.training, report).loss


def move(part: Any, device: torch.device, seen: set[int] | None = None) -> None:
    """Bring the tensors of a learner and of its parts to a device; parameters stay the objects that they are."""
    seen = set() if seen is None else seen
    if id(part) in seen or not type(part).__module__.startswith("counterpoise."):
        return
    seen.add(id(part))
    if isinstance(part, nn.Module):
        part.to(device)
        return
    for name, value in getattr(part, "__dict__", {}).items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            object.__setattr__(part, name, value.to(device))
        elif isinstance(value, torch.device):
            object.__setattr__(part, name, device)
        elif isinstance(value, list):
            value[:] = [each.to(device) if type(each) is Tensor else each for each in value]
        else:
            move(value, device, seen)


class WorkersError(CounterpoiseError):
    """Workers died, or raised what nobody expected, again and again."""


def train_on_ray(
    engine: RayEngine,
    learner: Learner | EnsembleLearner,
    batches: StreamedBatches,
    training: Training,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
) -> History:
    """As `train`, by the workers of an engine; the learner, on the CPU, has then learned what they did."""
    started, shared = time.perf_counter(), batches.log.shards.folder.absolute().parent
    error: CounterpoiseError | Interrupted | None
    scratch = ScratchFolder.make(shared, "training")
    with scratch as place, connected(engine.address, engine.workers) as ray:
        kept = _prepared(checkpoint or Checkpoint(place / CHECKPOINT, ""), learner)
        learned = Checkpoint(place / LEARNED, kept.key)
        actor = _beside_driver(ray)(ProgressActor).remote()
        task = WorkerTask(learner, batches, training, kept, learned, actor)
        try:
            with _reporting(ray, actor, callback):
                _run(ray, task, min(engine.count(ray), len(batches.log) // len(batches)), str(place))
            error = ray.get(actor.failure.remote())
        except KeyboardInterrupt:
            error, learned = Interrupted(), kept
        finally:
            with suppress(OSError):
                kept.file.parent.rmdir()  # where nothing was written
        history = None
        if learned.file.exists():
            losses = [float(loss) for loss in learned.read(learner)]
            history = History(losses, [], time.perf_counter() - started, len(losses))
    if error is None and history is not None:
        return history
    if isinstance(error, DivergenceError | Interrupted):
        error.history = history
    raise error or DataError(f"{shared}: what the workers wrote there is not here. Put --cache on a disk that all see.")


def _beside_driver(ray: Any) -> Any:
    """The decorator of an actor without a core, on the machine of this process: others may die."""
    strategies = import_ray("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)


def _prepared(checkpoint: Checkpoint, learner: Learner | EnsembleLearner) -> Checkpoint:
    """The checkpoint that workers go on from: of this fit, or an error now; in a folder that is there."""
    checkpoint = replace(checkpoint, file=checkpoint.file.absolute())
    checkpoint.file.parent.mkdir(parents=True, exist_ok=True)
    if not checkpoint.resume:
        checkpoint.file.unlink(missing_ok=True)
    if checkpoint.file.exists():
        checkpoint.read(learner)
    return replace(checkpoint, resume=True)


def _run(ray: Any, task: WorkerTask, workers: int, place: str) -> None:
    """Ray Train on `run_worker`: nccl where there is a GPU for each worker, else gloo."""
    train, found, device = import_ray("ray.train"), int(ray.cluster_resources().get("GPU", 0)), task.training.device
    if device not in ("auto", "cpu") and found < workers:  # Ray would wait for them for ever
        raise ConfigError(
            f"`workers` must be at most {found}, the GPUs of the Ray cluster, for device={device!r}, got {workers}. "
            "Or use device='auto'."
        )
    gpus = device != "cpu" and found >= workers
    trainer = _trainer()(
        run_worker,
        train_loop_config={"task": task},
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=train.RunConfig(
            name="fit", storage_path=place, failure_config=train.FailureConfig(max_failures=MAX_RESTARTS)
        ),
    )
    try:
        with _own_signals():
            trainer.fit()
    except (train.TrainingFailedError, ray.exceptions.RayError) as error:
        failures = getattr(error, "worker_failures", None) or {0: error}
        reason = str(next(iter(failures.values()))).strip().splitlines()[-1]
        raise WorkersError(
            f"the workers of Ray failed {MAX_RESTARTS + 1} times, at last by: {reason}. Their logs say more; "
            "the same command with --resume goes on from the last checkpoint, if there is one."
        ) from None


def _trainer() -> Any:
    """Ray's `TorchTrainer`, without the callback that cleans up after a lost job.

    It asks Ray's dashboard: where there is none, as in a local instance, it waits 12 s for one.
    """
    base: Any = import_ray("ray.train.torch").TorchTrainer

    class Trainer(base):  # type: ignore[misc]
        def _create_default_callbacks(self) -> list[Any]:
            own = super()._create_default_callbacks()
            return [callback for callback in own if "PlacementGroupCleaner" not in type(callback).__name__]

    return Trainer


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray Train takes Ctrl-C for itself, stops its workers and exits; it is ours again afterwards."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _reporting(ray: Any, actor: Any, callback: Callback | None) -> Iterator[None]:
    """Call `callback` for the epochs that workers are done with, while the block runs; what it raises stops them."""
    if callback is None:
        yield
        return
    over, raised = threading.Event(), []

    def poll() -> None:
        for epoch in ray.get(actor.news.remote()):
            callback(epoch)

    def keep_polling() -> None:
        try:
            while not over.wait(POLL_SECONDS):
                poll()
        except BaseException as error:
            raised.append(error)
            signal.raise_signal(signal.SIGINT)

    watcher = threading.Thread(target=keep_polling, daemon=True)
    watcher.start()
    try:
        yield
        over.set()
        watcher.join()
        poll()
    except KeyboardInterrupt:
        raise (raised or [KeyboardInterrupt()])[0] from None
    finally:
        over.set()
