"""Two predictors and their mean, against each of them fitted alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import counterpoise as cp
from counterpoise import ConfigError, DataError, Dataset
from counterpoise.cli.describe import fit_lines
from counterpoise.parallel import fit_many
from counterpoise.training.ensemble import EnsembleScorer, level

FAST = {"epochs": 6, "dim": 4, "device": "cpu"}


def logits(model: cp.DebiasedRecommender) -> np.ndarray:
    return model.scorer_.grid().double().numpy()


@pytest.fixture(scope="module")
def model(dataset: Dataset) -> cp.DebiasedRecommender:
    return cp.make("counterpoise", **FAST).fit(dataset.train, probe=dataset.probe)


def test_the_logit_is_halfway_between_two_fits_plus_the_level(model: cp.DebiasedRecommender, dataset: Dataset) -> None:
    with_imputation = cp.make("counterpoise", hedge=False, **FAST).fit(dataset.train, probe=dataset.probe)
    without = cp.make("counterpoise", hedge=False, imputation="none", **FAST).fit(dataset.train)
    found = model.facts_["imputation"]["level"]
    assert found != 0
    assert np.allclose(logits(model), (logits(with_imputation) + logits(without)) / 2 + found, atol=1e-5)
    assert not np.allclose(logits(with_imputation), logits(without), atol=0.05)


def test_pairs_grids_and_vectors_say_the_same(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    assert isinstance(scorer, EnsembleScorer)
    users, items = torch.meshgrid(torch.arange(scorer.n_users), torch.arange(scorer.n_items), indexing="ij")
    tables = scorer.vectors()
    assert tables is not None
    assert torch.allclose(scorer(users.flatten(), items.flatten()).view(users.shape), scorer.grid(), atol=1e-5)
    assert torch.allclose(tables[0] @ tables[1].T, scorer.grid(), atol=1e-5)
    assert torch.allclose(scorer.grid(torch.tensor([3, 1])), scorer.grid()[[3, 1]], atol=1e-6)


def test_what_exposure_says_is_the_mean_of_both(model: cp.DebiasedRecommender) -> None:
    scorer = model.scorer_
    both = [getattr(scorer, name).exposure_coefficients for name in ("believing", "doubting")]
    assert torch.allclose(scorer.exposure_coefficients, (both[0] + both[1]) / 2)
    assert not torch.allclose(both[0], both[1])
    assert torch.equal(scorer.believing.user_exposure, scorer.doubting.user_exposure)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_the_level_makes_predictions_average_to_the_labels(rate: float) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=4000), (rng.random(4000) < rate).astype(np.float32)
    target = (labels.sum() + 1) / 4002
    exact = brentq(lambda b: (1 / (1 + np.exp(-scores - b))).mean() - target, -9, 9)
    chance = 1 / (1 + np.exp(-scores - exact))
    expected = exact * max(0, 1 - 2 / (chance * (1 - chance)).sum() / exact**2)
    assert level(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(expected, abs=1e-6)


def test_a_difference_that_chance_explains_moves_nothing() -> None:
    assert level(torch.zeros(40), torch.tensor([1.0, 0.0] * 18 + [1.0] * 4)) == 0.0


def test_a_probe_of_one_label_has_a_level() -> None:
    assert -math.inf < level(torch.zeros(200), torch.zeros(200)) < -1


def test_without_a_probe_there_is_nothing_to_doubt_and_one_predictor(dataset: Dataset) -> None:
    model = cp.make("counterpoise", **FAST).fit(dataset.train)
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert "level" not in model.facts_["imputation"]


@pytest.mark.parametrize(
    ("method", "why"),
    [("mf", "nothing is imputed"), ("mnar", "the imputation says nothing"), ("skb-ips", "nothing is")],
)
def test_who_asked_for_a_hedge_learns_why_there_is_none(
    method: str, why: str, dataset: Dataset, tmp_path: Path
) -> None:
    model = cp.make(method, hedge=True, **FAST).fit(dataset.train)
    assert model.facts_["inactive_settings"]["hedge"].startswith(why)
    assert any(line.startswith("Ensemble off: ") for line in fit_lines(model.facts_, 9))
    facts = cp.write_report(model, dataset, out=tmp_path / "page.html", plain=False)
    assert f"was to doubt the imputation, but there is none: {why}" in str(facts["summary"])
    doubted = cp.make("dr-jl", hedge=True, **FAST).fit(dataset.train, dataset.probe)
    for quiet in (cp.make(method, **FAST).fit(dataset.train), doubted):
        assert "inactive_settings" not in quiet.facts_
    together = fit_many(method, dataset.train, configs=[FAST | {"hedge": True}, FAST | {"hedge": True, "seed": 1}])
    assert together[1].facts_["inactive_settings"] == model.facts_["inactive_settings"]


def test_an_imputation_that_the_risk_does_not_heed_is_not_doubted(dataset: Dataset) -> None:
    training = cp.Training(epochs=3, device="cpu")
    model = cp.DebiasedRecommender(cp.Uniform(), "ips", cp.Learned(), training=training, hedge=True).fit(dataset.train)
    assert not isinstance(model.scorer_, EnsembleScorer)
    assert model.facts_["inactive_settings"]["hedge"] == "the risk heeds no imputation"


@pytest.mark.parametrize("method", ["dr-jl", "dr-v2", "skb-dr", "eib", "mnar"])
def test_any_imputation_can_be_hedged(method: str, dataset: Dataset) -> None:
    fast = {"epochs": 3, "dim": 4, "device": "cpu"}
    hedged = cp.make(method, hedge=True, **fast).fit(dataset.train, probe=dataset.probe)
    alone = cp.make(method, **fast).fit(dataset.train, probe=dataset.probe)
    assert np.array_equal(hedged.scorer_.believing.grid().numpy(), alone.scorer_.grid().numpy())
    assert np.array_equal(hedged.ratio_, alone.ratio_)


def test_side_by_side_is_the_same_as_alone(model: cp.DebiasedRecommender, dataset: Dataset) -> None:
    both = fit_many("counterpoise", dataset.train, dataset.probe, configs=[FAST, FAST | {"seed": 1}])
    assert np.allclose(logits(both[0]), logits(model), atol=1e-4)
    assert both[0].facts_["imputation"] == pytest.approx(model.facts_["imputation"], abs=1e-5)


def test_a_saved_model_predicts_the_same(model: cp.DebiasedRecommender, dataset: Dataset, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert np.array_equal(loaded.predict_log(dataset.test), model.predict_log(dataset.test))
    assert loaded.recommend(k=3).equals(model.recommend(k=3))


def test_patience_looks_at_both(dataset: Dataset) -> None:
    model = cp.make("counterpoise", patience=2, epochs=40, dim=4).fit(dataset.train, probe=dataset.probe)
    assert len(model.history_.held_out_risk) < 40
    assert isinstance(model.scorer_, EnsembleScorer)


def test_where_the_imputation_is_all_there_is_nothing_is_hedged(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`hedge` must be false for risk='direct'"):
        cp.make("mr", hedge=True).fit(dataset.train)


def test_a_fit_says_what_silence_said(model: cp.DebiasedRecommender, dataset: Dataset) -> None:
    facts = model.facts_["imputation"]
    times = f"{facts['positive'] / facts['negative']:.1f}x as likely"
    lines = "\n".join(fit_lines(model.facts_, 601))
    assert times in lines
    assert "average of the model with this correction" in lines
    silent = cp.make("counterpoise", **FAST).fit(dataset.train)
    assert any("Missingness model off" in line for line in fit_lines(silent.facts_, 601))


def test_the_hedge_of_any_imputation_is_told(dataset: Dataset) -> None:
    model = cp.make("dr-jl", hedge=True, epochs=2, dim=4).fit(dataset.train, probe=dataset.probe)
    assert any("average of the model with the imputation" in line for line in fit_lines(model.facts_, 601))


def test_two_predictors_of_a_run_that_tells_of_one_are_refused(model: cp.DebiasedRecommender, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    manifest = tmp_path / "run" / "run.json"
    facts = json.loads(manifest.read_text())
    facts["configuration"]["hedge"] = False
    manifest.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="two predictors"):
        cp.load_model(tmp_path / "run")
