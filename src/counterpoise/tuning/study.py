"""Optuna's study, in memory or in a database: proposes configurations and remembers how they did.

A study that was stopped continues as if it had not been: each proposal is seeded by the number of finished trials, and
trials that were interrupted do not count.
"""

from __future__ import annotations

import math
import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np

from counterpoise.errors import RESUME_ADVICE, ConfigError, DataError
from counterpoise.evaluation.estimates import Errors
from counterpoise.storage import check_file, open_file
from counterpoise.tuning.result import Trial
from counterpoise.tuning.search_space import Dimension

SQLITE = b"SQLite format 3\0"  # the first bytes of a database
STATES = ("complete", "pruned", "failed")  # of finished trials
ANEW = "Choose another folder (--out) or storage, or remove this one to begin anew."
INSTALL = 'pip install "counterpoise[tune]"'


@dataclass(eq=False)
class Candidate:
    """A proposed configuration on its way to a result."""

    handle: Any  # Optuna's trial
    settings: dict[str, Any]  # empty for the defaults
    default: bool
    state: str = "running"  # then complete, pruned or failed; repeated if its settings were proposed before
    errors: list[Errors] = field(default_factory=list)  # by fold
    mapped_errors: list[Errors] = field(default_factory=list)  # of all folds, if they were fitted at once
    reason: str | None = None  # of its failure


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
        dimensions: list[Dimension],
        defaults: dict[str, Any],
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
        _check_database(storage)
        with _quiet():
            try:
                database = optuna.storages.get_storage(storage)
                study = optuna.create_study(storage=database, study_name=name, load_if_exists=True)
                if exclusive and not _finished(study):  # it was stopped before its first result
                    optuna.delete_study(study_name=name, storage=database)
                    study = optuna.create_study(storage=database, study_name=name)
            except Exception as error:  # whatever a database driver raises
                raise ConfigError(f"`storage` {storage!r} cannot be used: {_first_line(error)}.") from None
            with _undamaged(storage):
                _check_problem(study, problem, storage)
                _check_trials(study)
            for trial in study.get_trials(deepcopy=False) if exclusive else ():
                if trial.state == optuna.trial.TrialState.RUNNING:
                    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        return cls(study, dimensions, defaults, seed)

    def trials(self) -> tuple[Trial, ...]:
        """The finished trials."""
        return tuple(Trial(trial.number, risk=_risk(trial), **trial.user_attrs) for trial in _finished(self.study))

    def has_default(self) -> bool:
        """Whether the defaults were proposed."""
        trials = self.study.get_trials(deepcopy=False)
        return any(trial.user_attrs.get("default") and trial.state.name != "FAIL" for trial in trials)

    def propose(self, pending: list[Candidate]) -> Candidate:
        """The next candidate: the defaults first, then draws of Optuna's TPE.

        TPE keeps away from the `pending` ones, which have no result yet. The new one is repeated if an earlier trial or
        a pending candidate has the same settings.
        """
        optuna, number = load_optuna(), len(self.trials()) + len(pending)
        with _quiet():
            seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=bool(pending))
            if not self.has_default():
                self.study.enqueue_trial(self.defaults, user_attrs={"default": True})
            handle = self.study.ask()
            if handle.user_attrs.get("default"):
                for dimension in self.dimensions:
                    if dimension.name in self.defaults:
                        dimension.suggest(handle)  # the sampler learns where the defaults lie
                found = Candidate(handle, {}, True)
            else:
                found = Candidate(handle, {}, False)
                for dimension in self.dimensions:
                    found.settings |= dimension.settings(dimension.suggest(handle))
        if self._earlier(found) is not None or any(handle.params == other.handle.params for other in pending):
            found.state = "repeated"
        return found

    def finish(self, candidate: Candidate, risk: float | None, seconds: float) -> None:
        """Record how a trial ended. Optuna gets a failed one as pruned without a risk, so that TPE keeps away."""
        for name in ("state", "settings", "default", "reason"):
            candidate.handle.set_user_attr(name, getattr(candidate, name))
        candidate.handle.set_user_attr("seconds", seconds)
        if candidate.state == "complete":
            self._tell(candidate, values=risk)
        else:
            self._tell(candidate, state=load_optuna().trial.TrialState.PRUNED)

    def repeat(self, candidate: Candidate) -> None:
        """Give a trial the result of the earlier one with the same settings, in 0 seconds."""
        earlier = self._earlier(candidate)
        with _quiet():
            for fold, risk in earlier.intermediate_values.items():
                candidate.handle.report(risk, fold)
        candidate.state, candidate.reason = earlier.user_attrs["state"], earlier.user_attrs["reason"]
        self.finish(candidate, _risk(earlier), 0.0)

    def discard(self, candidate: Candidate) -> None:
        """Record that a trial was interrupted: it does not count."""
        self._tell(candidate, state=load_optuna().trial.TrialState.FAIL)

    def _tell(self, candidate: Candidate, **result: Any) -> None:
        with _quiet():
            self.study.tell(candidate.handle, **result, skip_if_finished=True)

    def _earlier(self, candidate: Candidate) -> Any:
        """Optuna's first finished trial with the same value in every dimension, or None."""
        params = candidate.handle.params
        if len(params) < len(self.dimensions):  # defaults outside of the space
            return None
        return next((trial for trial in _finished(self.study) if trial.params == params), None)


def _check_database(storage: str | None) -> None:
    """Raise `DataError` for an SQLite file that is something else, or a link: what it leads to would be changed."""
    prefix, _, name = (storage or "").partition(":///")
    if not prefix.startswith("sqlite") or not name:
        return
    file = Path(name.partition("?")[0])
    for ending in ("", "-journal", "-wal", "-shm"):
        beside = file.with_name(file.name + ending)
        if os.path.lexists(beside):
            check_file(beside, links=False)
    if file.exists() and file.stat().st_size:
        with open_file(file, links=False) as stream:
            if stream.read(len(SQLITE)) != SQLITE:
                raise DataError(f"{file}: is not a database of a search. {ANEW}")
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as found,
        ):
            tables = {name for (name,) in found.execute("select name from sqlite_master where type = 'table'")}
            if tables and "studies" not in tables:
                raise DataError(f"{file}: is a database of another program. {ANEW}")


@contextmanager
def _undamaged(storage: str | None) -> Iterator[None]:
    """A block in which whatever a damaged study raises becomes `DataError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise DataError(f"the study in {storage} is damaged ({_first_line(error)}). {ANEW}") from None


def _check_trials(study: Any) -> None:
    """Raise an error unless all trials are as `Study.finish` left them."""
    for trial in _finished(study):
        facts = trial.user_attrs
        right = facts["state"] in STATES and isinstance(facts["settings"], dict) and isinstance(facts["default"], bool)
        risk, seconds = _risk(trial), facts["seconds"]
        numbers = [seconds, *([] if risk is None else [risk])]
        if not right or not all(isinstance(number, float | int) and math.isfinite(number) for number in numbers):
            raise ValueError(f"trial {trial.number} is not what was recorded")
        Trial(trial.number, risk=risk, **facts)


@contextmanager
def reporting_storage(storage: str) -> Iterator[None]:
    """A block in which errors of the study's database become one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy", "sqlite3", "optuna")):
            raise
        reason = _first_line(error)
        raise DataError(
            f"the study in {storage} cannot be used: {reason}. Make room or put it back: {RESUME_ADVICE}"
        ) from None


def load_optuna() -> Any:
    """The package, or an error with the command that installs it."""
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
        raise ConfigError(f"the study in {storage} is of another problem: it differs in {', '.join(differing)}. {ANEW}")


def _risk(trial: Any) -> float | None:
    if trial.state.name == "COMPLETE":
        return float(trial.value)
    reported = trial.intermediate_values
    return float(reported[max(reported)]) if reported and trial.user_attrs["state"] == "pruned" else None
