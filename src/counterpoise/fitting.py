"""One fit from its configuration: load, build, train, evaluate; and a saved run evaluated again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise import __version__
from counterpoise.balancing import Balancing
from counterpoise.checkpoints import FILE, Checkpoint
from counterpoise.config import FitConfig
from counterpoise.datasets import load
from counterpoise.engines import make_engine
from counterpoise.errors import ConfigError, CounterpoiseError, DataError, StoppedError
from counterpoise.evaluation import Evaluation, binary_labels, evaluate
from counterpoise.feedback import Dataset, FeedbackLog
from counterpoise.fingerprints import hash_logs
from counterpoise.imbalances import Imbalance, imbalances, log_balance
from counterpoise.ingest import header_of, read_log
from counterpoise.making import make
from counterpoise.persistence import read_manifest, remove_folder
from counterpoise.recommender import DebiasedRecommender
from counterpoise.saved_models import load_model
from counterpoise.simulation import simulate
from counterpoise.sources import SOURCES
from counterpoise.streamed_fit import fit_streamed
from counterpoise.streamed_log import StreamedLog, too_long
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


def fit_and_evaluate(
    configuration: FitConfig, progress: Progress | None = None, folder: Path | None = None, resume: bool = False
) -> Fitted:
    """Load the data, fit the method, and evaluate it where there are unbiased ratings.

    `folder`: where a long fit is written down on the way; beside it the last good epoch is saved where training is
    stopped or diverges. `resume`: go on from what is there.
    """
    model = make(configuration.method, **{"seed": configuration.seed, **configuration.settings})
    dataset = load_data(configuration)
    if dataset.test is not None:
        binary_labels(dataset.test)  # an error now, not after the fit
    started = time.perf_counter()
    checkpoint = None if folder is None else _checkpoint(configuration, model, dataset, folder, resume)
    passed = _epochs_passed(checkpoint)
    try:
        if isinstance(dataset.train, StreamedLog):
            fit_streamed(model, dataset.train, dataset.probe, progress, checkpoint)
        else:
            model.fit(dataset.train, probe=dataset.probe, progress=progress, checkpoint=checkpoint)
    except DivergenceError as stop:
        raise DivergenceError(f"{stop} {_keep_stopped(model, configuration, folder)}") from None
    except KeyboardInterrupt:
        kept = _keep_stopped(model, configuration, folder, passed)
        way = "goes on with --resume" if checkpoint is not None and checkpoint.file.exists() else "fits it anew"
        raise StoppedError(f"stopped before the end. {kept} The same command {way}.") from None
    seconds = time.perf_counter() - started
    evaluation = None
    if dataset.test is not None:
        evaluation = evaluate(model, dataset.test, k=configuration.k, empty_users=configuration.empty_users)
    truth = _truth(configuration, model) if configuration.data == "simulated" else None
    return Fitted(configuration, dataset, model, evaluation, seconds, truth)


def _checkpoint(
    configuration: FitConfig, model: DebiasedRecommender, dataset: Dataset, folder: Path, resume: bool
) -> Checkpoint | None:
    """The checkpoint of this fit; None where weights or the best epoch depend on more than the last epoch."""
    weights = model.weights
    changing = isinstance(weights, Balancing) and (weights.moving or getattr(weights.functions, "adaptive", False))
    if changing or getattr(model.training, "patience", None) is not None:
        if resume:
            raise ConfigError("`resume` does not go with patience, nor with weights that follow the errors (akb).")
        return None
    train, probe = dataset.train, dataset.probe
    data = train.shards.folder.name if isinstance(train, StreamedLog) else hash_logs("", train, probe)
    facts = [__version__, model.to_config(), data, configuration.threshold, None if probe is None else len(probe)]
    key = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
    return Checkpoint(folder / FILE, key, resume)


def _epochs_passed(checkpoint: Checkpoint | None) -> int:
    """The epochs that a resumed fit finds done; none where its file tells nothing, which the fit itself will say."""
    from safetensors import SafetensorError, safe_open

    if checkpoint is None or not checkpoint.resume:
        return 0
    try:
        with safe_open(checkpoint.file, framework="pt") as found:
            return len(found.get_tensor("losses"))
    except (SafetensorError, OSError, RuntimeError):
        return 0


def _keep_stopped(model: DebiasedRecommender, configuration: FitConfig, folder: Path | None, passed: int = 0) -> str:
    """Save what was learned before training was stopped, beside the folder that a whole fit goes to; what to say.

    `passed`: epochs that were learned before; a stop while they are passed by loses none of them.
    """
    if folder is None or not hasattr(model, "history_"):
        return "Nothing was learned that could be kept."
    place = folder.with_name(folder.name + STOPPED)
    epoch, epochs = max(model.history_.best_epoch, passed), model.training.epochs
    try:
        model.save(place, fit=configuration.model_dump(), stopped={"epoch": epoch, "epochs": epochs})
    except CounterpoiseError as error:
        return f"What was learned could not be kept: {error}"
    return f"What was learned up to epoch {epoch} of {epochs} is kept as a run in {place}."


def drop_stopped(configuration: FitConfig, folder: Path) -> None:
    """Remove what a stopped fit of the same configuration left beside the folder of the whole one."""
    place = folder.with_name(folder.name + STOPPED)
    try:
        manifest = read_manifest(place)
    except DataError:
        return  # there is none, or it is not ours
    if "stopped" in manifest and manifest.get("fit") == configuration.model_dump():
        remove_folder(place)


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
        users=configuration.users,
        items=configuration.items,
        memory=configuration.memory,
        streaming={
            "cache": configuration.cache,
            "engine": make_engine(configuration.engine, configuration.workers, configuration.address),
        },
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
    memory: str = "4GB",
) -> tuple[Evaluation, int, Protocol]:
    """(the evaluation of a saved run on a file or the test of a named dataset, rows seen in training, protocol).

    The arguments are those of `read_test`.
    """
    model, fitted = load_model(run), read_manifest(run).get("fit") or {}
    options: dict[str, Any] = {"path": path, "protocol": protocol, "seed": seed, "threshold": threshold}
    log, seen, protocol = read_test(model, fitted, test, reading, memory=memory, **options)
    scores = model.predict_log(log, unknown=unknown)  # which says what to do about unknown users
    return evaluate(scores, log, k=k, empty_users=empty_users), seen, protocol


def read_test(
    model: DebiasedRecommender,
    fitted: Mapping[str, Any],
    test: str,
    reading: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    protocol: Protocol | None = None,
    seed: int | None = None,
    threshold: float | None = None,
    memory: str = "4GB",
) -> tuple[FeedbackLog, int, Protocol]:
    """(a file or the test of a named dataset as a log, how many of its pairs were seen in training, protocol).

    What is not given is as in the run, whose configuration is `fitted`: the protocol, the split, the threshold, and
    the names of columns where the file has them (`as_in_run`). In the honest protocol the pairs of the training log and
    of the probe are left out. `reading`: options of `read_log` for a file, a folder or a glob, which must fit into
    `memory`: rankings are of users, whose rows may lie anywhere.
    Users whom the model does not know are kept: it says what to do about them (`strangers`, `predict_log`).
    """
    protocol = protocol or fitted.get("protocol", "honest")
    threshold = model.log_facts_["threshold"] if threshold is None else threshold
    if test in SOURCES:
        seed = fitted.get("seed", 0) if seed is None else seed
        fraction = fitted.get("probe_fraction", FitConfig.model_fields["probe_fraction"].default)
        log = load(test, path or fitted.get("path"), protocol, seed, probe_fraction=fraction, threshold=threshold).test
        assert log is not None
    elif too_long(test, memory):
        raise DataError(f"{test}: more rows than fit into the `memory` of {memory}. Raise it, or evaluate on a sample.")
    else:
        ids = {"user_ids": model.user_ids_, "item_ids": model.item_ids_, "new_users": True}
        log = read_log(test, threshold=threshold, **ids, **(as_in_run(fitted, test, dict(reading or {}))))
    seen = model.has_seen(log)
    if protocol == "honest":
        if seen.all():
            raise DataError(f"{test}: all {len(seen)} pairs were seen in training. Use --protocol paper to count them.")
        log = log.take(~seen)
    return log, int(seen.sum()), protocol


def as_in_run(fitted: Mapping[str, Any], test: str, reading: dict[str, Any]) -> dict[str, Any]:
    """`reading`, or where it names no column, what the log of the run was read with, if its columns are found here.

    They are where the file has as many of them as of the usual ones, and any at all.
    """
    roles, usual = ("user_col", "item_col", "rating_col"), FitConfig.model_fields
    try:
        own = FitConfig(**fitted)
    except ValueError:  # a model that no command has fitted
        return reading
    if any(role in reading for role in roles):
        return reading
    for separator in dict.fromkeys([reading.get("separator"), own.separator]):
        header = header_of(test, separator)
        found = sum(getattr(own, role) in header for role in roles)
        if found and found >= sum(usual[role].default in header for role in roles):
            return reading | {role: getattr(own, role) for role in roles} | {"separator": separator}
    return reading
