"""Exponential family of entropy balancing: weights w_i ~ q_i exp(-l'h(x_i)) on rows, and sums over rows under them.

`Rows` are the balancing functions h at the observed rows, computed block by block so that they need never lie in memory
at once. `InMemoryFamily` is the family over them. Rows that lie elsewhere, such as shards on disk, give a family of
their own; the solver asks for no more than `ExponentialFamily` and `FamilyPoint`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

CPU_BLOCK_VALUES = 2**19  # values of a block that are computed: 4 MB of float64, between cache misses and call overhead
MATRIX_BLOCK_VALUES = 2**20  # values of a block that lie in memory already
DEVICE_BLOCK_VALUES = 2**26  # values of a block on an accelerator, which wants few and large ones
MAX_CHUNKS = 64  # parts of the rows that threads work on; fixed, so that sums do not depend on the number of threads
MAX_KEPT_VALUES = 2**23  # functions x rows, 64 MB of float64: up to here they are computed once and kept
MAX_KEPT_FLOAT32 = 2**28  # 1 GB of float32, in which more are kept: computing them again takes ten times a pass
MIN_VARIANCE_SHARE = 1e-6  # of the mean square: a smaller variance has lost its digits and is taken around the mean
MIN_VARIANCE_SHARE_FLOAT32 = 1e-2  # the same for products in float32
MIN_LOG_BASE = math.log(1e-299)  # base weights of 0 have logarithms below it (see `solver`)

Blocks = Iterator[tuple[slice, Tensor]]
Sums = tuple[Tensor, Tensor, Tensor]  # (top, sum_i m_i, sum_i m_i h(x_i)), see `tilted_sums`
Result = TypeVar("Result")


class FunctionRows:
    """J functions at n observed rows, wherever these lie."""

    n_rows: int
    n_functions: int
    device: torch.device

    def family(self, targets: Tensor, log_base: Tensor | None, max_weight: float | None) -> ExponentialFamily:
        """The exponential family over these rows: `log_base` (n,) is log q (None: uniform), `max_weight` the cap."""
        raise NotImplementedError

    def invalid_value(self) -> tuple[int, int, float] | None:
        """(row, function, value) of the first value that is not finite, where the rows can be searched."""
        return None


@dataclass(frozen=True)
class Rows(FunctionRows):
    """n rows of J functions; `take(rows)` gives the values (rows, J) for a slice or a tensor of row numbers.

    Everything the solver needs is a sum over rows, added up block by block in a fixed order. A matrix is the
    trivial case; two kernel tables and the log's codes are another; a shard of a larger log is a third.
    """

    n_rows: int
    n_functions: int
    device: torch.device
    take: Callable[[slice | Tensor], Tensor]
    width: int = 0  # values that `take` holds for one row, where more than J
    cpu_block: int = CPU_BLOCK_VALUES
    in_float32: Callable[[], Rows] | None = None  # the same in float32, where values are of the order of 1

    def family(self, targets: Tensor, log_base: Tensor | None, max_weight: float | None) -> InMemoryFamily:
        return InMemoryFamily(self, targets, log_base, max_weight)

    def blocks(self, first: int = 0, last: int | None = None) -> Blocks:
        """Rows `first` to `last` in order: (the slice, its values in float64)."""
        last, step = self.n_rows if last is None else last, self._block_rows
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            yield part, self.take(part).double()

    def each_chunk(self, work: Callable[[Blocks], Result]) -> list[Result]:
        """`work` on the blocks of every chunk, in order. The chunks do not depend on the number of threads.

        On the CPU as many chunks at a time as torch has threads, each with one: threads inside operations on such
        tall and narrow blocks gain little, and lose a lot where other programs want the cores too.
        """
        block = self._block_rows
        step = block * max(1, -(-self.n_rows // (block * MAX_CHUNKS)))
        chunks = [self.blocks(start, min(start + step, self.n_rows)) for start in range(0, self.n_rows, step)]
        workers = torch.get_num_threads() if self.device.type == "cpu" else 1
        if workers == 1:
            return [work(chunk) for chunk in chunks]
        torch.set_num_threads(1)
        try:
            if len(chunks) == 1:
                return [work(chunks[0])]
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(work, chunks))
        finally:
            torch.set_num_threads(workers)

    def kept(self) -> Rows:
        """The same rows, in memory where they are few: the solver sums over them a dozen times.

        Where they are not so few, in float32 if that is enough: functions that differ by 1e-5 standard deviations are
        balanced just as exactly.
        """
        size = self.n_rows * self.n_functions
        if size <= MAX_KEPT_VALUES:
            return matrix_rows(torch.cat([values for _, values in self.blocks()]))
        if self.in_float32 is None or size > MAX_KEPT_FLOAT32:
            return self
        matrix = torch.empty(self.n_rows, self.n_functions, device=self.device)

        def work(blocks: Blocks) -> None:
            for part, values in blocks:
                matrix[part] = values

        self.in_float32().each_chunk(work)
        return matrix_rows(matrix)

    def at(self, numbers: Tensor) -> Rows:
        """The rows with these numbers."""
        return replace(self, n_rows=len(numbers), take=lambda rows: self.take(numbers[rows]), in_float32=None)

    def invalid_value(self) -> tuple[int, int, float] | None:
        for part, values in self.blocks():
            invalid = (~values.isfinite()).nonzero()
            if len(invalid):
                row, column = invalid[0].tolist()
                return part.start + row, column, float(values[row, column])
        return None

    @property
    def _block_rows(self) -> int:
        size = self.cpu_block if self.device.type == "cpu" else DEVICE_BLOCK_VALUES
        return max(64, size // max(1, self.width, self.n_functions))


def matrix_rows(matrix: Tensor) -> Rows:
    """The rows of a matrix (n, J) in memory."""

    def take(rows: slice | Tensor) -> Tensor:
        return matrix[rows] if isinstance(rows, slice) else matrix.index_select(0, rows)

    return Rows(len(matrix), matrix.shape[1], matrix.device, take, cpu_block=MATRIX_BLOCK_VALUES)


def pair_rows(
    user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor, mixing: Tensor | None = None
) -> Rows:
    """h(x_ui) = user_table[u] * item_table[i], and its product with `mixing` (candidates, J) if that is given.

    For functions that factorise over users and items, such as Gaussian kernels of x_ui = [user row; item row].
    `mixing` gives each combination a mean square of 1 over the population, or a variance of 1.
    """

    def take(rows: slice | Tensor) -> Tensor:
        values = user_table.index_select(0, users[rows]).mul_(item_table.index_select(0, items[rows]))
        return values if mixing is None else values @ mixing

    count = user_table.shape[1]
    if mixing is None:
        return Rows(len(users), count, user_table.device, take, width=2 * count)

    def in_float32() -> Rows:
        return pair_rows(user_table.float(), item_table.float(), users, items, mixing.float())

    return Rows(len(users), mixing.shape[1], user_table.device, take, width=2 * count, in_float32=in_float32)


class ExponentialFamily:
    """The exponential family over some rows, wherever they lie: what the solver asks of them."""

    rows: FunctionRows
    targets: Tensor  # (functions,) mu, the values that the functions should average to
    line_passes: ClassVar[int]  # passes over the rows that one `FamilyPoint.slope_towards` takes
    float32_covariance: ClassVar[bool]  # whether covariances of well conditioned functions may be taken in float32

    def at(self, dual: Tensor) -> FamilyPoint:
        """The family at a dual vector; one pass over the rows."""
        raise NotImplementedError

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under the base weights."""
        raise NotImplementedError

    def sample(self, size: int) -> InMemoryFamily:
        """The family over `size` rows, drawn with repetition, in memory."""
        raise NotImplementedError


@dataclass(frozen=True)
class FamilyPoint:
    """The family at one dual vector l.

    smooth = log sum_i q_i exp(-l'(h(x_i) - mu)), the smooth part of the dual; imbalance tau = sum_i w_i h(x_i) - mu.
    """

    dual: Tensor  # (functions,) l
    offset: float  # log sum_i q_i exp(-l'h(x_i)), or its counterpart under a cap
    smooth: float
    imbalance: Tensor  # (functions,) tau
    targets: Tensor  # (functions,) mu

    @property
    def final_weights(self) -> Any:
        """(n,), sum 1: a tensor, or a column of shards."""
        raise NotImplementedError

    def slope_towards(self, trial: Self, length: float) -> float:
        """The derivative at `length` of log sum_i exp(score_i) on the line from here (0) to `trial` (1)."""
        raise NotImplementedError

    def covariance(self, float32: bool = False, transform: Tensor | None = None) -> Tensor:
        """The Hessian of the smooth part: the covariance of h under w (over the rows below the cap).

        `float32`: products in float32, for well conditioned functions; half the time, and enough for a Newton step.
        `transform` T (J, R): of T'h instead. Rows are transformed one by one, around their mean: where T is large,
        T' cov T would be the difference of much larger numbers, and not even positive.
        """
        centre = None if transform is None else self.imbalance + self.targets
        mass, first, second = self._second_moments(centre, torch.float32 if float32 else torch.float64, transform)
        result = second - torch.outer(first, first) / mass
        least = MIN_VARIANCE_SHARE_FLOAT32 if float32 else MIN_VARIANCE_SHARE
        if transform is None and bool((result.diagonal() < least * second.diagonal()).any()):
            mass, first, second = self._second_moments(first / mass, torch.float64)
            result = second - torch.outer(first, first) / mass
        return result.cpu()

    def _second_moments(
        self, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[float, Tensor, Tensor]:
        """The total weight of the rows below the cap and their `second_moments`."""
        raise NotImplementedError


@dataclass(frozen=True)
class InMemoryFamily(ExponentialFamily):
    """The family over `Rows`, with base weights and a cap on weights."""

    rows: Rows
    targets: Tensor
    log_base: Tensor | None = None  # (n,) log q, sum q = 1; None for uniform
    max_weight: float | None = None
    line_passes: ClassVar[int] = 0
    float32_covariance: ClassVar[bool] = True

    def at(self, dual: Tensor) -> InMemoryPoint:
        """The scores log q_i - l'h(x_i), the smooth part of the dual and the imbalance, in one pass over the rows.

        Under a cap the weights are known only after all scores are, so that it takes a second pass.
        """
        scores = torch.empty(self.rows.n_rows, dtype=torch.float64, device=self.rows.device)
        log_base = -math.log(self.rows.n_rows) if self.log_base is None else self.log_base
        sums = tilted_sums(self.rows, dual, log_base, scores)
        if self.max_weight is None:
            return InMemoryPoint(dual, *normalised(dual, self.targets, *sums), self.targets, self, scores)
        offset = capped_offset(scores, self.max_weight)
        weights = (scores - offset).exp_().clamp_(max=self.max_weight)
        imbalance = weighted_sum(self.rows, weights).cpu() - self.targets
        smooth = float((weights * scores).sum() - torch.special.xlogy(weights, weights).sum())
        return InMemoryPoint(dual, offset, smooth + float(dual @ self.targets), imbalance, self.targets, self, scores)

    def base_moments(self) -> tuple[Tensor, Tensor]:
        weights = 1 / self.rows.n_rows if self.log_base is None else self.log_base.exp()
        return mean_and_deviation(lambda centre: moments(self.rows, weights, centre))

    def sample(self, size: int) -> InMemoryFamily:
        rows = self.rows
        drawn = torch.randint(rows.n_rows, (size,), generator=torch.Generator().manual_seed(0)).to(rows.device)
        base = None if self.log_base is None else self.log_base[drawn].log_softmax(0)
        cap = None if self.max_weight is None else min(1.0, self.max_weight * rows.n_rows / size)
        return InMemoryFamily(matrix_rows(rows.take(drawn)), self.targets, base, cap)


@dataclass(frozen=True)
class InMemoryPoint(FamilyPoint):
    """The family at one dual vector, with the score log q_i - l'h(x_i) of every row."""

    family: InMemoryFamily
    scores: Tensor  # (n,)

    @cached_property
    def weights(self) -> Tensor:
        """(n,), sum 1."""
        weights = (self.scores - self.offset).exp_()
        return weights if self.family.max_weight is None else weights.clamp_(max=self.family.max_weight)

    @property
    def final_weights(self) -> Tensor:
        """The weights, and exactly 0 for rows of base weight 0, whose logarithm is kept finite on the way."""
        base = self.family.log_base
        return self.weights if base is None else self.weights.masked_fill(base < MIN_LOG_BASE, 0.0)

    def slope_towards(self, trial: Self, length: float) -> float:
        """The mean change of scores from here to `trial`, under the weights so far along the way; no pass."""
        change = trial.scores - self.scores
        scores, cap = self.scores + length * change, self.family.max_weight
        if cap is None:
            return float((scores - torch.logsumexp(scores, 0)).exp_() @ change)
        return float((scores - capped_offset(scores, cap)).exp_().clamp_(max=cap) @ change)

    def _second_moments(
        self, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[float, Tensor, Tensor]:
        cap, free = self.family.max_weight, self.weights
        if cap is not None:
            free = free.masked_fill(self.scores - self.offset >= math.log(cap), 0.0)
        found = second_moments(self.family.rows, lambda part, values: free[part], centre, dtype, transform)
        return max(float(free.sum()), 1e-300), *found


def tilted_sums(rows: Rows, dual: Tensor, log_base: Tensor | float, scores: Tensor | None = None) -> Sums:
    """(top, sum_i m_i, sum_i m_i h(x_i)) with m_i = exp(s_i - top) for the scores s_i = log q_i - l'h(x_i).

    `log_base`: log q, (n,) or one for all. The scores are written to `scores` (n,) where that is given.
    """
    negative = -dual.to(rows.device)

    def work(blocks: Blocks) -> Sums:
        sums = []
        for part, values in blocks:
            score = torch.mv(values, negative, out=None if scores is None else scores[part])
            score += log_base[part] if isinstance(log_base, Tensor) else log_base
            top = score.max()
            mass = (score - top).exp_()
            sums.append((top, mass.sum(), mass @ values))
        return joined(sums)

    return joined(rows.each_chunk(work))


def joined(parts: Sequence[Sums]) -> Sums:
    """`tilted_sums` over all parts, from those of each part, which are relative to its own largest score."""
    if len(parts) == 1:
        return parts[0]
    top, mass, total = (torch.stack(sums) for sums in zip(*parts, strict=True))
    rescale = (top - top.max()).exp()
    return top.max(), rescale @ mass, rescale @ total


def normalised(dual: Tensor, targets: Tensor, top: Tensor, mass: Tensor, total: Tensor) -> tuple[float, float, Tensor]:
    """(log sum_i exp(s_i), the smooth part of the dual, the imbalance) from `tilted_sums` over all rows."""
    log_partition = float(top + mass.log())
    return log_partition, log_partition + float(dual @ targets), (total / mass).cpu() - targets


def second_moments(
    rows: Rows,
    weights_of: Callable[[slice, Tensor], Tensor],
    centre: Tensor | None,
    dtype: torch.dtype,
    transform: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum_i w_i h_i, sum_i w_i h_i h_i') of the functions, minus `centre` and times T; products in `dtype`.

    `weights_of` gives the weights of a block from its place and its values.
    """
    count = rows.n_functions if transform is None else transform.shape[1]
    middle, mixing = (None if values is None else values.to(rows.device) for values in (centre, transform))

    def work(blocks: Blocks) -> tuple[Tensor, Tensor]:
        second = torch.zeros(count, count, dtype=dtype, device=rows.device)
        first = torch.zeros(count, dtype=dtype, device=rows.device)
        for part, values in blocks:
            root = weights_of(part, values).sqrt().to(dtype)
            centred = values if middle is None else values - middle
            scaled = (centred if mixing is None else centred @ mixing).to(dtype) * root[:, None]
            second.addmm_(scaled.T, scaled)
            first += root @ scaled
        return first.double(), second.double()

    first, second = (torch.stack(sums).sum(0) for sums in zip(*rows.each_chunk(work), strict=True))
    return first, second


def moments(rows: Rows, weights: Tensor | float, centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums of q_i h(x_i) and of q_i h(x_i)^2, of functions minus `centre`; `weights`: q, (n,) or one for all."""
    middle = None if centre is None else centre.to(rows.device)
    uniform = None if isinstance(weights, Tensor) else weights
    base = torch.as_tensor(weights, dtype=torch.float64, device=rows.device).expand(rows.n_rows).contiguous()

    def work(blocks: Blocks) -> Tensor:
        total = torch.zeros(2, rows.n_functions, dtype=torch.float64, device=rows.device)
        for part, values in blocks:
            away = values if middle is None else values - middle
            total[0] += base[part] @ away
            total[1] += base[part] @ away.square() if uniform is None else uniform * _column_squares(away)
        return total

    first, second = torch.stack(rows.each_chunk(work)).sum(0)
    return first, second


def _column_squares(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values.square().sum(0)
    return torch.from_numpy(np.einsum("ij,ij->j", values.numpy(), values.numpy()))  # torch would hold all squares


def mean_and_deviation(moments_around: Callable[[Tensor | None], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation) of every function, from sums around 0, or around the mean where those lose digits."""
    mean, second = moments_around(None)
    variance = second - mean.square()
    if bool((variance < MIN_VARIANCE_SHARE * second).any()):
        first, variance = moments_around(mean)
        mean = mean + first
    return mean.cpu(), variance.clamp(min=0).sqrt().cpu()


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """sum_i w_i h(x_i), (functions,)."""
    parts = rows.each_chunk(lambda blocks: torch.stack([weights[part] @ values for part, values in blocks]).sum(0))
    return torch.stack(parts).sum(0)


def capped_offset(scores: Tensor, max_weight: float) -> float:
    """The nu at which sum_i min(max_weight, exp(score_i - nu)) = 1.

    With the k largest scores at the cap, nu_k = log sum of the other exp(score) - log(1 - k max_weight); the least k
    whose next score then stays below the cap is the answer.
    """
    most = min(len(scores) - 1, math.ceil(1 / max_weight) - 1)  # rows at the cap while others are not
    ordered = scores.sort(descending=True)[0]
    rest = ordered.flip(0).logcumsumexp(0).flip(0)[: most + 1]
    left = 1 - max_weight * torch.arange(most + 1, dtype=torch.float64, device=scores.device)
    offsets = rest - left.clamp(min=1e-300).log()
    below = ordered[: most + 1] - offsets <= math.log(max_weight)
    found = below.nonzero()
    return float(offsets[found[0, 0]]) if len(found) else float(offsets[-1])
