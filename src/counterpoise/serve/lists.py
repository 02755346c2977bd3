"""The lists of a fitted model for one user at a time, in codes: what `recommend` gives, without frames.

Scores of a factorisation are one product of a table with a vector; what a user has seen is a slice. So one list takes
tens of microseconds. Tests hold every answer against `recommend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import expit

from counterpoise.data.ids import Vocabulary, as_text
from counterpoise.errors import DataError
from counterpoise.models.base import Scorer
from counterpoise.recommender import DebiasedRecommender

# Ids between JSON and codes: compared by how they are written, answered as they are.

Id = int | str
SHOWN = 80  # letters of an unknown id in a message


class UnknownId(DataError):
    """An id that the log does not have."""


class Ids:
    """One side of a log: `written` has the code of each id as text, `plain` the id of each code as JSON has it."""

    def __init__(self, vocabulary: Vocabulary, kind: str) -> None:
        self.vocabulary, self.kind = vocabulary, kind
        column = vocabulary.column
        assert isinstance(column, pl.Series)  # whatever was saved is a column
        text: list[Any] = as_text(column).to_list()
        self.written: dict[str, int] = {name: code for code, name in enumerate(text)}
        self.plain: list[Id] = column.to_list() if column.dtype.is_integer() else text

    def code(self, name: Id) -> int | None:
        """The code of an id; None where it is unknown. The text "7" is the integer 7, "007" is not."""
        return self.written.get(str(name))

    def require(self, name: Id) -> int:
        """The code of an id, or an error that names it."""
        code = self.code(name)
        if code is None:
            shown = repr(name)
            shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
            raise UnknownId(f"unknown {self.kind} {shown}: this log has {self.vocabulary.describe(self.kind)}.")
        return code

    def require_all(self, names: Sequence[Id]) -> list[int]:
        """The codes of ids, or an error that names the first unknown one."""
        return [self.require(name) for name in names]

    def known(self, names: Sequence[Id]) -> list[int]:
        """The codes of those ids that are known."""
        return [code for name in names if (code := self.code(name)) is not None]


Scores = NDArray[np.float32]
Items = NDArray[np.intp]


def best(scores: Scores, k: int) -> Items:
    """The positions of the k largest scores, best first; equal ones by position; never one of minus infinity."""
    k = min(k, len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    places = np.flatnonzero((scores >= least) & (scores > -np.inf))
    return places[np.argsort(-scores[places], kind="stable")[:k]]


@dataclass(frozen=True)
class Lists:
    """What lists are made of: scores of users, of strangers and between items, and what was seen."""

    scorer: Scorer
    users: Scores | None  # (|U|, d), and items (|I|, d): their inner products are the logits, where there are such
    items: Scores | None
    directions: Scores  # (|I|, d') vectors of length 1: their inner products are similarities
    unknown_users: Scores  # (|I|,) the log odds of each item's label rate
    popularity: NDArray[np.int64]  # (|I|,) how often each item stands in the log
    seen_starts: list[int]
    seen_items: NDArray[np.int64]

    @classmethod
    def of(cls, model: DebiasedRecommender) -> Lists:
        """The tables of a fitted model."""
        tables = model.scorer_.vectors()
        users, items = (None, None) if tables is None else (table.cpu().contiguous().numpy() for table in tables)
        directions = torch.nn.functional.normalize(model.scorer_.embeddings()[1], dim=1).cpu().numpy()
        unknown_users = torch.logit(model.item_rates_.cpu(), eps=1e-6).numpy()
        tensors = [directions, unknown_users, *(table for table in (users, items) if table is not None)]
        if not all(np.isfinite(table).all() for table in tensors):
            raise DataError("the model holds numbers that are not finite, so it ranks nothing. Fit and save again.")
        starts, seen = model.seen_.starts.tolist(), model.seen_.items.numpy()
        _check_shapes(model, len(unknown_users), starts, seen)
        popularity = np.bincount(seen, minlength=len(unknown_users))
        return cls(model.scorer_, users, items, directions, unknown_users, popularity, starts, seen)

    def recommend(
        self,
        user: int | None,
        k: int,
        filter_seen: bool = True,
        candidates: Items | None = None,
        exclude: Sequence[int] = (),
    ) -> tuple[Items, Scores]:
        """The k best items of a user, None for one the log does not have, and their probabilities.

        `candidates`: codes to choose from, ascending, None for all. `exclude`: codes that are left out.
        """
        scores = self.scores(user)
        if filter_seen:
            scores[self.seen(user)] = -np.inf
        scores[list(exclude)] = -np.inf
        chosen = best(scores, k) if candidates is None else candidates[best(scores[candidates], k)]
        return chosen, expit(scores[chosen])

    def most_popular(self, user: int | None, k: int) -> Items:
        """The k items with most ratings in the log that a user has not seen."""
        counts = self.popularity.astype(np.float32)
        counts[self.seen(user)] = -np.inf
        return best(counts, k)

    def similar(self, item: int, k: int) -> tuple[Items, Scores]:
        """The k other items whose vectors are nearest by cosine, and the cosines."""
        cosines = self.directions @ self.directions[item]
        cosines[item] = -np.inf
        chosen = best(cosines, k)
        return chosen, cosines[chosen]

    def scores(self, user: int | None) -> Scores:
        """The logit of every item, in an array of its own. (|I|,)"""
        if user is None:
            return self.unknown_users.copy()
        if self.users is None or self.items is None:
            return self.scorer.grid(torch.tensor([user]))[0].cpu().numpy()
        logits: Scores = self.items @ self.users[user]
        return logits

    def seen(self, user: int | None) -> NDArray[np.int64]:
        """What a user rated in the log."""
        if user is None:
            return self.seen_items[:0]
        return self.seen_items[self.seen_starts[user] : self.seen_starts[user + 1]]


def _check_shapes(model: DebiasedRecommender, rates: int, starts: list[int], seen: NDArray[np.int64]) -> None:
    """Raise `DataError` unless what was seen speaks of the users and items of the model."""
    n_users, n_items = len(model.user_ids_), len(model.item_ids_)
    inside = seen.size == 0 or (seen.min() >= 0 and seen.max() < n_items)
    ends = len(starts) == n_users + 1 and starts[0] == 0 and starts[-1] == len(seen) and starts == sorted(starts)
    if not (rates == n_items and inside and ends):
        raise DataError("the model and what it has seen do not fit together. Fit and save again.")
