"""What each of several processes does that train one model together: its share of every batch, and the same steps.

The process group of torch is there already. The first process writes checkpoints and, in the end, what was learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.checkpoints import Checkpoint
from counterpoise.errors import CounterpoiseError, DataError
from counterpoise.graphs import optimizers
from counterpoise.hedging import AnyLearner
from counterpoise.ranks import Ranks
from counterpoise.ray_engine import imported
from counterpoise.streamed_batches import StreamedBatches
from counterpoise.threads import one_thread
from counterpoise.training import DivergenceError, Training, train


@dataclass(frozen=True, eq=False)
class Work:
    """What every worker gets."""

    learner: AnyLearner
    batches: StreamedBatches
    training: Training
    checkpoint: Checkpoint  # to go on from after a death
    learned: Checkpoint  # of the end
    board: Any  # a `Board`, as an actor


def train_share(config: Mapping[str, Work]) -> None:
    """Train on a share, and say how it went.

    An error of ours would come again: it stands on the board, where workers that start again find it and end.
    """
    ray, work, ranks = imported(), config["work"], Ranks.of_this_process()
    if ray.get(work.board.failure.remote()) is not None:
        return
    losses: list[float] = []
    try:
        with one_thread():
            losses = _losses(work, ranks)
    except DivergenceError as error:
        losses = error.history.loss if error.history else []
        ray.get(work.board.fail.remote(error))
    except CounterpoiseError as error:
        ray.get(work.board.fail.remote(error))
    if ranks.rank == 0 and losses:
        work.learned.write(work.learner, [torch.tensor(loss) for loss in losses])


def _losses(work: Work, ranks: Ranks) -> list[float]:
    """Of all epochs; what was learned is then in the learner."""
    learner, batches, folder = work.learner, work.batches, work.checkpoint.file.parent
    device = imported("ray.train.torch").get_device()
    move(learner, device)
    move(batches, device)
    if not folder.is_dir():
        raise DataError(f"{folder} is not on a disk that all workers see. Put --out on one.")
    resumable = replace(work.checkpoint, writes=ranks.rank == 0).of(learner)
    if float(ranks.averaged(torch.tensor(float(resumable.passed), device=device))) != resumable.passed:
        raise OSError(f"{folder}: workers see checkpoints of different ages")  # all start again
    batches.pass_by(resumable.passed)
    batches.ranks = ranks
    for optimizer in optimizers(learner):
        optimizer.average_gradients()
    say = work.board.say.remote if ranks.rank == 0 else None
    return train(resumable, batches, None, work.training, say).loss


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
