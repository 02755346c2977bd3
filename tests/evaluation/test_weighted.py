"""Weighted estimates from a biased hold-out: against loops, known answers and simulated truth."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import counterpoise as cp
from counterpoise import ConfigError, DataError, FeedbackLog, WeightedEvaluation, weigh_holdout
from counterpoise.evaluation import metrics
from counterpoise.evaluation.holdout_weights import HoldoutWeights
from counterpoise.evaluation.weighted import (
    Estimate,
    Lists,
    Rank,
    ScoredRows,
    ScoreOrder,
    calibration_slope,
    estimates,
    expected_ideal_gain,
    expected_in_lists,
    f1,
    pair_auc,
    positives_of_two,
    weighted_differences,
    weighted_mean,
    weighted_ratio,
)


def some_rows(rows: int = 60, seed: int = 0):
    """(labels, tied scores, users, weights) of a few rows."""
    rng = np.random.default_rng(seed)
    labels, scores = (rng.random(rows) < 0.4).astype(float), rng.integers(1, 9, rows) / 10
    return labels, scores, rng.integers(7, size=rows), rng.exponential(size=rows)


def slow_auc(labels, scores, weights, groups) -> float:
    """Every positive against every negative of its group."""
    top = bottom = 0.0
    for a in np.flatnonzero(labels == 1):
        for b in np.flatnonzero((labels == 0) & (groups == groups[a])):
            top += weights[a] * weights[b] * ((scores[a] > scores[b]) + (scores[a] == scores[b]) / 2)
            bottom += weights[a] * weights[b]
    return top / bottom


@pytest.fixture(scope="module")
def logs():
    """(data, training log, hold-out) where selection follows features of the pair."""
    data = cp.simulate(n_users=150, n_items=120, density=0.15, selection="features", seed=100)
    return data, *cp.split(data.dataset.train, 0.3, seed=0)[:2]


@pytest.fixture(scope="module")
def model(logs):
    return cp.make("mf", dim=4, epochs=30, device="cpu").fit(logs[1])


@pytest.mark.parametrize("seed", range(3))
def test_weighted_auc_is_the_sum_over_pairs(seed: int) -> None:
    labels, scores, users, weights = some_rows(seed=seed)
    for groups in (None, users):
        slow = slow_auc(labels, scores, weights, np.zeros(len(labels), int) if groups is None else groups)
        assert pair_auc(labels, weights, ScoreOrder.of(scores, groups)).value == pytest.approx(slow)


def test_equal_weights_give_the_unweighted_metrics() -> None:
    labels, scores, users, _ = some_rows()
    found = estimates(ScoredRows(labels, scores, users), np.full(len(labels), 3.0))
    log = FeedbackLog.from_arrays(users, np.arange(len(labels)), labels)
    plain = cp.evaluate(scores, log, bootstrap=0)
    for name in ("auc", "mse", "mae", "log_loss"):
        assert found[name].value == pytest.approx(getattr(plain, name))


def test_scale_of_weights_changes_nothing() -> None:
    labels, scores, users, weights = some_rows()
    lists = Lists(8, np.ones(2), np.linspace(0.1, 0.9, 60), np.linspace(0.2, 0.8, 60))
    one, other = (estimates(ScoredRows(labels, scores, users, lists), factor * weights) for factor in (1.0, 7.0))
    for name, estimate in one.items():
        assert estimate.value == pytest.approx(other[name].value)
        np.testing.assert_allclose(estimate.influence, other[name].influence, rtol=1e-5, atol=1e-9)


def test_influences_are_derivatives() -> None:
    labels, scores, users, weights = some_rows()
    weights /= weights.sum()
    lists = Lists(8, 1 / np.log2([2, 3]), np.linspace(0.1, 0.9, 60), np.linspace(0.2, 0.8, 60))
    found = estimates(ScoredRows(labels, scores, users, lists), weights)
    for row in (0, 13, 42):
        up, down = weights.copy(), weights.copy()
        up[row] *= 1 + 1e-4
        down[row] *= 1 - 1e-4
        ends = [estimates(ScoredRows(labels, scores, users, lists), w) for w in (up, down)]
        for name, estimate in found.items():
            slope = (ends[0][name].value - ends[1][name].value) / 2e-4
            assert weights[row] * estimate.influence[row] == pytest.approx(slope, rel=1e-3, abs=1e-9), name


def test_weights_by_label_leave_the_auc() -> None:
    labels, scores, users, _ = some_rows()
    weighted = pair_auc(labels, np.where(labels > 0, 5.0, 1.0), ScoreOrder.of(scores, users))
    assert weighted.value == pytest.approx(pair_auc(labels, np.ones(60), ScoreOrder.of(scores, users)).value)


@pytest.mark.parametrize(("above", "tied", "others"), [(0, 0, 6), (2, 0, 6), (1, 2, 6), (5, 1, 6), (3, 0, 3)])
def test_expected_worth_in_lists_is_the_mean_over_all_lists(above: int, tied: int, others: int) -> None:
    values, length = 1 / np.log2([2, 3, 4]), 4
    worths = []
    for place in range(above, above + tied + 1):  # orders of tied rows
        for drawn in combinations(range(others), min(length - 1, others)):
            rank = sum(other < place for other in drawn)
            worths.append(values[rank] if rank < len(values) else 0.0)
    rank = Rank(np.array([above]), np.array([tied]), np.array([others]))
    assert expected_in_lists(rank, values, length)[0] == pytest.approx(np.mean(worths))


def test_a_list_of_all_items_has_ranks_without_draws() -> None:
    rank = Rank(np.arange(10), np.zeros(10, int), np.full(10, 9))
    np.testing.assert_allclose(expected_in_lists(rank, np.array([1.0, 0.5]), 50), [1, 0.5] + [0] * 8, atol=1e-12)


def test_expected_ideal_gain_is_that_of_drawn_rates() -> None:
    rng, discounts = np.random.default_rng(0), 1 / np.log2([2, 3, 4])
    rates = rng.beta(2, 5, 200_000)
    positives = rng.binomial(12, rates)
    drawn = np.r_[0, np.cumsum(discounts)][np.minimum(positives, 3)].mean()
    assert expected_ideal_gain(rates.mean(), (rates**2).mean(), 12, discounts) == pytest.approx(drawn, rel=2e-3)


def test_both_positive_is_the_mean_over_pairs_of_rows() -> None:
    labels, _, users, weights = some_rows()
    same = (users[:, None] == users) & ~np.eye(60, dtype=bool)
    product = np.outer(weights, weights) * same
    expected = (product * np.outer(labels, labels)).sum() / product.sum()
    assert positives_of_two(labels, weights, users).value == pytest.approx(expected)


def test_calibration_slope_finds_the_slope_of_logits() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=40_000)
    labels = (rng.random(40_000) < 1 / (1 + np.exp(-0.5 * logits - 0.3))).astype(float)
    found = calibration_slope(labels, 1 / (1 + np.exp(-logits)), np.ones(40_000))
    assert found.value == pytest.approx(0.5, abs=0.04)
    assert math.isnan(calibration_slope(labels, np.full(40_000, 0.3), np.ones(40_000)).value)


def test_slope_of_labels_that_scores_separate_is_undefined() -> None:
    labels = (np.arange(40) >= 20).astype(float)
    assert math.isnan(calibration_slope(labels, np.linspace(0.01, 0.99, 40), np.ones(40)).value)


def test_ratio_without_a_denominator_is_undefined() -> None:
    assert math.isnan(weighted_ratio(np.ones(3), np.zeros(3), np.ones(3)).value)


@pytest.mark.parametrize(("value", "derivative"), [(0.0, 0.0), (math.nan, math.nan)])
def test_f1_without_hits_has_no_slope(value: float, derivative: float) -> None:
    """Where nothing is found, or nothing could be, precision and recall have no direction to move the F1 in."""
    of_list = Estimate(value, np.array([0.1, -0.1]))
    found = f1(of_list, of_list)
    assert np.array_equal([found.value, *found.influence], [value, derivative, derivative], equal_nan=True)


def test_scores_that_are_no_probabilities_have_no_errors(logs) -> None:
    scores = np.random.default_rng(0).normal(size=len(logs[2]))
    found = cp.evaluate(scores, logs[2], train=logs[1])
    assert isinstance(found, cp.WeightedEvaluation)
    assert math.isfinite(found.auc)
    assert np.isnan([found.mse, found.mae, found.log_loss, found.calibration_slope]).all()


def test_standard_error_without_functions_is_that_of_the_weighted_mean() -> None:
    values, weights = np.random.default_rng(0).normal(size=50), np.full(50, 0.02)
    found = HoldoutWeights(weights, "given", "").standard_errors(weighted_mean(values, weights).influence[:, None])
    assert found[0] == pytest.approx(values.std() / 50**0.5)


def test_standard_errors_are_those_of_other_draws_of_rows() -> None:
    rng = np.random.default_rng(0)
    users, items = (codes.ravel() for codes in np.indices((40, 60)))
    rate = rng.beta(1, 2, 40)[users]  # users differ, and are the same in all draws
    labels = (rng.random(len(users)) < rate).astype(float)
    scores = np.clip(0.3 * labels + 0.3 * rate + 0.5 * rng.random(len(users)), 0, 1)
    chance = np.clip(0.1 + 0.3 * rng.random(60)[items], 0, 1)
    values, errors = [], []
    for _ in range(200):
        drawn = rng.random(len(users)) < chance
        weights = HoldoutWeights(1 / chance[drawn] / (1 / chance[drawn]).sum(), "given", "")
        found = estimates(ScoredRows(labels[drawn], scores[drawn], users[drawn]), weights.values)
        chosen = [found[name] for name in ("auc", "user_auc", "mse", "calibration_level")]
        values.append([each.value for each in chosen])
        errors.append(weights.standard_errors(np.stack([each.influence for each in chosen], 1)))
    ratio = np.mean(errors, 0) / np.std(values, 0)
    assert ((ratio > 0.9) & (ratio < 1.35)).all()  # draws are a fifth of all pairs: errors count them as far fewer


def test_ranks_among_drawn_items_are_worth_the_same(logs, model, monkeypatch) -> None:
    _, train, holdout = logs
    weights = weigh_holdout(holdout, train)
    among_all = cp.evaluate(model, holdout, weights=weights)
    monkeypatch.setattr("counterpoise.evaluation.weighted.MAX_RANKED_PAIRS", 1)
    drawn = cp.evaluate(model, holdout, weights=weights)
    assert isinstance(drawn, WeightedEvaluation)
    assert drawn.list_length == 20
    for name in ("ndcg", "precision", "recall"):
        assert getattr(drawn, name) == pytest.approx(getattr(among_all, name), abs=0.02)


def test_what_is_balanced_has_no_error() -> None:
    rng = np.random.default_rng(0)
    h, weights = rng.normal(size=(200, 3)), np.full(200, 1 / 200)
    fitted = HoldoutWeights(weights, "balanced", "", h - h.mean(0))
    assert fitted.standard_errors((h - h.mean(0)) @ np.ones((3, 1)))[0] == pytest.approx(0, abs=1e-9)
    unrelated = rng.normal(size=(200, 1))
    plain = HoldoutWeights(weights, "given", "").standard_errors(unrelated)
    assert fitted.standard_errors(unrelated)[0] == pytest.approx(plain[0], rel=0.1)


def test_balanced_weights_meet_the_means_of_unseen_pairs(logs) -> None:
    _, train, holdout = logs
    weights = weigh_holdout(holdout, train)
    assert weights.values.sum() == pytest.approx(1)
    assert weights.functions is not None
    np.testing.assert_allclose(weights.values @ weights.functions, 0, atol=1e-5)
    assert 0 < weights.largest_share < 0.1
    assert 10 < weights.effective_sample_size < len(holdout)


def test_balanced_weights_do_not_depend_on_labels(logs) -> None:
    _, train, holdout = logs
    turned = [replace(log, ratings=1 - log.ratings) for log in (train, holdout)]
    np.testing.assert_array_equal(weigh_holdout(holdout, train).values, weigh_holdout(turned[1], turned[0]).values)


def test_balanced_estimates_are_nearer_to_the_truth_than_naive_ones() -> None:
    naive, balanced = [], []
    for seed in (100, 101):
        data = cp.simulate(n_users=400, n_items=300, density=0.15, selection="features", seed=seed)
        train, holdout, _ = cp.split(data.dataset.train, 0.3, seed=seed)
        fitted = cp.make("mf", dim=4, epochs=30, seed=seed, device="cpu").fit(train)
        unseen = np.ones(train.shape, bool)
        unseen[train.users, train.items] = False
        users, items = np.nonzero(unseen)
        scores, labels = fitted.predict(users, items).astype(float), np.asarray(data.labels)[unseen]
        auc = metrics.weighted_auc(metrics.Comparison.of(labels, scores, np.zeros(len(users), int)), np.ones((1, 1)))
        true = np.array([auc[0], metrics.log_losses(labels, scores).mean()])
        found = cp.evaluate(fitted, holdout)
        assert isinstance(found, WeightedEvaluation)
        balanced.append(abs(np.array([found.auc, found.log_loss]) - true))
        naive.append(abs(np.array([found.naive["auc"], found.naive["log_loss"]]) - true))
        for name, value in zip(("auc", "log_loss"), true, strict=True):
            low, high = found.sensitivity[name]["2"]
            assert low < value < high
    assert (np.mean(balanced, 0) < 0.5 * np.mean(naive, 0)).all()


def test_intervals_stay_within_what_a_metric_can_be() -> None:
    data = cp.simulate(n_users=8, n_items=6, density=0.5, selection="popularity", seed=3)
    train, holdout, _ = cp.split(data.dataset.train, 0.3, seed=0)
    found = cp.evaluate(cp.make("mf", dim=2, epochs=5, device="cpu").fit(train), holdout)
    assert isinstance(found, WeightedEvaluation)
    for low, high in (found.intervals["auc"], found.sensitivity["auc"]["2"], found.intervals["recall"]):
        assert 0 <= low <= high <= 1


def test_a_probe_sets_the_mean_label() -> None:
    data = cp.simulate(n_users=200, n_items=150, density=0.15, selection="preference", strength=2, seed=100)
    train, holdout, _ = cp.split(data.dataset.train, 0.3, seed=0)
    probe = data.dataset.test
    fitted = cp.make("mf", dim=4, epochs=30, device="cpu").fit(train)
    without, found = cp.evaluate(fitted, holdout), cp.evaluate(fitted, holdout, probe=probe)
    assert isinstance(found, WeightedEvaluation)
    assert isinstance(without, WeightedEvaluation)
    weights = weigh_holdout(holdout, train, probe=probe)
    assert weights.values @ holdout.labels == pytest.approx(probe.labels.mean(), abs=0.02)
    unseen = np.ones(train.shape, bool)
    unseen[train.users, train.items] = False
    users, items = np.nonzero(unseen)
    level = np.asarray(data.labels)[unseen].mean() - fitted.predict(users, items).mean()
    assert abs(found.calibration_level - level) < 0.2 * abs(without.calibration_level - level)
    assert "probe" in found.assumption


def test_a_biased_holdout_is_weighted_and_a_uniform_one_is_not(logs, model) -> None:
    data, _, holdout = logs
    found = cp.evaluate(model, holdout)
    assert isinstance(found, WeightedEvaluation)
    assert found.method == "balanced"
    text = str(found)
    assert "Unbiased if" in text
    assert "naive" in text
    assert not isinstance(cp.evaluate(model, data.dataset.test), WeightedEvaluation)
    assert not isinstance(cp.evaluate(model, holdout, weights=None), WeightedEvaluation)


@pytest.mark.parametrize("weights", ["logistic", "propensity", "popularity"])
def test_propensity_methods_give_estimates(logs, model, weights: str) -> None:
    found = cp.evaluate(model, logs[2], weights=weights, bootstrap=0)
    assert isinstance(found, WeightedEvaluation)
    assert found.method == weights
    assert 0.4 < found.auc < 1
    assert found.intervals == {}


def test_naive_bayes_weights_need_labels_and_a_probe(logs, model) -> None:
    data, train, holdout = logs
    found = cp.evaluate(model, holdout, weights="naive-bayes", train=train, probe=data.dataset.probe)
    assert isinstance(found, WeightedEvaluation)
    with pytest.raises(ConfigError, match="probe"):
        cp.evaluate(model, holdout, weights="naive-bayes", train=train)


def test_scores_with_the_training_log_are_those_of_the_model(logs, model) -> None:
    _, train, holdout = logs
    by_model, by_scores = cp.evaluate(model, holdout), cp.evaluate(model.predict_log(holdout), holdout, train=train)
    assert isinstance(by_scores, WeightedEvaluation)
    assert by_scores.auc == pytest.approx(by_model.auc)
    assert math.isnan(by_scores.ndcg)
    assert "any item" in by_scores.undefined["ndcg"]
    by_function = cp.evaluate(lambda u, i: model.predict(u, i), holdout, train=train)
    assert by_function.ndcg == pytest.approx(by_model.ndcg)
    assert isinstance(cp.evaluate(model.predict_log(holdout), holdout), cp.Evaluation)  # naive: nothing to learn from


def test_the_same_weights_serve_several_models(logs, model) -> None:
    _, train, holdout = logs
    weights = weigh_holdout(holdout, train)
    assert cp.evaluate(model, holdout, weights=weights).to_dict() == cp.evaluate(model, holdout).to_dict()
    given = cp.evaluate(model, holdout, weights=5 * weights.values)
    assert given.auc == pytest.approx(cp.evaluate(model, holdout, weights=weights).auc)


def test_difference_of_two_models_has_the_error_of_the_paired_rows(logs, model) -> None:
    _, train, holdout = logs
    weights = weigh_holdout(holdout, train)
    other = cp.make("popularity", device="cpu").fit(train)
    first, second = (cp.evaluate(one, holdout, weights=weights, train=train) for one in (model, other))
    found = weighted_differences(first, second)
    assert found["log_loss"].value == pytest.approx(first.log_loss - second.log_loss)
    losses = [metrics.log_losses(holdout.labels, one.predict_log(holdout)) for one in (model, other)]
    gap = losses[0] - losses[1]
    share = weights.values / weights.values.sum()
    error = weights.standard_errors((gap - share @ gap)[:, None])[0]
    assert found["log_loss"].high - found["log_loss"].low == pytest.approx(2 * 1.959964 * error, rel=1e-6)
    alone = [one.intervals["log_loss"][1] - one.intervals["log_loss"][0] for one in (first, second)]
    assert found["log_loss"].high - found["log_loss"].low < sum(alone)


def test_a_model_does_not_differ_from_itself(logs, model) -> None:
    _, train, holdout = logs
    found = cp.evaluate(model, holdout, train=train)
    for value, low, high in weighted_differences(found, found).values():
        assert (value, low, high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_paired_intervals_cover_the_true_difference() -> None:
    """Over draws of the hold-out from fixed pairs, with known weights, nine in ten intervals of 95 % at the least."""
    rng = np.random.default_rng(0)
    pairs, rows = 4000, 500
    labels = (rng.random(pairs) < 0.4).astype(float)
    scores = [np.clip(0.5 + 0.3 * (labels - 0.5) + rng.normal(0, spread, pairs), 0.01, 0.99) for spread in (0.2, 0.3)]
    truth = np.mean(metrics.squared_errors(labels, scores[0]) - metrics.squared_errors(labels, scores[1]))
    covered = 0
    for _ in range(100):
        drawn = rng.choice(pairs, rows)
        weights = HoldoutWeights(np.full(rows, 1 / rows), "equal", "")
        log = FeedbackLog.from_arrays(np.arange(rows), np.zeros(rows, int), labels[drawn])
        one, two = (cp.evaluate(score[drawn], log, weights=weights) for score in scores)
        difference = weighted_differences(one, two)["mse"]
        covered += difference.low <= truth <= difference.high
    assert covered >= 90


def test_known_propensities_are_a_column_of_the_log(logs, model) -> None:
    data, _, holdout = logs
    chances = data.propensity[holdout.users, holdout.items]
    known = cp.evaluate(model, replace(holdout, propensities=chances), weights="known")
    assert known.auc == pytest.approx(cp.evaluate(model, holdout, weights=1 / chances).auc)
    with pytest.raises(ConfigError, match="propensity_col"):
        cp.evaluate(model, holdout, weights="known")


def test_trained_pairs_are_left_out_with_their_weights(logs, model) -> None:
    data, _, holdout = logs
    whole = data.dataset.train
    values = np.random.default_rng(0).exponential(size=len(whole))
    found = cp.evaluate(model, whole, weights=values)
    assert found.n_seen == len(whole) - len(holdout)
    kept = np.isin(whole.pairs, holdout.pairs)
    assert found.auc == pytest.approx(cp.evaluate(model, whole.take(kept), weights=values[kept]).auc)


def test_a_holdout_in_other_codes_gives_the_same(logs, model) -> None:
    holdout = logs[2]
    frame = holdout.to_frame().sample(fraction=1, shuffle=True, seed=1)
    other = FeedbackLog.from_frame(frame, sample="biased")
    weights = np.ones(len(holdout))
    assert cp.evaluate(model, other, weights=weights).auc == pytest.approx(
        cp.evaluate(model, holdout, weights=weights).auc
    )


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones(3), DataError, "`weights` must have one value for each of the"),
        (-1, DataError, "`weights` must be finite and >= 0"),
        (np.nan, DataError, "`weights` must be finite and >= 0"),
        (0, DataError, "`weights` must not all be 0"),
        ("balancd", ConfigError, "balanced"),
        (HoldoutWeights(np.ones(3) / 3, "given", ""), DataError, "those of the rows of `log`, got 3 weights and "),
    ],
)
def test_bad_weights_are_one_error(logs, model, weights, error, message: str) -> None:
    weights = np.full(len(logs[2]), weights) if isinstance(weights, float | int) else weights
    with pytest.raises(error, match=message):
        cp.evaluate(model, logs[2], weights=weights)


def test_evaluations_can_be_pickled(logs, model) -> None:
    found = cp.evaluate(model, logs[2])
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert weighted_differences(copy, found)["auc"].value == 0
    assert copy.influences.weights.values.tolist() == found.influences.weights.values.tolist()


def test_weights_of_text_are_one_short_error(logs, model) -> None:
    with pytest.raises(ConfigError, match="`weights` must be one of") as error:
        cp.evaluate(model, logs[2], weights=["a"] * len(logs[2]))
    assert len(str(error.value)) < 300


def test_scores_of_a_biased_holdout_without_a_training_log_say_that_rows_count_alike(logs) -> None:
    scores = np.random.default_rng(0).random(len(logs[2]))
    assert str(cp.evaluate(scores, logs[2])).endswith("For estimates over all pairs give `train`.")
    assert str(cp.evaluate(scores, replace(logs[2], sample=None))).endswith('If users chose them, add sample="biased".')
    assert cp.evaluate(scores, replace(logs[2], sample="uniform")).assumption == ""


def test_unknown_users_in_weighted_estimates_are_an_error_with_a_way_out(logs, model) -> None:
    names = logs[2].user_ids.decode(logs[2].users).to_numpy().copy()
    names[0] = 10_000
    items = logs[2].item_ids.decode(logs[2].items).to_numpy()
    holdout = cp.FeedbackLog.from_arrays(names, items, logs[2].labels, sample="biased")
    with pytest.raises(DataError, match=r'leave such rows out .* unknown_users="drop"'):
        cp.evaluate(model, holdout, weights="balanced", unknown_users="popular", unknown_items="popular")
    with pytest.raises(DataError, match="leave such rows out"):
        cp.evaluate_ranking(model, holdout)
    assert cp.evaluate(model, holdout, unknown_users="drop").n_dropped == 1


def test_a_holdout_of_one_class_is_an_error(logs, model) -> None:
    holdout = logs[2]
    with pytest.raises(DataError, match="rows of both labels"):
        cp.evaluate(model, holdout.take(holdout.labels > 0))


def test_a_holdout_of_training_rows_is_an_error(logs, model) -> None:
    with pytest.raises(DataError, match="seen in training"):
        cp.evaluate(model, logs[1])
    with pytest.raises(DataError, match="no pair of `train`"):
        weigh_holdout(logs[1], logs[1])


def test_weights_without_a_training_log_are_an_error(logs) -> None:
    with pytest.raises(ConfigError, match="`train` must be given"):
        cp.evaluate(np.random.default_rng(0).random(len(logs[2])), logs[2], weights="balanced")


def test_the_papers_protocol_has_no_weights(logs, model) -> None:
    with pytest.raises(ConfigError, match="weights"):
        cp.evaluate(model, logs[2], protocol="paper", weights="balanced")
