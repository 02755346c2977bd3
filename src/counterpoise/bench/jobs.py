"""One fit of a table: what decides its result, and the row that it gives."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from typing import Any, get_args

import numpy as np

from counterpoise import __version__
from counterpoise.bench.datasets import BenchDataset, ground
from counterpoise.bench.methods import BenchMethod, entries
from counterpoise.config import BenchBackbone, Protocol
from counterpoise.data.log import Dataset, hash_logs
from counterpoise.errors import ConfigError, CounterpoiseError, check_choice
from counterpoise.evaluation.evaluate import metrics_by_rule
from counterpoise.methods import configure
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.parallel import fit_models
from counterpoise.recommender import DebiasedRecommender

REPLICATES = 200  # resampled sets of users, the same for all methods on one test
Reading = tuple[tuple[str, Any], ...]
RESAMPLED = ("auc", "ndcg_one", "ndcg_skip", "f1_one", "f1_skip")


@dataclass(frozen=True)
class Job:
    """A method on a split of a dataset. The seed draws probe, start and batches; of simulated data also the world."""

    dataset: str
    method: str
    seed: int
    backbone: BenchBackbone = "strong"
    protocol: Protocol = "honest"
    threshold: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)  # columns of files of one's own

    @cached_property
    def ground(self) -> BenchDataset:
        """Where it is fitted."""
        return ground(self.dataset)

    @cached_property
    def entry(self) -> BenchMethod:
        """What is fitted."""
        return entries([self.method])[0]

    def load(self) -> Dataset:
        """The split that it is fitted and evaluated on."""
        return _load(self.dataset, self.protocol, self.seed, self.threshold, tuple(self.reading.items()))

    def model(self) -> Any:
        """A fresh model with the settings of this job."""
        try:
            model = self.entry.build(self.seed)
        except Exception as error:
            if self.entry.group != "own":
                raise
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.method!r} must build a model from a seed, and raised {reason}.") from error
        if not isinstance(model, DebiasedRecommender):
            if self.settings:
                raise ConfigError(f"{self.method!r} is no recommender of counterpoise: settings do not reach it.")
            return model
        settings = {"device": "cpu"} | backbone_settings(self.backbone, self.ground)  # the same on every machine
        return configure(model, **settings | dict(self.settings))

    def configuration(self) -> dict[str, Any]:
        """JSON-able: everything that decides the result but for the seed and the versions of other packages."""
        model = self.model()
        own = _without_seed(model.to_config()) if isinstance(model, DebiasedRecommender) else None
        names = ("dataset", "method", "backbone", "protocol", "threshold")
        facts = {name: getattr(self, name) for name in names} | {"settings": dict(self.settings), "model": own}
        data = _fingerprint(self.dataset, self.protocol, self.threshold, tuple(self.reading.items()))
        return facts | {"source": self.entry.source(), "data": data, "version": __version__, "replicates": REPLICATES}

    @cached_property
    def config_hash(self) -> str:
        """A short name of the configuration."""
        text = json.dumps(self.configuration(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def backbone_settings(backbone: BenchBackbone, where: BenchDataset) -> dict[str, Any]:
    """Nothing for "strong", our defaults; for "paper" its matrix factorisation and batches.

    The paper tells dimension and batch size, and grids for the rest. Learning rate and L2 are the same for all methods,
    chosen for `mf` inside logs (`benchmarks/defaults.py --backbone paper`): within 0.0005 of the least excess loss,
    the smaller learning rate.
    """
    check_choice("backbone", backbone, get_args(BenchBackbone))
    if backbone == "strong":
        return {}
    model = MatrixFactorization(dim=4, biases=False, l2=3.0)
    batches = {"batch_size": where.batch_size, "pairs": where.pairs}
    return {"backbone": model, "epochs": 30, "learning_rate": 0.05, **batches}


def measure(job: Job) -> dict[str, Any]:
    """Fit and evaluate: the row of this job. A fit that fails gives a row that says why."""
    dataset, started = job.load(), time.perf_counter()
    try:
        model = job.model().fit(dataset.train, probe=dataset.probe)
        return _row(job) | _results(job, model, dataset, time.perf_counter() - started)
    except Exception as error:
        reason = str(error) if isinstance(error, CounterpoiseError) else f"{type(error).__name__}: {error}"
        return _row(job) | {"failed": reason, "seconds": None, "metrics": {}, "replicates": {}}


def measure_together(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The rows of several jobs, fitted side by side if they share a log and nothing goes wrong, else one by one."""
    datasets = [job.load() for job in jobs]
    log, started = datasets[0].train, time.perf_counter()
    try:
        models = [job.model() for job in jobs]
        if len({hash_logs("", dataset.train) for dataset in datasets}) > 1:
            raise ConfigError("these jobs have different logs")
        models = fit_models(models, log, [dataset.probe for dataset in datasets])
        seconds = (time.perf_counter() - started) / len(jobs)
        found = zip(jobs, models, datasets, strict=True)
        return [_row(job) | _results(job, model, dataset, seconds) for job, model, dataset in found]
    except Exception:  # the one that fails is found, and says why, when it is fitted alone
        return [measure(job) for job in jobs]


def _row(job: Job) -> dict[str, Any]:
    """What there is to say of a job before it is fitted."""
    where, entry = job.ground, job.entry
    return {
        "dataset": job.dataset,
        "method": job.method,
        "title": entry.title,
        "group": entry.group,
        "family": entry.family,
        "backbone": job.backbone,
        "protocol": job.protocol,
        "seed": job.seed,
        "settings": dict(job.settings),
        "k": where.k,
        "config_hash": job.config_hash,
        "versions": versions(),
    }


def _results(job: Job, model: Any, dataset: Dataset, seconds: float) -> dict[str, Any]:
    """How good a fitted model is."""
    metrics, replicates = metrics_by_rule(model, dataset.test, job.ground.k, REPLICATES)  # type: ignore[arg-type]
    return {
        "failed": None,
        "seconds": round(seconds, 3),
        "metrics": {name: _finite(value) for name, value in metrics.items()},
        "replicates": {name: [_finite(value) for value in np.round(replicates[name], 6)] for name in RESAMPLED},
    }


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Of everything that may change a number."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy")}
    return {"counterpoise": __version__, "python": platform.python_version(), **packages}


@lru_cache(maxsize=32)
def _fingerprint(dataset: str, protocol: Protocol, threshold: float | None, reading: Reading) -> str:
    return ground(dataset).fingerprint(protocol, threshold, dict(reading))


@lru_cache(maxsize=16)
def _load(dataset: str, protocol: Protocol, seed: int, threshold: float | None, reading: Reading) -> Dataset:
    return ground(dataset).load(protocol, seed, threshold, dict(reading))


def _without_seed(config: dict[str, Any]) -> dict[str, Any]:
    training = {name: value for name, value in config["training"].items() if name != "seed"}
    return config | {"training": training}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
