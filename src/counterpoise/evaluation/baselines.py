"""Baselines fitted beside a model, and the evaluation of several models on one biased hold-out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.errors import DataError
from counterpoise.evaluation.evaluate import Evaluation, evaluate
from counterpoise.evaluation.holdout_weights import weigh_holdout
from counterpoise.methods import configure, make, short_names
from counterpoise.recommender import DebiasedRecommender

BASELINES = ("popularity", "mf")
MAX_BASELINE_ROWS = 2_000_000  # of a log on which baselines are fitted beside a model without being asked for
# Gradient steps of a baseline on a large log. With a million simulated pairs 300 steps ranked as well as 150 epochs
# (AUC 0.659 against 0.658).
BASELINE_STEPS = 300


def baseline_of(
    name: str, model: DebiasedRecommender, log: FeedbackLog | None, settings: Mapping[str, Any]
) -> DebiasedRecommender:
    """An unfitted baseline with the training of a model, and those of its backbone settings that the baseline has.

    On a large log, where an epoch has several steps, it gets `BASELINE_STEPS` steps.
    """
    found = make(name)
    known = short_names(found)
    own = "backbone" if name == "mf" else "backbone__"  # MF is the run's backbone without correction, popularity is not
    configure(found, **{key: value for key, value in settings.items() if known.get(key, "").startswith(own)})
    found.training = deepcopy(model.training)
    if log is not None:
        steps = math.ceil(len(log) / found.training.rows_per_step(len(log)))
        if steps > 1:
            found.training.epochs = min(found.training.epochs, math.ceil(BASELINE_STEPS / steps))
    return found


def fit_baselines(
    model: DebiasedRecommender, log: FeedbackLog, settings: Mapping[str, Any], names: Sequence[str] = BASELINES
) -> dict[str, DebiasedRecommender]:
    """Baselines fitted to the log of a model; none to a log that is very large."""
    if len(log) > MAX_BASELINE_ROWS or not log.in_memory:
        return {}
    return {name: baseline_of(name, model, log, settings).fit(log) for name in names}


def weighted_evaluations(
    models: Mapping[str, DebiasedRecommender], dataset: Dataset, k: int = 5
) -> dict[str, Evaluation]:
    """The weighted evaluation of each model on the biased test of a dataset, all by the same balanced weights."""
    train, test = dataset.train, dataset.test
    if test is None or not train.in_memory:
        raise DataError("they need a test, and the training log in memory.")
    if test.labels.min() == test.labels.max():
        raise DataError(f"they need labels of both kinds, and all {len(test):,} are {test.labels[0]:g}.")
    weights = weigh_holdout(test, train, probe=dataset.probe)
    return {name: evaluate(model, test, k, weights=weights, train=train) for name, model in models.items()}
