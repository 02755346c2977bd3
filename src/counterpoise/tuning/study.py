"""Optuna's study, in memory or in a database: proposes configurations and remembers how they did.

A study that was stopped continues as if it had not been: each proposal is seeded by the number of finished trials, and
trials that were interrupted do not count.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

import numpy as np

from counterpoise.errors import GO_ON, ConfigError, DataError
from counterpoise.methods import make
from counterpoise.tuning.result import Trial
from counterpoise.tuning.search_space import Dimension

INSTALL = 'pip install "counterpoise[tune]"'


@dataclass(frozen=True, eq=False)
class Proposal:
    """A configuration to try."""

    handle: Any  # Optuna's trial
    settings: dict[str, Any]
    default: bool


@dataclass(eq=False)
class Study:
    """Proposes configurations, first the defaults, and records their results."""

    study: Any  # Optuna's
    dimensions: list[Dimension]
    defaults: dict[str, Any]  # default values of the dimensions that contain them
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
        exclusive: bool,
    ) -> Self:
        """A new study, or the one of this name in the storage, which must be of the same problem.

        `exclusive`: no other process works on it, so trials found running were interrupted.
        """
        optuna = load_optuna()
        with _quiet():
            try:
                database = optuna.storages.get_storage(storage)
                study = optuna.create_study(storage=database, study_name=name, load_if_exists=True)
                if exclusive and not _finished(study):  # it was stopped before its first result
                    optuna.delete_study(study_name=name, storage=database)
                    study = optuna.create_study(storage=database, study_name=name)
            except Exception as error:  # whatever a database driver raises
                raise ConfigError(f"`storage` {storage!r} cannot be used: {_first_line(error)}.") from None
            _check_problem(study, problem, storage)
            for trial in study.get_trials(deepcopy=False) if exclusive else ():
                if trial.state == optuna.trial.TrialState.RUNNING:
                    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        return cls(study, dimensions, _default_values(method, fixed, dimensions), seed)

    def trials(self) -> tuple[Trial, ...]:
        """The finished trials."""
        return tuple(Trial(trial.number, risk=_risk(trial), **trial.user_attrs) for trial in _finished(self.study))

    def has_default(self) -> bool:
        """Whether the defaults were proposed."""
        trials = self.study.get_trials(deepcopy=False)
        return any(trial.user_attrs.get("default") and trial.state.name != "FAIL" for trial in trials)

    def propose(self, pending: int = 0) -> Proposal:
        """The next configuration: the defaults first, then draws of Optuna's TPE.

        `pending`: proposals before it that have no result yet; TPE keeps away from them.
        """
        optuna, number = load_optuna(), len(self.trials()) + pending
        with _quiet():
            seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=pending > 0)
            if not self.has_default():
                self.study.enqueue_trial(self.defaults, user_attrs={"default": True})
            handle = self.study.ask()
            if handle.user_attrs.get("default"):
                for dimension in self.dimensions:
                    if dimension.name in self.defaults:
                        dimension.suggest(handle)  # the sampler learns where the defaults lie
                return Proposal(handle, {}, True)
            settings: dict[str, Any] = {}
            for dimension in self.dimensions:
                settings |= dimension.settings(dimension.suggest(handle))
            return Proposal(handle, settings, False)

    def finish(self, proposal: Proposal, state: str, risk: float | None, seconds: float, reason: str | None) -> None:
        """Record how a trial ended. Optuna gets a failed one as pruned without a risk, so that TPE keeps away."""
        facts = {"state": state, "settings": proposal.settings, "seconds": seconds, "default": proposal.default}
        for key, value in (facts | {"reason": reason}).items():
            proposal.handle.set_user_attr(key, value)
        with _quiet():
            if state == "complete":
                self.study.tell(proposal.handle, risk, skip_if_finished=True)
            else:
                pruned = load_optuna().trial.TrialState.PRUNED
                self.study.tell(proposal.handle, state=pruned, skip_if_finished=True)

    def earlier_trial(self, proposal: Proposal) -> Any:
        """Optuna's first finished trial with the same value in every dimension, or None."""
        params = proposal.handle.params
        if len(params) < len(self.dimensions):  # defaults outside of the space
            return None
        return next((trial for trial in _finished(self.study) if trial.params == params), None)

    def repeat(self, proposal: Proposal) -> None:
        """Give a trial the result of the earlier one, in 0 seconds."""
        earlier = self.earlier_trial(proposal)
        for fold, risk in earlier.intermediate_values.items():
            proposal.handle.report(risk, fold)
        self.finish(proposal, earlier.user_attrs["state"], _risk(earlier), 0.0, earlier.user_attrs["reason"])

    def discard(self, proposal: Proposal) -> None:
        """Record that a trial was interrupted: it does not count."""
        with _quiet():
            self.study.tell(proposal.handle, state=load_optuna().trial.TrialState.FAIL, skip_if_finished=True)


@contextmanager
def reporting_storage(storage: str) -> Iterator[None]:
    """Errors of the study's database inside the block, in one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy", "sqlite3", "optuna")):
            raise
        reason = _first_line(error)
        raise DataError(f"the study in {storage} cannot be used: {reason}. Make room or put it back: {GO_ON}") from None


def load_optuna() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"tuning needs optuna, which is not installed: {INSTALL}") from None
    assert isinstance(optuna, ModuleType)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna without its messages; the user's verbosity is restored."""
    logging = load_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _finished(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]


def _check_problem(study: Any, problem: dict[str, Any], storage: str | None) -> None:
    """Store the problem in a new study; raise `ConfigError` if an old one is of another."""
    stored = study.user_attrs.get("problem")
    if stored is None and not study.get_trials(deepcopy=False):
        study.set_user_attr("problem", problem)
        return
    differing = [key for key in problem if stored is None or stored.get(key) != problem[key]]
    if differing:
        raise ConfigError(
            f"the study in {storage} is of another problem: it differs in {', '.join(differing)}. "
            "Choose another folder (--out) or storage, or remove this one to begin anew."
        )


def _default_values(method: str, fixed: dict[str, Any], dimensions: list[Dimension]) -> dict[str, Any]:
    """The default value of each dimension that contains it."""
    model = make(method, **fixed)
    found = {}
    for dimension in dimensions:
        values = [model.get_params()[full] for full in dimension.full_names(model)]
        value = values[0] / dimension.factor if dimension.sets else values[0]
        if len(set(map(repr, values))) == 1 and dimension.contains(value):
            found[dimension.name] = value
    return found


def _risk(trial: Any) -> float | None:
    if trial.state.name == "COMPLETE":
        return float(trial.value)
    reported = trial.intermediate_values
    return float(reported[max(reported)]) if reported and trial.user_attrs["state"] == "pruned" else None
