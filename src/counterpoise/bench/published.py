"""The published numbers: the paper's Table 1, to be read beside results on the paper's protocol only."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from counterpoise.methods import PAPER

CITATION = f"{PAPER}, ICLR"
DATASETS = {"coat": "coat", "yahoo-r3": "music", "kuairec": "product"}  # our names, the paper's
METRICS = {"AUC": "auc", "NDCG": "ndcg_one", "F1": "f1_one"}  # the paper's names, ours
OTHER_TITLES = {"StableDR": "SDR"}  # the paper's text and its table disagree


@dataclass(frozen=True)
class Published:
    """One number of the paper's Table 1: mean and standard deviation over seeds."""

    mean: float
    std: float
    significant: bool  # starred: p <= 0.05 against the best baseline
    k: int | None  # the length of the lists; None for AUC


def published(title: str, dataset: str, metric: str) -> Published | None:
    """The paper's result for a method by its title there ("AKBDR-Gau"), a dataset by our name, and a metric.

    `metric`: "auc", "ndcg_one" or "f1_one". None if the paper has none.
    """
    return _table().get((OTHER_TITLES.get(title, title), dataset, metric))


@cache
def places() -> Mapping[str, int]:
    """The row of the paper's table in which each title stands."""
    titles = list(dict.fromkeys(title for title, _, _ in _table()))
    return {title: place for place, title in enumerate(titles)} | {
        other: titles.index(title) for other, title in OTHER_TITLES.items()
    }


@cache
def _table() -> Mapping[tuple[str, str, str], Published]:
    ours = {theirs: name for name, theirs in DATASETS.items()}
    found = {}
    for row in csv.DictReader(files(__package__).joinpath("table1.csv").read_text(encoding="utf-8").splitlines()):
        name, _, k = row["metric"].partition("@")
        value = Published(float(row["mean"]), float(row["std"]), row["significant"] == "1", int(k) if k else None)
        found[row["method"], ours[row["dataset"]], METRICS[name]] = value
    return found
