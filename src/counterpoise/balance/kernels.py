"""Kernels: blocks of values, and their exact means over populations and over all user-item pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Literal, Self

import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.errors import ConfigError, check_number

MIXTURE_STEP = 0.25  # of the trapezoid rule in log z: 65 Gaussians stand for an exponential kernel k (or a few more
# where it is wide), and the relative error of 1 - k is 1e-8; with a step of 0.3 it is 3e-7, with 0.2 1e-10
MIXTURE_DEPTH = 14.0  # e-folds below a typical distance down to which distances are resolved: a millionth of it
BLOCK_VALUES = 2**20  # kernel values held at once while averaging: 8 MB of float64
MIN_EXPONENT = -80.0  # exp(-80) counts as 0; denormal numbers, below exp(-700), take ten times as long
BANDWIDTH_PAIRS = 2000  # pairs of rows from which the median distance is taken


def squared_distances(x: Tensor, centres: Tensor, scale: float = 1.0) -> Tensor:
    """scale x |x - c|^2 for all rows and centres, (rows, centres)."""
    origin = centres.mean(0)
    x, centres = x - origin, centres - origin  # against cancellation far from zero
    squares = torch.linalg.vecdot(x, x)[:, None] + torch.linalg.vecdot(centres, centres)
    scaled: Tensor = squares.addmm_(x, centres.T, beta=scale, alpha=-2 * scale)
    return scaled.clamp_(min=0) if scale > 0 else scaled.clamp_(max=0)


@dataclasses.dataclass
class Kernel(Configurable):
    """A kernel with a bandwidth: a number, or "median" to take it from the median distance of the population."""

    bandwidth: float | Literal["median"] = "median"

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        """The values (rows, centres)."""
        raise NotImplementedError

    def mixture(self, distance: float = math.inf) -> tuple[Tensor, Tensor]:
        """(weights, bandwidths) of Gaussian kernels that sum to this one k.

        `distance`: a typical one between points, around which 1 - k is accurate too, where it is small.
        """
        raise NotImplementedError

    def _from_median(self, median_square: float) -> float:
        """The bandwidth for this median of |x - x'|^2."""
        raise NotImplementedError

    def with_bandwidth(self, x: Tensor) -> Self:
        """The same kernel with a number for its bandwidth; `x` are rows in random order, taken in pairs."""
        if self.bandwidth != "median":
            check_number("bandwidth", self.bandwidth, above=0, advice='Or use "median".')
            return self
        half = len(x) // 2
        squares = (x[:half] - x[half : 2 * half]).double().square().sum(1)
        median = float(squares[squares > 0].median()) if bool((squares > 0).any()) else 0.0
        return dataclasses.replace(self, bandwidth=self._from_median(median) if median > 0 else 1.0)

    @property
    def number(self) -> float:
        """The bandwidth as a number."""
        if isinstance(self.bandwidth, str):
            raise ConfigError(f'`bandwidth` must be a number here, got "{self.bandwidth}". Call `with_bandwidth(x)`.')
        return float(self.bandwidth)


@dataclasses.dataclass
class Gaussian(Kernel):
    """exp(-|x - c|^2 / (2 bandwidth)), with the paper's sigma^2 as bandwidth.

    "median": 2 bandwidth = the median of |x - x'|^2.
    """

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        return squared_distances(x, centres, -0.5 / self.number).exp_()

    def mixture(self, distance: float = math.inf) -> tuple[Tensor, Tensor]:
        return torch.ones(1, dtype=torch.float64), torch.tensor([self.number], dtype=torch.float64)

    def _from_median(self, median_square: float) -> float:
        return median_square / 2


@dataclasses.dataclass
class Exponential(Kernel):
    """exp(-|x - c| / (2 bandwidth)); "median": 2 bandwidth = the median of |x - x'|."""

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        # Exact distances: a root would magnify rounding near 0.
        distances = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.mul_(-0.5 / self.number).exp_()

    def mixture(self, distance: float = math.inf) -> tuple[Tensor, Tensor]:
        """exp(-c r) = E over z ~ |N(0, 1)| of exp(-r^2 c^2 / (2 z^2)), by the trapezoid rule in log z up to log 8.

        1 - exp(-c r) is made by the z around c r: a wide kernel needs smaller ones. The first stands for all below it.
        """
        lowest = min(0.0, math.log(distance / (2 * self.number))) - MIXTURE_DEPTH
        steps = math.ceil((math.log(8) - lowest) / MIXTURE_STEP)
        z = (math.log(8) - MIXTURE_STEP * torch.arange(steps, -1, -1, dtype=torch.float64)).exp()
        weights = z * torch.exp(-0.5 * z**2)
        weights[0] /= -math.expm1(-MIXTURE_STEP)  # z + z e^-step + z e^-2step + ...
        return weights / weights.sum(), (2 * self.number * z) ** 2

    def _from_median(self, median_square: float) -> float:
        return math.sqrt(median_square) / 2


KERNELS: dict[str, type[Kernel]] = {"gaussian": Gaussian, "exponential": Exponential}


def pair_tables(kernel: Gaussian, centres: Tensor, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """(|U|, M) and (|I|, M) whose product over a pair is the kernel: k(x_ui, [s; t]) = k(a_u, s) k(b_i, t)."""
    of_users, of_items = (kernel(table, side) for table, side in _sides(centres, users, items))
    return of_users.contiguous(), of_items.contiguous()


def _sides(centres: Tensor, users: Tensor, items: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(user table, centres' user columns), (item table, centres' item columns)."""
    width = users.shape[1]
    return (users, centres[:, :width]), (items, centres[:, width:])


def pair_means(
    kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor, user_shares: Tensor | None = None
) -> Tensor:
    """The mean over all pairs of k(x_ui, c), (M,): sum over the mixture of mean_u k(a_u, s) * mean_i k(b_i, t).

    `user_shares` (|U|,), here and below: the share of each user in the mean over users, by default equal ones.
    """
    weights, bandwidths = (values.to(centres.device) for values in kernel.mixture(_distance(users, items)))
    of_users, of_items = (
        _gaussian_means(table, side, bandwidths.tolist(), shares)
        for (table, side), shares in zip(_sides(centres.double(), users, items), (user_shares, None), strict=True)
    )
    return weights @ (of_users * of_items)


def _shared_blocks(table: Tensor, shares: Tensor | None, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(rows of a table in float64, their shares), of which `width` values a row fit into a block."""
    if shares is None:
        shares = torch.full((len(table),), 1 / len(table), dtype=torch.float64, device=table.device)
    step = max(1, BLOCK_VALUES // width)
    for block, share in zip(torch.split(table, step), torch.split(shares.double(), step), strict=True):
        yield block.double(), share


def _gaussian_means(table: Tensor, centres: Tensor, bandwidths: list[float], shares: Tensor | None = None) -> Tensor:
    """The mean over the rows of a table of the Gaussian kernel at each centre, (bandwidths, M); in blocks of rows."""
    total = torch.zeros(len(bandwidths), len(centres), dtype=torch.float64, device=centres.device)
    for block, share in _shared_blocks(table, shares, len(centres)):
        squares = squared_distances(block, centres)
        for node, bandwidth in enumerate(bandwidths):
            total[node] += share @ (squares * (-0.5 / bandwidth)).clamp_(min=MIN_EXPONENT).exp_()
    return total


def _distance(*tables: Tensor) -> float:
    """The root mean square distance of two pairs of these users and items; infinite where all are one."""
    variance = sum(float((table - table.mean(0)).double().square().sum(1).mean()) for table in tables)
    return math.sqrt(2 * variance) if variance > 0 else math.inf


def pair_moments(
    kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor, user_shares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation over all pairs of k(x_ui, c), (M,) each, for a kernel of any width.

    For k = sum_j w_j s_j t_j, s_j a function of the user and t_j of the item, the variance is
    sum_jl w_j w_l (cov(s_j, s_l) mean(t_j t_l) + mean(s_j) mean(s_l) cov(t_j, t_l)).
    No term is negative, and all come from 1 - s_j and 1 - t_j: nothing cancels where the kernel is nearly constant.
    """
    weights, bandwidths = (values.to(centres.device) for values in kernel.mixture(_distance(users, items)))
    (p, pp), (q, qq) = (
        _complement_moments(table, side, bandwidths, shares)
        for (table, side), shares in zip(_sides(centres.double(), users, items), (user_shares, None), strict=True)
    )
    mean = 1 - (p + q - p * q) @ weights
    of_user, product = pp - _outer(p), 1 - q[:, :, None] - q[:, None, :] + qq
    variance = of_user * product + _outer(1 - p) * (qq - _outer(q))
    return mean, ((variance @ weights) @ weights).clamp(min=0).sqrt()


def _complement_moments(
    table: Tensor, centres: Tensor, bandwidths: Tensor, shares: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Means over rows of 1 - k for Gaussian kernels at each centre (M, bandwidths), and means of products."""
    size = len(centres), len(bandwidths)
    first, second = (torch.zeros(*size, *more, dtype=torch.float64, device=centres.device) for more in ((), size[1:]))
    for block, share in _shared_blocks(table, shares, math.prod(size)):
        squares = squared_distances(block, centres).T  # (M, rows)
        values = torch.expm1(squares[:, :, None] * (-0.5 / bandwidths)).neg_()  # (M, rows, bandwidths)
        weighted = values * share[:, None]
        first += weighted.sum(1)
        second += weighted.mT @ values
    return first, second


def _outer(values: Tensor) -> Tensor:
    return values[:, :, None] * values[:, None, :]


def pair_gram(
    kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor, user_shares: Tensor | None = None
) -> Tensor:
    """The mean over all pairs of k(x_ui, c) k(x_ui, c'), (M, M).

    For a Gaussian mean_u[k k'] * mean_i[k k'], exact in O((|U| + |I|) M^2). For a mixture of P Gaussians the
    same for all P^2 products, or all pairs one by one, whichever is less work.
    """
    nodes = len(kernel.mixture()[0])
    by_mixture = nodes == 1 or nodes**2 * (len(users) + len(items)) <= len(users) * len(items)
    method = mixture_gram if by_mixture else enumerated_gram
    return method(kernel, centres.double(), users.double(), items.double(), user_shares)


def mixture_gram(
    kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor, user_shares: Tensor | None = None
) -> Tensor:
    """The Gram over all pairs from the tables of the kernel's Gaussians."""
    weights, bandwidths = kernel.mixture(_distance(users, items))
    kernels = [Gaussian(float(bandwidth)) for bandwidth in bandwidths]
    if len(kernels) == 1:
        of_users, of_items = (
            _gram(kernels[0], side, _shared_blocks(table, shares, len(centres)))
            for (table, side), shares in zip(_sides(centres, users, items), (user_shares, None), strict=True)
        )
        return of_users * of_items
    tables = [pair_tables(gaussian, centres, users, items) for gaussian in kernels]
    shares = torch.full_like(users[:, 0], 1 / len(users)) if user_shares is None else user_shares.to(users)
    total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=centres.device)
    for weight, (user_table, item_table) in zip(weights.tolist(), tables, strict=True):
        weighted = (user_table * shares[:, None]).T
        for other, (other_users, other_items) in zip(weights.tolist(), tables, strict=True):
            total += weight * other * (weighted @ other_users) * (item_table.T @ other_items)
    return total / len(items)


def enumerated_gram(
    kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor, user_shares: Tensor | None = None
) -> Tensor:
    """The Gram over all pairs, in blocks of users."""
    blocks = (
        (
            torch.cat([part.repeat_interleave(len(items), 0), items.repeat(len(part), 1)], 1),
            share.repeat_interleave(len(items)) / len(items),
        )
        for part, share in _shared_blocks(users, user_shares, len(items) * len(centres))
    )
    return _gram(kernel, centres, blocks)


def _gram(kernel: Kernel, centres: Tensor, blocks: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over all rows, by their shares, of k(x, c) k(x, c'), (M, M)."""
    total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=centres.device)
    for block, share in blocks:
        values = kernel(block, centres)
        total.addmm_((values * share[:, None]).T, values)
    return total
