"""The ensemble of two predictors, against each of them fitted alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

import counterpoise as cp
from counterpoise import ConfigError, DataError, Dataset
from counterpoise.data.batches import Batch
from counterpoise.parallel import fit_many
from counterpoise.training.contracts import FittedImputation
from counterpoise.training.ensemble import PRIOR_SD, EnsembleLearner, EnsembleScorer, calibrating_intercept, combine
from counterpoise.training.learner import Learner

FAST = {"epochs": 6, "dim": 4, "device": "cpu"}


def logits(model: cp.DebiasedRecommender) -> np.ndarray:
    return model.scorer_.grid().double().numpy()


@pytest.fixture(scope="module")
def model(dataset: Dataset) -> cp.DebiasedRecommender:
    return cp.make("counterpoise", **FAST).fit(dataset.train, probe=dataset.probe)


def test_the_logit_is_a_weighted_mean_with_slope_and_intercept(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    assert isinstance(scorer, EnsembleScorer)
    found, members = model.facts_["ensemble"], [member.grid().double().numpy() for member in scorer.members]
    assert set(found) == {"weight", "exposure", "slope", "intercept", "members"}
    mean = (1 - found["weight"]) * members[0] + found["weight"] * members[1]
    assert np.allclose(logits(model), float(scorer.intercept) + found["slope"] * mean, atol=1e-5)
    assert not np.allclose(*members, atol=0.05)


def test_members_are_the_predictors_with_and_without_imputation(dataset: Dataset) -> None:
    settings = {"probe_labels": None, "weights": "uniform", "l2_biases": 2.0, "l2_exposure": 1.0, **FAST}
    both = cp.make("counterpoise", ensemble=cp.Ensemble(starts=0.0), **settings)
    both.fit(dataset.train, probe=dataset.probe)
    alone = [
        cp.make("counterpoise", ensemble=None, imputation=imputation, **settings).fit(
            dataset.train, probe=dataset.probe
        )
        for imputation in ("none", "mnar")
    ]
    first, found = both.scorer_.members[0], both.facts_["ensemble"]
    coefficients = alone[0].scorer_.exposure_coefficients
    first.add_exposure(-coefficients * (found["exposure"] - 1) / (1 - found["weight"]))
    assert found["weight"] < 0.5  # so that what the probe adds of exposure was added to the first
    for member, model in zip(both.scorer_.members, alone, strict=True):
        assert torch.allclose(member.grid(), model.scorer_.grid(), atol=1e-5)


def test_the_second_member_starts_half_way_from_the_first(dataset: Dataset) -> None:
    model = cp.make("counterpoise", **(FAST | {"epochs": 10}))
    learner = model._learner(model._context(dataset.train, dataset.probe))
    first, second = (member.scorer for member in learner.members)
    batch, start = next(iter(learner.batches(model._context(dataset.train, None)).epoch())), first.grid().clone()
    for epoch in range(1, 6):
        learner.start_epoch(epoch)
        learner.step(batch, 1.0)
    assert torch.equal(second.grid(), start)
    assert torch.equal(learner.scorer.grid(), first.grid())
    learner.start_epoch(6)
    assert torch.equal(second.grid(), first.grid())
    assert not torch.allclose(second.grid(), start, atol=0.01)
    learner.step(batch, 1.0)
    assert not torch.allclose(second.grid(), first.grid(), atol=1e-3)
    found = model.fit(dataset.train, probe=dataset.probe)
    assert 0 < found.facts_["ensemble"]["weight"] < 1


def test_the_probe_is_learned_after_it_has_judged(dataset: Dataset) -> None:
    with_labels, without = (
        cp.make("counterpoise", probe_labels=part, **FAST).fit(dataset.train, probe=dataset.probe)
        for part in ("likelihood", None)
    )
    for name in ("weight", "exposure", "slope"):
        assert with_labels.facts_["ensemble"][name] == without.facts_["ensemble"][name]
    assert with_labels.facts_["probe"]["learned"]
    assert not without.facts_["probe"]["learned"]
    assert not np.allclose(logits(with_labels), logits(without), atol=1e-3)


def test_one_predictor_is_calibrated_where_nothing_is_imputed(dataset: Dataset) -> None:
    model = cp.make("mf", ensemble="average", probe_labels="likelihood", **FAST).fit(dataset.train, dataset.probe)
    assert isinstance(model.scorer_, EnsembleScorer)
    assert model.facts_["ensemble"]["members"] == len(model.scorer_.members) == 1
    assert model.facts_["inactive"] == {"ensemble": "nothing is imputed"}


def test_pairs_grids_and_vectors_have_the_same_logits(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    assert isinstance(scorer, EnsembleScorer)
    users, items = torch.meshgrid(torch.arange(scorer.n_users), torch.arange(scorer.n_items), indexing="ij")
    tables = scorer.vectors()
    assert tables is not None
    assert torch.allclose(scorer(users.flatten(), items.flatten()).view(users.shape), scorer.grid(), atol=1e-5)
    assert torch.allclose(tables[0] @ tables[1].T, scorer.grid(), atol=1e-5)
    assert torch.allclose(scorer.grid(torch.tensor([3, 1])), scorer.grid()[[3, 1]], atol=1e-6)


def test_exposure_coefficients_are_the_weighted_mean_of_both(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    weight = model.facts_["ensemble"]["weight"]
    first, second = (member.exposure_coefficients for member in scorer.members)
    assert torch.allclose(scorer.exposure_coefficients, (1 - weight) * first + weight * second)
    assert not torch.allclose(first, second)
    assert torch.equal(scorer.members[0].user_exposure, scorer.members[1].user_exposure)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_the_intercept_makes_predictions_average_to_the_labels(rate: float) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=4000), (rng.random(4000) < rate).astype(np.float32)
    mean = scores.mean()
    own = np.append(scores, [mean] * 2)
    given = np.append(labels, [1 / (1 + np.exp(-mean))] * 2)  # two rows that agree with the scores
    exact = brentq(lambda b: (1 / (1 + np.exp(-own - b)) - given).sum(), -9, 9)
    p = 1 / (1 + np.exp(-own - exact))
    expected = exact * max(0, 1 - 2 / (p * (1 - p)).sum() / exact**2)
    found = calibrating_intercept(torch.from_numpy(scores), torch.from_numpy(labels))
    assert found == pytest.approx(expected, abs=1e-6)


def test_an_intercept_within_its_error_is_zero() -> None:
    assert calibrating_intercept(torch.zeros(40), torch.tensor([1.0, 0.0] * 18 + [1.0] * 4)) == 0.0


def test_a_probe_of_one_label_has_a_finite_intercept() -> None:
    assert -math.inf < calibrating_intercept(torch.zeros(200), torch.zeros(200)) < -1


def negative_log_posterior(beta: np.ndarray, columns: np.ndarray, y: np.ndarray, offset: np.ndarray) -> float:
    eta = offset + columns @ beta
    return float((np.logaddexp(0, eta) - y * eta).sum() + (beta[1:] ** 2).sum() / (2 * PRIOR_SD**2))


def test_combine_is_the_mode_of_a_regression_on_predictors_and_exposure() -> None:
    rng = np.random.default_rng(1)
    first, x = rng.normal(size=900), rng.normal(size=900)
    second = first + rng.normal(scale=0.7, size=900)
    truth = 1.2 * (0.3 * first + 0.7 * second - 0.4 * x) - 0.5
    y = (rng.random(900) < 1 / (1 + np.exp(-truth))).astype(float)
    found = combine(torch.tensor(y), torch.tensor(np.stack([first, second])), torch.tensor(x), 1 / 3)
    start = first + (second - first) / 3
    columns = np.stack([np.ones(900), *(v - v.mean() for v in (start, second - first, x))], 1)
    padded = np.concatenate([columns, np.tile(columns.mean(0), (2, 1))])
    mean = start.mean()
    rows = padded, np.append(y, [1 / (1 + np.exp(-mean))] * 2), np.append(start, [mean] * 2)
    beta = minimize(negative_log_posterior, np.zeros(4), rows, tol=1e-10).x
    assert found.weight == pytest.approx(1 / 3 + beta[2] / (1 + beta[1]), abs=1e-3)
    assert found.exposure == pytest.approx(1 + beta[3] / (1 + beta[1]), abs=1e-3)
    assert found.weight > 0.5
    assert found.exposure < 0.8


def test_a_small_probe_leaves_everything_near_where_it_was() -> None:
    rng = np.random.default_rng(2)
    values = torch.tensor(rng.normal(size=(3, 30)))
    found = combine(
        (torch.rand(30, generator=torch.Generator().manual_seed(0)) < 0.5).double(), values[:2], values[2], 1 / 3
    )
    assert abs(found.weight - 1 / 3) < 2 * PRIOR_SD
    assert abs(found.exposure - 1) < 2 * PRIOR_SD


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_labels_of_one_kind_combine_to_finite_numbers(rate: float) -> None:
    logits = torch.linspace(-2, 2, 40).repeat(2, 1) * torch.tensor([[1.0], [0.5]])
    found = combine(torch.full((40,), rate), logits, None, 1 / 3)
    assert all(math.isfinite(value) for value in found)
    assert 0 <= found.weight <= 1
    assert found.exposure == 1


def test_without_a_probe_there_is_one_predictor(dataset: Dataset) -> None:
    model = cp.make("counterpoise", **FAST).fit(dataset.train)
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert "ensemble" not in model.facts_


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
    assert len(model.scorer_.members) == 1
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
    fast = {"epochs": 3, "dim": 4, "l2_biases": 2.0, "device": "cpu"}
    averaged = cp.make(method, ensemble=cp.Ensemble(starts=0.0), **fast).fit(dataset.train, probe=dataset.probe)
    alone = cp.make(method, **fast).fit(dataset.train, probe=dataset.probe)
    assert np.array_equal(averaged.scorer_.members[1].grid().numpy(), alone.scorer_.grid().numpy())
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


def test_the_weight_of_an_ensemble_is_a_share(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"`weight` must be a number >= 0 and <= 1, got 2\. Or \"auto\""):
        cp.make("counterpoise", ensemble=cp.Ensemble(weight=2)).fit(dataset.train, dataset.probe)


def test_direct_risk_refuses_an_ensemble(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`ensemble` must be None for risk='direct'"):
        cp.make("mr", ensemble=cp.Ensemble()).fit(dataset.train)


def test_facts_hold_the_label_propensities(model: cp.DebiasedRecommender) -> None:
    facts = model.facts_["imputation"]
    assert set(facts) == {"log_odds_ratio", "positive", "negative", "interval"}
    ratio = facts["positive"] / facts["negative"]
    assert facts["log_odds_ratio"] == pytest.approx(math.log(ratio))
    assert facts["interval"][0] < ratio < facts["interval"][1]
    assert facts["log_odds_ratio"] > 0


def test_two_predictors_in_a_run_without_ensemble_are_refused(model: cp.DebiasedRecommender, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    manifest = tmp_path / "run" / "run.json"
    facts = json.loads(manifest.read_text())
    facts["configuration"]["ensemble"] = None
    manifest.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="2 predictors"):
        cp.load_model(tmp_path / "run")


def test_an_imputation_with_a_loss_of_its_own_is_averaged(dataset: Dataset) -> None:
    class WithLoss(FittedImputation):
        def extra_loss(self, batch: Batch, logits: Tensor, pair_logits: Tensor) -> Tensor:
            return logits.square().mean()

    context = cp.make("mf", **FAST)._context(dataset.train, None)
    learner = Learner.init(context, cp.Uniform(), "ips", cp.NoImputation())
    assert cp.Ensemble().why_inactive(learner) == "nothing is imputed"
    learner.imputation = WithLoss()
    assert cp.Ensemble().why_inactive(learner) is None


def test_a_stop_while_the_probe_is_learned_keeps_what_the_log_taught(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [cp.make("counterpoise", **FAST) for _ in range(2)]
    before = []

    def stopped(learner: EnsembleLearner, *arguments: object) -> None:
        with torch.no_grad():
            learner.members[0].scorer.inner.mean += 1.0
        raise KeyboardInterrupt

    monkeypatch.setattr(EnsembleLearner, "finish", lambda learner: before.append(learner.scorer.grid()) or {})
    models[0].fit(dataset.train, dataset.probe)
    monkeypatch.undo()
    monkeypatch.setattr(EnsembleLearner, "_learn_labels", stopped)
    with pytest.raises(KeyboardInterrupt):
        models[1].fit(dataset.train, dataset.probe)
    assert torch.equal(models[1].scorer_.grid(), before[0])
    assert len(models[1].predict_log(dataset.test)) == len(dataset.test)


def test_a_probe_of_one_row_moves_the_level_little() -> None:
    data = cp.simulate(100, 80, 0.1, seed=2).dataset
    assert data.probe is not None
    one = data.probe.take(np.arange(1))
    alone, with_probe = (cp.make("counterpoise", device="cpu").fit(data.train, probe) for probe in (None, one))
    rates = [float(model.predict_log(data.test).mean()) for model in (alone, with_probe)]
    assert abs(rates[0] - rates[1]) < 0.06


def test_one_member_has_no_weight_in_the_facts(dataset: Dataset) -> None:
    model = cp.make("mf", ensemble="average", **FAST).fit(dataset.train, dataset.probe)
    assert "weight" not in model.facts_["ensemble"]
    assert model.is_corrected
    assert "they judged the predictions and were not learned" in model.summary()
