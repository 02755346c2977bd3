"""The exponential family behind entropy balancing: weights w_i ~ q_i exp(-l'h(x_i)), and sums under them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from counterpoise.rows import Rows


@dataclass(frozen=True)
class Tilting:
    """The rows, what their functions should average to, their base weights and the cap on weights."""

    rows: Rows
    targets: Tensor  # (functions,) mu
    log_base: Tensor | None = None  # (n,) log q, sum q = 1; None for uniform
    max_weight: float | None = None

    def scores(self, dual: Tensor, rows: slice, values: Tensor) -> Tensor:
        """The scores log q_i - l'h(x_i) for a block."""
        base = -math.log(self.rows.n_rows) if self.log_base is None else self.log_base[rows]
        return base - values @ dual

    def at(self, dual: Tensor) -> Point:
        """The weights' scores, the smooth part of the dual and the imbalance at `dual`, in one pass over the rows."""
        scores = torch.empty(self.rows.n_rows, dtype=torch.float64, device=self.rows.device)
        on_device = dual.to(self.rows.device)
        tops, masses, sums = [], [], []
        for part, values in self.rows.blocks():
            score = self.scores(on_device, part, values)
            scores[part] = score
            top = score.max()
            mass = (score - top).exp_()
            tops.append(top)
            masses.append(mass.sum())
            sums.append(mass @ values)
        if self.max_weight is not None:
            return self._capped(dual, scores)
        top = torch.stack(tops)
        rescale = (top - top.max()).exp()
        total = rescale @ torch.stack(masses)
        log_partition = float(top.max() + total.log())
        means = (rescale @ torch.stack(sums) / total).cpu()
        return Point(
            self, dual, scores, log_partition, log_partition + float(dual @ self.targets), means - self.targets
        )

    def base_moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation of every function under the base weights."""
        base = torch.full((), 1 / self.rows.n_rows) if self.log_base is None else self.log_base.exp()
        shift, first, second = None, torch.zeros(()), torch.zeros(())
        for part, values in self.rows.blocks():
            shift = values.mean(0) if shift is None else shift  # against cancellation where the mean is large
            values = values - shift
            weights = base.expand(len(values)).to(values) if base.ndim == 0 else base[part]
            first, second = first + weights @ values, second + weights @ values.square_()
        assert shift is not None
        return (shift + first).cpu(), (second - first**2).clamp(min=0).sqrt().cpu()

    def _capped(self, dual: Tensor, scores: Tensor) -> Point:
        """The same under the cap: the weights are known only after all scores are, so it takes a second pass."""
        assert self.max_weight is not None
        offset = capped_offset(scores, self.max_weight)
        weights = (scores - offset).exp_().clamp_(max=self.max_weight)
        means = sum((weights[part] @ values for part, values in self.rows.blocks()), torch.zeros(())).cpu()
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

    def covariance(self) -> Tensor:
        """The Hessian of the smooth part: the covariance of h under w (over the rows below the cap)."""
        cap, weights = self.tilting.max_weight, self.weights
        free = weights if cap is None else weights.masked_fill(self.scores - self.offset >= math.log(cap), 0.0)
        root = free.sqrt()[:, None]
        size = self.tilting.rows.n_functions
        centre = (self.imbalance + self.tilting.targets).to(root.device)
        second = torch.zeros(size, size, dtype=torch.float64, device=root.device)
        first = torch.zeros(size, dtype=torch.float64, device=root.device)
        for part, values in self.tilting.rows.blocks():
            scaled = (values - centre).mul_(root[part])
            second.addmm_(scaled.T, scaled)
            if cap is not None:
                first += root[part, 0] @ scaled
        mass = float(free.sum())
        return (second - torch.outer(first, first) / mass if mass > 0 else second).cpu()


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
