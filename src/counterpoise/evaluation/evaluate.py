"""Every metric of a model on a test log, with bootstrap intervals over users."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack, get_args

import numpy as np
import polars as pl

from counterpoise.config import UnknownInTest, takes_options
from counterpoise.data.frames import POLARS, to_kind
from counterpoise.data.log import DEFAULTS, FeedbackLog, LogOptions, as_logs
from counterpoise.data.notebook import notebook_html
from counterpoise.data.protocols import find_protocol
from counterpoise.data.splits import drop_cold
from counterpoise.errors import ConfigError, DataError, check_choice, check_number
from counterpoise.evaluation import metrics
from counterpoise.evaluation.metrics import (
    CLICK_METRIC_NAMES,
    EMPTY_USERS,
    LIST_METRICS,
    METRIC_NAMES,
    PAPER_METRIC_NAMES,
    Comparison,
    Floats,
    Rankings,
)

Verdict = Literal["better", "worse", "not clear"]
NOT_KEPT = ("frame_kind", "influences")  # fields of an evaluation that are not among its JSON-able facts
BOOTSTRAP_BLOCK = 2**16  # rows that the bootstrap works on at a time: what fits into a processor's cache is fastest
PAPER_RULE = {"ndcg": 1.0, "precision": 0.0, "recall": 0.0}  # of a user without a positive label
ALL_NAMES = METRIC_NAMES | PAPER_METRIC_NAMES | CLICK_METRIC_NAMES
ALIKE = {  # what unweighted metrics assume, by the sample
    None: 'Every row counts alike, which is right for pairs drawn at random. If users chose them, add sample="biased".',
    "biased": "Every row counts alike, though users chose the pairs. For estimates over all pairs give `train`.",
}
UNDEFINED = {"auc": "all labels are equal", "user_auc": "no user has labels of both kinds"}
UNDEFINED |= dict.fromkeys(LIST_METRICS, "no user has a positive label")
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
    protocol: str
    n_rows: int
    n_seen: int  # rows that the model was fitted to: left out or counted by the protocol
    n_users: int
    n_empty_users: int  # without a positive label: left out of NDCG, precision, recall and F1
    n_short_users: int  # with fewer than k rows
    n_auc_users: int
    level: float
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # empty without bootstrap
    n_dropped: int = 0  # rows of users or items without training rows that were left out, as asked for
    assumption: str = ""  # what the values rest on where the pairs are not known to be a uniform sample
    frame_kind: Any = field(default=POLARS, kw_only=True, repr=False)  # of `to_frame`, such as "pandas"

    @property
    def undefined(self) -> dict[str, str]:
        """Each metric that is nan, and why."""
        return {name: UNDEFINED[name] for name in METRIC_NAMES if math.isnan(getattr(self, name))}

    def to_dict(self) -> dict[str, Any]:
        """All fields in types that JSON has; None for nan."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in NOT_KEPT}
        facts = json.dumps(own | {"undefined": self.undefined})
        return dict(json.loads(facts, parse_constant=lambda nan: None))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each metric: its name, value, and the ends of its interval; None where there is none."""
        found = []
        for metric, name in METRIC_NAMES.items():
            low, high = self.intervals.get(metric, (math.nan, math.nan))
            values = {"value": getattr(self, metric), "low": low, "high": high}
            found.append({"metric": name.format(k=self.k)} | {key: none_if_nan(one) for key, one in values.items()})
        return found

    def to_frame(self) -> Any:
        """`rows` as a frame of the kind that was evaluated on, polars by default."""
        return to_kind(pl.DataFrame(self.rows(), infer_schema_length=None), self.frame_kind)

    def _repr_html_(self) -> str:
        """For notebooks: the metrics with their intervals, and what they rest on."""
        rows, notes = self.rows(), str(self).splitlines()[len(self.rows()) + 1 :]
        return notebook_html(
            f"{type(self).__name__}: {self.n_rows:,} rows of {self.n_users:,} users",
            [list(rows[0]), *(list(row.values()) for row in rows)],
            "\n".join(notes),
        )

    def __str__(self) -> str:
        """A table with the intervals or the reason why there is no value, then the rules behind it."""
        width = max(len(name) for name in METRIC_NAMES.values())
        interval = f"{100 * self.level:g} % interval" if self.intervals else ""
        lines = [f"{'metric':<{width}}  {'value':>7}  {interval}"]
        lines += [f"{name.format(k=self.k):<{width}}  {self._cells(metric)}" for metric, name in METRIC_NAMES.items()]
        lines += [f"{self.n_rows:,} rows of {self.n_users:,} users, of whom"]
        lines += [f"{self.n_empty_users:>7,}  have no positive label: {EMPTY_USERS}"]
        lines += [f"{self.n_auc_users:>7,}  have labels of both kinds: the AUC per user is their mean"]
        lines += [f"{self.n_short_users:>7,}  have fewer than {self.k} rows"]
        if self.n_seen:
            counted = "counted" if find_protocol(self.protocol).keeps_seen else "left out"
            seen = f"rows were seen in training or in the probe: {counted} ({self.protocol} protocol)"
            lines += [f"{self.n_seen:>7,}  {seen}"]
        if self.n_dropped:
            lines += [f"{self.n_dropped:>7,}  rows are of users or items without training rows: left out"]
        lines += [self.assumption] * bool(self.assumption)
        return "\n".join(line.rstrip() for line in lines)

    def _cells(self, metric: str) -> str:
        low, high = self.intervals.get(metric, (math.nan, math.nan))
        note = self.undefined.get(metric, "" if math.isnan(low) else f"{low:.4f} to {high:.4f}")
        return f"{getattr(self, metric):7.4f}  {note}"


def none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


@takes_options(LogOptions, DEFAULTS)
def evaluate(
    model: Any,
    log: Any,
    k: int = 5,
    protocol: str = "honest",
    *,
    weights: Any = "auto",
    train: Any = None,
    probe: Any = None,
    unknown_users: UnknownInTest = "error",
    unknown_items: UnknownInTest = "error",
    bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> Evaluation:
    """All metrics of the predictions of `model` for the rows of `log` against their labels.

    `model`: anything with `predict_log(log)`, an array with a score for each row, or a function of user and item
    codes. `log`, `train` and `probe`: logs or frames. The names of columns and the threshold of a model's training
    frame are known; `options` give others, as in `FeedbackLog.from_frame`.
    MSE, MAE and log loss need probabilities: they are nan where a score lies outside [0, 1].
    Users without a positive label are left out of NDCG, precision, recall and F1. Where scores are equal, these are
    expected values over all orders of the tied rows.
    `protocol`: "honest" leaves out the rows whose pair the model was fitted to (in its log or its probe), "paper" and
    those of other papers count them; `n_seen` says how many there were. Scores and functions come without that
    knowledge: all rows count.
    `bootstrap`: how often to resample users, with all their rows, for the percentile intervals; 0 for none. Replicates
    in which a metric is not defined do not count, and a log of one user has no intervals (nan).

    `unknown_users`, `unknown_items`: rows of users or items that a recommender does not know are an "error", left out
    ("drop", which leaves out those without training rows too), or scored as in `predict` ("popular"). Weighted
    estimates are over the pairs that it knows, so there "popular" goes only with rows of known ids.

    A hold-out of clicks has positives alone, and no such metrics: `evaluate_ranking` is for it.

    A biased hold-out needs weights, under which it stands for all pairs that were not trained on. `weights`: "balanced"
    (`balanced_weights`); "logistic", "propensity", "popularity" or "naive-bayes" (inverse odds of being observed);
    "known" (over the log's own column); an array with a value for each row of `log`; what `weigh_holdout` returned, to
    evaluate several models by the same weights; or None for the naive metrics of its rows. "auto" is "balanced" where
    `log.sample` is "biased" and the training pairs are known, else None. They are known of a fitted recommender; for
    other models give `train`. `probe`: a uniform sample whose mean label is balanced too. With weights the result is a
    `WeightedEvaluation`, with intervals from influences; `bootstrap=0` leaves them out.
    """
    _check_settings(k, protocol, bootstrap, level, seed)
    log, train, probe = as_logs({"log": log, "train": train, "probe": probe}, model, **options)
    check_both_labels(model, log)
    log, dropped = _without_cold(model, log, unknown_users, unknown_items)
    if isinstance(weights, str) and weights == "auto":
        known = hasattr(model, "seen_") or train is not None
        weights = None if log.sample != "biased" or find_protocol(protocol).keeps_seen or not known else "balanced"
    if weights is None:
        n_seen = None
        if "popular" in (unknown_users, unknown_items):
            log, n_seen = unseen_rows(model, log, protocol)
            model = model.predict_log(log, unknown_users="popular", unknown_items="popular")
        found = resampled_evaluation(model, log, k, protocol, bootstrap=bootstrap, level=level, seed=seed).evaluation
        n_seen = found.n_seen if n_seen is None else n_seen
        about = ALIKE.get(log.sample, "")
        return replace(found, n_dropped=dropped, n_seen=n_seen, frame_kind=log.frame_kind, assumption=about)
    if find_protocol(protocol).keeps_seen:
        raise ConfigError(
            f'`weights` must be None for protocol="{protocol}": weighted hold-outs have no trained pairs.'
        )
    weighted = _weighted(model, log, int(k), weights, train, probe, bootstrap > 0, level, seed)
    return replace(weighted, n_dropped=dropped, frame_kind=log.frame_kind)


def _without_cold(
    model: Any, log: FeedbackLog, unknown_users: UnknownInTest, unknown_items: UnknownInTest
) -> tuple[FeedbackLog, int]:
    """(the log without the rows that are to be dropped, how many these were); see `evaluate`."""
    rules = {"unknown_users": unknown_users, "unknown_items": unknown_items}
    for name, rule in rules.items():
        check_choice(name, rule, get_args(UnknownInTest))
        if rule != "error" and not hasattr(model, "cold_rows"):
            raise ConfigError(f'`{name}` must be "error" for scores and functions: only a recommender knows its ids.')
    if set(rules.values()) == {"error"}:
        return log, 0
    for name, rule, ids, own in (
        ("user", unknown_users, log.user_ids.decode(np.unique(log.users)), model.user_ids_),
        ("item", unknown_items, log.item_ids.decode(np.unique(log.items)), model.item_ids_),
    ):
        if rule == "error":
            own.require(ids, name, f'Use unknown_{name}s="drop" to leave their rows out.')
    kept, counts = drop_cold(log, model.cold_rows(log), unknown_users, unknown_items)
    return kept, counts["dropped_rows"]


def _weighted(
    model: Any,
    log: FeedbackLog,
    k: int,
    weights: Any,
    train: FeedbackLog | None,
    probe: FeedbackLog | None,
    intervals: bool,
    level: float,
    seed: int,
) -> Evaluation:
    from counterpoise.evaluation import holdout_weights
    from counterpoise.evaluation.weighted import evaluate_weighted

    rows = len(log)
    unseen = holdout_weights.unseen_holdout(model, log, train, probe)
    log, train, _, seen = unseen
    given = model if hasattr(model, "predict_log") or callable(model) else np.asarray(model)
    if isinstance(given, np.ndarray) and given.shape == (rows,):
        given = given[~seen]
    scores, labels = _scores(given, log), binary_labels(log)
    if labels.min() == labels.max():
        raise DataError(
            f"the hold-out must have rows of both labels, got {len(labels)} rows of label {labels[0]:g}. Hold out "
            "more; for clicks alone there is `cp.evaluate_ranking`."
        )
    fitted = holdout_weights.resolve_weights(weights, unseen, seed)
    score = None if isinstance(given, np.ndarray) else partial(score_of_pairs, given, log)
    return evaluate_weighted(
        log, labels, scores, fitted, k, int(seen.sum()), level, intervals, score=score, train=train, seed=seed
    )


def score_of_pairs(model: Any, log: FeedbackLog, users: Any, items: Any) -> Floats:
    """The scores of any pairs of a log's users and items, by their codes."""
    pairs = {"users": users.astype(np.int32), "items": items.astype(np.int32), "ratings": np.zeros(len(users))}
    return _scores(model, replace(log, timestamps=None, propensities=None, parent_propensities=None, **pairs))


class Resampled(NamedTuple):
    """An evaluation, and every metric (replicates,) of the resampled sets of users behind its intervals."""

    evaluation: Evaluation
    replicates: dict[str, Floats]


def resampled_evaluation(
    model: Any,
    log: FeedbackLog,
    k: int = 5,
    protocol: str = "honest",
    *,
    bootstrap: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> Resampled:
    """As `evaluate`, with the replicates; with the same log and seed, all models get the same resampled users."""
    _check_settings(k, protocol, bootstrap, level, seed)
    log, n_seen = unseen_rows(model, log, protocol) if hasattr(model, "has_seen") else (log, 0)
    rankings = _rankings(model, log)
    n_users, sample = len(rankings.users), _Sample(rankings, int(k))
    values = sample.values()
    replicates = sample.resampled(bootstrap if n_users > 1 else 0, np.random.default_rng(seed))
    evaluation = Evaluation(
        **{name: values[name] for name in METRIC_NAMES},
        k=int(k),
        protocol=protocol,
        n_rows=len(log),
        n_seen=n_seen,
        n_users=n_users,
        n_empty_users=int((rankings.positives == 0).sum()),
        n_short_users=int((rankings.sizes < k).sum()),
        n_auc_users=int(((rankings.positives > 0) & (rankings.positives < rankings.sizes)).sum()),
        level=float(level),
        n_dropped=0,
        intervals={name: percentile_interval(replicates[name], level) for name in METRIC_NAMES} if bootstrap else {},
        assumption="",
    )
    return Resampled(evaluation, replicates)


def check_both_labels(model: Any, log: FeedbackLog) -> None:
    """Raise `DataError` where a model of clicks is to be evaluated on clicks, which have positives alone."""
    if (log.feedback, getattr(model, "log_facts_", {}).get("feedback")) == ("clicks", "clicks"):
        raise DataError(
            "`log` has clicks alone (every label is 1), and these metrics need labels of both kinds. Use "
            "cp.evaluate_ranking(model, log), where clicks rank among all items that their users have not clicked; "
            'or read it with feedback="ratings".'
        )


def _check_settings(k: int, protocol: str, bootstrap: int, level: float, seed: int) -> None:
    check_number("k", k, at_least=1, integer=True, advice="It is the length of the list that a user sees.")
    find_protocol(protocol)
    check_number("bootstrap", bootstrap, at_least=0, integer=True, advice="Use 0 for no intervals.")
    check_number("level", level, above=0, at_most=1, advice="Use 0.95 for 95 %.")
    check_number("seed", seed, at_least=0, integer=True)


def unseen_rows(model: Any, log: FeedbackLog, protocol: str, name: str = "`log`") -> tuple[FeedbackLog, int]:
    """(the rows of a log that count, the number of its pairs that a model was fitted to); see `evaluate`."""
    seen = model.has_seen(log)
    if seen.any() and not find_protocol(protocol).keeps_seen:
        if seen.all():
            ways = 'Hold rows out before the fit (`split`, `holdout`), or count them (protocol="paper")'
            raise DataError(
                f"{name}: all {len(seen)} pairs were seen in training or in the probe, so they are no test. {ways}."
            )
        log = log.take(~seen)
    return log, int(seen.sum())


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


def verdict(name: str, difference: Difference) -> Verdict:
    """better or worse where the interval of the difference excludes 0, else not clear."""
    if math.isnan(difference.low) or difference.low <= 0 <= difference.high:
        return "not clear"
    better = (difference.value > 0) != (name in metrics.LOWER_IS_BETTER)
    return "better" if better else "worse"


def difference_facts(name: str, difference: Difference) -> dict[str, Any]:
    """JSON-able: a paired difference of a metric with its interval, None for nan, and the verdict."""
    ends = {key: none_if_nan(value) for key, value in difference._asdict().items()}
    return {"difference": ends, "verdict": verdict(name, difference)}


def metrics_and_replicates(
    model: Any, log: FeedbackLog, k: int = 5, replicates: int = 0, seed: int = 0
) -> tuple[dict[str, float], dict[str, Floats]]:
    """(every metric, the same of `replicates` resampled sets of users) on all rows of a log.

    Beside those of `Evaluation`: `ndcg_one` and `f1_one`, by the paper's rule for users without a positive label, and
    `map` and `dcg`. With the same log and seed, all models get the same resampled users, so that differences are
    paired.
    """
    sample = _Sample(_rankings(model, log), k)
    return sample.values(), sample.resampled(replicates, np.random.default_rng(seed))


class _Sample:
    """The sums of each user behind the metrics, from which they follow for any number of copies of each user."""

    def __init__(self, rankings: Rankings, k: int) -> None:
        self.n_users, self.n_rows = len(rankings.users), len(rankings.groups)
        self.comparison = Comparison.of(rankings.labels, rankings.scores, rankings.groups)
        means = {
            "user_auc": metrics.auc_per_user(rankings),
            "ndcg": metrics.ndcg_per_user(rankings, k),
            "precision": metrics.precision_per_user(rankings, k),
            "recall": metrics.recall_per_user(rankings, k),
            "map": metrics.average_precision_per_user(rankings, k),
            "dcg": metrics.dcg_per_user(rankings, k),
        }
        for name, without_positive in PAPER_RULE.items():
            means[f"{name}_one"] = np.nan_to_num(means[name], nan=without_positive)
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
        for rule in ("", "_one"):
            values[f"f1{rule}"] = metrics.f1(values[f"precision{rule}"], values[f"recall{rule}"])
        return {name: values[name] for name in ALL_NAMES}

    def resampled(self, replicates: int, rng: np.random.Generator) -> dict[str, Floats]:
        """Each metric (replicates,) over users drawn with replacement, in blocks that bound the memory."""
        step = max(1, BOOTSTRAP_BLOCK // self.n_rows)
        sizes = [min(step, replicates - start) for start in range(0, replicates, step)]
        blocks = [self.estimates(self._draw_counts(size, rng)) for size in sizes]
        return {name: np.concatenate([np.empty(0), *(block[name] for block in blocks)]) for name in ALL_NAMES}

    def _draw_counts(self, replicates: int, rng: np.random.Generator) -> Floats:
        """Counts of each user's draws (replicates, users): each row is multinomial and sums to the number of users."""
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


def _scores(model: Any, log: FeedbackLog) -> Floats:
    """The finite scores of a model for the rows of a log."""
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
    return scores


def _rankings(model: Any, log: FeedbackLog) -> Rankings:
    return Rankings.of(log.users, _scores(model, log), binary_labels(log))
