"""What `fit` prints of the parts of a model, and the summary of the report with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from graded_world import graded

import counterpoise as cp
from counterpoise import Dataset
from counterpoise.cli.describe import features_lines, fit_lines

FAST = {"epochs": 3, "dim": 4, "device": "cpu"}


def lines_of(model: cp.DebiasedRecommender) -> str:
    return "\n".join(fit_lines(model.facts_, 601))


def test_the_missingness_model_and_its_average_are_described(dataset: Dataset) -> None:
    model = cp.make("counterpoise", **FAST).fit(dataset.train, probe=dataset.probe)
    facts = model.facts_["imputation"]
    assert f"{facts['positive'] / facts['negative']:.1f}x as likely" in lines_of(model)
    assert "average of the model with this correction" in lines_of(model)
    without_probe = cp.make("counterpoise", **FAST).fit(dataset.train)
    assert "Missingness model off" in lines_of(without_probe)
    assert "Prediction = average" not in lines_of(without_probe)


def test_the_ensemble_of_any_imputation_is_described(dataset: Dataset) -> None:
    model = cp.make("dr-jl", ensemble=cp.Ensemble(), **FAST).fit(dataset.train, probe=dataset.probe)
    assert "average of the model with the imputation" in lines_of(model)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("mf", "nothing is imputed"),
        ("mnar", "there is no active missingness model to average with"),
        ("skb-ips", "nothing is imputed"),
    ],
)
def test_an_inactive_ensemble_is_described(method: str, why: str, dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make(method, ensemble=cp.Ensemble(), **FAST).fit(dataset.train)
    assert f"Ensemble off: {why}." in lines_of(model)
    facts = cp.write_report(model, dataset, out=tmp_path / "page.html", baseline=False)
    assert f"Ensemble: inactive, {why}." in str(facts["summary"])


def test_the_chosen_strength_and_the_moved_intercept_are_described(dataset: Dataset) -> None:
    model = cp.make("skb-ips", **FAST).fit(dataset.train)
    weights, lines = model.facts_["weights"], lines_of(model)
    before, after = (
        max(abs(size) for fold in weights["balanced"] for size in fold[when]) for when in ("before_sd", "after_sd")
    )
    path = weights["path"]
    assert f" of the effective sample at strength {path['strength']:.3g} (the largest that keeps " in lines
    assert f"keeps {path['kept']:.1%}): largest imbalance {before:.2f} to {after:.2f} SD." in lines
    for shift, described in ((-0.2, True), (0.0, False)):
        facts = model.facts_ | {"intercept_shift": {"shift": shift, "standard_error": 0.05}}
        sentence = "The intercept of predictions was moved by -0.20 in log odds (standard error 0.05)"
        assert (sentence in "\n".join(fit_lines(facts, 601))) == described


@pytest.mark.parametrize(("method", "settings"), [("mf", {}), ("skb-ips", {"strength": 0.1}), ("ips", {})])
def test_methods_without_a_path_describe_none(method: str, settings: dict, dataset: Dataset) -> None:
    model = cp.make(method, **FAST, **settings).fit(dataset.train, probe=dataset.probe)
    assert "Balancing keeps" not in lines_of(model)
    assert "intercept of predictions" not in lines_of(model)


@pytest.mark.parametrize("noise", [False, True])
def test_the_ordinal_loss_is_described(noise: bool) -> None:
    model = cp.make("mf", ordinal=cp.OrdinalLoss(), **FAST).fit(graded(2, noise=noise).train)
    assert ("Ordinal loss off: in this log rating levels add nothing" in lines_of(model)) == noise
    assert ("Ordinal loss: ratings beyond the label are learned" in lines_of(model)) != noise


@pytest.mark.parametrize("side_features", [False, True])
def test_a_model_that_learned_no_factors_is_described(side_features: bool, dataset: Dataset, tmp_path: Path) -> None:
    sentence = f"No factors were learned: a model of biases {'and features ' if side_features else ''}only."
    for l2, learned in ((0.5, True), (1e5, False)):
        settings = {"l2": l2, "side_features": side_features, "epochs": 60, "device": "cpu"}
        model = cp.make("mf", **settings).fit(dataset.train)
        assert (sentence in lines_of(model)) != learned
        assert ("Factors: their part of the log odds has a standard deviation of" in lines_of(model)) == learned
        facts = cp.write_report(model, dataset, out=tmp_path / "page.html", baseline=False)
        assert (sentence in str(facts["summary"])) != learned


@pytest.mark.parametrize("used", [False, True])
def test_unused_side_features_are_described(used: bool, dataset: Dataset) -> None:
    model = cp.make("mf", side_features=used, **FAST).fit(dataset.train)
    assert bool(features_lines(model)) != used
