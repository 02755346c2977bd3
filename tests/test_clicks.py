"""Methods for clicks: formulas against slow ones, reductions to neighbours, unbiasedness with true exposure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit

import counterpoise as cp
from counterpoise import ConfigError, FeedbackLog, risks
from counterpoise.data.batches import Batches
from counterpoise.imputation.clicks import no_click_error
from counterpoise.training.closed_form import (
    Directions,
    Rows,
    Side,
    click_calibration,
    exposure_posterior,
    usual_rank,
)
from counterpoise.training.contracts import FitContext
from counterpoise.training.loop import train

USERS, ITEMS = 30, 20
CLICK_METHODS = [name for name, method in cp.METHODS.items() if method.feedback[0] == "clicks"]


def clicks(seed: int = 0, users: int = USERS, items: int = ITEMS, **options) -> FeedbackLog:
    rng = np.random.default_rng(seed)
    chance = 0.4 * np.linspace(1, 0.1, items) * expit(rng.standard_normal((users, 1)))
    user, item = np.nonzero(rng.random((users, items)) < chance)
    return FeedbackLog.from_arrays(user, item, user_ids=np.arange(users), item_ids=np.arange(items), **options)


def context(log: FeedbackLog, model: cp.DebiasedRecommender) -> FitContext:
    return model._context(log, None)


def learner_of(log: FeedbackLog, model: cp.DebiasedRecommender):
    found = model._learner(context(log, model))
    found.start_epoch(1)
    return found


def clicked(log: FeedbackLog) -> np.ndarray:
    table = np.zeros(log.shape)
    table[log.users, log.items] = 1
    return table


# The estimators, against tables


class World:
    """Exposure, relevance and scores of all pairs; clicks are drawn again and again."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (12, 9)
        self.theta = rng.uniform(0.2, 0.9, shape)
        self.gamma = rng.uniform(0.1, 0.9, shape)
        self.logits = rng.standard_normal(shape)
        self.rng = rng

    def draws(self, count: int = 4000):
        for _ in range(count):
            yield (self.rng.random(self.theta.shape) < self.theta) & (self.rng.random(self.theta.shape) < self.gamma)


def within(estimates: list[float], truth: float, errors: float = 4.0) -> bool:
    return abs(np.mean(estimates) - truth) < errors * np.std(estimates) / np.sqrt(len(estimates))


def rel_mf_risk(world: World, y: np.ndarray, weight: np.ndarray) -> float:
    logits = torch.from_numpy(world.logits)
    rows = torch.from_numpy(world.logits[y])
    one, zero = torch.ones(()).double(), torch.zeros(()).double()
    errors, imputed = risks.squared_error(one, rows), risks.squared_error(zero, rows)
    ratio = y.mean() * torch.from_numpy(weight[y])
    return float(risks.dr(errors, ratio, imputed, risks.squared_error(zero, logits.flatten())))


def test_rel_mf_with_true_exposure_is_unbiased() -> None:
    world = World()
    world.logits = world.logits - 1.5
    p = expit(world.logits)
    ideal = (world.gamma * (1 - p) ** 2 + (1 - world.gamma) * p**2).mean()
    found = [rel_mf_risk(world, y, 1 / world.theta) for y in world.draws()]
    assert within(found, ideal)
    assert not within([rel_mf_risk(world, y, np.ones_like(world.theta)) for y in world.draws(500)], ideal)
    spread = (1 - p) ** 2 - p**2  # the variance that the facts page derives
    variance = (world.gamma * (1 / world.theta - world.gamma) * spread**2).sum() / p.size**2
    assert np.var(found) == pytest.approx(variance, rel=0.1)


def test_rel_mf_is_the_printed_formula() -> None:
    world = World()
    y, p = next(world.draws(1)), expit(world.logits)
    printed = (y / world.theta * (1 - p) ** 2 + (1 - y / world.theta) * p**2).mean()
    assert rel_mf_risk(world, y, 1 / world.theta) == pytest.approx(printed)
    one = rel_mf_risk(world, y, np.ones_like(p))
    assert one == pytest.approx(((y - p) ** 2).mean())  # propensity 1: unweighted squared loss


def ubpr_risk(world: World, y: np.ndarray, weight: np.ndarray, floor: float = np.inf) -> float:
    """With every item as the j of every click."""
    user, item = np.nonzero(y)
    pairs = [world.logits[user, j] for j in range(y.shape[1])]
    pair_weights = [y[user, j] * weight[user, j] for j in range(y.shape[1])]
    numbers = world.logits[user, item], np.concatenate(pairs), weight[user, item], np.concatenate(pair_weights)
    return float(risks.pairwise(*(torch.from_numpy(values) for values in numbers), floor=floor))


def pair_losses(world: World) -> np.ndarray:
    return np.logaddexp(0, world.logits[:, None, :] - world.logits[:, :, None])  # (user, i, j)


def test_ubpr_with_true_exposure_is_unbiased() -> None:
    world = World(1)
    losses, gamma = pair_losses(world), world.gamma
    diagonal = np.eye(gamma.shape[1], dtype=bool)
    ideal = gamma[:, :, None] * (1 - gamma[:, None, :]) * losses
    same = gamma * (1 - 1 / world.theta) * np.log(2)  # i = j, where y_i y_j = y_i
    ideal[:, diagonal] = same
    found = [y.mean() * ubpr_risk(world, y, 1 / world.theta) for y in world.draws()]
    assert within(found, ideal.mean())


def test_ubpr_with_exposure_1_is_bpr() -> None:
    world = World(2)
    y, losses = next(world.draws(1)), pair_losses(world)
    chosen = y[:, :, None] & ~y[:, None, :]
    slow = losses[chosen].sum() / (y.sum() * y.shape[1])
    assert ubpr_risk(world, y, np.ones_like(world.theta)) == pytest.approx(slow)


def test_a_floor_bounds_the_terms_of_ubpr() -> None:
    world = World(3)
    y, losses, weight = next(world.draws(1)), pair_losses(world), 1 / world.theta
    terms = weight[:, :, None] * (1 - y[:, None, :] * weight[:, None, :]) * losses
    for floor in (0.0, 0.3):
        assert ubpr_risk(world, y, weight, floor) == pytest.approx(np.maximum(terms, -floor)[y].mean())


def test_exposed_risk_is_the_mean_error_of_exposed_pairs() -> None:
    world = World(4)
    p = expit(world.logits)
    ideal = (world.theta * (-world.gamma * np.log(p) - (1 - world.gamma) * np.log(1 - p))).mean()
    on_pairs = torch.from_numpy(-np.log(1 - p)).flatten()
    found = []
    for y in world.draws():
        errors, imputed = (torch.from_numpy(values[y]) for values in (-np.log(p), -np.log(1 - p)))
        theta = torch.from_numpy(world.theta).flatten()
        found.append(float(risks.exposed(errors, imputed, on_pairs, theta, float(y.mean()))))
    assert within(found, ideal)


def test_the_click_model_is_the_likelihood_of_clicks() -> None:
    world = World(5)
    y, gamma, mu = next(world.draws(1)), expit(world.logits), world.theta
    slow = -np.where(y, np.log(gamma * mu), np.log(1 - gamma * mu)).mean()
    logits, exposure = (torch.from_numpy(values) for values in (world.logits, np.log(mu / (1 - mu))))
    missed = no_click_error(logits, exposure)
    rows = torch.from_numpy(y)
    errors = risks.error(torch.ones(()).double(), logits[rows])
    found = risks.dr(errors, torch.full_like(errors, float(y.mean())), missed[rows], missed.flatten())
    assert float(found) - (y * np.log(mu)).mean() == pytest.approx(slow)
    assert torch.allclose(
        no_click_error(logits, torch.full_like(logits, 40.0)), risks.error(torch.zeros(()).double(), logits)
    )


def test_the_gradient_of_the_click_model_is_that_of_posterior_targets() -> None:
    """An unclicked pair has P(relevant | not clicked) = gamma (1 - mu) / (1 - gamma mu), as in ReCRec."""
    world = World(6)
    logits = torch.from_numpy(world.logits).requires_grad_()
    mu, gamma = torch.from_numpy(world.theta), torch.sigmoid(logits).detach()
    missed = no_click_error(logits, torch.log(mu / (1 - mu))).sum()
    posterior = gamma * (1 - mu) / (1 - gamma * mu)
    targets = risks.error(posterior, logits).sum()
    assert torch.allclose(*(torch.autograd.grad(loss, logits)[0] for loss in (missed, targets)))


# Batches and weights


def test_pairs_of_own_users_know_their_rows() -> None:
    log = clicks()
    batches = Batches(log, 20, torch.device("cpu"), torch.Generator().manual_seed(0), 3, own_users=True)
    table = clicked(log)
    for batch in batches.epoch():
        assert torch.equal(batch.pair_users, batch.users.repeat(3))
        assert np.array_equal(batch.pair_rows.numpy() >= 0, table[batch.pair_users, batch.pair_items] == 1)
        known = batch.pair_rows[batch.pair_rows >= 0].numpy()
        found = np.flatnonzero(batch.pair_rows.numpy() >= 0)
        assert np.array_equal(log.items[known], batch.pair_items.numpy()[found])
        assert np.array_equal(log.users[known], batch.pair_users.numpy()[found])


@pytest.mark.cpu
def test_exposure_by_popularity_is_that_of_rel_mf() -> None:
    log = clicks()
    counts = np.bincount(log.items, minlength=ITEMS)
    theta = np.maximum(np.sqrt(counts / counts.max()), 0.3)
    weights = cp.RelativeExposure(clip=0.3).init(context(log, cp.make("rel-mf")))
    assert weights.ratio.numpy() == pytest.approx(log.density / theta[log.items], rel=1e-5)
    users, items = torch.zeros(ITEMS, dtype=torch.long), torch.arange(ITEMS)
    assert weights.at(users, items).numpy()[counts > 0] == pytest.approx(log.density / theta[counts > 0], rel=1e-5)


@pytest.mark.cpu
def test_power_0_is_exposure_1() -> None:
    log = clicks()
    weights = cp.RelativeExposure(power=0.0).init(context(log, cp.make("rel-mf")))
    assert weights.ratio.numpy() == pytest.approx(log.density)


@pytest.mark.cpu
def test_balanced_exposure_with_power_1_balances_the_clicks() -> None:
    log = clicks(users=200)
    functions = cp.KernelFunctions(n=5)
    part = cp.RelativeExposure(cp.Balancing(functions, features="popularity", strength="exact"), power=1.0, clip=1e-6)
    weights = part.init(context(log, cp.make("rel-mf")))
    weights.refresh(1, lambda: weights.ratio)
    popularity = np.log1p(np.bincount(log.items, minlength=ITEMS))
    ratio = weights.ratio.numpy()
    before, after = (np.average(popularity[log.items], weights=w) for w in (np.ones(len(log)), ratio))
    assert abs(after - popularity.mean()) < 0.1 * abs(before - popularity.mean())
    half = cp.RelativeExposure(part.weights, power=0.5, clip=1e-6).init(context(log, cp.make("rel-mf")))
    half.refresh(1, lambda: half.ratio)
    assert half.ratio.numpy() / log.density == pytest.approx(np.sqrt(ratio / log.density), rel=1e-4)


# Closed forms


def dense_side(log, targets, other, own, others, confidence, ridge) -> np.ndarray:
    """Each user's normal equations, written out."""
    found = np.zeros((log.shape[0], other.shape[1]))
    for user in range(log.shape[0]):
        rows = np.flatnonzero(log.users == user)
        mine, t = other[log.items[rows]], targets[rows]
        system = own[user] * (other * others[:, None]).T @ other + confidence * mine.T @ mine
        found[user] = np.linalg.solve(system + ridge * np.eye(other.shape[1]), (1 + confidence) * mine.T @ t)
    return found


@pytest.mark.parametrize("confidence", [0.0, 4.0])
@pytest.mark.parametrize("dim", [2, 7])  # fewer and more factors than most users have clicks
def test_least_squares_solves_the_normal_equations(confidence: float, dim: int) -> None:
    log, rng = clicks(), np.random.default_rng(0)
    targets, other = rng.uniform(1, 3, len(log)), rng.standard_normal((ITEMS, dim))
    own, others = rng.uniform(0.5, 2, USERS), rng.uniform(0.5, 2, ITEMS)
    rows = Rows.of(torch.from_numpy(log.users).long(), torch.from_numpy(log.items).long(), USERS)
    tensors = [torch.from_numpy(values) for values in (targets, own, others)]
    start = torch.from_numpy(rng.standard_normal((USERS, dim)))
    found, total = Side(rows, *tensors, confidence, 0.7).solve(torch.from_numpy(other), start, steps=2 * dim)
    slow = dense_side(log, targets, other, own, others, confidence, 0.7)
    clicking = np.bincount(log.users, minlength=USERS) > 0
    assert found.numpy()[clicking] == pytest.approx(slow[clicking], abs=1e-9)
    scores = slow @ other.T
    on_clicks, everywhere = scores[log.users, log.items], own[:, None] * others * scores**2
    parts = (1 + confidence) * (targets - on_clicks) ** 2 - on_clicks**2
    assert float(total) == pytest.approx(everywhere.sum() + parts.sum() + 0.7 * (slow**2).sum())


@pytest.mark.cpu
def test_sweeps_of_few_gradient_steps_end_at_exact_least_squares() -> None:
    log = clicks()
    learner = learner_of(log, cp.make("wmf", confidence=4.0, l2=2.0, rank=3))
    for _ in range(300):
        learner.sweep()
    users, items = (table.double().numpy() for table in learner.tables())
    exact = dense_side(log, np.ones(len(log)), items, np.ones(USERS), np.ones(ITEMS), 4.0, 2.0)
    assert users == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("name", ["wmf", "eals", "expomf", "counterpoise"])
def test_the_objective_of_a_closed_form_never_rises(name: str) -> None:
    learner = learner_of(clicks(), cp.make(name, feedback="clicks", dim=4))
    values = [float(learner.objective())]
    for _ in range(8):
        learner.sweep()
        values.append(float(learner.objective()))
    assert all(after <= before + 1e-4 * abs(before) for before, after in pairwise(values))
    assert values[-1] < values[0]


@pytest.mark.cpu
def test_the_objective_of_least_squares_is_the_sum_over_all_pairs() -> None:
    log = clicks()
    learner = learner_of(log, cp.make("wmf", confidence=4.0, l2=2.0))
    users, items = (table.double().numpy() for table in learner.tables())
    y, scores = clicked(log), users @ items.T
    slow = ((1 + 4 * y) * (y - scores) ** 2).sum() + 2 * ((users**2).sum() + (items**2).sum())
    assert float(learner.objective()) == pytest.approx(slow, rel=1e-4)


@pytest.mark.cpu
def test_least_squares_without_confidence_are_a_shrunken_svd() -> None:
    """min |Y - AB'|^2 + l2 (|A|^2 + |B|^2): the largest singular values minus l2, where that is above 0."""
    log, rank, l2 = clicks(), 3, 0.4
    learner = learner_of(log, cp.make("wmf", confidence=0.0, rank=rank, l2=l2))
    for _ in range(300):
        learner.sweep()
    users, items = (table.double().numpy() for table in learner.tables())
    left, values, right = np.linalg.svd(clicked(log))
    shrunken = np.maximum(values[:rank] - l2, 0)
    assert users @ items.T == pytest.approx(left[:, :rank] * shrunken @ right[:rank], abs=1e-3)


def test_a_sweep_returns_what_it_minimises() -> None:
    for name in ("wmf", "eals"):
        learner = learner_of(clicks(), cp.make(name))
        assert float(learner.sweep()) == pytest.approx(float(learner.objective()), rel=1e-4)


def test_directions_of_taste_add_up_to_the_scores() -> None:
    rng = np.random.default_rng(0)
    users, items = torch.from_numpy(rng.standard_normal((30, 4))), torch.from_numpy(rng.standard_normal((20, 4)))
    items[:, 3] = 0.0  # a direction that no item has
    exposure = torch.from_numpy(rng.uniform(0.5, 2, 20))
    found = Directions.of(users, items, exposure)
    left, right = found.terms(users, items)
    assert (left @ right.T).numpy() == pytest.approx((users @ items.T).numpy())
    of_users, of_items = left[:, 1:].T @ left[:, 1:], right[:, 1:].T @ (exposure[:, None] * right[:, 1:])
    assert of_users.numpy() == pytest.approx(np.eye(4), abs=1e-9)
    sizes = of_items.diagonal()
    assert of_items.numpy() == pytest.approx(np.diag(sizes), abs=1e-9)
    assert bool((sizes.diff() <= 1e-9).all())
    for shares, expected in ((torch.ones(4), users), (torch.zeros(4), users.mean(0).expand(30, 4))):
        shrunk = found.shrink(users, shares.double()) @ items.T
        assert shrunk.numpy() == pytest.approx((expected @ items.T).numpy())


@pytest.mark.cpu
def test_shares_of_taste_minimise_the_risk_of_held_out_pairs() -> None:
    log = clicks(users=60, items=40)
    learner = learner_of(log, cp.make("counterpoise", feedback="clicks", epochs=15))
    held, c = learner.held.numpy(), learner.part.confidence
    users, items = learner.tables()
    left, right = Directions.of(users, items, learner.exposure).terms(users, items)
    terms = (left[:, None, :] * right[None]).double().numpy()
    trained, out = np.zeros(log.shape), np.zeros(log.shape)
    trained[log.users[~held], log.items[~held]] = 1
    out[log.users[held], log.items[held]] = len(held) / held.sum()
    curvature = (1 - trained) * learner.exposure.numpy() + c * out
    second = np.einsum("uik,ui,uil->kl", terms, curvature, terms)
    found = np.linalg.solve(
        second + 1e-9 * np.trace(second) * np.eye(len(second)), (1 + c) * np.einsum("uik,ui->k", terms, out)
    )
    assert learner.shares.numpy() == pytest.approx(np.minimum.accumulate(found[1:].clip(0, 1)), abs=2e-3)


def test_taste_without_evidence_is_shrunk_to_that_of_all() -> None:
    rng = np.random.default_rng(0)
    alike = rng.random((200, 80)) < 0.3 * np.linspace(1, 0.1, 80)
    group = np.arange(200)[:, None] % 4 == np.arange(80) % 4
    divided = rng.random((200, 80)) < np.where(group, 0.4, 0.05)
    for table, low, high in ((alike, 0.0, 0.3), (divided, 0.8, 1.0)):
        user, item = np.nonzero(table)
        model = cp.make("counterpoise", feedback="clicks").fit(FeedbackLog.from_arrays(user, item))
        shares = model.facts_["taste"]["shares"]
        assert low <= shares[0] <= high


def test_factors_that_the_prior_holds_at_0_have_no_taste() -> None:
    model = cp.make("counterpoise", feedback="clicks", l2=1e30).fit(clicks())
    assert model.facts_["taste"]["shares"] == [0.0] * len(model.facts_["taste"]["shares"])
    assert np.isfinite(model.predict([0], [1])).all()


@pytest.mark.cpu
def test_adam_finds_what_least_squares_solves() -> None:
    log = clicks()
    parts = {"risk": "dr", "imputation": cp.Constant(0.0), "error": "linear", "feedback": "clicks"}
    factors = {"dim": 2, "biases": False, "l2": 0.5}
    closed = cp.LeastSquares(confidence=0.0, rank=2)
    model = cp.DebiasedRecommender(
        cp.RelativeExposure(), backbone=cp.MatrixFactorization(**factors), closed_form=closed, **parts
    )
    solved = learner_of(log, model)
    for _ in range(200):
        solved.sweep()
    users, items = (table.clone().requires_grad_() for table in solved.tables())
    y = torch.from_numpy(clicked(log)).float()
    theta = torch.ones(log.shape)
    theta[log.users, log.items] = solved.unit / solved.weights.ratio
    loss = ((y / theta - users @ items.T) ** 2).sum() + 0.5 * (users.square().sum() + items.square().sum())
    for gradient in torch.autograd.grad(loss, [users, items]):
        assert float(gradient.abs().max()) < 0.01


def test_calibration_minimises_the_log_loss_of_clicks() -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.standard_normal(20_000))
    y = torch.from_numpy(rng.random(20_000)) < torch.sigmoid(-2 + 1.5 * scores)
    found = click_calibration(scores[y], torch.ones(int(y.sum())), scores, float(y.double().mean()))
    assert found == pytest.approx((-2, 1.5), abs=0.1)


def test_posterior_exposure_follows_bayes() -> None:
    scores, mu = torch.tensor([0.0, 0.5, 2.0]), torch.tensor(0.3)
    g = np.exp(-0.5 * scores.numpy() ** 2) / np.sqrt(2 * np.pi)
    found = exposure_posterior(scores, mu, 1.0).numpy()
    assert found == pytest.approx(0.3 * g / (0.3 * g + 0.7))
    assert (np.diff(found) < 0).all()
    assert exposure_posterior(scores, torch.tensor(1.0), 1.0).numpy() == pytest.approx(1.0)


@pytest.mark.cpu
def test_expomf_with_certain_exposure_is_least_squares() -> None:
    log = clicks()
    learner = learner_of(log, cp.make("expomf", dim=2, rank=2, l2=0.8, exposure=1.0))
    learner.sweep()
    items = learner.tables()[1].double().numpy()
    learner._regress(*learner.tables(), learner.by_user)
    expected = np.linalg.solve(items.T @ items + 0.8 * np.eye(2), items.T @ clicked(log).T).T
    assert learner.tables()[0].numpy() == pytest.approx(expected, abs=1e-4)


def test_rank_grows_with_clicks() -> None:
    assert usual_rank(100, 50, 50) == 4
    assert usual_rank(3000, 50, 50) == 10
    learner = learner_of(clicks(), cp.make("wmf"))
    assert learner.rank == 4
    assert float(learner.scorer.embeddings()[0].detach()[:, 4:].abs().max()) == 0


# New users, and more clicks


@pytest.mark.parametrize("name", ["wmf", "eals", "counterpoise"])
def test_fold_in_solves_the_normal_equations_of_a_user(name: str, tmp_path) -> None:
    model = cp.make(name, feedback="clicks").fit(clicks(users=60, items=40))
    model.save(tmp_path / "run")
    model, given = cp.load_model(tmp_path / "run"), [3, 7, 11]
    facts, items = model.row_losses_[0].squares, model.scorer_.item_factors.weight.double().numpy()
    items = items[:, : len(facts.mean)]
    theta = model.seen_.item_counts(40).double().numpy().clip(1) ** 0.5 if name != "wmf" else np.ones(40)
    c, l2 = model.closed_form.confidence, model.backbone.l2
    system = items.T @ (items * (theta / theta.mean())[:, None]) + c * items[given].T @ items[given]
    row = np.linalg.solve(system + l2 * np.eye(len(system)), (1 + c) * items[given].sum(0))
    row = facts.slope * (np.array(facts.mean) + (row - np.array(facts.mean)) @ np.array(facts.taste))
    expected = expit(float(model.scorer_.mean) + items @ row)
    assert model.predict_for(dict.fromkeys(given, 1), range(40)) == pytest.approx(expected, abs=1e-5)
    found = model.recommend_for(dict.fromkeys(given, 1), 5)
    assert len(found) == 5
    assert model.recommend_for(pl.DataFrame({"item_id": given}), 5).equals(found)  # a click has no rating


@pytest.mark.parametrize("name", ["wmf", "bpr", "counterpoise"])
def test_an_update_by_clicks_is_a_fit_to_all_of_them(name: str) -> None:
    log = clicks(users=60, items=40)
    users, items = (np.char.add(prefix, codes.astype(str)) for prefix, codes in (("u", log.users), ("i", log.items)))
    first = np.arange(len(log)) % 2 == 0
    model = cp.make(name, feedback="clicks", epochs=5).fit(FeedbackLog.from_arrays(users[first], items[first]))
    more = FeedbackLog.from_arrays(users[~first], items[~first])
    known = {
        side: getattr(model, f"{side}_ids_").extended(getattr(more, f"{side}_ids").column) for side in ("user", "item")
    }
    old = np.flatnonzero(first)
    old = old[np.argsort(known["user"].encode(users[old]), kind="stable")]
    order = np.r_[old, np.flatnonzero(~first)]  # a model keeps clicks by user, and draws go by row
    both = FeedbackLog.from_arrays(
        users[order], items[order], feedback="clicks", user_ids=known["user"], item_ids=known["item"]
    )
    whole = cp.make(name, feedback="clicks", epochs=5).fit(both)
    assert model.update(more) is model
    assert model.log_facts_["updates"] == 1
    assert model.has_seen(more).all()
    assert model.predict_log(both) == pytest.approx(whole.predict_log(both), abs=1e-4)


# Impressions


def test_methods_for_impressions_are_the_v2_methods_without_balance() -> None:
    for risk in ("ips", "dr"):
        assert cp.make(f"escm2-{risk}") == cp.make(f"{risk}-v2", balance=0.0)
        assert cp.make(f"multi-{risk}") == cp.make(f"escm2-{risk}", labels=0.0)


def test_impressions_are_learned_as_ratings() -> None:
    data = cp.simulate(100, 80, 0.1, feedback="impressions")
    assert data.dataset.train.feedback == "impressions"
    model = cp.make("escm2-ips", feedback="impressions", epochs=10).fit(data.dataset.train)
    assert model.log_facts_["feedback"] == "impressions"
    assert model.ratio_.std() > 0


# What is refused, and what every method does


def test_weights_of_a_hold_out_of_impressions_speak_of_what_is_shown() -> None:
    log = cp.simulate(n_users=60, n_items=40, density=0.2, seed=0).dataset.train
    shown = FeedbackLog.from_arrays(log.users, log.items, log.labels, feedback="impressions")
    train, holdout, _ = cp.split(shown, 0.3)
    assumption = cp.weigh_holdout(holdout, train).assumption
    assert "Relevance that decides what is shown, and that these features do not show" in assumption


def test_settings_that_do_not_fit_clicks_are_refused() -> None:
    log = clicks()
    with pytest.raises(ConfigError, match="`feedback` must be 'clicks' for risk='pairwise'"):
        cp.make("mf", risk="pairwise").check_settings()
    with pytest.raises(ConfigError, match="`imputation` must impute errors for clicks"):
        cp.make("rel-mf", imputation="none").fit(log)
    with pytest.raises(ConfigError, match=r"`risk` must be one of 'dr', 'exposed', 'pairwise' for feedback=\"clicks\""):
        cp.make("rel-mf", risk="ips").fit(log)
    with pytest.raises(ConfigError, match="`error` must be 'log' for the imputation Learned, got 'squared'"):
        cp.make("dr-jl", error="squared").check_settings()
    with pytest.raises(ConfigError, match="`risk` must be 'dr' or 'exposed' for LeastSquares"):
        cp.make("wmf", error="log").fit(log)
    with pytest.raises(ConfigError, match="`weights` must be the same for all users for LeastSquares"):
        cp.make("eals", **{"weights__weights": cp.Popularity("both")}).fit(log)
    with pytest.raises(ConfigError, match="`backbone` must be a MatrixFactorization of factors for LeastSquares"):
        cp.make("wmf", dim=0).fit(log)
    with pytest.raises(ConfigError, match="must be ready before training"):
        cp.make("rel-mf", **{"weights__weights": cp.BalancedPropensity()}).fit(log)


@pytest.mark.cpu
@pytest.mark.parametrize("name", [*CLICK_METHODS, "popularity", "counterpoise"])
def test_every_method_for_clicks_fits_saves_and_ranks(name: str, tmp_path) -> None:
    log = clicks(users=80)
    model = cp.make(name, feedback="clicks", epochs=10).fit(log)
    again = cp.make(name, feedback="clicks", epochs=10).fit(log)
    scores = model.predict_log(log)
    assert ((scores > 0) & (scores < 1)).all()
    assert np.array_equal(scores, again.predict_log(log))
    everything = expit(model.score_items(np.arange(log.shape[0])))
    table = clicked(log) == 1
    assert everything[table].mean() > everything[~table].mean()
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert loaded == model
    assert np.array_equal(loaded.predict_log(log), scores)
    assert loaded.recommend(k=3).equals(model.recommend(k=3))


@pytest.mark.parametrize("name", CLICK_METHODS)
def test_three_clicks_are_enough(name: str) -> None:
    log = FeedbackLog.from_arrays([1, 2, 3], ["a", "b", "c"])
    scores = cp.make(name, epochs=3).fit(log).predict_log(log)
    assert np.isfinite(scores).all()


def test_propensities_of_the_log_are_known_exposures() -> None:
    data = cp.simulate(80, 50, 0.3, feedback="clicks")
    given = data.dataset.train
    chances = data.propensity[given.users, given.items]
    log = FeedbackLog.from_arrays(given.users, given.items, propensities=chances)
    for name in ("rel-mf", "ubpr"):
        model = cp.make(name, weights="known", epochs=3).fit(log)
        assert model.ratio_ == pytest.approx(log.density / chances, rel=1e-4)


@pytest.mark.parametrize("name", ["rel-mf", "bpr", "ubpr", "click-model", "kb-ubpr"])
def test_minibatches_and_patience_go_with_clicks(name: str) -> None:
    log = clicks(users=80)
    model = cp.make(name, epochs=3, batch_size=40, patience=2).fit(log)
    assert np.isfinite(model.history_.held_out_risk).all()


def test_known_exposure_keeps_exposed_items_from_the_top() -> None:
    data = cp.simulate(300, 100, 0.3, feedback="clicks", selection="popularity", strength=1.5, main_effects=2.0)
    log, test = data.dataset.train, data.dataset.test
    assert log.feedback == "clicks"
    assert data.dataset.probe is None
    assert test is not None
    assert set(test.labels) == {0, 1}
    assert (data.labels[log.users, log.items] == 1).all()
    exposure = np.asarray(data.propensity).mean(0)
    followed = []
    for weights in (cp.UnitWeights(), cp.KnownPropensity(data.propensity)):
        model = cp.make("rel-mf", weights=weights).fit(log)
        followed.append(np.corrcoef(model.score_items(np.arange(300)).mean(0), exposure)[0, 1])
    assert followed[0] > 0.7
    assert followed[1] < followed[0] - 0.1


def test_bpr_does_not_depend_on_levels_of_users() -> None:
    world = World(6)
    y, ones = next(world.draws(1)), np.ones_like(world.theta)
    before = ubpr_risk(world, y, ones)
    world.logits = world.logits + np.arange(12)[:, None]
    assert ubpr_risk(world, y, ones) == pytest.approx(before)


def test_the_click_model_takes_exposures_from_weights() -> None:
    log = clicks(users=80)
    given = cp.ClickModel(exposure=cp.RelativeExposure(power=0.0))  # everything was seen
    known = cp.make("click-model", imputation=given, epochs=20).fit(log)
    plain = cp.make("logistic-mf", epochs=20).fit(log)
    assert known.predict_log(log) == pytest.approx(plain.predict_log(log), abs=1e-3)
    balanced = cp.ClickModel(exposure=cp.make("kb-rel-mf").weights)
    assert np.isfinite(
        cp.make("click-model", imputation=balanced, epochs=5, batch_size=50).fit(log).history_.loss
    ).all()


def test_exposure_of_the_click_model_is_learned() -> None:
    log = clicks(users=80)
    model = cp.make("click-model", epochs=5)
    learner = learner_of(log, model)
    before = [values.clone() for values in learner.imputation.state()]
    train(learner, learner.batches(context(log, model)), None, model.training)
    for old, new in zip(before, learner.imputation.state(), strict=True):
        assert not torch.equal(old, new)
