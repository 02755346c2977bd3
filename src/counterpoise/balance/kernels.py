"""Kernels: blocks of values, and their exact means over populations and over all user-item pairs."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, Self

import torch
from torch import Tensor

from counterpoise.config import Configurable
from counterpoise.errors import ConfigError, check_number

MIXTURE_NODES = 64  # Gaussians that stand for an exponential kernel: the error is below 1e-6 everywhere
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


def gaussian(x: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """exp(-|x - c|^2 / (2 bandwidth)), (rows, centres); the paper's sigma^2 is the bandwidth."""
    return squared_distances(x, centres, -0.5 / bandwidth).exp_()


def exponential(x: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """exp(-|x - c| / (2 bandwidth)), (rows, centres). Distances are exact: a root would magnify rounding near 0."""
    distances = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.mul_(-0.5 / bandwidth).exp_()


def gaussian_mixture(bandwidth: float, nodes: int = MIXTURE_NODES) -> tuple[Tensor, Tensor]:
    """(weights, bandwidths) of the Gaussians whose mixture is the exponential kernel.

    exp(-c r) = E over z ~ |N(0, 1)| of exp(-r^2 c^2 / (2 z^2)), by the trapezoid rule in log z over [-14, log 8].
    """
    log_z = torch.linspace(-14, math.log(8), nodes, dtype=torch.float64)
    z = log_z.exp()
    weights = z * torch.exp(-0.5 * z**2)
    weights[[0, -1]] /= 2
    return weights / weights.sum(), (2 * bandwidth * z) ** 2


@dataclasses.dataclass
class Kernel(Configurable):
    """A kernel with a bandwidth: a number, or "median" to take it from the median distance of the population."""

    bandwidth: float | Literal["median"] = "median"

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        """The values (rows, centres)."""
        raise NotImplementedError

    def mixture(self) -> tuple[Tensor, Tensor]:
        """(weights, bandwidths) of Gaussian kernels that sum to this one."""
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

    def squared(self) -> Self:
        """k^2, which is the same kernel with half the bandwidth."""
        return dataclasses.replace(self, bandwidth=self.number / 2)

    @property
    def number(self) -> float:
        """The bandwidth as a number."""
        if isinstance(self.bandwidth, str):
            raise ConfigError(f'`bandwidth` must be a number here, got "{self.bandwidth}". Call `with_bandwidth(x)`.')
        return float(self.bandwidth)


@dataclasses.dataclass
class Gaussian(Kernel):
    """exp(-|x - c|^2 / (2 bandwidth)); "median": 2 bandwidth = the median of |x - x'|^2."""

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        """The values (rows, centres)."""
        return gaussian(x, centres, self.number)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """The kernel itself."""
        return torch.ones(1, dtype=torch.float64), torch.tensor([self.number], dtype=torch.float64)

    def _from_median(self, median_square: float) -> float:
        return median_square / 2


@dataclasses.dataclass
class Exponential(Kernel):
    """exp(-|x - c| / (2 bandwidth)); "median": 2 bandwidth = the median of |x - x'|."""

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        """The values (rows, centres)."""
        return exponential(x, centres, self.number)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """64 Gaussians, with an error below 1e-6."""
        return gaussian_mixture(self.number)

    def _from_median(self, median_square: float) -> float:
        return math.sqrt(median_square) / 2


KERNELS: dict[str, type[Kernel]] = {"gaussian": Gaussian, "exponential": Exponential}


def pair_tables(kernel: Gaussian, centres: Tensor, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """(|U|, M) and (|I|, M) whose product over a pair is the kernel: k(x_ui, [s; t]) = k(a_u, s) k(b_i, t)."""
    width = users.shape[1]
    tables = gaussian(users, centres[:, :width], kernel.number), gaussian(items, centres[:, width:], kernel.number)
    return tables[0].contiguous(), tables[1].contiguous()


def pair_means(kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """The mean over all pairs of k(x_ui, c), (M,): sum over the mixture of mean_u k(a_u, s) * mean_i k(b_i, t)."""
    width, centres = users.shape[1], centres.double()
    weights, bandwidths = (values.to(centres.device) for values in kernel.mixture())
    sides = (users, centres[:, :width]), (items, centres[:, width:])
    of_users, of_items = (_gaussian_means(table, middle, bandwidths.tolist()) for table, middle in sides)
    return weights @ (of_users * of_items)


def _gaussian_means(table: Tensor, centres: Tensor, bandwidths: list[float]) -> Tensor:
    """The mean over the rows of a table of the Gaussian kernel at each centre, (bandwidths, M); in blocks of rows."""
    total = torch.zeros(len(bandwidths), len(centres), dtype=torch.float64, device=centres.device)
    for block in torch.split(table, max(1, BLOCK_VALUES // len(centres))):
        squares = squared_distances(block.double(), centres)
        for node, bandwidth in enumerate(bandwidths):
            total[node] += (squares * (-0.5 / bandwidth)).clamp_(min=MIN_EXPONENT).exp_().sum(0)
    return total / len(table)


def pair_gram(kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """The mean over all pairs of k(x_ui, c) k(x_ui, c'), (M, M).

    For a Gaussian mean_u[k k'] * mean_i[k k'], exact in O((|U| + |I|) M^2). For a mixture of P Gaussians the
    same for all P^2 products, or all pairs one by one, whichever is less work.
    """
    nodes = len(kernel.mixture()[0])
    cheaper = mixture_gram if nodes**2 * (len(users) + len(items)) <= len(users) * len(items) else enumerated_gram
    method = mixture_gram if nodes == 1 else cheaper
    return method(kernel, centres.double(), users.double(), items.double())


def mixture_gram(kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """The Gram over all pairs from the tables of the kernel's Gaussians."""
    weights, bandwidths = kernel.mixture()
    if len(weights) == 1:
        width, bandwidth = users.shape[1], float(bandwidths[0])
        sides = (users, centres[:, :width]), (items, centres[:, width:])
        of_users, of_items = (_gaussian_gram(table, middle, bandwidth) for table, middle in sides)
        return of_users * of_items
    tables = [pair_tables(Gaussian(float(bandwidth)), centres, users, items) for bandwidth in bandwidths]
    total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=centres.device)
    for weight, (user_table, item_table) in zip(weights.tolist(), tables, strict=True):
        for other, (other_users, other_items) in zip(weights.tolist(), tables, strict=True):
            total += weight * other * (user_table.T @ other_users) * (item_table.T @ other_items)
    return total / (len(users) * len(items))


def _gaussian_gram(table: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """The mean over the rows of a table of k(x, c) k(x, c'), (M, M); in blocks of rows."""
    total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=centres.device)
    for block in torch.split(table, max(1, BLOCK_VALUES // len(centres))):
        values = gaussian(block, centres, bandwidth)
        total.addmm_(values.T, values)
    return total / len(table)


def enumerated_gram(kernel: Kernel, centres: Tensor, users: Tensor, items: Tensor) -> Tensor:
    """The Gram over all pairs, in blocks of users."""
    total = torch.zeros(len(centres), len(centres), dtype=torch.float64, device=centres.device)
    for block in torch.split(users, max(1, BLOCK_VALUES // (len(items) * len(centres)))):
        pairs = torch.cat([block.repeat_interleave(len(items), 0), items.repeat(len(block), 1)], 1)
        values = kernel(pairs, centres)
        total.addmm_(values.T, values)
    return total / (len(users) * len(items))
