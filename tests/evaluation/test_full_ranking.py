"""Full rankings of models and of given lists, against loops over users."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import ConfigError, DataError, evaluate_lists, evaluate_ranking
from counterpoise.evaluation import full_ranking
from counterpoise.evaluation.full_ranking import Places


@pytest.fixture(scope="module")
def logs():
    data = cp.simulate(n_users=80, n_items=60, density=0.25, selection="popularity", seed=100)
    return cp.split(data.dataset.train, 0.3, seed=0)[:2]


@pytest.fixture(scope="module")
def model(logs):
    return cp.make("mf", dim=4, epochs=20, device="cpu").fit(logs[0])


def slow_ranks(model, train, holdout):
    """The rank of each positive row among all items without a training row of its user."""
    ranks = []
    for user, item, label in zip(holdout.users, holdout.items, holdout.labels, strict=True):
        if label:
            unseen = np.setdiff1d(np.arange(train.shape[1]), train.items[train.users == user])
            scores = model.scorer_.grid()[int(user)].numpy()
            ranks.append(1 + int((scores[unseen] > scores[item]).sum()))
    return np.array(ranks)


@pytest.mark.parametrize("compared", [0, 64])
def test_full_ranks_are_those_of_a_loop(logs, model, compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_ranking, "MAX_COMPARED", compared)
    monkeypatch.setattr(full_ranking, "BLOCK_SCORES", 700)
    train, holdout = logs
    rng = np.random.default_rng(0)
    weights, k = rng.exponential(size=len(holdout)), 10
    found = evaluate_ranking(model, holdout, k, weights=weights)
    ranks, positive = slow_ranks(model, train, holdout), holdout.labels > 0
    w, users = weights[positive], holdout.users[positive]
    worth = {"recall": ranks <= k, "dcg": (ranks <= k) / np.log2(1 + ranks), "mrr": (ranks <= k) / ranks}
    for name, values in worth.items():
        assert getattr(found, name) == pytest.approx(np.average(values, weights=w))
        own = [np.average(values[users == user], weights=w[users == user]) for user in np.unique(users)]
        assert found.snips[name] == pytest.approx(np.mean(own))
    usual = {"recall": [], "ndcg": [], "mrr": []}
    for user in np.unique(users):
        of_user = np.sort(ranks[users == user])
        ideal = (1 / np.log2(1 + np.arange(1, min(k, len(of_user)) + 1))).sum()
        usual["recall"].append((of_user <= k).mean())
        usual["ndcg"].append(((of_user <= k) / np.log2(1 + of_user)).sum() / ideal)
        usual["mrr"].append(1 / of_user[0] if of_user[0] <= k else 0)
    assert found.per_user == pytest.approx({name: np.mean(values) for name, values in usual.items()})


def test_equal_weights_give_the_usual_recall(logs, model) -> None:
    found = evaluate_ranking(model, logs[1], weights=None)
    assert found.snips["recall"] == pytest.approx(found.per_user["recall"])
    assert found.recall == pytest.approx(evaluate_ranking(model, logs[1], weights=np.full(len(logs[1]), 7.0)).recall)


def test_lists_of_a_model_give_its_ranking(logs, model) -> None:
    train, holdout = logs
    lists = model.recommend(k=10)
    expected = evaluate_ranking(model, holdout, 10)
    for frame in (lists, lists.drop("rank"), lists.drop("score").sample(fraction=1, shuffle=True, seed=0)):
        found = evaluate_lists(frame, holdout, 10, train=train)
        for name in ("recall", "dcg", "mrr", "coverage"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name))
        assert found.by_popularity == expected.by_popularity
    assert found.n_unranked > 0


def test_training_pairs_are_taken_out_of_lists(logs, model) -> None:
    train, holdout = logs
    with_seen = model.recommend(k=train.shape[1], filter_seen=False)
    expected = evaluate_ranking(model, holdout, 10, weights=None)
    assert evaluate_lists(with_seen, holdout, 10, train=train, weights=None).recall == pytest.approx(expected.recall)


def test_unknown_items_keep_their_place_in_lists(logs) -> None:
    train, holdout = logs
    row = holdout.take(np.flatnonzero(holdout.labels > 0)[:1])
    frame = pl.DataFrame({"user_id": [int(row.users[0])] * 2, "item_id": [999, int(row.items[0])], "rank": [1, 2]})
    found = evaluate_lists(frame, row, 2, weights=None, train=train)
    assert (found.recall, found.mrr) == (1.0, 0.5)
    assert evaluate_lists(frame, row, 1, weights=None).recall == 0


def test_ties_are_worth_their_mean() -> None:
    places = Places(np.array([0, 1, 4]), np.array([1, 2, 0]))
    np.testing.assert_allclose(places.worth(np.array([1.0, 0.5])), [0.75, 0.5 / 3, 0])


def test_a_constant_score_ranks_at_random(logs) -> None:
    train, holdout = logs
    found = evaluate_ranking(lambda users, items: np.ones(len(users)), holdout, 10, weights=None, train=train)
    unseen = train.shape[1] - np.bincount(train.users, minlength=train.shape[0])
    assert found.recall == pytest.approx((10 / unseen[holdout.users[holdout.labels > 0]]).mean())


def test_popularity_groups_split_items_in_thirds(logs, model) -> None:
    found = evaluate_ranking(model, logs[1])
    assert [row["items"] for row in found.by_popularity] == [20, 20, 20]
    assert sum(row["share"] for row in found.by_popularity) == pytest.approx(1)
    pooled = sum(row["share"] * row["recall"] for row in found.by_popularity)
    assert pooled == pytest.approx(found.recall)
    assert "rarest third" in str(found)
    assert found.to_dict()["recall"] == found.recall


def test_weights_undo_popularity(logs, model) -> None:
    found = evaluate_ranking(model, logs[1])
    plain = evaluate_ranking(model, logs[1], weights=None)
    assert found.method == "balanced"
    assert found.by_popularity[0]["share"] > 1.3 * plain.by_popularity[0]["share"]
    low, high = found.intervals["recall"]
    assert low < found.recall < high


def test_bad_input_of_rankings_is_one_error(logs, model) -> None:
    holdout = logs[1]
    with pytest.raises(ConfigError, match="evaluate_lists"):
        evaluate_ranking(np.ones(len(holdout)), holdout)
    with pytest.raises(ConfigError, match="`train` must be given"):
        evaluate_ranking(lambda users, items: users, holdout)
    with pytest.raises(DataError, match="user_id, item_id, and rank or score"):
        evaluate_lists(pl.DataFrame({"user_id": [1], "item_id": [2]}), holdout)
    twice = pl.DataFrame({"user_id": [1, 1], "item_id": [2, 2], "rank": [1, 2]})
    with pytest.raises(DataError, match="repeated pairs"):
        evaluate_lists(twice, holdout, weights=None)
    with pytest.raises(DataError, match="a positive row"):
        evaluate_ranking(model, holdout.take(holdout.labels == 0), weights=None)
    with pytest.raises(DataError, match="not be 0 for all positive"):
        evaluate_ranking(model, holdout, weights=1 - holdout.labels)


def test_positives_in_no_list_are_not_found(logs) -> None:
    train, holdout = logs
    none = pl.DataFrame({"user_id": [1], "item_id": [2], "score": [0.5]}).clear()
    found = evaluate_lists(none, holdout, weights=None, train=train)
    assert (found.recall, found.n_unranked) == (0, found.n_positives)
    assert f"{found.n_positives:,} of them are in no list: they count as not found." in str(found)


def test_a_group_without_positives_is_undefined(logs, model) -> None:
    train, holdout = logs
    popular = np.argsort(np.bincount(train.items, minlength=train.shape[1]))[-5:]
    rows = (holdout.labels > 0) & np.isin(holdout.items, popular)
    found = evaluate_ranking(model, holdout.take(rows), weights=None)
    assert math.isnan(found.by_popularity[0]["recall"])


@pytest.fixture(scope="module")
def clicks():
    """(training clicks, held-out clicks, a model of popularity)."""
    log = cp.simulate(n_users=80, n_items=60, density=0.3, selection="popularity", seed=7).dataset.train
    log = cp.FeedbackLog.from_arrays(log.users[log.labels > 0], log.items[log.labels > 0])
    train, holdout, _ = cp.split(log, 0.3, seed=1)
    return train, holdout, cp.make("popularity", feedback="clicks").fit(train)


def test_clicks_weigh_one_over_the_root_of_popularity(clicks) -> None:
    train, holdout, model = clicks
    found = evaluate_ranking(model, holdout, 10)
    counts = np.bincount(train.items, minlength=train.shape[1])
    weights = 1 / np.sqrt(np.maximum(counts, 1))[holdout.items]
    assert found.recall == pytest.approx(evaluate_ranking(model, holdout, 10, weights=weights).recall)
    assert (found.method, found.feedback) == ("popularity", "clicks")
    assert found.recall < found.naive["recall"]  # popular items rank first, and weigh less
    assert "held-out clicks of" in str(found)


def test_naive_metrics_are_means_of_equal_weight(clicks) -> None:
    _, holdout, model = clicks
    equal = evaluate_ranking(model, holdout, 10, weights=None)
    assert equal.naive == pytest.approx({"recall": equal.recall, "dcg": equal.dcg, "mrr": equal.mrr})
    assert evaluate_ranking(model, holdout, 10).naive == pytest.approx(equal.naive)


@pytest.mark.parametrize("weights", ["balanced", "logistic", "naive-bayes"])
def test_weights_that_undo_relevance_are_refused_for_clicks(clicks, weights: str) -> None:
    with pytest.raises(ConfigError, match="what makes clicks look like all pairs undoes relevance too"):
        evaluate_ranking(clicks[2], clicks[1], weights=weights)


def test_evaluate_points_from_clicks_to_full_rankings(clicks) -> None:
    with pytest.raises(DataError, match=r"clicks alone.*Use cp.evaluate_ranking\(model, log\)"):
        cp.evaluate(clicks[2], clicks[1])


def test_weighting_by_known_exposure_estimates_the_recall_of_all_relevant_pairs() -> None:
    data = cp.simulate(n_users=300, n_items=120, density=0.15, selection="popularity", seed=5)
    log = data.dataset.train
    clicked, chance = log.labels > 0, np.asarray(data.propensity)
    log = cp.FeedbackLog.from_arrays(
        log.users[clicked],
        log.items[clicked],
        propensities=chance[log.users[clicked], log.items[clicked]],
        user_ids=np.arange(300),
        item_ids=np.arange(120),
    )
    train, holdout, _ = cp.split(log, 0.4, seed=2)
    model = cp.make("popularity", feedback="clicks").fit(train)
    relevant = np.asarray(data.labels) > 0
    relevant[train.users, train.items] = False
    users, items = np.nonzero(relevant)
    everything = cp.FeedbackLog.from_arrays(users, items, user_ids=np.arange(300), item_ids=np.arange(120))
    truth = evaluate_ranking(model, everything, 20, weights=None).recall
    found = evaluate_ranking(model, holdout, 20, weights="known")
    low, high = found.intervals["recall"]
    assert low <= truth <= high
    assert abs(found.recall - truth) < 0.5 * abs(found.naive["recall"] - truth)


def test_facts_of_thirds_without_a_positive_are_json(clicks) -> None:
    train, _, model = clicks
    popular = np.argsort(-np.bincount(train.items, minlength=train.shape[1]))[:3]
    pairs = [(user, item) for user in range(train.shape[0]) for item in popular]
    new = [pair for pair in pairs if pair not in set(zip(train.users.tolist(), train.items.tolist(), strict=True))]
    users, items = np.array(new).T
    holdout = cp.FeedbackLog.from_arrays(
        train.user_ids.decode(users.astype(np.int32)),
        train.item_ids.decode(items.astype(np.int32)),
        user_ids=train.user_ids,
        item_ids=train.item_ids,
    )
    found = evaluate_ranking(model, holdout, 5)
    assert found.to_dict()["by_popularity"][0]["recall"] is None
    json.dumps(found.to_dict(), allow_nan=False)
    assert "nan" not in str(found)
