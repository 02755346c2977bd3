"""Calibrated propensities: each map against a slow one, and what holds over all pairs and over the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit

import counterpoise as cp
from counterpoise import Calibrated, ConfigError, Dataset, FeedbackLog, MatrixFactorization, Training
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights import calibration as module
from counterpoise.weights.calibration import (
    Experts,
    Scored,
    _CrossFitted,
    calibration_error,
    isotonic,
    log_loss,
    platt,
    temperature,
    with_ones,
)

METHODS = ("platt", "temperature", "isotonic", "experts")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def context(log: FeedbackLog, probe: FeedbackLog | None = None, **training: object) -> FitContext:
    generator = torch.Generator().manual_seed(0)
    return FitContext(log, probe, MatrixFactorization(dim=4), Training(**training), torch.device("cpu"), generator)


def pairs(count: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits on a grid, so that some are equal; what was observed, which they exaggerate; and how much each counts."""
    rng = np.random.default_rng(seed)
    z = np.round(2 * rng.normal(size=count) - 2, 1)
    o = (rng.random(count) < expit(0.6 * z - 0.3)).astype(float)
    return torch.from_numpy(z), torch.from_numpy(o), torch.from_numpy(rng.uniform(0.5, 3, count))


def slow_loss(p, targets, weights) -> float:
    rows = zip(np.asarray(p), np.asarray(targets), np.asarray(weights), strict=True)
    return -sum(w * (np.log(p) if o == 1 else np.log(1 - p)) for p, o, w in rows)


def whole(log: FeedbackLog) -> np.ndarray:
    """o of every pair of D."""
    observed = np.zeros(log.shape)
    observed[log.users, log.items] = 1
    return observed


def propensities(fitted: FittedWeights, log: FeedbackLog) -> np.ndarray:
    return log.density / fitted.at(None, None).double().numpy().reshape(log.shape)


# ---- maps ------------------------------------------------------------------------------------------------------------


def test_platt_has_the_least_loss_and_its_moments() -> None:
    z, o, w = pairs()
    b, c = platt(z, o, w)
    found = minimize(lambda at: slow_loss(expit(at[0] * z.numpy() + at[1]), o, w), [1.0, 0.0], tol=1e-10)
    assert (b, c) == pytest.approx(tuple(found.x), abs=1e-4)
    gap = w * (o - torch.sigmoid(b * z + c))
    assert abs(float(gap.sum())) < 1e-8
    assert abs(float((gap * z).sum())) < 1e-8


def test_platt_of_calibrated_logits_is_the_identity() -> None:
    z, o, w = pairs()
    b, c = platt(z, o, w)
    assert platt(b * z + c, o, w) == pytest.approx((1.0, 0.0), abs=1e-8)


def test_constant_logits_give_the_rate() -> None:
    _, o, w = pairs()
    b, c = platt(torch.full_like(o, -1.7), o, w)
    assert expit(-1.7 * b + c) == pytest.approx(float((w * o).sum() / w.sum()), abs=1e-9)


def test_temperature_has_the_least_loss() -> None:
    z, o, w = pairs()
    grid = np.linspace(0.01, 3, 3000)
    losses = [slow_loss(expit(b * z.numpy()), o, w) for b in grid]
    assert temperature(z, o, w) == pytest.approx(grid[int(np.argmin(losses))], abs=1e-3)


def slow_isotonic(z, o, w) -> dict[float, float]:
    """Pool adjacent violators, one at a time."""
    blocks = []
    for value in sorted(set(z.tolist())):
        here = z == value
        blocks.append([[value], float(w[here].sum()), float((w * o)[here].sum())])
        while len(blocks) > 1 and blocks[-2][2] / blocks[-2][1] >= blocks[-1][2] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    if len(blocks) > 1 and not blocks[0][2] and 0.5 / blocks[0][1] > blocks[1][2] / blocks[1][1]:
        blocks[:2] = [[one + other for one, other in zip(*blocks[:2], strict=True)]]
    return {value: (seen or 0.5) / mass for values, mass, seen in blocks for value in values}


@pytest.mark.parametrize("seed", range(5))
def test_isotonic_pools_adjacent_violators(seed: int) -> None:
    z, o, w = pairs(120, seed)
    expected = slow_isotonic(z, o, w)
    found = isotonic(z, o, w).at(z)
    assert found.tolist() == pytest.approx([expected[value] for value in z.tolist()], abs=1e-12)
    order = z.argsort()
    assert bool((found[order].diff() >= 0).all())


def test_a_small_block_without_a_row_is_no_likelier_than_the_next() -> None:
    """Half a pair in a block of one would be 1/2."""
    z, o = torch.arange(41.0, dtype=torch.float64), torch.zeros(41, dtype=torch.float64)
    o[[1, 40]] = 1
    p = isotonic(z, o, torch.ones_like(o)).at(z)
    assert p.tolist() == pytest.approx([1 / 40] * 40 + [1.0])
    assert float((o / p).sum()) == pytest.approx(41)


@pytest.mark.parametrize("seed", range(5))
def test_inverse_isotonic_propensities_of_rows_sum_to_all_pairs(seed: int) -> None:
    """Up to blocks without an observed pair, which no row stands for; in the others p is the rate of the block."""
    z, o, w = pairs(seed=seed)
    p = isotonic(z, o, w).at(z)
    has_rows = torch.isin(p, p[o == 1])
    assert float((w * o / p).sum()) == pytest.approx(float(w[has_rows].sum()), rel=1e-10)
    assert float(has_rows.double().mean()) > 0.7
    assert calibration_error(p[has_rows], o[has_rows], w[has_rows]) < 1e-12


def test_calibration_error_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    p, w = torch.from_numpy(rng.random(60)), torch.ones(60, dtype=torch.float64)
    o = torch.from_numpy((rng.random(60) < 0.4).astype(float))
    order, slow = np.argsort(p.numpy()), 0.0
    for number in range(5):  # 12 pairs each
        rows = order[12 * number : 12 * (number + 1)]
        slow += 12 / 60 * abs(np.mean(o.numpy()[rows]) - np.mean(p.numpy()[rows]))
    assert calibration_error(p, o, w, bins=5) == pytest.approx(slow, abs=1e-12)
    shuffled = torch.from_numpy(rng.permutation(60))
    assert calibration_error(p[shuffled], o[shuffled], w, bins=5) == pytest.approx(slow, abs=1e-12)
    twice = torch.cat([p, p]), torch.cat([o, o]), torch.cat([w, w])
    assert calibration_error(*twice, bins=5) == pytest.approx(slow, abs=1e-12)
    assert calibration_error(p, o, 3 * w, bins=5) == pytest.approx(slow, abs=1e-12)


def test_the_density_is_calibrated_though_it_says_nothing() -> None:
    """Calibration is not unbiasedness."""
    _, o, w = pairs()
    rate = (w * o).sum() / w.sum()
    assert calibration_error(rate.expand(len(o)), o, w) < 1e-12


# ---- experts ---------------------------------------------------------------------------------------------------------


def scored(seed: int = 0, users: int = 30, each: int = 60) -> tuple[Scored, torch.Tensor]:
    """Users of two kinds, which their vectors separate, whose logits are wrong in two ways."""
    rng = np.random.default_rng(seed)
    kind = np.arange(users) % 2
    who = np.repeat(np.arange(users), each)
    z = rng.normal(size=len(who)) - 1
    o = rng.random(len(who)) < expit(np.where(kind[who], 2.0, 0.3) * z + np.where(kind[who], 1.0, -1.0))
    vectors = with_ones(torch.from_numpy(np.stack([kind + 0.1 * rng.normal(size=users), rng.normal(size=users)], 1)))
    columns = (torch.from_numpy(values) for values in (z, o.astype(float), np.ones(len(z)), who, np.zeros(len(z), int)))
    return Scored(*columns), vectors[None]


def fit_experts(count: int, data: Scored, vectors: torch.Tensor, steps: int = 200) -> Experts:
    experts = Experts.of(count, len(vectors), vectors.shape[2])
    experts.fit(data, vectors, platt(data.logits, data.targets, data.weights), steps)
    return experts


def loss_of(experts: Experts, data: Scored, vectors: torch.Tensor) -> float:
    p = experts.at(data.logits, experts.shares(vectors)[data.folds, data.users])
    return slow_loss(p, data.targets, data.weights)


def test_one_expert_is_platt_scaling() -> None:
    data, vectors = scored()
    experts = fit_experts(1, data, vectors)
    found = float(experts.slope), float(experts.intercept)
    assert found == pytest.approx(platt(data.logits, data.targets, data.weights), abs=1e-3)


def test_experts_are_a_mixture_for_each_user() -> None:
    data, vectors = scored()
    experts = fit_experts(3, data, vectors, steps=5)
    found = experts.at(data.logits, experts.shares(vectors)[data.folds, data.users])
    for place in (0, 17, 900, 1799):
        a_u, z = vectors[0, data.users[place]].numpy(), float(data.logits[place])
        gate = np.exp(a_u @ experts.gate[0].numpy())
        by_hand = sum(
            gate[j] / gate.sum() * expit(float(experts.slope[j]) * z + float(experts.intercept[j])) for j in range(3)
        )
        assert float(found[place]) == pytest.approx(by_hand, abs=1e-12)


def test_experts_find_kinds_of_users() -> None:
    data, vectors = scored()
    one, two = (loss_of(fit_experts(count, data, vectors), data, vectors) for count in (1, 2))
    true = np.where(data.users.numpy() % 2, 2.0, 0.3) * data.logits.numpy() + np.where(data.users % 2, 1.0, -1.0)
    best = slow_loss(expit(true), data.targets, data.weights)
    assert two - best < 0.1 * (one - best)


def test_experts_are_fitted_to_the_minimum() -> None:
    data, vectors = scored(users=10, each=30)
    experts, centre = fit_experts(2, data, vectors, 500), platt(data.logits, data.targets, data.weights)
    own = [values.clone().requires_grad_() for values in experts.tensors()]
    trial = Experts(*own)
    p = trial.at(data.logits, trial.shares(vectors)[data.folds, data.users])
    prior = vectors.shape[2] * own[0].square().sum() + (own[1] - centre[0]).square().sum()
    prior = prior + (own[2] - centre[1]).square().sum()
    loss = (data.weights * log_loss(p, data.targets)).sum() + prior / 2
    assert max(float(g.abs().max()) for g in torch.autograd.grad(loss, own)) < 0.02


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "tolerance"), [("platt", 1e-5), ("isotonic", 0.02), ("experts", 0.01)])
@pytest.mark.parametrize(
    "inner", [cp.Propensity(), cp.Logistic(), cp.Popularity()], ids=lambda part: type(part).__name__
)
def test_calibrated_propensities_add_up_to_the_log(
    method: str, tolerance: float, inner: Weights, dataset: Dataset
) -> None:
    """sum over D of p = |O|: nearly where a prior draws experts together, or blocks without a row have half of one."""
    fitted = Calibrated(inner, method, clip=0).init(context(dataset.train))
    assert propensities(fitted, dataset.train).sum() / len(dataset.train) == pytest.approx(1.0, abs=tolerance)


@pytest.mark.parametrize("inner", [cp.Propensity(), cp.Logistic()], ids=["Propensity", "Logistic"])
def test_isotonic_ratios_average_one(inner: Weights, dataset: Dataset) -> None:
    """So that IPS is SNIPS; but for pairs in blocks without a row, which nothing can stand for."""
    fitted = Calibrated(inner, "isotonic", clip=0).init(context(dataset.train))
    p, o = propensities(fitted, dataset.train).ravel(), whole(dataset.train).ravel()
    covered = np.isin(p.astype(np.float32), np.unique(p[o == 1].astype(np.float32))).mean()
    assert covered > 0.9
    assert float(fitted.ratio.double().mean()) == pytest.approx(covered, abs=1e-4)


def test_every_pair_is_scored_without_the_rows_of_its_fold(dataset: Dataset) -> None:
    seen: list[FeedbackLog] = []

    @dataclass
    class Spy(cp.Logistic):
        def init(self, context: FitContext) -> FittedWeights:
            seen.append(context.log)
            return super().init(context)

    log = dataset.train
    scores = _CrossFitted(Spy(), context(log), 3)
    users, items = torch.from_numpy(log.users).long(), torch.from_numpy(log.items).long()
    folds = scores.fold(users, items).numpy()
    assert len(seen) == 3
    for fold, fitted_to in enumerate(seen):
        assert set(fitted_to.pairs) == set(log.pairs[folds != fold])
    found = scores.logits(users, items, torch.from_numpy(folds))
    for place in (0, 5, 100):
        alone = users[place : place + 1], items[place : place + 1]
        p = log.density / float(scores.fitted[folds[place]].at(*alone))
        assert float(found[place]) == pytest.approx(logit(p), abs=1e-5)


def test_every_user_and_item_has_pairs_in_all_folds(dataset: Dataset) -> None:
    scores = _CrossFitted(cp.Logistic(), context(dataset.train), 2)
    users, items = (codes.ravel() for codes in np.indices(dataset.train.shape))
    folds = scores.fold(torch.from_numpy(users), torch.from_numpy(items)).numpy().reshape(dataset.train.shape)
    assert 0.3 < folds.mean() < 0.7
    for axis in (0, 1):
        assert (folds.std(axis) > 0.3).all()


def test_all_pairs_are_looked_at_or_a_sample_stands_for_them(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    log = dataset.train
    every = _CrossFitted(cp.Logistic(), context(log), 2).sample()
    assert len(every.logits) == log.n_pairs
    assert torch.bincount(every.users).tolist() == [log.shape[1]] * log.shape[0]
    assert float(every.targets.sum()) == len(log)
    assert bool((every.weights == 1).all())
    monkeypatch.setattr(module, "MAX_PAIRS", 500)
    some = _CrossFitted(cp.Logistic(), context(log), 2).sample()
    assert len(some.logits) <= 1000
    assert float(some.weights.sum()) == pytest.approx(log.n_pairs)
    assert float((some.weights * some.targets).sum()) == pytest.approx(len(log))


@pytest.mark.parametrize(("method", "left"), [("platt", 0.25), ("isotonic", 0.25), ("experts", 0.4)])
def test_wrong_slopes_are_put_right(method: str, left: float) -> None:
    world = cp.simulate(n_users=150, n_items=120, density=0.1, seed=0)
    log, true = world.dataset.train, np.asarray(world.propensity).reshape(150, 120)
    given = context(log)
    known = Calibrated(cp.KnownPropensity(expit(1.7 * logit(true) + 0.8), clip=0), method, clip=0).init(given)
    before, after = (np.abs(p - true).mean() for p in (expit(1.7 * logit(true) + 0.8), propensities(known, log)))
    assert after < left * before
    assert known.facts()["calibration"]["folds"] == 1
    if method == "platt":
        facts = known.facts()["calibration"]
        assert (facts["slope"], facts["intercept"]) == pytest.approx((1 / 1.7, -0.8 / 1.7), abs=0.1)


def test_right_propensities_stay_nearly_as_they_are() -> None:
    world = cp.simulate(n_users=150, n_items=120, density=0.1, seed=1)
    part = Calibrated(cp.KnownPropensity(world.propensity, clip=0), clip=0)
    facts = part.init(context(world.dataset.train)).facts()["calibration"]
    assert (facts["slope"], facts["intercept"]) == pytest.approx((1.0, 0.0), abs=0.15)


def test_calibration_lowers_the_error_and_the_bias_of_a_model_that_fits_too_well(dataset: Dataset) -> None:
    """A factorisation finds the rows it was fitted to likelier than they were: its ratios average less than 1."""
    plain = cp.Propensity().init(context(dataset.train)).ratio
    fitted = Calibrated().init(context(dataset.train))
    facts = fitted.facts()["calibration"]
    assert facts["error_after"] < facts["error_before"]
    assert abs(float(fitted.ratio.mean()) - 1) < 0.5 * abs(float(plain.mean()) - 1)


def test_experts_look_at_the_vectors_of_the_model_else_at_features(dataset: Dataset) -> None:
    log = dataset.train
    learned = _CrossFitted(cp.Propensity(), context(log), 2)
    assert learned.vectors().shape == (2, log.shape[0], 4 + 1 + 1)  # factors, bias, ones
    given = _CrossFitted(cp.Logistic(), context(log), 2).vectors()
    assert given.shape[1] == log.shape[0]
    assert given.shape[2] >= 2
    assert torch.equal(given[0], given[1])


def test_a_log_of_few_rows_is_calibrated_without_folds() -> None:
    log = FeedbackLog.from_arrays([0], [1], [1], user_ids=[0, 1], item_ids=[0, 1, 2])
    for method in METHODS:
        fitted = Calibrated(cp.Popularity(), method, folds=5).init(context(log))
        assert bool(torch.isfinite(fitted.ratio).all())


def test_what_cannot_be_calibrated_is_said(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="must be known before training, and BalancedPropensity is not"):
        Calibrated(cp.BalancedPropensity()).init(context(dataset.train))
    with pytest.raises(ConfigError, match="known only where the label is"):
        Calibrated(cp.NaiveBayes()).init(context(dataset.train, dataset.probe))
    for part, words in (
        (Calibrated(method="plat"), "`method` must be one of .* Did you mean 'platt'"),
        (Calibrated(folds=0), "`folds` must be an integer >= 1, got 0"),
        (Calibrated(experts=0), "`experts` must be an integer >= 1, got 0"),
        (Calibrated(clip=2), "`clip` must be a number >= 0 and <= 1, got 2"),
    ):
        with pytest.raises(ConfigError, match=words):
            part.init(context(dataset.train))


def test_words_reach_the_parts_inside() -> None:
    model = cp.make("ips", weights="calibrated", method="isotonic", weights__weights="logistic")
    assert model.weights == Calibrated(cp.Logistic(), "isotonic")
