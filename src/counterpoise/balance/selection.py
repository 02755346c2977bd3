"""Rules that choose balancing functions among candidate kernels, one pure function each.

`spectral`, `adaptive`, `worst_case_matrix` and `greedy_worst_case`; "random" takes the first candidates, which are
drawn at random. k are the kernels at M candidates, `gram` is the population mean of k k', `mean` that of k.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from counterpoise.balance.box_qp import solve_positive
from counterpoise.balance.exponential_family import Rows, weighted_sum
from counterpoise.balance.penalties import HINGE_STRENGTH
from counterpoise.balance.population import base_shares
from counterpoise.balance.solver import entropy_balance
from counterpoise.errors import ConvergenceWarning
from counterpoise.threads import one_blas_thread

MIN_EIGENVALUE_SHARE = 1e-10  # eigenvalues below this share of the largest are rounding, not functions
MAX_CHANCE_SHARE = 0.1  # of the imbalance of a random sample of the population, at which the greedy rule stops; chosen
# among 1, 0.3, 0.1 and 0.03 on seeds 300 to 315 of benchmarks/selection.py --worlds
MIN_NEW_VARIANCE = 1e-10  # share of a function's mean square that those before it and a constant must leave unexplained


def spectral(gram: Tensor, mean: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(mixing (M, J), relative strengths (J,)) of the leading eigenfunctions, J <= `count`.

    psi = k V S^-1/2 is orthonormal over the population, with gram = V S V'; strengths are sqrt(s_j / s_0).
    """
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = values > MIN_EIGENVALUE_SHARE * values[0]
    values, basis = values[kept], vectors[:, kept] / values[kept].sqrt()
    basis = basis * torch.where(mean @ basis < 0, -1.0, 1.0)  # a sign that does not depend on the library
    return basis[:, :count].contiguous(), (values / values[0]).sqrt()[:count]


def adaptive(
    rows: Rows, errors: Tensor, norm: Tensor, ridge: float, count: int, weights: Tensor | None = None
) -> Tensor:
    """The positions of the `count` kernels with the largest |alpha| of `ridge_coefficients`, largest first."""
    alpha = ridge_coefficients(rows, errors, norm, ridge, weights)
    return alpha.abs().argsort(descending=True, stable=True)[:count]


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
    return _solve_in_place(left.addcmul_(norm, ridge * left.trace() / len(right)), right)


def worst_case_matrix(gram: Tensor, between: Tensor, ridge: float) -> Tensor:
    """A = G + ridge * mean(diag G) * K: the squared norm alpha'A alpha of k'alpha in L2 plus an RKHS penalty."""
    return gram + ridge * gram.diagonal().mean() * between


def worst_case_variance(covariance: Tensor, matrix: Tensor) -> float:
    """trace(A^-1 C): n times the mean of v'A^-1 v, the squared bias of the worst function, over random samples of n."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > MIN_EIGENVALUE_SHARE * values[-1]
    basis = vectors[:, kept]
    return float(((basis * (covariance @ basis)).sum(0) / values[kept]).sum())


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix^-1 right, for a positive semi-definite matrix that may be singular up to rounding."""
    return _solve_in_place(matrix.clone(), right)


def _solve_in_place(matrix: Tensor, right: Tensor) -> Tensor:
    matrix.diagonal().add_(1e-12 / len(right) * matrix.trace())
    on_cpu = matrix.device.type == "cpu" and not right.requires_grad
    if on_cpu and matrix.dtype == right.dtype == torch.float64:
        with one_blas_thread():
            values = solve_positive(matrix.numpy().T, right.numpy())
        if values is not None:
            return torch.from_numpy(values)
    return torch.linalg.solve(matrix, right)  # type: ignore[no-any-return]


def greedy_worst_case(
    rows: Rows, mean: Tensor, covariance: Tensor, count: int, base: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(mixing (M, J), relative strengths (J,)) of functions, each the worst under weights balancing those before.

    Over f = k'alpha with |alpha| = 1 the bias of f under weights w is alpha'v, v = sum_i w_i k(x_i) - mean of k over
    the population; the largest is |v|, at alpha = v / |v|. That function is made uncorrelated with those before it and
    of variance 1, it is balanced together with them, and v is taken again under the new weights, `count` times at most.
    A random sample of the population has |v|^2 = trace(covariance of k) / size on average; the rule stops when
    MAX_CHANCE_SHARE of that is left at the effective size 1 / sum_i w_i^2.

    `mean` and `covariance` are those of the kernels over the population, `base` the weights to start from. Where no
    function is left from the start, the one function is the sum of the kernels, each by its mean.
    """
    start = base_shares(base, rows.n_rows, rows.device)
    share = mean.new_full((rows.n_rows,), 1 / rows.n_rows) if start is None else start
    mixing, values = mean.new_empty(len(mean), 0), mean.new_empty(rows.n_rows, 0)
    for _ in range(count):
        left = weighted_sum(rows, share) - mean
        direction = _uncorrelated(left, mixing, mean, covariance)
        if direction is None or (mixing.shape[1] and below_chance(left, covariance, share)):
            break
        mixing = torch.cat([mixing, direction[:, None]], 1)
        values = torch.cat([values, combination(rows, direction)[:, None]], 1)
        share = _balanced(values, mean @ mixing, smoothness(mixing), start)
    if not mixing.shape[1]:
        direction = _uncorrelated(mean, mixing, mean, covariance)
        mixing = (mean / mean.norm() if direction is None else direction)[:, None]  # None: the population is one point
    return mixing, smoothness(mixing)


def below_chance(left: Tensor, covariance: Tensor, share: Tensor) -> bool:
    """|v|^2 <= MAX_CHANCE_SHARE trace(covariance) sum_i w_i^2, a share of what a random sample has."""
    return bool(left @ left <= MAX_CHANCE_SHARE * covariance.trace() * share.square().sum())


def smoothness(mixing: Tensor) -> Tensor:
    """|a_1| / |a_j|, at most 1: a function of variance 1 that needs larger coefficients is rougher."""
    norms = mixing.square().sum(0).sqrt()
    return (norms[0] / norms).clamp(max=1)


def combination(rows: Rows, coefficients: Tensor) -> Tensor:
    """k(x_i)'alpha for every row."""
    return torch.cat(rows.each_chunk(lambda blocks: torch.cat([values @ coefficients for _, values in blocks])))


def draw_rows(rows: Rows, weights: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """The numbers of `count` rows, drawn by their weights, so that each counts the same from then on."""
    shares = base_shares(weights, rows.n_rows, rows.device)
    if shares is None:
        return torch.randint(rows.n_rows, (count,), generator=generator).to(rows.device)
    levels = shares.cumsum(0)
    places = torch.rand(count, generator=generator, dtype=torch.float64).to(rows.device) * levels[-1]
    return torch.searchsorted(levels, places, right=True).clamp(max=rows.n_rows - 1)


def _uncorrelated(direction: Tensor, mixing: Tensor, mean: Tensor, covariance: Tensor) -> Tensor | None:
    """The residual of a mixture on earlier ones, with variance 1; None where that is only rounding."""
    square = direction @ covariance @ direction + (direction @ mean) ** 2
    for _ in range(2):  # the second time removes the rounding of the first
        direction = direction - mixing @ (mixing.T @ (covariance @ direction))
    variance = direction @ covariance @ direction
    return direction / variance.sqrt() if bool(variance > MIN_NEW_VARIANCE * square) else None


def _balanced(values: Tensor, targets: Tensor, relative: Tensor, base: Tensor | None) -> Tensor:
    """The weights that balance the functions so far; only the final balancing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = entropy_balance(values, targets, 0.0, HINGE_STRENGTH * relative.cpu(), base)
    return result.weights  # type: ignore[no-any-return]
