"""A search that can be stopped and goes on: Optuna's study, in memory or in a database, in our words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import NormalDist
from types import ModuleType
from typing import Any, Self

import numpy as np

from counterpoise.errors import GO_ON, ConfigError, DataError
from counterpoise.evaluation.estimates import Estimate
from counterpoise.methods import make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.tuning.search_space import Dimension

INSTALL = 'pip install "counterpoise[tune]"'


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried."""

    number: int
    state: str  # complete, pruned or failed
    risk: float | None  # of the rows that judged it, which are fewer where it was pruned; None where it failed
    settings: dict[str, Any]  # besides the fixed ones; none for the defaults
    seconds: float
    default: bool
    reason: str | None  # of its failure


@dataclass(frozen=True, eq=False)
class Proposal:
    """A configuration to be tried."""

    handle: Any  # Optuna's trial
    settings: dict[str, Any]
    default: bool

    def same(self, other: Proposal) -> bool:
        """Whether another has the same value in everything that is searched."""
        return bool(self.handle.params == other.handle.params)


@dataclass(eq=False)
class Study:
    """Proposes configurations and remembers how they did. The first one is the defaults."""

    study: Any  # Optuna's
    dimensions: list[Dimension]
    defaults: dict[str, Any]  # values of the dimensions by default, as far as they can be proposed
    seed: int

    @classmethod
    def open(
        cls,
        method: str,
        fixed: dict[str, Any],
        dimensions: list[Dimension],
        seed: int,
        *,
        problem: dict[str, Any],
        storage: str | None,
        name: str,
        alone: bool,
    ) -> Self:
        """A new study, or the one of this name that the storage holds, which must be of the same problem.

        `alone`: nobody else works on it, so that trials found running were interrupted.
        """
        optuna = load_optuna()
        with silent():
            try:
                place = optuna.storages.get_storage(storage)
                study = optuna.create_study(storage=place, study_name=name, load_if_exists=True)
                if alone and not _counted(study):  # it was stopped before it had anything to keep
                    optuna.delete_study(study_name=name, storage=place)
                    study = optuna.create_study(storage=place, study_name=name)
            except Exception as error:  # whatever a database driver raises
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
                raise ConfigError(f"`storage` {storage!r} cannot be used: {reason}.") from None
            _check_problem(study, problem, storage)
            for trial in study.get_trials(deepcopy=False) if alone else ():
                if trial.state == optuna.trial.TrialState.RUNNING:
                    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        return cls(study, dimensions, _defaults(method, fixed, dimensions), seed)

    def trials(self) -> tuple[Trial, ...]:
        """What was tried; trials that were interrupted do not count."""
        return tuple(Trial(trial.number, risk=_risk(trial), **trial.user_attrs) for trial in _counted(self.study))

    def propose(self, ahead: int = 0) -> Proposal:
        """What to try next: the defaults, and then what Optuna's TPE draws.

        The sampler is seeded for every trial by the number of those before, so that a study that was stopped goes on
        as if it had not been. `ahead`: how many were proposed before it that have not come to their end; TPE keeps away
        from them.
        """
        optuna, done = load_optuna(), len(self.trials()) + ahead
        with silent():
            seed = int(np.random.SeedSequence([self.seed, done]).generate_state(1)[0])
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=ahead > 0)
            if not self.has_default():
                self.study.enqueue_trial(self.defaults, user_attrs={"default": True})
            handle = self.study.ask()
            if handle.user_attrs.get("default"):
                for dimension in self.dimensions:
                    if dimension.name in self.defaults:
                        dimension.suggest(handle)  # so that the sampler knows where the defaults lie
                return Proposal(handle, {}, True)
            settings: dict[str, Any] = {}
            for dimension in self.dimensions:
                settings |= dimension.settings(dimension.suggest(handle))
            return Proposal(handle, settings, False)

    def report(self, proposal: Proposal, risk: float, fold: int) -> None:
        """The risk after a fold."""
        proposal.handle.report(risk, fold)

    def finish(self, proposal: Proposal, state: str, risk: float | None, seconds: float, reason: str | None) -> None:
        """How a trial ended. For Optuna one that failed is the worst of the pruned ones, so that TPE keeps away."""
        states = load_optuna().trial.TrialState
        facts = {"state": state, "settings": proposal.settings, "seconds": seconds, "default": proposal.default}
        for key, value in (facts | {"reason": reason}).items():
            proposal.handle.set_user_attr(key, value)
        with silent():
            if state == "complete":
                self.study.tell(proposal.handle, risk, skip_if_finished=True)
            else:
                self.study.tell(proposal.handle, state=states.PRUNED, skip_if_finished=True)

    def twin(self, proposal: Proposal) -> Any:
        """The first trial of Optuna's that came to its end with the same value in everything searched, or None."""
        params = proposal.handle.params
        whole = len(params) == len(self.dimensions)  # the defaults may lie where nothing is proposed
        return next((trial for trial in _counted(self.study) if trial.params == params), None) if whole else None

    def repeat(self, proposal: Proposal) -> None:
        """The trial ends as its twin did, without any work."""
        twin = self.twin(proposal)
        for fold, risk in twin.intermediate_values.items():
            proposal.handle.report(risk, fold)
        self.finish(proposal, twin.user_attrs["state"], _risk(twin), 0.0, twin.user_attrs["reason"])

    def interrupt(self, proposal: Proposal) -> None:
        """The trial came to no end and does not count."""
        with silent():
            self.study.tell(proposal.handle, state=load_optuna().trial.TrialState.FAIL, skip_if_finished=True)

    def has_default(self) -> bool:
        """Whether the defaults were proposed."""
        trials = self.study.get_trials(deepcopy=False)
        return any(trial.user_attrs.get("default") and trial.state.name != "FAIL" for trial in trials)


@contextmanager
def reporting_storage(storage: str) -> Iterator[None]:
    """What goes wrong in the database of a study inside the block, in one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy", "sqlite3", "optuna")):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"the study in {storage} cannot be used: {reason}. Make room or put it back: {GO_ON}") from None


def load_optuna() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"tuning needs optuna, which is not installed: {INSTALL}") from None
    assert isinstance(optuna, ModuleType)
    return optuna


@contextmanager
def silent() -> Iterator[None]:
    """Optuna without its messages; what the user had set comes back."""
    logging = load_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _counted(study: Any) -> list[Any]:
    """The trials that came to an end."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]


def _check_problem(study: Any, problem: dict[str, Any], storage: str | None) -> None:
    """Remember what is searched; an error where a study of another problem goes by this name."""
    known = study.user_attrs.get("problem")
    if known is None and not study.get_trials(deepcopy=False):
        study.set_user_attr("problem", problem)
        return
    differing = [key for key in problem if known is None or known.get(key) != problem[key]]
    if differing:
        raise ConfigError(
            f"the study in {storage} is of another problem: it differs in {', '.join(differing)}. "
            "Choose another folder (--out) or storage, or remove this one to begin anew."
        )


def _defaults(method: str, fixed: dict[str, Any], dimensions: list[Dimension]) -> dict[str, Any]:
    """The values by default of what is searched, where they could be proposed."""
    model = make(method, **fixed)
    found = {}
    for dimension in dimensions:
        values = [model.get_params()[full] for full in dimension.full_names(model)]
        alike = len(set(map(repr, values))) == 1
        value = values[0] / dimension.factor if alike and dimension.sets else values[0]
        if alike and dimension.contains(value):
            found[dimension.name] = value
    return found


def _risk(trial: Any) -> float | None:
    if trial.state.name == "COMPLETE":
        return float(trial.value)
    reported = trial.intermediate_values
    return float(reported[max(reported)]) if reported and trial.user_attrs["state"] == "pruned" else None


# What a search has found: its trials, the best of them, and whether the gain is more than luck.


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
