"""Seconds of balancing against its peers, side by side in one run; prints ratios, because times vary by machine.

python benchmarks/solver.py [--threads 1] [--device cpu] [--repeats 3] [--only moments|kernels|pairs]

`empirical_calibration` and `ebal` (PyPI) are timed where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable

THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = THREADS  # before numpy and torch are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

from counterpoise.balance.exponential_family import InMemoryFamily  # noqa: E402
from counterpoise.balance.kernels import Gaussian  # noqa: E402
from counterpoise.balance.population import Pairs, kernel_rows  # noqa: E402
from counterpoise.balance.solver import entropy_balance  # noqa: E402


def moment_problem(rows: int, functions: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal and log-normal columns with targets 0.15 standard deviations away."""
    rng = np.random.default_rng(0)
    H = rng.normal(size=(rows, functions))
    H[:, ::3] = np.exp(0.5 * H[:, ::3])
    return H, H.mean(0) + 0.15 * rng.normal(size=functions) * H.std(0)


def by_counterpoise(H: torch.Tensor, targets: np.ndarray) -> torch.Tensor:
    """Ours."""
    return entropy_balance(H, targets, accuracy=1e-6).weights.cpu()


def by_lbfgs(H: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The dual by scipy's L-BFGS: what a careful user writes in twenty lines."""
    from scipy.optimize import minimize

    def dual(values: np.ndarray) -> tuple[float, np.ndarray]:
        score = -(H @ values)
        top = score.max()
        mass = np.exp(score - top)
        total = mass.sum()
        return top + np.log(total) + values @ targets, targets - mass @ H / total

    options = {"ftol": 0.0, "gtol": 1e-6, "maxcor": 20, "maxiter": 500}
    values = minimize(dual, np.zeros(H.shape[1]), jac=True, method="L-BFGS-B", options=options).x
    weights = np.exp(-(H @ values) - (-(H @ values)).max())
    return weights / weights.sum()


def by_empirical_calibration(H: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Google's package, entropy objective, exact."""
    import empirical_calibration as ec

    weights, _ = ec.calibrate(H, targets[None, :], objective=ec.Objective.ENTROPY, autoscale=True)
    return np.asarray(weights)


def by_ebal(H: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The package `ebal`: treated rows whose means are the targets, the observed rows as controls."""
    from ebal import ebal_bin

    treated = np.vstack([targets - 1, targets + 1])
    treatment, everything = np.r_[np.ones(2), np.zeros(len(H))], np.vstack([treated, H])
    solver = ebal_bin(print_level=-1, constraint_tolerance=1e-6)
    fitted = solver.ebalance(treatment, everything, np.zeros(len(everything)))
    weights = np.asarray(fitted["w"])
    weights = weights[weights.size - len(H) :]
    return weights / weights.sum()


def moments(repeats: int, device: str) -> None:
    """Entropy balancing of moments to a violation of 1e-6."""
    peers: dict[str, Callable[..., np.ndarray | torch.Tensor]] = {"scipy L-BFGS on the dual": by_lbfgs}
    peers |= {"empirical_calibration": by_empirical_calibration} if _installed("empirical_calibration") else {}
    peers |= {"ebal": by_ebal} if _installed("ebal") else {}
    for rows, functions in ((100_000, 20), (1_000_000, 50)):
        H, targets = moment_problem(rows, functions)
        table = torch.from_numpy(H).to(device)
        seconds: dict[str, list[float]] = {}
        for repeat in range(repeats):
            for name, solve in ({"counterpoise": by_counterpoise} | peers).items():
                if repeat and name in ("empirical_calibration", "ebal"):
                    continue  # once is enough of a wait
                start = time.perf_counter()
                weights = np.asarray(solve(table if solve is by_counterpoise else H, targets))
                seconds.setdefault(name, []).append(time.perf_counter() - start)
                if repeat == 0:
                    violation = (abs(weights @ H - targets) / H.std(0)).max()
                    print(f"{rows:>9,} x {functions}  {name:<26} violation {violation:.1e} SD")
        _ratios(f"{rows:,} x {functions}", seconds)


def kernels(repeats: int, device: str) -> None:
    """100 Gaussian kernels on 20,000 rows, in the three corners of tolerance and strength."""
    rng = np.random.default_rng(0)
    population = torch.from_numpy(rng.normal(size=(60_000, 4)))
    logit = population[:, 0] + 0.5 * population[:, 1] * population[:, 2]
    observed = population[torch.from_numpy(rng.random(60_000)) < torch.sigmoid(logit)][:20_000].to(device)
    kernel, centres = Gaussian(4.0), population[:100].to(device)
    H, targets = kernel(observed, centres), kernel(population.to(device), centres).mean(0)
    condition = np.linalg.cond(np.cov(H.cpu().numpy().T))
    for tolerance, strength in ((1e-3, 5.0), (1e-5, 5.0), (1e-5, 100.0)):
        best = np.inf
        for _ in range(repeats):
            start = time.perf_counter()
            result = entropy_balance(H, targets, tolerance, strength, accuracy=1e-6)
            best = min(best, time.perf_counter() - start)
        print(
            f"100 kernels, condition {condition:.0e}, C={tolerance:g}, gamma={strength:g}: {best:.3f} s, "
            f"{result.passes} passes, gap {result.gap:.1e}, {int(result.relaxed.sum())} relaxed"
        )


def pairs(repeats: int, device: str, rows: int = 10_000_000, functions: int = 64) -> None:
    """One pass (weights, objective, imbalance) over pairs whose kernels are never stored."""
    rng = np.random.default_rng(0)
    tables = [torch.from_numpy(rng.normal(size=(size, 4)).astype(np.float32)).to(device) for size in (50_000, 10_000)]
    population = Pairs(*tables)
    codes = [torch.from_numpy(rng.integers(0, len(table), rows)).to(device) for table in tables]
    centres = population.draw(functions, torch.Generator().manual_seed(0))
    kernel = Gaussian(4.0)
    family = InMemoryFamily(
        kernel_rows(kernel, centres, population.at(*codes)), population.kernel_mean(kernel, centres).cpu()
    )
    before, best = _peak(device), np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        point = family.at(torch.full((functions,), 0.1, dtype=torch.float64))
        best = min(best, time.perf_counter() - start)
    extra = _peak(device) - before
    print(
        f"matrix-free pass over {rows:,} pairs, J={functions}: {best:.2f} s, {extra:.2f} GB besides the log; "
        f"the matrix would take {rows * functions * 8 / 1e9:.1f} GB; imbalance {point.imbalance.abs().max():.1e}"
    )


def _ratios(name: str, seconds: dict[str, list[float]]) -> None:
    ours = seconds["counterpoise"]
    for peer, theirs in seconds.items():
        best, middle = min(ours) / min(theirs), np.median(ours) / np.median(theirs)
        ratio = "" if peer == "counterpoise" else f"   counterpoise / {peer} = {best:.2f}, of medians {middle:.2f}"
        print(f"{name:>14}  {peer:<26} {min(theirs):7.3f} s best, {np.median(theirs):7.3f} s median{ratio}")


def _peak(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=["moments", "kernels", "pairs"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for part in (kernels, pairs, moments):
        if options.only in (None, part.__name__):
            part(options.repeats, options.device)


if __name__ == "__main__":
    main()
