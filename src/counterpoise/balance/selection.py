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

from counterpoise.balance.arguments import base_shares
from counterpoise.balance.box_qp import solve_positive
from counterpoise.balance.exponential_family import weighted_sum
from counterpoise.balance.fitted_functions import HINGE_STRENGTH
from counterpoise.balance.population import Rows
from counterpoise.balance.solver import entropy_balance
from counterpoise.errors import ConvergenceWarning
from counterpoise.threads import one_blas_thread

# How balancing functions are chosen among candidates: regressions, the worst function, eigenfunctions.

RANK = 1e-10  # eigenvalues below this share of the largest are rounding, not functions


def spectral_basis(gram: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """((M, R), eigenvalues S): psi = k V S^-1/2 is orthonormal over the population, leading first; gram = V S V'."""
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = values > RANK * values[0]
    basis = vectors[:, kept] / values[kept].sqrt()
    signed: Tensor = basis * torch.where(mean @ basis < 0, -1.0, 1.0)  # a sign that does not depend on the library
    return signed, values[kept]


def ridge_coefficients(rows: Rows, errors: Tensor, norm: Tensor, ridge: float, weights: Tensor | None = None) -> Tensor:
    """The argmin over alpha of sum_i w_i (e_i - alpha'k(x_i))^2 + ridge * t * alpha' norm alpha, sum w = 1.

    t, the mean diagonal of the left side, makes `ridge` a number without units.
    """
    left, right = torch.zeros_like(norm), norm.new_zeros(len(norm))
    errors = errors.double().to(rows.device)
    share = torch.full_like(errors, 1 / len(errors)) if weights is None else weights.double().to(rows.device)
    share = share / share.sum()
    for part, values in rows.blocks():
        weighted = values.T * share[part]
        left.addmm_(weighted, values)
        right.addmv_(weighted, errors[part])
    return _solve_and_lose(left.addcmul_(norm, ridge * left.trace() / len(right)), right)


def worst_function(rows: Rows, mean: Tensor, norm: Tensor, weights: Tensor | None = None) -> Tensor:
    """The most biased function k'alpha for its norm alpha' norm alpha: alpha = norm^-1 (sum_i w_i k(x_i) - mean)."""
    share = torch.full((rows.n_rows,), 1.0, device=rows.device) if weights is None else weights.to(rows.device)
    share = share.double() / share.double().sum()
    return solve(norm, weighted_sum(rows, share) - mean)


def largest(coefficients: Tensor, count: int) -> Tensor:
    """The positions of the `count` largest |coefficient|, largest first."""
    return coefficients.abs().argsort(descending=True, stable=True)[:count]


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right, for a positive semi-definite matrix that may be singular up to rounding."""
    return _solve_and_lose(matrix.clone(), right)


def _solve_and_lose(matrix: Tensor, right: Tensor) -> Tensor:
    """The same for a matrix that nobody needs any more."""
    matrix.diagonal().add_(1e-12 / len(right) * matrix.trace())
    plain = matrix.device.type == "cpu" and not right.requires_grad
    if plain and matrix.dtype == right.dtype == torch.float64:
        with one_blas_thread():
            values = solve_positive(matrix.numpy().T, right.numpy())
        if values is not None:
            return torch.from_numpy(values)
    solution: Tensor = torch.linalg.solve(matrix, right)
    return solution


ENOUGH = 0.1  # of the imbalance that chance leaves in a random sample of the population
INDEPENDENT_SHARE = (
    1e-10  # a witness that earlier ones and a constant explain but for this share of its square is one of them
)


def greedy_worst_case(rows: Rows, mean: Tensor, covariance: Tensor, count: int, base: Tensor | None = None) -> Tensor:
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
    return direction / variance.sqrt() if bool(variance > INDEPENDENT_SHARE * square) else None


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
