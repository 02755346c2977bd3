"""Imputations corrected by regression: targeted (TDR) and multiply robust (MR)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_world import Known, Labels, Observed, SmallWorld, log_loss
from torch import Tensor

from counterpoise import (
    ConfigError,
    Dataset,
    DebiasedRecommender,
    Logistic,
    MatrixFactorization,
    Training,
    Uniform,
    make,
)
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Constant, Learned
from counterpoise.imputation.multiply_robust import MultiplyRobust
from counterpoise.imputation.targeted import Targeted, regression
from counterpoise.risks import direct, dr, error
from counterpoise.training.contracts import FitContext, FittedImputation, FittedWeights, LogErrors, StepInputs, Weights
from counterpoise.training.learner import Learner
from counterpoise.weights.base import NaiveBayes

WORLD = SmallWorld()
COVARIATES = ("odds", "weight")


def init(seen: Observed, part, propensity: np.ndarray | None = None) -> FittedImputation:
    weights = Known(seen.world.propensity if propensity is None else propensity)
    return part.init(seen.context, weights.init(seen.context))


def targeted(seen: Observed, covariate: str, labels: np.ndarray = WORLD.imputed_labels) -> FittedImputation:
    return init(seen, Targeted(Labels(labels), covariate))


def covariate_of(name: str, propensity: np.ndarray) -> np.ndarray:
    return 1 / propensity - 1 if name == "odds" else 1 / propensity


def value(tensor: Tensor) -> float:
    return tensor.detach().item()


def numbers(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]


# ---- the regression --------------------------------------------------------------------------------------------------


def test_the_regression_is_least_squares() -> None:
    rng = np.random.default_rng(0)
    columns, target = rng.standard_normal((30, 4)) * [1, 0.01, 1e3, 2], rng.standard_normal(30)
    expected = np.linalg.lstsq(columns, target, rcond=None)[0]
    got = regression(torch.from_numpy(columns), torch.from_numpy(target)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_the_ridge_is_relative_to_each_column() -> None:
    rng = np.random.default_rng(1)
    columns, target, ridge = rng.standard_normal((30, 3)) * [1, 50, 0.01], rng.standard_normal(30), 0.3
    gram = columns.T @ columns / 30
    expected = np.linalg.solve(gram + ridge * np.diag(np.diag(gram)), columns.T @ target / 30)
    got = regression(torch.from_numpy(columns), torch.from_numpy(target), ridge).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_columns_of_zeros_and_columns_that_repeat_do_no_harm() -> None:
    rng = np.random.default_rng(2)
    column, target = rng.standard_normal(30), rng.standard_normal(30)
    table = torch.from_numpy(np.stack([column, 0 * column, column], axis=1)).requires_grad_()
    got = regression(table, torch.from_numpy(target))
    assert got[1].item() == 0
    assert (got[0] + got[2]).item() == pytest.approx(column @ target / (column @ column), rel=1e-3)
    assert torch.isfinite(torch.autograd.grad(got.sum(), table)[0]).all()


def test_gradients_of_the_regression_are_right() -> None:
    rng = np.random.default_rng(3)
    columns = torch.from_numpy(rng.standard_normal((8, 3))).requires_grad_()
    target = torch.from_numpy(rng.standard_normal(8)).requires_grad_()
    assert torch.autograd.gradcheck(lambda c, t: regression(c, t, 0.2), (columns, target))


# ---- targeted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariate", COVARIATES)
def test_targeting_is_the_formula(covariate: str) -> None:
    seen = WORLD.observe()
    c = covariate_of(covariate, WORLD.propensity)
    above = below = 0.0
    for user, item in zip(seen.users, seen.items, strict=True):
        above += c[user, item] * (WORLD.errors[user, item] - WORLD.imputed[user, item])
        below += c[user, item] ** 2
    expected = WORLD.imputed + above / below * c
    _, _, on_rows, on_pairs = seen.ask(targeted(seen, covariate))
    np.testing.assert_allclose(on_rows.detach(), expected[seen.mask], atol=1e-10)
    np.testing.assert_allclose(on_pairs.detach(), expected.ravel(), atol=1e-10)


def test_odds_targeting_imputes_unobserved_pairs_alone() -> None:
    seen = WORLD.observe()
    _, errors, on_rows, on_pairs = seen.ask(targeted(seen, "odds"))
    odds = 1 / seen.at(WORLD.propensity) - 1
    assert abs(value((odds * (errors - on_rows)).sum())) < 1e-8 * value(odds.square().sum())
    table = on_pairs.detach().numpy().reshape(WORLD.shape)
    expected = np.where(seen.mask, WORLD.errors, table).mean()
    assert value(dr(errors, seen.ratio(WORLD.propensity), on_rows, on_pairs)) == pytest.approx(expected, abs=1e-10)


def test_with_weights_the_correction_of_dr_is_zero() -> None:
    seen = WORLD.observe()
    _, errors, on_rows, on_pairs = seen.ask(targeted(seen, "weight"))
    expected = value(on_pairs.mean())
    assert value(dr(errors, seen.ratio(WORLD.propensity), on_rows, on_pairs)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("covariate", COVARIATES)
def test_targeted_dr_is_dr_with_weights_that_balance_the_covariate(covariate: str) -> None:
    seen = WORLD.observe()
    c = covariate_of(covariate, WORLD.propensity)
    squares = (c[seen.mask] ** 2).sum()
    weights = 1 + c * c[~seen.mask].sum() / squares if covariate == "odds" else c * c.sum() / squares
    assert (weights * c)[seen.mask].sum() == pytest.approx(c.sum(), rel=1e-12)
    table, errors, on_rows, on_pairs = seen.ask(targeted(seen, covariate))
    risk = dr(errors, seen.ratio(WORLD.propensity), on_rows, on_pairs)
    plain_table, plain_errors, *plain = seen.ask(init(seen, Labels(WORLD.imputed_labels)))
    reweighted = dr(plain_errors, seen.at(weights) * seen.density, *plain)
    assert value(risk) == pytest.approx(value(reweighted), abs=1e-10)
    gradients = torch.autograd.grad(risk, table)[0], torch.autograd.grad(reweighted, plain_table)[0]
    np.testing.assert_allclose(*numbers(*gradients), atol=1e-12)


@pytest.mark.parametrize("covariate", COVARIATES)
def test_with_a_fixed_coefficient_targeting_would_not_change_the_gradient(covariate: str) -> None:
    seen, ratio = WORLD.observe(), WORLD.observe().ratio(WORLD.propensity)
    table, errors, *plain = seen.ask(init(seen, Labels(WORLD.imputed_labels)))
    untargeted = torch.autograd.grad(dr(errors, ratio, *plain), table)[0]
    c = covariate_of(covariate, WORLD.propensity)
    table, errors, on_rows, on_pairs = seen.ask(init(seen, Labels(WORLD.imputed_labels)))
    fixed = dr(errors, ratio, on_rows + 0.3 * seen.at(c), on_pairs + 0.3 * torch.from_numpy(c).flatten())
    np.testing.assert_allclose(*numbers(torch.autograd.grad(fixed, table)[0], untargeted), atol=1e-14)
    table, errors, *corrected = seen.ask(targeted(seen, covariate))
    moved = torch.autograd.grad(dr(errors, ratio, *corrected), table)[0]
    assert value((moved - untargeted).abs().max()) > 1e-3 * value(untargeted.abs().max())


@pytest.mark.parametrize("covariate", COVARIATES)
def test_targeting_twice_is_targeting_once(covariate: str) -> None:
    seen = WORLD.observe()
    once = seen.ask(targeted(seen, covariate))[2:]
    twice = seen.ask(init(seen, Targeted(Targeted(Labels(WORLD.imputed_labels), covariate), covariate)))[2:]
    for first, second in zip(once, twice, strict=True):
        np.testing.assert_allclose(*numbers(first, second), atol=1e-10)


@pytest.mark.parametrize("covariate", COVARIATES)
def test_right_imputations_are_left_alone(covariate: str) -> None:
    seen = WORLD.observe()
    _, errors, *corrected = seen.ask(targeted(seen, covariate, WORLD.labels))
    np.testing.assert_allclose(corrected[1].detach(), WORLD.errors.ravel(), atol=1e-10)
    assert value(dr(errors, seen.ratio(WORLD.propensity), *corrected)) == pytest.approx(WORLD.ideal, abs=1e-10)


def test_with_a_constant_propensity_targeting_adds_the_mean_residual() -> None:
    seen = WORLD.observe()
    part = Targeted(Labels(WORLD.imputed_labels))
    on_pairs = seen.ask(init(seen, part, np.full(WORLD.shape, 0.2)))[3]
    shift = (WORLD.errors - WORLD.imputed)[seen.mask].mean()
    np.testing.assert_allclose(on_pairs.detach(), WORLD.imputed.ravel() + shift, atol=1e-10)


def test_certain_observation_leaves_nothing_to_target() -> None:
    seen = WORLD.observe()
    _, _, on_rows, _ = seen.ask(init(seen, Targeted(Labels(WORLD.imputed_labels)), np.ones(WORLD.shape)))
    np.testing.assert_allclose(on_rows.detach(), WORLD.imputed[seen.mask], atol=1e-14)


def test_the_base_learns_what_the_correction_leaves() -> None:
    seen = WORLD.observe()
    fitted_imputation = targeted(seen, "odds")
    _, errors, on_rows, _ = seen.ask(fitted_imputation)
    _, logits, pair_logits = (tensor.detach() for tensor in seen.logits())
    fitted_imputation.step(
        StepInputs(seen.batch, logits, pair_logits, errors.detach()), seen.ratio(WORLD.propensity), 1.0
    )
    (shift,) = fitted_imputation.base.shifts
    assert not shift.requires_grad
    np.testing.assert_allclose(shift, on_rows.detach() - seen.at(WORLD.imputed), atol=1e-12)


def batches_of(seen: Observed, size: int) -> list[Batch]:
    """The rows in random order, in batches beside all of D."""
    order, whole = torch.randperm(seen.rows, generator=torch.Generator().manual_seed(0)), seen.batch
    columns = whole.users, whole.items, whole.labels
    return [Batch(rows, *(column[rows] for column in columns), None, None) for rows in torch.split(order, size)]


def on_log(seen: Observed) -> LogErrors:
    logits = seen.logits()[1].detach()
    return LogErrors(seen.batch.without_pairs(), logits, error(seen.batch.labels, logits))


@pytest.mark.parametrize("name", [*COVARIATES, "mr"])
@pytest.mark.parametrize("size", [16, 64, 400])
@pytest.mark.parametrize("risk", ["dr", "direct"])
def test_the_risk_does_not_depend_on_the_batch_size(name: str, size: int, risk: str) -> None:
    """Risk and gradient of batches, averaged over the log, are those of the whole log: exact, since D is whole."""
    seen, risks = WORLD.observe(), []
    part = Targeted(Labels(WORLD.imputed_labels), name) if name != "mr" else MultiplyRobust(CANDIDATES, IMPUTATIONS, 0)
    fitted, gradient = init(seen, part), torch.zeros(WORLD.shape, dtype=torch.float64)
    fitted.refresh(lambda: on_log(seen))
    for batch in batches_of(seen, size):
        table, _, pair_logits = seen.logits()
        logits = table[batch.users, batch.items]
        errors, ratio = error(batch.labels, logits), seen.ratio(WORLD.propensity)[batch.rows]
        imputed = fitted.errors(batch, logits, pair_logits, errors)
        share = len(batch.rows) / seen.rows
        found = share * (dr(errors, ratio, *imputed) if risk == "dr" else direct(imputed[1]))
        risks.append(value(found))
        gradient += torch.autograd.grad(found, table)[0]
    assert seen.rows > size
    table, errors, *imputed = seen.ask(init(seen, part))
    whole = dr(errors, seen.ratio(WORLD.propensity), *imputed) if risk == "dr" else direct(imputed[1])
    assert sum(risks) == pytest.approx(value(whole), abs=1e-9)
    np.testing.assert_allclose(gradient, torch.autograd.grad(whole, table)[0], atol=1e-11)


@pytest.mark.parametrize("size", [60, "full"])
def test_the_coefficient_follows_the_predictor_and_the_base(size: int | str, dataset: Dataset) -> None:
    log, training = dataset.train, Training(batch_size=size)
    context = FitContext(
        log, None, MatrixFactorization(dim=3), training, torch.device("cpu"), torch.Generator().manual_seed(0)
    )
    learner = Learner.init(context, Logistic(), "dr", Targeted(Learned()))
    for epoch in (1, 2, 3):
        learner.start_epoch(epoch)
        if size == 60 or epoch == 1:
            above = below = 0.0
            logits, labels = learner.scorer.grid().detach().numpy(), learner.imputation.base.scorer.grid().sigmoid()
            ratio = learner.weights.at(None, None).numpy().reshape(log.shape)
            for user, item, label in zip(log.users, log.items, log.labels, strict=True):
                c = ratio[user, item] / log.density - 1
                imputed = labels[user, item].item()
                above += c * (log_loss(label, logits[user, item]) - log_loss(imputed, logits[user, item]))
                below += c**2
        before, scale = learner.imputation.on_log.eta, learner.imputation.on_log.scale
        assert value(before * scale) == pytest.approx(above / below, rel=1e-4) or (size == "full" and epoch > 1)
        for batch in context.batches(pairs=True).epoch():
            learner.step(batch, 1.0)
        assert (learner.imputation.on_log.eta == before) == (size == 60)  # the whole log as a batch has its own


def test_targeting_needs_weights_on_all_pairs(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="naive Bayes weights are known only where the label is"):
        DebiasedRecommender(NaiveBayes(), "dr", Targeted(Constant())).fit(dataset.train, dataset.probe)


# ---- multiply robust -------------------------------------------------------------------------------------------------

CANDIDATES = (Known(WORLD.propensity), Known(WORLD.wrong_propensity))
OTHER_LABELS = np.random.default_rng(9).random(WORLD.shape)
IMPUTATIONS = (Labels(WORLD.imputed_labels), Labels(OTHER_LABELS))


def multiple(seen: Observed, propensities=CANDIDATES, imputations=IMPUTATIONS, ridge: float = 0.0):
    return seen.ask(init(seen, MultiplyRobust(propensities, imputations, ridge)))


def risk_of(seen: Observed, *candidates, ridge: float = 0.0) -> float:
    return value(direct(multiple(seen, *candidates, ridge=ridge)[3]))


def candidates_table() -> np.ndarray:
    """u of each pair, the constant last. (pairs, 5)"""
    seen = WORLD.observe()
    _, _, other = seen.ask(init(seen, Labels(OTHER_LABELS)))[1:]
    columns = [1 / WORLD.propensity, 1 / WORLD.wrong_propensity, WORLD.imputed, other.detach().numpy()]
    return np.stack([*(column.ravel() for column in columns), np.ones(WORLD.pairs)], axis=1)


def test_multiple_is_least_squares_on_its_candidates() -> None:
    seen, u = WORLD.observe(), candidates_table()
    observed = seen.mask.ravel()
    eta = np.linalg.lstsq(u[observed], WORLD.errors.ravel()[observed], rcond=None)[0]
    _, _, on_rows, on_pairs = multiple(seen)
    np.testing.assert_allclose(on_pairs.detach(), u @ eta, rtol=1e-8)
    np.testing.assert_allclose(on_rows.detach(), (u @ eta)[observed], rtol=1e-8)


def test_multiply_robust_weights_balance_the_candidates() -> None:
    seen, u = WORLD.observe(), candidates_table()
    observed = u[seen.mask.ravel()]
    weights = observed @ np.linalg.solve(observed.T @ observed, u.mean(axis=0))
    np.testing.assert_allclose(weights @ observed, u.mean(axis=0), rtol=1e-10)
    assert risk_of(seen) == pytest.approx(weights @ WORLD.errors[seen.mask], abs=1e-10)


def test_the_risk_is_dr_under_every_candidate_at_once() -> None:
    seen = WORLD.observe()
    _, errors, on_rows, on_pairs = multiple(seen)
    for propensity in (WORLD.propensity, WORLD.wrong_propensity, np.full(WORLD.shape, 0.3)):
        assert value(dr(errors, seen.ratio(propensity), on_rows, on_pairs)) == pytest.approx(
            value(on_pairs.mean()), abs=1e-9
        )


def test_one_right_imputation_gives_the_ideal_loss() -> None:
    for seed in range(3):
        got = risk_of(WORLD.observe(seed), CANDIDATES, (Labels(OTHER_LABELS), Labels(WORLD.labels)))
        assert got == pytest.approx(WORLD.ideal, abs=1e-9)


def test_the_scale_and_the_order_of_candidates_do_not_matter() -> None:
    seen = WORLD.observe()
    scaled = (Known(WORLD.wrong_propensity / 7), Known(WORLD.propensity * 3))
    assert risk_of(seen, scaled, IMPUTATIONS[::-1]) == pytest.approx(risk_of(seen), abs=1e-9)


def test_a_constant_propensity_alone_is_the_plain_mean() -> None:
    seen = WORLD.observe()
    for propensities in ((Known(np.full(WORLD.shape, 0.3)),), ()):
        assert risk_of(seen, propensities, ()) == pytest.approx(WORLD.errors[seen.mask].mean(), rel=1e-10)


def test_one_right_propensity_is_enough_with_many_pairs() -> None:
    world = SmallWorld(120, 150, seed=3)
    wrong = Known(world.wrong_propensity)
    found: dict[str, list[float]] = {"with": [], "without": []}
    for seed in range(60):
        seen = world.observe(seed)
        for name, propensities in (("with", (Known(world.propensity), wrong)), ("without", (wrong,))):
            found[name].append(risk_of(seen, propensities, (Labels(world.imputed_labels),)))
    bias = {name: abs(np.mean(values) - world.ideal) for name, values in found.items()}
    assert bias["with"] < 0.15 * bias["without"]


def test_the_default_ridge_keeps_multiple_robustness() -> None:
    """One candidate, the right one: a ridge r leaves r / (1 + r) of the bias of the plain mean, the default nothing."""
    world, default = SmallWorld(120, 150, seed=3), make("mr").imputation.ridge
    found: dict[float, list[float]] = {0.0: [], default: [], 1.0: []}
    naive = []
    for seed in range(40):
        seen = world.observe(seed)
        naive.append(world.errors[seen.mask].mean())
        for ridge, values in found.items():
            values.append(risk_of(seen, (Known(world.propensity),), (), ridge=ridge))
    bias = {ridge: np.mean(values) - world.ideal for ridge, values in found.items()}
    plain = np.mean(naive) - world.ideal
    assert abs(bias[default]) < 0.1 * abs(plain)
    assert bias[default] == pytest.approx(bias[0.0], abs=1e-4 * abs(plain))
    assert bias[1.0] == pytest.approx((bias[0.0] + plain) / 2, abs=1e-6)


def test_the_gradient_is_that_of_finite_differences() -> None:
    seen = WORLD.observe()
    fitted_imputation = init(seen, MultiplyRobust(CANDIDATES, IMPUTATIONS, 0.01))
    table, _, _, on_pairs = seen.ask(fitted_imputation)
    gradient = torch.autograd.grad(direct(on_pairs), table)[0]
    direction = np.random.default_rng(0).standard_normal(WORLD.shape)
    before, values = WORLD.logits, []
    try:
        for size in (1e-5, -1e-5):
            WORLD.logits = before + size * direction
            values.append(value(direct(seen.ask(fitted_imputation)[3])))
    finally:
        WORLD.logits = before
    slope = (values[0] - values[1]) / 2e-5
    assert value((gradient * torch.from_numpy(direction)).sum()) == pytest.approx(slope, rel=1e-6)


def test_each_imputation_is_trained_with_the_weights_of_its_propensity() -> None:
    seen, ratios = WORLD.observe(), []

    @dataclass
    class Watched(Labels):
        def init(self, context, fitted_weights):
            fitted_imputation = super().init(context, fitted_weights)
            fitted_imputation.step = lambda view, ratio, rate, shift=0.0: ratios.append(ratio)
            return fitted_imputation

    fitted_imputation = init(
        seen, MultiplyRobust(CANDIDATES, (Watched(OTHER_LABELS), Watched(OTHER_LABELS), Watched(OTHER_LABELS)))
    )
    _, logits, pair_logits = (tensor.detach() for tensor in seen.logits())
    fitted_imputation.step(StepInputs(seen.batch, logits, pair_logits, logits), seen.ratio(WORLD.propensity), 1.0)
    expected = [seen.ratio(table) for table in (WORLD.propensity, WORLD.wrong_propensity, WORLD.propensity)]
    for got, ratio in zip(ratios, expected, strict=True):
        np.testing.assert_allclose(got, ratio)


@dataclass
class _Restless(Weights):
    def init(self, context):
        return _Moving()


class _Moving(FittedWeights):
    changes = True


def test_propensities_that_are_learned_on_the_way_are_refused() -> None:
    assert not Uniform().init(WORLD.observe().context).changes
    with pytest.raises(ConfigError, match="`propensities` must be learned before training, and _Restless"):
        init(WORLD.observe(), MultiplyRobust((_Restless(),)))


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Targeted(covariate="propensity"), "`covariate` must be one of 'odds', 'weight', got 'propensity'"),
        (Targeted(base=Uniform()), "`base` must hold Imputation parts"),
        (MultiplyRobust(ridge=-1), "`ridge` must be a number >= 0, got -1"),
        (MultiplyRobust(propensities=(Learned(),)), "`propensities` must hold Weights parts"),
        (MultiplyRobust(imputations=(Uniform(),)), "`imputations` must hold Imputation parts"),
    ],
)
def test_settings_that_break_their_rule_are_named(part, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        init(WORLD.observe(), part)


@pytest.mark.parametrize(
    "settings", [("dr", Targeted()), ("direct", MultiplyRobust((Uniform(),)))], ids=lambda settings: settings[0]
)
@pytest.mark.parametrize("training", [{}, {"batch_size": 128}, {"patience": 3}])
def test_they_train_with_any_batch_size_and_early_stopping(dataset: Dataset, settings, training) -> None:
    risk, imputation = settings
    model = DebiasedRecommender(Uniform(), risk, imputation, training=Training(epochs=10, **training))
    model.fit(dataset.train, dataset.probe)
    assert model.history_.loss[-1] < model.history_.loss[0]
    assert set(model.facts_["imputation"]) in ({"base"}, {"propensities", "imputations"})
