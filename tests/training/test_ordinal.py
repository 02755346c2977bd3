"""Ordinal ratings: the likelihood against its definition, the ordinal weight, and fits with and without."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graded_world import CUTS, graded
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

import counterpoise as cp
from counterpoise import Dataset, FeedbackLog
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.fitting import fit_streamed
from counterpoise.out_of_core.log import StreamedLog
from counterpoise.risks import error
from counterpoise.training.ordinal import (
    FittedOrdinal,
    RatingLevels,
    _weight_of_log,
    at_levels,
    label_slope,
    leave_one_out_log_odds,
    level_losses,
    level_slope,
    ordinal_weight,
    share_reaching,
)

FAST = {"epochs": 12, "dim": 4}
Numbers = NDArray[Any]
CHOICES = (None, cp.OrdinalLoss())
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def fitted_ordinal(log: FeedbackLog) -> FittedOrdinal | None:
    return cp.OrdinalLoss().init(cp.make("mf")._context(log, None))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 7))
def test_level_losses_are_negative_log_probabilities_given_the_label(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    main = int(rng.integers(1, levels))
    gaps, scores = rng.uniform(0.1, 2, levels - 2), rng.normal(size=9) * 3
    cutpoints = np.concatenate([[0.0], -np.cumsum(gaps)])
    cutpoints -= cutpoints[main - 1]
    above = np.hstack([np.ones((9, 1)), 1 / (1 + np.exp(-(scores[:, None] + cutpoints))), np.zeros((9, 1))])  # P(>= k)
    each = above[:, :-1] - above[:, 1:]
    for level in range(levels):
        label = float(level >= main)
        of_label = above[:, main] if label else 1 - above[:, main]
        arguments = torch.from_numpy(scores), torch.full((9,), label).double(), torch.full((9,), level)
        found = level_losses(*arguments, torch.from_numpy(gaps), main)
        np.testing.assert_allclose(found, -np.log(each[:, level] / of_label), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_values_at_levels_are_an_index_with_repeatable_gradients(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    tables = tuple(torch.randn(5, generator=generator).to(device).requires_grad_() for _ in range(2))
    levels = torch.randint(5, (4000,), generator=generator).to(device)
    slopes = torch.randn(4000, generator=generator).to(device)
    gradients = []
    for _ in range(3):
        found = at_levels(tables, levels)
        assert all(torch.equal(values, table[levels]) for values, table in zip(found, tables, strict=True))
        gradients.append(torch.autograd.grad([(values * slopes).sum() for values in found], tables))
    by_level = [(slopes * (levels == level)).sum() for level in range(5)]
    assert all(torch.allclose(gradient, torch.stack(by_level), atol=1e-4) for gradient in gradients[0])
    assert all(torch.equal(*pair) for again in gradients[1:] for pair in zip(again, gradients[0], strict=True))


def test_label_and_level_together_are_the_rating() -> None:
    scores, gaps = torch.linspace(-3, 3, 7).double(), torch.tensor([1.5, 1.0, 1.5]).double()
    total = torch.zeros(7).double()
    for level in range(5):
        label = torch.full((7,), float(level >= 2)).double()
        levels = torch.full((7,), level)
        total += torch.exp(-error(label, scores) - level_losses(scores, label, levels, gaps, 2))
    torch.testing.assert_close(total, torch.ones(7).double())


@pytest.mark.parametrize(
    ("ratings", "threshold", "borders"),
    [
        ([1, 2, 3, 4, 5], 3, [2, 3, 4, 5]),
        ([1, 2, 3, 4, 5], 3.5, [2, 3, 3.5, 5]),
        ([0, 1], 1, [1]),
        ([0, 0.5, 1], 0.5, [0.5, 1]),
    ],
)
def test_few_values_are_levels_of_their_own(ratings: list[float], threshold: float, borders: list[float]) -> None:
    levels = RatingLevels.of(np.array(ratings, dtype=float), threshold)
    assert levels.borders.tolist() == borders
    assert levels.borders[levels.main - 1] == threshold


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=80), st.floats(0, 1))
def test_a_level_is_on_the_side_of_its_label(values: list[float], where: float) -> None:
    ratings = np.array(values)
    threshold = float(np.quantile(ratings, where))
    if (ratings >= threshold).all():
        return
    levels = RatingLevels.of(ratings, threshold)
    found = levels.of_ratings(ratings)
    assert np.array_equal(found >= levels.main, ratings >= threshold)
    assert found.max() <= len(levels.borders) <= 10
    assert (np.diff(levels.borders) > 0).all()


def test_the_odds_of_a_row_leave_it_out() -> None:
    codes, labels = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 0.0, 1.0])
    found = leave_one_out_log_odds(codes, labels, np.arange(4))
    rates = [(1 + 5 * 0.75) / 7, (1 + 5 * 0.75) / 7, (2 + 5 * 0.75) / 7, 5 * 0.75 / 5]
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), rates)


def draw_levels(weight: float, spread: float, rows: int = 20_000) -> tuple[Numbers, Numbers, Numbers]:
    """(scores, labels, levels): labels by their log odds, levels given labels by those of weight x score."""
    rng = np.random.default_rng(0)
    scores = spread * rng.normal(size=rows)
    labels = (rng.random(rows) < expit(scores)).astype(float)
    above = np.hstack([np.ones((rows, 1)), expit(weight * scores[:, None] + CUTS), np.zeros((rows, 1))])
    p = (above[:, :-1] - above[:, 1:]) * ((np.arange(5) >= 2) == labels[:, None])
    levels = (rng.random((rows, 1)) > p.cumsum(1) / p.sum(1, keepdims=True)).sum(1)
    return scores, labels, levels.astype(np.uint8)


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_the_ordinal_weight_is_found(weight: float, spread: float) -> None:
    found = ordinal_weight(*draw_levels(weight, spread), 2)
    assert found == pytest.approx(weight, abs=0.1 / min(spread, 1.0))


def test_both_slopes_are_the_likeliest() -> None:
    """Against a general optimiser on the likelihoods written out."""
    scores, labels, levels = draw_levels(0.6, 1.0, 3000)
    scores = scores - scores.mean()
    centre = np.log(labels.mean() / (1 - labels.mean()))
    tensors = [torch.from_numpy(values) for values in (labels, levels.astype(np.int64))]

    def of_label(beta: Numbers) -> float:
        return float(error(tensors[0], torch.from_numpy(beta[0] + beta[1] * scores)).sum())

    def of_level(theta: Numbers) -> float:
        t = torch.from_numpy(centre + theta[0] * scores)
        return float(level_losses(t, *tensors, torch.from_numpy(np.exp(theta[1:])), 2).sum())

    label, level = minimize(of_label, [0.0, 0.0]), minimize(of_level, np.zeros(4))
    assert label_slope(scores, labels) == pytest.approx(label.x[1], rel=0.01)  # a little shrunken
    assert level_slope(scores, labels, levels, 2) == pytest.approx(level.x[0], rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_levels_without_information_have_no_weight(seed: int) -> None:
    for noise, least, most in ((True, 0.0, 0.1), (False, 0.8, 1.0)):
        log = graded(seed, noise=noise).train
        levels = RatingLevels.of(log.ratings, 3.0).of_ratings(log.ratings)
        assert least <= _weight_of_log(log, levels, np.arange(len(log)), 2) <= most


@pytest.mark.parametrize(
    ("density", "least"),
    [
        (0.15, 0.003),
        pytest.param(
            0.8,
            0.0,
            marks=pytest.mark.xfail(reason="the prior of factors does not know the noise that levels add", strict=True),
        ),
    ],
)
def test_levels_help_to_predict_labels(density: float, least: float) -> None:
    gains = []
    for seed in range(4):
        data = graded(seed, n_users=90, n_items=60, density=density)
        models = [cp.make("counterpoise", ordinal=ordinal, seed=seed).fit(data.train) for ordinal in CHOICES]
        losses = [cp.evaluate(model, data.test, bootstrap=0).log_loss for model in models]
        gains.append(losses[0] - losses[1])
    assert np.mean(gains) > least


def test_the_ordinal_loss_ignores_the_scale_of_snips_weights() -> None:
    data, found = graded(), []
    for propensity in (0.5, 0.02):
        log = dataclasses.replace(data.train, propensities=np.full(len(data.train), propensity))
        model = cp.DebiasedRecommender(
            cp.KnownPropensity(), "snips", ordinal=cp.OrdinalLoss(), training=cp.Training(epochs=12)
        ).fit(log)
        found.append(model.predict_log(data.test))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_sample_without_positives_has_no_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.training.ordinal.SAMPLE_ROWS", 5)
    log = dataclasses.replace(graded().train, threshold=5.0)
    log = log.take(np.append(np.flatnonzero(log.labels == 0)[:400], np.flatnonzero(log.labels == 1)[:1]))
    assert fitted_ordinal(log) is None


def test_the_cutpoints_are_learned() -> None:
    model = cp.make("mf", ordinal=cp.OrdinalLoss(), dim=1, l2=1000.0)  # main effects, as the ratings were made
    facts = model.fit(graded(n_users=200, n_items=100).train).facts_["ordinal"]
    assert facts["levels"] == [2, 3, 4, 5]
    odds = np.array(facts["log_odds"])
    np.testing.assert_allclose(odds - odds[1], CUTS, atol=0.25)


@pytest.mark.parametrize("method", ["mf", "counterpoise", "skb-dr"])
def test_levels_without_information_change_nothing(method: str, dataset: Dataset) -> None:
    noisy = graded(2, noise=True)
    assert fitted_ordinal(noisy.train) is None
    for data in (dataset, noisy):
        found = [cp.make(method, ordinal=ordinal, **FAST).fit(data.train, data.probe) for ordinal in CHOICES]
        np.testing.assert_array_equal(*(model.predict_log(data.test) for model in found))
        assert "ordinal" not in found[1].facts_
        why = "the ratings of the log are labels" if data is dataset else "in this log rating levels add nothing to"
        assert found[1].facts_["inactive"]["ordinal"].startswith(why)
        assert "ordinal" not in found[0].facts_.get("inactive", {})


def test_a_streamed_log_is_learned_from_in_the_same_way(tmp_path: Path) -> None:
    data = graded()
    data.train.to_frame().write_parquet(tmp_path / "log.parquet")
    log = StreamedLog(shard_log(tmp_path / "log.parquet", cache=tmp_path / "cache", shard_rows=100), threshold=3)
    model = cp.make("mf", ordinal=cp.OrdinalLoss(), **FAST)
    streamed = fit_streamed(model, log, None).predict_log(data.test)
    np.testing.assert_allclose(streamed, model.fit(data.train).predict_log(data.test), atol=1e-5)


def test_the_weight_of_a_long_log_comes_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    log = graded(n_users=200, n_items=100).train
    whole = fitted_ordinal(log)
    monkeypatch.setattr("counterpoise.training.ordinal.SAMPLE_ROWS", 2000)
    part = fitted_ordinal(log)
    assert whole is not None
    assert part is not None
    assert torch.equal(part.levels, whole.levels)
    assert part.weight == pytest.approx(whole.weight, abs=0.3)


def test_a_saved_model_keeps_its_ordinal_facts(tmp_path: Path) -> None:
    data = graded()
    model = cp.make("counterpoise", device="cpu", **FAST).fit(data.train, data.probe)
    model.save(tmp_path / "run")
    again = cp.load_model(tmp_path / "run")
    assert again.facts_["ordinal"] == model.facts_["ordinal"]
    np.testing.assert_allclose(again.predict_log(data.test), model.predict_log(data.test), atol=1e-6)


def test_one_sided_and_unthresholded_logs_have_no_levels() -> None:
    log = graded().train
    for other in (dataclasses.replace(log, threshold=0.0), dataclasses.replace(log, threshold=None)):
        assert fitted_ordinal(other.take(np.arange(50))) is None


def test_the_share_at_or_above_each_level() -> None:
    assert share_reaching(np.array([0, 1, 1, 3], dtype=np.uint8), 4).tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]
