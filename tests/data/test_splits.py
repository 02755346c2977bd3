"""Hold-outs of a log: which rows, what they leave to learn from, and what is said about them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.data.log import hash_logs


@pytest.fixture(scope="module")
def log() -> cp.FeedbackLog:
    rng = np.random.default_rng(0)
    pairs = rng.choice(60 * 40, 900, replace=False)
    times = rng.integers(0, 500, 900)  # some rows share one
    return cp.FeedbackLog.from_arrays(pairs // 40, pairs % 40, rng.integers(1, 6, 900), timestamps=times, threshold=4)


@pytest.mark.parametrize("by", ["random", "user", "time", "leave-last"])
def test_every_row_is_in_one_part(log: cp.FeedbackLog, by: Any) -> None:
    train, holdout, facts = cp.split(log, by=by)
    assert sorted([*train.pairs, *holdout.pairs]) == sorted(log.pairs)
    assert (train.user_ids, holdout.item_ids) == (log.user_ids, log.item_ids)
    assert (facts["train_rows"], facts["holdout_rows"]) == (len(train), len(holdout))
    again = cp.split(log, by=by)
    np.testing.assert_array_equal(again.holdout.pairs, holdout.pairs)


def test_random_holds_out_the_share_asked_for(log: cp.FeedbackLog) -> None:
    assert len(cp.split(log, 0.3).holdout) == 270
    assert list(cp.split(log, seed=1).holdout.pairs) != list(cp.split(log, seed=2).holdout.pairs)


def test_by_user_holds_out_that_share_of_each(log: cp.FeedbackLog) -> None:
    counts = np.bincount(log.users)
    held_out = np.mean([np.bincount(cp.split(log, 0.3, "user", s).holdout.users, minlength=60) for s in range(400)], 0)
    np.testing.assert_allclose(held_out, 0.3 * counts, atol=0.1)
    one = np.bincount(cp.split(log, 0.3, "user").holdout.users, minlength=60)
    assert (abs(one - 0.3 * counts) < 1).all()


def test_by_time_nothing_held_out_is_older(log: cp.FeedbackLog) -> None:
    train, holdout, _ = cp.split(log, 0.25, "time")
    assert train.timestamps.max() < holdout.timestamps.min()  # type: ignore[union-attr]
    assert abs(len(holdout) / len(log) - 0.25) < 0.01


def test_leave_last_is_each_users_latest_row(log: cp.FeedbackLog) -> None:
    _, holdout, facts = cp.split(log, by="leave-last")
    assert log.timestamps is not None
    assert holdout.timestamps is not None
    for user, time in zip(holdout.users, holdout.timestamps, strict=True):
        assert time == log.timestamps[log.users == user].max()
    assert sorted(holdout.users) == list(np.flatnonzero(np.bincount(log.users) > 1))
    assert facts["holdout"] is None


@pytest.mark.parametrize("by", ["user", "leave-last"])
def test_users_with_one_row_keep_it_in_training(by: Any) -> None:
    log = cp.FeedbackLog.from_arrays([1, 2, 2, 3], [1, 1, 2, 3], [0, 1, 0, 1], timestamps=[4, 3, 2, 1])
    train, holdout, facts = cp.split(log, 0.99, by)
    assert list(holdout.users) == [1]
    assert set(train.users) == {0, 1, 2}
    assert facts["cold_users"] == 0


def test_cold_users_and_items_are_counted() -> None:
    log = cp.FeedbackLog.from_arrays([1, 1, 2, 3], [1, 2, 2, 3], [0, 1, 0, 1], timestamps=[1, 2, 3, 4])
    facts = cp.split(log, 0.5, "time").facts
    assert (facts["cold_users"], facts["cold_items"], facts["cold_rows"]) == (2, 1, 2)


def test_rows_of_one_timestamp_stay_together() -> None:
    log = cp.FeedbackLog.from_arrays([1, 2, 3, 4], [1, 1, 1, 1], [0, 1, 0, 1], timestamps=[1, 2, 2, 2])
    assert len(cp.split(log, 0.25, "time").holdout) == 3


@pytest.mark.parametrize(("sample", "expected"), [(None, "biased"), ("biased", "biased"), ("uniform", "uniform")])
def test_a_holdout_is_uniform_only_if_its_log_is(log: cp.FeedbackLog, sample: Any, expected: str) -> None:
    train, holdout, _ = cp.split(replace(log, sample=sample))
    assert (train.sample, holdout.sample) == (sample, expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"holdout": 0}, "`holdout` must be a number > 0"),
        ({"holdout": 20}, "`holdout` must be a number > 0 and <= 1, got 20"),
        ({"holdout": 1}, "leaves the training log empty: 900 of 900 rows are held out. Hold out less"),
        ({"by": "users"}, "`by` must be one of .* Did you mean 'user'?"),
        ({"seed": -1}, "`seed`"),
        ({"holdout": 0.0001}, "leaves the hold-out empty"),
    ],
)
def test_bad_arguments_of_a_split_are_one_clear_error(
    log: cp.FeedbackLog, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(cp.CounterpoiseError, match=words):
        cp.split(log, **arguments)


@pytest.mark.parametrize("by", ["time", "leave-last"])
def test_a_split_by_time_needs_timestamps(log: cp.FeedbackLog, by: Any) -> None:
    with pytest.raises(cp.DataError, match="needs timestamps, and the log has none"):
        cp.split(replace(log, timestamps=None), by=by)


def test_one_timestamp_leaves_nothing_to_learn_from(log: cp.FeedbackLog) -> None:
    with pytest.raises(cp.DataError, match="leaves the training log empty"):
        cp.split(replace(log, timestamps=np.zeros(len(log), np.int64)), by="time")


def test_a_log_says_how_it_was_collected(log: cp.FeedbackLog) -> None:
    uniform = cp.FeedbackLog.from_arrays([1, 2], [1, 2], [0, 1], sample="uniform")
    assert uniform.take([0]).sample == pickle.loads(pickle.dumps(uniform)).sample == "uniform"
    assert cp.FeedbackLog.from_frame(uniform.to_frame(), sample="biased").sample == "biased"
    assert log.sample is None
    assert hash_logs("", uniform) != hash_logs("", replace(uniform, sample="biased"))


def test_a_misspelt_sample_names_the_nearest() -> None:
    with pytest.raises(cp.ConfigError, match=r"got .unifrom.+Did you mean .uniform"):
        cp.FeedbackLog.from_arrays([1], [1], [1], sample="unifrom")  # type: ignore[arg-type]


def test_simulated_data_say_how_they_were_collected() -> None:
    data = cp.simulate(40, 30).dataset
    assert data.probe is not None
    assert data.test is not None
    assert (data.train.sample, data.probe.sample, data.test.sample) == ("biased", "uniform", "uniform")
