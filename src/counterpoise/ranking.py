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

    ratio: Tensor | None = None  # (rows,) what each counted in training, where that is kept; 0: held out

    @classmethod
    def of(cls, log: FeedbackLog, ratio: NDArray[Any] | None = None) -> Seen:
        return cls.of_pairs(log.users, log.items, log.shape[0], ratio)

    @classmethod
    def of_pairs(cls, users: NDArray[Any], items: NDArray[Any], size: int, ratio: NDArray[Any] | None = None) -> Seen:
        """The pairs of two columns of codes, for users 0 to `size` - 1."""
        order = np.argsort(users, kind="stable")
        starts = torch.from_numpy(np.r_[0, np.cumsum(np.bincount(users, minlength=size))])
        kept = None if ratio is None else torch.from_numpy(ratio[order].astype(np.float32))
        return cls(starts, torch.from_numpy(items[order].astype(np.int64)), kept)

    @property
    def users(self) -> Tensor:
        """The user of each row. (rows,)"""
        counts = self.starts.diff()
        return torch.arange(len(counts)).repeat_interleave(counts)

    def item_counts(self, n_items: int) -> Tensor:
        """The number of these pairs of each item. (|I|,)"""
        return torch.bincount(self.items, minlength=n_items)

    def contains(self, users: NDArray[Any], items: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each pair is one of these; the memory beyond the pairs asked for is bounded."""
        size = 1 + max(int(self.items.max()) if len(self.items) else 0, int(items.max(initial=0)))
        wanted, place = np.unique(users.astype(np.int64) * size + items, return_inverse=True)
        found, starts = np.zeros(len(wanted) + 1, bool), self.starts.numpy()
        keys = np.append(wanted, -1)  # the last is where pairs greater than all of those asked for fall
        for first in range(0, len(self.items), BLOCK_ROWS):
            block = self.items[first : first + BLOCK_ROWS].numpy()
            owners = np.searchsorted(starts, np.arange(first, first + len(block)), side="right") - 1
            pairs = owners * size + block
            nearest = np.searchsorted(wanted, pairs)
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


def shrunken_directions(vectors: Tensor, variance: Tensor) -> Tensor:
    """q / sqrt(|q|^2 + v): vectors whose inner products are cosines where v, the variance of all of q, is 0.

    Of a vector q with a Gaussian posterior |q|^2 + v is the mean of its squared length. So the inner product of two is
    about the cosine to be expected of the true vectors: a vector that few ratings have moved is near nobody's.
    """
    return vectors / (vectors.square().sum(1) + variance).clamp(min=1e-24).sqrt()[:, None]


def nearest(directions: Tensor, codes: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """(inner products, codes) of the k most similar other rows, (codes, k); at most `block` scores in memory."""
    tops = []
    for own in torch.split(codes, max(1, block // len(directions))):
        similarity = directions[own] @ directions.T
        similarity[torch.arange(len(own)), own] = -torch.inf
        tops.append(top_items(similarity, min(k, len(directions) - 1)))
    scores, similar = (torch.cat(part) for part in zip(*tops, strict=True))
    return scores, similar
