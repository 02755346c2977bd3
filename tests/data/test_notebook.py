"""What objects look like in a notebook: escaped, small, without scripts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import counterpoise as cp
from counterpoise.data.notebook import MAX_ROWS, notebook_html

EVIL = "<script>alert(1)</script>'\"&"


def shown() -> dict[str, Any]:
    """One object of each class, with ids and names of features that are HTML."""
    table = cp.simulate(n_users=40, n_items=30, density=0.3, seed=1).dataset.train.to_frame()
    frame = pd.DataFrame(table.to_dict(as_series=False)).astype({"user_id": str})
    split = cp.split(frame.assign(user_id=EVIL + frame["user_id"]))
    model = cp.make("skb-ips", epochs=2).fit(split.train)
    rng = np.random.default_rng(0)
    sample, population = (pd.DataFrame(rng.normal(size=(60, 1)), columns=[EVIL]) for _ in range(2))
    balanced = cp.balance_samples(sample, population, functions=cp.Moments())
    return {
        "log": split.train,
        "unfitted": cp.make("mf"),
        "model": model,
        "weighted": cp.evaluate(model, split.holdout),
        "evaluation": cp.evaluate(model, split.holdout, weights=None),
        "ranking": cp.evaluate_ranking(model, split.holdout),
        "report": balanced,
        "balance": balanced.result,
        "dataset": cp.Dataset(split.train, name=EVIL),
    }


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: each._repr_html_() for name, each in shown().items()}


def test_reprs_are_escaped_and_small(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        assert "<script" not in page, name
        assert len(page) < 12_000, name
        assert page.count("<tr") == page.count("</tr>"), name
        assert "color" not in page, name  # those of the page are readable in light and in dark


def test_reprs_say_what_matters(pages: dict[str, str]) -> None:
    assert "&lt;script&gt;alert(1)" in pages["log"]
    assert "density" in pages["log"]
    assert "not fitted" in pages["unfitted"]
    assert "MatrixFactorization(dim=32" in pages["unfitted"]
    assert "effective sample size" in pages["model"]
    for name in ("weighted", "evaluation"):
        assert ">AUC<" in pages[name]
        assert ">low<" in pages[name]
    assert "Unbiased if" in pages["weighted"]
    assert "recall@10" in pages["ranking"]
    assert "SMD after" in pages["report"]
    assert "duality gap" in pages["balance"]


def test_a_log_shows_its_features_and_may_be_empty() -> None:
    log = cp.simulate(n_users=20, n_items=15, density=0.3).dataset.train
    page = log._repr_html_()
    assert "side features" in page
    assert f"{log.labels.mean():.3f}" in page
    empty = log.take([])._repr_html_()
    assert "mean label" not in empty
    assert "<thead>" not in empty


def test_a_search_shows_its_trials() -> None:
    pytest.importorskip("optuna")
    log = cp.simulate(n_users=20, n_items=15, density=0.3).dataset.train
    page = cp.tune(log, "mf", trials=2, folds=2, settings={"epochs": 2})._repr_html_()
    assert "the defaults" in page
    assert "best risk" in page


def test_long_tables_are_cut_and_missing_values_are_dashes() -> None:
    page = notebook_html("t", [["a"], *([n] for n in range(MAX_ROWS + 3))], {"none": None, "nan": float("nan")}, "")
    assert "and 3 more" in page
    assert page.count("–") == 2
