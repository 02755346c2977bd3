"""The result of a search: its trials, the best of them, and whether its gain over the defaults is significant."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import polars as pl

from counterpoise.config import Feedback
from counterpoise.data.frames import POLARS, to_kind
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import DataError
from counterpoise.evaluation.estimates import Estimate
from counterpoise.methods import make
from counterpoise.recommender import DebiasedRecommender

LEVEL = 0.05  # of the two-sided test of the best trial against the defaults


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried."""

    number: int
    state: str  # complete, pruned or failed
    risk: float | None  # over the folds that were fitted, which are fewer for a pruned trial; None if it failed
    settings: dict[str, Any]  # besides the fixed ones; empty for the defaults
    seconds: float
    default: bool
    reason: str | None  # of its failure


@dataclass(frozen=True)
class Tuning:
    """The result of a search."""

    method: str
    seed: int
    fixed: dict[str, Any]
    trials: tuple[Trial, ...]
    default_risk: Estimate | None  # None if the defaults failed
    best_risk: Estimate
    gain: Estimate | None  # default risk - best risk, paired row by row
    validation: dict[str, Any]  # the held-out rows and their effective sample size
    frame_kind: str = POLARS  # of `to_frame`
    feedback: Feedback = "ratings"  # of the log

    @property
    def best(self) -> Trial:
        """The complete trial of the least risk."""
        return best_trial(self.trials)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for `make`: the fixed ones and the best."""
        return self.fixed | self.best.settings

    @property
    def alternatives(self) -> int:
        """The number of distinct settings that were tried beside the defaults."""
        return len({repr(sorted(trial.settings.items())) for trial in self.trials if not trial.default})

    @property
    def noise(self) -> float:
        """The largest gain of the best of so many alternatives that chance explains: z standard errors of the gain.

        z is the normal quantile of 1 - 0.025 / alternatives (Bonferroni): 1.96 for one, 3.0 for twenty.
        """
        if self.gain is None:
            return math.nan
        return self.gain.standard_error * NormalDist().inv_cdf(1 - LEVEL / 2 / max(1, self.alternatives))

    @property
    def significant(self) -> bool:
        """Whether the gain exceeds `noise`, or the defaults failed."""
        return self.gain is None or self.gain.value > self.noise

    def make(self) -> DebiasedRecommender:
        """A fresh recommender with the best settings."""
        return make(self.method, feedback=self.feedback, **{"seed": self.seed, **self.settings})

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        estimates = {name: getattr(self, name) for name in ("default_risk", "best_risk", "gain")}
        return {
            "method": self.method,
            "seed": self.seed,
            "settings": self.settings,
            **{name: None if value is None else value._asdict() for name, value in estimates.items()},
            "noise": None if self.gain is None else self.noise,
            "significant": self.significant,
            "validation": self.validation,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def to_frame(self) -> Any:
        """The trials: number, state, risk, whether they are the defaults, and a column for each setting."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.settings)
        facts = ("number", "state", "risk", "default", "seconds")
        columns = {name: [getattr(trial, name) for trial in self.trials] for name in facts}
        settings = {name: [trial.settings.get(name) for trial in self.trials] for name in names}
        return to_kind(pl.DataFrame(columns | settings, strict=False), self.frame_kind)

    def _repr_html_(self) -> str:
        """For notebooks: the outcome, and the trials from the least risk."""
        ranked = sorted(self.trials, key=lambda trial: (trial.state != "complete", trial.risk is None, trial.risk or 0))
        rows = [[t.number, t.state, t.risk, _settings(t)] for t in ranked]
        title = f"Tuning of {self.method}: {len(rows)} trials"
        return notebook_html(title, self.summary(), [["trial", "state", "risk", "settings"], *rows])

    def summary(self) -> str:
        """The outcome in a few lines."""
        states = [trial.state for trial in self.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed"))
        reasons = [trial.reason for trial in self.trials if trial.reason]
        lines = [
            f"{len(states)} trials: {counts}." + (f" The last failure: {reasons[-1]}" if reasons else ""),
            f"best risk     {_with_error(self.best_risk)}  (trial {self.best.number})",
        ]
        if self.default_risk is None or self.gain is None:
            return "\n".join([*lines, "The defaults failed, so there is no gain to report."])
        lines.insert(1, f"default risk  {_with_error(self.default_risk)}")
        if self.best.default:
            return "\n".join([*lines, "No trial is better than the defaults."])
        chance = f"the best of {self.alternatives} may gain {self.noise:.4f} by chance"
        verdict = "more than noise" if self.significant else "within noise, the defaults may be as good"
        return "\n".join([*lines, f"gain          {_with_error(self.gain)}, paired; {chance}: {verdict}."])


def best_trial(trials: tuple[Trial, ...]) -> Trial:
    """The complete trial of the least risk, the earliest of equals."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        reason = trials[-1].reason if trials else "none was finished yet."
        raise DataError(f"none of {len(trials)} trials is complete: {reason}")
    return min(complete, key=lambda trial: (trial.risk, trial.number))


def _settings(trial: Trial) -> str:
    return "the defaults" if trial.default else ", ".join(f"{name}={value}" for name, value in trial.settings.items())


def _with_error(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} +- {estimate.standard_error:.4f}"
