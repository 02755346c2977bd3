"""`tune`: search the settings of a method for the least debiased validation risk. No test is looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from counterpoise import __version__
from counterpoise.data.log import Dataset, FeedbackLog, hash_logs
from counterpoise.errors import CounterpoiseError, DataError, check_number
from counterpoise.evaluation.estimates import (
    Errors,
    Estimate,
    Fold,
    ParallelMap,
    Validation,
    debiased_risk,
    held_out_errors,
    pooled,
)
from counterpoise.methods import make
from counterpoise.out_of_core.log import StreamedLog
from counterpoise.parallel import fit_models
from counterpoise.recommender import DebiasedRecommender
from counterpoise.training.loop import DivergenceError, Progress
from counterpoise.tuning.search_space import search_space
from counterpoise.tuning.study import Proposal, Study, Trial, Tuning, best_of, load_optuna

BEHIND = 2.0  # standard errors by which a trial may be behind the best and go on
REPEATED = "repeated"
STEPS_A_FIT = 100  # of the progress that is reported
Steps = Callable[[int], Progress | None]  # the progress of the fit of a fold, by its number
After = Callable[[tuple[Trial, ...]], None]


def tune(
    data: FeedbackLog | Dataset,
    method: str = "counterpoise",
    trials: int = 20,
    *,
    probe: FeedbackLog | None = None,
    settings: Mapping[str, Any] | None = None,
    space: str = "default",
    search: Mapping[str, Any] | None = None,
    folds: int = 5,
    rounds: int | None = None,
    seed: int = 0,
    storage: str | None = None,
    name: str | None = None,
    alone: bool = False,
    at_once: int = 1,
    progress: Progress | None = None,
    after: After | None = None,
    spread: ParallelMap | None = None,
) -> Tuning:
    """Search the settings of a method, `trials` configurations in all; the first one is the method's own.

    `settings` stay fixed. `space` and `search` (`{"l2": "1:64:log", "dim": [8, 16]}`): see `search_space`. `folds` and
    `rounds`: see `Validation`. A trial is given up when, after a fold, it is behind the best by more than two standard
    errors of the paired difference, or when its fit diverges.
    A proposal that was tried before is not fitted again: it gets the result that it had, in 0 seconds.
    `storage`: an Optuna URL; a study that is there under `name` goes on up to `trials` in all. `alone`: nobody else
    works on it, so that trials found running were interrupted. `at_once`: trials that are proposed together and fitted
    side by side, see `fit_many`: faster, and each knows less of the others.
    `progress` gets (steps done, steps planned, least risk so far), before the first risk the loss of the fit; `after`
    gets all trials after each. `spread`: who fits all folds of a trial at once, such as `ray_engine.Tasks`; the results
    are the same.
    """
    check_number("trials", trials, at_least=1, integer=True)
    check_number("at_once", at_once, at_least=1, integer=True)
    log, fixed = data.train if isinstance(data, Dataset) else data, dict(settings or {})
    if not isinstance(log, FeedbackLog):
        raise DataError(f"`data` must be a FeedbackLog or a Dataset, got {type(data).__name__}.")
    if isinstance(log, StreamedLog):
        raise DataError(
            f"a search needs a log in memory, got one of {len(log):,} rows that is streamed. "
            "Tune on some of its files, or raise `memory` in the file of --config."
        )
    dimensions = search_space(method, fixed, len(log), space, search)
    load_optuna()  # an error now, not after the weights
    judges = replace(Validation.of(data, probe, folds=folds, eval_folds=rounds, seed=seed), parallel_map=spread)
    problem = {"data": fingerprint(judges), "method": method, "settings": repr(sorted(fixed.items())), "seed": seed}
    problem |= {"space": repr(dimensions), "folds": folds, "rounds": judges.eval_folds}
    place: dict[str, Any] = {"storage": storage, "name": name or f"counterpoise-{method}", "alone": alone}
    study = Study.open(method, fixed, dimensions, seed, problem=problem, **place)
    trying = _Search(study, judges, lambda own: make(method, **{"seed": seed, **fixed, **own}))
    while len(study.trials()) < trials:
        trying.some(at_once, trials, progress)
        if after is not None:
            after(study.trials())
    return Tuning(method, seed, fixed, study.trials(), *trying.compared(), judges.facts())


@dataclass(eq=False)
class _Search:
    """Trials, one after the other, each judged against the best so far."""

    study: Study
    judges: Validation
    make: Callable[[dict[str, Any]], DebiasedRecommender]
    known: dict[int, list[Errors]] = field(default_factory=dict)  # by trial, by fold: of the defaults and of the best

    def some(self, at_once: int, planned: int, progress: Progress | None = None) -> None:
        """The next trials, from their proposals to their ends; the defaults alone, since they are what others meet."""
        done, started = self.study.trials(), time.perf_counter()
        best = best_of(done) if any(trial.state == "complete" for trial in done) else None
        rival = None if best is None else self._errors(best)
        size = min(at_once, planned - len(done)) if self.study.has_default() else 1
        steps = _steps(progress, len(done) * self.judges.eval_folds, planned * self.judges.eval_folds, best, size)
        running: list[_Running] = []
        try:
            for ahead in range(size):
                proposal = self.study.propose(ahead)
                known = self.study.twin(proposal) is not None or any(proposal.same(one.proposal) for one in running)
                running.append(_Running(proposal, state=REPEATED if known else None))
            for number, fold in enumerate(self.judges.folds):
                self._judge([trial for trial in running if trial.state is None], fold, rival, steps(number))
        except BaseException:
            for trial in running:
                self.study.interrupt(trial.proposal)
            raise
        fitted = [trial for trial in running if trial.state != REPEATED]
        seconds = round((time.perf_counter() - started) / max(1, len(fitted)), 3)
        for trial in fitted:
            risk = debiased_risk(pooled(trial.errors)).value if trial.errors else None
            self.study.finish(trial.proposal, trial.state or "complete", risk, seconds, trial.reason)
        for trial in fitted:
            if trial.state is None:
                self._remember(trial.proposal.handle.number, trial.errors)
        for trial in running:
            if trial.state == REPEATED:
                self.study.repeat(trial.proposal)
        last = steps(self.judges.eval_folds - 1)
        if last is not None and best is not None and len(fitted) < size:
            last(1, 1, math.nan)  # what was not fitted is done too; the least risk is shown, not this

    def _judge(self, trials: list[_Running], fold: Fold, rival: list[Errors] | None, progress: Progress | None) -> None:
        """Fit those that are still running to a fold, and see which go on.

        Whatever goes wrong with settings that a machine has drawn is a failure of that trial. What goes wrong with the
        defaults, unless they diverge, goes wrong with all.
        """
        for trial, found in zip(trials, self._fitted(trials, fold, progress), strict=True):
            if isinstance(found, Exception):
                if trial.proposal.default and not isinstance(found, DivergenceError):
                    raise found
                kind = "" if isinstance(found, CounterpoiseError) else f"{type(found).__name__}: "
                trial.state, trial.errors, trial.reason = "failed", [], f"{kind}{found}"
                continue
            trial.errors.append(found)
            so_far, seen = pooled(trial.errors), len(trial.errors)
            self.study.report(trial.proposal, debiased_risk(so_far).value, seen)
            against = None if trial.proposal.default or seen == self.judges.eval_folds else rival
            if against is not None and is_behind(so_far, pooled(against[:seen])):
                trial.state = "pruned"

    def _fitted(self, trials: list[_Running], fold: Fold, progress: Progress | None) -> Iterator[Errors | Exception]:
        """The errors of each in a fold, or what went wrong; side by side first, and one by one where that fails."""
        if self.judges.parallel_map is not None:
            yield from map(self._elsewhere, trials)
            return
        if len(trials) > 1:
            try:
                models = [self.make(trial.proposal.settings) for trial in trials]
                models = fit_models(models, fold.log, [fold.probe] * len(models), progress=progress)
                errors = [_finite(held_out_errors(fold, model), fold) for model in models]
            except Exception:
                errors = []
            if errors:
                yield from errors
                return
        for trial in trials:
            try:
                model = self.make(trial.proposal.settings).fit(fold.log, fold.probe, progress=progress)
                yield _finite(held_out_errors(fold, model), fold)
            except Exception as error:
                yield error

    def _elsewhere(self, trial: _Running) -> Errors | Exception:
        """The same for one trial whose folds somebody else fits, all of them when the first is asked for."""
        try:
            trial.ahead = trial.ahead or list(self.judges.errors_by_fold(lambda: self.make(trial.proposal.settings)))
            return trial.ahead[len(trial.errors)]
        except Exception as error:
            return error

    def compared(self) -> tuple[Estimate | None, Estimate, Estimate | None]:
        """(risk of the defaults, risk of the best, the gain)."""
        trials = self.study.trials()
        best = pooled(self._errors(best_of(trials)))
        first = next((trial for trial in trials if trial.default and trial.state == "complete"), None)
        if first is None:
            return None, debiased_risk(best), None
        before = pooled(self._errors(first))
        return debiased_risk(before), debiased_risk(best), debiased_risk(before.minus(best))

    def _errors(self, trial: Trial) -> list[Errors]:
        """The errors of a complete trial; fitted again where it was another process that fitted it."""
        if trial.number not in self.known:
            self.known[trial.number] = list(self.judges.errors_by_fold(lambda: self.make(trial.settings)))
        return self.known[trial.number]

    def _remember(self, number: int, errors: list[Errors]) -> None:
        self.known[number] = errors
        trials = self.study.trials()
        worth = {best_of(trials).number, *(trial.number for trial in trials if trial.default)}
        self.known = {key: value for key, value in self.known.items() if key in worth}


def _finite(errors: Errors, fold: Fold) -> Errors:
    risk = debiased_risk(errors).value
    if not math.isfinite(risk):
        raise DivergenceError(f"the risk is {risk} on {len(fold.held_out)} rows held out.")
    return errors


@dataclass(eq=False)
class _Running:
    """A trial on its way."""

    proposal: Proposal
    errors: list[Errors] = field(default_factory=list)  # by fold
    ahead: list[Errors] = field(default_factory=list)  # those of all folds, where they were fitted at once
    state: str | None = None  # pruned or failed, once it is; repeated where its settings were proposed before
    reason: str | None = None


def is_behind(errors: Errors, rival: Errors) -> bool:
    """Whether the risk is larger than that of a rival by more than two standard errors of the paired difference."""
    difference = debiased_risk(errors.minus(rival))
    return difference.value > BEHIND * difference.standard_error


def fingerprint(judges: Validation) -> str:
    """A hash of the log and of the probe and of our version, so that a study is not continued on anything else."""
    return hash_logs(__version__, judges.log, judges.probe)


def _steps(progress: Progress | None, fits_done: int, fits_planned: int, best: Trial | None, size: int = 1) -> Steps:
    """For each fold, the progress of its fit, or of `size` of them at once, as a part of the whole search."""
    if progress is None:
        return lambda fold: None

    def of_fold(fold: int) -> Progress:
        return lambda epoch, epochs, loss: progress(
            STEPS_A_FIT * (fits_done + size * fold) + STEPS_A_FIT * size * epoch // epochs,
            STEPS_A_FIT * fits_planned,
            loss if best is None or best.risk is None else best.risk,
        )

    return of_fold
