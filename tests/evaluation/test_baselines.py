"""Baselines beside a model, and the evaluation of several models by the same weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.evaluation.baselines import baseline_of, fit_baselines, weighted_evaluations


@pytest.fixture(scope="module")
def split() -> cp.Dataset:
    log = cp.simulate(60, 50, 0.2, seed=1).dataset.train
    train, holdout, _ = cp.split(log, 0.3, seed=2)
    return cp.Dataset(train, None, holdout)


def test_all_models_are_evaluated_by_the_same_weights(split: cp.Dataset) -> None:
    model = cp.make("skb-ips", epochs=4, seed=3).fit(split.train)
    models = {"run": model, **fit_baselines(model, split.train, {})}
    found = weighted_evaluations(models, split, k=3)
    assert list(found) == ["run", "popularity", "mf"]
    assert len({one.effective_sample_size for one in found.values()}) == 1  # type: ignore[attr-defined]
    alone = cp.evaluate(models["mf"], split.test, 3, train=split.train)  # type: ignore[arg-type]
    assert found["mf"].auc == pytest.approx(alone.auc)


def test_popularity_takes_no_backbone_of_the_run(split: cp.Dataset) -> None:
    model = cp.make("ips", epochs=4, seed=3, backbone="ncf", weights="propensity")
    settings = {"backbone": "ncf", "l2": 2.0, "l2_biases": 7.0}
    assert baseline_of("popularity", model, split.train, settings).backbone == cp.ItemPopularity(7.0)
    mf = baseline_of("mf", model, split.train, {"backbone": "ncf"})
    assert isinstance(mf.backbone, cp.NeuralCF)
    assert (mf.training.seed, mf.training.epochs) == (3, 4)


def test_labels_of_one_kind_have_no_weighted_estimates(split: cp.Dataset) -> None:
    assert split.test is not None
    same = replace(split, test=split.test.take(np.flatnonzero(split.test.labels == 1)))
    models = {"mf": cp.make("mf", epochs=1).fit(split.train)}
    with pytest.raises(cp.DataError, match="weighted estimates need labels of both kinds, and all"):
        weighted_evaluations(models, same)
    with pytest.raises(cp.DataError, match=r"weighted estimates need a test, and there is none\. Hold rows out"):
        weighted_evaluations(models, replace(split, test=None))
