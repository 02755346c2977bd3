"""What a search has found: its trials, the best of them, and whether the gain is more than luck."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from counterpoise.errors import DataError
from counterpoise.making import make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.study import Trial
from counterpoise.validation import Estimate


@dataclass(frozen=True)
class Tuning:
    """What a search has found."""

    method: str
    seed: int
    fixed: dict[str, Any]
    trials: tuple[Trial, ...]
    default_risk: Estimate | None  # None where the defaults came to no end
    best_risk: Estimate
    gain: Estimate | None  # default risk - best risk, paired row by row
    judges: dict[str, Any]  # the rows that judge, and what they are worth

    @property
    def best(self) -> Trial:
        """The complete trial of the least risk."""
        return best_of(self.trials)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for `make`: the fixed ones and the best."""
        return self.fixed | self.best.settings

    @property
    def noise(self) -> float:
        """What the best of so many trials may gain by chance alone: z standard errors of the gain.

        z is the normal quantile of 1 - 0.025 / trials beside the defaults (Bonferroni): 1.96 for one, 3.0 for twenty.
        """
        rivals = max(1, self.rivals)
        return math.nan if self.gain is None else self.gain.standard_error * NormalDist().inv_cdf(1 - 0.025 / rivals)

    @property
    def rivals(self) -> int:
        """How many settings were tried beside the defaults; a proposal that came twice counts once."""
        return len({repr(sorted(trial.settings.items())) for trial in self.trials if not trial.default})

    @property
    def clear(self) -> bool:
        """Whether the gain is larger than its noise, or there is none to compare."""
        return self.gain is None or self.gain.value > self.noise

    def make(self) -> DebiasedRecommender:
        """A fresh recommender with the best settings."""
        return make(self.method, **{"seed": self.seed, **self.settings})

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        estimates = {name: getattr(self, name) for name in ("default_risk", "best_risk", "gain")}
        return {
            "method": self.method,
            "seed": self.seed,
            "settings": self.settings,
            **{name: None if value is None else value._asdict() for name, value in estimates.items()},
            "noise": None if self.gain is None else self.noise,
            "clear": self.clear,
            "judges": self.judges,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def summary(self) -> str:
        """The outcome in a few lines."""
        states = [trial.state for trial in self.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed"))
        reasons = [trial.reason for trial in self.trials if trial.reason]
        lines = [
            f"{len(states)} trials: {counts}." + (f" The last failure: {reasons[-1]}" if reasons else ""),
            f"best risk     {_figures(self.best_risk)}  (trial {self.best.number})",
        ]
        if self.default_risk is None or self.gain is None:
            return "\n".join([*lines, "The defaults came to no end, so there is nothing to compare with."])
        lines.insert(1, f"default risk  {_figures(self.default_risk)}")
        if self.best.default:
            return "\n".join([*lines, "Nothing that was tried is better than the defaults."])
        chance = f"the best of {self.rivals} may gain {self.noise:.4f} by chance"
        verdict = "more than noise" if self.clear else "within noise, the defaults may be as good"
        return "\n".join([*lines, f"gain          {_figures(self.gain)}, paired; {chance}: {verdict}."])


def best_of(trials: tuple[Trial, ...]) -> Trial:
    """The complete trial of the least risk; the earlier of equals."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        reason = trials[-1].reason if trials else "there are none yet."
        raise DataError(f"none of {len(trials)} trials came to its end: {reason}")
    return min(complete, key=lambda trial: (trial.risk, trial.number))


def _figures(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} +- {estimate.standard_error:.4f}"
