"""Algorithm 1: its default tolerance, its learning rate, and the warning about collapsed weights."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from counterpoise import Dataset, DebiasedRecommender, Training, simulate
from counterpoise.balance.diagnostics import effective_sample_size, warn_of_collapse
from counterpoise.balance.functions import FittedFunctions, KernelFunctions
from counterpoise.cli.describe import fit_lines
from counterpoise.errors import ConvergenceWarning
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.training.contracts import FitContext, StepInputs
from counterpoise.weights import gradient
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.gradient import WeightModel, batch_error, default_strength

SIDE = {"features": "side"}
BATCH = 60


def weight_model(dataset: Dataset, part: Balancing, **training: object) -> tuple[WeightModel, FitContext]:
    """Algorithm 1 before its first step."""
    settings = Training(**training)  # type: ignore[arg-type]
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    context = FitContext(dataset.train, dataset.probe, MatrixFactorization(dim=4), settings, device, generator)
    model = part.init(context)
    assert isinstance(model, WeightModel)
    return model, context


@pytest.mark.parametrize("uneven", [0.0, 1.0])
@pytest.mark.parametrize("n_pairs", [None, 120])
def test_batch_error_is_the_spread_of_batch_imbalances(uneven: float, n_pairs: int | None) -> None:
    """Over many batches and 40 functions of standard deviation 2: imbalance in the batch minus that in the log."""
    rng = np.random.default_rng(0)
    log, population = (2 * standardised(rng.normal(size=(size, 40))) for size in (300, 5000))
    weights = np.exp(uneven * rng.normal(size=300))
    whole = np.average(log, axis=0, weights=weights)
    off, expected = [], []
    for _ in range(1000):
        rows = rng.permutation(300)[:BATCH]
        mass = weights[rows] / weights[rows].sum()
        mean = 0.0 if n_pairs is None else population[rng.integers(5000, size=n_pairs)].mean(0)
        off.append((mass @ log[rows] - mean - whole) / 2)
        expected.append(batch_error(torch.from_numpy(mass), 300, n_pairs))
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(np.sqrt(np.mean(np.square(expected))), rel=0.05)


def standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(0)) / values.std(0)


def test_without_batches_there_is_no_batch_error() -> None:
    assert batch_error(torch.full((50,), 0.02), 50, None) == pytest.approx(0, abs=1e-9)
    assert batch_error(torch.full((50,), 0.02), 10**9, 150) == pytest.approx((1 / 50 + 1 / 150) ** 0.5)


@pytest.mark.parametrize("tolerance", [None, 0.0, 0.3])
def test_the_tolerance_is_the_batch_error_unless_it_is_given(
    tolerance: float | None, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Balancing(KernelFunctions(n=3, select="random", candidates=20), tolerance, solver="gradient", **SIDE)  # type: ignore[arg-type]
    model, context = weight_model(dataset, part, batch_size=BATCH)
    seen, own = [], gradient.weight_loss
    monkeypatch.setattr(gradient, "weight_loss", lambda *given: seen.append(given) or own(*given))
    for batch in list(context.batches(True).epoch())[:2]:
        nothing = torch.zeros(len(batch.rows))
        model.step(StepInputs(batch, nothing, nothing[:0], nothing), nothing, nothing[:0], 1.0)
        mass, used = seen[-1][0].detach().exp(), seen[-1][4]
        chance = batch_error(mass, len(dataset.train), 2 * len(batch.rows))
        assert used == pytest.approx(chance if tolerance is None else tolerance)


def test_the_learning_rate_falls_with_the_root_of_the_batch(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Balancing(KernelFunctions(n=3, select="random", candidates=20), solver="gradient", **SIDE)  # type: ignore[arg-type]
    model, context = weight_model(dataset, part, batch_size=BATCH)
    batch, rates = next(context.batches(True).epoch()), []
    monkeypatch.setattr(model.optimizer, "step", lambda loss, rate: rates.append(rate))
    nothing = torch.zeros(len(batch.rows))
    model.step(StepInputs(batch, nothing, nothing[:0], nothing), nothing, nothing[:0], 0.5)
    assert rates == [pytest.approx(0.5 * (len(batch.rows) / len(dataset.train)) ** 0.5)]


def test_collapsed_weights_warn_once_with_their_size_and_a_way_out(dataset: Dataset) -> None:
    """A learning rate with which the softmax of a batch ends at one row, from which no gradient leads back."""
    functions = KernelFunctions(n=3, select="random", candidates=40)
    part = Balancing(functions, tolerance=0.0, strength=50.0, solver="gradient", **SIDE)  # type: ignore[arg-type]
    model = DebiasedRecommender(part, training=Training(epochs=20, batch_size=BATCH, learning_rate=1.0))
    with pytest.warns(ConvergenceWarning, match="collapsed") as said:
        model.fit(dataset.train)
    assert len(said) == 1
    size, message = effective_sample_size(model.ratio_), str(said[0].message)
    assert size < 0.05 * len(dataset.train)
    assert f"{len(dataset.train):,} rows count as {size:,.1f}" in message
    for name in ("`strength`", "`learning_rate`", "`tolerance`", "`batch_size`", "solver='dual'"):
        assert name in message
    assert model.facts_["weights"]["warning"] == message
    assert f"Warning: {message}" in fit_lines(model.facts_, len(dataset.train))


@pytest.mark.parametrize(("correlation", "together"), [(0.0, 2.0), (1.0, 4.0)])
def test_default_strength_is_that_of_all_functions_together(correlation: float, together: float) -> None:
    """Four functions of standard deviation 3: their sum in these units has 2 if they are orthogonal, 4 if equal."""
    drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 4)))
    basis = 10 * torch.linalg.qr(drawn - drawn.mean(0))[0]  # mean 0, standard deviation 1, orthogonal
    values = 3 * (basis if correlation == 0 else basis[:, :1].expand(100, 4))
    fitted = FittedFunctions(targets=torch.zeros(4), scale=torch.full((4,), 3.0).double(), names=list("abcd"))
    assert default_strength(values, fitted) == pytest.approx(0.7 / together)
    assert default_strength(values[:1], fitted) == pytest.approx(0.7)  # a batch of one row has no spread


@pytest.mark.parametrize("select", ["random", "spectral", "adaptive", "worst_case", "greedy"])
def test_defaults_of_algorithm_1_balance_without_a_warning(select: str, dataset: Dataset) -> None:
    part = Balancing(KernelFunctions(select=select), solver="gradient", **SIDE)  # type: ignore[arg-type]
    model = DebiasedRecommender(part, training=Training(epochs=15, batch_size=BATCH)).fit(dataset.train)
    facts = model.facts_["weights"]
    assert facts["warning"] is None
    assert facts["held_out_after"]["rms_sd"] < facts["held_out_before"]["rms_sd"]
    assert not any("Warning" in line for line in fit_lines(model.facts_, len(dataset.train)))


def test_exact_weights_warn_of_a_collapse_too() -> None:
    log = simulate(200, 100, density=0.1, strength=4).dataset.train  # strongly selected

    def fit(strength: float) -> DebiasedRecommender:
        part = Balancing(KernelFunctions(n=10), strength=strength, **SIDE)  # type: ignore[arg-type]
        return DebiasedRecommender(part, training=Training(epochs=2)).fit(log)

    with pytest.warns(ConvergenceWarning, match="Lower `strength` or raise `tolerance`") as said:
        model = fit(100.0)
    assert model.facts_["weights"]["warning"] == str(said[0].message)
    assert model.facts_["weights"]["status"] == "solved"
    assert fit(0.3).facts_["weights"]["warning"] is None


@pytest.mark.parametrize(("size", "fires"), [(4.9, True), (5.1, False)])
def test_weights_collapse_below_a_twentieth_of_the_rows(size: float, fires: bool) -> None:
    """k of 100 rows with weight 1 and one with weight a: an effective sample size of (k + a)^2 / (k + a^2)."""
    whole, part = int(size), size - int(size)
    share = min(np.roots([whole + part - 1, -2 * whole, whole * (whole + part) - whole**2]).real, key=abs)
    weights = np.concatenate([np.ones(whole), [share], np.zeros(99 - whole)])
    assert effective_sample_size(weights) == pytest.approx(size)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        message = warn_of_collapse(weights, "Way out.")
    assert (message is not None) is fires
    assert len(said) == fires
