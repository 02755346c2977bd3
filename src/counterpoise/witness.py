"""Functions that are the worst in turn: each is the most imbalanced one under weights that balance those before it.

Over f = k'alpha with |alpha| = 1, k the kernels at candidates, the bias of f under weights w is alpha'v with
v = sum_i w_i k(x_i) - mean of k over the population. The largest is |v|, at alpha = v / |v|: the witness of all that
is left. A random sample of the population has |v|^2 = trace(covariance of k) / size on average, so a fraction of that,
at the effective size 1 / sum_i w_i^2 of the weights, says when nothing worth balancing is left.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from counterpoise.arguments import base_shares
from counterpoise.errors import ConvergenceWarning
from counterpoise.fitted_functions import HINGE_STRENGTH
from counterpoise.rows import Rows
from counterpoise.solver import entropy_balance
from counterpoise.tilting import weighted_sum

ENOUGH = 0.1  # of the imbalance that chance leaves in a random sample of the population
RANK = 1e-10  # a witness that earlier ones and a constant explain but for this share of its square is one of them


def witnesses(rows: Rows, mean: Tensor, covariance: Tensor, count: int, base: Tensor | None = None) -> Tensor:
    """(M, J) mixtures of the M kernels in `rows`: uncorrelated over the population, of variance 1, J <= `count`.

    `mean` and `covariance` are those of the kernels over the population, `base` the weights to start from.
    Where nothing is left from the start, the one function is the sum of the kernels, each by its mean.
    """
    start = base_shares(base, rows.n_rows, rows.device)
    share = mean.new_full((rows.n_rows,), 1 / rows.n_rows) if start is None else start
    mixing, values = mean.new_empty(len(mean), 0), mean.new_empty(rows.n_rows, 0)
    for _ in range(count):
        left = weighted_sum(rows, share) - mean
        direction = _uncorrelated(left, mixing, mean, covariance)
        if direction is None or (mixing.shape[1] and is_near(left, covariance, share)):
            break
        mixing = torch.cat([mixing, direction[:, None]], 1)
        values = torch.cat([values, _mixed(rows, direction)[:, None]], 1)
        share = _balanced(values, mean @ mixing, worth(mixing), start)
    return mixing if mixing.shape[1] else _anything(mean, covariance)


def is_near(left: Tensor, covariance: Tensor, share: Tensor) -> bool:
    """|v|^2 <= a tenth of trace(covariance) sum_i w_i^2, what chance would leave."""
    return bool(left @ left <= ENOUGH * covariance.trace() * share.square().sum())


def worth(mixing: Tensor) -> Tensor:
    """|a_1| / |a_j|, at most 1: a function of variance 1 that needs larger coefficients is rougher, and worth less."""
    norms = mixing.square().sum(0).sqrt()
    return (norms[0] / norms).clamp(max=1)


def drawn_rows(rows: Rows, weights: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """The numbers of `count` rows, drawn by their weights, so that each counts the same from then on."""
    shares = base_shares(weights, rows.n_rows, rows.device)
    if shares is None:
        return torch.randint(rows.n_rows, (count,), generator=generator).to(rows.device)
    levels = shares.cumsum(0)
    places = torch.rand(count, generator=generator, dtype=torch.float64).to(rows.device) * levels[-1]
    return torch.searchsorted(levels, places, right=True).clamp(max=rows.n_rows - 1)


def _anything(mean: Tensor, covariance: Tensor) -> Tensor:
    """(M, 1) alpha = the kernels' means: of variance 1, or of length 1 where the population is one point."""
    direction = _uncorrelated(mean, mean.new_empty(len(mean), 0), mean, covariance)
    return (mean / mean.norm() if direction is None else direction)[:, None]


def _uncorrelated(direction: Tensor, mixing: Tensor, mean: Tensor, covariance: Tensor) -> Tensor | None:
    """What earlier mixtures do not explain of this one, with variance 1; None where that is nothing but rounding."""
    square = direction @ covariance @ direction + (direction @ mean) ** 2
    for _ in range(2):  # the second time takes away the rounding of the first
        direction = direction - mixing @ (mixing.T @ (covariance @ direction))
    variance = direction @ covariance @ direction
    return direction / variance.sqrt() if bool(variance > RANK * square) else None


def _mixed(rows: Rows, direction: Tensor) -> Tensor:
    """k(x_i)'alpha for every row."""
    parts = rows.each_chunk(lambda blocks: torch.cat([values @ direction for _, values in blocks]))
    return torch.cat(parts)


def _balanced(values: Tensor, targets: Tensor, worths: Tensor, base: Tensor | None) -> Tensor:
    """The weights that balance the functions so far. Whether they can be balanced is said of the last ones alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = entropy_balance(values, targets, 0.0, HINGE_STRENGTH * worths.cpu(), base)
    weights: Tensor = result.weights
    return weights
