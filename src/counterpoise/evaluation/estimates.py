"""The debiased validation risk: how good a configuration is over all pairs, judged by rows that its fits did not see.

The log is dealt into folds, and so is the probe. A model is fitted on all folds but one and judged on that one. The
weights of the judged rows make the log look like all of D; they are solved once, before the first fit, so that every
configuration is judged by the same ones. No test is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.data.log import Dataset, FeedbackLog, check_log
from counterpoise.errors import ConfigError, DataError, check_number
from counterpoise.evaluation.metrics import log_losses
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.recommender import DebiasedRecommender
from counterpoise.threads import one_thread
from counterpoise.training.context import FitContext
from counterpoise.training.contracts import Weights
from counterpoise.training.loop import MIN_ROWS_FOR_THREADS, Progress, Training
from counterpoise.weights.balancing import Balancing

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    standard_error: float


class Errors(NamedTuple):
    """Errors of rows that a fit has not seen: those of the log with their weights, and those of the probe."""

    on_log: Floats
    weights: Floats
    on_probe: Floats
    users: NDArray[np.int64]  # of the rows of the log, then of those of the probe

    def minus(self, other: Errors) -> Errors:
        """The differences, row by row, to other errors of the same rows."""
        return self._replace(on_log=self.on_log - other.on_log, on_probe=self.on_probe - other.on_probe)


def pooled(parts: Sequence[Errors]) -> Errors:
    """The errors of several folds together."""
    on_log, weights, on_probe = (np.concatenate([part[place] for part in parts]) for place in range(3))
    users = [np.split(part.users, [len(part.on_log)]) for part in parts]
    return Errors(on_log, weights, on_probe, np.concatenate([*(u for u, _ in users), *(u for _, u in users)]))


def debiased_risk(errors: Errors) -> Estimate:
    """risk = s (sum w e / sum w over the log's rows) + (1 - s) (mean of e over the n rows of the probe).

    s = m / (m + n) with m = (sum w)^2 / sum w^2, the effective sample size. Both terms estimate the mean error over D:
    the first with a variance of about var(e) / m, the second of var(e) / n, so this is the inverse-variance mean as far
    as errors vary alike in both. The share is the same for all configurations on purpose: with variances estimated for
    each, a configuration would be judged by the rows on which it happens to vary least. And since the risk is linear in
    the errors, the risk of a difference is the difference of the risks.

    The standard error sums what each row moves the risk by, c (e - mean of its kind) with c its coefficient, over the
    rows of a user, and takes the root of the sum of the squares over users: rows of one user err together.
    """
    m, n = effective_sample_size(errors.weights), len(errors.on_probe)
    share = m / (m + n)
    on_log = share * errors.weights / errors.weights.sum()
    on_probe = np.full(n, (1 - share) / max(n, 1))
    log_mean = float(np.average(errors.on_log, weights=errors.weights))
    probe_mean = float(errors.on_probe.mean()) if n else 0.0
    moves = np.concatenate([on_log * (errors.on_log - log_mean), on_probe * (errors.on_probe - probe_mean)])
    by_user = np.bincount(errors.users, moves)
    return Estimate(share * log_mean + (1 - share) * probe_mean, float(np.sqrt(by_user @ by_user)))


class Fold(NamedTuple):
    """What one fit may see, and what judges it."""

    log: FeedbackLog
    probe: FeedbackLog | None
    held_out: FeedbackLog
    weights: Floats  # of the rows held out
    held_out_probe: FeedbackLog


Spread = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]  # calls of a function, in order


@dataclass(frozen=True, eq=False)
class Validation:
    """A log and maybe a probe, dealt into folds, with the weights that judge; `of` makes one.

    `folds` parts, of which the first `rounds` judge; with one of five, a fifth of the log is held out once.
    """

    log: FeedbackLog
    probe: FeedbackLog | None
    weights: Floats  # (rows,) of the log, 1 on average
    fold_of_row: NDArray[np.int64]
    fold_of_probe_row: NDArray[np.int64]  # -1: never judged
    rounds: int
    spread: Spread | None = None  # who fits all folds at once; None fits them here, one by one

    @classmethod
    def of(
        cls,
        data: FeedbackLog | Dataset,
        probe: FeedbackLog | None = None,
        *,
        folds: int = 5,
        rounds: int | None = None,
        weights: Weights | None = None,
        seed: int = 0,
    ) -> Validation:
        """Deal rows into folds at random and solve for the weights. Of a `Dataset` its test is not touched.

        `weights`: a part that is ready before training, by default exact balancing of spectral kernel functions in
        features of what was observed. Those look at no label, so that held-out labels stay unseen although the weights
        come from the whole log; over all folds the judged rows then balance exactly.

        Rows of the probe whose pair stands in the log judge nothing, because fits have seen their label; they stay in
        the probe that fits see. Methods take from a probe no more than its label rate, and even that is taken without
        the rows that judge.
        """
        log = data.train if isinstance(data, Dataset) else data
        probe = data.probe if isinstance(data, Dataset) and probe is None else probe
        check_log("log", log)
        check_number("folds", folds, at_least=2, integer=True)
        rounds = folds if rounds is None else rounds
        check_number("rounds", rounds, at_least=1, at_most=folds, integer=True)
        if len(log) < 2 * folds:
            raise DataError(f"the log must have two rows for each of the {folds} folds, got {len(log)}.")
        rng = np.random.default_rng(seed)
        deal = rng.permutation(len(log)) % folds
        probe_deal = np.empty(0, np.int64) if probe is None else rng.permutation(len(probe)) % folds
        if probe is not None:
            probe_deal = np.where(np.isin(probe.pairs, log.pairs), -1, probe_deal)
        ratio = ratio_of(log, probe, Balancing() if weights is None else weights, seed)
        return cls(log, probe, ratio, deal, probe_deal, rounds)

    @cached_property
    def folds(self) -> list[Fold]:
        """The folds that judge."""
        return [self._fold(number) for number in range(self.rounds)]

    def _fold(self, number: int) -> Fold:
        mine, of_probe = self.fold_of_row == number, self.fold_of_probe_row == number
        seen = None if self.probe is None else self.probe.take(~of_probe)
        judging = self.log.take([]) if self.probe is None else self.probe.take(of_probe)
        return Fold(self.log.take(~mine), seen, self.log.take(mine), self.weights[mine], judging)

    def judge(
        self, make: Callable[[], DebiasedRecommender], progress_of: Callable[[int], Progress | None] | None = None
    ) -> Iterator[Errors]:
        """Fit a fresh model in each fold; its errors on what it has not seen, fold by fold.

        `progress_of(number of the fold)` gives the `progress` of its fit, where it is made here.
        """
        if self.spread is not None:
            yield from self.spread(fold_errors, [(make(), fold) for fold in self.folds])
            return
        for number, fold in enumerate(self.folds):
            yield fold_errors(make(), fold, None if progress_of is None else progress_of(number))

    def risk(self, make: Callable[[], DebiasedRecommender]) -> Estimate:
        """The debiased validation risk of what `make` makes."""
        return debiased_risk(pooled(list(self.judge(make))))

    def facts(self) -> dict[str, Any]:
        """JSON-able: how many rows judge, and how much they are worth."""
        held_out = np.concatenate([fold.weights for fold in self.folds])
        effective, on_probe = effective_sample_size(held_out), sum(len(fold.held_out_probe) for fold in self.folds)
        return {
            "folds": int(self.fold_of_row.max()) + 1,
            "rounds": self.rounds,
            "held_out_rows": len(held_out),
            "effective_sample_size": effective,
            "probe_rows": on_probe,
            "share_of_log": effective / (effective + on_probe),
        }


def fold_errors(model: DebiasedRecommender, fold: Fold, progress: Progress | None = None) -> Errors:
    """Fit a model to what it may see of a fold; its errors on the rest."""
    return errors_in(fold, model.fit(fold.log, fold.probe, progress=progress))


def errors_in(fold: Fold, model: DebiasedRecommender) -> Errors:
    """Of a model that was fitted to what it may see of a fold."""
    users = np.concatenate([fold.held_out.users, fold.held_out_probe.users]).astype(np.int64)
    return Errors(_errors(model, fold.held_out), fold.weights, _errors(model, fold.held_out_probe), users)


def ratio_of(log: FeedbackLog, probe: FeedbackLog | None, weights: Weights, seed: int) -> Floats:
    """The ratio of each row of a log by weights that are ready before training."""
    training = Training(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    context = FitContext(log, probe, MatrixFactorization(), training, training.resolve_device(), generator)
    with one_thread(training.rows_per_step(len(log)) < MIN_ROWS_FOR_THREADS):
        fitted_weights = weights.init(context)
        fitted_weights.refresh(1, _no_predictor)
    return fitted_weights.ratio.cpu().numpy().astype(np.float64)


def _no_predictor() -> Any:
    raise ConfigError("`weights` that look at the errors of a predictor cannot judge several of them by one measure.")


def _errors(model: DebiasedRecommender, log: FeedbackLog) -> Floats:
    return log_losses(log.labels, model.predict_log(log))
