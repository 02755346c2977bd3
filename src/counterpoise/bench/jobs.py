"""The fits of an experiment: which there are, what decides the result of each, and the row of results that it gives."""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise import __version__
from counterpoise.bench.datasets import BENCH_DATASETS, BenchDataset, find_dataset, find_datasets
from counterpoise.bench.methods import BenchMethod, find_methods
from counterpoise.bench.presets import preset_settings
from counterpoise.bench.store import hash_facts
from counterpoise.config import BenchPreset, Feedback
from counterpoise.data.log import Dataset
from counterpoise.data.protocols import find_protocol
from counterpoise.errors import ConfigError, CounterpoiseError, check_number
from counterpoise.evaluation.evaluate import evaluate, metrics_and_replicates
from counterpoise.evaluation.full_ranking import MEASURES, evaluate_ranking
from counterpoise.evaluation.metrics import CLICK_METRIC_NAMES, METRIC_NAMES, PAPER_METRIC_NAMES
from counterpoise.methods import configure
from counterpoise.recommender import DebiasedRecommender

REPLICATES = 200  # resampled sets of users, the same for all methods on one test
RESAMPLED = ("auc", "ndcg", "recall", "f1", *PAPER_METRIC_NAMES, *CLICK_METRIC_NAMES)
ReadOptions = tuple[tuple[str, Any], ...]  # the items of `Job.read_options`: hashable


@dataclass(frozen=True)
class Job:
    """One fit: a method on a split of a dataset. The seed draws probe, start and batches, and any simulated data."""

    dataset: str
    method: str
    seed: int
    preset: BenchPreset = "default"
    protocol: str = "honest"
    threshold: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    read_options: Mapping[str, Any] = field(default_factory=dict)  # for files of the user's own
    feedback: Feedback | None = None  # what the log is read as; None: as it is

    @property
    def _source(self) -> tuple[float | None, ReadOptions, Feedback | None]:
        return self.threshold, tuple(self.read_options.items()), self.feedback

    @cached_property
    def kind(self) -> Feedback:
        """The kind of feedback of its log."""
        feedback = self.feedback or find_protocol(self.protocol).feedback
        if feedback is not None or self.dataset in BENCH_DATASETS:
            return feedback or "ratings"
        return self.load().train.feedback

    @cached_property
    def bench_dataset(self) -> BenchDataset:
        """The dataset by its name."""
        return find_dataset(self.dataset)

    @cached_property
    def bench_method(self) -> BenchMethod:
        """The method by its name."""
        return find_methods([self.method], self.kind)[0]

    def load(self) -> Dataset:
        """The split to fit and evaluate on."""
        return _load(self.dataset, self.protocol, self.seed, *self._source)

    def model(self) -> Any:
        """A fresh model with the settings of this job."""
        try:
            model = self.bench_method.build(self.seed)
        except Exception as error:
            if self.bench_method.group != "own":
                raise
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.method!r} must build a model from a seed, and raised {reason}.") from error
        if not isinstance(model, DebiasedRecommender):
            if self.settings:
                raise ConfigError(f"{self.method!r} is no recommender of counterpoise: settings do not apply to it.")
            return model
        settings = {"device": "cpu"} | preset_settings(self.preset, self.bench_dataset, model)  # the same everywhere
        return configure(configure(model, **settings), **self.settings)

    def configuration(self) -> dict[str, Any]:
        """Everything that decides the result except the seed and the versions of other packages; JSON-able."""
        model, own = self.model(), None
        if isinstance(model, DebiasedRecommender):
            own = model.to_config()
            del own["training"]["seed"]
        names = ("dataset", "method", "preset", "protocol", "threshold")
        facts = {name: getattr(self, name) for name in names} | {"settings": dict(self.settings), "model": own}
        data = _fingerprint(self.dataset, self.protocol, *self._source)
        facts |= {"source": self.bench_method.source(), "data": data, "version": __version__}
        return facts | {"feedback": self.kind, "replicates": [REPLICATES, *RESAMPLED]}

    @cached_property
    def config_hash(self) -> str:
        """A short hash of the configuration."""
        return hash_facts(self.configuration())

    @property
    def file_name(self) -> str:
        """The name of its result in a store."""
        words = (Path(self.dataset).name, self.method, self.preset, self.protocol, self.config_hash)
        return ".".join(re.sub(r"[^\w-]+", "_", word) for word in (*words, f"seed{self.seed}"))

    def measure(self) -> dict[str, Any]:
        """Fit and evaluate: a row of results. If the fit fails, `failed` is the reason."""
        dataset, method, k = self.load(), self.bench_method, self.bench_dataset.list_length(self.protocol)
        row: dict[str, Any] = {
            "dataset": self.dataset,
            "method": self.method,
            "title": method.title,
            "group": method.group,
        }
        row |= {"family": method.family, "preset": self.preset, "protocol": self.protocol, "seed": self.seed}
        row |= {"feedback": self.kind}
        row |= {"settings": dict(self.settings), "k": k, "config_hash": self.config_hash, "versions": _versions()}
        started = time.perf_counter()
        try:
            model = self.model().fit(dataset.train, probe=dataset.probe)
            seconds = round(time.perf_counter() - started, 3)
            metrics, resampled = measured(model, dataset, k, self.protocol)
        except Exception as error:
            return row | {"failed": describe_error(error), "seconds": None, "metrics": {}, "replicates": {}}
        return row | {
            "failed": None,
            "seconds": seconds,
            "metrics": {name: _finite(value) for name, value in metrics.items()},
            "replicates": {name: [_finite(value) for value in np.round(one, 6)] for name, one in resampled.items()},
        }


def measured(
    model: Any, dataset: Dataset, k: int, protocol: str
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    """(every metric, the same of resampled sets of users); on a biased test weighted estimates, not resampled.

    Where the test has clicks alone, they are ranked among all items.
    """
    test = dataset.test
    assert test is not None
    if dataset.ranked:
        ranking = evaluate_ranking(model, test, k, train=dataset.train)
        return {f"ranking_{name}": getattr(ranking, name) for name in MEASURES}, {}
    if test.sample == "uniform" or find_protocol(protocol).keeps_seen:
        metrics, resampled = metrics_and_replicates(model, test, k, REPLICATES)
        return metrics, {name: resampled[name] for name in RESAMPLED}
    found = evaluate(model, test, k, weights="balanced", train=dataset.train, probe=dataset.probe, bootstrap=0)
    return {name: getattr(found, name) for name in METRIC_NAMES}, {}


def plan(
    datasets: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    presets: Sequence[BenchPreset],
    protocols: Sequence[str],
    **common: Any,
) -> tuple[list[Job], list[dict[str, str]]]:
    """The fits of an experiment, and the datasets that were not found with the way to get them.

    Every method on every dataset under every protocol and preset, with seeds 0, 1, ...; `common`: what these jobs
    have in common. Fits come seed by seed, so that an interrupted experiment has all methods with fewer seeds. Every
    model is built and every dataset read here, so that a mistake costs no fit.
    """
    check_number("seeds", seeds, at_least=1, integer=True)
    asked = find_datasets(datasets)
    if not asked or not methods:
        raise ConfigError("`datasets` and `methods` must name at least one each.")
    if common.get("read_options") and all(dataset.name in BENCH_DATASETS for dataset in asked):
        named = ", ".join(f"`{name}`" for name in common["read_options"])
        raise ConfigError(f"{named}: only for files of your own, and `datasets` names none.")
    missing = {dataset.name: advice for dataset in asked if (advice := dataset.missing())}
    found = [dataset.name for dataset in asked if dataset.name not in missing]
    pairs = list(product(found, protocols))
    kinds = {pair: Job(pair[0], "", 0, presets[0], pair[1], **common).kind for pair in pairs}
    of_kind = {kind: find_methods(methods, kind) for kind in {*kinds.values()} or {common.get("feedback") or "ratings"}}
    jobs = [
        Job(dataset, method.name, seed, preset, protocol, **common)
        for seed, (dataset, protocol), preset in product(range(seeds), pairs, presets)
        for method in of_kind[kinds[dataset, protocol]]
    ]
    for job in jobs[: len(jobs) // seeds]:
        job.config_hash  # noqa: B018  builds the model and reads the data
    return jobs, [{"dataset": name, "missing": advice} for name, advice in missing.items()]


def describe_error(error: Exception) -> str:
    """Our own errors speak for themselves; others are named."""
    return str(error) if isinstance(error, CounterpoiseError) else f"{type(error).__name__}: {error}"


def describe_failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line with the reason for every fit that failed."""
    failed = (row for row in rows if row["failed"] is not None)
    return [f"{row['method']}, seed {row['seed']}, {row['settings']}: {row['failed']}" for row in failed]


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """The versions of everything that may change a number."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy")}
    return {"counterpoise": __version__, "python": platform.python_version(), **packages}


@lru_cache(maxsize=32)
def _fingerprint(
    dataset: str, protocol: str, threshold: float | None, read_options: ReadOptions, feedback: Feedback | None
) -> str:
    return find_dataset(dataset).fingerprint(protocol, threshold, dict(read_options), feedback)


@lru_cache(maxsize=16)
def _load(
    dataset: str,
    protocol: str,
    seed: int,
    threshold: float | None,
    read_options: ReadOptions,
    feedback: Feedback | None,
) -> Dataset:
    return find_dataset(dataset).load(protocol, seed, threshold, dict(read_options), feedback)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
