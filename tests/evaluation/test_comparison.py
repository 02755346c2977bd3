"""Several models on the same rows."""

from __future__ import annotations

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
    assert found.differences == {}
    assert isinstance(found.evaluations["mf"], cp.WeightedEvaluation)


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
