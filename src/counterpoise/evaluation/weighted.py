"""Estimates from a biased hold-out: self-normalised weighted metrics with their influences, intervals and sensitivity.

Every estimate here is a smooth function of weighted means. `Estimate.influence` has its derivative: a relative change
of the weight of row i moves it by w_i times the row's value, where the weights sum to 1. Standard errors follow.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln, logit, ndtri

from counterpoise.data.log import FeedbackLog
from counterpoise.evaluation import metrics
from counterpoise.evaluation.evaluate import Difference, Evaluation, none_if_nan
from counterpoise.evaluation.holdout_weights import HoldoutWeights
from counterpoise.evaluation.sensitivity import Range, auc_ranges, mean_ranges, ndcg_ranges, ratio_ranges

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
GAMMAS = (1.5, 2.0)  # odds ratios of a cause of selection that was not measured
LIST_LENGTH = 4  # lists of 4 k items: 20 for k = 5, about what the uniform samples of Coat and Yahoo R3 show a user
MAX_RANKED_PAIRS = 2**21  # up to here a row's rank is among all items that its user has not seen, and beyond among as
# many drawn ones for each user as make so many pairs
MIN_DRAWN_LISTS = 2  # lists' worth of items at least: ranks in a list follow from ranks among more
BLOCK_VALUES = 2**22  # scores compared at a time
MIN_PROBABILITY = 1e-7  # of predictions in the calibration slope, as in the log loss
SLOPE_STEPS = 50
WEIGHTED_NAMES = metrics.METRIC_NAMES | {
    "calibration_level": "mean label - prediction",
    "calibration_slope": "calibration slope",
}


class Estimate(NamedTuple):
    """A weighted estimate, and its derivative by the logarithm of each row's weight over that weight. (rows,)"""

    value: float
    influence: Floats


@dataclass(frozen=True, eq=False)
class Influences:
    """The influence of every row on each estimate, and the weights that models share: for paired differences."""

    weights: HoldoutWeights
    rows: dict[str, Floats]  # metric: (rows,)


def weighted_differences(first: Any, second: Any) -> dict[str, Difference]:
    """first - second of every metric that both have, two evaluations of the same rows by the same weights.

    The influence of a difference is the difference of the influences, so what moves both estimates alike cancels.
    """
    own, other = first.influences, second.influences
    names = [name for name in own.rows if name in other.rows]
    if not names:
        return {}
    values = [getattr(first, name) - getattr(second, name) for name in names]
    errors = own.weights.standard_errors(np.stack([own.rows[name] - other.rows[name] for name in names], 1))
    half = float(ndtri((1 + first.level) / 2)) * errors
    ends = zip(names, values, half.tolist(), strict=True)
    return {name: Difference(value, value - one, value + one) for name, value, one in ends}


def weighted_mean(values: Floats, weights: Floats) -> Estimate:
    """sum w x / sum w."""
    mean = float(weights @ values / weights.sum())
    return Estimate(mean, values - mean)


def weighted_ratio(top: Floats, bottom: Floats, weights: Floats) -> Estimate:
    """sum w x / sum w z; nan where the denominator is 0."""
    total = float(weights @ bottom)
    if total == 0:
        return Estimate(math.nan, np.full(len(top), math.nan))
    value = float(weights @ top) / total
    return Estimate(value, (top - value * bottom) * weights.sum() / total)


class ScoreOrder(NamedTuple):
    """Rows sorted by group, then score: what AUCs with any weights are computed from."""

    order: Integers  # (rows,)
    ties: Integers  # (ties,) where rows of one group and score begin
    tie: Integers  # (rows,) sorted: the number of the row's tie
    groups: Integers  # (groups,) where each group begins

    @classmethod
    def of(cls, scores: Floats, groups: NDArray[Any] | None = None) -> ScoreOrder:
        """One group where there are none."""
        order = np.argsort(scores)
        if groups is not None:
            order = order[np.argsort(groups[order], kind="stable")]
        score = scores[order]
        group = np.zeros(len(score), np.int8) if groups is None else groups[order]
        new_group = np.r_[True, group[1:] != group[:-1]]
        new_tie = new_group | np.r_[True, score[1:] != score[:-1]]
        return cls(order, np.flatnonzero(new_tie), np.cumsum(new_tie) - 1, np.flatnonzero(new_group))


def pair_auc(labels: Floats, weights: Floats, sort: ScoreOrder) -> Estimate:
    """Share of (positive, negative) pairs of rows of one group in the right order, ties 1/2, weighted by w_a w_b.

    sum_g sum_{a positive, b negative in g} w_a w_b ([s_a > s_b] + [s_a = s_b] / 2) / sum_g W_g1 W_g0, with W_g1 and
    W_g0 the weights of the positives and the negatives of group g. One group: the AUC; users: that within users, whose
    pairs of rows are pooled. nan where no group has both classes.
    """
    order, starts, tie, first = sort
    positive, w = labels[order] > 0, weights[order]
    of_positive = np.where(positive, w, 0.0)
    size = np.diff(first, append=len(w))

    def ranks(of: Floats) -> tuple[Floats, Floats]:
        """(the weight below each row in its group, with half of what is tied, and the group's weight)."""
        sums = np.r_[0, np.cumsum(of)]
        middle = ((sums[starts] + sums[np.r_[starts[1:], len(of)]]) / 2)[tie]
        return middle - np.repeat(sums[first], size), np.repeat(np.add.reduceat(of, first), size)

    below, negatives = ranks(w - of_positive)
    lower, positives = ranks(of_positive)
    bottom = float(of_positive @ negatives)
    if bottom <= 0:
        return Estimate(math.nan, np.full(len(w), math.nan))
    value = float(of_positive @ below) / bottom
    wins, pairs = np.where(positive, below, positives - lower), np.where(positive, negatives, positives)
    influence = np.empty(len(w))
    influence[order] = (wins - value * pairs) * (weights.sum() / bottom)
    return Estimate(value, influence)


def f1(precision: Estimate, recall: Estimate) -> Estimate:
    """2 P R / (P + R), with dF = 2 (R^2 dP + P^2 dR) / (P + R)^2."""
    p, r = precision.value, recall.value
    value = float(metrics.f1(p, r))
    if not p + r > 0:
        return Estimate(value, np.full(len(precision.influence), 0.0 if p + r == 0 else math.nan))
    return Estimate(value, 2 * (r**2 * precision.influence + p**2 * recall.influence) / (p + r) ** 2)


def calibration_slope(labels: Floats, probabilities: Floats, weights: Floats) -> Estimate:
    """The b of the weighted logistic regression of labels on a + b logit(p): 1 if calibrated, below 1 if overconfident.

    nan where the predictions do not vary, or separate the labels.
    """
    x = logit(np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY))
    design, w = np.stack([np.ones(len(x)), x], 1), weights / weights.sum()
    undefined = Estimate(math.nan, np.full(len(x), math.nan))
    spread = float(w @ (x - w @ x) ** 2)
    if spread < 1e-12:
        return undefined
    found = np.array([0.0, 1.0])
    for _ in range(SLOPE_STEPS):
        p = 1 / (1 + np.exp(-np.clip(design @ found, -500, 500)))
        information = (design * (w * p * (1 - p))[:, None]).T @ design
        if np.linalg.cond(information) > 1e12:
            return undefined
        step = np.linalg.solve(information, design.T @ (w * (labels - p)))
        found = found + step * min(1.0, 1 / np.abs(step).max().clip(1e-300))
        if np.abs(step).max() < 1e-10:
            break
    else:
        return undefined
    p = 1 / (1 + np.exp(-np.clip(design @ found, -500, 500)))
    influence = (design * (labels - p)[:, None]) @ np.linalg.solve(information, [0.0, 1.0])
    return Estimate(float(found[1]), influence)


def positives_of_two(labels: Floats, weights: Floats, users: NDArray[Any]) -> Estimate:
    """The chance that two pairs of one user are both positive: sum over pairs of his rows of w w' y y' / that of w w'.

    The square of the mean label where no user has two rows.
    """
    own, both = (np.bincount(users, values)[users] - values for values in (weights, weights * labels))
    bottom = float(weights @ own)
    if bottom <= 0:
        mean = weighted_mean(labels, weights)
        return Estimate(mean.value**2, 2 * mean.value * mean.influence)
    value = float((weights * labels) @ both) / bottom
    return Estimate(value, 2 * (labels * both - value * own) * weights.sum() / bottom)


def expected_ideal_gain(rate: float, both: float, length: int, discounts: Floats) -> float:
    """E[sum_{j <= min(G, k)} d_j]: the gain of a list of `length` pairs of one user whose G positives come first.

    G is beta-binomial, with the mean `rate` of the users' rates and the mean `both` of their squares.
    """
    widest = rate * (1 - rate)  # all users have rates of 0 or 1
    variance = min(max(both - rate**2, 1e-3 * widest), (1 - 1e-3) * widest)
    size = widest / variance - 1
    a, b, g = rate * size, (1 - rate) * size, np.arange(length + 1)
    chance: Floats = np.exp(_log_choose(length, g) + betaln(g + a, length - g + b) - betaln(a, b))
    gains = np.r_[0, np.cumsum(discounts)][np.minimum(g, len(discounts))]
    return float(chance @ gains)


def ndcg_of_lists(gain: Estimate, rate: Estimate, both: Estimate, lists: Lists) -> Estimate:
    """E[DCG] / E[ideal DCG] of a list, where E[DCG] is `gain` times the discounts of a full list.

    The derivative of the ideal gain is taken in differences. Both are estimated from the same rows, but not list by
    list, so that their ratio may pass 1 on a small hold-out; it is at most 1.
    """
    if not 1e-9 < rate.value < 1 - 1e-9:  # all weight is on rows of one label
        return Estimate(math.nan, np.full(len(gain.influence), math.nan))
    ideal = lists.ideal
    best, step = ideal(rate.value, both.value), 1e-5 * rate.value * (1 - rate.value)
    slopes = [
        (ideal(rate.value + p, both.value + q) - ideal(rate.value - p, both.value - q)) / (2 * step)
        for p, q in ((step, 0.0), (0.0, step))
    ]
    value = min(gain.value / best, 1.0)
    moved = slopes[0] * rate.influence + slopes[1] * both.influence
    return Estimate(value, (gain.influence - value * moved) / best)


class Rank(NamedTuple):
    """Where each row's item stands among others of its user that could be recommended as well."""

    above: Integers  # (rows,) others with a larger score
    tied: Integers  # (rows,) others with the same score
    others: Integers  # (rows,) how many others there are


def expected_in_lists(rank: Rank, values: Floats, length: int) -> Floats:
    """E[values[r - 1]] of each row's rank r in a list of itself and length - 1 uniformly drawn others; (rows,).

    Of N others a are above, so r - 1 is hypergeometric: P(r - 1 = j) = C(a, j) C(N - a, l - j) / C(N, l) with
    l = min(length - 1, N). Of t tied others each of 0, ..., t is as likely to be above: a mean over a, ..., a + t.
    `values`: what ranks 1, 2, ... are worth, 0 beyond.
    """
    total, counts = np.zeros(len(rank.above)), rank.tied + 1
    step = max(1, BLOCK_VALUES // len(values))
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):  # blocks of rows, each repeated for every place that ties leave it
        stop = max(start + 1, int(np.searchsorted(ends, (ends[start - 1] if start else 0) + step, "right")))
        block = slice(start, stop)
        row = np.repeat(np.arange(stop - start), counts[block])
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts[block]) - counts[block], counts[block])
        a, n = rank.above[block][row] + place, rank.others[block][row]
        drawn = np.minimum(length - 1, n)
        worth = np.zeros(len(row))
        for j, value in enumerate(values):
            possible = (j <= a) & (j <= drawn) & (drawn - j <= n - a)
            b, m, d = a[possible], n[possible], drawn[possible]
            worth[possible] += value * np.exp(_log_choose(b, j) + _log_choose(m - b, d - j) - _log_choose(m, d))
        total[block] = np.bincount(row, worth, stop - start) / counts[block]
        start = stop
    return total


def _log_choose(n: Any, k: Any) -> Floats:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def ranks_among_unseen(
    score: Any, train: FeedbackLog, log: FeedbackLog, mine: Floats, length: int, rng: np.random.Generator
) -> Rank:
    """The rank of each row of `log`, with the scores `mine`, among the items that its user has no row for in `train`.

    Among all of them where users times items are few; else among some that are drawn for each user, which makes the
    expected worth in a list of `length` no less right. `score(users, items)`: the scores of pairs.
    """
    users, items = (codes.astype(np.int64) for codes in (log.users, log.items))
    n_items = train.shape[1]
    known = np.sort(train.pairs)
    order = np.argsort(users, kind="stable")
    own = users[order][np.flatnonzero(np.diff(users[order], prepend=-1))]
    place = np.searchsorted(own, users[order])
    width = min(n_items, max(MAX_RANKED_PAIRS // len(own), MIN_DRAWN_LISTS * length))
    shuffled, offset = rng.permutation(n_items), rng.integers(n_items, size=len(own))
    found = np.zeros((3, len(users)), np.int64)
    step = max(1, BLOCK_VALUES // width)
    for first in range(0, len(own), step):  # blocks of users whose candidates fit into memory
        last = min(first + step, len(own))
        if width == n_items:
            candidates = np.broadcast_to(np.arange(n_items), (last - first, n_items))
        else:  # a window of a random order has no item twice; sorted, because searches are faster then
            candidates = np.sort(shuffled[(offset[first:last, None] + np.arange(width)) % n_items], axis=1)
        pairs = own[first:last, None].astype(np.int64) * n_items + candidates
        scores = np.asarray(score(np.repeat(own[first:last], width), candidates.ravel())).reshape(pairs.shape)
        seen = known[np.minimum(np.searchsorted(known, pairs), len(known) - 1)] == pairs
        scores = np.where(seen, np.nan, scores)  # neither above nor level with any
        unseen = width - np.count_nonzero(seen, 1)
        chosen = np.arange(*np.searchsorted(place, [first, last]))
        for start in range(0, len(chosen), step):
            block = chosen[start : start + step]
            rows, line = order[block], place[block] - first
            itself = candidates[line] == items[rows][:, None]
            others = np.where(itself, np.nan, scores[line])
            found[0, rows] = np.count_nonzero(others > mine[rows][:, None], 1)
            found[1, rows] = np.count_nonzero(others == mine[rows][:, None], 1)
            found[2, rows] = unseen[line] - np.count_nonzero(itself, 1)
    return Rank(*found)


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of `length` uniformly drawn unseen items of a user, and what each row is expected to be worth in one."""

    length: int
    discounts: Floats  # (k,) 1 / log2(1 + rank)
    hits: Floats  # (rows,) P(rank <= k) in a list with the row
    gains: Floats  # (rows,) E[discount of the rank]

    @classmethod
    def of(cls, rank: Rank, k: int) -> Lists:
        """Lists of 4 k items, or of all unseen ones where most rows' users have fewer."""
        length = min(LIST_LENGTH * k, int(np.median(rank.others)) + 1)
        discounts = (1 / np.log2(2 + np.arange(k)))[:length]
        size = int(rank.others.max()) + 1
        code, row = np.unique((rank.above * size + rank.tied) * size + rank.others, return_inverse=True)
        different = Rank(code // size**2, code // size % size, code % size)  # far fewer than rows
        worth = (expected_in_lists(different, values, length)[row] for values in (np.ones(len(discounts)), discounts))
        return cls(length, discounts, *worth)

    def ideal(self, rate: float, both: float) -> float:
        """The expected gain of the best order, over the discounts of a full list (`expected_ideal_gain`)."""
        return expected_ideal_gain(rate, both, self.length, self.discounts) / float(self.discounts.sum())


class ScoredRows:
    """Labelled rows with the scores of a model: sorted once, for estimates by any weights."""

    def __init__(self, labels: Floats, scores: Floats, users: NDArray[Any], lists: Lists | None = None) -> None:
        self.labels, self.scores, self.users, self.lists = labels, scores, users, lists
        self.order, self.order_within_users = ScoreOrder.of(scores), ScoreOrder.of(scores, users)
        self.errors: dict[str, Floats] = {}  # of probabilities
        if scores.min() >= 0 and scores.max() <= 1:
            self.errors = {
                "mse": metrics.squared_errors(labels, scores),
                "mae": metrics.absolute_errors(labels, scores),
                "log_loss": metrics.log_losses(labels, scores),
                "calibration_level": labels - scores,
            }


@dataclass(frozen=True)
class WeightedEvaluation(Evaluation):
    """Estimates of the metrics of one model over all pairs that were not trained on, from a biased hold-out.

    - `auc`, `mse`, `mae`, `log_loss`: over all these pairs. `user_auc`: of a positive and a negative pair of one user.
    - `ndcg`, `precision`, `recall`, `f1`: of lists of 4k uniformly drawn unseen items of a user, as a uniform test of
      4k rows a user would have them. With rho and c the expected hit and discount of a row in such a list, which follow
      from its rank among all unseen items (`expected_in_lists`): precision = sum w y rho / sum w rho, the share of
      positives in the first k; recall = sum w y rho / sum w y; NDCG = E[DCG] / E[ideal DCG], where
      E[DCG] = (sum_{r <= k} 1 / log2(1 + r)) sum w y c / sum w c and positives a list are beta-binomial in the latter.
    - `calibration_level`: mean label minus mean prediction; `calibration_slope`: see the function of this name.

    `naive`: the same with equal weights. `sensitivity`: for odds ratios 1.5 and 2 of a cause of selection that was not
    measured, the range of each estimate (`sensitivity_ranges`) widened by its interval.
    """

    calibration_level: float = math.nan
    calibration_slope: float = math.nan
    method: str = ""
    effective_sample_size: float = math.nan
    largest_share: float = math.nan  # of all weight, in one row
    list_length: int = 0  # 4 k, or fewer in a small catalogue
    standard_errors: dict[str, float] = field(default_factory=dict)
    naive: dict[str, float] = field(default_factory=dict)
    sensitivity: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)  # metric -> gamma -> range
    influences: Influences | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def undefined(self) -> dict[str, str]:
        """Each metric that is nan, and why."""
        reasons = UNDEFINED | dict.fromkeys(metrics.LIST_METRICS, "no row is positive")
        if not self.list_length:
            reasons |= dict.fromkeys(LISTS, "needs a model that scores any item, and the training log")
        return {name: reasons[name] for name in WEIGHTED_NAMES if math.isnan(getattr(self, name))}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each metric: its name, value, the ends of its interval, the naive value and the wider range."""
        found = []
        for metric, name in WEIGHTED_NAMES.items():
            low, high = self.intervals.get(metric, (math.nan, math.nan))
            least, most = self.sensitivity.get(metric, {}).get(f"{GAMMAS[-1]:g}", (math.nan, math.nan))
            values = {
                "value": getattr(self, metric),
                "low": low,
                "high": high,
                "naive": self.naive.get(metric, math.nan),
            }
            values |= {f"low at odds ratio {GAMMAS[-1]:g}": least, f"high at odds ratio {GAMMAS[-1]:g}": most}
            found.append({"metric": name.format(k=self.k)} | {key: none_if_nan(one) for key, one in values.items()})
        return found

    def __str__(self) -> str:
        """A table of estimates with intervals beside naive ones, then what they rest on."""
        width = max(len(name) for name in WEIGHTED_NAMES.values())
        widest = f"{GAMMAS[-1]:g}"
        head = f"{'metric':<{width}}  {'weighted':>8}  {f'{100 * self.level:g} % interval':<18}  {'naive':>7}"
        lines = [f"{head}  odds ratio {widest}"]
        for metric, name in WEIGHTED_NAMES.items():
            low, high = self.intervals.get(metric, (math.nan, math.nan))
            interval = "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
            wide = self.sensitivity.get(metric, {}).get(widest)
            note = f"{wide[0]:.4f} to {wide[1]:.4f}" if wide else self.undefined.get(metric, "")
            value, naive = getattr(self, metric), self.naive.get(metric, math.nan)
            lines.append(f"{name.format(k=self.k):<{width}}  {value:8.4f}  {interval:<18}  {naive:7.4f}  {note}")
        share = self.effective_sample_size / self.n_rows
        lines += [
            f"{self.n_rows:,} rows of {self.n_users:,} users, weighted ({self.method}) to stand for all pairs that were"
            f" not trained on; they count as {self.effective_sample_size:,.0f} ({share:.0%}), the largest weight is "
            f"{self.largest_share:.1%} of all.",
            self.assumption,
            f"odds ratio {widest}: what remains possible if something that was not measured changes the odds of being "
            f"observed by up to {widest} times.",
        ]
        if self.list_length:
            lines.append(f"Lists hold {self.list_length} unseen items of a user, uniformly drawn.")
        if self.n_seen:
            lines.append(f"{self.n_seen:,} rows were seen in training or in the probe: left out.")
        return "\n".join(line.rstrip() for line in lines)


LISTS = ("ndcg", "precision", "recall", "f1")
SHARES = ("auc", "user_auc", *LISTS, "dcg", "mrr", "mse", "mae")  # metrics between 0 and 1
UNDEFINED = {
    "auc": "all labels are equal",
    "user_auc": "no user has labels of both kinds",
    "calibration_level": "the scores are not probabilities: some lie outside [0, 1]",
    "calibration_slope": "predictions do not vary, separate the labels, or are no probabilities",
} | dict.fromkeys(metrics.LOWER_IS_BETTER, "the scores are not probabilities: some lie outside [0, 1]")


def estimates(rows: ScoredRows, weights: Floats) -> dict[str, Estimate]:
    """Every metric of `WeightedEvaluation` for some weights; those of lists are nan without lists."""
    labels, lists = rows.labels, rows.lists
    undefined = Estimate(math.nan, np.full(len(labels), math.nan))
    found = dict.fromkeys(WEIGHTED_NAMES, undefined)
    found["auc"] = pair_auc(labels, weights, rows.order)
    found["user_auc"] = pair_auc(labels, weights, rows.order_within_users)
    if lists is not None:
        found["precision"] = weighted_ratio(labels * lists.hits, lists.hits, weights)
        found["recall"] = weighted_ratio(labels * lists.hits, labels, weights)
        found["f1"] = f1(found["precision"], found["recall"])
        found["ndcg"] = ndcg_of_lists(
            weighted_ratio(labels * lists.gains, lists.gains, weights),
            weighted_mean(labels, weights),
            positives_of_two(labels, weights, rows.users),
            lists,
        )
    found |= {name: weighted_mean(errors, weights) for name, errors in rows.errors.items()}
    if rows.errors:
        found["calibration_slope"] = calibration_slope(labels, rows.scores, weights)
    return found


def within_bounds(name: str, low: float, high: float) -> tuple[float, float]:
    """An interval without values that the metric cannot have."""
    least, most = 0.0 if name in SHARES or name == "log_loss" else -math.inf, 1.0 if name in SHARES else math.inf
    return max(low, least), min(high, most)


def sensitivity_ranges(rows: ScoredRows, weights: Floats, found: dict[str, Estimate]) -> dict[str, list[Range]]:
    """For each metric that is defined the range at each of `GAMMAS`: sharp ones, and bounds of that of the NDCG.

    F1 = 2 P R / (P + R) = sum w 2 y rho / sum w (rho + y) is a ratio of sums like precision and recall.
    """
    labels, lists = rows.labels, rows.lists
    ranges = {name: mean_ranges(errors, weights, GAMMAS) for name, errors in rows.errors.items()}
    if not math.isnan(found["auc"].value):
        ranges["auc"] = auc_ranges(labels, rows.scores, weights, GAMMAS)
    if lists is not None and not math.isnan(found["ndcg"].value):  # weight on rows of both labels
        hit = labels * lists.hits
        ranges["precision"] = ratio_ranges(hit, lists.hits, weights, GAMMAS)
        ranges["recall"] = ratio_ranges(hit, labels, weights, GAMMAS)
        ranges["f1"] = ratio_ranges(2 * hit, lists.hits + labels, weights, GAMMAS)
        both = positives_of_two(labels, weights, rows.users).value
        ranges["ndcg"] = ndcg_ranges(labels, lists.gains, weights, both, lists.ideal, GAMMAS)
    return ranges


def evaluate_weighted(
    log: FeedbackLog,
    labels: Floats,
    scores: Floats,
    weights: HoldoutWeights,
    k: int,
    n_seen: int,
    level: float,
    intervals: bool,
    score: Any,
    train: FeedbackLog | None,
    seed: int,
) -> WeightedEvaluation:
    """The estimates of all metrics. `score(users, items)`: the scores of any pairs; lists need it, and `train`."""
    lists = None
    if score is not None and train is not None:
        rng = np.random.default_rng(seed)
        lists = Lists.of(ranks_among_unseen(score, train, log, scores, LIST_LENGTH * k, rng), k)
    rows = ScoredRows(labels, scores, log.users, lists)
    found = estimates(rows, weights.values)
    defined = [name for name, estimate in found.items() if not math.isnan(estimate.value)]
    with ThreadPoolExecutor(1) as pool:  # both take as long
        naive = pool.submit(estimates, rows, np.full(len(labels), 1 / len(labels)))
        of_gammas = pool.submit(sensitivity_ranges, rows, weights.values, found)
        own = weights.standard_errors(np.stack([found[name].influence for name in defined], 1))
    errors = dict.fromkeys(found, math.nan) | dict(zip(defined, own.tolist(), strict=True))
    quantile = float(ndtri((1 + level) / 2))
    half = {name: quantile * error for name, error in errors.items()}
    ranges = {
        name: {
            f"{gamma:g}": within_bounds(name, low - half[name], high + half[name])
            for gamma, (low, high) in zip(GAMMAS, ends, strict=True)
        }
        for name, ends in of_gammas.result().items()
    }
    counts, positives = np.bincount(log.users), np.bincount(log.users, labels)
    positives, counts = positives[counts > 0], counts[counts > 0]
    return WeightedEvaluation(
        **{name: estimate.value for name, estimate in found.items()},
        k=k,
        protocol="honest",
        n_rows=len(log),
        n_seen=n_seen,
        n_users=len(counts),
        n_empty_users=int((positives == 0).sum()),
        n_short_users=int((counts < k).sum()),
        n_auc_users=int(((positives > 0) & (positives < counts)).sum()),
        level=float(level),
        n_dropped=0,
        intervals={
            name: within_bounds(name, estimate.value - half[name], estimate.value + half[name])
            for name, estimate in found.items()
            if intervals
        },
        method=weights.method,
        assumption=weights.assumption,
        effective_sample_size=weights.effective_sample_size,
        largest_share=weights.largest_share,
        list_length=0 if lists is None else lists.length,
        standard_errors=errors,
        naive={name: estimate.value for name, estimate in naive.result().items()},
        sensitivity=ranges,
        influences=Influences(weights, {name: found[name].influence for name in defined}),
    )
