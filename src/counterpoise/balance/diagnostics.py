"""Diagnostics of weights: effective sample size, tails, covariate balance, held-out functions, overlap."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.balance.kernels import BANDWIDTH_PAIRS, Gaussian, Kernel
from counterpoise.balance.penalties import whitening
from counterpoise.balance.population import Points, Population, kernel_rows
from counterpoise.errors import ConvergenceWarning

if TYPE_CHECKING:
    from counterpoise.balance.covariate_balance import FeatureBalance

Vector = NDArray[np.float64]
HELD_OUT_SEED = 0x9E3779BA  # beyond 2^31, so that no balancer draws the same functions
HELD_OUT_FUNCTIONS = 200  # drawn for it
MIN_HELD_OUT = 10  # functions; fewer are no measure of balance elsewhere
MIN_EFFECTIVE_SHARE = 0.05  # of the rows: below, a weighted mean has more than 4.5 times the error of a plain one
NEARBY_QUANTILE = 0.99  # of the distances of observed rows to their nearest neighbour: what counts as nearby


def effective_sample_size(weights: ArrayLike) -> float:
    """(sum w)^2 / sum w^2 (Kish, 1965)."""
    values = np.asarray(weights, dtype=np.float64)
    return float(values.sum() ** 2 / (values**2).sum())


def design_effect(weights: ArrayLike) -> float:
    """n sum w^2 / (sum w)^2: how many times larger the variance of a mean is than with equal weights."""
    return len(np.asarray(weights)) / effective_sample_size(weights)


def group_effective_sample_sizes(weights: ArrayLike, codes: ArrayLike, groups: int) -> Vector:
    """The effective sample size of each user or item (0 where nothing was observed)."""
    values, code = np.asarray(weights, dtype=np.float64), np.asarray(codes)
    sums, squares = np.bincount(code, values, groups), np.bincount(code, values**2, groups)
    return np.divide(sums**2, squares, out=np.zeros(groups), where=squares > 0)


def weight_tail(weights: ArrayLike) -> dict[str, float]:
    """The share of all weight that the heaviest 1 % of the rows hold, and the largest weight over the mean."""
    values = np.sort(np.asarray(weights, dtype=np.float64))
    top = max(1, len(values) // 100)
    return {
        "top_1_percent_share": float(values[-top:].sum() / values.sum()),
        "max_over_mean": float(values[-1] / values.mean()),
    }


def weight_facts(weights: ArrayLike) -> dict[str, float]:
    """Effective sample size, design effect and tail of weights."""
    size, effect = effective_sample_size(weights), design_effect(weights)
    return {"effective_sample_size": size, "design_effect": effect, **weight_tail(weights)}


def warn_of_collapse(weights: ArrayLike, advice: str) -> str | None:
    """Warn where the effective sample size is below 5 % of the rows; the message, None where there is none."""
    rows, size = len(np.asarray(weights)), effective_sample_size(weights)
    if size >= MIN_EFFECTIVE_SHARE * rows:
        return None
    message = f"the weights collapsed: {rows:,} rows count as {size:,.1f} (effective sample size). {advice}"
    warnings.warn(message, ConvergenceWarning, stacklevel=3)
    return message


def held_out_imbalance(
    observed: Points,
    weights: Tensor,
    population: Population,
    kernel: Kernel | None = None,
    balanced_at: Tensor | None = None,
) -> dict[str, float] | None:
    """Imbalance of kernel functions that were not balanced: centres drawn anew from the population.

    None where fewer than 10 rows are left besides `balanced_at`, the centres (rows, columns) of the balanced functions.
    `rms_sd`: root mean square imbalance in population standard deviations; `max_sd` the largest; `mmd`: the root of
    v'K^-1 v, the largest bias of any function in their span with RKHS norm 1.
    """
    found = held_out_imbalances(observed, [weights], population, kernel, balanced_at)
    return None if found is None else found[0]


def held_out_imbalances(
    observed: Points,
    weights: Sequence[Tensor],
    population: Population,
    kernel: Kernel | None = None,
    balanced_at: Tensor | None = None,
) -> list[dict[str, float]] | None:
    """`held_out_imbalance` under several weights, of the same functions."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    kernel = (kernel or Gaussian()).with_bandwidth(population.draw(2 * BANDWIDTH_PAIRS, generator))
    centres = _draw_others(population, HELD_OUT_FUNCTIONS, generator, balanced_at)
    if len(centres) < MIN_HELD_OUT:
        return None
    mean, deviation = population.kernel_moments(kernel, centres)
    shares = torch.stack([each.double().to(centres.device) / float(each.double().sum()) for each in weights], 1)
    rows = kernel_rows(kernel, centres, observed)
    parts = rows.each_chunk(lambda blocks: torch.stack([shares[part].T @ values for part, values in blocks]).sum(0))
    root = whitening(kernel(centres.double(), centres.double()).cpu().numpy())
    found = []
    for difference in (torch.stack(parts).sum(0) - mean).cpu():
        scaled = difference / deviation.clamp(min=1e-15).cpu()
        found.append(
            {
                "rms_sd": float(scaled.square().mean().sqrt()),
                "max_sd": float(scaled.abs().max()),
                "mmd": float(np.linalg.norm(difference.numpy() @ root)),
            }
        )
    return found


def _draw_others(population: Population, count: int, generator: torch.Generator, taken: Tensor | None) -> Tensor:
    """At most `count` rows of the population, none of them equal to a row of `taken`."""
    if taken is None:
        return population.draw(count, generator)
    rows = population.draw(count + len(taken), generator)
    _, codes = torch.unique(torch.cat([taken.to(rows), rows]), dim=0, return_inverse=True)
    return rows[~torch.isin(codes[len(taken) :], codes[: len(taken)])][:count]


def overlap(observed: Points, population: Population, draws: int = 1000, seed: int = 2) -> float:
    """The share of the population that has an observed row nearby.

    Nearby: not farther than 99 % of the observed rows are from their own nearest neighbour (on samples of rows).
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(observed.n_rows, generator=generator)[: 10 * draws].to(observed.device)
    rows = observed.features(chosen).double()
    if len(rows) < 2:
        return 0.0
    wanted = population.draw(draws, generator).double()
    itself = torch.arange(min(draws, len(rows)), device=rows.device)[:, None]
    own = torch.cdist(rows[:draws], rows).scatter_(1, itself, torch.inf)
    limit = own.min(1)[0].quantile(NEARBY_QUANTILE)
    return float((torch.cdist(wanted, rows).min(1)[0] <= limit * (1 + 1e-9)).double().mean())


@dataclass(frozen=True)
class Diagnosis:
    """All diagnostics of weights; `to_dict` gives JSON-able values, `summary` a text."""

    rows: int
    effective_sample_size: float
    design_effect: float
    weight_tail: dict[str, float]
    overlap: float
    held_out_before: dict[str, float] | None  # None: the population has no rows besides the balanced functions' centres
    held_out_after: dict[str, float] | None
    table: list[FeatureBalance]

    @property
    def largest_before(self) -> FeatureBalance:
        """The feature with the largest standardised difference before, of those that have one."""
        return max(self.table, key=lambda row: _size(row.smd_before))

    @property
    def largest_after(self) -> FeatureBalance:
        return max(self.table, key=lambda row: _size(row.smd_after))

    @property
    def grew(self) -> bool:
        """Whether the largest standardised difference of a feature rose."""
        return _size(self.largest_after.smd_after) > _size(self.largest_before.smd_before) + 1e-9

    @property
    def without_spread(self) -> list[str]:
        """Features that are constant in the population and have another mean in the weighted sample."""
        return [row.name for row in self.table if row.smd_after is None]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return asdict(self)

    def summary(self) -> str:
        """A few lines of text."""
        before, after, tail = self.largest_before, self.largest_after, self.weight_tail
        size, share = self.effective_sample_size, self.effective_sample_size / self.rows
        held_out = "The population is too small to hold out functions that were not balanced."
        if self.held_out_before is not None and self.held_out_after is not None:
            sizes = f"{self.held_out_before['rms_sd']:.3f} SD before, {self.held_out_after['rms_sd']:.4f} SD after"
            held_out = f"Functions that were not balanced, root mean square: {sizes}."
        lines = [
            f"{self.rows:,} rows count as {size:,.0f} ({share:.0%}): design effect {self.design_effect:.2f}.",
            f"The largest weight is {tail['max_over_mean']:.1f} times the mean; "
            f"the top 1 % of the rows hold {tail['top_1_percent_share']:.1%} of the weight.",
            f"Largest imbalance of a feature: {_size(before.smd_before):.3f} SD before ({before.name}), "
            f"{_size(after.smd_after):.4f} SD after ({after.name}).",
            held_out,
            f"{self.overlap:.0%} of the population has observed rows nearby.",
        ]
        if self.without_spread:
            lines.append(f"Constant in the population, with another mean here: {', '.join(self.without_spread)}.")
        return "\n".join(lines)


def _size(difference: float | None) -> float:
    """|difference|; 0 where there is none to measure."""
    return 0.0 if difference is None else abs(difference)


def diagnose(
    observed: Points,
    weights: Any,
    population: Population,
    names: Sequence[str] | None = None,
    base_weights: ArrayLike | None = None,
    *,
    balanced_at: Tensor | None = None,
    table: list[FeatureBalance] | None = None,
) -> Diagnosis:
    """All diagnostics of weights on the observed rows, against the population.

    Overlap and held-out functions depend on distances: give features on comparable scales, and the `table` of the
    features in their own units where these differ. `balanced_at`: the centres of the balanced kernel functions, which
    are no held-out functions.
    """
    from counterpoise.balance.covariate_balance import balance_table

    after = torch.as_tensor(weights).double().cpu()
    base = torch.ones(len(after)) if base_weights is None else torch.as_tensor(np.asarray(base_weights))
    return Diagnosis(
        rows=len(after),
        effective_sample_size=effective_sample_size(after.numpy()),
        design_effect=design_effect(after.numpy()),
        weight_tail=weight_tail(after.numpy()),
        overlap=overlap(observed, population),
        held_out_before=held_out_imbalance(observed, base, population, balanced_at=balanced_at),
        held_out_after=held_out_imbalance(observed, after, population, balanced_at=balanced_at),
        table=table or balance_table(observed, after.numpy(), population, names, base.numpy()),
    )
