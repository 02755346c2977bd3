"""Weights that balance the log against all pairs: exact, cross-fitted, or by the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from counterpoise import ConfigError, Dataset, DebiasedRecommender, SimulatedData, Training, make, simulate
from counterpoise.balance.features import observed_pairs, pair_features
from counterpoise.balance.functions import CustomFunctions, KernelFunctions, Moments
from counterpoise.balance.kernels import Exponential, Gaussian
from counterpoise.cli.describe import fit_lines
from counterpoise.config import Select, Solver, Units
from counterpoise.imputation.base import Constant, Learned, NoImputation
from counterpoise.imputation.targeted import Targeted
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.training.contracts import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import train
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, Uniform
from counterpoise.weights.gradient import weight_loss

SIDE = {"features": "side"}
EVERY_RULE = pytest.mark.parametrize("select", ["random", "worst_case", "greedy", "adaptive", "spectral"])


def context_of(dataset: Dataset, **settings: object) -> FitContext:
    training = Training(epochs=5, **settings)  # type: ignore[arg-type]
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    return FitContext(dataset.train, dataset.probe, MatrixFactorization(dim=4), training, device, generator)


def errors_of(dataset: Dataset) -> torch.Tensor:
    """Any function of the row will do for an error."""
    return torch.from_numpy(0.5 + 0.3 * dataset.train.labels + 0.01 * dataset.train.items)


def solved(part: Balancing, dataset: Dataset):
    """The weights after their first refresh."""
    fitted_weights = part.init(context_of(dataset))
    fitted_weights.refresh(1, lambda: errors_of(dataset))
    return fitted_weights


@EVERY_RULE
@pytest.mark.parametrize("kernel", [Gaussian(), Exponential()])
def test_weighted_means_over_the_log_are_means_over_all_pairs(
    select: Select, kernel: Gaussian | Exponential, dataset: Dataset
) -> None:
    functions = KernelFunctions(kernel, n=5, select=select, candidates=40)
    fitted_weights = solved(
        Balancing(functions, strength=float("inf") if select != "worst_case" else 1e6, **SIDE), dataset
    )
    (fold,) = fitted_weights.folds
    everything = fold.pairs.at(*(codes.ravel() for codes in np.indices((60, 50)))).features(slice(None))
    over_all_pairs = fold.fitted.values(everything).mean(0)
    ratio = fitted_weights.ratio.double()
    over_the_log = ratio @ fold.fitted.values(fold.observed.features(slice(None))) / len(ratio)
    assert ratio.mean() == pytest.approx(1, abs=1e-5)
    assert (ratio >= 0).all()
    assert (over_the_log - over_all_pairs).abs().max() < (3e-3 if select == "worst_case" else 1e-5)


def test_no_strength_gives_the_prior_back(dataset: Dataset) -> None:
    assert torch.allclose(solved(Balancing(strength=0.0, **SIDE), dataset).ratio, torch.ones(len(dataset.train)))
    prior = NaiveBayes().init(context_of(dataset)).ratio
    assert torch.allclose(solved(Balancing(strength=0.0, prior="naive-bayes", **SIDE), dataset).ratio, prior, atol=1e-5)


def test_ratios_are_the_weight_function_at_their_pairs(dataset: Dataset) -> None:
    for prior in ("uniform", "naive-bayes"):
        fitted_weights = solved(Balancing(KernelFunctions(n=5), prior=prior, **SIDE), dataset)
        log = dataset.train
        users, items, labels = (torch.from_numpy(np.asarray(x)) for x in (log.users, log.items, log.labels))
        assert torch.allclose(fitted_weights.at(users, items, labels), fitted_weights.ratio, rtol=1e-4)
    everywhere = solved(Balancing(KernelFunctions(n=5), **SIDE), dataset).at(None, None)
    assert everywhere.shape == (60 * 50,)


def test_learned_features_of_a_row_come_from_the_other_folds(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    learned_from, own = [], Balancing.pairs
    with monkeypatch.context() as patch:
        patch.setattr(Balancing, "pairs", lambda part, given: learned_from.append(given.log) or own(part, given))
        fitted_weights = solved(Balancing(KernelFunctions(n=5), folds=3), dataset)
    rows = torch.cat([fold.rows for fold in fitted_weights.folds])
    assert sorted(rows.tolist()) == list(range(len(dataset.train)))
    for fold, log in zip(fitted_weights.folds, learned_from, strict=True):
        assert fitted_weights.ratio[fold.rows].mean() == pytest.approx(1, abs=1e-5)
        others = np.setdiff1d(np.arange(len(dataset.train)), fold.rows.numpy())
        assert np.array_equal(log.pairs, dataset.train.take(others).pairs)
    both = solved(Balancing(KernelFunctions(n=5), features=("exposure", "activity")), dataset)
    for fold in both.folds:  # activity too is that of the other rows
        rows = np.setdiff1d(np.arange(len(dataset.train)), fold.rows.numpy())
        counts = np.log1p(np.bincount(dataset.train.items[rows], minlength=50))
        assert np.allclose(fold.pairs.items[:, -1], (counts - counts.mean()) / counts.std())
    assert len(solved(Balancing(KernelFunctions(n=5), **SIDE), dataset).folds) == 1


def test_the_weight_of_a_pair_is_the_mean_over_folds(dataset: Dataset) -> None:
    for prior in ("uniform", "naive-bayes"):
        fitted_weights = solved(Balancing(KernelFunctions(n=5), prior=prior), dataset)
        log = dataset.train
        users, items, labels = (torch.from_numpy(np.asarray(x)) for x in (log.users, log.items, log.labels))
        factors = [fold.factor(users.long(), items.long()) for fold in fitted_weights.folds]
        expected = fitted_weights.prior.ratio * (factors[0] + factors[1]) / 2
        assert torch.allclose(fitted_weights.at(users, items, labels), expected.float(), rtol=1e-4)
        for fold, factor in zip(fitted_weights.folds, factors, strict=True):  # its own, on the rows of a fold
            own = factor[fold.rows] * fitted_weights.prior.ratio[fold.rows]
            assert torch.allclose(own.float(), fitted_weights.ratio[fold.rows], rtol=1e-3)


def test_before_the_first_solution_weights_are_the_prior(dataset: Dataset) -> None:
    fitted_weights = Balancing(**SIDE).init(context_of(dataset))
    assert torch.equal(fitted_weights.at(None, None), torch.ones(60 * 50))
    DebiasedRecommender(
        Balancing(KernelFunctions(n=3, select="adaptive"), refresh=1), "dr", Targeted(), training=Training(3)
    ).fit(dataset.train)


def test_the_kept_weights_are_those_of_the_best_epoch(dataset: Dataset) -> None:
    """With patience the ratios go back with the parameters."""
    part = Balancing(KernelFunctions(n=3, select="adaptive"), refresh=1, **SIDE)
    model = DebiasedRecommender(part, training=Training(epochs=30, patience=3, learning_rate=0.3))
    ratios: dict[int, np.ndarray] = {}
    original = Learner.step

    def step(learner: Learner, batch: object, rate: float) -> torch.Tensor:
        ratios[len(ratios) + 1] = learner.weights.ratio.cpu().numpy().copy()
        return original(learner, batch, rate)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", step)
        model.fit(dataset.train)
    best = model.history_.best_epoch
    assert best < len(model.history_.loss) == len(ratios)
    assert np.array_equal(model.ratio_, ratios[best])
    assert not np.array_equal(model.ratio_, ratios[len(ratios)])


def test_algorithm_1_starts_from_its_prior_and_fits_the_residual(dataset: Dataset) -> None:
    seen = []

    class Watching(_Fixed):
        adaptive = True

        def fit(self, population: object, observed: object, errors: object, *others: object) -> object:
            seen.append(errors)
            return self.fitted

    fitted = KernelFunctions(n=3, select="random", candidates=10).fit(pair_features(dataset.train, ("side",)))
    part = Balancing(Watching(fitted), strength=0.0, prior="naive-bayes", solver="gradient", **SIDE)  # type: ignore[arg-type]
    context = context_of(dataset)
    learner = Learner.init(context, part, "dr", Constant(0.3))
    prior = NaiveBayes().init(context).ratio
    with torch.no_grad():
        for parameter in learner.weights.scorer.parameters():
            parameter.zero_()
    batch = context.batches(True).whole()
    logits = learner.scorer(batch.users, batch.items).detach()
    learner.step(batch, 1e-9)
    errors = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    assert torch.allclose(seen[0], errors - (torch.nn.functional.softplus(logits) - 0.3 * logits), atol=1e-5)
    assert torch.allclose(learner.weights.ratio, prior / prior.mean(), atol=1e-3)
    learner.weights.ratio = torch.zeros_like(prior)
    learner.facts([batch])
    assert torch.allclose(learner.weights.ratio, prior / prior.mean(), atol=1e-3)


def test_where_nothing_is_selected_cross_fitted_weights_stay_near_one() -> None:
    """Features that saw the rows they describe would find a selection that is not there."""
    dataset = simulate(200, 150, density=0.1, strength=0.0, seed=1).dataset
    spread = {}
    for folds in (1, 2):
        model = DebiasedRecommender(Balancing(folds=folds), training=Training(epochs=60)).fit(dataset.train)
        spread[folds] = float(model.ratio_.std())
    assert spread[2] < 0.2
    assert spread[2] < spread[1] / 3


def test_adaptive_rules_choose_again_and_fixed_rules_do_not(dataset: Dataset) -> None:
    for select, changes in (("adaptive", True), ("spectral", False)):
        fitted_weights = solved(Balancing(KernelFunctions(n=3, select=select), refresh=2, **SIDE), dataset)  # type: ignore[arg-type]
        first = fitted_weights.ratio.clone()
        for epoch in (2, 3):
            assert torch.equal(fitted_weights.ratio, first)
            fitted_weights.refresh(epoch, lambda: -errors_of(dataset).flip(0).square())
        assert torch.equal(fitted_weights.ratio, first) is not changes


def test_the_exact_solution_has_the_least_weight_loss(dataset: Dataset) -> None:
    """L_w of the dual's weights, of those that gradient steps reach, and of uniform ones, on the same functions."""
    log = dataset.train
    functions = KernelFunctions(n=5, select="random", candidates=40)
    prices = {"tolerance": 0.01, "strength": 5.0}
    exact = solved(Balancing(functions, **prices, **SIDE), dataset)
    (fold,) = exact.folds
    fixed = _Fixed(fold.fitted)
    context = context_of(dataset)
    context = FitContext(log, None, context.backbone, Training(epochs=200), context.device, context.generator)
    learner = Learner.init(context, Balancing(fixed, solver="gradient", **prices, **SIDE), "ips", NoImputation())  # type: ignore[arg-type]
    train(learner, context.batches(True), None, context.training)
    learner.facts(context.batches(True).final())
    values = fold.fitted.values(observed_pairs(log, fold.pairs).features(slice(None)))
    base = torch.full((len(log),), -np.log(len(log)), dtype=torch.float64)

    def loss(ratio: torch.Tensor) -> float:
        log_mass = (ratio.double() / len(log)).clamp(min=1e-300).log()
        return float(weight_loss(log_mass, base, values, fold.fitted, **prices))

    dual, gradient, uniform = loss(exact.ratio), loss(learner.weights.ratio), loss(torch.ones(len(log)))
    assert dual == pytest.approx(fold.result.objective, rel=1e-4)
    assert dual < gradient < uniform


class _Fixed:
    """Functions that are already chosen."""

    adaptive = False

    def __init__(self, fitted: object) -> None:
        self.fitted = fitted

    def fit(self, *arguments: object, **others: object) -> object:
        return self.fitted


@pytest.mark.parametrize("units", ["sd", "raw"])
def test_weight_loss_is_the_paper_s_formula(units: Units, dataset: Dataset) -> None:
    fitted = KernelFunctions(n=3, select="random", candidates=10).fit(pair_features(dataset.train, ("side",)))
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    mass = torch.rand(7, generator=generator, dtype=torch.float64)
    mass /= mass.sum()
    expected = 0.0
    for row in range(7):
        expected += float(mass[row]) * np.log(float(mass[row]) * 7)
    for j in range(3):
        imbalance = sum(float(mass[row] * values[row, j]) for row in range(7)) - float(fitted.targets[j])
        scale = float(fitted.scale[j]) if units == "sd" else 1.0
        expected += 5.0 / scale * max(0.0, abs(imbalance) - 0.1 * scale)
    base = torch.full((7,), -np.log(7.0), dtype=torch.float64)
    found = weight_loss(mass.log(), base, values, fitted, 0.1, 5.0, units)
    assert float(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("solver", ["dual", "gradient"])
def test_raw_strength_is_sd_strength_over_the_sd(solver: Solver, dataset: Dataset) -> None:
    """With one function, and the same draws of it."""
    (fold,) = solved(Balancing(Moments(1), **SIDE), dataset).folds
    only = CustomFunctions(lambda x: 3.0 * x[:, :1])
    sd = float(only.fit(fold.pairs).scale[0])
    ratios = [
        trained_ratio(Balancing(only, tolerance / unit, strength * unit, units=units, solver=solver, **SIDE), dataset)
        for tolerance, strength, units, unit in ((0.02, 0.4, "raw", 1.0), (0.02, 0.4, "sd", sd))
    ]
    assert sd > 2
    assert torch.allclose(*ratios, rtol=1e-4)
    assert float(ratios[0].std()) > 0.01


def trained_ratio(part: Balancing, dataset: Dataset) -> torch.Tensor:
    """The ratios after a few epochs."""
    context = replace(context_of(dataset), training=Training(epochs=5))
    learner = Learner.init(context, part, "ips", NoImputation())
    train(learner, context.batches(learner.uses_pairs), None, context.training)
    learner.facts(context.batches(learner.uses_pairs).final())
    return learner.weights.ratio


def test_weight_loss_of_the_worst_case_is_a_quadratic_form(dataset: Dataset) -> None:
    fitted = KernelFunctions(n=5, select="worst_case", candidates=10).fit(pair_features(dataset.train, ("side",)))
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(7, len(fitted.targets), generator=generator, dtype=torch.float64)
    base, logits = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    mass, prior = (np.exp(scores) / np.exp(scores).sum() for scores in (logits.numpy(), base.numpy()))
    imbalance = mass @ values.numpy() - fitted.targets.numpy()
    expected = (mass * np.log(mass / prior)).sum()
    expected += 3.0 * imbalance @ np.linalg.solve(fitted.matrix.numpy(), imbalance)
    found = weight_loss(logits.log_softmax(0), base, values, fitted, 0.5, 3.0)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("select", ["random", "worst_case"])
def test_gradient_of_the_weight_loss_is_that_of_differences(select: Select, dataset: Dataset) -> None:
    fitted = KernelFunctions(n=5, select=select, candidates=10).fit(pair_features(dataset.train, ("side",)))
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(7, len(fitted.targets), generator=generator, dtype=torch.float64)
    base = torch.rand(7, generator=generator).double().log_softmax(0)
    logits = torch.randn(7, generator=generator).double().requires_grad_()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return weight_loss((logits + base).log_softmax(0), base, values, fitted, 0.5, 3.0)

    assert torch.autograd.gradcheck(loss, (logits,))


def test_worst_case_weights_have_the_smallest_worst_case_bias(dataset: Dataset) -> None:
    """v'(G + lambda K)^-1 v for the weights of every rule, on the same candidates."""
    judge = KernelFunctions(n=10, select="worst_case", candidates=40)
    weights = solved(Balancing(judge, **SIDE), dataset)
    (fold,) = weights.folds
    values, matrix = fold.fitted.values(fold.observed.features(slice(None))), fold.fitted.matrix

    def worst_bias(ratio: torch.Tensor) -> float:
        difference = ratio.double() @ values / len(ratio) - fold.fitted.targets
        return float(difference @ torch.linalg.solve(matrix, difference))

    others = {"uniform": torch.ones_like(weights.ratio)}
    for select in ("random", "adaptive", "spectral"):
        rule = KernelFunctions(n=10, select=select, candidates=40)  # type: ignore[arg-type]
        others[select] = solved(Balancing(rule, **SIDE), dataset).ratio
    assert worst_bias(weights.ratio) < min(map(worst_bias, others.values()))


@pytest.mark.filterwarnings("error::counterpoise.errors.ConvergenceWarning")
@pytest.mark.parametrize("bandwidth", ["median", 0.5, 1.0, 5.0])
def test_the_worst_case_is_solved_for_the_papers_bandwidths(bandwidth) -> None:
    train = simulate(n_users=40, n_items=30, density=0.3, test_rows_a_user=10, probe_fraction=0.3).dataset.train
    facts = make("wkb-ips", bandwidth=bandwidth, epochs=1).fit(train).facts_["weights"]
    assert facts["status"] == "solved"


def test_the_worst_case_as_printed_is_degenerate() -> None:
    """sup over all functions f on D of (mean_D (o w - 1) f)^2 / mean_D f^2 = mean_D (o w - 1)^2: no kernel in sight.

    Under sum over O of w = |D| its least value is at equal weights.
    """
    rng = np.random.default_rng(0)
    observed = rng.random(40) < 0.4
    points = rng.standard_normal((40, 2))

    def printed(weights: np.ndarray, bandwidth: float) -> float:
        gap = np.where(observed, weights, 0.0) - 1  # o w - 1
        kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / (2 * bandwidth))
        direction = kernel @ np.linalg.solve(kernel, gap)  # the f that attains it, a combination of kernels
        return float(np.mean(gap * direction) ** 2 / np.mean(direction**2))

    equal = np.full(40, 40 / observed.sum())
    for _ in range(20):
        other = np.where(observed, rng.random(40), 0.0)
        other *= 40 / other[observed].sum()
        gap = np.where(observed, other, 0.0) - 1
        assert printed(other, 0.05) == pytest.approx(np.mean(gap**2), rel=1e-6)
        assert printed(other, 0.3) == pytest.approx(np.mean(gap**2), rel=1e-6)
        assert printed(equal, 0.05) < printed(other, 0.05)


@pytest.mark.parametrize("select", ["random", "adaptive", "worst_case", "greedy"])
def test_algorithm_1_moves_every_part(select: Select, dataset: Dataset) -> None:
    part = Balancing(KernelFunctions(n=3, select=select, candidates=40), solver="gradient", **SIDE)
    context = context_of(dataset, batch_size=100)
    learner = Learner.init(context, part, "dr", Learned())
    before = [tensor.clone() for tensor in learner.state()]
    train(learner, context.batches(True), None, context.training)
    after = learner.state()
    moved = [not torch.equal(*tensors) for tensors in zip(before, after, strict=True) if tensors[0].ndim]
    assert all(moved)  # all but the weight model's mean, on which no softmax depends
    facts = learner.facts(context.batches(True).final())
    assert learner.weights.ratio.mean() == pytest.approx(1, abs=1e-4)
    assert np.isfinite(facts["weights"]["last_weight_loss"])


def test_dr_balances_the_residual_and_ips_the_error(dataset: Dataset) -> None:
    """The adaptive rule is fitted to e - e^ in DR, as the paper's footnote says, and to e in IPS."""
    seen = {}
    for risk, imputation in (("ips", NoImputation()), ("dr", Constant(0.3))):
        context = context_of(dataset)
        learner = Learner.init(context, Uniform(), risk, imputation)
        learner.weights.refresh = lambda epoch, residuals, risk=risk: seen.update({risk: residuals()})  # type: ignore[method-assign]
        learner.start_epoch(1)
        batch = context.batches().whole()
        logits = learner.scorer(batch.users, batch.items)
        errors = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        imputed = torch.nn.functional.softplus(logits) - 0.3 * logits
        expected = errors if risk == "ips" else errors - imputed
        assert torch.allclose(seen[risk], expected.detach(), atol=1e-6)


def test_facts_hold_the_balance_reached(dataset: Dataset) -> None:
    model = DebiasedRecommender(Balancing(KernelFunctions(n=10), strength="exact", **SIDE), training=Training(epochs=3))
    facts = model.fit(dataset.train).facts_["weights"]
    assert facts["status"] == "solved"
    assert facts["gap"] < 1e-7
    assert facts["held_out_after"]["rms_sd"] < facts["held_out_before"]["rms_sd"] / 2
    assert facts["effective_sample_size"] < len(dataset.train)


def test_functions_are_counted_fold_by_fold() -> None:
    log = simulate(n_users=60, n_items=50, seed=1).dataset.train
    part = Balancing(KernelFunctions(select="greedy"))
    facts = DebiasedRecommender(part, training=Training(epochs=1, seed=3)).fit(log).facts_
    counts = [len(fold["names"]) for fold in facts["weights"]["balanced"]]
    assert len(set(counts)) == 2  # a rule that stops by itself
    assert facts["weights"]["functions"] == max(counts)
    found = f"of {sum(counts)} functions keep some imbalance (relaxed)"
    assert any(found in line for line in fit_lines(facts, len(log)))


def test_theorem_1_in_training(world: SimulatedData, dataset: Dataset) -> None:
    """If the error lies in the span of balanced functions, the IPS risk is the ideal risk."""
    fitted_weights = solved(Balancing(KernelFunctions(n=8), strength=float("inf"), **SIDE), dataset)
    (fold,) = fitted_weights.folds
    everything = fold.pairs.at(*(codes.ravel() for codes in np.indices((60, 50)))).features(slice(None))
    alpha = torch.randn(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ideal = (fold.fitted.values(everything) @ alpha + 0.7).mean()
    weights = torch.as_tensor(fold.result.weights)
    risk = weights @ (fold.fitted.values(fold.observed.features(slice(None))) @ alpha + 0.7)
    assert float(risk) == pytest.approx(float(ideal), abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"tolerance": -1.0}, "tolerance"),
        ({"strength": -1.0}, "strength"),
        ({"refresh": 0}, "refresh"),
        ({"folds": 0}, "folds"),
        ({"prior": "flat"}, "prior"),
        ({"solver": "magic"}, "solver"),
        ({"features": "colour"}, "features"),
        ({"functions": 3}, "functions"),
        ({"embedder": "mf"}, "embedder"),
        ({"solver": "gradient", "strength": float("inf")}, "solver"),
    ],
)
def test_bad_settings_name_the_setting(settings: dict[str, object], word: str, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=word):
        DebiasedRecommender(Balancing(**settings)).fit(dataset.train)  # type: ignore[arg-type]


def test_naive_bayes_prior_needs_a_probe(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="probe"):
        DebiasedRecommender(Balancing(prior="naive-bayes")).fit(dataset.train)


def test_moments_can_be_balanced(dataset: Dataset) -> None:
    fitted_weights = solved(Balancing(Moments(2), strength=float("inf"), **SIDE), dataset)
    (fold,) = fitted_weights.folds
    assert fold.result.max_violation < 1e-6
