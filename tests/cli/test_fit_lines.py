"""What `fit` prints of the parts of a model, and the summary of the report with it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from graded_world import graded

import counterpoise as cp
from counterpoise import Dataset, FeedbackLog
from counterpoise.cli.describe import features_lines, fit_lines

FAST = {"epochs": 3, "dim": 4, "device": "cpu"}


def lines_of(model: cp.DebiasedRecommender) -> str:
    return "\n".join(fit_lines(model.facts_, 601))


def paragraph(model: cp.DebiasedRecommender) -> str:
    assert lines_of(model).replace("\n", " ").startswith(model.summary())
    return model.summary()


def test_the_missingness_model_and_its_weight_are_described(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("counterpoise", **FAST).fit(dataset.train, probe=dataset.probe)
    facts, weight = model.facts_["imputation"], model.facts_["ensemble"]["weight"]
    text = paragraph(model)
    times = facts["positive"] / facts["negative"]
    low, high = facts["interval"]
    assert math.exp(facts["log_odds_ratio"]) == pytest.approx(times)
    assert low < times < high
    assert f"{times:.1f} times as likely to be observed" in text
    assert f"(the probe allows {low:.1f} to {high:.1f} times)" in text
    assert f"a model that corrects for this ({weight:.0%})" in text
    assert "The mean prediction is set to the mean label of the probe" in text
    report = cp.write_report(model, dataset, out=tmp_path / "page.html", baseline=False)
    assert text in str(report["summary"])


def test_what_cannot_be_known_without_a_probe_is_said(dataset: Dataset) -> None:
    text = paragraph(cp.make("counterpoise", **FAST).fit(dataset.train))
    assert text.startswith("No probe (a small sample of pairs drawn at random):")
    assert "was not corrected: without a probe it cannot be known" in text


@pytest.mark.parametrize(
    ("method", "learned"),
    [
        ("mf", "its labels were not learned"),
        ("ips", "only its share of positives was used"),
        ("mf-with-probe", "learned together with the log, with 9% of the weight"),
        ("mf-probe", "The model learned from the probe (60 rows) alone."),
        ("cause", "learned together with the log."),
        ("autodebias", "learned together with the log."),
        ("dr-jl", "Errors of pairs that were not rated were imputed."),
    ],
)
def test_the_use_of_the_probe_is_said(method: str, learned: str, dataset: Dataset) -> None:
    assert learned in paragraph(cp.make(method, **FAST).fit(dataset.train, dataset.probe))


@pytest.mark.parametrize(
    ("method", "corrected"),
    [
        ("mf", False),
        ("ips", True),
        ("skb-ips", True),
        ("eib", True),
        ("mf-with-probe", True),
        ("counterpoise", True),
    ],
)
def test_a_model_knows_whether_it_corrects_for_selection(method: str, corrected: bool, dataset: Dataset) -> None:
    assert cp.make(method, **FAST).fit(dataset.train, dataset.probe).is_corrected == corrected


def test_a_missingness_model_without_a_probe_corrects_nothing(dataset: Dataset) -> None:
    assert not cp.make("mnar", **FAST).fit(dataset.train).is_corrected


def test_the_chosen_strength_and_the_moved_intercept_are_described(dataset: Dataset) -> None:
    model = cp.make("skb-ips", **FAST).fit(dataset.train)
    weights, lines = model.facts_["weights"], lines_of(model)
    before, after = (
        max(abs(size) for fold in weights["balanced"] for size in fold[when]) for when in ("before_sd", "after_sd")
    )
    path = weights["path"]
    assert f" of the effective sample at strength {path['strength']:.3g} (the largest strength that keeps " in lines
    assert f"keeps {path['kept']:.1%}). Largest imbalance: {before:.2f} SD before, {after:.2f} SD after." in lines
    for shift, described in ((-0.2, True), (0.0, False)):
        facts = model.facts_ | {"intercept_shift": {"shift": shift, "standard_error": 0.05}}
        sentence = "All predictions were moved by -0.20 in log odds (standard error 0.05)"
        assert (sentence in "\n".join(fit_lines(facts, 601))) == described


@pytest.mark.parametrize(("method", "settings"), [("mf", {}), ("skb-ips", {"strength": 0.1}), ("ips", {})])
def test_methods_without_a_path_describe_none(method: str, settings: dict, dataset: Dataset) -> None:
    model = cp.make(method, **FAST, **settings).fit(dataset.train, probe=dataset.probe)
    assert "Balancing keeps" not in lines_of(model)
    assert "All predictions were moved" not in lines_of(model)


@pytest.mark.parametrize(
    ("method", "described"),
    [
        ("cdr", r"Filtered: \d+\.\d% of all pairs keep their imputed error\."),
        ("dce-dr", r"Calibrated by \w+: mean error of propensities 0\.\d+ -> 0\.\d+\."),
        ("d-ips", r"Capped: the weights of \d+\.\d% of the rows\."),
    ],
)
def test_what_changes_errors_or_weights_is_described(method: str, described: str, dataset: Dataset) -> None:
    assert re.search(described, lines_of(cp.make(method, **FAST).fit(dataset.train, probe=dataset.probe)))


def test_balancing_that_stopped_early_says_how_far_it_came(dataset: Dataset) -> None:
    facts = cp.make("skb-ips", **FAST).fit(dataset.train).facts_
    assert "with a gap of" not in "\n".join(fit_lines(facts, 601))
    stopped = facts | {"weights": facts["weights"] | {"status": "stalled", "gap": 0.0012}}
    assert "(relaxed), stalled with a gap of 1.2e-03" in " ".join("\n".join(fit_lines(stopped, 601)).split())


@pytest.mark.parametrize("noise", [False, True])
def test_the_ordinal_loss_is_described(noise: bool) -> None:
    model = cp.make("mf", ordinal=cp.OrdinalLoss(), **FAST).fit(graded(2, noise=noise).train)
    assert ("Ordinal loss off: in this log rating levels add nothing" in lines_of(model)) == noise
    assert ("How far a rating is from the threshold is learned too" in lines_of(model)) != noise


@pytest.mark.parametrize("side_features", [False, True])
def test_a_model_that_learned_no_factors_is_described(side_features: bool, dataset: Dataset, tmp_path: Path) -> None:
    known = "users, items and their features" if side_features else "users and items"
    sentence = f"No personal taste was learned: predictions are sums of effects of {known}."
    for l2, learned in ((0.5, True), (1e5, False)):
        settings = {"l2": l2, "side_features": side_features, "epochs": 60, "device": "cpu"}
        model = cp.make("mf", **settings).fit(dataset.train)
        assert (sentence in lines_of(model)) != learned
        assert ("Personal taste (factors) moves predictions by" in lines_of(model)) == learned
        facts = cp.write_report(model, dataset, out=tmp_path / "page.html", baseline=False)
        assert (sentence in str(facts["summary"])) != learned


@pytest.mark.parametrize("used", [False, True])
def test_unused_side_features_are_described(used: bool, dataset: Dataset) -> None:
    model = cp.make("mf", side_features=used, **FAST).fit(dataset.train)
    assert bool(features_lines(model)) != used


def test_weights_of_clicks_are_described_by_exposure() -> None:
    data = cp.simulate(400, 200, 0.3, feedback="clicks")
    log = data.dataset.train
    relative = lines_of(cp.make("rel-mf", epochs=3).fit(log))
    assert "Part of popularity is taken for exposure" in relative
    assert "Propensities from" not in relative  # those are chances of a click
    together = cp.make("expomf", dim=2, epochs=3).fit(log)
    mean = together.facts_["imputation"]["exposure"]["mean"]
    assert f"Exposure, the chance of being seen, was learned together with relevance: {mean:.2f}" in lines_of(together)
    chances = data.propensity[log.users, log.items]
    known = cp.make("rel-mf", weights="known", epochs=3)
    model = known.fit(FeedbackLog.from_arrays(log.users, log.items, propensities=chances))
    text = lines_of(model)
    relevant = f"mean ratio {float(model.ratio_.mean()):.2f} (the share of relevant pairs if they are right)"
    assert relevant in text
    assert model.ratio_.mean() == pytest.approx(np.asarray(data.labels).mean(), rel=0.05)
    below = "\n".join(fit_lines(model.facts_ | {"risk": -0.5}, len(log)))
    assert "below 0: corrected labels leave [0, 1]. Raise l2, or choose one without large weights (eals)." in below
