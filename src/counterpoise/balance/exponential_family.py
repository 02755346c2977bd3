"""The exponential family behind entropy balancing: weights w_i ~ q_i exp(-l'h(x_i)), and sums under them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.balance.population import Rows, matrix_rows

Blocks = Iterator[tuple[slice, Tensor]]
BaseOf = Callable[[slice], Tensor | float]
WeightsOf = Callable[[slice, Tensor], Tensor]  # of a block, from its place and its values
CANCELLED = 1e-6  # a variance below this share of the mean square has lost too many of its digits


class ExponentialFamily(Protocol):
    """The exponential family over some rows, wherever they lie: what the solver asks of them."""

    @property
    def n_rows(self) -> int:
        """How many rows."""

    @property
    def n_functions(self) -> int:
        """How many functions."""

    @property
    def targets(self) -> Tensor:
        """What the functions should average to, (functions,)."""

    @property
    def line_passes(self) -> int:
        """How many passes `along` takes."""

    def at(self, dual: Tensor) -> FamilyPoint:
        """The family at a dual vector; one pass over the rows."""

    def along(self, point: FamilyPoint, trial: FamilyPoint, length: float) -> float:
        """The mean of the change of scores from `point` to `trial`, under the weights so far along the way."""

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under the base weights."""

    def sample(self, size: int) -> InMemoryFamily:
        """So many rows, drawn with repetition, in memory."""


@dataclass(frozen=True)
class InMemoryFamily:
    """The rows, what their functions should average to, their base weights and the cap on weights."""

    rows: Rows
    targets: Tensor  # (functions,) mu
    log_base: Tensor | None = None  # (n,) log q, sum q = 1; None for uniform
    max_weight: float | None = None
    line_passes: ClassVar[int] = 0

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return self.rows.n_rows

    @property
    def n_functions(self) -> int:
        """How many functions."""
        return self.rows.n_functions

    def at(self, dual: Tensor) -> FamilyPoint:
        """The scores log q_i - l'h(x_i), the smooth part of the dual and the imbalance, in one pass over the rows."""
        scores = torch.empty(self.rows.n_rows, dtype=torch.float64, device=self.rows.device)
        top, mass, total = tilted_sums(self.rows, dual, self.base, scores)
        if self.max_weight is not None:
            return self._capped(dual, scores)
        return FamilyPoint(self, dual, *normalised(dual, self.targets, top, mass, total), scores)

    def base(self, rows: slice) -> Tensor | float:
        """The logarithm of the base weights of a block."""
        return -math.log(self.rows.n_rows) if self.log_base is None else self.log_base[rows]

    def base_weights(self) -> Tensor:
        """q, (n,)."""
        count = self.rows.n_rows
        uniform = torch.full((count,), 1 / count, dtype=torch.float64, device=self.rows.device)
        return uniform if self.log_base is None else self.log_base.exp()

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under the base weights."""
        base = self.base_weights()
        weight = float(base[0]) if self.log_base is None else None
        return mean_and_deviation(lambda centre: moments(self.rows, lambda part: base[part], centre, weight))

    def sample(self, size: int) -> InMemoryFamily:
        """So many rows, drawn with repetition, in memory."""
        rows = self.rows
        drawn = torch.randint(rows.n_rows, (size,), generator=torch.Generator().manual_seed(0)).to(rows.device)
        base = None if self.log_base is None else self.log_base[drawn].log_softmax(0)
        cap = None if self.max_weight is None else min(1.0, self.max_weight * rows.n_rows / size)
        return InMemoryFamily(matrix_rows(rows.take(drawn)), self.targets, base, cap)

    def _capped(self, dual: Tensor, scores: Tensor) -> FamilyPoint:
        """The same under the cap: the weights are known only after all scores are, so it takes a second pass."""
        assert self.max_weight is not None
        offset = capped_offset(scores, self.max_weight)
        weights = (scores - offset).exp_().clamp_(max=self.max_weight)
        means = weighted_sum(self.rows, weights).cpu()
        smooth = float((weights * scores).sum() - torch.special.xlogy(weights, weights).sum())
        return FamilyPoint(self, dual, offset, smooth + float(dual @ self.targets), means - self.targets, scores)

    def along(self, point: FamilyPoint, trial: FamilyPoint, length: float) -> float:
        """The mean of the change of scores from `point` to `trial`, under the weights so far along the way."""
        change = trial.scores - point.scores
        scores = point.scores + length * change
        if self.max_weight is None:
            return float((scores - torch.logsumexp(scores, 0)).exp_() @ change)
        weights = (scores - capped_offset(scores, self.max_weight)).exp_().clamp_(max=self.max_weight)
        return float(weights @ change)


@dataclass(frozen=True)
class FamilyPoint:
    """The family at one dual vector: F's smooth part log sum_i q_i exp(-l'(h(x_i) - mu)) and tau = sum_i w_i h - mu."""

    tilting: InMemoryFamily
    dual: Tensor  # (functions,)
    offset: float  # log of the sum of exp(scores), or what replaces it under a cap
    smooth: float
    imbalance: Tensor  # (functions,) tau
    scores: Tensor  # (n,)

    @cached_property
    def weights(self) -> Any:
        """(n,), sum 1."""
        weights = (self.scores - self.offset).exp_()
        return weights if self.tilting.max_weight is None else weights.clamp_(max=self.tilting.max_weight)

    def covariance(self, rough: bool = False, transform: Tensor | None = None) -> Tensor:
        """The Hessian of the smooth part: the covariance of h under w (over the rows below the cap).

        `rough`: products in float32, for well conditioned functions; half the time, and enough for a Newton step.
        `transform` (J, R): of T'h instead. Rows are transformed one by one, around their mean: where T is large,
        T' cov T would be the difference of much larger numbers, and not even positive.
        """
        centre = None if transform is None else self.imbalance + self.tilting.targets
        mass, first, second = self._second_moments(centre, torch.float32 if rough else torch.float64, transform)
        result = second - torch.outer(first, first) / mass
        if transform is None and bool((result.diagonal() < (1e-2 if rough else CANCELLED) * second.diagonal()).any()):
            mass, first, second = self._second_moments(first / mass, torch.float64)
            result = second - torch.outer(first, first) / mass
        return result.cpu()

    def _second_moments(
        self, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[float, Tensor, Tensor]:
        """The mass of the rows below the cap and their `second_moments`."""
        cap, weights = self.tilting.max_weight, self.weights
        free = weights if cap is None else weights.masked_fill(self.scores - self.offset >= math.log(cap), 0.0)
        found = second_moments(self.tilting.rows, lambda part, values: free[part], centre, dtype, transform)
        return max(float(free.sum()), 1e-300), *found


def tilted_sums(rows: Rows, dual: Tensor, base: BaseOf, scores: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(top, sum_i m_i, sum_i m_i h(x_i)) with m_i = exp(s_i - top) for the scores s_i = log q_i - l'h(x_i).

    `base` gives log q of a block; the scores are kept where there is room for them.
    """
    negative = -dual.to(rows.device)

    def work(blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        tops, masses, sums = [], [], []
        for part, values in blocks:
            score = torch.mv(values, negative, out=None if scores is None else scores[part])
            score += base(part)
            top = score.max()
            mass = (score - top).exp_()
            tops.append(top)
            masses.append(mass.sum())
            sums.append(mass @ values)
        return joined(tops, masses, sums)

    return joined(*zip(*rows.each_chunk(work), strict=True))


def normalised(dual: Tensor, targets: Tensor, top: Tensor, mass: Tensor, total: Tensor) -> tuple[float, float, Tensor]:
    """(log sum_i exp(s_i), the smooth part of the dual, the imbalance) from `tilted_sums` over all rows."""
    log_partition = float(top + mass.log())
    return log_partition, log_partition + float(dual @ targets), (total / mass).cpu() - targets


def second_moments(
    rows: Rows, weights_of: WeightsOf, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(sum_i w_i h_i, sum_i w_i h_i h_i') of the functions, minus `centre` and times T; products in `dtype`."""
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


def moments(
    rows: Rows, base: Callable[[slice], Tensor], centre: Tensor | None, uniform: float | None
) -> tuple[Tensor, Tensor]:
    """The sums of q_i h(x_i) and of q_i h(x_i)^2, of functions minus `centre`; `uniform`: q where all are the same."""
    middle = None if centre is None else centre.to(rows.device)

    def work(blocks: Blocks) -> Tensor:
        total = torch.zeros(2, rows.n_functions, dtype=torch.float64, device=rows.device)
        for part, values in blocks:
            away = values if middle is None else values - middle
            total[0] += base(part) @ away
            total[1] += base(part) @ away.square() if uniform is None else uniform * _column_squares(away)
        return total

    first, second = torch.stack(rows.each_chunk(work)).sum(0)
    return first, second


def _column_squares(values: Tensor) -> Tensor:
    """The sum of squares of every column."""
    if values.device.type != "cpu":
        return values.square().sum(0)
    return torch.from_numpy(np.einsum("ij,ij->j", values.numpy(), values.numpy()))  # torch's ways hold all squares


def mean_and_deviation(moments_around: Callable[[Tensor | None], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """From sums around 0, and around the mean where sums of squares around 0 have cancelled."""
    mean, second = moments_around(None)
    variance = second - mean.square()
    if bool((variance < CANCELLED * second).any()):
        first, variance = moments_around(mean)
        mean = mean + first
    return mean.cpu(), variance.clamp(min=0).sqrt().cpu()


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """sum_i w_i h(x_i), (functions,)."""

    def work(blocks: Blocks) -> Tensor:
        return torch.stack([weights[part] @ values for part, values in blocks]).sum(0)

    return torch.stack(rows.each_chunk(work)).sum(0)


def joined(tops: Sequence[Tensor], masses: Sequence[Tensor], sums: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(largest score, mass, weighted sum) of parts that each were taken relative to their own largest score."""
    if len(tops) == 1:
        return tops[0], masses[0], sums[0]
    top = torch.stack(list(tops))
    rescale = (top - top.max()).exp()
    return top.max(), rescale @ torch.stack(list(masses)), rescale @ torch.stack(list(sums))


def capped_offset(scores: Tensor, max_weight: float) -> float:
    """The nu at which sum_i min(max_weight, exp(score_i - nu)) = 1.

    With the k largest scores at the cap, nu_k = log sum of the other exp(score) - log(1 - k max_weight); the least k
    whose next score then stays below the cap is the answer.
    """
    most = min(len(scores) - 1, math.ceil(1 / max_weight) - 1)  # rows that can be at the cap while others are not
    ordered = scores.sort(descending=True)[0]
    rest = ordered.flip(0).logcumsumexp(0).flip(0)[: most + 1]
    left = 1 - max_weight * torch.arange(most + 1, dtype=torch.float64, device=scores.device)
    offsets = rest - left.clamp(min=1e-300).log()
    below = ordered[: most + 1] - offsets <= math.log(max_weight)
    found = below.nonzero()
    return float(offsets[found[0, 0]]) if len(found) else float(offsets[-1])
