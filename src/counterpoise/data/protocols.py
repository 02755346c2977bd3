"""Evaluation protocols by name: how ratings become training log, probe and test, and what is reported of them.

Published numbers differ by their protocol more than by their method, so they are compared within one protocol only.
"Uniform rows" are the ratings of uniformly drawn pairs; shares are of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from counterpoise.config import Feedback
from counterpoise.errors import ConfigError, check_choice


class Setting(NamedTuple):
    """The rules of a protocol for one dataset. On whole stars, > 3 is >= 4."""

    threshold: float  # ratings at or above it are positive
    k: int  # the length of the evaluated lists


@dataclass(frozen=True)
class Protocol:
    """A named protocol. `note`: what its paper and release do not tell, with what is done here instead."""

    name: str
    citation: str
    keeps_seen: bool  # whether test pairs that are also in the training log count
    keeps_probe: bool  # whether uniform rows that the probe was drawn from count in the test
    metrics: tuple[str, ...]  # that are reported
    empty_users: Literal["left out", "counted", "unknown"]  # test users without a positive; unknown: left out here
    tuned_on: str  # where its papers choose settings; here always inside the training log
    datasets: Mapping[str, Setting] = field(default_factory=dict)  # that it is of; empty: any, with their own settings
    probe: float = 0.05  # share of the uniform rows
    validation: float = 0.0  # share of further uniform rows that leave the test and are not used here
    feedback: Feedback | None = None  # what the log is read as; None: ratings of both kinds, or as it is
    note: str = ""

    def setting(self, dataset: str, feedback: Feedback | None = None) -> Setting | None:
        """The rules for a dataset; raises where the protocol is not of this dataset, or of another kind of feedback."""
        if self.datasets and dataset not in self.datasets:
            raise ConfigError(
                f"`protocol` {self.name!r} is of {', '.join(self.datasets)}, got {dataset!r}. Use 'honest' or 'paper'."
            )
        if None not in (self.feedback, feedback) and feedback != self.feedback:
            raise ConfigError(f"`feedback` must be {self.feedback!r} for protocol={self.name!r}, got {feedback!r}.")
        return self.datasets.get(dataset)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        facts = {name: value for name, value in vars(self).items() if name != "datasets"}
        return facts | {"datasets": {name: setting._asdict() for name, setting in self.datasets.items()}}


AUC_NDCG = ("auc", "ndcg")
NOT_SAID = "not known: what leaves the test (here nothing does), the probe (here 5 %)"
STARS_3 = {"coat": Setting(3, 5), "yahoo-r3": Setting(3, 5)}
STARS_4 = {"coat": Setting(4, 5), "yahoo-r3": Setting(4, 5)}
WATCHED_50 = {"kuairec": Setting(2, 50)}
CLICKS: dict[str, Any] = {"keeps_seen": True, "keeps_probe": True, "probe": 0.0, "feedback": "clicks"}

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "honest",
            "ours: nothing that was learned from is tested on",
            keeps_seen=False,
            keeps_probe=False,
            metrics=("auc", "ndcg", "f1"),
            empty_users="left out",
            tuned_on="the training log",
        ),
        Protocol(
            "paper",
            "Li et al. 2024, Debiased Collaborative Filtering with Kernel-Based Causal Balancing, ICLR: the release",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("auc", "ndcg_one", "f1_one"),
            empty_users="counted",
            tuned_on="the test, as far as the release shows",
        ),
        Protocol(
            "upo",
            "UPO, unified minimax optimization of propensities, AAAI article 38687",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("auc", "ndcg_one", "f1_one"),
            empty_users="counted",
            tuned_on="the test: the release stops early by its AUC",
            datasets=STARS_3,
            note="MF and IPS are quoted from the table of `paper`, whose rules are taken here; not known: those of its "
            "own rows",
        ),
        Protocol(
            "superdr",
            "SuperDR, OpenReview X8x70g0SSw",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("auc", "ndcg", "recall"),
            empty_users="unknown",
            tuned_on="unknown",
            datasets=STARS_3 | WATCHED_50,
            note=f"{NOT_SAID}, which half of users and items it trains on (here all); its model is an MLP",
        ),
        Protocol(
            "d-dr",
            "D-IPS and D-DR, arXiv 2405.15403",
            keeps_seen=True,
            keeps_probe=True,
            metrics=AUC_NDCG,
            empty_users="unknown",
            tuned_on="unknown",
            datasets=STARS_4 | WATCHED_50,
            note=NOT_SAID,
        ),
        Protocol(
            "cdr",
            "CDR: Conservative Doubly Robust Learning for Debiased Recommendation, CIKM 2023",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("auc", "ndcg", "recall"),
            empty_users="unknown",
            tuned_on="10 % of the uniform rows",
            datasets=STARS_3,
            validation=0.10,
            note="its text has > 3, its release >= 3, which is taken here; not known: the probe (here 5 %)",
        ),
        Protocol(
            "calibration",
            "calibrated propensities (Platt), arXiv 2303.12973",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("dcg",),
            empty_users="unknown",
            tuned_on="unknown",
            datasets={"coat": Setting(4, 6), "yahoo-r3": Setting(4, 6)},
            note=f"{NOT_SAID}, the discount of its DCG; its model is neural, and it also has lists of 2 and 4",
        ),
        Protocol(
            "kdcrec",
            "knowledge distillation from a probe (CausE, Bridge, Refine), SIGIR 2020: table of the release",
            keeps_seen=True,
            keeps_probe=False,
            metrics=("auc",),
            empty_users="unknown",
            tuned_on="5 % of the uniform rows",
            datasets={"yahoo-r3": Setting(4, 5)},
            validation=0.05,
        ),
        Protocol(
            "idcf",
            "iDCF, arXiv 2302.05052",
            keeps_seen=True,
            keeps_probe=True,
            metrics=("ndcg", "recall"),
            empty_users="unknown",
            tuned_on="30 % of the uniform rows",
            datasets=STARS_4,
            validation=0.30,
            note="not known: the probe (here 5 %)",
        ),
        Protocol(
            "rel-mf",
            "Saito et al. 2020, arXiv 1909.03601 (Rel-MF): the release",
            metrics=("dcg", "recall", "map"),
            empty_users="unknown",
            tuned_on="10 % of the log",
            datasets={"yahoo-r3": Setting(4, 5)},
            note="it also has lists of 1 and 3, and a test of rare items alone",
            **CLICKS,
        ),
        Protocol(
            "autodebias",
            "AutoDebias, arXiv 2105.04170: clicks",
            metrics=("auc", "ndcg", "recall"),
            empty_users="unknown",
            tuned_on="5 % of the uniform rows",
            datasets=STARS_4,
            validation=0.10,
            note="its 5 % probe leaves the test too, and no method learns from it here; its table was not read",
            **CLICKS,
        ),
        Protocol(
            "recrec",
            "ReCRec, doi 10.1145/3672275: the release",
            metrics=("ndcg", "recall", "map"),
            empty_users="unknown",
            tuned_on="20 % of the test, all of which is tested on",
            datasets=STARS_4,
            note="its release alone was read",
            **CLICKS,
        ),
        Protocol(
            "counter-if",
            "Counter-IF, NeurIPS 2025",
            metrics=("ndcg", "recall", "map"),
            empty_users="unknown",
            tuned_on="unknown",
            datasets=STARS_4,
            note="not known: how clicks are made of ratings, and what is relevant in the test (here both >= 4)",
            **CLICKS,
        ),
    )
}


def find_protocol(name: str) -> Protocol:
    """The protocol of this name; an unknown one raises, and suggests the nearest."""
    check_choice("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
