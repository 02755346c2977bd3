"""A recommender fitted to a log that is streamed: the same parts and the same loop, block by block at its ends."""

from __future__ import annotations

from typing import Any

import torch

from counterpoise.balancing import Balancing
from counterpoise.checkpoints import Checkpoint
from counterpoise.errors import ConfigError
from counterpoise.feedback import FeedbackLog
from counterpoise.graphs import recorded
from counterpoise.hedging import HedgedLearner, begin
from counterpoise.imputation import Constant, Imputation, Learned, Nothing
from counterpoise.learner import Learner
from counterpoise.propensity import Popularity
from counterpoise.recommender import DebiasedRecommender
from counterpoise.silence import Silence
from counterpoise.streamed_batches import StreamedBatches
from counterpoise.streamed_log import StreamedLog
from counterpoise.threads import one_thread
from counterpoise.training import THREADS_PAY, DivergenceError, Interrupted, Progress, train
from counterpoise.weights import Itself, NaiveBayes, Uniform, Weights

WEIGHTS: tuple[type[Weights], ...] = (Uniform, Itself, NaiveBayes, Popularity, Balancing)
IMPUTATIONS: tuple[type[Imputation], ...] = (Nothing, Constant, Learned, Silence)


def fit_streamed(
    model: DebiasedRecommender,
    log: StreamedLog,
    probe: FeedbackLog | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> DebiasedRecommender:
    """`model.fit` on a streamed log, for the parts that look at batches alone or at one number for each row."""
    model.check(log, probe)
    _check(model)
    problem = model.problem(log, probe)
    with one_thread(model.training.rows_a_step(len(log)) < THREADS_PAY):
        learner = begin(problem, model.weights, model.risk, model.imputation, model.hedge)
        batches = problem.batches(learner.uses_pairs)
        assert isinstance(batches, StreamedBatches)
        stepped = recorded(learner, model.training)
        trained = stepped if checkpoint is None else checkpoint.of(stepped)
        try:
            history = train(trained, batches, None, model.training, progress)
        except (DivergenceError, Interrupted) as stop:
            if stop.history is not None:
                model.keep(learner, stop.history, _facts(learner, batches), log, probe)
            raise
        return model.keep(learner, history, _facts(learner, batches), log, probe)


def _check(model: DebiasedRecommender) -> None:
    for name, kinds in (("weights", WEIGHTS), ("imputation", IMPUTATIONS)):
        part = getattr(model, name)
        if type(part) not in kinds:
            known = ", ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"`{name}` must be one of {known} where the log is streamed, got {type(part).__name__}. "
                "Choose another method, or raise --memory to read the log into memory."
            )
    if model.training.patience is not None:
        raise ConfigError("`patience` must be left out where the log is streamed. Or raise --memory.")


@torch.no_grad()
def _facts(learner: Learner | HedgedLearner, batches: StreamedBatches) -> dict[str, Any]:
    """What `Learner.finish` says, with the risk as the mean over blocks."""
    facts, rows, risk, errors = learner.facts(), 0, 0.0, 0.0
    for block in batches.blocks():
        own_risk, own_error = learner.risk_on_log(block)
        size = len(block.rows)
        rows, risk, errors = rows + size, risk + size * own_risk, errors + size * own_error
    return facts | {"risk": risk / rows, "error_on_log": errors / rows}
