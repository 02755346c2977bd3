"""The debiased validation risk: an estimate of the ideal loss of a configuration by k-fold cross-validation.

The rows of the log, and those of the probe, are assigned to k folds. A model is fitted on all folds but one and
evaluated on that one. The weights of the held-out rows make the log look like all of D. They are solved once,
before the first fit, so that every configuration is evaluated by the same ones. The test is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.config import Measure
from counterpoise.data.log import Dataset, FeedbackLog, as_logs
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.evaluation.full_ranking import full_ranks
from counterpoise.evaluation.holdout_weights import inverse_exposure
from counterpoise.evaluation.metrics import log_losses
from counterpoise.evaluation.weighted import ScoreOrder, pair_auc
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.ranking import Seen
from counterpoise.recommender import DebiasedRecommender
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, Weights
from counterpoise.training.loop import MIN_ROWS_FOR_THREADS, Training
from counterpoise.weights.balancing import Balancing

Floats = NDArray[np.float64]
RANKED = 10  # items in the lists by which methods for clicks are judged
MEASURE_OF_CLICKS = f"1 - DCG@{RANKED}"


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    standard_error: float


class Errors(NamedTuple):
    """Errors of held-out rows: those of the log with their weights, and those of the probe."""

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
    as errors vary alike in both. The share s is the same for all configurations on purpose: with variances estimated
    for each, a configuration would be evaluated by the rows on which it happens to vary least. The risk is linear in
    the errors, so the risk of a difference is the difference of the risks.

    The standard error is clustered by user: sqrt(sum over users of (sum over the user's rows of c (e - mean))^2), c the
    coefficient of the row, and the mean that of the log or of the probe.
    """
    m, n = effective_sample_size(errors.weights), len(errors.on_probe)
    share = m / (m + n)
    on_log = share * errors.weights / errors.weights.sum()
    on_probe = np.full(n, (1 - share) / max(n, 1))
    log_mean = float(np.average(errors.on_log, weights=errors.weights))
    probe_mean = float(errors.on_probe.mean()) if n else 0.0
    influence = np.concatenate([on_log * (errors.on_log - log_mean), on_probe * (errors.on_probe - probe_mean)])
    by_user = np.bincount(errors.users, influence)
    return Estimate(share * log_mean + (1 - share) * probe_mean, float(np.sqrt(by_user @ by_user)))


class Fold(NamedTuple):
    """The rows that one fit may use, and the held-out rows that it is evaluated on."""

    log: FeedbackLog
    probe: FeedbackLog | None
    held_out: FeedbackLog
    weights: Floats  # of the rows held out
    held_out_probe: FeedbackLog
    measure: Measure = "log loss"


ParallelMap = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]  # results in order of the calls


@dataclass(frozen=True, eq=False)
class Validation:
    """A log and maybe a probe in k folds, with the weights of held-out rows; `of` makes one.

    The first `eval_folds` of the folds are held out in turn; with 1 of 5, a fifth of the log is held out once.
    """

    log: FeedbackLog
    probe: FeedbackLog | None
    weights: Floats  # (rows,) of the log, 1 on average
    fold_of_row: NDArray[np.int64]
    fold_of_probe_row: NDArray[np.int64]  # -1: never held out
    eval_folds: int
    measure: Measure = "log loss"
    parallel_map: ParallelMap | None = None  # fits all folds in parallel; None fits them here, one by one

    @classmethod
    def of(
        cls,
        data: FeedbackLog | Dataset,
        probe: FeedbackLog | None = None,
        *,
        folds: int = 5,
        eval_folds: int | None = None,
        weights: Weights | None = None,
        seed: int = 0,
        hold_out_probe: bool = True,
        measure: Measure = "log loss",
    ) -> Validation:
        """Assign rows to folds at random and solve for the weights. The test of a `Dataset` is not used.

        `weights`: weights that are ready before training, by default exact balancing of spectral kernel functions of
        the exposure features. These use no label, so held-out labels stay unseen although the weights come from the
        whole log; over all folds the held-out rows balance exactly.

        Rows of the probe whose pair is also in the log are never held out, because fits have seen their label; they
        stay in the probe that fits use. Without `hold_out_probe` that goes for all of them.

        `measure`: "log loss", or "1 - AUC" of each fold (`auc_errors`). Weights that look at no label leave the rates
        of labels wrong where a label is itself a reason to be observed: that moves the log loss, and no AUC.

        Of clicks, the held-out ones are weighted by `inverse_exposure`, and their error is `rank_errors`.
        """
        log = data.train if isinstance(data, Dataset) else data
        probe = data.probe if isinstance(data, Dataset) and probe is None else probe
        log, probe = as_logs({"log": log, "probe": probe})
        check_number("folds", folds, at_least=2, integer=True)
        eval_folds = folds if eval_folds is None else eval_folds
        check_number("eval_folds", eval_folds, at_least=1, at_most=folds, integer=True)
        check_choice("measure", measure, get_args(Measure))
        if len(log) < 2 * folds:
            raise DataError(f"the log must have two rows for each of the {folds} folds, got {len(log)}.")
        rng = np.random.default_rng(seed)
        fold_of_row, fold_of_probe_row = rng.permutation(len(log)) % folds, np.empty(0, np.int64)
        if probe is not None:
            drawn = rng.permutation(len(probe)) % folds
            fold_of_probe_row = np.where(np.isin(probe.pairs, log.pairs) | (not hold_out_probe), -1, drawn)
        if log.feedback == "clicks" and weights is None:
            each = inverse_exposure(log, log)
            return cls(log, None, each / each.mean(), fold_of_row, np.empty(0, np.int64), eval_folds)
        ratio = solve_ratio(log, probe, Balancing(strength="exact") if weights is None else weights, seed)
        return cls(log, probe, ratio, fold_of_row, fold_of_probe_row, eval_folds, measure)

    @cached_property
    def folds(self) -> list[Fold]:
        folds = []
        for number in range(self.eval_folds):
            rows, probe_rows = self.fold_of_row == number, self.fold_of_probe_row == number
            probe = None if self.probe is None else self.probe.take(~probe_rows)
            held_out_probe = self.log.take([]) if self.probe is None else self.probe.take(probe_rows)
            held_out = self.log.take(rows), self.weights[rows], held_out_probe
            folds.append(Fold(self.log.take(~rows), probe, *held_out, self.measure))
        return folds

    def errors_by_fold(self, make: Callable[[], DebiasedRecommender]) -> Iterator[Errors]:
        """Fit a fresh model in each fold; its errors on the held-out rows, fold by fold."""
        if self.parallel_map is not None:
            return self.parallel_map(fit_fold, [(make(), fold) for fold in self.folds])
        return (fit_fold(make(), fold) for fold in self.folds)

    def risk(self, make: Callable[[], DebiasedRecommender]) -> Estimate:
        """The debiased validation risk of the models that `make` returns."""
        return debiased_risk(pooled(list(self.errors_by_fold(make))))

    def facts(self) -> dict[str, Any]:
        """JSON-able: the held-out rows, their effective sample size, and the log's share of the estimate."""
        held_out = np.concatenate([fold.weights for fold in self.folds])
        effective, on_probe = effective_sample_size(held_out), sum(len(fold.held_out_probe) for fold in self.folds)
        return {
            "measure": MEASURE_OF_CLICKS if self.log.feedback == "clicks" else self.measure,
            "folds": int(self.fold_of_row.max()) + 1,
            "eval_folds": self.eval_folds,
            "held_out_rows": len(held_out),
            "effective_sample_size": effective,
            "probe_rows": on_probe,
            "share_of_log": effective / (effective + on_probe),
        }


def fit_fold(model: DebiasedRecommender, fold: Fold) -> Errors:
    """Fit a model to the rows of a fold that it may use; its errors on the held-out rows."""
    return held_out_errors(fold, model.fit(fold.log, fold.probe))


def held_out_errors(fold: Fold, model: DebiasedRecommender) -> Errors:
    """The errors of a fitted model on the held-out rows of its fold."""
    if fold.log.feedback == "clicks":
        return Errors(rank_errors(fold, model), fold.weights, np.empty(0), fold.held_out.users.astype(np.int64))
    logs, weights = (fold.held_out, fold.held_out_probe), (fold.weights, np.ones(len(fold.held_out_probe)))
    on_log, on_probe = (
        log_losses(log.labels, model.predict_log(log))
        if fold.measure == "log loss"
        else auc_errors(log.labels, model.predict_log(log), own)
        for log, own in zip(logs, weights, strict=True)
    )
    return Errors(on_log, fold.weights, on_probe, np.concatenate([log.users for log in logs]).astype(np.int64))


def auc_errors(labels: NDArray[Any], scores: NDArray[Any], weights: Floats) -> Floats:
    """1 - AUC - the row's influence on it: their weighted mean is 1 - AUC, and their spread that of the estimate."""
    if not np.isfinite(scores).all():
        return np.full(len(labels), np.nan)
    if not len(labels):
        return np.empty(0)
    found = pair_auc(labels, weights, ScoreOrder.of(scores))
    if not np.isfinite(found.value):
        raise DataError(
            f"the {len(labels)} rows that are held out have one label only, and no AUC. "
            "Judge by the log loss, or take fewer folds of a larger log."
        )
    return np.asarray(1 - found.value - found.influence)


def rank_errors(fold: Fold, model: DebiasedRecommender) -> Floats:
    """1 - [z <= k] / log2(1 + z) of each held-out click, z its rank among the items without a click in training.

    k = `RANKED`. Their weighted mean is 1 - DCG@k: log loss would need labels of both kinds. Ties share the mean of
    their ranks.
    """
    users, items = (codes.astype(np.int64) for codes in (fold.held_out.users, fold.held_out.items))
    places, _ = full_ranks(model.score_items, Seen.of(fold.log), users, items, fold.log.shape[1], RANKED)
    return 1 - places.worth(1 / np.log2(1 + np.arange(1, RANKED + 1)))


def solve_ratio(log: FeedbackLog, probe: FeedbackLog | None, weights: Weights, seed: int) -> Floats:
    """The ratio (weight x density) of each row of a log, by weights that are ready before training."""
    training, generator = Training(seed=seed), torch.Generator().manual_seed(seed)
    context = FitContext(log, probe, MatrixFactorization(), training, training.resolve_device(), generator)
    with one_thread(training.rows_per_step(len(log)) < MIN_ROWS_FOR_THREADS):
        fitted_weights = weights.init(context)
        fitted_weights.refresh(1, _no_predictor)
    return fitted_weights.ratio.cpu().numpy().astype(np.float64)


def _no_predictor() -> Any:
    raise ConfigError(
        "`weights` must be ready before training, so that all models are validated by the same ones; these follow the "
        "errors of a predictor."
    )
