"""Estimates of the ideal loss: against loops, and against what theory says of them over many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_world import Observed, SmallWorld

from counterpoise import Dataset, DebiasedRecommender, Training
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Constant, Learned, NoImputation
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.risks import (
    ERRORS,
    direct,
    dr,
    error,
    exposed,
    exposure_cross_entropy,
    ips,
    negative_log_complement,
    pairwise,
    snips,
)
from counterpoise.training.contracts import FitContext
from counterpoise.training.learner import Learner
from counterpoise.weights.base import NaiveBayes, Uniform

WORLD = SmallWorld()
DRAWS = 2000


def doubly_robust(seen: Observed, propensity: np.ndarray, imputed: np.ndarray, errors: np.ndarray) -> float:
    ratio = seen.ratio(propensity)
    return float(dr(seen.at(errors), ratio, seen.at(imputed), torch.from_numpy(imputed).flatten()))


def test_gradients_of_the_risks_are_those_written_out() -> None:
    """d error / d logit = sigmoid(logit) - label, of an observed row and of an imputed label alike."""
    generator = torch.Generator().manual_seed(0)
    labels, ratio = torch.rand(7, generator=generator), torch.rand(7, generator=generator)
    logits, imputed = torch.randn(20, generator=generator).requires_grad_(), torch.rand(20, generator=generator)
    errors, rest = error(labels, logits[:7]), error(imputed, logits)
    (found,) = torch.autograd.grad(ips(errors, ratio), logits, retain_graph=True)
    predicted = torch.sigmoid(logits.detach())
    assert torch.allclose(found[:7], ratio * (predicted[:7] - labels) / 7, atol=1e-7)
    assert not found[7:].any()
    (found,) = torch.autograd.grad(dr(errors, ratio, rest[:7], rest[7:]), logits)
    assert torch.allclose(found[:7], ratio * (imputed[:7] - labels) / 7, atol=1e-7)
    assert torch.allclose(found[7:], (predicted[7:] - imputed[7:]) / 13, atol=1e-7)


def test_each_risk_is_its_formula_in_loops() -> None:
    seen, total = WORLD.observe(), WORLD.pairs
    weighted = weights = corrected = imputed = 0.0
    for user in range(WORLD.shape[0]):
        for item in range(WORLD.shape[1]):
            observed, chance = seen.mask[user, item], WORLD.propensity[user, item]
            residual = WORLD.errors[user, item] - WORLD.imputed[user, item]
            weighted += observed * WORLD.errors[user, item] / chance
            weights += observed / chance
            corrected += WORLD.imputed[user, item] + observed * residual / chance
            imputed += WORLD.imputed[user, item]
    ratio, errors = seen.ratio(WORLD.propensity), seen.at(WORLD.errors)
    assert float(ips(errors, ratio)) == pytest.approx(weighted / total, rel=1e-12)
    assert float(snips(errors, ratio)) == pytest.approx(weighted / weights, rel=1e-12)
    assert doubly_robust(seen, WORLD.propensity, WORLD.imputed, WORLD.errors) == pytest.approx(corrected / total)
    assert float(direct(torch.from_numpy(WORLD.imputed).flatten())) == pytest.approx(imputed / total, rel=1e-12)


def test_snips_by_a_given_total_divides_by_it() -> None:
    errors, ratio = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.5])
    assert float(snips(errors, ratio, torch.tensor(7.0))) == pytest.approx((2.0 + 1.5) / 7)


def test_errors_of_a_pair_are_their_formulas() -> None:
    labels, logits = torch.tensor([1.0, 0.0, 0.3]), torch.tensor([0.7, -1.2, 2.0])
    prediction = 1 / (1 + np.exp(-logits.numpy()))
    expected = {"squared": (labels.numpy() - prediction) ** 2, "linear": (labels.numpy() - logits.numpy()) ** 2}
    expected["log"] = -labels.numpy() * np.log(prediction) - (1 - labels.numpy()) * np.log(1 - prediction)
    assert set(expected) == set(ERRORS)
    for name, values in expected.items():
        np.testing.assert_allclose(ERRORS[name](labels, logits).numpy(), values, rtol=1e-6)


def test_the_risk_of_exposed_pairs_counts_each_pair_by_its_exposure() -> None:
    """With true exposure and a right imputation it is mean over D of exposure x error."""
    seen, exposure = WORLD.observe(), torch.from_numpy(WORLD.propensity).flatten()
    density, on_pairs = seen.rows / WORLD.pairs, torch.from_numpy(WORLD.imputed).flatten()
    value = float(exposed(seen.at(WORLD.errors), seen.at(WORLD.imputed), on_pairs, exposure, density))
    residual = np.where(seen.mask, WORLD.errors - WORLD.imputed, 0)
    assert value == pytest.approx((WORLD.propensity * WORLD.imputed + residual).mean(), rel=1e-10)


@pytest.mark.parametrize("floor", [np.inf, 0.2])
def test_the_pairwise_risk_is_its_formula_in_loops(floor: float) -> None:
    rng = np.random.default_rng(0)
    clicked, others = rng.normal(size=4), rng.normal(size=(3, 4))  # three copies of the rows
    weight, beside = rng.uniform(0.5, 3, 4), rng.uniform(0.5, 2.0, (3, 4))
    terms = [
        max(weight[row] * (1 - beside[copy, row]) * np.log1p(np.exp(others[copy, row] - clicked[row])), -floor)
        for copy in range(3)
        for row in range(4)
    ]
    assert (np.min(terms) == -floor) == np.isfinite(floor)
    tensors = [torch.from_numpy(values) for values in (clicked, others.ravel(), weight, beside.ravel())]
    assert float(pairwise(*tensors, floor)) == pytest.approx(np.mean(terms), rel=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.4, "each"])
def test_the_negative_log_complement_and_its_gradient_are_their_formula(share: float | str) -> None:
    logits = torch.tensor([-3.0, 0.2, 1.5, 4.0], dtype=torch.float64, requires_grad=True)
    shares = torch.tensor([0.0, 0.3, 0.9, 1.0], dtype=torch.float64) if share == "each" else float(share)
    expected = -(1 - shares * torch.sigmoid(logits)).log().mean()
    (slope,) = torch.autograd.grad(2 * expected, logits)
    found = negative_log_complement(logits, shares)
    (got,) = torch.autograd.grad(2 * found, logits)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(got, slope)


def test_the_cross_entropy_of_exposure_knows_only_the_observed_rows() -> None:
    seen, logits = WORLD.observe(), torch.from_numpy(WORLD.logits)
    p = torch.sigmoid(logits).numpy()
    expected = -np.where(seen.mask, np.log(p), np.log(1 - p)).mean()
    found = exposure_cross_entropy(logits.flatten(), seen.at(WORLD.logits), seen.rows / WORLD.pairs)
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_dr_without_imputation_is_ips() -> None:
    seen = WORLD.observe()
    expected = float(ips(seen.at(WORLD.errors), seen.ratio(WORLD.propensity)))
    assert doubly_robust(seen, WORLD.propensity, 0 * WORLD.errors, WORLD.errors) == expected


def test_a_dr_recommender_without_imputation_is_an_ips_one(dataset: Dataset) -> None:
    models = [
        DebiasedRecommender(
            NaiveBayes(), risk, NoImputation(), MatrixFactorization(l2_biases=2.0), training=Training(epochs=20)
        )
        for risk in ("dr", "ips")  # where errors are imputed no prior is estimated
    ]
    predicted = [model.fit(dataset.train, dataset.probe).predict_log(dataset.train) for model in models]
    np.testing.assert_allclose(predicted[0], predicted[1], atol=1e-5)


def test_the_correction_vanishes_where_imputation_is_right_on_the_log() -> None:
    seen = WORLD.observe()
    imputed = np.where(seen.mask, WORLD.errors, WORLD.imputed)
    assert doubly_robust(seen, WORLD.wrong_propensity, imputed, WORLD.errors) == pytest.approx(
        imputed.mean(), rel=1e-14
    )


def test_dr_with_right_imputation_is_the_ideal_loss() -> None:
    for seed in range(3):
        got = doubly_robust(WORLD.observe(seed), WORLD.wrong_propensity, WORLD.errors, WORLD.errors)
        assert got == pytest.approx(WORLD.ideal, rel=1e-12)


def test_a_shift_of_imputed_errors_counts_by_missing_weight() -> None:
    seen, shift = WORLD.observe(), 0.7
    moved = doubly_robust(seen, WORLD.wrong_propensity, WORLD.imputed + shift, WORLD.errors)
    before = doubly_robust(seen, WORLD.wrong_propensity, WORLD.imputed, WORLD.errors)
    missing = 1 - float(seen.ratio(WORLD.wrong_propensity).mean())
    assert moved - before == pytest.approx(shift * missing, rel=1e-10)


def test_dr_is_the_log_loss_of_corrected_labels() -> None:
    seen, logits = WORLD.observe(), WORLD.logits
    weight = np.where(seen.mask, 1 / WORLD.propensity, 0)
    corrected = WORLD.imputed_labels + weight * (WORLD.labels - WORLD.imputed_labels)
    expected = (np.log1p(np.exp(logits)) - corrected * logits).mean()
    assert doubly_robust(seen, WORLD.propensity, WORLD.imputed, WORLD.errors) == pytest.approx(expected, rel=1e-12)
    assert corrected.min() < 0  # so the risk of a free logit has no lower bound: l2 has to hold it
    assert corrected.max() > 1


@pytest.mark.parametrize("right", [True, False])
def test_bias_and_variance_of_dr_are_those_of_the_theory(right: bool) -> None:
    used = WORLD.propensity if right else np.clip(WORLD.propensity * 1.4, 0, 1)
    residual, p, n = WORLD.errors - WORLD.imputed, WORLD.propensity, WORLD.pairs
    bias = ((p / used - 1) * residual).mean()
    variance = (p * (1 - p) / used**2 * residual**2).sum() / n**2
    values = np.array([doubly_robust(WORLD.observe(s), used, WORLD.imputed, WORLD.errors) for s in range(DRAWS)])
    standard_error = np.sqrt(variance / DRAWS)
    assert abs(values.mean() - WORLD.ideal - bias) < 4 * standard_error
    assert values.var() == pytest.approx(variance, rel=4 * np.sqrt(2 / DRAWS))
    assert (abs(bias) < 1e-12) == right
    assert right or abs(bias) > 10 * standard_error


def test_a_constant_propensity_makes_every_weighted_risk_the_plain_mean() -> None:
    seen = WORLD.observe()
    errors, ratio = seen.at(WORLD.errors), torch.ones(seen.rows, dtype=torch.float64)
    assert float(ips(errors, ratio)) == pytest.approx(float(errors.mean()), rel=1e-14)
    assert float(snips(errors, 3 * ratio)) == pytest.approx(float(errors.mean()), rel=1e-14)


def test_snips_is_bounded_and_ignores_the_scale_of_weights() -> None:
    seen = WORLD.observe()
    errors, ratio = seen.at(WORLD.errors), seen.ratio(WORLD.wrong_propensity)
    value = float(snips(errors, ratio))
    assert float(errors.min()) <= value <= float(errors.max())
    assert float(snips(errors, 5 * ratio)) == pytest.approx(value, rel=1e-14)
    assert float(snips(errors + 2, ratio)) == pytest.approx(value + 2, rel=1e-14)


def _training_risk(learner: Learner, batch: Batch) -> float:
    """What a step would minimise, without its penalty."""
    logits = learner._logits(batch)
    errors = error(batch.labels, logits.rows)
    imputed = learner.imputation.errors(batch, logits.rows, logits.pairs, errors)
    ratio = learner.weights.ratio
    return float(learner._risk(batch, logits, errors, ratio, ratio[batch.rows], *imputed))


@pytest.mark.parametrize("imputation", [Constant(0.3), Learned()])
def test_minibatches_with_pairs_average_to_the_full_loss(dataset: Dataset, imputation) -> None:
    log, cpu = dataset.train, torch.device("cpu")
    training = Training(batch_size=64, pairs=4)
    context = FitContext(
        log, dataset.probe, MatrixFactorization(dim=4), training, cpu, torch.Generator().manual_seed(0)
    )
    learner = Learner.init(context, NaiveBayes(), "dr", imputation)
    with torch.no_grad():
        learner.scorer.user_factors.weight.mul_(10)
        exact = Training(batch_size="full", pairs="all")
        whole = FitContext(log, dataset.probe, context.backbone, exact, cpu, context.generator).batches(pairs=True)
        full = _training_risk(learner, whole.whole())
        batches = context.batches(pairs=True)
        epochs = [
            sum(_training_risk(learner, batch) * len(batch.rows) for batch in batches.epoch()) / len(log)
            for _ in range(100)
        ]
    assert abs(np.mean(epochs) - full) < 4 * np.std(epochs) / np.sqrt(len(epochs))
    assert np.std(epochs) / np.sqrt(len(epochs)) < 0.003 * abs(full)


def test_predictions_can_lie_on_both_sides_of_one_half(dataset: Dataset) -> None:
    model = DebiasedRecommender(Uniform(), "dr", Learned(), training=Training(epochs=60))
    predicted = model.fit(dataset.train, dataset.probe).predict_log(dataset.train)
    assert predicted.min() < 0.4
    assert predicted.max() > 0.6


def test_the_negative_log_complement_of_a_certain_pair_is_its_logit() -> None:
    logits = torch.tensor([80.0, 100.0], requires_grad=True)  # 1 - sigmoid is 0 in these
    found = negative_log_complement(logits, 1.0)
    found.backward()
    assert found.item() == pytest.approx(90.0)
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.5, 0.5])
