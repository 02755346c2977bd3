"""Top-k lists of a fitted model for one user at a time, in integer codes: as `recommend`, without data frames.

The scores of a factorisation are one matrix-vector product, and the items that a user has seen are a slice. So one list
takes tens of microseconds. Tests compare every list with `recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import expit

from counterpoise.data.ids import Vocabulary, as_text
from counterpoise.errors import DataError, short_repr
from counterpoise.models.base import Scorer
from counterpoise.recommender import FEATURES, MODEL, POPULARITY, SCORED_BY, DebiasedRecommender

Id = int | str
Scores = NDArray[np.float32]
Items = NDArray[np.intp]


class UnknownId(DataError):
    """An id that the log does not have."""


class Ids:
    """The users or the items of a log: ids compared as text, and answered with their own type.

    `codes` has the code of each id as text, `values` the id of each code for JSON.
    """

    def __init__(self, vocabulary: Vocabulary, kind: str) -> None:
        self.vocabulary, self.kind = vocabulary, kind
        column = vocabulary.column
        assert isinstance(column, pl.Series)  # as in every saved run
        text: list[Any] = as_text(column).to_list()
        self.codes: dict[str, int] = {name: code for code, name in enumerate(text)}
        self.values: list[Id] = column.to_list() if column.dtype.is_integer() else text

    def code(self, name: Id) -> int | None:
        """The code of an id, None if it is unknown. The text "7" matches the integer 7, "007" does not."""
        return self.codes.get(str(name))

    def require(self, name: Id) -> int:
        """The code of an id, or an error that names it."""
        code = self.code(name)
        if code is None:
            known = self.vocabulary.describe(self.kind)
            raise UnknownId(f"unknown {self.kind} {short_repr(name)}: this log has {known}.")
        return code

    def known(self, names: Sequence[Id]) -> list[int]:
        """The codes of those ids that are known."""
        return [code for name in names if (code := self.code(name)) is not None]


def top_k(scores: Scores, k: int) -> Items:
    """The positions of the k largest scores, best first, ties by position; minus infinity is never among them."""
    k = min(k, len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    places = np.flatnonzero((scores >= least) & (scores > -np.inf))
    return places[np.argsort(-scores[places], kind="stable")[:k]]


@dataclass(frozen=True)
class Lists:
    """The tables that lists are made from: factors, similarities, scores for unknown users, and seen items."""

    scorer: Scorer
    users: Scores | None  # (|U|, d); inner products with items (|I|, d) are the logits. None for other backbones
    items: Scores | None
    directions: Scores  # (|I|, d') whose inner products are similarities
    unknown_user_logits: Scores  # (|I|,) log odds of each item's label rate
    popularity: NDArray[np.int64]  # (|I|,) number of ratings in the log
    feature_columns: tuple[int, int]  # side features of users and items that the logits depend on
    seen_starts: list[int]
    seen_items: NDArray[np.int64]

    @classmethod
    def of(cls, model: DebiasedRecommender) -> Lists:
        """The tables of a fitted model."""
        tables = model.scorer_.vectors()
        users, items = (None, None) if tables is None else (table.cpu().contiguous().numpy() for table in tables)
        unknown_user_logits = torch.logit(model.item_rates_.cpu(), eps=1e-6).numpy()
        starts, seen = model.seen_.starts.tolist(), model.seen_.items.numpy()
        n_users, n_items = len(model.user_ids_), len(model.item_ids_)
        inside = seen.size == 0 or (seen.min() >= 0 and seen.max() < n_items)
        ends = len(starts) == n_users + 1 and starts[0] == 0 and starts[-1] == len(seen) and starts == sorted(starts)
        if not (len(unknown_user_logits) == n_items and inside and ends):
            raise DataError("the model and its seen items do not fit together. Fit and save again.")
        directions = model.item_directions().numpy()
        tensors = [directions, unknown_user_logits, *(table for table in (users, items) if table is not None)]
        if not all(np.isfinite(table).all() for table in tensors):
            raise DataError("the model holds numbers that are not finite, so it cannot rank. Fit and save again.")
        popularity = np.bincount(seen, minlength=n_items)
        columns = model.scorer_.feature_columns("user"), model.scorer_.feature_columns("item")
        return cls(model.scorer_, users, items, directions, unknown_user_logits, popularity, columns, starts, seen)

    @property
    def work(self) -> float:
        """The number of multiplications of a list; infinity where the backbone is not a factorisation."""
        return math.inf if self.items is None else self.items.size

    def recommend(
        self,
        user: int | None,
        k: int,
        filter_seen: bool = True,
        candidates: Items | None = None,
        exclude: Sequence[int] = (),
    ) -> tuple[Items, Scores]:
        """The k best items of a user, None for an unknown one, and their probabilities.

        `candidates`: codes to choose from, ascending; None for all. `exclude`: codes to leave out.
        """
        scores = self.scores(user)
        if filter_seen:
            scores[self.seen(user)] = -np.inf
        scores[list(exclude)] = -np.inf
        chosen = top_k(scores, k) if candidates is None else candidates[top_k(scores[candidates], k)]
        return chosen, expit(scores[chosen])

    def most_popular(self, user: int | None, k: int) -> Items:
        """The k items with most ratings in the log that a user has not seen."""
        counts = self.popularity.astype(np.float32)
        counts[self.seen(user)] = -np.inf
        return top_k(counts, k)

    def similar(self, item: int, k: int) -> tuple[Items, Scores]:
        """The k other items that are most similar, and their similarities."""
        similarities = self.directions @ self.directions[item]
        similarities[item] = -np.inf
        chosen = top_k(similarities, k)
        return chosen, similarities[chosen]

    def scored_by(self, user: int | None, items: Items) -> list[str]:
        """The basis of the scores of a user's items, as in `recommend`."""
        own = MODEL
        if user is None or self.seen_starts[user] == self.seen_starts[user + 1]:
            own = POPULARITY if user is None or not self.feature_columns[0] else FEATURES
        if not self.feature_columns[1] or own == POPULARITY:
            return [SCORED_BY[own]] * len(items)
        return [SCORED_BY[own if count else FEATURES] for count in self.popularity[items].tolist()]

    def scores(self, user: int | None) -> Scores:
        """The logit of every item, in an array of its own. (|I|,)"""
        if user is None:
            return self.unknown_user_logits.copy()
        if self.users is None or self.items is None:
            return self.scorer.grid(torch.tensor([user]))[0].cpu().numpy()
        logits: Scores = self.items @ self.users[user]
        return logits

    def seen(self, user: int | None) -> NDArray[np.int64]:
        """The items that a user rated in the log."""
        if user is None:
            return self.seen_items[:0]
        return self.seen_items[self.seen_starts[user] : self.seen_starts[user + 1]]
