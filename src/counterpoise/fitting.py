"""One fit from its configuration: load, build, train, evaluate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from counterpoise.config import FitConfig
from counterpoise.datasets import load
from counterpoise.evaluation import Evaluation, evaluate
from counterpoise.feedback import Dataset
from counterpoise.methods import make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.training import Progress


@dataclass(frozen=True)
class Fitted:
    """A fitted model with what it was fitted on and how well it does."""

    configuration: FitConfig
    dataset: Dataset
    model: DebiasedRecommender
    evaluation: Evaluation | None  # None without a test
    seconds: float

    def facts(self) -> dict[str, Any]:
        """JSON-able: what a run folder keeps beside the model."""
        return {
            "fit": self.configuration.model_dump(),
            "dataset": {"name": self.dataset.name, **self.dataset.description},
            "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
            "seconds": round(self.seconds, 3),
        }


def fit_and_evaluate(configuration: FitConfig, progress: Progress | None = None) -> Fitted:
    """Load the data, fit the method, and evaluate it where there are unbiased ratings."""
    model = make(configuration.method, **{"seed": configuration.seed, **configuration.settings})
    dataset = load(
        configuration.data,
        configuration.path,
        configuration.protocol,
        configuration.seed,
        probe_fraction=configuration.probe_fraction,
        threshold=configuration.threshold,
        test=configuration.test,
        probe=configuration.probe,
        **configuration.read_options(),
    )
    started = time.perf_counter()
    model.fit(dataset.train, probe=dataset.probe, progress=progress)
    seconds = time.perf_counter() - started
    evaluation = None
    if dataset.test is not None:
        evaluation = evaluate(model, dataset.test, k=configuration.k, empty_users=configuration.empty_users)
    return Fitted(configuration, dataset, model, evaluation, seconds)
