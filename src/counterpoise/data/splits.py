"""How unbiased ratings become a probe and a test: the honest protocol, and that of the paper's released code."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from counterpoise.config import Protocol
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.errors import DataError, check_choice, check_number


def apply_protocol(
    train: FeedbackLog,
    unbiased: FeedbackLog,
    protocol: Protocol = "honest",
    probe_fraction: float = 0.05,
    *,
    rng: np.random.Generator,
    probe: FeedbackLog | None = None,
) -> tuple[FeedbackLog | None, FeedbackLog, dict[str, int]]:
    """(probe, test, counts of rows: all unbiased ratings, those removed from the test and why, those left).

    The probe is a uniform draw of round(probe_fraction * rows) of all unbiased ratings, None where that is no row, or
    the `probe` that is given.
    "honest": the test loses the pairs of the probe, and those that are also in the training log.
    "paper": the test keeps both, as the paper's released code does.
    The same generator state draws the same probe under both protocols.
    """
    check_choice("protocol", protocol, get_args(Protocol))
    check_number("probe_fraction", probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
    if probe is None:
        probe = unbiased.split(probe_fraction, rng)[0]
    in_probe = np.isin(unbiased.pairs, probe.pairs)
    in_train = np.isin(unbiased.pairs, train.pairs)
    test = unbiased if protocol == "paper" else unbiased.take(~in_probe & ~in_train)
    if len(test) == 0:
        raise DataError(
            f"the protocol leaves no test: of {len(unbiased)} unbiased ratings {in_probe.sum()} are in the probe and "
            f"{in_train.sum()} in the training log. Lower `probe_fraction` or bring more unbiased ratings."
        )
    removed_as_probe = 0 if protocol == "paper" else int(in_probe.sum())
    removed = {
        "unbiased_rows": len(unbiased),
        "probe_rows": len(probe),
        "rows_in_train": int(in_train.sum()),
        "removed_as_probe": removed_as_probe,
        "removed_as_in_train": len(unbiased) - len(test) - removed_as_probe,
        "test_rows": len(test),
    }
    return (probe if len(probe) else None), test, removed


@dataclass
class Split:
    """The settings of a split of unbiased ratings, and the generator that draws the probe."""

    protocol: Protocol
    probe_fraction: float
    seed: int

    def __post_init__(self) -> None:
        """Check the settings, also where there is nothing to split."""
        check_choice("protocol", self.protocol, get_args(Protocol))
        check_number("probe_fraction", self.probe_fraction, at_least=0, at_most=1, advice="0 draws no probe.")
        check_number("seed", self.seed, at_least=0, integer=True)
        self.rng = np.random.default_rng(self.seed)

    def dataset(
        self,
        name: str,
        train: FeedbackLog,
        unbiased: FeedbackLog | None,
        probe: FeedbackLog | None,
        about: dict[str, Any],
    ) -> Dataset:
        """The dataset, with the settings and the counts of rows in its description."""
        about = about | asdict(self) | {"train_rows": len(train)}
        if unbiased is None:
            return Dataset(train, probe, None, name, about)
        rules = self.protocol, self.probe_fraction
        probe, test, counts = apply_protocol(train, unbiased, *rules, rng=self.rng, probe=probe)
        return Dataset(train, probe, test, name, about | counts)
