"""What balance costs: the effective sample size that is left at each imbalance that is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from counterpoise.balancer import _Balancer
from counterpoise.diagnostics import effective_sample_size
from counterpoise.errors import ConfigError, check_number
from counterpoise.population import Sample
from counterpoise.results import BalanceResult

TOLERANCES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class FrontierPoint:
    """The weights of one tolerance; the imbalances are of the balanced functions, in standard deviations."""

    tolerance: float
    rows: int
    effective_sample_size: float
    rms_imbalance: float
    max_imbalance: float
    given_up: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def balance_frontier(balancer: Any, tolerances: Iterable[float] = TOLERANCES) -> list[FrontierPoint]:
    """The same rows and functions balanced again at each tolerance, in ascending order.

    `balancer`: a fitted KernelBalancer or MomentBalancer; it is left as it is.
    """
    if not isinstance(balancer, _Balancer):
        raise ConfigError(
            f"`balancer` must be a fitted KernelBalancer or MomentBalancer, got {type(balancer).__name__}."
        )
    check_is_fitted(balancer, "weights_")
    if balancer._functions.matrix is not None:
        raise ConfigError("`select` must not be 'worst_case': that has no tolerance. Use 'spectral'.")
    chosen = sorted(set(tolerances))
    for tolerance in chosen:
        check_number("tolerances", tolerance, at_least=0, advice="They are in standard deviations.")
    return [_point(tolerance, _balanced(balancer, tolerance)) for tolerance in chosen]


def _balanced(balancer: Any, tolerance: float) -> BalanceResult:
    raw, _, base, _ = balancer._samples
    observed = Sample((raw.matrix.double() - balancer._mean) / balancer._deviation)
    options = {name: getattr(balancer, name) for name in ("max_weight", "accuracy", "max_passes")}
    result: BalanceResult = balancer._functions.balance(
        observed, tolerance, balancer.strength, base_weights=base, **options
    )
    return result


def _point(tolerance: float, result: BalanceResult) -> FrontierPoint:
    sizes = abs(result.imbalance) / result.scale
    return FrontierPoint(
        tolerance=float(tolerance),
        rows=len(result.weights),
        effective_sample_size=effective_sample_size(result.weights),
        rms_imbalance=float(np.sqrt(np.mean(sizes**2))),
        max_imbalance=float(sizes.max()),
        given_up=int(result.given_up.sum()),
    )
