"""Balancing for any causal user, in scikit-learn's style: an observed sample, a population, weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import comb
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from counterpoise.arguments import as_matrix
from counterpoise.balance_table import FeatureBalance, balance_table, known_mean_balance
from counterpoise.errors import ConfigError, DataError, check_choice
from counterpoise.fitted_functions import FittedFunctions, check_prices
from counterpoise.functions import Functions, KernelFunctions, Moments
from counterpoise.kernels import KERNELS
from counterpoise.population import Sample
from counterpoise.results import BalanceResult
from counterpoise.two_samples import Standardised, population_mass
from counterpoise.words import KernelName, SelectForSamples

FLOATS = [np.float64, np.float32]


class _Balancer(BaseEstimator):  # type: ignore[misc]
    """Shared by both balancers: `fit` learns `weights_`, `result_` and what `predict_weights` needs."""

    weights_: NDArray[np.float64]
    result_: BalanceResult

    def fit(
        self,
        X_observed: ArrayLike,
        X_population: ArrayLike | None = None,
        target_means: ArrayLike | None = None,
        *,
        base_weights: ArrayLike | None = None,
        population_weights: ArrayLike | None = None,
    ) -> Self:
        """Find weights on the rows of `X_observed` under which it resembles `X_population`.

        `target_means` takes the place of a population whose means only are known (`MomentBalancer`); a dict, a Series
        or a frame of them is matched by feature names.
        """
        if (X_population is None) == (target_means is None):
            raise DataError("give either `X_population` or `target_means`: what should the observed rows resemble?")
        if target_means is not None and population_weights is not None:
            raise DataError(
                "`population_weights` must be None where `target_means` are given: these are weighted already."
            )
        check_prices(self.tolerance, self.strength)
        observed = self._numbers(X_observed, reset=True)
        if X_population is not None:
            population = self._numbers(X_population)
            weights = population_mass(population_weights, len(population))
        else:
            population, weights = self._known_means(observed, target_means), None
            target_means = aligned_means(target_means, getattr(self, "feature_names_in_", None))
        scaled = Standardised.of(observed, population, weights)
        self._learn(scaled, self._fitted(scaled, target_means, base_weights), base_weights)
        self._samples = Sample(observed), Sample(population, weights), base_weights, target_means
        return self

    def predict_weights(self, X_new: ArrayLike) -> NDArray[np.float64]:
        """The weight w(x) = exp(-l'h(x) - offset) / n of new rows, on the scale of `weights_`.

        New rows have no base weights: theirs count as 1 / n, the uniform ones. After a fit with `base_weights` q (sum
        1), a fitted row has n q_i times what is predicted for its features.
        """
        check_is_fitted(self, "weights_")
        rows = (self._numbers(X_new).double() - self._mean) / self._deviation
        scores = self._functions.values(rows) @ torch.from_numpy(self.result_.dual) + self.result_.offset
        weights: NDArray[np.float64] = (torch.exp(-scores) / len(self.weights_)).numpy()
        return weights if self.max_weight is None else weights.clip(max=self.max_weight)

    def balance_table(self) -> list[FeatureBalance]:
        """Every feature before and after, against the population."""
        check_is_fitted(self, "weights_")
        observed, population, base, means = self._samples
        names = list(getattr(self, "feature_names_in_", [f"x{column}" for column in range(population.n_columns)]))
        if means is None:
            return balance_table(observed, self.weights_, population, names, base)
        before = np.ones(observed.n_rows) if base is None else np.asarray(base, dtype=np.float64)
        columns = zip(names, observed.matrix.numpy().T, np.ravel(means)[: len(names)], strict=True)
        return [known_mean_balance(name, values, before, self.weights_, float(mean)) for name, values, mean in columns]

    def _recipe(self) -> Functions:
        raise NotImplementedError

    def _known_means(self, observed: torch.Tensor, target_means: Any) -> torch.Tensor:
        raise ConfigError(
            f"`target_means` must be None for {type(self).__name__}: kernels need the population itself. "
            "Give `X_population`, or use MomentBalancer."
        )

    def _fitted(self, scaled: Standardised, target_means: Any, base_weights: Any) -> FittedFunctions:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return scaled.choose(self._recipe(), base_weights, seed)

    def _learn(self, scaled: Standardised, fitted: FittedFunctions, base_weights: Any) -> None:
        self.result_ = fitted.balance(
            scaled.observed,
            self.tolerance,
            self.strength,
            base_weights=base_weights,
            max_weight=self.max_weight,
            accuracy=self.accuracy,
            max_passes=self.max_passes,
        )
        self.weights_ = self.result_.weights.numpy()
        self._mean, self._deviation, self._functions = scaled.mean, scaled.deviation, fitted

    def _numbers(self, X: Any, reset: bool = False) -> torch.Tensor:
        return as_matrix("X", validate_data(self, X, reset=reset, dtype=FLOATS))


class KernelBalancer(_Balancer):
    """Balances kernel functions: all smooth functions of the features, without naming any.

    `n_functions`, `select`, `candidates`, `ridge`: see `KernelFunctions`; without a recommender there is no error to
    adapt to, so `select` is "spectral", "witness", "random", "worst_case" or "worst_case_top". "witness" takes
    `n_functions` at most, and stops by itself. "worst_case" balances all `candidates` at once: it has no use for
    `tolerance` and, but for the default of `candidates`, for `n_functions`.
    `kernel` "gaussian" or "exponential" and its `bandwidth` act on features standardised over the population.
    `tolerance`: the imbalance allowed, in population standard deviations of each function. `strength`: what one
    standard deviation of imbalance is worth; a function that costs more is given up (None: 100, or 10,000 for
    "worst_case"). With "spectral" that is the price of the leading eigenfunction; the others are worth less, as their
    eigenvalues are, so that rough functions are given up first.
    """

    def __init__(
        self,
        n_functions: int = 50,
        select: SelectForSamples = "spectral",
        *,
        kernel: KernelName = "gaussian",
        bandwidth: float | Literal["median"] = "median",
        candidates: int | None = None,
        ridge: float = 0.1,
        tolerance: float = 1e-3,
        strength: float | None = None,
        max_weight: float | None = None,
        accuracy: float = 1e-8,
        max_passes: int = 200,
        random_state: Any = None,
    ) -> None:
        self.n_functions = n_functions
        self.select = select
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.candidates = candidates
        self.ridge = ridge
        self.tolerance = tolerance
        self.strength = strength
        self.max_weight = max_weight
        self.accuracy = accuracy
        self.max_passes = max_passes
        self.random_state = random_state

    def _recipe(self) -> Functions:
        check_choice("kernel", self.kernel, KERNELS)
        kernel = KERNELS[self.kernel](self.bandwidth)
        return KernelFunctions(kernel, self.n_functions, self.select, self.candidates, self.ridge)


class MomentBalancer(_Balancer):
    """Balances the moments of every feature up to `order`; entropy balancing as epidemiologists know it for order 1.

    `tolerance` and `strength` are in population standard deviations of each moment; an infinite strength asks for
    exact balance. `fit` also takes `target_means` (features,) for order 1, or (order, features) raw moments.
    """

    def __init__(
        self,
        order: int = 1,
        *,
        tolerance: float = 0.0,
        strength: float | None = float("inf"),
        max_weight: float | None = None,
        accuracy: float = 1e-8,
        max_passes: int = 200,
        random_state: Any = None,
    ) -> None:
        self.order = order
        self.tolerance = tolerance
        self.strength = strength
        self.max_weight = max_weight
        self.accuracy = accuracy
        self.max_passes = max_passes
        self.random_state = random_state

    def _recipe(self) -> Functions:
        return Moments(self.order)

    def _known_means(self, observed: torch.Tensor, target_means: Any) -> torch.Tensor:
        return observed  # only for the scale: the targets below are what counts

    def _fitted(self, scaled: Standardised, target_means: Any, base_weights: Any) -> FittedFunctions:
        fitted = super()._fitted(scaled, None, base_weights)
        return fitted if target_means is None else known_moments(fitted, scaled, target_means, self.order)


def known_moments(fitted: FittedFunctions, scaled: Standardised, raw: Any, order: int) -> FittedFunctions:
    """The same functions, with targets from known raw moments E[x^m], m = 1 .. order.

    E[((x - a) / b)^m] = sum_k binomial(m, k) E[x^k] (-a)^(m-k) / b^m.
    """
    columns, moments = len(scaled.mean), _float_array(raw)
    if moments is not None and order == 1 and moments.ndim == 1:
        moments = moments[None]
    if moments is None or moments.shape != (order, columns) or not np.isfinite(moments).all():
        raise DataError(
            f"`target_means` must hold {order * columns} finite numbers, one for each of the {columns} features"
            f"{f' in each of {order} rows, one for each power' if order > 1 else ''}, got shape {np.shape(raw)}."
        )
    shift, unit = scaled.mean.numpy(), scaled.deviation.numpy()
    powers = np.vstack([np.ones(columns), moments])
    targets = [
        sum(comb(m, k) * powers[k] * (-shift) ** (m - k) for k in range(m + 1)) / unit**m for m in range(1, order + 1)
    ]
    return replace(fitted, targets=torch.from_numpy(np.concatenate(targets)))


def aligned_means(means: Any, names: Any) -> Any:
    """Known means in the order of the features: a dict, a Series or a frame is matched by `names`, if there are any."""
    if isinstance(means, Mapping):
        given = dict(means)
    elif hasattr(means, "columns"):
        given = {label: np.asarray(means[label]) for label in means.columns}
    elif hasattr(means, "to_dict"):
        given = means.to_dict()
    else:
        return means
    wanted = list(range(len(given))) if names is None else list(names)
    missing = [label for label in wanted if label not in given]
    if missing:
        advice = (
            "Give `X_observed` as a frame, or the means as an array." if names is None else "Every feature needs one."
        )
        raise DataError(f"`target_means` has no value for {', '.join(map(repr, missing))}. {advice}")
    return np.stack([np.asarray(given[label]) for label in wanted], axis=-1)


def _float_array(values: Any) -> NDArray[np.float64] | None:
    """None where there are other things than numbers."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
