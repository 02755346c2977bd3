"""Full rankings: where the positives of a hold-out stand among all items that their users have not seen in training.

For our models in blocks of users, and for scores or lists that any other recommender made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Unpack

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from counterpoise.config import Feedback, takes_options
from counterpoise.data.columns import finite_numbers, frame_columns, whole_ids
from counterpoise.data.frames import POLARS, as_frame, to_kind
from counterpoise.data.log import DEFAULTS, FeedbackLog, LogOptions, as_logs
from counterpoise.data.notebook import notebook_html
from counterpoise.errors import ConfigError, DataError, check_number
from counterpoise.evaluation.evaluate import NOT_KEPT, binary_labels, none_if_nan, score_of_pairs
from counterpoise.evaluation.holdout_weights import (
    Floats,
    HoldoutWeights,
    Integers,
    Unseen,
    in_log,
    resolve_weights,
    unseen_holdout,
)
from counterpoise.evaluation.weighted import Influences, weighted_ratio, within_bounds
from counterpoise.ranking import Seen

BLOCK_SCORES = 2**22  # in memory at a time
MAX_COMPARED = 64  # pairs of a user up to which comparing each with all items is faster than sorting these
NOWHERE = np.iinfo(np.int32).max  # items above one that is in no list
LEAST = float(np.finfo(np.float32).min)  # a score above that of items which are hidden
TERCILES = ("rarest third", "middle third", "most popular third")  # of all items, by their training rows
MEASURES = {"recall": "recall", "dcg": "DCG", "mrr": "MRR"}
RANKING_METRIC_NAMES = {f"ranking_{name}": f"{title}@{{k}} (all items)" for name, title in MEASURES.items()}


class Places(NamedTuple):
    """The places of rows in the rankings of their users: `above` others rank higher, `tied` others are level."""

    above: Integers  # (rows,)
    tied: Integers  # (rows,)

    def worth(self, values: Floats) -> Floats:
        """values[rank - 1] of each row, 0 beyond: the mean over the ranks that ties leave it."""
        sums = np.r_[0, np.cumsum(values)]
        first, last = (np.minimum(ends, len(values)) for ends in (self.above, self.above + self.tied + 1))
        return np.asarray((sums[last] - sums[first]) / (self.tied + 1))


@dataclass(frozen=True)
class RankingEvaluation:
    """Full-ranking metrics of one model on one hold-out.

    `recall`, `dcg`, `mrr`: sum w c(z) / sum w over the positive rows of the hold-out, pooled over users, with z the
    rank among all items that the user has not seen in training and c(z) = [z <= k] times 1, 1 / log2(1 + z) or 1 / z.
    They estimate the mean of c over all positive pairs; DCG has no ideal to be divided by, which would need the labels
    of all pairs. `naive`: the same with equal weights, of the positives as they are. `snips`: the mean over users of
    sum w c / sum w of each (Yang et al. 2018). `per_user`: the usual unweighted means over users with a positive:
    recall@k, NDCG@k, and the reciprocal rank of the first hit.
    """

    recall: float
    dcg: float
    mrr: float
    naive: dict[str, float]  # recall, dcg, mrr
    coverage: float  # share of all items that are among the first k of any user in the hold-out
    k: int
    per_user: dict[str, float]  # recall, ndcg, mrr
    snips: dict[str, float]  # recall, dcg, mrr
    by_popularity: list[dict[str, Any]]  # for each third of the items: items, positives, share of weight, metrics
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    level: float = 0.95
    n_users: int = 0  # with a positive
    n_positives: int = 0
    n_seen: int = 0  # rows of the hold-out that were seen in training: left out
    n_unranked: int = 0  # positives that are in no list
    method: str = ""
    assumption: str = ""
    effective_sample_size: float = math.nan
    feedback: Feedback = "ratings"  # of the hold-out: clicks are positives alone
    frame_kind: str = field(default=POLARS, kw_only=True, repr=False)  # of `to_frame`
    influences: Influences | None = field(default=None, kw_only=True, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; None for nan."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in NOT_KEPT}
        return dict(json.loads(json.dumps(own), parse_constant=lambda nan: None))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each metric: its name, value, the ends of its interval, and the means per user."""
        usual, found = {"recall": "recall", "dcg": "ndcg", "mrr": "mrr"}, []
        for name in MEASURES:
            low, high = self.intervals.get(name, (math.nan, math.nan))
            values = {"value": getattr(self, name), "low": low, "high": high, "naive": self.naive[name]}
            values["snips_per_user"] = self.snips[name]
            values["per_user"] = self.per_user[usual[name]]
            found.append({"metric": f"{name}@{self.k}"} | {key: none_if_nan(value) for key, value in values.items()})
        return found

    def to_frame(self) -> Any:
        """`rows` as a frame of the kind that was evaluated on, polars by default."""
        return to_kind(pl.DataFrame(self.rows(), infer_schema_length=None), self.frame_kind)

    def _repr_html_(self) -> str:
        """For notebooks: the metrics with their intervals, those by popularity, and what they rest on."""
        rows, groups = self.rows(), self.by_popularity
        return notebook_html(
            f"RankingEvaluation: {self.n_positives:,} {self.positives} of {self.n_users:,} users",
            [list(rows[0]), *(list(row.values()) for row in rows)],
            f"coverage@{self.k}: {self.coverage:.1%} of all items",
            [list(groups[0]), *(list(row.values()) for row in groups)] if groups else "",
            self.assumption,
        )

    @property
    def positives(self) -> str:
        """What the rows that are ranked are called."""
        return "held-out clicks" if self.feedback == "clicks" else "positives"

    def __str__(self) -> str:
        """A table, the table by popularity, and what the figures rest on."""
        method = "weighted" if self.method != "equal" else self.method
        lines = [
            f"{'metric':<12}  {method:>8}  {f'{100 * self.level:g} % interval':<18}  {'naive':>7}  SNIPS per user  "
            "per user"
        ]
        usual = {"recall": "recall", "dcg": "ndcg", "mrr": "mrr"}
        for name, title in MEASURES.items():
            low, high = self.intervals.get(name, (math.nan, math.nan))
            own = f"{getattr(self, name):8.4f}  {f'{low:.4f} to {high:.4f}':<18}  {self.naive[name]:7.4f}"
            own += f"  {self.snips[name]:14.4f}"
            note = " (NDCG)" if name == "dcg" else ""
            lines.append(f"{f'{title}@{self.k}':<12}  {own}  {self.per_user[usual[name]]:8.4f}{note}")
        lines.append(f"coverage@{self.k}: {self.coverage:.1%} of all items")
        for row in self.by_popularity:
            share = f"{row['positives']:>8,} {self.positives} with {row['share']:.0%} of the weight"
            found = f": recall {row['recall']:.4f}, DCG {row['dcg']:.4f}" if row["share"] else ""
            lines.append(f"{row['group']:<18}  {row['items']:>7,} items, {share}{found}")
        ranked = f"ranked among all items that the user has not {'clicked' if self.feedback == 'clicks' else 'seen'}"
        lines.append(f"{self.n_positives:,} {self.positives} of {self.n_users:,} users, {ranked} in training.")
        if self.n_unranked:
            lines.append(f"{self.n_unranked:,} of them are in no list: they count as not found.")
        return "\n".join([*lines, self.assumption])


@takes_options(LogOptions, DEFAULTS)
def evaluate_ranking(
    model: Any,
    holdout: Any,
    k: int = 10,
    *,
    weights: Any = "auto",
    train: Any = None,
    probe: Any = None,
    level: float = 0.95,
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> RankingEvaluation:
    """Recall@k, DCG@k, MRR@k and coverage over all items that are not in a user's training rows.

    `model`: a fitted recommender, or anything with `predict_log(log)` or a function of user and item codes, with the
    training log as `train`. `weights`: as in `evaluate`; None counts every positive of the hold-out alike. Of clicks
    "auto" is "popularity": 1 / P(exposed), with P(exposed) = (clicks of the item / most clicks of an item)^0.5.
    Logs may be frames, with `options` as in `evaluate`.
    """
    check_number("k", k, at_least=1, integer=True, advice="It is the length of the list that a user sees.")
    holdout, train, probe = as_logs({"holdout": holdout, "train": train, "probe": probe}, model, **options)
    if not hasattr(model, "predict_log") and not callable(model):
        raise ConfigError("`model` must score any pair for full rankings. Give lists to `cp.evaluate_lists` instead.")
    unseen = unseen_holdout(model, holdout, train, probe)
    log, train = unseen.log, unseen.train
    if train is None:
        raise ConfigError("`train` must be given: the training log, whose pairs are left out of the rankings.")
    fitted = resolve_weights(weights, unseen, seed)
    positive = binary_labels(log) > 0
    users, items = (codes[positive].astype(np.int64) for codes in (log.users, log.items))
    places, covered = full_ranks(_scores_of_all_items(model, log), Seen.of(train), users, items, log.shape[1], int(k))
    return _evaluation(unseen, places, covered, fitted, int(k), level)


@takes_options(LogOptions, DEFAULTS)
def evaluate_lists(
    frame: Any,
    holdout: Any,
    k: int = 10,
    *,
    weights: Any = "auto",
    train: Any = None,
    probe: Any = None,
    level: float = 0.95,
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> RankingEvaluation:
    """As `evaluate_ranking`, for the lists of any other recommender.

    `frame`: columns user_id, item_id, and rank (1 is best) or score (larger is better), at least the first k of each
    user. Pairs of `train`, the log that it was trained on, are taken out of the lists, and those behind move up; items
    that the hold-out does not know keep their place. A positive that is in no list counts as not found.
    Logs may be frames, with `options` as in `FeedbackLog.from_frame`.
    """
    check_number("k", k, at_least=1, integer=True, advice="It is the length of the list that a user sees.")
    holdout, train, probe = as_logs({"holdout": holdout, "train": train, "probe": probe}, **options)
    unseen = unseen_holdout(None, holdout, train, probe)
    fitted = resolve_weights(weights, unseen, seed)
    places, covered = _list_ranks(frame, unseen, int(k))
    return _evaluation(unseen, places, covered, fitted, int(k), level)


def _list_ranks(frame: Any, holdout: Unseen, k: int) -> tuple[Places, NDArray[np.bool_]]:
    """As `full_ranks`, of the positives of a hold-out in given lists; a positive in no list is at `NOWHERE`."""
    log, train, n_items = holdout.log, holdout.train, holdout.log.shape[1]
    users, items, order = _list_columns(frame, log)
    pairs = np.where((users >= 0) & (items >= 0), users.astype(np.int64) * n_items + items, -1)
    if train is not None:
        kept = ~in_log(train, pairs)
        users, items, order, pairs = users[kept], items[kept], order[kept], pairs[kept]
    known = pairs[pairs >= 0]
    if len(np.unique(known)) < len(known):
        raise DataError("`frame` must have one row for each user and item, got repeated pairs. Drop the repetitions.")
    ranked = np.lexsort((order, users))
    listed, above, tied = pairs[ranked], *_places_in_lists(users[ranked], order[ranked])
    wanted = log.pairs[binary_labels(log) > 0]
    by_pair = np.argsort(listed)
    place = np.searchsorted(listed, wanted, sorter=by_pair)
    rows = np.append(by_pair, -1)[place]  # -1: the row of no list that is appended here
    found = np.append(listed, -1)[rows] == wanted
    places = Places(
        np.where(found, np.append(above, NOWHERE)[rows], NOWHERE), np.where(found, np.append(tied, 0)[rows], 0)
    )
    top = (above < k) & (listed >= 0) & np.isin(users[ranked], log.users)
    covered = np.zeros(n_items, bool)
    covered[listed[top] % n_items] = True
    return places, covered


def _places_in_lists(users: Integers, order: Floats) -> Places:
    """The places of the rows of sorted lists: the rows of the user before each, and others at the same place."""
    if not len(users):
        return Places(np.zeros(0, np.int64), np.zeros(0, np.int64))
    start = np.flatnonzero(np.r_[True, (users[1:] != users[:-1]) | (order[1:] != order[:-1])])
    lengths = np.diff(start, append=len(users))
    return Places(np.repeat(start, lengths) - np.searchsorted(users, users), np.repeat(lengths - 1, lengths))


def _list_columns(frame: Any, log: FeedbackLog) -> tuple[Integers, Integers, Floats]:
    """(user codes, item codes, what lists are sorted by in ascending order); -1 where the log does not know an id."""
    names = as_frame(frame, "frame").columns
    if not {"user_id", "item_id"} <= set(names) or not {"rank", "score"} & set(names):
        found = ", ".join(map(str, names))
        raise DataError(f"`frame` must have the columns user_id, item_id, and rank or score, got columns {found}.")
    by = "rank" if "rank" in set(names) else "score"
    columns = frame_columns(frame, {"user": "user_id", "item": "item_id", by: by})
    codes = [
        vocabulary.encode(whole_ids(columns[side], f"{side}_id")).astype(np.int64)
        for side, vocabulary in (("user", log.user_ids), ("item", log.item_ids))
    ]
    values = np.asarray(finite_numbers(columns[by], by), np.float64)
    return codes[0], codes[1], values if by == "rank" else -values


def _scores_of_all_items(model: Any, log: FeedbackLog) -> Any:
    """A function from user codes to the scores (users, |I|) of all items, as an array of its own."""
    if hasattr(model, "score_items"):
        return model.score_items
    n_items = log.shape[1]

    def scores(users: Integers) -> NDArray[Any]:
        pairs = np.repeat(users, n_items), np.tile(np.arange(n_items), len(users))
        return score_of_pairs(model, log, *pairs).reshape(len(users), n_items)

    return scores


def full_ranks(
    scores_of: Any, seen: Seen, users: Integers, items: Integers, n_items: int, k: int
) -> tuple[Places, NDArray[np.bool_]]:
    """(where each pair stands among the items that its user has not seen, which items are among the first k of a user).

    A comparison with all items for each pair, or a sort for users with many; a few million scores are in memory at a
    time.
    """
    order = np.argsort(users, kind="stable")
    first = np.flatnonzero(np.diff(users[order], prepend=-1))
    own, ends = users[order][first], np.append(first[1:], len(users))
    above, tied, covered = np.zeros(len(users), np.int64), np.zeros(len(users), np.int64), np.zeros(n_items, bool)
    for block in _blocks(len(own), max(1, BLOCK_SCORES // n_items)):
        scores = scores_of(own[block])
        table = torch.from_numpy(scores)  # the same memory
        seen.hide(table, torch.from_numpy(own[block]))
        kth = table.topk(min(k, n_items), dim=1)[0][:, -1:].clamp(min=LEAST)
        covered |= (table >= kth).any(0).numpy()
        for line, (start, stop) in enumerate(zip(first[block], ends[block], strict=True)):
            rows = order[start:stop]
            mine = scores[line, items[rows]]
            if len(rows) > MAX_COMPARED:
                ranked = np.sort(scores[line])
                high, low = np.searchsorted(ranked, mine, "right"), np.searchsorted(ranked, mine)
                above[rows], tied[rows] = n_items - high, high - low - 1
            else:
                above[rows] = [np.count_nonzero(scores[line] > score) for score in mine]
                tied[rows] = [np.count_nonzero(scores[line] == score) - 1 for score in mine]
    return Places(above, tied), covered


def _blocks(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _evaluation(
    holdout: Unseen, places: Places, covered: NDArray[np.bool_], weights: HoldoutWeights, k: int, level: float
) -> RankingEvaluation:
    """All figures from the places of the positive rows."""
    log, train = holdout.log, holdout.train
    check_number("level", level, above=0, at_most=1, advice="Use 0.95 for 95 %.")
    positive = binary_labels(log) > 0
    if not positive.any():
        raise DataError("the hold-out must have a positive row for full rankings, got none. Hold out more.")
    if weights.values[positive].sum() == 0:
        raise DataError("`weights` must not be 0 for all positive rows: none would count.")
    ranks = np.arange(1, k + 1)
    worth = {"recall": np.ones(k), "dcg": 1 / np.log2(1 + ranks), "mrr": 1 / ranks}
    rows: dict[str, Floats] = {}
    for name, values in worth.items():
        rows[name] = np.zeros(len(log))
        rows[name][positive] = places.worth(values)
    found = {name: weighted_ratio(values, positive.astype(float), weights.values) for name, values in rows.items()}
    influence = np.stack([each.influence for each in found.values()], 1)
    half = float(ndtri((1 + level) / 2)) * weights.standard_errors(influence)
    return RankingEvaluation(
        **{name: estimate.value for name, estimate in found.items()},
        naive={name: float(values[positive].mean()) for name, values in rows.items()},
        coverage=float(covered.mean()),
        k=k,
        per_user=_usual_means(log.users[positive], rows, positive, k),
        snips=_means_of_users(log.users[positive], rows, positive, weights.values[positive]),
        by_popularity=[] if train is None else _by_popularity(log, train, rows, positive, weights.values),
        intervals={
            name: within_bounds(name, estimate.value - one, estimate.value + one)
            for (name, estimate), one in zip(found.items(), half.tolist(), strict=True)
        },
        level=float(level),
        n_users=len(np.unique(log.users[positive])),
        n_positives=int(positive.sum()),
        n_seen=int(holdout.seen.sum()),
        n_unranked=int((places.above == NOWHERE).sum()),
        method=weights.method,
        assumption=weights.assumption,
        effective_sample_size=weights.effective_sample_size,
        feedback=log.feedback,
        frame_kind=log.frame_kind,
        influences=Influences(weights, {name: estimate.influence for name, estimate in found.items()}),
    )


def _usual_means(users: NDArray[Any], rows: dict[str, Floats], positive: NDArray[np.bool_], k: int) -> dict[str, float]:
    """Unweighted means over users with a positive: hits / positives, DCG / ideal DCG, 1 / rank of the first hit."""
    code, counts = np.unique(users, return_inverse=True, return_counts=True)[1:]
    ideal = np.cumsum(1 / np.log2(1 + np.arange(1, k + 1)))[np.minimum(counts, k) - 1]
    first = np.zeros(len(counts))
    np.maximum.at(first, code, rows["mrr"][positive])
    hits, gains = (np.bincount(code, rows[name][positive]) for name in ("recall", "dcg"))
    return {"recall": float((hits / counts).mean()), "ndcg": float((gains / ideal).mean()), "mrr": float(first.mean())}


def _means_of_users(
    users: NDArray[Any], rows: dict[str, Floats], positive: NDArray[np.bool_], weights: Floats
) -> dict[str, float]:
    """The mean over users of sum w c / sum w; users whose positives all weigh 0 are left out."""
    code = np.unique(users, return_inverse=True)[1]
    total = np.bincount(code, weights)
    some = total > 0
    sums = {name: np.bincount(code, weights * values[positive]) for name, values in rows.items()}
    return {name: float((values[some] / total[some]).mean()) for name, values in sums.items()}


def _by_popularity(
    log: FeedbackLog, train: FeedbackLog, rows: dict[str, Floats], positive: NDArray[np.bool_], weights: Floats
) -> list[dict[str, Any]]:
    """The pooled metrics of the positives of each third of all items, by their number of training rows."""
    counts = np.bincount(train.items, minlength=log.shape[1])
    third = np.empty(len(counts), np.int64)
    third[np.argsort(counts, kind="stable")] = np.arange(len(counts)) * len(TERCILES) // len(counts)
    total, found = weights[positive].sum(), []
    for number, group in enumerate(TERCILES):
        chosen = positive & (third[log.items] == number)
        own = weights * chosen
        figures = {
            name: weighted_ratio(values, chosen.astype(float), own).value if own.any() else math.nan
            for name, values in rows.items()
        }
        facts = {"group": group, "items": int((third == number).sum()), "positives": int(chosen.sum())}
        found.append(facts | {"share": float(own.sum() / total)} | figures)
    return found
