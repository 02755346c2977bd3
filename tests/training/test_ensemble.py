"""The ensemble of two predictors, against each of them fitted alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import counterpoise as cp
from counterpoise import ConfigError, DataError, Dataset
from counterpoise.parallel import fit_many
from counterpoise.training.contracts import FittedImputation
from counterpoise.training.ensemble import EnsembleScorer, calibrating_intercept
from counterpoise.training.learner import Learner

FAST = {"epochs": 6, "dim": 4, "device": "cpu"}


def logits(model: cp.DebiasedRecommender) -> np.ndarray:
    return model.scorer_.grid().double().numpy()


@pytest.fixture(scope="module")
def model(dataset: Dataset) -> cp.DebiasedRecommender:
    return cp.make("counterpoise", **FAST).fit(dataset.train, probe=dataset.probe)


def test_the_logit_is_the_mean_of_two_plus_an_intercept(model: cp.DebiasedRecommender, dataset: Dataset) -> None:
    with_imputation = cp.make("counterpoise", ensemble=None, **FAST).fit(dataset.train, probe=dataset.probe)
    without = cp.make("counterpoise", ensemble=None, imputation="none", **FAST).fit(dataset.train)
    found = model.facts_["imputation"]["intercept"]
    assert found != 0
    assert np.allclose(logits(model), (logits(with_imputation) + logits(without)) / 2 + found, atol=1e-5)
    assert not np.allclose(logits(with_imputation), logits(without), atol=0.05)


def test_pairs_grids_and_vectors_have_the_same_logits(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    assert isinstance(scorer, EnsembleScorer)
    users, items = torch.meshgrid(torch.arange(scorer.n_users), torch.arange(scorer.n_items), indexing="ij")
    tables = scorer.vectors()
    assert tables is not None
    assert torch.allclose(scorer(users.flatten(), items.flatten()).view(users.shape), scorer.grid(), atol=1e-5)
    assert torch.allclose(tables[0] @ tables[1].T, scorer.grid(), atol=1e-5)
    assert torch.allclose(scorer.grid(torch.tensor([3, 1])), scorer.grid()[[3, 1]], atol=1e-6)


def test_exposure_coefficients_are_the_mean_of_both(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    both = [getattr(scorer, name).exposure_coefficients for name in ("with_imputation", "without_imputation")]
    assert torch.allclose(scorer.exposure_coefficients, (both[0] + both[1]) / 2)
    assert not torch.allclose(both[0], both[1])
    assert torch.equal(scorer.with_imputation.user_exposure, scorer.without_imputation.user_exposure)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_the_intercept_makes_predictions_average_to_the_labels(rate: float) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=4000), (rng.random(4000) < rate).astype(np.float32)
    target = (labels.sum() + 1) / 4002
    exact = brentq(lambda b: (1 / (1 + np.exp(-scores - b))).mean() - target, -9, 9)
    p = 1 / (1 + np.exp(-scores - exact))
    expected = exact * max(0, 1 - 2 / (p * (1 - p)).sum() / exact**2)
    found = calibrating_intercept(torch.from_numpy(scores), torch.from_numpy(labels))
    assert found == pytest.approx(expected, abs=1e-6)


def test_an_intercept_within_its_error_is_zero() -> None:
    assert calibrating_intercept(torch.zeros(40), torch.tensor([1.0, 0.0] * 18 + [1.0] * 4)) == 0.0


def test_a_probe_of_one_label_has_a_finite_intercept() -> None:
    assert -math.inf < calibrating_intercept(torch.zeros(200), torch.zeros(200)) < -1


def test_without_a_probe_there_is_one_predictor(dataset: Dataset) -> None:
    model = cp.make("counterpoise", **FAST).fit(dataset.train)
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert "intercept" not in model.facts_["imputation"]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("mf", "nothing is imputed"),
        ("mnar", "there is no active missingness model to average with"),
        ("skb-ips", "nothing is imputed"),
    ],
)
def test_facts_hold_why_an_ensemble_is_inactive(method: str, why: str, dataset: Dataset) -> None:
    model = cp.make(method, ensemble="average", **FAST).fit(dataset.train)
    assert model.facts_["inactive"] == {"ensemble": why}
    averaged = cp.make("dr-jl", ensemble=cp.Ensemble(), **FAST).fit(dataset.train, dataset.probe)
    for active in (cp.make(method, **FAST).fit(dataset.train), averaged):
        assert "inactive" not in active.facts_
    points = [FAST | {"ensemble": "average", "seed": seed} for seed in (0, 1)]
    together = fit_many(method, dataset.train, configs=points, jobs=1)
    assert together[1].facts_["inactive"] == model.facts_["inactive"]


def test_a_probe_that_agrees_with_the_log_leaves_one_predictor(dataset: Dataset) -> None:
    same = replace(dataset.train, sample="uniform")
    model = cp.make("mnar", ensemble=cp.Ensemble(), **FAST).fit(dataset.train, probe=same)
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert model.facts_["inactive"] == {"ensemble": "there is no active missingness model to average with"}


def test_an_imputation_the_risk_does_not_use_needs_no_ensemble(dataset: Dataset) -> None:
    training = cp.Training(epochs=3, device="cpu")
    model = cp.DebiasedRecommender(cp.Uniform(), "ips", cp.Learned(), training=training, ensemble=cp.Ensemble()).fit(
        dataset.train
    )
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert model.facts_["inactive"] == {"ensemble": "the risk uses no imputation"}


@pytest.mark.parametrize("method", ["dr-jl", "dr-v2", "skb-dr", "eib", "mnar"])
def test_any_imputation_can_be_averaged(method: str, dataset: Dataset) -> None:
    fast = {"epochs": 3, "dim": 4, "device": "cpu"}
    averaged = cp.make(method, ensemble=cp.Ensemble(), **fast).fit(dataset.train, probe=dataset.probe)
    alone = cp.make(method, **fast).fit(dataset.train, probe=dataset.probe)
    assert np.array_equal(averaged.scorer_.with_imputation.grid().numpy(), alone.scorer_.grid().numpy())
    assert np.array_equal(averaged.ratio_, alone.ratio_)


def test_a_saved_model_predicts_the_same(model: cp.DebiasedRecommender, dataset: Dataset, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert np.array_equal(loaded.predict_log(dataset.test), model.predict_log(dataset.test))
    assert loaded.recommend(k=3).equals(model.recommend(k=3))


def test_patience_uses_the_risk_of_both(dataset: Dataset) -> None:
    model = cp.make("counterpoise", patience=2, epochs=40, dim=4).fit(dataset.train, probe=dataset.probe)
    assert len(model.history_.held_out_risk) < 40
    assert isinstance(model.scorer_, EnsembleScorer)


def test_direct_risk_refuses_an_ensemble(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`ensemble` must be None for risk='direct'"):
        cp.make("mr", ensemble=cp.Ensemble()).fit(dataset.train)


def test_facts_hold_the_label_propensities_and_the_intercept(model: cp.DebiasedRecommender) -> None:
    facts = model.facts_["imputation"]
    assert set(facts) == {"log_odds_ratio", "positive", "negative", "intercept"}
    assert facts["log_odds_ratio"] == pytest.approx(math.log(facts["positive"] / facts["negative"]))
    assert facts["log_odds_ratio"] > 0
    assert facts["intercept"] == pytest.approx(float(model.scorer_.intercept))


def test_two_predictors_in_a_run_without_ensemble_are_refused(model: cp.DebiasedRecommender, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    manifest = tmp_path / "run" / "run.json"
    facts = json.loads(manifest.read_text())
    facts["configuration"]["ensemble"] = None
    manifest.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="two predictors"):
        cp.load_model(tmp_path / "run")


def test_an_imputation_with_a_loss_of_its_own_is_averaged(dataset: Dataset) -> None:
    class WithLoss(FittedImputation):
        def extra_loss(self, logits: Tensor, pair_logits: Tensor) -> Tensor:
            return logits.square().mean()

    context = cp.make("mf", **FAST)._context(dataset.train, None)
    learner = Learner.init(context, cp.Uniform(), "ips", cp.NoImputation())
    assert cp.Ensemble().why_inactive(learner) == "nothing is imputed"
    learner.imputation = WithLoss()
    assert cp.Ensemble().why_inactive(learner) is None
