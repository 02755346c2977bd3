"""`evaluate`: values and intervals against slow loops, what it accepts, what it prints, what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import oracles
import pytest

from counterpoise.data.log import FeedbackLog
from counterpoise.errors import ConfigError, DataError
from counterpoise.evaluation import evaluate as evaluation
from counterpoise.evaluation.evaluate import evaluate, metrics_and_replicates
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.methods import make

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def example(n_users=30, seed=0, ties=False):
    """A log with users of 1 to 9 rows, and probabilities that know something of its labels."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 10, n_users)
    users = np.repeat(np.arange(n_users), sizes)
    items = np.concatenate([rng.choice(20, size, replace=False) for size in sizes])
    labels = (rng.random(len(users)) < rng.choice([0.1, 0.4, 0.8], n_users)[users]).astype(float)
    scores = np.clip(0.3 * labels + 0.7 * rng.random(len(users)), 0, 1)
    order = rng.permutation(len(users))
    log = FeedbackLog.from_arrays(users[order], items[order], labels[order])
    return log, (scores.round(1) if ties else scores)[order]


def values(result):
    return {name: getattr(result, name) for name in METRIC_NAMES}


@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_equals_slow_loops(ties):
    log, scores = example(ties=ties)
    expected = oracles.all_metrics(log.users, scores, log.labels, 4)
    assert metrics_and_replicates(scores, log, k=4)[0] == pytest.approx(expected)
    result = evaluate(scores, log, k=4, bootstrap=0)
    assert values(result) == pytest.approx({name: expected[name] for name in METRIC_NAMES})


@pytest.mark.parametrize("ties", [False, True])
def test_neither_the_order_of_rows_nor_the_codes_of_items_matter(ties):
    log, scores = example(ties=ties)
    rng = np.random.default_rng(1)
    expected = metrics_and_replicates(scores, log)[0]
    for _ in range(3):
        order, codes = rng.permutation(len(log)), rng.permutation(20)
        other = FeedbackLog.from_arrays(log.users[order], codes[log.items[order]], log.labels[order])
        assert metrics_and_replicates(scores[order], other)[0] == pytest.approx(expected, abs=1e-12)


def test_counts_of_users_follow_the_rules():
    log = FeedbackLog.from_arrays([0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0], [1, 0, 1, 0, 0, 1])
    result = evaluate(np.full(6, 0.5), log, k=2, bootstrap=0)
    counts = (result.n_rows, result.n_users, result.n_empty_users, result.n_short_users, result.n_auc_users)
    assert counts == (6, 3, 1, 1, 1)


def test_model_a_function_and_an_array_give_the_same_result():
    log, scores = example()
    matrix = np.zeros(log.shape)
    matrix[log.users, log.items] = scores

    class Model:
        def predict_log(self, log):
            return matrix[log.users, log.items]

    results = [evaluate(model, log) for model in (Model(), lambda users, items: matrix[users, items], scores)]
    assert results[0] == results[1] == results[2]


def test_threshold_of_the_log_makes_the_labels():
    log, scores = example()
    stars = FeedbackLog.from_arrays(log.users, log.items, 2 + 2 * log.labels, threshold=3)
    assert evaluate(scores, stars) == evaluate(scores, log)


class Fitted:
    """A model that was fitted to some pairs."""

    def __init__(self, pairs):
        self.pairs = pairs

    def predict_log(self, log):
        return np.linspace(0, 1, 7)[log.pairs % 7]

    def has_seen(self, log):
        return np.isin(log.pairs, self.pairs)


def test_rows_that_the_model_was_fitted_to_are_left_out_and_counted():
    log, _ = example()
    model, unseen = Fitted(log.pairs[:40]), log.take(slice(40, None))
    honest, paper = (evaluate(model, log, protocol=protocol) for protocol in ("honest", "paper"))
    assert (honest.n_rows, honest.n_seen) == (len(log) - 40, 40)
    assert values(honest) == values(evaluate(model, unseen))
    assert (paper.n_rows, paper.n_seen) == (len(log), 40)
    assert values(paper) == values(evaluate(model.predict_log(log), log))
    assert "     40  rows were seen in training or in the probe: left out (honest protocol)" in str(honest)
    assert "     40  rows were seen in training or in the probe: counted (paper protocol)" in str(paper)
    assert "seen" not in str(evaluate(model, unseen))
    with pytest.raises(
        DataError, match=rf"`log`: all {len(log)} pairs were seen in training .*, so they are no test\. Hold rows out"
    ):
        evaluate(Fitted(log.pairs), log)


# ---- intervals -------------------------------------------------------------------------------------------------------


def test_unknown_ids_are_an_error_dropped_or_scored():
    train = FeedbackLog.from_arrays(list("aabbcc"), list("xyxzyz"), [1, 0, 1, 1, 0, 1], sample="uniform")
    test = FeedbackLog.from_arrays(list("abcdda"), list("zyxxzw"), [1, 0, 1, 0, 1, 1])
    model = make("mf", epochs=2, device="cpu").fit(train)
    with pytest.raises(DataError, match="unknown user"):
        evaluate(model, test, bootstrap=0)
    with pytest.raises(DataError, match="unknown item"):
        evaluate(model, test, unknown_users="drop", bootstrap=0)
    dropped = evaluate(model, test, unknown_users="drop", unknown_items="drop", bootstrap=0)
    assert (dropped.n_rows, dropped.n_dropped) == (3, 3)
    assert "3  rows are of users or items without training rows" in str(dropped)
    scored = evaluate(model, test, unknown_users="popular", unknown_items="drop", bootstrap=0)
    assert (scored.n_rows, scored.n_dropped) == (5, 1)
    known = test.take([0, 1, 2, 3, 4])
    scores = model.predict_log(known, unknown_users="popular")
    assert scored.auc == pytest.approx(evaluate(scores, known, bootstrap=0).auc)
    with pytest.raises(ConfigError, match="only a recommender knows its ids"):
        evaluate(scores, known, unknown_users="drop")


def test_intervals_are_those_of_explicit_resamples_of_users():
    log, scores = example(ties=True)
    result = evaluate(scores, log, k=3, bootstrap=25, level=0.8, seed=5)
    _, drawn_metrics = metrics_and_replicates(scores, log, 3, 25, seed=5)
    replicates = []
    for drawn in np.random.default_rng(5).integers(result.n_users, size=(25, result.n_users)):
        rows, copies = oracles.resample(log.users, drawn)
        replicates.append(oracles.all_metrics(copies, scores[rows], log.labels[rows], 3))
    for name, ours in drawn_metrics.items():
        assert ours == pytest.approx([replicate[name] for replicate in replicates]), name
    for name in METRIC_NAMES:
        expected = np.quantile([replicate[name] for replicate in replicates], [0.1, 0.9])
        assert result.intervals[name] == pytest.approx(tuple(expected)), name


def test_size_of_a_block_does_not_change_the_intervals(monkeypatch):
    log, scores = example()
    whole = evaluate(scores, log, bootstrap=37).intervals
    for block in (1, 5 * len(log), 99 * len(log)):
        monkeypatch.setattr(evaluation, "BOOTSTRAP_BLOCK", block)
        blocks = evaluate(scores, log, bootstrap=37).intervals
        assert all(blocks[name] == pytest.approx(whole[name]) for name in METRIC_NAMES)


def test_seed_decides_the_intervals():
    log, scores = example()
    assert evaluate(scores, log, seed=3) == evaluate(scores, log, seed=3)
    assert evaluate(scores, log, seed=3).intervals["auc"] != evaluate(scores, log, seed=4).intervals["auc"]


def test_intervals_cover_the_value_and_shrink_with_users():
    widths = []
    for n_users in (100, 1600):
        result = evaluate(*reversed(example(n_users)))
        assert all(low < getattr(result, name) < high for name, (low, high) in result.intervals.items())
        widths.append({name: high - low for name, (low, high) in result.intervals.items()})
    for name in METRIC_NAMES:
        assert 2.5 < widths[0][name] / widths[1][name] < 6, name  # 4 = sqrt(1600 / 100), up to chance


def test_higher_level_gives_wider_intervals():
    log, scores = example()
    narrow, wide = (evaluate(scores, log, level=level).intervals["auc"] for level in (0.5, 0.95))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_without_bootstrap_only_the_intervals_are_missing():
    log, scores = example()
    assert evaluate(scores, log, bootstrap=0).intervals == {}
    assert values(evaluate(scores, log, bootstrap=0)) == values(evaluate(scores, log))


# ---- what is not defined ---------------------------------------------------------------------------------------------


def test_auc_of_one_class_is_nan_with_a_reason():
    log = FeedbackLog.from_arrays([0, 0, 1], [0, 1, 0], [1, 1, 1])
    result = evaluate([0.2, 0.4, 0.6], log)
    assert math.isnan(result.auc)
    assert result.undefined == {"auc": "all labels are equal", "user_auc": "no user has labels of both kinds"}
    assert math.isnan(result.intervals["auc"][0])
    assert result.ndcg == 1


def test_undefined_replicates_do_not_count_in_intervals():
    log = FeedbackLog.from_arrays([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0])  # user 0 drawn twice: one class only
    result = evaluate([0.2, 0.4, 0.6, 0.3], log, bootstrap=50)
    assert result.intervals["auc"] == (1, 1)
    assert result.intervals["ndcg"] == (1, 1)


def test_without_positives_ours_is_undefined_and_the_paper_counts_all():
    log = FeedbackLog.from_arrays([0, 0, 1], [0, 1, 0], [0, 0, 0])
    assert {"ndcg", "precision", "recall", "f1"} <= set(evaluate([0.2, 0.4, 0.6], log).undefined)
    counted, _ = metrics_and_replicates([0.2, 0.4, 0.6], log)
    assert (counted["ndcg_one"], counted["f1_one"]) == (1, 0)


def test_errors_of_scores_outside_0_1_are_nan():
    log, scores = example()
    logits = evaluate(1e200 * (scores - 0.5), log)
    assert set(logits.undefined) == {"mse", "mae", "log_loss"}
    assert logits.auc == evaluate(scores, log).auc


def test_one_user_has_no_intervals():
    result = evaluate([0.1, 0.9], FeedbackLog.from_arrays([0, 0], [0, 1], [0, 1]))
    assert result.auc == 1
    assert all(math.isnan(low) and math.isnan(high) for low, high in result.intervals.values())


# ---- forms -----------------------------------------------------------------------------------------------------------


def test_to_dict_is_json_with_null_for_nan():
    log = FeedbackLog.from_arrays([0, 0, 1], [0, 1, 0], [1, 1, 1])
    facts = evaluate([0.2, 0.4, 0.6], log, k=np.int64(2)).to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert (facts["auc"], facts["ndcg"], facts["k"], facts["intervals"]["auc"]) == (None, 1.0, 2, [None, None])


def test_table_is_aligned_and_states_the_rule():
    log, scores = example()
    lines = str(evaluate(scores, log, k=3)).splitlines()
    assert lines[0].split() == ["metric", "value", "95", "%", "interval"]
    assert lines[3].startswith("NDCG@3")
    assert len({line.index(".") for line in lines[1:10]}) == 1
    assert any("no positive label: users without a positive in the test are left out" in line for line in lines)


def test_table_says_why_a_value_is_missing():
    log = FeedbackLog.from_arrays([0, 0, 1], [0, 1, 0], [1, 1, 1])
    assert "nan  all labels are equal" in str(evaluate([0.2, 0.4, 0.6], log))


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "`k` must be an integer >= 1, got 0"),
        ({"k": 2.5}, "`k` must be an integer >= 1, got 2.5"),
        ({"protocol": "two"}, "`protocol` must be one of 'honest', 'paper', 'upo'"),
        ({"bootstrap": -1}, "`bootstrap` must be an integer >= 0, got -1. Use 0 for no intervals."),
        ({"level": 95}, "`level` must be a number > 0 and <= 1, got 95. Use 0.95 for 95 %."),
        ({"seed": -3}, "`seed` must be an integer >= 0, got -3"),
    ],
)
def test_setting_out_of_range_is_named(arguments, message):
    log, scores = example()
    with pytest.raises(ConfigError) as caught:
        evaluate(scores, log, **arguments)
    assert message in str(caught.value)


def test_scores_of_the_wrong_shape_are_refused():
    log, scores = example()
    for wrong in (scores[:-1], scores[:, None], 0.5):
        with pytest.raises(DataError, match=f"one score for each of the {len(log)} rows, got shape"):
            evaluate(wrong, log)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(value):
    log, scores = example()
    scores[2:4] = value
    with pytest.raises(DataError, match=f"must be finite, got {value} in row 2 and 1 more"):
        evaluate(scores, log)


def test_other_objects_than_models_are_refused():
    log, _ = example()
    with pytest.raises(ConfigError, match=r"`model` must be a model with `predict_log\(log\)`, .* got str"):
        evaluate("mf", log)


def test_empty_log_is_refused():
    log, scores = example()
    with pytest.raises(DataError, match="at least one row, got none"):
        evaluate(scores[:0], log.take(slice(0, 0)))


def test_labels_other_than_0_and_1_are_refused():
    log, scores = example()
    stars = FeedbackLog.from_arrays(log.users, log.items, 2 + 2 * log.labels)
    with pytest.raises(DataError, match=r"must be 0 or 1, got [24]\. Give the log a `threshold`"):
        evaluate(scores, stars)
