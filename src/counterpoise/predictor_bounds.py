"""The constants of Theorem 2's bounds, measured for a predictor: its norm in a kernel's space, its risk, its bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from counterpoise.arguments import as_float64
from counterpoise.bounds import LOG_LOSS, GeneralizationBound, PredictorNorm, generalization_bound
from counterpoise.errors import ConfigError, DataError, check_number
from counterpoise.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.penalties import whitening
from counterpoise.population import ObservedPairs, Pairs, kernel_rows
from counterpoise.selection import ridge_coefficients

Codes = NDArray[np.int64]
PairValues = Callable[[Codes, Codes], Any] | Any  # of (user codes, item codes), or a |U| x |I| table

INTERPOLATED = 2_000  # up to this many pairs, D is interpolated; beyond, a regression on centres
MEASURED = 200_000  # beyond this many pairs, means over D are means over so many uniform pairs


def predictor_norm(
    logits: PairValues,
    pairs: Pairs,
    kernel: Kernel | None = None,
    *,
    observed: ObservedPairs | None = None,
    weights: Any = None,
    n_centres: int = 500,
    ridge: float = 1e-6,
    interpolate_up_to: int = INTERPOLATED,
    seed: int = 0,
) -> PredictorNorm:
    """The norm of a predictor f, given by its logits on pairs, in the space of a kernel over pair features.

    Up to `interpolate_up_to` pairs: of the function of least norm that equals f on D, M^2 = f'K^-1 f. It is the norm
    that matters, since nothing but f on D enters the theorem. Directions that K has lost to rounding are left out.
    Beyond: of g = sum_j alpha_j k(., c_j) at `n_centres` pairs drawn from D, alpha from the ridge regression of f on D
    (`ridge` relative to the mean of the diagonal), M^2 = alpha'K alpha. A smaller ridge gives a larger norm and a
    smaller residual f - g. Every pair (M, residual) makes a bound; neither says anything without the other.
    A predictor with parameters for each user and item is no smooth function of features: expect one to be large.

    `logits`: a function of (user codes, item codes), or a |U| x |I| table. With `observed` pairs and their `weights`
    (any scale) the weighted residual is measured too.
    """
    _check_settings(n_centres, ridge, interpolate_up_to)
    if weights is not None and observed is None:
        raise ConfigError("`observed` must be given with `weights`, got None. The weights belong to those pairs.")
    pairs = Pairs(pairs.users.double(), pairs.items.double())
    n_pairs, generator = len(pairs.users) * len(pairs.items), torch.Generator().manual_seed(seed)
    kernel = (kernel or Gaussian()).with_bandwidth(pairs.draw(2 * BANDWIDTH_PAIRS, generator))
    measured, interpolated = _all_pairs(pairs, generator), n_pairs <= interpolate_up_to
    centres = measured.features(slice(None)) if interpolated else pairs.draw(n_centres, generator)
    between, values = kernel(centres, centres), _at(logits, measured, "logits")
    if interpolated:
        basis = torch.from_numpy(whitening(between.cpu().numpy())).to(between)
        alpha = basis @ (basis.T @ values)
    else:
        alpha = ridge_coefficients(kernel_rows(kernel, centres, measured), values, between, ridge)
    residual = (values - _combined(kernel, centres, alpha, measured)).abs()
    weighted = None
    if observed is not None:
        observed = pairs.at(observed.users, observed.items)
        gap = (_at(logits, observed, "logits") - _combined(kernel, centres, alpha, observed)).abs()
        weighted = float(_shares(weights, observed) @ gap)
    return PredictorNorm(
        norm=math.sqrt(max(0.0, float(alpha @ between @ alpha))),
        interpolated=interpolated,
        n_pairs=n_pairs,
        n_centres=len(centres),
        n_measured=measured.n_rows,
        residual_mean=float(residual.mean()),
        residual_rms=float(residual.square().mean().sqrt()),
        residual_max=float(residual.max()),
        residual_weighted=weighted,
    )


def predictor_bound(
    logits: PairValues,
    labels: Any,
    observed: ObservedPairs,
    weights: Any,
    *,
    ideal_loss: float,
    kernel: Kernel | None = None,
    imputed_errors: PairValues | None = None,
    eta: float = 0.05,
    **options: Any,
) -> GeneralizationBound:
    """The bound on the ideal log loss of a predictor, with its constants measured.

    `labels` and `weights` (any scale, from balancing or inverse propensities) belong to the `observed` pairs; `logits`
    and `options` are those of `predictor_norm`. With `imputed_errors`, in the form of the logits, the risk and the
    bound are the doubly robust ones. `ideal_loss` gives the bias: the truth of a simulation, or an estimate from
    uniformly collected ratings. Nothing in a biased log alone tells it.
    """
    check_number("ideal_loss", ideal_loss, at_least=0)
    found = predictor_norm(logits, observed.pairs, kernel, observed=observed, weights=weights, **options)
    shares, given = _shares(weights, observed), torch.from_numpy(as_float64(labels, "labels")).to(observed.device)
    if given.shape != (observed.n_rows,) or not bool(((given >= 0) & (given <= 1)).all()):
        raise DataError(f"`labels` must be {observed.n_rows} numbers in [0, 1], got others or {len(given)} of them.")
    errors = binary_cross_entropy_with_logits(_at(logits, observed, "logits"), given, reduction="none")
    risk = float(shares @ errors)
    if imputed_errors is not None:
        population = _all_pairs(observed.pairs, torch.Generator().manual_seed(0))
        everywhere = _at(imputed_errors, population, "imputed_errors")
        _check_imputed(everywhere, LOG_LOSS["error_at_zero"] + found.norm)
        risk += float(everywhere.mean() - shares @ _at(imputed_errors, observed, "imputed_errors"))
    return generalization_bound(
        risk=risk,
        bias=risk - ideal_loss,
        largest_weight=found.n_pairs * float(shares.max()),
        norm=found.norm,
        n_pairs=found.n_pairs,
        eta=eta,
        doubly_robust=imputed_errors is not None,
        residual=found.residual_mean,
        weighted_residual=found.residual_weighted or 0.0,
        predictor=found,
    )


def _check_settings(n_centres: int, ridge: float, interpolate_up_to: int) -> None:
    check_number("n_centres", n_centres, at_least=1, integer=True)
    check_number("ridge", ridge, above=0)
    check_number("interpolate_up_to", interpolate_up_to, at_least=0, integer=True)


def _check_imputed(errors: Tensor, largest: float) -> None:
    low, high = float(errors.min()), float(errors.max())
    if low < 0 or high > largest:
        raise DataError(
            f"`imputed_errors` must be in [0, E0 + L M B = {largest:.4g}], got {low:.4g} to {high:.4g}. "
            "The bound holds for such only."
        )


def _all_pairs(pairs: Pairs, generator: torch.Generator) -> ObservedPairs:
    """All of D, or so many uniform pairs of it as are measured."""
    total = len(pairs.users) * len(pairs.items)
    chosen = torch.arange(total) if total <= MEASURED else torch.randint(total, (MEASURED,), generator=generator)
    chosen = chosen.to(pairs.users.device)
    return pairs.at(chosen // len(pairs.items), chosen % len(pairs.items))


def _at(source: PairValues, points: ObservedPairs, name: str) -> Tensor:
    """The values of a function or a table at some pairs."""
    users, items = points.users.cpu().numpy(), points.items.cpu().numpy()
    if callable(source):
        values = as_float64(source(users, items), name)
    else:
        table, shape = as_float64(source, name), (len(points.pairs.users), len(points.pairs.items))
        if table.shape != shape:
            raise DataError(f"`{name}` must have the shape {shape} of all pairs, got {table.shape}.")
        values = table[users, items]
    if values.shape != users.shape:
        raise DataError(f"`{name}` must give one number for each of {len(users)} pairs, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise DataError(f"`{name}` must be finite, got {values[~np.isfinite(values)][0]}.")
    return torch.from_numpy(values).to(points.device)


def _combined(kernel: Kernel, centres: Tensor, alpha: Tensor, points: ObservedPairs) -> Tensor:
    """g = sum_j alpha_j k(., c_j) at some pairs."""
    rows = kernel_rows(kernel, centres, points)
    return torch.cat([values @ alpha for _, values in rows.blocks()])


def _shares(weights: Any, observed: ObservedPairs) -> Tensor:
    """The weights over their sum; equal where none are given."""
    values = np.ones(observed.n_rows) if weights is None else as_float64(weights, "weights")
    if values.shape != (observed.n_rows,) or not (values >= 0).all() or not 0 < values.sum() < math.inf:
        raise DataError(f"`weights` must be {observed.n_rows} numbers >= 0, not all 0, got others or {len(values)}.")
    return torch.from_numpy(values / values.sum()).to(observed.device)
