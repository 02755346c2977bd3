"""A recommender fitted to a log that is streamed: the same parts and the same loop, block by block at its ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from counterpoise.accelerate import with_cuda_graphs
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.imputation.base import Constant, Imputation, Learned, NoImputation
from counterpoise.imputation.mnar import MNARLikelihood
from counterpoise.out_of_core.distributed import train_together
from counterpoise.out_of_core.engines import Engine, RayEngine, connected
from counterpoise.out_of_core.log import StreamedBatches, StreamedLog, way_out
from counterpoise.recommender import DebiasedRecommender
from counterpoise.threads import one_thread
from counterpoise.training.checkpoint import Checkpoint
from counterpoise.training.ensemble import AnyLearner, init
from counterpoise.training.loop import THREADS_PAY, DivergenceError, History, Interrupted, Progress, Training, train
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, Uniform, UnitWeights, Weights
from counterpoise.weights.propensity import Popularity

WEIGHTS: tuple[type[Weights], ...] = (Uniform, UnitWeights, NaiveBayes, Popularity, Balancing)
IMPUTATIONS: tuple[type[Imputation], ...] = (NoImputation, Constant, Learned, MNARLikelihood)


def fit_streamed(
    model: DebiasedRecommender,
    log: StreamedLog,
    probe: FeedbackLog | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> DebiasedRecommender:
    """`model.fit` on a streamed log, for the parts that look at batches alone or at one number for each row."""
    model.check(log, probe)
    _check(model, log)
    together, problem = isinstance(log.engine, RayEngine), model.context(log, probe)
    problem = replace(problem, device=torch.device("cpu")) if together else problem  # workers have devices of their own
    with one_thread(model.training.rows_a_step(len(log)) < THREADS_PAY), _cluster(log.engine):
        learner = init(problem, model.weights, model.risk, model.imputation, model.hedge, model.grades)
        batches = problem.batches(learner.uses_pairs)
        assert isinstance(batches, StreamedBatches)
        try:
            history = _trained(log.engine, learner, batches, model.training, progress, checkpoint)
        except (DivergenceError, Interrupted) as stop:
            if stop.history is not None:
                _keep(model, learner, stop.history, batches, probe)
            raise
        return _keep(model, learner, history, batches, probe)


def _keep(
    model: DebiasedRecommender,
    learner: AnyLearner,
    history: History,
    batches: StreamedBatches,
    probe: FeedbackLog | None,
) -> DebiasedRecommender:
    facts = _facts(learner, batches)
    learner.scorer.to(model.training.resolve_device())  # where workers have trained it, it is on the CPU
    return model.keep(learner, history, facts, batches.log, probe)


def _cluster(engine: Engine) -> AbstractContextManager[Any]:
    """One Ray for balancing and for training."""
    return connected(engine.address, engine.workers) if isinstance(engine, RayEngine) else nullcontext()


def _trained(
    engine: Engine,
    learner: AnyLearner,
    batches: StreamedBatches,
    training: Training,
    progress: Progress | None,
    checkpoint: Checkpoint | None,
) -> History:
    if isinstance(engine, RayEngine):
        return train_together(engine, learner, batches, training, progress, checkpoint)
    stepped = with_cuda_graphs(learner, training)
    if checkpoint is None:
        return train(stepped, batches, None, training, progress)
    resumable = checkpoint.of(stepped)
    batches.pass_by(resumable.passed)
    return train(resumable, batches, None, training, progress)


def _check(model: DebiasedRecommender, log: StreamedLog) -> None:
    for name, kinds in (("weights", WEIGHTS), ("imputation", IMPUTATIONS)):
        part = getattr(model, name)
        if type(part) not in kinds:
            known = ", ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"`{name}` must be one of {known} where the log is streamed, got {type(part).__name__}. "
                f"Choose another method, or {way_out(log.engine)} to read the log into memory."
            )
    if model.training.patience is not None:
        raise ConfigError(f"`patience` must be left out where the log is streamed. Or {way_out(log.engine)}.")


@torch.no_grad()
def _facts(learner: AnyLearner, batches: StreamedBatches) -> dict[str, Any]:
    """What `Learner.finish` says, with the risk as the mean over blocks."""
    facts, rows, risk, errors = learner.facts(), 0, 0.0, 0.0
    for block in batches.blocks():
        own_risk, own_error = learner.risk_on_log(block)
        size = len(block.rows)
        rows, risk, errors = rows + size, risk + size * own_risk, errors + size * own_error
    return facts | {"risk": risk / rows, "error_on_log": errors / rows}
