"""Capped weights: the best weight of each pair by a search, its ends, and weights that change."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from small_world import Known, SmallWorld

import counterpoise as cp
from counterpoise import Capped, ConfigError, Dataset, FeedbackLog, MatrixFactorization, Training
from counterpoise.risks import dr
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, FittedWeights
from counterpoise.training.learner import Learner
from counterpoise.weights.base import TransformedWeights
from counterpoise.weights.capping import capped_ratio

FUNCTIONS = {
    "identity": lambda p: p,
    "sine": lambda p: math.sin(p) / math.sin(1),
    "log": lambda p: math.log(1 + p) / math.log(2),
    "tanh": lambda p: math.tanh(p) / math.tanh(1),
}
EVERY_TRANSFORM = pytest.mark.parametrize("transform", FUNCTIONS)
WORLD = SmallWorld()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def context(log: FeedbackLog, probe: FeedbackLog | None = None, **training: object) -> FitContext:
    generator = torch.Generator().manual_seed(0)
    return FitContext(log, probe, MatrixFactorization(dim=4), Training(**training), torch.device("cpu"), generator)


def weights(p: np.ndarray, transform: str, c: float) -> np.ndarray:
    """w of propensities, for the cap c: of ratios, with any density."""
    density = 0.1
    ratio = torch.from_numpy(density / np.asarray(p, dtype=float))
    return capped_ratio(ratio, density, c * density, transform).numpy() / density


@EVERY_TRANSFORM
@pytest.mark.parametrize("ratio_of_costs", [0.02, 0.1, 0.5, 1.0])
def test_the_weight_is_the_best_of_its_objective(transform: str, ratio_of_costs: float) -> None:
    """min over a in [0, 1] of w1 (1 - p w) + w2 p (1 - p) w^2, w = f(p)^-a, by a search (D-IPS with w1 = 1)."""
    powers = np.linspace(0, 1, 4001)
    for p in (0.001, 0.02, 0.08, 0.3, 0.9):
        w = FUNCTIONS[transform](p) ** -powers
        best = w[np.argmin(1 - p * w + ratio_of_costs * p * (1 - p) * w**2)]
        found = weights(np.array([p]), transform, 1 / (2 * ratio_of_costs))[0]
        assert found == pytest.approx(best, rel=0.01)


@EVERY_TRANSFORM
def test_weights_lie_between_one_and_the_inverse_propensity(transform: str) -> None:
    p = np.linspace(0.001, 1, 500)
    for c in (0.1, 1.0, 5.0, 1e9):
        found, f = weights(p, transform, c), np.array([FUNCTIONS[transform](value) for value in p])
        assert (found >= 1 - 1e-12).all()
        assert (found <= 1 / f + 1e-9).all()
        assert (1 / f <= 1 / p + 1e-9).all()


@EVERY_TRANSFORM
def test_without_a_cap_weights_are_biased_by_the_transform_alone(transform: str) -> None:
    """E[o w] = p / f(p): 1 for the identity, at least log 2 = 0.69 for the logarithm."""
    p = np.linspace(0.001, 1, 200)
    mean = p * weights(p, transform, 1e9)
    assert mean == pytest.approx([value / FUNCTIONS[transform](value) for value in p], rel=1e-6)
    low = {"identity": 1.0, "sine": math.sin(1), "log": math.log(2), "tanh": math.tanh(1)}[transform]
    assert low - 1e-9 <= mean.min() <= mean.max() <= 1 + 1e-9


def test_the_published_costs_cap_all_small_propensities() -> None:
    """w2 / w1 = 0.1 and the logarithm: below p = 0.128 the weight is 5 / (1 - p), whatever p is."""
    p = np.array([0.001, 0.02, 0.08, 0.127])
    assert weights(p, "log", 5.0) == pytest.approx(5 / (1 - p))
    assert weights(np.array([0.129]), "log", 5.0)[0] < 5 / (1 - 0.129)


def test_the_ends_are_the_weights_themselves_and_weight_one(dataset: Dataset) -> None:
    given = cp.Logistic().init(context(dataset.train))
    free, none = (Capped(cp.Logistic(), cap).init(context(dataset.train)) for cap in (1e9, 1e-9))
    assert torch.allclose(free.ratio, given.ratio, rtol=1e-6)
    assert torch.allclose(free.at(None, None), given.at(None, None), rtol=1e-6)
    assert none.ratio.numpy() == pytest.approx(np.full(len(dataset.train), dataset.train.density))


def test_without_a_cap_d_ips_is_ips(dataset: Dataset) -> None:
    settings = {"dim": 4, "epochs": 20}
    capped = cp.make("d-ips", cap=1e9, transform="identity", **settings).fit(dataset.train)
    plain = cp.make("ips", weights="logistic", **settings).fit(dataset.train)
    assert capped.predict_log(dataset.test) == pytest.approx(plain.predict_log(dataset.test), abs=1e-5)
    doubly = cp.make("d-dr", cap=1e9, transform="identity", **settings).fit(dataset.train)
    joint = cp.make("dr-jl", weights="logistic", **settings).fit(dataset.train)
    assert doubly.predict_log(dataset.test) == pytest.approx(joint.predict_log(dataset.test), abs=1e-4)


@pytest.mark.parametrize("imputed", [0.0, 1.0])
def test_the_bias_of_capped_weights_is_its_formula(imputed: float) -> None:
    """mean over D of (p w - 1) (e - e^), over draws of who sees what; e^ = 0 is D-IPS."""
    cap, values = 1.5, []
    table = torch.from_numpy(imputed * WORLD.imputed).flatten()
    for seed in range(200):
        seen = WORLD.observe(seed)
        fixed = capped_ratio(seen.ratio(WORLD.propensity), seen.density, cap / 0.25 * seen.density, "log")
        errors, on_rows = seen.at(WORLD.errors), imputed * seen.at(WORLD.imputed)
        values.append(float(dr(errors, fixed, on_rows, table)))
    p = WORLD.propensity
    w = np.array([min(max(cap / 0.25 / (1 - one), 1), 1 / FUNCTIONS["log"](one)) for one in p.ravel()]).reshape(p.shape)
    bias = ((p * w - 1) * (WORLD.errors - imputed * WORLD.imputed)).mean()
    assert abs(np.mean(values) - WORLD.ideal - bias) < 3 * np.std(values) / np.sqrt(len(values))
    assert abs(bias) > 0.02


def test_ratios_below_the_density_count_as_certain_pairs() -> None:
    found = capped_ratio(torch.tensor([0.01, 0.1, 3.0]), 0.1, 2.0, "log")
    assert found.isfinite().all()
    assert found[:2].tolist() == pytest.approx([0.1, 0.1])


# ---- weights inside --------------------------------------------------------------------------------------------------


def test_the_ratio_of_rows_is_that_of_their_pairs(dataset: Dataset) -> None:
    log = dataset.train
    fitted = Capped(cp.Propensity(), 1.5, "tanh").init(context(log))
    grid = fitted.at(None, None).reshape(log.shape)
    assert torch.allclose(grid[log.users, log.items], fitted.ratio, rtol=1e-5)
    assert 0 < fitted.facts()["capped_share"] < 1
    assert not fitted.changes
    assert fitted.state() == []


def test_weights_by_label_are_capped_too(dataset: Dataset) -> None:
    given = context(dataset.train, dataset.probe)
    plain, capped = (part.init(given).ratio for part in (cp.NaiveBayes(), Capped(cp.NaiveBayes(), 1.0)))
    assert float(capped.max()) < float(plain.max())
    assert torch.allclose(capped[plain < 0.8], plain[plain < 0.8])


@pytest.mark.parametrize(
    "inner",
    [cp.BalancedPropensity(), cp.Balancing(cp.KernelFunctions(n=5, select="adaptive"), refresh=1)],
    ids=["joint", "adaptive"],
)
def test_capped_weights_follow_those_that_change(inner: cp.BalancedPropensity, dataset: Dataset) -> None:
    given = context(dataset.train, epochs=3)
    learner = Learner.init(given, Capped(inner, 1.2), "dr", cp.Learned())
    start, fitted = learner.weights.ratio.clone(), learner.weights
    batches = given.batches(learner.uses_pairs)
    for epoch in (1, 2, 3):
        learner.start_epoch(epoch)
        for batch in batches.epoch():
            learner.step(batch, 1.0)
        expected = capped_ratio(fitted.inner.ratio, dataset.train.density, 1.2, "identity")
        assert torch.equal(fitted.ratio, expected)
    assert not torch.allclose(fitted.ratio, start)
    assert fitted.changes
    model = cp.DebiasedRecommender(Capped(inner, 1.2), "dr", cp.Learned(), training=Training(epochs=5)).fit(
        dataset.train
    )
    assert np.isfinite(model.ratio_).all()


def test_a_part_that_wraps_delegates_everything(dataset: Dataset) -> None:
    """So that a new method of the contract is not forgotten."""
    own = {name for name in vars(FittedWeights) if callable(getattr(FittedWeights, name)) and not name.startswith("__")}
    assert own <= set(vars(TransformedWeights)) | {"facts"}


def test_known_weights_are_capped_where_they_are_known() -> None:
    seen = WORLD.observe()
    fitted = Capped(Known(WORLD.propensity), 2.0).init(seen.context)
    expected = capped_ratio(seen.density / torch.from_numpy(WORLD.propensity), seen.density, 2.0, "identity")
    assert torch.allclose(fitted.at(None, None), expected.flatten())


def test_bad_settings_are_named(dataset: Dataset) -> None:
    for part, words in (
        (Capped(cap=0), "`cap` must be a number > 0, got 0. It is about the largest ratio"),
        (Capped(cap=float("inf")), "`cap` must be a number > 0, got inf"),
        (Capped(transform="lgo"), "`transform` must be one of .* Did you mean 'log'"),
    ):
        with pytest.raises(ConfigError, match=words):
            part.init(context(dataset.train))
