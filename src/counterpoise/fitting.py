"""One fit from its configuration: load, build, train, evaluate; and a saved run evaluated again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.config import FitConfig
from counterpoise.datasets import load
from counterpoise.errors import CounterpoiseError, DataError, StoppedError
from counterpoise.evaluation import Evaluation, binary_labels, evaluate
from counterpoise.feedback import Dataset, FeedbackLog
from counterpoise.imbalances import Imbalance, imbalances, log_balance
from counterpoise.ingest import read_log
from counterpoise.making import make
from counterpoise.persistence import read_manifest
from counterpoise.recommender import DebiasedRecommender, load_model
from counterpoise.simulation import simulate
from counterpoise.sources import SOURCES
from counterpoise.training import DivergenceError, Progress
from counterpoise.words import EmptyUsers, Protocol, Unknown

GLANCE = 2_000_000  # rows
STOPPED = ".stopped"  # what the folder of a fit that came to no end is called behind its name


@dataclass(frozen=True)
class Fitted:
    """A fitted model with what it was fitted on and how well it does."""

    configuration: FitConfig
    dataset: Dataset
    model: DebiasedRecommender
    evaluation: Evaluation | None  # None without a test
    seconds: float
    truth: dict[str, float] | None = None  # of simulated data: what no real log tells

    def imbalances(self) -> list[Imbalance]:
        """How the log differs from all pairs before and after weighting; before alone where patience held rows out.

        Empty for a log that is too long to be looked at in passing.
        """
        log, ratio = self.dataset.train, self.model.ratio_
        if len(log) > GLANCE:
            return []
        return imbalances(log_balance(log, ratio if len(ratio) == len(log) else None))

    def facts(self) -> dict[str, Any]:
        """JSON-able: what a run folder keeps beside the model."""
        return {
            "fit": self.configuration.model_dump(),
            "dataset": {"name": self.dataset.name, **self.dataset.description},
            "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
            "seconds": round(self.seconds, 3),
            "truth": self.truth,
        }


def fit_and_evaluate(configuration: FitConfig, progress: Progress | None = None, folder: Path | None = None) -> Fitted:
    """Load the data, fit the method, and evaluate it where there are unbiased ratings.

    `folder`: beside it the last good epoch is saved where training is stopped or diverges.
    """
    model = make(configuration.method, **{"seed": configuration.seed, **configuration.settings})
    dataset = load_data(configuration)
    if dataset.test is not None:
        binary_labels(dataset.test)  # an error now, not after the fit
    started = time.perf_counter()
    try:
        model.fit(dataset.train, probe=dataset.probe, progress=progress)
    except DivergenceError as stop:
        raise DivergenceError(f"{stop} {_keep_stopped(model, configuration, folder)}") from None
    except KeyboardInterrupt:
        kept = _keep_stopped(model, configuration, folder)
        raise StoppedError(f"stopped before the end. {kept} The same command fits it anew.") from None
    seconds = time.perf_counter() - started
    evaluation = None
    if dataset.test is not None:
        evaluation = evaluate(model, dataset.test, k=configuration.k, empty_users=configuration.empty_users)
    truth = _truth(configuration, model) if configuration.data == "simulated" else None
    return Fitted(configuration, dataset, model, evaluation, seconds, truth)


def _keep_stopped(model: DebiasedRecommender, configuration: FitConfig, folder: Path | None) -> str:
    """Save what was learned before training was stopped, beside the folder that a whole fit goes to; what to say."""
    if folder is None or not hasattr(model, "history_"):
        return "Nothing was learned that could be kept."
    place = folder.with_name(folder.name + STOPPED)
    epoch, epochs = model.history_.best_epoch, model.training.epochs
    try:
        model.save(place, fit=configuration.model_dump(), stopped={"epoch": epoch, "epochs": epochs})
    except CounterpoiseError as error:
        return f"What was learned could not be kept: {error}"
    return f"What was learned up to epoch {epoch} of {epochs} is kept as a run in {place}."


def load_data(configuration: FitConfig) -> Dataset:
    """The data that a configuration names."""
    return load(
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


def _truth(configuration: FitConfig, model: DebiasedRecommender) -> dict[str, float]:
    """The ideal loss of the model, and the bias of the log's mean error with equal weights and with the model's."""
    world = simulate(seed=configuration.seed, probe_fraction=configuration.probe_fraction)
    known = {"ideal_loss": world.ideal_risk(model), "bias_of_the_log": world.selection_bias(model)}
    rows = len(model.ratio_) == len(world.dataset.train)  # with patience some rows have no weight
    return known | ({"bias_of_the_weights": world.selection_bias(model, model.ratio_)} if rows else {})


def evaluate_run(
    run: str | Path,
    test: str,
    unknown: Unknown = "error",
    reading: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    protocol: Protocol | None = None,
    seed: int | None = None,
    threshold: float | None = None,
    k: int = 5,
    empty_users: EmptyUsers = "skip",
) -> tuple[Evaluation, int, Protocol]:
    """(the evaluation of a saved run on a file or the test of a named dataset, rows seen in training, protocol).

    The arguments are those of `read_test`.
    """
    model, fitted = load_model(run), read_manifest(run).get("fit") or {}
    log, seen, protocol = read_test(
        model, fitted, test, unknown, reading, path=path, protocol=protocol, seed=seed, threshold=threshold
    )
    scores = model.predict_log(log, unknown=unknown)
    return evaluate(scores, log, k=k, empty_users=empty_users), seen, protocol


def read_test(
    model: DebiasedRecommender,
    fitted: Mapping[str, Any],
    test: str,
    unknown: Unknown = "error",
    reading: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    protocol: Protocol | None = None,
    seed: int | None = None,
    threshold: float | None = None,
) -> tuple[FeedbackLog, int, Protocol]:
    """(a file or the test of a named dataset as a log, how many of its pairs were seen in training, protocol).

    What is not given is as in the run, whose configuration is `fitted`: the protocol, the split and the threshold. In
    the honest protocol the pairs of the training log and of the probe are left out. `reading`: options of `read_log`
    for a file.
    """
    protocol = protocol or fitted.get("protocol", "honest")
    threshold = model.log_facts_["threshold"] if threshold is None else threshold
    if test in SOURCES:
        seed = fitted.get("seed", 0) if seed is None else seed
        fraction = fitted.get("probe_fraction", FitConfig.model_fields["probe_fraction"].default)
        log = load(test, path or fitted.get("path"), protocol, seed, probe_fraction=fraction, threshold=threshold).test
        assert log is not None
    else:
        ids = {"user_ids": model.user_ids_, "item_ids": model.item_ids_, "new_users": unknown != "error"}
        log = read_log(test, threshold=threshold, **ids, **(reading or {}))
    seen = model.has_seen(log)
    if protocol == "honest":
        if seen.all():
            raise DataError(f"{test}: all {len(seen)} pairs were seen in training. Use --protocol paper to count them.")
        log = log.take(~seen)
    return log, int(seen.sum()), protocol
