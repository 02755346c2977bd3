"""The datasets of an experiment, real and simulated, with what the paper fixes for each: K and the batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from counterpoise.config import Feedback
from counterpoise.data.datasets import SOURCES, load_dataset, search_folders
from counterpoise.data.log import Dataset, hash_logs
from counterpoise.data.protocols import find_protocol
from counterpoise.data.simulation import simulate
from counterpoise.errors import ConfigError, DataError, did_you_mean
from counterpoise.evaluation.evaluate import binary_labels


@dataclass(frozen=True)
class BenchDataset:
    """A dataset by name or path, the length k of the evaluated lists, and the paper's batches.

    `read_options` of its methods: columns, duplicates and separator, for files of the user's own.
    """

    name: str
    k: int = 5
    batch_size: int = 2048  # rows of the log
    pairs: int = 4  # uniform pairs for each row
    like: Literal["coat", "music", "product"] = "music"  # the paper's dataset whose settings are taken for it
    shape: Mapping[str, Any] = field(default_factory=dict)  # arguments of `simulate`; empty for real data

    def load(
        self,
        protocol: str,
        seed: int,
        threshold: float | None = None,
        read_options: Mapping[str, Any] | None = None,
        feedback: Feedback | None = None,
    ) -> Dataset:
        """The split of this seed. For simulated data the seed draws the whole dataset.

        `feedback`: what the log is read as, see `load_dataset`; "clicks" keeps positive rows, and the test its labels.
        """
        kind: dict[str, Any] = {} if feedback is None else {"feedback": feedback}
        if self.shape:
            self._check_simulated(protocol)
            return simulate(seed=seed, **self.shape, **kind).dataset
        own = {**((read_options or {}) if self.name not in BENCH_DATASETS else {}), **kind}
        own["probe_fraction"] = find_protocol(protocol).probe
        dataset = load_dataset(self.name, protocol=protocol, seed=seed, threshold=threshold, **own)
        if dataset.test is None:
            ways = "hold rows out (`holdout`), or give it a test.csv"
            raise DataError(f"{self.name!r} has no test to compare methods on: {ways}.")
        for log in (dataset.train, dataset.test):
            binary_labels(log)  # raises now instead of in every fit
        return dataset

    def list_length(self, protocol: str) -> int:
        """The length k of the evaluated lists: the protocol's, or else the dataset's own."""
        setting = find_protocol(protocol).setting(self.name)
        return self.k if setting is None else setting.k

    def fingerprint(
        self,
        protocol: str,
        threshold: float | None = None,
        read_options: Mapping[str, Any] | None = None,
        feedback: Feedback | None = None,
    ) -> str:
        """A hash of k and the data; of simulated data, of k and their shape."""
        if self.shape:
            self._check_simulated(protocol)
            return hash_logs(f"{self.list_length(protocol)} {sorted(self.shape.items())}")
        dataset = self.load(protocol, 0, threshold, read_options, feedback)
        return hash_logs(str(self.list_length(protocol)), dataset.train, dataset.probe, dataset.test)

    def _check_simulated(self, protocol: str) -> None:
        if protocol != "honest":
            raise ConfigError(f"{self.name!r} is simulated, and its protocol is 'honest', got {protocol!r}.")

    def missing(self) -> str | None:
        """Instructions to get the dataset, if it is not found; else None."""
        source = SOURCES.get(self.name)
        if source is None or not source.readers or any(map(source.find, search_folders(self.name))):
            return None
        return f"{source.obtain}. Then set COUNTERPOISE_DATA to the folder above {self.name}."


BENCH_DATASETS = {
    dataset.name: dataset
    for dataset in (
        BenchDataset("coat", batch_size=128, pairs=5, like="coat"),
        BenchDataset("yahoo-r3"),
        BenchDataset("kuairec", k=20, like="product"),
        BenchDataset(
            "coat-like",
            batch_size=128,
            pairs=5,
            like="coat",
            shape={"n_users": 290, "n_items": 300, "density": 0.08},
        ),
        BenchDataset(
            "music-like", shape={"n_users": 15_400, "n_items": 1_000, "density": 0.02, "test_rows_a_user": 10}
        ),
        BenchDataset(
            "product-like",
            k=20,
            like="product",
            shape={"n_users": 1_411, "n_items": 3_327, "test_rows_a_user": 80},
        ),
        BenchDataset("simulated", shape={"n_users": 500, "n_items": 400}),
    )
}


STAND_INS = {"coat": "coat-like", "yahoo-r3": "music-like", "kuairec": "product-like"}  # of the paper's datasets


def find_datasets(names: Iterable[str]) -> list[BenchDataset]:
    """The datasets of these names, each once; "paper" names its three, or the stand-ins of those that are not found."""
    found: dict[str, BenchDataset] = {}
    for name in names:
        for dataset in _paper_datasets() if name == "paper" else [find_dataset(name)]:
            found.setdefault(dataset.name, dataset)
    return list(found.values())


def _paper_datasets() -> list[BenchDataset]:
    return [
        BENCH_DATASETS[stand_in if BENCH_DATASETS[name].missing() else name] for name, stand_in in STAND_INS.items()
    ]


def find_dataset(name: str) -> BenchDataset:
    """The dataset of this name, or at this path."""
    if name in BENCH_DATASETS:
        return BENCH_DATASETS[name]
    if name not in SOURCES and not Path(name).exists():
        names = dict.fromkeys([*BENCH_DATASETS, *SOURCES, "paper"])
        known, hint = ", ".join(names), did_you_mean(name, names)
        raise ConfigError(f"`datasets` must be among {known}, or a path to your own, got {name!r}.{hint}")
    return BenchDataset(name)
