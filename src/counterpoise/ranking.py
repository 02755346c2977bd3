"""Ranked lists: the top items of each user without those already seen, and the most similar items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.data.log import FeedbackLog

BLOCK_ROWS = 2**20  # of seen pairs that are looked up at a time


def top_items(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row and their columns, best first; equal scores in the order of columns."""
    k = min(k, scores.shape[1])
    values, columns = scores.topk(k, dim=1)
    tied_rows = (scores >= values[:, -1:]).sum(dim=1) > k  # a tie at the k-th place: topk chose any of them
    if tied_rows.any():
        ordered, order = scores[tied_rows].sort(dim=1, descending=True, stable=True)
        values[tied_rows], columns[tied_rows] = ordered[:, :k], order[:, :k]
    by_column = columns.argsort(dim=1)
    values, columns = values.gather(1, by_column), columns.gather(1, by_column)
    best_first = values.argsort(dim=1, descending=True, stable=True)
    return values.gather(1, best_first), columns.gather(1, best_first)


@dataclass(frozen=True)
class Seen:
    """The items each user has rated, as compressed rows: those of user u are items[starts[u] : starts[u + 1]]."""

    starts: Tensor  # (|U| + 1,)
    items: Tensor  # (rows,)

    @classmethod
    def of(cls, log: FeedbackLog) -> Seen:
        counts = np.bincount(log.users, minlength=log.shape[0])
        items = log.items[np.argsort(log.users, kind="stable")]
        return cls(torch.from_numpy(np.r_[0, np.cumsum(counts)]), torch.from_numpy(items.astype(np.int64)))

    def contains(self, users: NDArray[Any], items: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each pair is one of these; the memory beyond the pairs asked for is bounded."""
        size = 1 + max(int(self.items.max()) if len(self.items) else 0, int(items.max(initial=0)))
        asked, place = np.unique(users.astype(np.int64) * size + items, return_inverse=True)
        found, starts = np.zeros(len(asked) + 1, bool), self.starts.numpy()
        keys = np.append(asked, -1)  # the last is where pairs greater than all of those asked for fall
        for first in range(0, len(self.items), BLOCK_ROWS):
            block = self.items[first : first + BLOCK_ROWS].numpy()
            owners = np.searchsorted(starts, np.arange(first, first + len(block)), side="right") - 1
            pairs = owners * size + block
            nearest = np.searchsorted(asked, pairs)
            found[nearest[keys[nearest] == pairs]] = True
        return found[place]

    def hide(self, scores: Tensor, users: Tensor) -> None:
        """Set the scores of seen items to minus infinity, in place; row r belongs to users[r], -1 has seen nothing."""
        first = self.starts[users.clamp(min=0)]
        counts = torch.where(users >= 0, self.starts[users + 1] - first, 0)
        rows = torch.arange(len(users)).repeat_interleave(counts)
        offsets = torch.arange(len(rows)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        items = self.items[first.repeat_interleave(counts) + offsets]
        scores[rows, items] = -torch.inf


def shrunken_label_rates(log: FeedbackLog) -> Tensor:
    """Each item's mean label, shrunk to that of the log: the scores of users whom the model does not know. (|I|,)

    (sum of labels + m * rate) / (ratings + m), with `rate` the mean label and m the mean number of ratings an item.
    """
    counts = np.bincount(log.items, minlength=log.shape[1])
    sums = np.bincount(log.items, weights=log.labels, minlength=log.shape[1])
    prior = len(log) / log.shape[1]
    return torch.from_numpy((sums + prior * log.labels.mean()) / (counts + prior)).float()


def nearest(vectors: Tensor, codes: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """(cosine similarities, codes) of the k most similar other rows, (codes, k); at most `block` scores in memory."""
    directions, tops = torch.nn.functional.normalize(vectors, dim=1), []
    for own in torch.split(codes, max(1, block // len(directions))):
        similarity = directions[own] @ directions.T
        similarity[torch.arange(len(own)), own] = -torch.inf
        tops.append(top_items(similarity, min(k, len(directions) - 1)))
    scores, similar = (torch.cat(part) for part in zip(*tops, strict=True))
    return scores, similar
