"""Propensities learned beside the predictor: IPS-V2, DR-V2 and StableDR."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import mean
from scipy.special import expit

from counterpoise import (
    ConfigError,
    Dataset,
    DebiasedRecommender,
    FeedbackLog,
    MatrixFactorization,
    Training,
    make,
    simulate,
)
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Learned, NoImputation
from counterpoise.risks import error, snips
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, StepInputs, Weights
from counterpoise.training.learner import Learner
from counterpoise.weights.joint import (
    BalancedPropensity,
    StabilizedPropensity,
    balance_gap,
    entire_space,
    joint_logit,
    normalised_gap,
)

JOINT = pytest.mark.parametrize("part", [BalancedPropensity(), StabilizedPropensity()], ids=["balanced", "stabilized"])
METHODS = pytest.mark.parametrize(
    "parts",
    [
        (BalancedPropensity(), "ips"),
        (BalancedPropensity(), "dr", Learned()),
        (StabilizedPropensity(), "snips", Learned()),
    ],
    ids=["ips-v2", "dr-v2", "stable-dr"],
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """After a first fit torch shares out even tiny arrays between its threads, which wait longer than they work."""
    with one_thread():
        yield


def context(log: FeedbackLog, **training: object) -> FitContext:
    generator = torch.Generator().manual_seed(0)
    return FitContext(log, None, MatrixFactorization(dim=4), Training(**training), torch.device("cpu"), generator)


class Full:
    """A small matrix that is looked at as a whole: what is observed, labels, and two matrices of logits."""

    def __init__(self, seed: int = 0, shape: tuple[int, int] = (7, 9)) -> None:
        rng = np.random.default_rng(seed)
        self.observed = rng.random(shape) < 0.4
        self.labels = (rng.random(shape) < 0.5).astype(float)
        self.own, self.other, self.function = rng.normal(size=(3, *shape))
        self.density = self.observed.mean()

    def two(self, matrix: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(on all pairs, on observed rows)"""
        return torch.from_numpy(matrix.ravel()), torch.from_numpy(matrix[self.observed])

    def loop(self) -> zip:
        """(o, r, p, q, f) pair by pair."""
        matrices = (self.observed, self.labels, expit(self.own), expit(self.other), self.function)
        return zip(*(matrix.ravel() for matrix in matrices), strict=True)


def view_of(given: FitContext, seed: int = 0) -> tuple[StepInputs, torch.Tensor, torch.Tensor]:
    """A step's view of a predictor with random logits, and imputed errors on rows and on pairs."""
    generator = torch.Generator().manual_seed(seed)
    batch = given.batches(pairs=True).whole()
    grid = torch.randn(given.log.shape, generator=generator)
    logits = grid[given.log.users, given.log.items]
    imputed = torch.rand(given.log.shape, generator=generator)
    view = StepInputs(batch, logits, grid.flatten(), error(batch.labels, logits))
    return view, imputed[given.log.users, given.log.items], imputed.flatten()


# ---- formulas --------------------------------------------------------------------------------------------------------


def test_the_joint_logit_is_that_of_the_product() -> None:
    one, other = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    product = torch.sigmoid(one) * torch.sigmoid(other)
    assert torch.allclose(joint_logit(one, other), torch.log(product / (1 - product)))
    assert torch.allclose(joint_logit(one, other), joint_logit(other, one))
    assert joint_logit(torch.tensor([90.0, -90.0]), torch.tensor([90.0, 3.0])).isfinite().all()


def test_entire_space_loss_is_the_mean_over_all_pairs() -> None:
    full = Full()
    slow = [-np.log(p * q) if o and r else -np.log(1 - p * q) for o, r, p, q, _ in full.loop()]
    labels = full.two(full.labels)[1]
    found = entire_space(*full.two(full.own), *full.two(full.other), labels, full.density)
    assert float(found) == pytest.approx(mean(slow), abs=1e-12)
    swapped = entire_space(*full.two(full.other), *full.two(full.own), labels, full.density)
    assert float(swapped) == pytest.approx(float(found), abs=1e-12)


def test_entire_space_loss_moves_one_of_its_models() -> None:
    full = Full()
    tensors = [tensor.requires_grad_() for tensor in (*full.two(full.own), *full.two(full.other))]
    loss = entire_space(*tensors, full.two(full.labels)[1], full.density)
    gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
    assert [gradient is None for gradient in gradients] == [False, False, True, True]


def test_balance_gap_is_the_mean_over_all_pairs() -> None:
    full = Full()
    slow = [(o / p - (1 - o) / (1 - p)) * f for o, _, p, _, f in full.loop()]
    found = balance_gap(*full.two(full.own), *full.two(full.function), density=full.density)
    assert float(found) == pytest.approx(mean(slow), abs=1e-12)


def test_balance_gap_is_zero_on_average_at_the_true_propensity() -> None:
    """For any function; 2,000 draws of what is observed, three standard errors."""
    rng = np.random.default_rng(1)
    logits, function = rng.normal(size=(40, 50)) - 1.5, rng.random((40, 50))
    gaps = []
    for _ in range(2000):
        full = Full()
        full.observed = rng.random(logits.shape) < expit(logits)
        full.density = full.observed.mean()
        gaps.append(float(balance_gap(*full.two(logits), *full.two(function), density=full.density)))
    assert abs(np.mean(gaps)) < 3 * np.std(gaps) / np.sqrt(len(gaps))


def test_balance_gap_is_zero_at_the_rates_within_levels() -> None:
    full = Full(shape=(20, 30))
    level = full.function > 0
    rate = np.where(level, full.observed[level].mean(), full.observed[~level].mean())
    logits = np.log(rate / (1 - rate))
    gap = balance_gap(*full.two(logits), *full.two(np.where(level, 0.7, 0.2)), density=full.density)
    assert float(gap) == pytest.approx(0, abs=1e-12)


def test_normalised_gap_is_the_residual_of_the_weighted_mean() -> None:
    full = Full()
    weights = [1 / p for o, _, p, _, _ in full.loop() if o]
    values = [f for o, _, _, _, f in full.loop() if o]
    everywhere = mean([f for *_, f in full.loop()])
    slow = sum(w * (f - everywhere) for w, f in zip(weights, values, strict=True)) / sum(weights)
    on_pairs, on_rows = full.two(full.function)
    weight = torch.tensor(weights, dtype=torch.float64)
    assert float(normalised_gap(weight, on_rows, on_pairs)) == pytest.approx(slow, abs=1e-12)
    assert float(normalised_gap(3 * weight, on_rows, on_pairs)) == pytest.approx(slow, abs=1e-12)
    assert float(normalised_gap(weight, on_rows + 5, on_pairs + 5)) == pytest.approx(slow, abs=1e-12)


def test_snips_without_gap_is_exact_with_exact_imputation() -> None:
    """With imputed = true errors: snips = mean over D of the error + the gap."""
    full = Full()
    errors = np.abs(full.function)
    on_pairs, on_rows = full.two(errors)
    weight = 1 / torch.sigmoid(full.two(full.own)[1])
    risk, gap = float(snips(on_rows, weight)), float(normalised_gap(weight, on_rows, on_pairs))
    assert risk - gap == pytest.approx(errors.mean(), abs=1e-12)
    assert on_rows.min() <= risk <= on_rows.max()


# ---- a step ----------------------------------------------------------------------------------------------------------


@JOINT
def test_the_loss_of_a_step_is_its_formula(part: Weights, dataset: Dataset) -> None:
    """The loss of a step against loops over the full matrix."""
    given = context(dataset.train)
    log, fitted_weights = given.log, part.init(given)
    view, imputed, imputed_on_pairs = view_of(given)
    with torch.no_grad():
        on_pairs, on_rows = (
            fitted_weights.scorer.at(None, None),
            fitted_weights.scorer(view.batch.users, view.batch.items),
        )
        loss, gap = fitted_weights.loss(view, on_pairs, on_rows, imputed, imputed_on_pairs)
    o, r = np.zeros(log.shape), np.zeros(log.shape)
    o[log.users, log.items], r[log.users, log.items] = 1, log.labels
    p = expit(on_pairs.double().numpy().reshape(log.shape))
    q = expit(view.pair_logits.double().numpy().reshape(log.shape))
    slow = -(o * np.log(p) + (1 - o) * np.log(1 - p)).mean()
    if isinstance(part, BalancedPropensity):
        slow += -(o * r * np.log(p * q) + (1 - o * r) * np.log(1 - p * q)).mean()
        expected = ((o / p - (1 - o) / (1 - p)) * q).mean()
        slow += expected**2
    else:
        values = imputed_on_pairs.double().numpy().reshape(log.shape)
        expected = (o / p * (values - values.mean())).sum() / (o / p).sum()
        slow += part.stability * expected**2
    assert float(gap) == pytest.approx(expected, abs=1e-5)
    assert float(loss) == pytest.approx(slow, abs=1e-5)


@JOINT
def test_a_step_changes_the_ratios_of_its_batch_alone(part: Weights, dataset: Dataset) -> None:
    given = context(dataset.train, batch_size=50)
    fitted_weights = part.init(given)
    for parameter in fitted_weights.scorer.parameters():  # at the start the mean is right, and would not move
        parameter.data.normal_(-1, 0.3, generator=given.generator)
    fitted_weights.finalize()
    batch = next(iter(given.batches(pairs=True).epoch()))
    before, ratio = [tensor.clone() for tensor in fitted_weights.state()], fitted_weights.ratio.clone()
    logits, pair_logits = torch.randn(len(batch.rows)), torch.randn(len(batch.pair_users))
    view = StepInputs(batch, logits, pair_logits, error(batch.labels, logits))
    fitted_weights.step(view, torch.rand(len(logits)), torch.rand(len(pair_logits)), rate=1.0)
    pairs = zip(before, fitted_weights.state(), strict=True)
    assert all(not torch.equal(old, new) for old, new in pairs if old.numel())
    others = torch.ones(len(ratio), dtype=torch.bool)
    others[batch.rows] = False
    assert torch.equal(fitted_weights.ratio[others], ratio[others])
    assert torch.equal(fitted_weights.ratio[batch.rows], fitted_weights.at(batch.users, batch.items))
    fitted_weights.refresh(2, lambda: ratio)
    assert torch.equal(
        fitted_weights.ratio, fitted_weights.at(*(torch.from_numpy(c) for c in (given.log.users, given.log.items)))
    )
    assert not fitted_weights.ratio.requires_grad


def test_the_predictor_gets_its_part_of_the_entire_space_loss(dataset: Dataset) -> None:
    given = context(dataset.train)
    fitted_weights = BalancedPropensity(labels=2.0).init(given)
    view, *_ = view_of(given)
    logits, pair_logits = view.logits.clone().requires_grad_(), view.pair_logits.clone().requires_grad_()
    extra = fitted_weights.extra_loss(view.batch, logits, pair_logits)
    gradients = torch.autograd.grad(extra, [logits, pair_logits])
    assert all(float(gradient.abs().sum()) > 0 for gradient in gradients)
    assert not any(parameter.grad is not None for parameter in fitted_weights.scorer.parameters())
    whole, half = (BalancedPropensity(labels=labels).init(context(dataset.train)) for labels in (1.0, 0.5))
    terms = [one.extra_loss(view.batch, logits, pair_logits).item() for one in (whole, half)]
    assert terms[0] / terms[1] == pytest.approx(2)
    assert BalancedPropensity(labels=0).init(given).extra_loss(view.batch, logits, pair_logits) is None
    assert StabilizedPropensity().init(given).extra_loss(view.batch, logits, pair_logits) is None


def test_losses_of_many_batches_average_to_that_of_the_whole(dataset: Dataset) -> None:
    given = context(dataset.train, batch_size=200)
    fitted_weights = BalancedPropensity(balance=0.0).init(given)  # the square of a mean has no unbiased batch form
    view, imputed, imputed_on_pairs = view_of(context(dataset.train))
    grid = view.pair_logits.reshape(given.log.shape)

    @torch.no_grad()
    def loss(batch: Batch, pair_logits: torch.Tensor) -> float:
        own = StepInputs(batch, grid[batch.users, batch.items], pair_logits, batch.labels)
        on_rows = fitted_weights.scorer(batch.users, batch.items)
        on_pairs = fitted_weights.scorer.at(batch.pair_users, batch.pair_items)
        return float(fitted_weights.loss(own, on_pairs, on_rows, imputed, imputed_on_pairs)[0])

    batches = given.batches(pairs=True)
    parts = [loss(b, grid[b.pair_users, b.pair_items]) for _ in range(60) for b in batches.epoch()]
    assert abs(np.mean(parts) - loss(view.batch, view.pair_logits)) < 4 * np.std(parts) / np.sqrt(len(parts))


# ---- a fit -----------------------------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("training", [{}, {"batch_size": 60}, {"patience": 3}], ids=["full", "small", "patience"])
def test_every_part_moves_and_the_ratios_are_the_models_own(
    parts: tuple[object, ...], training: dict[str, int], dataset: Dataset
) -> None:
    model = DebiasedRecommender(*parts, training=Training(epochs=12, **training)).fit(dataset.train)
    again = DebiasedRecommender(*parts, training=Training(epochs=12, **training)).fit(dataset.train)
    assert np.array_equal(model.ratio_, again.ratio_)
    assert model.ratio_.std() > 0.05
    assert len(model.ratio_) == len(dataset.train) - (round(0.1 * len(dataset.train)) if "patience" in training else 0)
    facts = model.facts_["weights"]
    json.dumps(facts, allow_nan=False)
    tolerance = 0.05 if "batch_size" in training else 1e-4
    assert facts["mean_ratio"] == pytest.approx(model.ratio_.mean(), rel=tolerance)
    assert {"clipped_rows", "smallest_propensity", "largest_propensity"} <= set(facts)


def test_the_penalties_reach_their_aim(dataset: Dataset) -> None:
    def gap(parts: tuple[object, ...], name: str) -> float:
        fitted = DebiasedRecommender(*parts, training=Training(epochs=80)).fit(dataset.train)
        return abs(fitted.facts_["weights"][name])

    free, tied = (gap((BalancedPropensity(balance=weight), "ips"), "balance_gap") for weight in (0.0, 30.0))
    assert tied < 0.3 * free
    gaps = [gap((StabilizedPropensity(s), "snips", Learned()), "stability_gap") for s in (0.0, 1.0, 10.0, 100.0)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[0] / 2


@JOINT
def test_the_default_propensity_is_additive(part: Weights, dataset: Dataset) -> None:
    logits = part.init(context(dataset.train)).scorer.requires_grad_(False)
    for parameter in logits.parameters():
        parameter.normal_(generator=torch.Generator().manual_seed(0))
    grid = logits.grid()
    assert torch.allclose(grid, grid[:, :1] + grid[:1] - grid[0, 0], atol=1e-5)
    own = type(part)(backbone=MatrixFactorization(dim=3)).init(context(dataset.train))
    assert own.scorer.embeddings()[0].shape[1] == 3


@METHODS
def test_an_additive_propensity_leaves_more_rows_that_count(parts: tuple[object, ...]) -> None:
    """Selection is additive here; factors fit the rows themselves, and shrink the sample."""
    data = simulate(150, 120, 0.08, seed=1, selection="features").dataset
    share = {}
    for name, weights in {"additive": parts[0], "factors": type(parts[0])(backbone=MatrixFactorization(dim=4))}.items():
        model = DebiasedRecommender(weights, *parts[1:], training=Training(epochs=60)).fit(data.train)
        share[name] = model.facts_["weights"]["effective_sample_size"] / len(data.train)
    assert share["additive"] > share["factors"]


def test_without_its_further_terms_it_is_a_propensity_model(dataset: Dataset) -> None:
    """Then it minimises cross-entropy alone, and the two parts are one."""
    ratios = [
        DebiasedRecommender(part, "ips", training=Training(epochs=10)).fit(dataset.train).ratio_
        for part in (BalancedPropensity(labels=0, balance=0), StabilizedPropensity(stability=0))
    ]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)


def test_bad_settings_are_named(dataset: Dataset) -> None:
    given = context(dataset.train)
    for part, words in (
        (BalancedPropensity(observation=0), "`observation` must be a number > 0, got 0"),
        (BalancedPropensity(labels=-1), "`labels` must be a number >= 0, got -1"),
        (BalancedPropensity(balance=float("nan")), "`balance` must be a number >= 0, got nan"),
        (StabilizedPropensity(stability="no"), "`stability` must be a number >= 0, got 'no'"),
        (StabilizedPropensity(clip=-0.1), "`clip` must be a number >= 0 and <= 1, got -0.1"),
    ):
        with pytest.raises(ConfigError, match=words):
            part.init(given)


@JOINT
def test_a_clipped_row_does_not_close_a_gap(part: Weights, dataset: Dataset) -> None:
    """Below the clip a row's weight is what it is, whatever the model says: no gradient but the cross-entropy's."""
    given = context(dataset.train)
    fitted_weights = part.init(given)
    view, imputed, imputed_on_pairs = view_of(given)
    on_pairs, on_rows = fitted_weights.scorer.at(None, None).detach(), torch.full((len(given.log),), -12.0)
    on_rows.requires_grad_()
    gap = fitted_weights.loss(view, on_pairs, on_rows, imputed, imputed_on_pairs)[1]
    assert float(torch.autograd.grad(gap, on_rows)[0].abs().max()) == 0


def test_the_label_term_reaches_the_predictor(dataset: Dataset) -> None:
    """IPS-V2's CE(o r -> p r^) moves the predictor too, not the propensities alone."""
    parts = BalancedPropensity(labels=1.0)
    given = context(dataset.train)
    learner = Learner.init(given, parts, "ips", NoImputation())
    batch = given.batches(True).whole()
    logits = learner._logits(batch)
    extra = learner.weights.extra_loss(batch, logits.rows, logits.pairs)
    (gradient,) = torch.autograd.grad(extra, logits.rows, retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    before = [tensor.clone() for tensor in learner.state()]
    with_term = learner.step(batch, 1.0)
    for tensor, old in zip(learner.state(), before, strict=True):
        tensor.copy_(old)
    learner.weights.extra_loss = lambda *_: None
    assert float(with_term) > float(learner.step(batch, 1.0))


# ---- ESCM2 and Multi: the same without balance -----------------------------------------------------------------------


def built(name: str, dataset: Dataset, **settings: object) -> tuple[FitContext, Learner]:
    given, model = context(dataset.train, **settings), make(name, dim=4)
    return given, Learner.init(given, model.weights, model.risk, model.imputation)


@pytest.mark.parametrize(("escm2", "multi"), [("escm2-ips", "multi-ips"), ("escm2-dr", "multi-dr")])
def test_without_the_loss_of_both_escm2_is_multi(escm2: str, multi: str, dataset: Dataset) -> None:
    """lambda_g = 0, which is `labels` here; IPS-V2 and DR-V2 without their balance are ESCM2."""
    settings = {"dim": 4, "epochs": 15}
    own, other = (make(name, **settings).fit(dataset.train) for name in (escm2, multi))
    without = make(escm2, labels=0.0, **settings).fit(dataset.train)
    assert np.array_equal(without.predict_log(dataset.test), other.predict_log(dataset.test))
    assert not np.array_equal(without.predict_log(dataset.test), own.predict_log(dataset.test))
    balanced = make({"escm2-ips": "ips-v2", "escm2-dr": "dr-v2"}[escm2], balance=0.0, **settings).fit(dataset.train)
    assert np.array_equal(balanced.predict_log(dataset.test), own.predict_log(dataset.test))


@pytest.mark.parametrize("name", ["escm2-ips", "escm2-dr"])
def test_without_the_loss_of_ratings_escm2_is_esmm(name: str, dataset: Dataset) -> None:
    """lambda_c = 0: what is left of both losses is mean over D of CE(o -> p) + CE(o r -> p r^), pair by pair."""
    given, learner = built(name, dataset)
    log, batch = given.log, given.batches(pairs=True).whole()
    with torch.no_grad():
        for parameter in (*learner.scorer.parameters(), *learner.weights.scorer.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=given.generator))
        logits = learner._logits(batch)
        tower = learner.weights
        extra = float(tower.extra_loss(batch, logits.rows, logits.pairs))
        inputs = StepInputs(batch, logits.rows, logits.pairs, error(batch.labels, logits.rows))
        on_rows, on_pairs = tower.both(batch)
        own = float(tower.loss(inputs, on_pairs, on_rows, torch.zeros(0), torch.zeros(0))[0])
    p, r_hat = (expit(scorer.grid().detach().double().numpy()) for scorer in (tower.scorer, learner.scorer))
    o, clicked = np.zeros(log.shape), np.zeros(log.shape)
    o[log.users, log.items], clicked[log.users, log.items] = 1, log.labels
    both = [
        -np.log(one * other) if seen else -np.log(1 - one * other)
        for seen, one, other in zip(clicked.ravel(), p.ravel(), r_hat.ravel(), strict=True)
    ]
    shown = [-np.log(one) if seen else -np.log(1 - one) for seen, one in zip(o.ravel(), p.ravel(), strict=True)]
    assert extra == pytest.approx(mean(both), abs=1e-5)
    assert own == pytest.approx(mean(shown) + mean(both), abs=1e-5)


@pytest.mark.parametrize("name", ["multi-ips", "multi-dr"])
def test_labels_do_not_reach_the_propensities_of_multi(name: str, dataset: Dataset) -> None:
    """The loss of ratings has 1 / p in it, and no gradient of it goes to p: other labels, the same propensities."""
    flipped = replace(dataset.train, ratings=1 - dataset.train.labels, threshold=None)
    fits = [make(name, dim=4, epochs=15).fit(log) for log in (dataset.train, flipped)]
    assert np.array_equal(*(model.ratio_ for model in fits))
    assert not np.array_equal(*(model.predict_log(dataset.test) for model in fits))


@pytest.mark.parametrize("name", ["escm2-ips", "escm2-dr"])
def test_the_loss_of_ratings_sends_no_gradient_to_the_propensities(name: str, dataset: Dataset) -> None:
    """Or it would push p to 1 on shown pairs, dL/dp = -e / p^2."""
    given, learner = built(name, dataset)
    batch = given.batches(pairs=True).whole()
    learner.start_epoch(1)
    learner.step(batch, 1.0)
    logits = learner._logits(batch)
    errors = learner._errors(batch, logits.rows)
    imputed = learner._imputed(batch, logits, errors)
    ratio = learner.weights.ratio
    risk = learner._risk(batch, logits, errors, ratio, ratio[batch.rows], *imputed)
    towers, predictor = list(learner.weights.scorer.parameters()), list(learner.scorer.parameters())
    gradients = torch.autograd.grad(risk, [*towers, *predictor], allow_unused=True)
    assert all(gradient is None for gradient in gradients[: len(towers)])
    assert any(float(gradient.abs().sum()) > 0 for gradient in gradients[len(towers) :] if gradient is not None)
