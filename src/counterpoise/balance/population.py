"""Points with features and populations of them: a sample of rows, or all user-item pairs D as two tables.

Means over D are exact and never hold |D| rows at once. At the end: arrays as callers pass them, checked and converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.exponential_family import Rows, pair_rows
from counterpoise.balance.kernels import (
    BLOCK_VALUES,
    Gaussian,
    Kernel,
    pair_gram,
    pair_means,
    pair_moments,
    pair_tables,
)
from counterpoise.errors import CounterpoiseError, DataError


class Points(Protocol):
    """Rows of features that can be weighted."""

    @property
    def n_rows(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def features(self, rows: slice | Tensor) -> Tensor:
        """The features (rows, columns) of some rows."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a matrix (n, columns), weighted or not: points to be weighted, or a population."""

    matrix: Tensor
    weights: Tensor | None = None  # (n,) any scale

    @property
    def n_rows(self) -> int:
        return len(self.matrix)

    @property
    def n_columns(self) -> int:
        return self.matrix.shape[1]

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def features(self, rows: slice | Tensor) -> Tensor:
        """Rows of the matrix."""
        return self.matrix[rows]

    def marginals(self) -> list[Sample]:
        """Samples whose columns, side by side, have the distributions of the features."""
        return [self]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` rows drawn by their weight, without repetition; all where there are fewer."""
        if self.weights is None:
            chosen = torch.randperm(self.n_rows, generator=generator)[:count]
        else:
            positive = int((self.weights > 0).sum())
            chosen = torch.multinomial(self.weights.double().cpu(), min(count, positive), generator=generator)
        return self.matrix.index_select(0, chosen.to(self.device))

    def _blocks(self, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, their shares of the weight), of which `width` values a row fit into a block."""
        weights = torch.ones(self.n_rows, device=self.device) if self.weights is None else self.weights
        share = weights.double() / weights.double().sum()
        step = max(1, BLOCK_VALUES // max(1, width))
        for start in range(0, self.n_rows, step):
            yield self.matrix[start : start + step].double(), share[start : start + step]

    def mean(self, function: Callable[[Tensor], Tensor], width: int) -> Tensor:
        """The mean in float64 of `function` (features -> (rows, functions)), which holds `width` values a row."""
        first, *others = (weights @ function(values) for values, weights in self._blocks(width))
        return sum(others, first)

    def kernel_mean(self, kernel: Kernel, centres: Tensor) -> Tensor:
        """The mean of k(x, c) for every centre."""
        return self.mean(lambda x: kernel(x, centres.double()), len(centres))

    def kernel_moments(self, kernel: Kernel, centres: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of k(x, c) for every centre."""
        mean = self.kernel_mean(kernel, centres)
        squares = self.mean(lambda x: (kernel(x, centres.double()) - mean).square_(), len(centres))
        return mean, squares.sqrt()

    def kernel_gram(self, kernel: Kernel, centres: Tensor) -> Tensor:
        """The mean of k(x, c) k(x, c') for all centres."""
        total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=self.device)
        for values, weights in self._blocks(len(centres)):
            scaled = kernel(values, centres.double()).mul_(weights.sqrt()[:, None])
            total.addmm_(scaled.T, scaled)
        return total


@dataclass(frozen=True, eq=False)
class Pairs:
    """The population of all pairs D = U x I with features x_ui = [users[u]; items[i]], as two tables.

    The same means as those of a `Sample`, exact, in O(|U| + |I|) where a kernel is Gaussian or columns stand alone.
    """

    users: Tensor  # (|U|, user columns)
    items: Tensor  # (|I|, item columns)
    user_shares: Tensor | None = None  # (|U|,) with sum 1: how much each user's pairs count; None: all the same

    @property
    def n_columns(self) -> int:
        return self.users.shape[1] + self.items.shape[1]

    def at(self, users: Tensor, items: Tensor) -> ObservedPairs:
        return ObservedPairs(self, torch.as_tensor(users), torch.as_tensor(items))

    def features(self, users: Tensor, items: Tensor) -> Tensor:
        """[user row; item row] of the pairs with these codes."""
        return torch.cat([self.users.index_select(0, users), self.items.index_select(0, items)], 1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Pairs drawn from D, uniformly and without repetition, so at most |D|; or users by their shares."""
        total = len(self.users) * len(self.items)
        if self.user_shares is not None:
            users = torch.multinomial(self.user_shares.cpu(), count, replacement=True, generator=generator)
            items = torch.randint(len(self.items), (count,), generator=generator)
            return self.features(users.to(self.users.device), items.to(self.users.device))
        if count * 20 >= total:
            chosen = torch.randperm(total, generator=generator)[:count]
        else:
            chosen = torch.randint(total, (2 * count + 20,), generator=generator)
            first = np.unique(chosen.numpy(), return_index=True)[1]
            chosen = chosen[torch.from_numpy(np.sort(first))][:count]
        chosen = chosen.to(self.users.device)
        return self.features(chosen // len(self.items), chosen % len(self.items))

    def mean(self, function: Callable[[Tensor], Tensor], width: int) -> Tensor:
        """Over all pairs, a few users at a time."""
        step = max(1, BLOCK_VALUES // max(1, width * len(self.items)))
        total = torch.zeros((), dtype=torch.float64, device=self.users.device)
        shares = self.users.new_full((len(self.users),), 1 / len(self.users), dtype=torch.float64)
        shares = shares if self.user_shares is None else self.user_shares
        for start in range(0, len(self.users), step):
            part, share = self.users[start : start + step].double(), shares[start : start + step]
            users = part.repeat_interleave(len(self.items), 0)
            values = function(torch.cat([users, self.items.double().repeat(len(part), 1)], 1))
            total = total + share.repeat_interleave(len(self.items)) @ values
        return total / len(self.items)

    def marginals(self) -> list[Sample]:
        """A column of users averages over D as it does over users."""
        return [Sample(self.users, self.user_shares), Sample(self.items)]

    def kernel_mean(self, kernel: Kernel, centres: Tensor) -> Tensor:
        return pair_means(kernel, centres, self.users, self.items, self.user_shares)

    def kernel_moments(self, kernel: Kernel, centres: Tensor) -> tuple[Tensor, Tensor]:
        return pair_moments(kernel, centres, self.users, self.items, self.user_shares)

    def kernel_gram(self, kernel: Kernel, centres: Tensor) -> Tensor:
        return pair_gram(kernel, centres, self.users, self.items, self.user_shares)


Population = Sample | Pairs  # the rows that the weighted rows should resemble


@dataclass(frozen=True, eq=False)
class ObservedPairs:
    """Some pairs of `pairs`, by their codes; features are gathered when needed."""

    pairs: Pairs
    users: Tensor  # (n,)
    items: Tensor  # (n,)

    def take(self, rows: Tensor) -> ObservedPairs:
        return ObservedPairs(self.pairs, self.users[rows], self.items[rows])

    @property
    def n_rows(self) -> int:
        return len(self.users)

    @property
    def device(self) -> torch.device:
        return self.pairs.users.device

    def features(self, rows: slice | Tensor) -> Tensor:
        return self.pairs.features(self.users[rows], self.items[rows])


def kernel_rows(kernel: Kernel, centres: Tensor, points: Points, mixing: Tensor | None = None) -> Rows:
    """The kernels at the points, times `mixing` if given; for a Gaussian over pairs by two tables and a gather."""
    if isinstance(points, ObservedPairs) and isinstance(kernel, Gaussian):
        user_table, item_table = pair_tables(kernel, centres, points.pairs.users, points.pairs.items)
        mixed = mixing if mixing is None else mixing.to(user_table)
        return pair_rows(user_table, item_table, points.users, points.items, mixed)

    def take(rows: slice | Tensor) -> Tensor:
        values = kernel(points.features(rows).to(centres), centres)
        return values if mixing is None else values @ mixing.to(values)

    count = len(centres) if mixing is None else mixing.shape[1]
    return Rows(points.n_rows, count, points.device, take, len(centres))


def as_matrix(name: str, values: Any) -> Tensor:
    """A two-dimensional float tensor; numpy arrays are shared, not copied."""
    if not isinstance(values, Tensor):
        array = _numbers(name, values, DataError)
        writable = array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()
        values = torch.from_numpy(writable)
    if values.is_complex():
        raise DataError(f"`{name}` must hold numbers only, got {values.dtype}.")
    if values.ndim != 2:
        raise DataError(f"`{name}` must have two dimensions (rows, columns), got shape {tuple(values.shape)}.")
    matrix: Tensor = values.detach() if values.is_floating_point() else values.double()
    return matrix


def as_float64(values: Any, name: str = "values", error: type[CounterpoiseError] = DataError) -> NDArray[np.float64]:
    """A float64 copy on the CPU; `error`, with the argument's name, if it holds anything but real numbers."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.array(_numbers(name, array, error), dtype=np.float64)


def _numbers(name: str, values: Any, error: type[CounterpoiseError]) -> NDArray[Any]:
    """An array of float32 or float64, shared where `values` is one. Text, dates and complex numbers are refused."""
    try:
        array = np.asarray(values)
        if array.dtype in (np.float32, np.float64):
            return array
        if array.dtype.kind not in "biufO":
            raise TypeError(f"got {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as reason:
        raise error(f"`{name}` must hold numbers only: {reason}.") from reason


def as_weights(name: str, values: Any, count: int, device: torch.device | str = "cpu") -> Tensor | None:
    """(count,) weights of any scale as float64: finite, >= 0 and not all 0; None stays None."""
    if values is None:
        return None
    weights = values.detach() if isinstance(values, Tensor) else torch.from_numpy(as_float64(values, name))
    if weights.is_complex():
        raise DataError(f"`{name}` must hold numbers only, got {weights.dtype}.")
    if weights.shape != (count,):
        raise DataError(f"`{name}` must have one value for each of the {count} rows, got shape {tuple(weights.shape)}.")
    weights = weights.to(device=device, dtype=torch.float64)
    if not bool(weights.isfinite().all()) or float(weights.min()) < 0 or float(weights.sum()) <= 0:
        raise DataError(f"`{name}` must be finite, >= 0 and not all 0.")
    return weights


def base_shares(values: Any, count: int, device: torch.device) -> Tensor | None:
    """`base_weights` (count,) to start from, with sum 1; None stays None."""
    weights = as_weights("base_weights", values, count, device)
    return None if weights is None else weights / weights.sum()
