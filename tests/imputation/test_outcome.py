"""A model of the outcome, trained by the weights of the fit, from which the predictor learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise import (
    ConfigError,
    Dataset,
    DebiasedRecommender,
    ExposureCovariate,
    FeedbackLog,
    MatrixFactorization,
    OutcomeModel,
    Training,
    Uniform,
    evaluate,
    load_model,
    make,
    simulate,
)
from counterpoise.imputation.outcome import MIN_EVIDENCE, OutcomeLabel
from counterpoise.training.contracts import FitContext, Weights
from counterpoise.training.learner import Learner
from counterpoise.training.loop import train
from counterpoise.weights.balancing import Balancing
from counterpoise.weights.propensity import Popularity

SOFT = Balancing(strength=0.3, features="side")


def context_of(log: FeedbackLog, backbone=None, **training) -> FitContext:
    settings = backbone or MatrixFactorization(dim=4), Training(**training)
    return FitContext(log, None, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))


def trained(part: OutcomeModel, weights: Weights, log: FeedbackLog, **training) -> tuple[FitContext, Learner]:
    context = context_of(log, pairs="all", **training)
    learner = Learner.init(context, weights, "dr", part)
    train(learner, context.batches(True), None, context.training)
    return context, learner


def probabilities(scorer) -> torch.Tensor:
    with torch.no_grad():
        return torch.sigmoid(scorer.grid()).flatten()


@pytest.mark.parametrize("correction", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("weights", [Uniform(), SOFT, Popularity()], ids=["uniform", "balancing", "popularity"])
def test_with_the_predictor_s_own_backbone_the_optimum_is_the_model(
    correction: float, weights: Weights, dataset: Dataset
) -> None:
    part = OutcomeModel(MatrixFactorization(dim=4), correction)
    learner = trained(part, weights, dataset.train, epochs=400)[1]
    imputation = learner.imputation
    assert isinstance(imputation, OutcomeLabel)
    model, found = probabilities(imputation.scorer), probabilities(learner.scorer)
    assert model.std() > 0.05
    assert (model - found).abs().max() < 0.02
    assert (model - found).abs().mean() < 0.004


@pytest.mark.cpu
def test_the_model_is_that_of_the_risk_ips_with_the_same_weights(dataset: Dataset) -> None:
    context = context_of(dataset.train, epochs=300)
    fitted = SOFT.init(context)
    part = OutcomeModel(MatrixFactorization(dim=0)).init(context, fitted)  # without factors the optimum is unique
    alone = DebiasedRecommender(SOFT, "ips", backbone=MatrixFactorization(dim=0), training=Training(epochs=300))
    alone.fit(dataset.train)
    assert isinstance(part, OutcomeLabel)
    assert np.allclose(fitted.ratio, alone.ratio_, atol=1e-5)
    assert (probabilities(part.scorer) - probabilities(alone.scorer_)).abs().max() < 0.01
    assert not any(parameter.requires_grad for parameter in part.scorer.parameters())


@pytest.mark.parametrize("pairs", ["all", 2])
@pytest.mark.parametrize("correction", [0.1, 1.0])
def test_the_risk_is_doubly_robust_with_a_share_of_the_correction(
    pairs: str | int, correction: float, dataset: Dataset
) -> None:
    """mean over D of CE(r^) + correction x mean over O of w (CE(r) - CE(r^)), pair by pair."""
    context = context_of(dataset.train, epochs=5, pairs=pairs)
    learner = Learner.init(context, Popularity(), "dr", OutcomeModel("mf", correction))
    imputed = probabilities(learner.imputation.scorer).view(context.log.shape).numpy()  # type: ignore[attr-defined]
    batch = context.batches(True).whole()
    with torch.no_grad():
        logits = learner.scorer.grid().numpy()
        found = float(risk_of(learner, batch))
    users, items = (
        (batch.pair_users, batch.pair_items)
        if batch.pair_users is not None
        else map(torch.from_numpy, (codes.ravel() for codes in np.indices(context.log.shape)))
    )

    def entropy(label: float, logit: float) -> float:
        return float(np.logaddexp(0, logit) - label * logit)

    on_pairs = np.mean([entropy(imputed[u, i], logits[u, i]) for u, i in zip(users, items, strict=True)])
    columns = batch.users, batch.items, batch.labels, learner.weights.ratio
    rows = zip(*(column.numpy() for column in columns), strict=True)
    on_rows = np.mean([w * (entropy(y, logits[u, i]) - entropy(imputed[u, i], logits[u, i])) for u, i, y, w in rows])
    assert found == pytest.approx(on_pairs + correction * on_rows, abs=1e-4)


def risk_of(learner: Learner, batch) -> torch.Tensor:
    logits = learner._logits(batch)
    errors = learner._errors(batch, logits.rows)
    ratio, imputed = learner.weights.ratio, learner._imputed(batch, logits, errors)
    return learner._risk(batch, logits, errors, ratio, ratio[batch.rows], *imputed)


def test_the_predictor_starts_from_the_model_without_exposure(dataset: Dataset) -> None:
    context = context_of(dataset.train, epochs=3)
    for backbone in (ExposureCovariate(MatrixFactorization(dim=4)), MatrixFactorization(dim=4)):
        learner = Learner.init(context, Uniform(), "dr", OutcomeModel(backbone))
        model = learner.imputation.scorer.base().state_dict()  # type: ignore[attr-defined]
        for name, values in learner.scorer.base().state_dict().items():
            assert torch.equal(values, model[name])
            assert values is not model[name]
    for other in ("ncf", MatrixFactorization(dim=3)):  # of another kind or size: from its own draw
        learner = Learner.init(context_of(dataset.train, epochs=3), Uniform(), "dr", OutcomeModel(other))
        fresh = context.backbone.build(dataset.train, torch.Generator().manual_seed(0))
        assert torch.equal(learner.scorer.user_factors.weight, fresh.user_factors.weight)


# ---- exposure, where labels depend on it -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_selection_follows_preference_it_ranks_better_than_ips(seed: int) -> None:
    data = simulate(200, 150, density=0.1, selection="mixed", seed=seed).dataset
    dr, ips = (make(name, seed=seed).fit(data.train) for name in ("skb-dr", "skb-ips"))
    assert "exposure_coefficients" in dr.facts_["imputation"]
    aucs = [evaluate(model, data.test, bootstrap=0).auc for model in (dr, ips)]
    assert aucs[0] > aucs[1] + 0.02


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_labels_are_missing_at_random_the_model_has_no_exposure(seed: int) -> None:
    data = simulate(200, 150, density=0.1, strength=0, seed=seed).dataset
    context = context_of(data.train)
    part = OutcomeModel().init(context, Uniform().init(context))
    assert isinstance(part, OutcomeLabel)
    assert part.backbone == context.backbone
    assert part.facts() == {}
    dr, mf = (make(name, seed=seed).fit(data.train) for name in ("skb-dr", "mf"))
    aucs = [evaluate(model, data.test, bootstrap=0).auc for model in (dr, mf)]
    assert aucs[0] == pytest.approx(aucs[1], abs=0.015)


def test_a_predictor_with_exposure_is_its_own_model(dataset: Dataset) -> None:
    backbone = ExposureCovariate(MatrixFactorization(dim=4))
    context = replace(context_of(dataset.train, epochs=3), backbone=backbone)
    part = OutcomeModel().init(context, Uniform().init(context))
    assert isinstance(part, OutcomeLabel)
    assert part.backbone == backbone
    assert len(part.facts()["exposure_coefficients"]) == 3


def test_exposure_evidence_is_wald_s_statistic(dataset: Dataset) -> None:
    scorer = ExposureCovariate().build(dataset.train, torch.Generator().manual_seed(0))
    with torch.no_grad():
        scorer.exposure_coefficients.copy_(torch.tensor([0.3, -0.2, 0.1]))
    expected = 0.0
    for coefficient, among in ((0.3, 1 / 60), (-0.2, 1 / 50), (0.1, 0.0)):
        expected += coefficient**2 / (1 / 120 + among)
    assert scorer.exposure_evidence(120.0) == pytest.approx(expected, rel=1e-5)  # type: ignore[operator]
    assert scorer.exposure_evidence(0.0) == 0  # type: ignore[operator]  # labels of one class


def test_the_least_evidence_is_that_of_one_in_a_hundred() -> None:
    squares = np.random.default_rng(0).standard_normal((200_000, 3)) ** 2
    assert (squares.sum(1) > MIN_EVIDENCE).mean() == pytest.approx(0.01, abs=0.001)


def test_labels_of_one_class_are_no_error() -> None:
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.choice(400, 120, replace=False), 20)
    for label in (0.0, 1.0):
        log = FeedbackLog.from_arrays(users, items, np.full(120, label), feedback="ratings")
        model = DebiasedRecommender(Uniform(), "dr", OutcomeModel(), training=Training(epochs=5)).fit(log)
        assert model.facts_["imputation"] == {}


# ---- as a part -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", [None, "ncf", ExposureCovariate(MatrixFactorization(dim=3))])
def test_it_is_saved_and_loaded(backbone, dataset: Dataset, tmp_path: Path) -> None:
    part = OutcomeModel(backbone, correction=0.3)
    model = DebiasedRecommender(SOFT, "dr", part, training=Training(epochs=3, device="cpu")).fit(dataset.train)
    model.save(tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    assert loaded == model
    assert loaded.imputation == part
    assert np.array_equal(loaded.predict_log(dataset.test), model.predict_log(dataset.test))


@pytest.mark.parametrize("correction", [0.0, -1.0, 1.5, float("nan")])
def test_the_correction_is_a_share(correction: float, dataset: Dataset) -> None:
    model = DebiasedRecommender(Uniform(), "dr", OutcomeModel(correction=correction), training=Training(epochs=1))
    with pytest.raises(ConfigError, match=r"`correction` must be .*1 is the doubly robust risk itself"):
        model.fit(dataset.train)


def test_the_settings_of_methods_reach_it() -> None:
    model = make("skb-dr", correction=0.5)
    assert model.imputation == OutcomeModel(correction=0.5)
