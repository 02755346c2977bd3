"""Many fits at once are what they are alone."""

from __future__ import annotations

import numpy as np
import pytest

import counterpoise as cp
from counterpoise import ConfigError, Dataset
from counterpoise.training.loop import DivergenceError

FAST = {"epochs": 4, "device": "cpu"}


def check(found: list[cp.DebiasedRecommender], data: Dataset) -> None:
    """Each model equals the one fitted alone: predictions, ratios, losses and configuration."""
    assert len({model.predict_log(data.test).tobytes() for model in found}) == len(found)
    for model in found:
        alone = type(model)(**model.get_params(deep=False)).fit(data.train, probe=data.probe)
        np.testing.assert_array_equal(model.predict_log(data.test), alone.predict_log(data.test))
        np.testing.assert_array_equal(model.ratio_, alone.ratio_)
        assert model.history_.loss == alone.history_.loss
        assert model.configuration_ == alone.configuration_


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", ["mf", "skb-dr", "counterpoise"])
def test_each_seed_equals_the_fit_alone(name: str, jobs: int, dataset: Dataset) -> None:
    check(cp.fit_many(cp.make(name, **FAST), dataset.train, dataset.probe, seeds=[0, 5], jobs=jobs), dataset)


def test_each_configuration_equals_the_fit_alone(dataset: Dataset) -> None:
    points = [{"l2": 1.0, "learning_rate": 0.02, "epochs": 3, "dim": 3}, {"l2_biases": 9.0, "seed": 4}]
    found = cp.fit_many(cp.make("counterpoise", **FAST), dataset.train, dataset.probe, configs=points, jobs=1)
    check(found, dataset)
    assert [model.training.epochs for model in found] == [3, 4]


def test_each_fit_may_have_its_own_probe(dataset: Dataset) -> None:
    assert dataset.probe is not None
    probes = [dataset.probe, dataset.probe.take(range(20))]
    found = cp.fit_many(cp.make("ips", **FAST), dataset.train, probes, seeds=[0, 0], jobs=1)
    for model, probe in zip(found, probes, strict=True):
        alone = cp.make("ips", **FAST, seed=0).fit(dataset.train, probe)
        np.testing.assert_array_equal(model.ratio_, alone.ratio_)


def test_progress_counts_fits(dataset: Dataset) -> None:
    calls: list[tuple[int, int]] = []
    cp.fit_many(
        cp.make("mf", **FAST), dataset.train, seeds=[0, 1, 2], jobs=1, progress=lambda d, n, _: calls.append((d, n))
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_a_diverging_fit_raises(dataset: Dataset) -> None:
    with pytest.raises(DivergenceError):
        cp.fit_many(cp.make("mf", **FAST, learning_rate=1e30), dataset.train, seeds=[0, 1], jobs=2)


def test_the_model_that_is_given_stays_as_it_is(dataset: Dataset) -> None:
    model = cp.make("mf", **FAST)
    cp.fit_many(model, dataset.train, seeds=[3], jobs=1)
    assert model.training.seed == 0
    assert not hasattr(model, "scorer_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `seeds` or `configs`"),
        ({"seeds": [0], "configs": [{}]}, "either `seeds` or `configs`"),
        ({"seeds": "01"}, "`seeds` must be a list"),
        ({"configs": {"seed": 1}}, "`configs` must be a list"),
        ({"configs": [{"sead": 1}]}, "setting `sead` is unknown"),
        ({"seeds": [0], "jobs": 0}, "`jobs` must be an integer >= 1"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, object], message: str, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=message):
        cp.fit_many("mf", dataset.train, **options)


def test_probes_must_be_as_many_as_fits(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`probe` must be one for all or one for each of 2 fits, got 1"):
        cp.fit_many("mf", dataset.train, [dataset.probe], seeds=[0, 1])
