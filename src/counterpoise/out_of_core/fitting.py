"""A recommender fitted to a streamed log: the same parts and the same loop, with weights solved over shards."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from counterpoise.balance.diagnostics import warn_of_collapse
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError
from counterpoise.imputation.base import Constant, Learned, NoImputation
from counterpoise.imputation.mnar import MNARLikelihood
from counterpoise.out_of_core.balancing import balance_shards
from counterpoise.out_of_core.distributed import train_on_ray
from counterpoise.out_of_core.engines import RayEngine, connected
from counterpoise.out_of_core.log import StreamedBatches, StreamedLog, way_out
from counterpoise.recommender import DebiasedRecommender, name_items
from counterpoise.threads import one_thread
from counterpoise.training.checkpoint import Checkpoint
from counterpoise.training.contracts import FitContext, FittedWeights, Imputation, Weights
from counterpoise.training.events import Callback, end_event, start_event
from counterpoise.training.loop import MIN_ROWS_FOR_THREADS, DivergenceError, History, Interrupted, train
from counterpoise.weights.balancing import COLLAPSE_ADVICE, Balancing, share_to_keep, solution_facts
from counterpoise.weights.base import NaiveBayes, Uniform, UnitWeights
from counterpoise.weights.propensity import Popularity

# Parts that look at batches alone, or at one number for each row.
WEIGHTS: tuple[type[Weights], ...] = (Uniform, UnitWeights, NaiveBayes, Popularity, Balancing)
IMPUTATIONS: tuple[type[Imputation], ...] = (NoImputation, Constant, Learned, MNARLikelihood)


def fit_streamed(
    model: DebiasedRecommender,
    log: StreamedLog,
    probe: FeedbackLog | None = None,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    item_names: Any = None,
) -> DebiasedRecommender:
    """`model.fit` on a streamed log."""
    model.item_names_ = name_items(item_names, log)
    model.check(log, probe)
    _check(model, log)
    if callback is not None:
        callback(start_event(model, model.training.planned_epochs(len(log)), len(log), log.shape))
    engine, context = log.engine, model._context(log, probe)
    cluster: AbstractContextManager[Any] = nullcontext()
    if isinstance(engine, RayEngine):
        cluster = connected(engine.address, engine.workers)  # one Ray for balancing and for training
        context = replace(context, device=torch.device("cpu"))  # workers have devices of their own
    weights = ShardedBalancing(model.weights) if isinstance(model.weights, Balancing) else model.weights
    with one_thread(model.training.rows_per_step(len(log)) < MIN_ROWS_FOR_THREADS), cluster:
        learner = model._learner(context, weights)
        batches = context.batches(learner.uses_pairs)
        assert isinstance(batches, StreamedBatches)

        def keep(history: History) -> DebiasedRecommender:
            facts = learner.facts(batches.final())
            learner.scorer.to(model.training.resolve_device())  # where workers have trained it, it is on the CPU
            return model._keep(learner, history, facts, log, probe)

        try:
            keep(_train(context, learner, batches, callback, checkpoint))
        except (DivergenceError, Interrupted) as stop:
            if stop.history is not None:
                keep(stop.history)
            raise
    if callback is not None:
        callback(end_event(len(model.history_.loss), model.training.planned_epochs(len(log)), model.facts_))
    return model


def _train(
    context: FitContext,
    learner: Any,
    batches: StreamedBatches,
    callback: Callback | None,
    checkpoint: Checkpoint | None,
) -> History:
    engine, training = batches.log.engine, context.training
    if isinstance(engine, RayEngine):
        return train_on_ray(engine, learner, batches, training, callback, checkpoint)
    wrapped = context.wrap(learner, training)
    if checkpoint is not None:
        wrapped = checkpoint.of(wrapped)
        batches.skip(wrapped.epochs_done)
    return train(wrapped, batches, None, training, callback)


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


@dataclass
class ShardedBalancing(Weights):
    """`Balancing` of a streamed log: one problem over its shards, in features that are not learned.

    The strength "auto" is found on a draw of the rows; the intercept is not moved.
    """

    balancing: Balancing

    def init(self, context: FitContext) -> FittedWeights:
        """Solve, by the engine of the log."""
        part, log = self.balancing, context.log
        assert isinstance(log, StreamedLog)
        part.check()
        if part.optional and not set(part.sources) <= {"activity", "side"}:
            return Uniform().init(context)
        if part.solver != "dual" or part.prior != "uniform" or not set(part.sources) <= {"activity", "side"}:
            raise ConfigError(
                "balancing a log that is streamed needs features='activity' (--set features=activity), solver='dual' "
                f"and prior='uniform'. Or {way_out(log.engine)} to read the log into memory."
            )
        return _ShardedWeights(part, context, log)


def _kept(part: Balancing, log: StreamedLog) -> float:
    return share_to_keep(len(log), *log.shape) if part.kept is None else part.kept


class _ShardedWeights(FittedWeights):
    def __init__(self, part: Balancing, context: FitContext, log: StreamedLog) -> None:
        self.result = balance_shards(
            log.shards,
            part.pairs(context),
            part.functions,
            tolerance=part.tolerance,
            strength=part.fixed_strength,
            kept=_kept(part, log) if part.strength == "auto" else None,
            units=part.units,
            engine=log.engine,
            memory=log.memory,
            seed=context.generator,
        )
        parts = [torch.from_numpy(len(log) * weights).float() for weights in self.result.weights]
        self.ratio = torch.cat(parts).to(context.device)
        self.result.weights.remove()

    def facts(self) -> dict[str, Any]:
        warning = warn_of_collapse(self.ratio.cpu(), COLLAPSE_ADVICE)
        return solution_facts([self.result]) | {"held_out_before": None, "held_out_after": None, "warning": warning}
