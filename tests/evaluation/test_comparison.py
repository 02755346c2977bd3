"""Several models on the same rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender


@pytest.fixture(scope="module")
def models(dataset: Dataset) -> dict[str, DebiasedRecommender]:
    names = {"mf": "mf", "<b>popularity": "popularity"}
    return {name: cp.make(method, epochs=5).fit(dataset.train) for name, method in names.items()}


def test_values_and_differences_are_those_of_the_evaluations(
    models: dict[str, DebiasedRecommender], dataset: Dataset
) -> None:
    found = cp.compare(models, dataset.test)
    evaluations = {name: cp.evaluate(model, dataset.test) for name, model in models.items()}
    assert found.evaluations == evaluations
    (row,) = found.to_frame().filter(model="<b>popularity", metric="AUC").to_dicts()
    first, second = (evaluation.auc for evaluation in evaluations.values())
    assert row["difference"] == pytest.approx(second - first)
    assert row["difference_low"] <= row["difference"] <= row["difference_high"]
    assert found.to_frame().filter(model="mf")["difference"].null_count() == 9


def test_a_biased_hold_out_is_weighted(models: dict[str, DebiasedRecommender], dataset: Dataset) -> None:
    frame = pd.DataFrame(dataset.test.to_frame().to_dict(as_series=False))
    found = cp.compare(models, frame, sample="biased")
    assert isinstance(found.to_frame(), pd.DataFrame)
    assert isinstance(found.evaluations["mf"], cp.WeightedEvaluation)
    assert set(found.differences) == {"<b>popularity"}


def test_weighted_models_are_compared_by_the_same_weights_in_pairs(
    models: dict[str, DebiasedRecommender], dataset: Dataset
) -> None:
    log = replace(dataset.test, sample="biased")
    weights = cp.weigh_holdout(log, dataset.train)
    found = cp.compare(models, log)
    for name, model in models.items():
        assert found.evaluations[name] == cp.evaluate(model, log, weights=weights)
    first, second = found.evaluations.values()
    own = found.differences["<b>popularity"]["auc"]
    assert own.value == second.auc - first.auc
    influences = [one.influences.rows["auc"] for one in (second, first)]
    error = weights.standard_errors((influences[0] - influences[1])[:, None])[0]
    assert own.high - own.value == pytest.approx(1.959964 * error)
    scores = {"scores": models["mf"].predict_log(log)}
    assert cp.compare(models | scores, log).evaluations["scores"].auc == first.auc  # by the weights of the models
    assert cp.compare(scores, log, train=dataset.train).evaluations["scores"].auc == first.auc
    assert type(cp.compare(scores, log).evaluations["scores"]) is cp.Evaluation


def test_printed_comparison_has_a_column_for_each_model(
    models: dict[str, DebiasedRecommender], dataset: Dataset
) -> None:
    found = cp.compare(models, dataset.test)
    lines = str(found).splitlines()
    assert lines[0].split() == ["metric", *models]
    assert lines[1].startswith(f"AUC           {found.evaluations['mf'].auc:.4f} (")
    assert f"  {found.evaluations['<b>popularity'].auc:.4f} (" in lines[1]
    assert lines[10] == f"Comparison on {len(dataset.test):,} rows of {found.evaluations['mf'].n_users:,} users."
    weighted = cp.compare(models, replace(dataset.test, sample="biased"))
    assert str(weighted).endswith(weighted.evaluations["mf"].assumption)


def test_the_repr_is_escaped_and_marks_clear_differences(
    models: dict[str, DebiasedRecommender], dataset: Dataset
) -> None:
    found = cp.compare(models, dataset.test)
    page = found._repr_html_()
    assert "&lt;b&gt;popularity" in page
    assert "<b>" not in page
    clear = sum(one.low > 0 or one.high < 0 for one in found.differences["<b>popularity"].values())
    assert page.count(" *<") == clear


def test_rows_that_any_model_has_seen_are_left_out(dataset: Dataset) -> None:
    log, more = dataset.train, dataset.train.to_frame()
    first = cp.make("mf", epochs=1).fit(log.take(range(200)))
    second = cp.make("mf", epochs=1).fit(log.take(range(100, 300)))
    found = cp.compare({"a": first, "b": second}, log)
    assert {one.n_rows for one in found.evaluations.values()} == {len(log) - 300}
    with pytest.raises(cp.DataError, match="no test"):
        cp.compare({"a": first}, more.head(200))
    with pytest.raises(cp.ConfigError, match="`models` must be a table"):
        cp.compare([first], log)
    assert isinstance(found.to_frame(), pl.DataFrame)
    with pytest.raises(cp.DataError, match="no pair that a model was fitted to, where scores are given"):
        cp.compare({"a": first, "scores": np.zeros(len(log))}, log)


def test_weights_of_rows_that_were_seen_are_left_out_too(dataset: Dataset) -> None:
    log = replace(dataset.train, sample="biased")
    model, other = (cp.make("mf", epochs=1, seed=seed).fit(log.take(range(200))) for seed in (0, 1))
    weights = np.random.default_rng(0).random(len(log))
    found = cp.compare({"a": model, "b": other}, log, weights=weights)
    expected = cp.compare({"a": model, "b": other}, log.take(range(200, len(log))), weights=weights[200:])
    assert found.evaluations["a"].auc == pytest.approx(expected.evaluations["a"].auc)


def test_one_model_is_compared_with_nothing(models: dict[str, DebiasedRecommender], dataset: Dataset) -> None:
    frame = cp.compare({"mf": models["mf"]}, dataset.test).to_frame()
    assert frame.columns == ["model", "metric", "value", "low", "high"]
