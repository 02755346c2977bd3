"""Users and items whom the log does not have: fold-in, scores from features, updates, what is left out of lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from graded_world import graded
from polars.testing import assert_frame_equal
from scipy.optimize import minimize
from scipy.special import expit

import counterpoise as cp
from counterpoise import ConfigError, DataError, Dataset, DebiasedRecommender, FeedbackLog

FAST = {"epochs": 20, "device": "cpu"}
GIVEN = {3: 1.0, 7: 0.0, 11: 1.0, 20: 1.0, 31: 0.0}


def softplus(values: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, values)


def member_logits(member, items: np.ndarray, factors: np.ndarray, bias: float, features: np.ndarray | None = None):
    """Written out: of a user with this row, mean exposure, and these features (standardised), with some items."""
    inner = member.base()
    tensors = {name: value.numpy().astype(float) for name, value in inner.state_dict().items()}
    logits = tensors["mean"] + bias + tensors["item_bias.weight"][items, 0]
    logits = logits + tensors["item_factors.weight"][items] @ factors
    if "feature_weights" in tensors:
        own = np.zeros(tensors["user_features"].shape[1] - 1) if features is None else features
        logits = logits + np.append(1.0, own) @ tensors["feature_weights"] @ tensors["item_features"][items].T
    if member is not inner:
        of_user, of_item, of_pair = member.exposure_coefficients.numpy().astype(float)
        users, others = member.user_exposure.numpy().astype(float).mean(0), member.item_exposure.numpy()[items]
        logits = logits + of_user * users[0] + of_item * others[:, 0] + of_pair * others[:, 1:] @ users[1:]
    return logits


def level_loss(facts: dict, logits: np.ndarray, labels: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """-log P(rating | label) by proportional odds, written out."""
    score = facts["centre"] + facts["weight"] * (logits - facts["centre"])
    cutpoints = np.append(0.0, -np.cumsum(np.exp(facts["log_gaps"])))
    cutpoints = np.concatenate([[np.inf], cutpoints - cutpoints[facts["main"] - 1], [-np.inf]])
    level = np.searchsorted(facts["borders"], ratings, side="right")
    of_level = expit(score + cutpoints[level]) - expit(score + cutpoints[level + 1])
    return -np.log(of_level / np.where(labels > 0, expit(score), expit(-score)))


def refitted(model: DebiasedRecommender, ratings: dict[int, float], features: np.ndarray | None = None) -> np.ndarray:
    """The probability of every item after scipy has minimised the loss of one user's row in each predictor."""
    everything, items = np.arange(len(model.item_ids_)), np.array(list(ratings))
    values, threshold = np.array(list(ratings.values())), model.log_facts_["threshold"]
    labels = values if threshold is None else (values >= threshold).astype(float)
    members, logits = getattr(model.scorer_, "members", [model.scorer_]), []
    for member, loss in zip(members, model.row_losses_, strict=True):
        dim = member.base().item_factors.weight.shape[1]
        ratio = np.where(labels > 0, loss.ratios[1], loss.ratios[0])
        prior = [value for name, value in loss.precisions.items() if "user" in name]
        precision = np.append(np.full(dim, prior[0]), prior[1]) * min(1.0, (ratio**2).sum() / ratio.sum())

        def objective(row: np.ndarray, member=member, loss=loss, ratio=ratio, precision=precision) -> float:
            z = member_logits(member, items, row[:-1], row[-1], features) + loss.offset
            errors = softplus(z) - labels * z
            if loss.ordinal is not None:
                errors = errors + level_loss(loss.ordinal, z, labels, values)
            return float((ratio * errors).sum() + (precision * row**2).sum() / 2)

        row = minimize(objective, np.zeros(dim + 1), method="BFGS", options={"gtol": 1e-9}).x
        logits.append(member_logits(member, everything, row[:-1], row[-1], features))
    if len(logits) == 1:
        return expit(logits[0]) if members[0] is model.scorer_ else combined(model, logits)
    return combined(model, logits)


def combined(model: DebiasedRecommender, logits: list[np.ndarray]) -> np.ndarray:
    scorer = model.scorer_
    mean = sum(float(weight) * values for weight, values in zip(scorer.weights, logits, strict=True))
    return expit(float(scorer.intercept) + float(scorer.slope) * mean)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("mf", {}), ("mf", {"side_features": True}), ("ips", {}), ("snips", {}), ("skb-ips", {}), ("counterpoise", {})],
    ids=str,
)
def test_fold_in_equals_a_refit_of_the_row(name: str, settings: dict, dataset: Dataset) -> None:
    model = cp.make(name, dim=4, **FAST, **settings).fit(dataset.train, dataset.probe)
    found = model.predict_for(GIVEN, np.arange(50))
    assert np.abs(found - refitted(model, GIVEN)).max() < 1e-5
    assert np.ptp(found - cp.make("popularity", **FAST).fit(dataset.train).predict([0] * 50, np.arange(50))) > 0.01


@pytest.mark.parametrize("name", ["mf", "counterpoise"])
def test_fold_in_learns_from_rating_levels(name: str) -> None:
    data = graded()
    model = cp.make(name, dim=3, ordinal=cp.OrdinalLoss(), **FAST).fit(data.train, data.probe)
    assert model.row_losses_[0].ordinal["weight"] > 0.2
    given = {2: 5.0, 5: 1.0, 9: 3.0, 13: 4.0}
    found = model.predict_for(given, np.arange(40))
    assert np.abs(found - refitted(model, given)).max() < 1e-5
    assert found.mean() > model.predict_for({2: 3.0, 5: 1.0, 9: 3.0, 13: 3.0}, np.arange(40)).mean()


def test_fold_in_takes_the_features_of_a_user(dataset: Dataset) -> None:
    model = cp.make("mf", dim=4, side_features=True, **FAST).fit(dataset.train)
    features = dataset.train.user_features[:1]
    mean, spread = dataset.train.user_features.mean(0), dataset.train.user_features.std(0)
    found = model.predict_for(GIVEN, np.arange(50), new_users=(["new"], features))
    assert np.abs(found - refitted(model, GIVEN, ((features - mean) / spread)[0])).max() < 1e-5


def test_many_new_users_at_once_equal_one_by_one(fitted: DebiasedRecommender, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"u{user}", int(item), int(rng.random() < 0.5)) for user in range(7) for item in rng.permutation(50)[:4]]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "rating"], orient="row").sample(
        fraction=1.0, seed=0, shuffle=True
    )
    together = fitted.recommend_for(frame, k=3)
    for user in range(7):
        own = frame.filter(pl.col("user_id") == f"u{user}")
        alone = fitted.recommend_for(dict(zip(own["item_id"], own["rating"], strict=True)), k=3)
        here = together.filter(pl.col("user_id") == f"u{user}")
        assert here["item_id"].to_list() == alone["item_id"].to_list()
        assert here["score"].to_list() == pytest.approx(alone["score"].to_list(), abs=1e-6)
    assert set(together["scored_by"]) == {"fold-in"}
    monkeypatch.setattr("counterpoise.training.rows.MAX_NUMBERS", 60)
    assert fitted.recommend_for(frame, k=3)["item_id"].equals(together["item_id"])
    scores = fitted.predict_for(frame, together["item_id"], together["user_id"])
    assert scores == pytest.approx(together["score"].to_numpy(), abs=1e-6)


def test_fold_in_of_a_user_of_the_log_is_the_row_that_was_fitted() -> None:
    log = cp.simulate(n_users=60, n_items=40, density=0.3, seed=3).dataset.train
    model = cp.make("mf", dim=2, epochs=1200, device="cpu").fit(log)
    for user in range(5):
        own = log.users == user
        ratings = dict(zip(log.items[own].tolist(), log.ratings[own].tolist(), strict=True))
        fitted = model.predict([user] * 40, np.arange(40))
        assert np.abs(model.predict_for(ratings, np.arange(40)) - fitted).max() < 1e-5


def test_fold_in_ranks_like_a_fit_that_had_the_users() -> None:
    """AUC of 60 users on what they did not rate: from a fit with their ratings, from fold-in, by popularity."""
    data = cp.simulate(n_users=300, n_items=120, density=0.2, seed=1).dataset
    new = data.train.users < 60
    whole, others = (
        cp.make("mf", dim=4, epochs=80, device="cpu").fit(log) for log in (data.train, data.train.take(~new))
    )
    test = data.test.take(data.test.users < 60)
    labels = test.labels > 0

    def auc(scores: np.ndarray) -> float:
        return float((scores[labels][:, None] > scores[~labels][None]).mean())

    folded = others.predict_for(data.train.take(new).to_frame(), test.items, test.users)
    popular = auc(others.item_rates_.numpy()[test.items])
    assert auc(folded) > popular + 0.015
    assert auc(folded) == pytest.approx(auc(whole.predict_log(test)), abs=0.015)


def test_ratings_of_new_users_are_checked(fitted: DebiasedRecommender, dataset: Dataset) -> None:
    for ratings, words in (
        ({}, "`ratings` must hold at least one rating"),
        ([3, 4], r"`ratings` must be \{item: rating\}, a list of \(item, rating\), or a frame"),
        ({999: 1}, "unknown item 999: this log has 50 items.*Leave out ratings of items that the model does not know"),
        ({3: 5}, r"ratings must lie in \[0, 1\], got values from 5 to 5. The log's ratings were labels"),
        ({3: "good"}, "column 'rating'"),
        (pl.DataFrame({"item": [1], "rating": [1]}), "there is no column 'item_id'.*Did you mean 'item'"),
    ):
        with pytest.raises(DataError, match=words):
            fitted.recommend_for(ratings)
    assert np.array_equal(fitted.predict_for([(3, 1), (3, 0)], [5]), fitted.predict_for({3: 0}, [5]))
    two = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2], "rating": [1, 0]})
    with pytest.raises(DataError, match="`users` must name the user of each item, as `ratings` are those of 2 users"):
        fitted.predict_for(two, [1, 2])
    with pytest.raises(DataError, match="unknown user 'c'"):
        fitted.predict_for(two, [1], ["c"])
    with pytest.raises(DataError, match="`users` and `items` must have equal lengths, got 1 and 2"):
        fitted.predict_for(two, [1, 2], ["a"])
    with pytest.raises(DataError, match="`users` and `items` must have equal lengths, got 2 and 1"):
        fitted.predict([0, 1], [2])
    network = cp.make("mf", backbone="ncf", **FAST).fit(dataset.train)
    for ask in (lambda: network.recommend_for(GIVEN), lambda: network.update(dataset.test)):
        with pytest.raises(ConfigError, match=r"needs a backbone whose log odds are inner products \(MatrixFact"):
            ask()
    with pytest.raises(ConfigError, match="`export_embeddings` needs a backbone"):
        network.export_embeddings("nowhere")


def test_a_model_without_rows_of_users_folds_in_by_popularity(dataset: Dataset) -> None:
    model = cp.make("popularity", **FAST).fit(dataset.train)
    lists = model.recommend_for(GIVEN, k=4)
    assert set(lists["scored_by"]) == {"popularity"}
    assert lists["item_id"].to_list() == model.recommend([0], 50, candidates=np.setdiff1d(np.arange(50), list(GIVEN)),
                                                         filter_seen=False)["item_id"].to_list()[:4]  # fmt: skip


def with_features(seed: int = 0, n_users: int = 150, n_items: int = 120) -> tuple[FeedbackLog, np.ndarray]:
    """A log whose preferences are made of the features of users and items, and the labels of all pairs."""
    rng = np.random.default_rng(seed)
    users, items = rng.standard_normal((n_users, 3)), rng.standard_normal((n_items, 3))
    labels = rng.random((n_users, n_items)) < expit(users @ items.T + items[:, 0])
    mask = rng.random(labels.shape) < 0.15
    log = FeedbackLog.from_csr(labels.astype(float), mask, user_features=users, item_features=items)
    return log, labels


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    return float((scores[labels][:, None] > scores[~labels][None]).mean())


@pytest.mark.parametrize("side", ["user", "item"])
def test_cold_rows_are_scored_by_features_better_than_by_popularity(side: str) -> None:
    log, labels = with_features()
    codes = log.users if side == "user" else log.items
    cold = np.arange(30)
    warm = log.take(codes >= 30)
    table = warm.user_features if side == "user" else warm.item_features
    ids = Dataset(warm).train
    kept = FeedbackLog.from_arrays(
        ids.users, ids.items, ids.ratings,
        user_features=ids.user_features[30:] if side == "user" else ids.user_features,
        item_features=ids.item_features if side == "user" else ids.item_features[30:],
    )  # fmt: skip
    model = cp.make("mf", dim=4, side_features=True, epochs=60, device="cpu").fit(kept)
    users, items = (grid.ravel() for grid in np.meshgrid(np.arange(150), np.arange(120), indexing="ij"))
    asked = (users if side == "user" else items) < 30
    users, items = users[asked], items[asked]
    unknown = {f"unknown_{side}s": "popular"}
    found = model.predict(users, items, **{f"new_{side}s": (cold, table[:30])})
    popular = model.predict(users, items, **unknown)
    truth = labels[users, items]
    assert area(found, truth) > area(popular, truth) + 0.05
    assert area(found, truth) > 0.75
    mixed = model.predict([140], [110])
    assert model.predict([140, users[0]], [110, items[0]], **{f"new_{side}s": (cold, table[:30])})[0] == mixed[0]


def test_features_of_items_alone_make_cold_items_personal() -> None:
    """AUC within users: new items in the order of their linear terms are the same list for everybody."""
    rng = np.random.default_rng(0)
    tastes, kinds = rng.standard_normal((150, 2)), rng.standard_normal((120, 2))
    labels = rng.random((150, 120)) < expit(1.2 * tastes @ kinds.T)
    log = FeedbackLog.from_csr(labels[:, 30:].astype(float), rng.random((150, 90)) < 0.2, item_features=kinds[30:])
    model = cp.make("mf", dim=4, side_features=True, epochs=100, device="cpu").fit(log)
    new = [f"new {item}" for item in range(30)]
    users, items = (grid.ravel() for grid in np.meshgrid(np.arange(150), np.arange(30), indexing="ij"))
    found = model.predict(users, np.array(new)[items], new_items=(new, kinds[:30])).reshape(150, 30)
    areas = [area(own, truth) for own, truth in zip(found, labels[:, :30], strict=True) if 0 < truth.sum() < 30]
    assert np.mean(areas) > 0.6
    given = dict(zip(range(90), labels[3, 30:].astype(float), strict=True))
    folded = model.recommend_for(given, 30, candidates=new, new_items=(new, kinds[:30]))
    assert set(folded["scored_by"]) == {"features"}
    assert area(folded["score"].to_numpy(), labels[3, [new.index(item) for item in folded["item_id"]]]) > 0.6
    users, items = model.scorer_.vectors()
    logits = (users[log.users] * items[log.items]).sum(1)
    assert np.allclose(model.predict_log(log), torch.sigmoid(logits), atol=1e-6)


def test_new_items_are_ranked_with_those_of_the_log() -> None:
    log, _ = with_features()
    kept = FeedbackLog.from_arrays(*(column[log.items >= 30] for column in (log.users, log.items, log.ratings)),
                                   user_features=log.user_features, item_features=log.item_features[30:])  # fmt: skip
    model = cp.make("mf", dim=4, side_features=True, epochs=40, device="cpu").fit(kept)
    frame = pl.DataFrame(log.item_features, schema=["x", "y", "z"]).with_columns(item_id=np.arange(120))
    lists = model.recommend(k=200, new_items=frame)
    assert set(lists["item_id"]) == set(range(120))
    by = dict(lists.select("item_id", "scored_by").unique().iter_rows())
    assert {by[item] for item in range(30)} == {"features"}
    assert {by[item] for item in range(30, 120)} == {"model"}
    scores = model.predict(lists["user_id"], lists["item_id"], new_items=frame)
    assert scores == pytest.approx(lists["score"].to_numpy(), abs=1e-6)
    assert lists.group_by("user_id").agg((pl.col("score").diff() <= 0).all())["score"].all()
    only = model.recommend([3], k=5, candidates=[1, 2, 40], exclude=[2], new_items=frame)
    assert set(only["item_id"]) <= {1, 40}
    assert set(model.recommend_for({40: 1.0, 50: 0.0}, k=300, new_items=frame)["scored_by"]) == {"fold-in", "features"}
    new = model.recommend([5, "x", "y"], 2, unknown_users="popular", new_users=(["x"], log.user_features[:1]))
    assert new["scored_by"].to_list() == ["model"] * 2 + ["features"] * 2 + ["popularity"] * 2
    assert model.predict(["x", "y"], [1, 1], new_users=(["x"], log.user_features[:1]), new_items=frame,
                         unknown_users="popular")[1] == pytest.approx(float(model.item_rates_.mean()))  # fmt: skip
    mean = model.predict(["x"] * 90, range(30, 120), new_users=(["x"], log.user_features[:1])).mean()
    some = model.predict(["x"], ["?"], new_users=(["x"], log.user_features[:1]), unknown_items="popular")
    assert some[0] == pytest.approx(mean, abs=1e-5)


def test_tables_of_new_rows_are_checked(fitted: DebiasedRecommender, dataset: Dataset) -> None:
    sided = cp.make("mf", dim=2, side_features=True, **FAST).fit(dataset.train)
    with pytest.raises(ConfigError, match="`new_items` needs a model that has learned weights of items' features"):
        fitted.recommend([0], new_items=(["x"], np.zeros((1, 3))))
    for given, words in (
        ((["x"], np.zeros((1, 2))), "`new_items` must have the 3 features of the log that the model was fitted on"),
        ((["x"], np.zeros((2, 3))), "`new_items` must be a table with 1 rows"),
        ((["x"], np.full((1, 3), np.nan)), "`new_items` must be finite"),
        (3, r"`new_items` must be \(ids, array\) or a frame with a column item_id, got 3"),
        (pl.DataFrame({"id": [1], "x": [2.0]}), "there is no column 'item_id'"),
    ):
        with pytest.raises(DataError, match=words):
            sided.recommend([0], new_items=given)
    twice, none = (["x", "x"], np.zeros((2, 3))), (["x"], np.zeros((1, 3)))
    with pytest.raises(DataError, match="`new_items` must have each item once, got one twice"):
        sided.recommend([0], new_items=twice)
    with pytest.raises(DataError, match="`new_users` must have a row for each user that is asked about, and 'new' has"):
        sided.recommend_for({3: 1}, new_users=none)
    with pytest.raises(DataError, match="unknown item 'y'"):
        sided.predict([0], ["y"], new_items=(["x"], np.zeros((1, 3))))


def assert_lists_equal(first: pl.DataFrame, second: pl.DataFrame) -> None:
    """The same lists but for ranks; scores are of other products, so their last digit may differ."""
    assert_frame_equal(first.drop("rank"), second.drop("rank"), rel_tol=1e-6)


def test_items_and_pairs_can_be_left_out(fitted: DebiasedRecommender) -> None:
    everything = fitted.recommend([3, 4, 3], k=50)
    best = everything["item_id"][0]
    without = fitted.recommend([3, 4, 3], k=50, exclude=[best, "none such"])
    assert_lists_equal(without, everything.filter(pl.col("item_id") != best))
    pairs = pl.DataFrame({"user_id": [3, 3, 999], "item_id": [best, 777, best]})
    others = fitted.recommend([3, 4], k=50).filter((pl.col("user_id") != 3) | (pl.col("item_id") != best))
    assert_lists_equal(fitted.recommend([3, 4], k=50, exclude=pairs), others)
    assert len(fitted.recommend([3], exclude=np.arange(50))) == 0
    folded = fitted.recommend_for(GIVEN, 50)["item_id"].to_list()
    assert fitted.recommend_for(GIVEN, 50, exclude=folded[:2])["item_id"].to_list() == folded[2:]
    assert set(fitted.recommend_for(GIVEN, 50, filter_seen=False)["item_id"]) == set(range(50))
    with pytest.raises(DataError, match="there is no column 'user_id'"):
        fitted.recommend([3], exclude=pl.DataFrame({"user": [3], "item_id": [best]}))


def test_users_without_ratings_say_what_their_scores_rest_on(dataset: Dataset) -> None:
    train = dataset.train.take(dataset.train.users != 5)
    for settings, word in (({}, "popularity"), ({"side_features": True}, "features")):
        model = cp.make("mf", dim=2, **FAST, **settings).fit(train)
        lists = model.recommend([4, 5], k=3)
        assert lists["scored_by"].to_list() == ["model"] * 3 + [word] * 3


@pytest.mark.parametrize("settings", [{}, {"side_features": True}, {"biases": False}], ids=str)
@pytest.mark.parametrize("name", ["mf", "counterpoise", "popularity"])
def test_exported_vectors_give_predictions_and_lists(
    name: str, settings: dict, dataset: Dataset, tmp_path: Path
) -> None:
    if name == "popularity" and settings:
        settings = {}
    model = cp.make(name, **FAST, **settings).fit(dataset.train, dataset.probe)
    model.export_embeddings(tmp_path)
    users, items = (pl.read_parquet(tmp_path / f"{side}.parquet") for side in ("users", "items"))
    logits = users["vector"].to_numpy() @ items["vector"].to_numpy().T
    assert (users["id"].to_list(), items["id"].to_list()) == (list(range(60)), list(range(50)))
    grid = np.meshgrid(np.arange(60), np.arange(50), indexing="ij")
    assert np.abs(expit(logits).ravel() - model.predict(*(codes.ravel() for codes in grid))).max() < 1e-5
    lists = model.recommend(k=5, filter_seen=False)["item_id"].to_numpy().reshape(60, 5)
    best = np.take_along_axis(logits, lists, 1)
    assert np.allclose(best, -np.sort(-logits, axis=1)[:, :5], atol=1e-5)


def test_an_update_comes_near_a_fit_of_all_rows() -> None:
    """Mean absolute error of probabilities against the fit of everything, over all pairs, and the ideal risk."""
    found = []
    for seed in (0, 1):
        world = cp.simulate(n_users=150, n_items=100, density=0.3, seed=seed)
        log = world.dataset.train
        first = np.random.default_rng(seed).random(len(log)) < 0.5
        settings = {"dim": 4, "epochs": 100, "device": "cpu"}
        half, whole = (cp.make("mf", **settings).fit(part) for part in (log.take(first), log))
        before, wanted = np.asarray(grid_of(half)), np.asarray(grid_of(whole))
        risk = world.ideal_risk(half)
        half.update(log.take(~first))
        distances = [np.abs(probabilities - wanted).mean() for probabilities in (before, grid_of(half))]
        found.append([*distances, risk, world.ideal_risk(half), world.ideal_risk(whole)])
        assert half.has_seen(log).all()
        assert np.allclose(half.item_rates_, whole.item_rates_, atol=1e-5)
        assert half.log_facts_["rows"] == len(log)
    distance, left, risk, updated, fit = np.mean(found, 0)
    assert left < 0.5 * distance
    assert updated < risk - 0.6 * (risk - fit)


def grid_of(model: DebiasedRecommender) -> np.ndarray:
    return torch.sigmoid(model.scorer_.grid()).numpy()


@pytest.mark.parametrize(
    "settings", [{}, {"side_features": True}, {"ordinal": cp.OrdinalLoss()}], ids=["", "features", "levels"]
)
@pytest.mark.parametrize("name", ["mf", "counterpoise", "popularity"])
def test_an_update_takes_new_users_and_items(name: str, settings: dict, tmp_path: Path) -> None:
    data, rng = graded(), np.random.default_rng(0)
    features = {"user_features": rng.standard_normal((60, 2)), "item_features": rng.standard_normal((40, 3))}
    frame = data.train.to_frame()
    old = frame.filter((pl.col("user_id") < 50) & (pl.col("item_id") < 35))
    rest = frame.filter((pl.col("user_id") >= 50) | (pl.col("item_id") >= 35))
    first = FeedbackLog.from_frame(old, threshold=3, user_features=features["user_features"][:50],
                                   item_features=features["item_features"][:35])  # fmt: skip
    probe = FeedbackLog.from_frame(data.probe.to_frame().filter((pl.col("user_id") < 50) & (pl.col("item_id") < 35)),
                                   threshold=3, user_ids=first.user_ids, item_ids=first.item_ids)  # fmt: skip
    settings = settings if name != "popularity" else {}
    model = cp.make(name, **FAST, **settings).fit(first, probe)
    before = model.predict([7], [8])
    ids = {"user_ids": np.arange(60), "item_ids": np.arange(40)}
    for number, part in enumerate((rest.head(len(rest) // 2), rest.tail(len(rest) - len(rest) // 2))):
        log = FeedbackLog.from_frame(part, threshold=3, **ids, **features)
        assert model.update(log) is model
        assert model.log_facts_["updates"] == number + 1
        assert model.has_seen(log).all()
    assert (len(model.user_ids_), len(model.item_ids_)) == (60, 40)
    assert np.ptp(model.predict(np.arange(50, 60), [36] * 10)) > (0 if name != "popularity" else -1)
    assert model.predict([7], [8]) == pytest.approx(before, abs=0.3)
    test = data.test.take((data.test.users >= 50) | (data.test.items >= 35))
    assert area(model.predict_log(test), test.labels > 0) > 0.6
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert np.array_equal(loaded.predict_log(data.test), model.predict_log(data.test))
    assert loaded.recommend_for({3: 5.0, 5: 1.0}, 3).equals(model.recommend_for({3: 5.0, 5: 1.0}, 3))
    assert np.array_equal(
        loaded.update(data.probe).predict_log(data.test), model.update(data.probe).predict_log(data.test)
    )


def test_an_update_by_nothing_new_changes_nothing_of_others(fitted: DebiasedRecommender, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    model = cp.load_model(tmp_path)
    model.update(FeedbackLog.from_arrays([3], [4], [1.0]))
    assert model.predict([3], [4]) > fitted.predict([3], [4])
    users, items = (codes.ravel() for codes in np.meshgrid(np.arange(60), np.arange(50), indexing="ij"))
    others = (users != 3) & (items != 4)
    assert np.array_equal(model.predict(users, items)[others], fitted.predict(users, items)[others])
    unrated = np.setdiff1d(np.arange(50), fitted.seen_.users[fitted.seen_.items == 4])
    few, many = (
        cp.load_model(tmp_path).update(FeedbackLog.from_arrays(unrated[:n], [4] * n, np.ones(n))) for n in (1, 9)
    )
    assert many.predict([50], [4]) > few.predict([50], [4])


def test_an_update_needs_the_threshold_of_the_fit(fitted: DebiasedRecommender) -> None:
    with pytest.raises(DataError, match="`log` must have the threshold None that the model was fitted with, got 3"):
        fitted.update(FeedbackLog.from_arrays([3], [4], [1.0], threshold=3))
    with pytest.raises(DataError, match=r"labels must lie in \[0, 1\]"):
        fitted.update(FeedbackLog.from_arrays([3], [4], [5.0]))
    with pytest.raises(DataError, match="`log` must be a FeedbackLog"):
        fitted.update(3)


def test_an_update_by_rows_that_were_learned_is_refused(dataset: Dataset) -> None:
    rest = np.arange(len(dataset.train)) % 2 == 1
    first = dataset.train.take(~rest)
    model = cp.make("mf", dim=2, **FAST).fit(first)
    with pytest.raises(DataError, match=r"must have further pairs only: \d+ of its [\d,]+ rows were learned before"):
        model.update(dataset.train)
    model.update(dataset.train.take(rest))
    before = model.predict([3], [4])
    with pytest.raises(DataError, match="Leave them out"):
        model.update(dataset.train.take(rest))
    assert np.array_equal(model.predict([3], [4]), before)


def clustered(seed: int = 0) -> tuple[FeedbackLog, np.ndarray]:
    """Users and items of four kinds; a tenth of the items have two ratings. The log, and the kind of each item."""
    rng = np.random.default_rng(seed)
    of_users, of_items = rng.integers(4, size=200), rng.integers(4, size=100)
    preference = np.where(of_users[:, None] == of_items, 0.85, 0.3)
    mask = rng.random(preference.shape) < 0.25
    rare = np.arange(10)
    for item in rare:
        mask[:, item] = False
        mask[rng.choice(200, 2, replace=False), item] = True
    labels = (rng.random(preference.shape) < preference).astype(float)
    return FeedbackLog.from_csr(labels, mask), of_items


def test_rare_items_are_not_similar_by_chance() -> None:
    """Lists of frequent items by shrunken cosines hold fewer rare items, and at least as many of the item's kind."""
    found = []
    for seed in range(4):
        log, kinds = clustered(seed)
        model = cp.make("mf", dim=8, epochs=100, device="cpu").fit(log)
        vectors = model.embeddings()[1]
        lengths = np.linalg.norm(vectors, axis=1)
        cosines = vectors @ vectors.T / lengths / lengths[:, None]
        np.fill_diagonal(cosines, -1)
        plain = np.argsort(-cosines, axis=1)[10:, :5]
        shrunken = model.similar_items(k=5)["similar_id"].to_numpy().reshape(100, 5)[10:]
        found.append([[(lists < 10).mean(), (kinds[lists] == kinds[10:, None]).mean()] for lists in (plain, shrunken)])
    (rare, kind), (rare_now, kind_now) = np.mean(found, 0)
    assert rare_now < rare / 4
    assert kind_now >= kind
