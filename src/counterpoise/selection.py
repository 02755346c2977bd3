"""How balancing functions are chosen among candidates: regressions, the worst function, eigenfunctions."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.lapack import solve_positive
from counterpoise.rows import Rows
from counterpoise.threads import one_blas_thread
from counterpoise.tilting import weighted_sum

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
