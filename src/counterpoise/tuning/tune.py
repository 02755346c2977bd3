"""`tune`: search the settings of a method for the least debiased validation risk. The test is never used."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

from counterpoise import __version__
from counterpoise.config import Measure, takes_options
from counterpoise.data.log import DEFAULTS, Dataset, LogOptions, as_logs, hash_logs
from counterpoise.errors import ConfigError, CounterpoiseError, DataError, check_number
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
from counterpoise.methods import DEFAULT_METHOD, make
from counterpoise.parallel import fit_models
from counterpoise.recommender import DebiasedRecommender
from counterpoise.training.events import Progress, by_epoch
from counterpoise.training.loop import DivergenceError
from counterpoise.tuning.result import Trial, Tuning, best_trial
from counterpoise.tuning.search_space import SYNTAX, default_values, search_space
from counterpoise.tuning.study import Candidate, Study, load_optuna

MAX_DEFICIT = 2.0  # standard errors of the paired difference by which a trial may be behind the best and go on
STEPS_PER_FIT = 100  # of the reported progress


@takes_options(LogOptions, DEFAULTS)
def tune(
    data: Any,
    method: str | None = None,
    trials: int = 20,
    *,
    probe: Any = None,
    settings: Mapping[str, Any] | None = None,
    space: str = "default",
    search: Mapping[str, Any] | None = None,
    folds: int = 5,
    eval_folds: int | None = None,
    seed: int = 0,
    storage: str | None = None,
    name: str | None = None,
    exclusive: bool = False,
    parallel_trials: int = 1,
    progress: Progress | None = None,
    callback: Callable[[tuple[Trial, ...]], None] | None = None,
    parallel_map: ParallelMap | None = None,
    hold_out_probe: bool = True,
    measure: Measure = "log loss",
    build: Callable[..., DebiasedRecommender] = make,
    **options: Unpack[LogOptions],
) -> Tuning:
    """Search the settings of a method, `trials` configurations in all; the first one is the method's defaults.

    `data`: a log, a `Dataset`, or a frame with `options` as in `FeedbackLog.from_frame`, as may be the `probe`.
    `method`: by default that for the log's kind of feedback. Trials of clicks are judged by the ranks of held-out ones.
    The keywords are those of the command. `settings` stay fixed; for `space` and `search`
    (`{"l2": "1:64:log", "dim": [8, 16]}`) see `search_space`. The log is cut into `folds`, and the first `eval_folds`
    of them are held out, one at a time (default: all).
    A trial is pruned when, after a fold, its risk is above that of the best trial by more than two standard errors of
    the paired difference. It fails when its fit diverges. Settings that were tried before are not fitted again: the
    trial gets the earlier result in 0 seconds.
    `storage`: an Optuna URL; a study that it holds under `name` continues up to `trials` in all. `exclusive`: no other
    process works on that study, so trials found running were interrupted.
    `parallel_trials`: proposed together and fitted in parallel (see `fit_many`), each without the others' results.
    `progress` gets (steps done, steps planned, least risk so far; the loss of the fit before the first risk), and
    `callback` all finished trials after each. `parallel_map` fits all folds of a trial at once, for example
    `out_of_core.engines.Tasks`; the results are the same.
    `hold_out_probe`: whether rows of the probe are held out too, or used in fits alone. `measure`: what trials of
    ratings are judged by, see `Validation.of`. `build`: takes the method and
    settings as `make` does, for a model with other defaults.
    """
    check_number("trials", trials, at_least=1, integer=True)
    check_number("parallel_trials", parallel_trials, at_least=1, integer=True)
    fixed = dict(settings or {})
    if isinstance(data, Dataset):
        data, probe = data.train, data.probe if probe is None else probe
    log, probe = as_logs({"data": data, "probe": probe}, **options)
    if not log.in_memory:
        raise DataError(
            f"a search needs a log in memory, got one of {len(log):,} rows that is streamed. "
            "Tune on some of its files, or raise `memory` in the file of --config."
        )
    method = DEFAULT_METHOD[log.feedback] if method is None else method
    if build is make:
        build = partial(make, feedback=log.feedback)
    dimensions = search_space(method, fixed, len(log), space, search, build)
    if not dimensions:
        raise ConfigError(f"there is nothing to search: name settings of {method!r} with --search {SYNTAX}.")
    load_optuna()  # an error now, not after the weights
    validation = replace(
        Validation.of(
            log,
            probe,
            folds=folds,
            eval_folds=eval_folds,
            seed=seed,
            hold_out_probe=hold_out_probe,
            measure=measure,
        ),
        parallel_map=parallel_map,
    )
    problem = {
        "data": hash_logs(__version__, validation.log, validation.probe),
        "method": method,
        "settings": repr(sorted(fixed.items())),
        "seed": seed,
        "space": repr(dimensions),
        "folds": folds,
        "eval_folds": validation.eval_folds,
        "hold_out_probe": hold_out_probe,
        "measure": measure,
    }
    defaults, name = default_values(method, fixed, dimensions, build), name or f"counterpoise-{method}"
    study = Study.open(dimensions, defaults, seed, problem=problem, storage=storage, name=name, exclusive=exclusive)
    running = _Search(study, validation, lambda own: build(method, **{"seed": seed, **fixed, **own}))
    while len(study.trials()) < trials:
        running.next_trials(parallel_trials, trials, progress)
        if callback is not None:
            callback(study.trials())
    return Tuning(
        method, seed, fixed, study.trials(), *running.risks(), validation.facts(), log.frame_kind, log.feedback
    )


@dataclass(eq=False)
class _Search:
    """Proposes candidates, fits them fold by fold, prunes those behind the best trial, and records the results."""

    study: Study
    validation: Validation
    make: Callable[[dict[str, Any]], DebiasedRecommender]
    errors: dict[int, list[Errors]] = field(default_factory=dict)  # by trial, by fold: of the defaults and the best

    def next_trials(self, parallel_trials: int, planned: int, progress: Progress | None) -> None:
        """Propose, fit and record some trials; the defaults alone, since all others are compared with them."""
        done, started = self.study.trials(), time.perf_counter()
        best = best_trial(done) if any(trial.state == "complete" for trial in done) else None
        best_errors = None if best is None else self._errors_of(best)
        size = min(parallel_trials, planned - len(done)) if self.study.has_default() else 1
        steps = STEPS_PER_FIT * self.validation.eval_folds  # of a trial

        def report(fold: int) -> Progress | None:
            """The progress of fitting `size` trials to a fold, as a part of the whole search."""
            if progress is None:
                return None
            before = steps * len(done) + STEPS_PER_FIT * size * fold
            risk = None if best is None else best.risk
            return lambda epoch, epochs, loss: progress(
                before + STEPS_PER_FIT * size * epoch // epochs, steps * planned, loss if risk is None else risk
            )

        candidates: list[Candidate] = []
        try:
            while len(candidates) < size:
                candidates.append(self.study.propose(candidates))
            for number, fold in enumerate(self.validation.folds):
                running = [candidate for candidate in candidates if candidate.state == "running"]
                for candidate, found in zip(running, self._fit(running, fold, report(number)), strict=True):
                    self._evaluate(candidate, found, best_errors)
        except BaseException:
            for candidate in candidates:
                self.study.discard(candidate)
            raise
        self._record(candidates, time.perf_counter() - started)
        last = report(self.validation.eval_folds - 1)
        if last is not None and best is not None:
            last(1, 1, math.nan)  # pruned and repeated trials are done too; the least risk is shown, not the loss

    def _fit(self, candidates: list[Candidate], fold: Fold, progress: Progress | None) -> list[Errors | Exception]:
        """The errors of each candidate on a fold, or its exception; one by one if fitting in parallel fails."""
        if self.validation.parallel_map is not None:
            return [_result_or_error(partial(self._map_folds, candidate)) for candidate in candidates]
        if len(candidates) > 1:
            with suppress(Exception):
                models = [self.make(candidate.settings) for candidate in candidates]
                models = fit_models(models, fold.log, [fold.probe] * len(models), progress=progress)
                return [_result_or_error(partial(held_out_errors, fold, model)) for model in models]

        def fit(candidate: Candidate) -> Errors:
            model = self.make(candidate.settings).fit(fold.log, fold.probe, callback=by_epoch(progress))
            return held_out_errors(fold, model)

        return [_result_or_error(partial(fit, candidate)) for candidate in candidates]

    def _map_folds(self, candidate: Candidate) -> Errors:
        """The errors on the next fold; all folds are fitted with the first."""
        if not candidate.mapped_errors:
            candidate.mapped_errors = list(self.validation.errors_by_fold(lambda: self.make(candidate.settings)))
        return candidate.mapped_errors[len(candidate.errors)]

    def _evaluate(self, candidate: Candidate, found: Errors | Exception, best: list[Errors] | None) -> None:
        """Add the errors on one more fold, and prune the candidate if it is behind the best trial.

        Any exception fails the candidate. Only if the defaults raise one without diverging, it ends the search: it
        would come with all other settings too.
        """
        if isinstance(found, Exception):
            if candidate.default and not isinstance(found, DivergenceError):
                raise found
            kind = "" if isinstance(found, CounterpoiseError) else f"{type(found).__name__}: "
            candidate.state, candidate.errors, candidate.reason = "failed", [], f"{kind}{found}"
            return
        candidate.errors.append(found)
        so_far, folds = pooled(candidate.errors), len(candidate.errors)
        candidate.handle.report(debiased_risk(so_far).value, folds)
        if folds == self.validation.eval_folds:
            candidate.state = "complete"
        elif best is not None and not candidate.default and is_behind(so_far, pooled(best[:folds])):
            candidate.state = "pruned"

    def _record(self, candidates: list[Candidate], seconds: float) -> None:
        """Finish all trials, and keep the errors of the defaults and of the best trial for paired differences."""
        fitted = [candidate for candidate in candidates if candidate.state != "repeated"]
        for candidate in fitted:
            risk = debiased_risk(pooled(candidate.errors)).value if candidate.errors else None
            self.study.finish(candidate, risk, round(seconds / len(fitted), 3))
            if candidate.state == "complete":
                self.errors[candidate.handle.number] = candidate.errors
        for candidate in candidates:
            if candidate.state == "repeated":
                self.study.repeat(candidate)
        if self.errors:
            trials = self.study.trials()
            kept = {best_trial(trials).number, *(trial.number for trial in trials if trial.default)}
            self.errors = {number: errors for number, errors in self.errors.items() if number in kept}

    def risks(self) -> tuple[Estimate | None, Estimate, Estimate | None]:
        """(risk of the defaults, risk of the best trial, gain)."""
        trials = self.study.trials()
        best = pooled(self._errors_of(best_trial(trials)))
        default = next((trial for trial in trials if trial.default and trial.state == "complete"), None)
        if default is None:
            return None, debiased_risk(best), None
        before = pooled(self._errors_of(default))
        return debiased_risk(before), debiased_risk(best), debiased_risk(before.minus(best))

    def _errors_of(self, trial: Trial) -> list[Errors]:
        """The errors of a complete trial, fitted again if another process fitted it."""
        if trial.number not in self.errors:
            self.errors[trial.number] = list(self.validation.errors_by_fold(lambda: self.make(trial.settings)))
        return self.errors[trial.number]


def is_behind(errors: Errors, best: Errors) -> bool:
    """Whether the risk is above that of the best by more than two standard errors of the paired difference."""
    difference = debiased_risk(errors.minus(best))
    return difference.value > MAX_DEFICIT * difference.standard_error


def _result_or_error(fit: Callable[[], Errors]) -> Errors | Exception:
    try:
        errors = fit()
        risk = debiased_risk(errors).value
        if not math.isfinite(risk):
            raise DivergenceError(f"training diverged: the risk on {len(errors.on_log)} held-out rows is {risk}.")
    except Exception as error:
        return error
    return errors
