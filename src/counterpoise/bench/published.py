"""Published numbers by the protocol of their table, to be read beside results of the same protocol only."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from counterpoise.data.protocols import PROTOCOLS, find_protocol

DATASETS = ("coat", "yahoo-r3", "kuairec")  # of published tables, in the paper's order
OTHER_TITLES = {"StableDR": "SDR"}  # the paper's text and its table disagree


@dataclass(frozen=True)
class Published:
    """One published number: mean and standard deviation over runs."""

    mean: float
    std: float  # nan where it was not recorded
    significant: bool  # starred: p <= 0.05 against the best baseline


def published(protocol: str, title: str, dataset: str, metric: str, k: int) -> Published | None:
    """The number of a method by its title ("AKBDR-Gau"), in the table of a protocol; None if there is none.

    `metric`: by our name, with the protocol's rule for empty users ("ndcg_one"); k is the length of its lists.
    """
    own = published_on(protocol, dataset).get(OTHER_TITLES.get(title, title), {})
    return own.get((metric, None if metric == "auc" else k))


@cache
def published_on(protocol: str, dataset: str) -> Mapping[str, Mapping[tuple[str, int | None], Published]]:
    """{title: {(metric, k or None for AUC): number}} of a protocol's table on one dataset, in its order."""
    rules = find_protocol(protocol)
    ours = {metric.removesuffix("_one"): metric for metric in rules.metrics}
    found: dict[str, dict[tuple[str, int | None], Published]] = {}
    for row in _rows():
        if (row["protocol"], row["dataset"]) == (protocol, dataset):
            name, _, k = row["metric"].partition("@")
            value = Published(float(row["mean"]), float(row["std"] or math.nan), row["significant"] == "1")
            found.setdefault(row["method"], {})[ours[name.lower()], int(k) if k else None] = value
    return found


@cache
def places() -> Mapping[str, int]:
    """The row in which each title stands in Table 1 of the kernel balancing paper."""
    titles = list(published_on("paper", "coat"))
    return {title: place for place, title in enumerate(titles)} | {
        other: titles.index(title) for other, title in OTHER_TITLES.items()
    }


def published_lines(protocols: Sequence[str] = tuple(PROTOCOLS)) -> list[dict[str, str]]:
    """A line for each protocol and method, with its numbers on each dataset as ".703/.605/.467".

    Their metrics are those of the protocol for its length of lists; of one metric, for all its lengths.
    """
    lines = []
    for protocol in protocols:
        tables = {dataset: published_on(protocol, dataset) for dataset in DATASETS}
        for title in dict.fromkeys(title for table in tables.values() for title in table):
            numbers = {
                dataset: "/".join(_brief(number.mean) for number in table[title].values())
                for dataset, table in tables.items()
                if title in table
            }
            lines.append({"protocol": protocol, "method": title} | numbers)
    return lines


def _brief(value: float) -> str:
    """.703; with more decimals where they were published."""
    return (f"{value:.3f}" if round(value, 3) == value else f"{value:g}").removeprefix("0")


@cache
def _rows() -> list[dict[str, str]]:
    text = files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
