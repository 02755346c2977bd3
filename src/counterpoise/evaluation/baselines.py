"""Baselines fitted beside a model, and the evaluation of several models on one biased hold-out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from counterpoise.config import Feedback
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.errors import DataError
from counterpoise.evaluation.evaluate import Evaluation, evaluate
from counterpoise.evaluation.full_ranking import RankingEvaluation, evaluate_ranking
from counterpoise.evaluation.holdout_weights import weigh_holdout
from counterpoise.methods import METHODS, configure, make, short_names
from counterpoise.models.base import as_backbone
from counterpoise.recommender import DebiasedRecommender

BASELINES: Mapping[Feedback, tuple[str, ...]] = {
    "ratings": ("popularity", "mf"),
    "clicks": ("popularity", "wmf"),
    "impressions": ("popularity", "mf"),
}
MAX_BASELINE_ROWS = 2_000_000  # of a log on which baselines are fitted beside a model without being asked for
# Gradient steps of a baseline on a large log. With a million simulated pairs 300 steps ranked as well as 150 epochs
# (AUC 0.659 against 0.658).
BASELINE_STEPS = 300
MAX_BASELINE_GROWTH = 100  # parameters for each of the model's, of which the settings of a fit may say something else
MAX_BASELINE_EPOCHS = 1000  # whatever the run has, which may have come from others


def baselines_for(log: FeedbackLog) -> list[str]:
    """The names of the baselines for a log of this kind of feedback."""
    return [name for name in BASELINES[log.feedback] if name in METHODS]


def baseline_of(
    name: str, model: DebiasedRecommender, log: FeedbackLog | None, settings: Mapping[str, Any]
) -> DebiasedRecommender:
    """An unfitted baseline with the training of a model, and those of its backbone settings that the baseline has.

    On a large log, where an epoch has several steps, it gets `BASELINE_STEPS` steps. Methods for clicks minimise losses
    of several kinds, so a baseline for clicks keeps its own training and settings, but for seed and device.
    """
    found = make(name, feedback=None if log is None else log.feedback)
    if log is not None and log.feedback == "clicks":
        found.training.seed, found.training.device = model.training.seed, model.training.device
        return _shortened(found, log)
    known = short_names(found)
    own = "backbone" if name == "mf" else "backbone__"  # MF is the run's backbone without correction, popularity is not
    given = {key: value for key, value in settings.items() if known.get(key, "").startswith(own)}
    if name != "mf":
        given = {key: value for key, value in given.items() if value != "auto"}  # what MF estimates, it does not know
    configure(found, **given)
    found.training = deepcopy(model.training)
    if log is None:
        return found
    found.training.epochs = min(found.training.epochs, MAX_BASELINE_EPOCHS)
    if hasattr(model, "scorer_"):
        _check_size(found, model)
    return _shortened(found, log)


def _check_size(found: DebiasedRecommender, model: DebiasedRecommender) -> None:
    """Raise `DataError` for a baseline of far more parameters than the model has beside which it stands."""
    shape = len(model.user_ids_), len(model.item_ids_)
    with torch.device("meta"):  # no memory
        planned = as_backbone(found.backbone).empty(*shape, n_columns=(0, 0))
    size, own = (sum(values.numel() for values in scorer.parameters()) for scorer in (planned, model.scorer_))
    if size > MAX_BASELINE_GROWTH * (own + sum(shape)):
        raise DataError("the settings of the fit are not those of its model. Leave the baseline out (--baseline none).")


def _shortened(found: DebiasedRecommender, log: FeedbackLog) -> DebiasedRecommender:
    """A baseline with at most `BASELINE_STEPS` steps where an epoch has several; not one in closed form."""
    steps = math.ceil(len(log) / found.training.rows_per_step(len(log)))
    if steps > 1 and found.closed_form is None:
        found.training.epochs = min(found.training.epochs, math.ceil(BASELINE_STEPS / steps))
    return found


def fit_baselines(
    model: DebiasedRecommender, log: FeedbackLog, settings: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, DebiasedRecommender]:
    """Baselines fitted to the log of a model; none to a log that is very large."""
    if len(log) > MAX_BASELINE_ROWS or not log.in_memory:
        return {}
    names = baselines_for(log) if names is None else names
    return {name: baseline_of(name, model, log, settings).fit(log) for name in names}


def weighted_evaluations(
    models: Mapping[str, DebiasedRecommender], dataset: Dataset, k: int = 5
) -> dict[str, Evaluation]:
    """The weighted evaluation of each model on the biased test of a dataset, all by the same balanced weights."""
    train, test = dataset.train, dataset.test
    if test is None:
        raise DataError("weighted estimates need a test, and there is none. Hold rows out, or give a test.")
    if test.labels.min() == test.labels.max():
        raise DataError(f"weighted estimates need labels of both kinds, and all {len(test):,} are {test.labels[0]:g}.")
    weights = weigh_holdout(test, train, probe=dataset.probe)
    return {name: evaluate(model, test, k, weights=weights, train=train) for name, model in models.items()}


def clicks_rankings(
    models: Mapping[str, DebiasedRecommender], test: FeedbackLog, k: int
) -> dict[str, RankingEvaluation]:
    """The full-ranking evaluation of each model on clicks, weighted by 1 / P(exposed) and as they are."""
    return {name: evaluate_ranking(model, test, k) for name, model in models.items()}
