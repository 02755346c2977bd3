"""Cholesky factors by LAPACK itself, which on a few hundred rows takes a third of the time of torch's way to it.

scipy comes with the first call: whoever only adds up rows, such as a worker on shards, starts without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def cholesky(matrix: Vector) -> Vector | None:
    """The upper factor of a positive definite matrix; None if it is not."""
    from scipy.linalg.lapack import dpotrf

    factor, failed = dpotrf(matrix)
    return factor if failed == 0 and np.isfinite(factor[-1, -1]) else None


def solve_factored(factor: Vector, right: Vector) -> Vector:
    """matrix^-1 right, from the upper factor."""
    from scipy.linalg.lapack import dpotrs

    return dpotrs(factor, right)[0]  # type: ignore[no-any-return]


def solve_positive(matrix: Vector, right: Vector) -> Vector | None:
    """matrix^-1 right for a positive definite matrix, of which the lower half is read; None if it is not.

    From the upper half OpenBLAS takes a quarter longer.
    """
    from scipy.linalg.lapack import dposv

    _, solution, failed = dposv(matrix, right, lower=True)
    return solution if failed == 0 else None
