"""The exponential family behind entropy balancing: weights w_i ~ q_i exp(-l'h(x_i)), and sums under them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from counterpoise.rows import Rows

Blocks = Iterator[tuple[slice, Tensor]]
NARROW = 32  # functions up to which all products of a block take less time than its squares
CANCELLED = 1e-6  # a variance below this share of the mean square has lost too many of its digits


@dataclass(frozen=True)
class Tilting:
    """The rows, what their functions should average to, their base weights and the cap on weights."""

    rows: Rows
    targets: Tensor  # (functions,) mu
    log_base: Tensor | None = None  # (n,) log q, sum q = 1; None for uniform
    max_weight: float | None = None

    def at(self, dual: Tensor) -> Point:
        """The scores log q_i - l'h(x_i), the smooth part of the dual and the imbalance, in one pass over the rows."""
        scores = torch.empty(self.rows.n_rows, dtype=torch.float64, device=self.rows.device)
        negative = -dual.to(self.rows.device)

        def work(blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
            tops, masses, sums = [], [], []
            for part, values in blocks:
                score = torch.mv(values, negative, out=scores[part])
                score += self.base(part)
                top = score.max()
                mass = (score - top).exp_()
                tops.append(top)
                masses.append(mass.sum())
                sums.append(mass @ values)
            return _joined(tops, masses, sums)

        top, mass, total = _joined(*zip(*self.rows.each_chunk(work), strict=True))
        if self.max_weight is not None:
            return self._capped(dual, scores)
        log_partition = float(top + mass.log())
        imbalance = (total / mass).cpu() - self.targets
        return Point(self, dual, scores, log_partition, log_partition + float(dual @ self.targets), imbalance)

    def base(self, rows: slice) -> Tensor | float:
        """The logarithm of the base weights of a block."""
        return -math.log(self.rows.n_rows) if self.log_base is None else self.log_base[rows]

    def base_weights(self) -> Tensor:
        """q, (n,)."""
        count = self.rows.n_rows
        uniform = torch.full((count,), 1 / count, dtype=torch.float64, device=self.rows.device)
        return uniform if self.log_base is None else self.log_base.exp()

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under the base weights.

        One pass over all rows, and a second one around the mean where sums of squares around 0 have cancelled.
        """
        base, uniform = self.base_weights(), self.log_base is None
        mean, second = _moments(self.rows, base, None, uniform)
        variance = second - mean.square()
        if bool((variance < CANCELLED * second).any()):
            mean, variance = _moments(self.rows, base, mean, uniform)
        return mean.cpu(), variance.clamp(min=0).sqrt().cpu()

    def _capped(self, dual: Tensor, scores: Tensor) -> Point:
        """The same under the cap: the weights are known only after all scores are, so it takes a second pass."""
        assert self.max_weight is not None
        offset = capped_offset(scores, self.max_weight)
        weights = (scores - offset).exp_().clamp_(max=self.max_weight)
        means = weighted_sum(self.rows, weights).cpu()
        smooth = float((weights * scores).sum() - torch.special.xlogy(weights, weights).sum())
        return Point(self, dual, scores, offset, smooth + float(dual @ self.targets), means - self.targets)

    def line(self, scores: Tensor, change: Tensor) -> tuple[float, float]:
        """(smooth part without l'mu, mean of -change) at given scores: what a search along a line needs."""
        if self.max_weight is None:
            log_partition = torch.logsumexp(scores, 0)
            return float(log_partition), float((scores - log_partition).exp_() @ change)
        weights = (scores - capped_offset(scores, self.max_weight)).exp_().clamp_(max=self.max_weight)
        value = (weights * scores).sum() - torch.special.xlogy(weights, weights).sum()
        return float(value), float(weights @ change)


@dataclass(frozen=True)
class Point:
    """The family at one dual vector: F's smooth part log sum_i q_i exp(-l'(h(x_i) - mu)) and tau = sum_i w_i h - mu."""

    tilting: Tilting
    dual: Tensor  # (functions,)
    scores: Tensor  # (n,)
    offset: float  # log of the sum of exp(scores), or what replaces it under a cap
    smooth: float
    imbalance: Tensor  # (functions,) tau

    @cached_property
    def weights(self) -> Tensor:
        """(n,), sum 1."""
        weights = (self.scores - self.offset).exp_()
        return weights if self.tilting.max_weight is None else weights.clamp_(max=self.tilting.max_weight)

    def covariance(self, rough: bool = False, transform: Tensor | None = None) -> Tensor:
        """The Hessian of the smooth part: the covariance of h under w (over the rows below the cap).

        `rough`: products in float32, for well conditioned functions; half the time, and enough for a Newton step.
        `transform` (J, R): of T'h instead. Rows are transformed one by one, around their mean: where T is large,
        T' cov T would be the difference of much larger numbers, and not even positive.
        """
        cap, weights = self.tilting.max_weight, self.weights
        free = weights if cap is None else weights.masked_fill(self.scores - self.offset >= math.log(cap), 0.0)
        centre = None if transform is None else (self.imbalance + self.tilting.targets).to(free)
        first, second = self._second_moments(free, centre, torch.float32 if rough else torch.float64, transform)
        mass = max(float(free.sum()), 1e-300)
        result = second - torch.outer(first, first) / mass
        if transform is None and bool((result.diagonal() < (1e-2 if rough else CANCELLED) * second.diagonal()).any()):
            first, second = self._second_moments(free, first / mass, torch.float64)
            result = second - torch.outer(first, first) / mass
        return result.cpu()

    def _second_moments(
        self, weights: Tensor, centre: Tensor | None, dtype: torch.dtype, transform: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(sum_i w_i h_i, sum_i w_i h_i h_i') of the functions, minus `centre` and times T; products in `dtype`."""
        root, rows = weights.sqrt()[:, None].to(dtype), self.tilting.rows
        count = rows.n_functions if transform is None else transform.shape[1]
        mixing = None if transform is None else transform.to(rows.device)

        def work(blocks: Blocks) -> tuple[Tensor, Tensor]:
            second = torch.zeros(count, count, dtype=dtype, device=rows.device)
            first = torch.zeros(count, dtype=dtype, device=rows.device)
            for part, values in blocks:
                centred = values if centre is None else values - centre
                scaled = (centred if mixing is None else centred @ mixing).to(dtype) * root[part]
                second.addmm_(scaled.T, scaled)
                first += root[part, 0] @ scaled
            return first.double(), second.double()

        first, second = (torch.stack(sums).sum(0) for sums in zip(*rows.each_chunk(work), strict=True))
        return first, second


def _moments(rows: Rows, weights: Tensor, centre: Tensor | None, uniform: bool) -> tuple[Tensor, Tensor]:
    """The mean of h(x_i), and that of (h(x_i) - centre)^2, under weights of sum 1."""
    by_product = uniform and rows.n_functions <= NARROW

    def work(blocks: Blocks) -> Tensor:
        total = torch.zeros(2, rows.n_functions, dtype=torch.float64, device=rows.device)
        for part, values in blocks:
            away = values if centre is None else values - centre
            total[0] += weights[part] @ away
            total[1] += weights[0] * (away.T @ away).diagonal() if by_product else weights[part] @ away.square()
        return total

    first, second = torch.stack(rows.each_chunk(work)).sum(0)
    return first if centre is None else centre + first, second


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """sum_i w_i h(x_i), (functions,)."""

    def work(blocks: Blocks) -> Tensor:
        return torch.stack([weights[part] @ values for part, values in blocks]).sum(0)

    return torch.stack(rows.each_chunk(work)).sum(0)


def _joined(tops: Sequence[Tensor], masses: Sequence[Tensor], sums: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
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
