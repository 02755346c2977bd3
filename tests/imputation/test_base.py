"""What is imputed where nothing was observed, what an imputation is trained for, and who moves whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_world import Known, Observed, SmallWorld, log_loss

from counterpoise import ConfigError, Dataset, DebiasedRecommender, MatrixFactorization, NeuralCF, Training, Uniform
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Constant, Learned, NoImputation, residual_slope, residual_weights
from counterpoise.imputation.multiply_robust import MultiplyRobust
from counterpoise.imputation.targeted import Targeted
from counterpoise.imputation.tri_training import TriTraining
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, Imputation, StepInputs
from counterpoise.training.learner import Learner
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.base import NaiveBayes, UnitWeights
from counterpoise.weights.gradient import WeightModel

WORLD = SmallWorld()
WEIGHT = 1 / torch.from_numpy(WORLD.propensity).flatten()


def context_of(dataset: Dataset, **training) -> FitContext:
    settings = MatrixFactorization(dim=4), Training(**training)
    return FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))


# ---- how much each residual counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weighting", "formula"),
    [
        ("error", lambda p: 1 / p),
        ("variance", lambda p: (1 - p) / p**2),
        ("bias", lambda p: (1 - p) ** 2 / p**3),
    ],
)
def test_residual_weights_are_their_formulas_in_the_propensity(weighting, formula) -> None:
    expected = np.array([formula(p) for p in WORLD.propensity.ravel()])
    np.testing.assert_allclose(residual_weights(weighting, WEIGHT), expected / expected.mean(), rtol=1e-10)


@pytest.mark.parametrize("weighting", ["error", "variance", "bias", "mse"])
def test_residual_weights_average_one_and_follow_the_propensity(weighting) -> None:
    assert float(residual_weights(weighting, WEIGHT).mean()) == pytest.approx(1)
    np.testing.assert_allclose(residual_weights(weighting, torch.full((7,), 12.5)), np.ones(7), rtol=1e-6)


def test_the_ends_of_the_mse_mix_are_bias_and_variance() -> None:
    for weight in (WEIGHT, WEIGHT.float()):
        assert torch.equal(residual_weights("mse", weight, 1.0), residual_weights("bias", weight))
        assert torch.equal(residual_weights("mse", weight, 0.0), residual_weights("variance", weight))


def test_certain_observations_do_not_count_towards_variance_or_bias() -> None:
    for weighting in ("variance", "bias", "mse"):
        weights = residual_weights(weighting, torch.tensor([1.0, 0.5, 4.0]))
        assert weights[:2].tolist() == [0, 0]
        assert residual_weights(weighting, torch.ones(3)).tolist() == [0, 0, 0]


def test_a_constant_propensity_makes_all_weightings_one_method(dataset: Dataset) -> None:
    predicted = [
        DebiasedRecommender(Uniform(), "dr", Learned(weighting), training=Training(epochs=10))
        .fit(dataset.train)
        .predict_log(dataset.train)
        for weighting in ("error", "variance", "bias", "mse")
    ]
    for other in predicted[1:]:
        np.testing.assert_allclose(other, predicted[0], atol=1e-4)


# ---- what is imputed -------------------------------------------------------------------------------------------------


def test_a_constant_label_is_imputed_by_its_log_loss() -> None:
    seen = WORLD.observe()
    _, _, on_rows, on_pairs = seen.ask(Constant(0.3).init(seen.context, Uniform().init(seen.context)))
    expected = log_loss(np.full(WORLD.shape, 0.3), WORLD.logits)
    np.testing.assert_allclose(on_pairs.detach(), expected.ravel(), rtol=1e-10)
    np.testing.assert_allclose(on_rows.detach(), expected[seen.mask], rtol=1e-10)


def test_the_constant_label_is_by_default_that_of_the_probe(dataset: Dataset) -> None:
    context = context_of(dataset)
    assert Constant().init(context, Uniform().init(context)).facts() == {
        "label": pytest.approx(dataset.probe.labels.mean())
    }
    with pytest.raises(ConfigError, match=r"`probe` must be given for a constant imputed label.*Or give the `label`"):
        Constant().init(replace(context, probe=None), Uniform().init(context))


def test_a_learned_label_is_imputed_by_its_log_loss(dataset: Dataset) -> None:
    context = context_of(dataset)
    fitted_imputation = Learned().init(context, Uniform().init(context))
    batch = context.batches(pairs=True).whole()
    logits, pair_logits = torch.randn(len(batch.rows)), torch.randn(context.log.n_pairs)
    on_rows, on_pairs = fitted_imputation.errors(batch, logits, pair_logits, logits)
    with torch.no_grad():
        label = torch.sigmoid(fitted_imputation.scorer.grid())
    expected = error(label.flatten(), pair_logits)
    assert torch.allclose(on_pairs, expected, atol=1e-5)
    assert torch.allclose(on_rows, error(label[batch.users.long(), batch.items.long()], logits), atol=1e-5)


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("logit", [-1.5, 0.7])
def test_the_imputed_label_of_one_pair_becomes_its_label(label: float, logit: float) -> None:
    seen = WORLD.observe()
    free = MatrixFactorization(dim=2, l2=0, l2_biases=0)
    fitted_imputation = Learned(backbone=free).init(seen.context, Uniform().init(seen.context))
    pair = torch.tensor([3])
    batch = Batch(pair, pair, pair, torch.tensor([label]), pair[:0], pair[:0])
    logits = torch.tensor([logit])
    view = StepInputs(batch, logits, logits[:0], error(batch.labels, logits))
    for _ in range(400):
        fitted_imputation.step(view, torch.ones(1), rate=1.0)
    assert torch.sigmoid(fitted_imputation.scorer(pair, pair)).item() == pytest.approx(label, abs=0.03)


def test_residual_slope_is_the_gradient_of_weighted_squared_residuals() -> None:
    seen = WORLD.observe()
    logits, importance = seen.at(WORLD.logits).float(), seen.ratio(WORLD.propensity).float()
    errors, own = error(seen.batch.labels.float(), logits) - 0.2, torch.randn(seen.rows, requires_grad=True)
    loss = torch.zeros(())
    for row in range(seen.rows):
        label, chance = torch.sigmoid(own[row]), torch.sigmoid(logits[row])
        imputed = -label * chance.log() - (1 - label) * (1 - chance).log()
        loss = loss + importance[row] * (errors[row] - imputed) ** 2 / seen.rows
    (expected,) = torch.autograd.grad(loss, own)
    assert torch.allclose(residual_slope(own.detach(), logits, errors, importance), expected, atol=1e-6)


@pytest.mark.parametrize("backbone", ["ncf", NeuralCF(dim=2, hidden=(4,))])
def test_an_imputation_may_have_a_backbone_of_its_own(dataset: Dataset, backbone) -> None:
    model = DebiasedRecommender(Uniform(), "dr", Learned(backbone=backbone), training=Training(epochs=2))
    assert np.isfinite(model.fit(dataset.train).history_.loss).all()


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Learned("best"), "`weighting` must be one of 'error', 'variance', 'bias', 'mse', got 'best'"),
        (Learned("mse", mix=1.5), "`mix` must be a number >= 0 and <= 1, got 1.5"),
        (Learned(backbone="gru"), "`backbone` must be a Backbone or one of 'mf', 'ncf', 'popularity', got 'gru'"),
        (Constant(2), "`label` must be a number >= 0 and <= 1, got 2"),
    ],
)
def test_settings_that_break_their_rule_are_named(dataset: Dataset, part: Imputation, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        DebiasedRecommender(Uniform(), "dr", part).fit(dataset.train, dataset.probe)


# ---- who moves whom --------------------------------------------------------------------------------------------------

PARTS = [
    ("dr", Learned()),
    ("dr", Learned("mse")),
    ("dr", Targeted()),
    ("direct", MultiplyRobust((Known(WORLD.propensity), Known(WORLD.wrong_propensity)))),
]


def begun(seen: Observed, risk: str, imputation: Imputation) -> Learner:
    return Learner.init(seen.context, Known(WORLD.propensity), risk, imputation)


@pytest.mark.parametrize(("risk", "imputation"), PARTS)
def test_the_risk_moves_the_predictor_and_no_imputation(risk: str, imputation: Imputation) -> None:
    seen = WORLD.observe()
    learner = begun(seen, risk, imputation)
    models = [inner.scorer for inner in _learned(learner.imputation)]
    parameters = [parameter for model in models for parameter in model.parameters()]
    loss = learner.risk(replace(seen.batch, labels=seen.batch.labels.float()))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    assert parameters
    assert all(gradient is None for gradient in gradients)
    assert all(float(g.abs().max()) > 0 for g in torch.autograd.grad(loss, list(learner.scorer.parameters())))


@pytest.mark.parametrize(("risk", "imputation"), PARTS)
def test_a_step_moves_every_part(risk: str, imputation: Imputation) -> None:
    seen = WORLD.observe()
    learner = begun(seen, risk, imputation)
    before = [tensor.clone() for tensor in learner.state()]
    learner.step(replace(seen.batch, labels=seen.batch.labels.float()), rate=1.0)
    assert len(before) > len(list(learner.scorer.parameters()))
    assert all(not torch.equal(old, new) for old, new in zip(before, learner.state(), strict=True))


def test_the_step_of_an_imputation_leaves_the_predictor_alone() -> None:
    seen = WORLD.observe()
    learner = begun(seen, "dr", Learned())
    before = [tensor.clone() for tensor in learner.scorer.parameters()]
    logits = learner.scorer(seen.batch.users, seen.batch.items).detach()
    view = StepInputs(seen.batch, logits, logits[:0], error(seen.batch.labels.float(), logits))
    learner.imputation.step(view, learner.weights.ratio, rate=1.0)
    assert all(torch.equal(old, new) for old, new in zip(before, learner.scorer.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in learner.scorer.parameters())


@pytest.mark.parametrize("batch_size", [100, "full"])
@pytest.mark.parametrize("imputation", [Learned(), Targeted(), MultiplyRobust(), TriTraining(Uniform(), threshold=0.5)])
def test_gradient_weights_ignore_what_is_imputed_on_pairs(
    dataset: Dataset, imputation: Imputation, batch_size: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `ips` what is imputed on pairs of D does not count: the fit is the same where it is worked out all the same.

    Batches stand beside uniform pairs, the whole log beside all of D.
    """
    weights, training = Balancing(features="activity", solver="gradient"), Training(epochs=2, batch_size=batch_size)
    fits = []
    for scores_pairs in (False, True):
        monkeypatch.setattr(WeightModel, "needs_pair_logits", scores_pairs)
        model = DebiasedRecommender(weights, "ips", imputation, MatrixFactorization(dim=4), training)
        fits.append(model.fit(dataset.train, dataset.probe))
    np.testing.assert_allclose(fits[0].ratio_, fits[1].ratio_, rtol=1e-4)
    np.testing.assert_allclose(*(fit.predict_log(dataset.test) for fit in fits), rtol=1e-4)


def _learned(fitted_imputation) -> list:
    if hasattr(fitted_imputation, "scorer"):
        return [fitted_imputation]
    inner = getattr(fitted_imputation, "imputations", None) or [fitted_imputation.base]
    return [found for one in inner for found in _learned(one)]


@pytest.mark.parametrize(
    ("weights", "risk", "imputation"),
    [
        (NaiveBayes(), "dr", Constant()),
        (NaiveBayes(), "dr", Learned("bias")),
        (UnitWeights(), "dr", NoImputation()),
        (Uniform(), "dr", Targeted()),
        (Uniform(), "direct", MultiplyRobust((Uniform(),))),
    ],
)
def test_the_order_of_the_rows_does_not_matter(dataset: Dataset, weights, risk: str, imputation: Imputation) -> None:
    shuffled = dataset.train.take(np.random.default_rng(0).permutation(len(dataset.train)))
    first, second = (
        DebiasedRecommender(weights, risk, imputation, training=Training(epochs=4)).fit(log, dataset.probe)
        for log in (dataset.train, shuffled)
    )
    assert first.history_.loss == pytest.approx(second.history_.loss, rel=1e-4)
    np.testing.assert_allclose(first.predict_log(dataset.test), second.predict_log(dataset.test), atol=1e-3)
