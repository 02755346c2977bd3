"""Every metric of a model on a test log, with bootstrap intervals over users."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, get_args

import numpy as np

from counterpoise.config import EmptyUsers
from counterpoise.data.log import FeedbackLog, check_log
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.evaluation import metrics
from counterpoise.evaluation.metrics import EMPTY_USER_METRICS, METRIC_NAMES, Comparison, Floats, Rankings

BOOTSTRAP_BLOCK = 2**16  # rows that the bootstrap works on at a time: what fits into a processor's cache is fastest
UNDEFINED = {"auc": "all labels are equal", "user_auc": "no user has labels of both kinds"}
UNDEFINED |= dict.fromkeys(EMPTY_USER_METRICS, "no user has a positive label")
UNDEFINED |= dict.fromkeys(metrics.LOWER_IS_BETTER, "the scores are not probabilities: some lie outside [0, 1]")


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one model on one log; a metric that is not defined is nan, and `undefined` says why."""

    auc: float
    user_auc: float  # mean over the `n_auc_users` users that have labels of both kinds
    ndcg: float
    precision: float
    recall: float
    f1: float  # of the mean precision and the mean recall
    mse: float
    mae: float
    log_loss: float
    k: int
    empty_users: EmptyUsers
    n_rows: int
    n_users: int
    n_empty_users: int  # without a positive label: the rule `empty_users` is about them
    n_short_users: int  # with fewer than k rows
    n_auc_users: int
    level: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # empty without bootstrap

    @property
    def undefined(self) -> dict[str, str]:
        """Each metric that is nan, and why."""
        return {name: UNDEFINED[name] for name in METRIC_NAMES if math.isnan(getattr(self, name))}

    def to_dict(self) -> dict[str, Any]:
        """Everything in types that JSON has; None for nan."""
        facts = json.dumps(asdict(self) | {"undefined": self.undefined})
        return dict(json.loads(facts, parse_constant=lambda nan: None))

    def __str__(self) -> str:
        """A table with the intervals or the reason why there is no value, then the rules behind it."""
        width = max(len(name) for name in METRIC_NAMES.values())
        interval = f"{100 * self.level:g} % interval" if self.intervals else ""
        lines = [f"{'metric':<{width}}  {'value':>7}  {interval}"]
        lines += [f"{name.format(k=self.k):<{width}}  {self._cells(metric)}" for metric, name in METRIC_NAMES.items()]
        lines += [f"{self.n_rows:,} rows of {self.n_users:,} users, of whom"]
        lines += [f"{self.n_empty_users:>7,}  have no positive label: {metrics.EMPTY_USER_RULES[self.empty_users]}"]
        lines += [f"{self.n_auc_users:>7,}  have labels of both kinds: the AUC per user is their mean"]
        lines += [f"{self.n_short_users:>7,}  have fewer than {self.k} rows"]
        return "\n".join(line.rstrip() for line in lines)

    def _cells(self, metric: str) -> str:
        low, high = self.intervals.get(metric, (math.nan, math.nan))
        note = self.undefined.get(metric, "" if math.isnan(low) else f"{low:.4f} to {high:.4f}")
        return f"{getattr(self, metric):7.4f}  {note}"


def evaluate(
    model: Any,
    log: FeedbackLog,
    k: int = 5,
    empty_users: EmptyUsers = "skip",
    *,
    bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """All metrics of the predictions of `model` for the rows of `log` against their labels.

    `model`: anything with `predict_log(log)`, an array with a score for each row, or a function of user and item
    codes. MSE, MAE and log loss need probabilities: they are nan where a score lies outside [0, 1].
    `empty_users`: a user without a positive label is left out of NDCG, precision and recall ("skip"), or counted
    with an NDCG of 1 ("one", the rule of the paper) or 0 ("zero"). Equal scores are ranked by item code.
    `bootstrap`: how often to resample users, with all their rows, for the percentile intervals; 0 for none. Replicates
    in which a metric is not defined do not count, and a log of one user has no intervals (nan).
    """
    return resampled_evaluation(model, log, k, empty_users, bootstrap=bootstrap, level=level, seed=seed).evaluation


class Resampled(NamedTuple):
    """An evaluation, and every metric (replicates,) of the resampled sets of users behind its intervals."""

    evaluation: Evaluation
    replicates: dict[str, Floats]


def resampled_evaluation(
    model: Any,
    log: FeedbackLog,
    k: int = 5,
    empty_users: EmptyUsers = "skip",
    *,
    bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Resampled:
    """As `evaluate`, with the replicates; with the same log and seed, all models get the same resampled users."""
    check_number("k", k, at_least=1, integer=True, advice="It is the length of the list that a user sees.")
    check_choice("empty_users", empty_users, get_args(EmptyUsers))
    check_number("bootstrap", bootstrap, at_least=0, integer=True, advice="Use 0 for no intervals.")
    check_number("level", level, above=0, at_most=1, advice="Use 0.95 for 95 %.")
    check_number("seed", seed, at_least=0, integer=True)
    check_log("log", log)
    rankings = _rankings(model, log)
    n_users, sample = len(rankings.users), _Sample(rankings, int(k), empty_users)
    replicates = sample.resampled(bootstrap if n_users > 1 else 0, np.random.default_rng(seed))
    evaluation = Evaluation(
        **sample.values(),
        k=int(k),
        empty_users=empty_users,
        n_rows=len(log),
        n_users=n_users,
        n_empty_users=int((rankings.positives == 0).sum()),
        n_short_users=int((rankings.sizes < k).sum()),
        n_auc_users=int(((rankings.positives > 0) & (rankings.positives < rankings.sizes)).sum()),
        level=float(level),
        intervals={name: percentile_interval(replicates[name], level) for name in METRIC_NAMES} if bootstrap else {},
    )
    return Resampled(evaluation, replicates)


class Difference(NamedTuple):
    """One metric of a model minus that of another, with its interval over users; nan where it is not defined."""

    value: float
    low: float
    high: float


def paired_differences(first: Resampled, second: Resampled) -> dict[str, Difference]:
    """first - second of every metric: replicate r of both has drawn the same users, so their difference is paired."""
    found = {}
    for name in METRIC_NAMES:
        interval = percentile_interval(first.replicates[name] - second.replicates[name], first.evaluation.level)
        found[name] = Difference(getattr(first.evaluation, name) - getattr(second.evaluation, name), *interval)
    return found


def metrics_by_rule(
    model: Any, log: FeedbackLog, k: int = 5, replicates: int = 0, seed: int = 0
) -> tuple[dict[str, float], dict[str, Floats]]:
    """(every metric, the same of `replicates` resampled sets of users), under each rule for users without positives.

    `ndcg_skip`, `ndcg_one`, `ndcg_zero` and so on; a metric that does not depend on the rule has its own name. With
    the same log and seed, all models get the same resampled users, so that differences are paired.
    """
    rankings = _rankings(model, log)
    values: dict[str, float] = {}
    resampled: dict[str, Floats] = {}
    for rule in get_args(EmptyUsers):
        sample = _Sample(rankings, k, rule)
        here, drawn = sample.values(), sample.resampled(replicates, np.random.default_rng(seed))
        for name in METRIC_NAMES:
            key = f"{name}_{rule}" if name in EMPTY_USER_METRICS else name
            values[key], resampled[key] = here[name], drawn[name]
    return values, resampled


class _Sample:
    """The sums of each user behind the metrics, from which they follow for any number of copies of each user."""

    def __init__(self, rankings: Rankings, k: int, empty_users: EmptyUsers) -> None:
        self.n_users, self.n_rows = len(rankings.users), len(rankings.groups)
        self.comparison = Comparison.of(rankings.labels, rankings.scores, rankings.groups)
        means = {
            "user_auc": metrics.auc_per_user(rankings),
            "ndcg": metrics.ndcg_per_user(rankings, k, empty_users),
            "precision": metrics.precision_per_user(rankings, k, empty_users),
            "recall": metrics.recall_per_user(rankings, k, empty_users),
        }
        errors = {"mse": metrics.squared_errors, "mae": metrics.absolute_errors, "log_loss": metrics.log_losses}
        probabilities = np.clip(rankings.scores, 0, 1)
        sums = {name: rankings.total(error(rankings.labels, probabilities)) for name, error in errors.items()}
        rows = rankings.sizes * float((probabilities == rankings.scores).all())  # 0: not defined
        # a metric is the sum of its tops over the sum of its bottoms, both (users, metrics)
        self.names = [*means, *sums]
        self.tops = np.column_stack([np.nan_to_num(mean) for mean in means.values()] + list(sums.values()))
        self.bottoms = np.column_stack([~np.isnan(mean) for mean in means.values()] + [rows] * len(sums))

    def values(self) -> dict[str, float]:
        """Each metric, every user counted once."""
        return {name: float(value[0]) for name, value in self.estimates(np.ones((1, self.n_users))).items()}

    def estimates(self, counts: Floats) -> dict[str, Floats]:
        """Each metric (replicates,) when a user occurs counts (replicates, users) times."""
        means = metrics.ratio(counts @ self.tops, counts @ self.bottoms).T
        values = {"auc": metrics.weighted_auc(self.comparison, counts)} | dict(zip(self.names, means, strict=True))
        return values | {"f1": metrics.f1(values["precision"], values["recall"])}

    def resampled(self, replicates: int, rng: np.random.Generator) -> dict[str, Floats]:
        """Each metric (replicates,) over users drawn with replacement, in blocks that bound the memory."""
        step = max(1, BOOTSTRAP_BLOCK // self.n_rows)
        sizes = [min(step, replicates - start) for start in range(0, replicates, step)]
        blocks = [self.estimates(self._draw_counts(size, rng)) for size in sizes]
        return {name: np.concatenate([np.empty(0), *(block[name] for block in blocks)]) for name in METRIC_NAMES}

    def _draw_counts(self, replicates: int, rng: np.random.Generator) -> Floats:
        """How often each user is drawn (replicates, users): each row is multinomial and sums to the number of users."""
        shape = replicates, self.n_users
        drawn = rng.integers(self.n_users, size=shape) + self.n_users * np.arange(replicates)[:, None]
        return np.bincount(drawn.ravel(), minlength=math.prod(shape)).reshape(shape).astype(np.float64)


def percentile_interval(replicates: Floats, level: float) -> tuple[float, float]:
    """The percentile interval of the replicates that are defined."""
    defined = replicates[~np.isnan(replicates)]
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]) if defined.size else (math.nan, math.nan)
    return float(low), float(high)


def binary_labels(log: FeedbackLog) -> Floats:
    """The labels, which must be 0 or 1 for rankings to mean anything."""
    labels = log.labels.astype(np.float64)
    other = labels[(labels != 0) & (labels != 1)]
    if other.size:
        raise DataError(f"the labels of `log` must be 0 or 1, got {other[0]:g}. Give the log a `threshold`.")
    return labels


def _rankings(model: Any, log: FeedbackLog) -> Rankings:
    if hasattr(model, "predict_log"):
        given = model.predict_log(log)
    else:
        given = model(log.users, log.items) if callable(model) else model
    try:
        scores = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        ways = "a model with `predict_log(log)`, a function of user and item codes, or an array of scores"
        raise ConfigError(f"`model` must be {ways}, got {type(model).__name__}: {error}.") from error
    if scores.shape != (len(log),):
        raise DataError(f"`model` must give one score for each of the {len(log)} rows, got shape {scores.shape}.")
    bad = np.flatnonzero(~np.isfinite(scores))
    if bad.size:
        found = f"{scores[bad[0]]} in row {bad[0]} and {bad.size - 1} more"
        raise DataError(f"the scores of `model` must be finite, got {found}. Did its training diverge?")
    return Rankings.of(log.users, scores, binary_labels(log), tie_breaker=log.items)
