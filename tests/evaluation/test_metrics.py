"""The metrics against scikit-learn, torchmetrics, slow loops, and what must hold for any scores."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import mean_absolute_error, mean_squared_error, ndcg_score, roc_auc_score

from counterpoise.evaluation import metrics
from counterpoise.evaluation.metrics import Comparison, Rankings

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
KS = (1, 2, 5, 50)


def table(seed=0, n_users=40, n_items=30, ties=False):
    """Rows in a random order: users with 1 to 12 rows, some without a positive, some without a negative."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 13, n_users)
    users = np.repeat(np.arange(n_users) * 3, sizes)
    items = np.concatenate([rng.choice(n_items, size, replace=False) for size in sizes])
    rate = np.repeat(rng.choice([0.0, 0.2, 0.5, 1.0], n_users), sizes)
    labels = (rng.random(len(users)) < rate).astype(float)
    scores = rng.integers(0, 5, len(users)) / 4 if ties else rng.permutation(len(users)) / len(users)
    order = rng.permutation(len(users))
    return users[order], items[order], scores[order], labels[order]


@st.composite
def tables(draw):
    """A few users and items, scores with many ties."""
    pair = st.tuples(st.integers(0, 5), st.integers(0, 9))
    pairs = draw(st.lists(pair, min_size=1, max_size=30, unique=True))
    users, items = np.array(pairs).T
    scores = np.array(draw(st.lists(st.integers(0, 8), min_size=len(pairs), max_size=len(pairs)))) / 8
    labels = np.array(draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))), float)
    return users, items, scores, labels


def auc(labels, scores):
    """Over all rows, each with weight 1."""
    groups = np.zeros(len(labels), np.int64)
    return float(metrics.weighted_auc(Comparison.of(labels, scores, groups), np.ones((1, 1)))[0])


def user_mean(values):
    """Over the users whose value is defined."""
    return values[~np.isnan(values)].mean()


def ranked(users, items, scores, labels):
    return Rankings.of(users, scores, labels)


def per_user(rankings, k):
    return {
        "ndcg": metrics.ndcg_per_user(rankings, k),
        "precision": metrics.precision_per_user(rankings, k),
        "recall": metrics.recall_per_user(rankings, k),
        "map": metrics.average_precision_per_user(rankings, k),
        "dcg": metrics.dcg_per_user(rankings, k),
        "auc": metrics.auc_per_user(rankings),
    }


# ---- against other people's code -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_that_of_scikit_learn(ties):
    _, _, scores, labels = table(ties=ties)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("ties", [False, True])
def test_ndcg_is_that_of_scikit_learn(k, ties):
    users, items, scores, labels = table(ties=ties)
    rankings = ranked(users, items, scores, labels)
    ours = dict(zip(rankings.users, metrics.ndcg_per_user(rankings, k), strict=True))
    for user in np.unique(users):
        own = users == user
        if own.sum() > 1 and labels[own].any():  # scikit-learn refuses lists of one, and has 0 without a positive
            assert ours[user] == pytest.approx(ndcg_score([labels[own]], [scores[own]], k=k), abs=1e-12)


@pytest.mark.parametrize("k", KS)
def test_ranking_metrics_are_those_of_torchmetrics(k):
    import torch
    from torchmetrics.retrieval import RetrievalNormalizedDCG, RetrievalPrecision, RetrievalRecall

    users, items, scores, labels = table()
    rankings = ranked(users, items, scores, labels)
    ours = per_user(rankings, k)
    theirs = {"ndcg": RetrievalNormalizedDCG, "precision": RetrievalPrecision, "recall": RetrievalRecall}
    for name, metric in theirs.items():
        value = metric(empty_target_action="skip", top_k=k)(
            torch.tensor(scores), torch.tensor(labels).long(), indexes=torch.tensor(users).long()
        )
        assert user_mean(ours[name]) == pytest.approx(float(value), abs=1e-6), name


def test_errors_of_probabilities_are_those_of_scikit_learn():
    _, _, scores, labels = table()
    assert metrics.squared_errors(labels, scores).mean() == pytest.approx(mean_squared_error(labels, scores))
    assert metrics.absolute_errors(labels, scores).mean() == pytest.approx(mean_absolute_error(labels, scores))
    clipped = np.clip(scores, 1e-7, 1 - 1e-7)
    assert metrics.log_losses(labels, scores).mean() == pytest.approx(sklearn_log_loss(labels, clipped))


# ---- against loops written from the definitions ----------------------------------------------------------------------


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_of_each_user_are_means_over_all_orders_of_ties(k, ties):
    users, items, scores, labels = table(seed=k, ties=ties)
    ours = per_user(ranked(users, items, scores, labels), k)
    lists = oracles.rankings(users, scores, labels)
    assert any(len(orders) > 1 for orders in lists.values()) == ties
    assert any(len(orders[0]) < k for orders in lists.values()) or k == 1
    for position, (user, orders) in enumerate(lists.items()):
        left_out = sum(orders[0]) == 0
        expected = {
            "ndcg": oracles.mean([oracles.ndcg(order, k, math.nan) for order in orders]),
            "precision": math.nan if left_out else oracles.mean([oracles.precision(order, k) for order in orders]),
            "recall": math.nan if left_out else oracles.mean([oracles.recall(order, k) for order in orders]),
            "map": math.nan if left_out else oracles.mean([oracles.average_precision(order, k) for order in orders]),
            "dcg": math.nan if left_out else oracles.mean([oracles.dcg_of_clicks(order, k) for order in orders]),
            "auc": oracles.auc(labels[users == user], scores[users == user]),
        }
        assert {name: values[position] for name, values in ours.items()} == pytest.approx(expected, nan_ok=True)


def test_auc_is_the_mann_whitney_statistic():
    _, _, scores, labels = table(ties=True)
    assert auc(labels, scores) == pytest.approx(oracles.auc(labels, scores), abs=1e-12)


def test_weighted_auc_is_the_auc_of_repeated_rows():
    users, _, scores, labels = table(ties=True, n_users=10)
    codes, groups = np.unique(users, return_inverse=True)
    counts = np.random.default_rng(1).integers(0, 4, (5, len(codes))).astype(float)
    ours = metrics.weighted_auc(Comparison.of(labels, scores, groups), counts)
    for value, count in zip(ours, counts, strict=True):
        rows = np.repeat(np.arange(len(users)), count[groups].astype(int))
        assert value == pytest.approx(oracles.auc(labels[rows], scores[rows]), abs=1e-12)


# ---- known answers ---------------------------------------------------------------------------------------------------


def test_ndcg_of_a_perfect_ranking_is_one():
    users, items, _, labels = table()
    values = metrics.ndcg_per_user(ranked(users, items, labels, labels), 5)
    assert user_mean(values) == pytest.approx(1)


def test_a_user_without_a_positive_is_left_out():
    users, items, scores, labels = table()
    values = per_user(ranked(users, items, scores, 0 * labels), 5)
    assert all(np.isnan(values[name]).all() for name in ("ndcg", "precision", "recall"))


def test_precision_divides_by_k_for_short_lists():
    assert metrics.precision_per_user(Rankings.of([0, 0], [2, 1], [1, 1]), 5).tolist() == [0.4]


def test_ndcg_of_a_list_of_one_positive_is_one():
    assert metrics.ndcg_per_user(Rankings.of([0], [0.1], [1]), 5).tolist() == [1]


def test_equal_scores_get_what_random_orders_get():
    for labels in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):
        rankings = Rankings.of([7, 7, 7], [0.5, 0.5, 0.5], labels)
        expected = (1 + 1 / math.log2(3)) / 3  # at rank 1, 2 or 3, of which the last is past k
        assert metrics.ndcg_per_user(rankings, 2).tolist() == pytest.approx([expected])
        assert metrics.precision_per_user(rankings, 2).tolist() == pytest.approx([1 / 3])
        assert metrics.recall_per_user(rankings, 2).tolist() == pytest.approx([2 / 3])


def test_auc_of_equal_scores_is_one_half():
    assert auc([0, 1, 1], [0.3, 0.3, 0.3]) == 0.5
    assert metrics.auc_per_user(Rankings.of([0, 0, 0], [0.3, 0.3, 0.3], [0, 1, 1])).tolist() == [0.5]


@pytest.mark.parametrize("labels", [[0, 0], [1, 1]])
def test_auc_of_one_class_is_nan(labels):
    assert math.isnan(auc(labels, [0.1, 0.2]))
    assert np.isnan(metrics.auc_per_user(Rankings.of([0, 0], [0.1, 0.2], labels))).all()


def test_metrics_of_no_rows_are_nan():
    rankings = Rankings.of([], [], [])
    assert all(values.size == 0 for values in per_user(rankings, 5).values())
    assert math.isnan(auc([], []))


def test_log_loss_of_a_sure_mistake_is_finite():
    assert metrics.log_losses([1, 0], [0.0, 1.0]).mean() == pytest.approx(-math.log(1e-7))


def test_f1_is_the_harmonic_mean_of_the_means():
    assert metrics.f1(0.2, 0.6) == pytest.approx(0.3)
    assert metrics.f1(0.0, 0.0) == 0
    assert math.isnan(metrics.f1(math.nan, math.nan))


def test_ndcg_of_random_scores_on_coat_is_unchanged():
    folder = os.environ.get("COUNTERPOISE_DATA")
    path = Path(folder or ".") / "coat" / "test.ascii"
    if not folder or not path.is_file():
        pytest.skip("Coat is not there: COUNTERPOISE_DATA must name a folder that holds coat/test.ascii")
    ratings = np.loadtxt(path)
    users, items = np.nonzero(ratings)
    labels = ratings[users, items] >= 3
    copies = 200  # of all users, each with scores of its own: the mean is good to about 0.001
    all_users = (users + len(ratings) * np.arange(copies)[:, None]).ravel()
    scores = np.random.default_rng(0).random(len(all_users))
    rankings = Rankings.of(all_users, scores, np.tile(labels, copies))
    ndcg = metrics.ndcg_per_user(rankings, 5)
    assert (rankings.positives == 0).sum() == 9 * copies
    assert [user_mean(ndcg), np.nan_to_num(ndcg, nan=1.0).mean()] == pytest.approx([0.444, 0.461], abs=0.003)
    constant = Rankings.of(users, np.zeros(len(users)), labels)  # what random scores get on average, without noise
    assert user_mean(metrics.ndcg_per_user(constant, 5)) == pytest.approx(user_mean(ndcg), abs=0.002)


# ---- what holds for any scores ---------------------------------------------------------------------------------------


def assert_same(first, second):
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-12, err_msg=name)


@settings(deadline=None)
@given(tables(), st.randoms(use_true_random=False), st.sampled_from(KS))
def test_order_of_rows_changes_nothing(rows, random, k):
    order = np.array(random.sample(range(len(rows[0])), len(rows[0])))
    shuffled = tuple(column[order] for column in rows)
    assert_same(per_user(ranked(*rows), k), per_user(ranked(*shuffled), k))
    assert_same({"auc": auc(rows[3], rows[2])}, {"auc": auc(shuffled[3], shuffled[2])})


@settings(deadline=None)
@given(tables(), st.sampled_from([np.exp, lambda s: s**3 - 2, lambda s: np.log(s + 1)]), st.sampled_from(KS))
def test_monotone_transform_changes_nothing(rows, transform, k):
    users, items, scores, labels = rows
    moved = (users, items, transform(scores), labels)
    assert_same(per_user(ranked(*rows), k), per_user(ranked(*moved), k))
    assert_same({"auc": auc(labels, scores)}, {"auc": auc(labels, transform(scores))})


@settings(deadline=None)
@given(tables())
def test_auc_of_negated_scores_is_one_minus_auc(rows):
    users, items, scores, labels = rows
    assert auc(labels, -scores) == pytest.approx(1 - auc(labels, scores), nan_ok=True)
    turned = metrics.auc_per_user(ranked(users, items, -scores, labels))
    np.testing.assert_allclose(turned, 1 - metrics.auc_per_user(ranked(*rows)), atol=1e-12)


@settings(deadline=None)
@given(tables(), st.sampled_from(KS))
def test_metrics_lie_between_zero_and_one(rows, k):
    for name, values in per_user(ranked(*rows), k).items():
        defined = values[~np.isnan(values)]
        assert ((defined >= -1e-12) & (defined <= (k if name == "dcg" else 1) + 1e-12)).all(), name


@settings(deadline=None)
@given(tables())
def test_recall_is_one_where_the_list_holds_every_row(rows):
    rankings = ranked(*rows)
    values = metrics.recall_per_user(rankings, int(rankings.sizes.max()))
    np.testing.assert_array_equal(values, np.where(rankings.positives > 0, 1.0, np.nan))
