"""Kinds of feedback: inferred from the data or given, and what becomes of clicks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import DataError, FeedbackLog
from counterpoise.data.feedback import words_of
from counterpoise.data.reading import read_ratings


def log(ratings: list[float] | None = None, **options: object) -> FeedbackLog:
    return FeedbackLog.from_arrays([1, 1, 2, 2], [1, 2, 1, 3], ratings, **options)


@pytest.mark.parametrize(
    ("ratings", "options", "kind"),
    [
        (None, {}, "clicks"),
        ([1, 1, 1, 1], {}, "clicks"),
        ([4, 5, 4, 5], {"threshold": 4}, "clicks"),
        ([1, 0, 1, 1], {}, "ratings"),
        ([1, 0, 1, 1], {"names": {"rating": "clicked"}}, "impressions"),
        ([1, 0, 1, 1], {"feedback": "impressions"}, "impressions"),
        ([1, 1, 1, 1], {"feedback": "ratings"}, "ratings"),
        ([1, 5, 3, 4], {}, "ratings"),
    ],
)
def test_feedback_is_told_by_the_labels_unless_given(ratings, options, kind) -> None:
    assert log(ratings, **options).feedback == kind


@pytest.mark.parametrize("column", ["clicked", "click", "is_click"])
def test_a_column_of_what_was_clicked_is_found(column: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 2], "item_id": [1, 2, 1], column: [1, 0, 1], "position": [3, 1, 2]})
    frame.write_csv(tmp_path / "shown.csv")
    for found in (cp.read_log(tmp_path / "shown.csv"), FeedbackLog.from_frame(frame)):
        assert repr(found) == "<FeedbackLog: 3 impressions, 2 users x 2 items, mean label 0.667>"
        assert found.labels.tolist() == [1, 0, 1]
    assert FeedbackLog.from_frame(frame.with_columns(rating=pl.Series([5, 1, 2]))).feedback == "ratings"
    with pytest.raises(DataError, match="no column 'rating'"):
        cp.read_log(tmp_path / "shown.csv", feedback="ratings")
    with pytest.raises(DataError, match='must be a click for feedback="clicks", got 1 of 3 rows'):
        cp.read_log(tmp_path / "shown.csv", feedback="clicks")


def test_clicks_with_a_threshold_are_the_positive_rows() -> None:
    found = log([1, 5, 3, 4], threshold=4, feedback="clicks")
    assert found.to_frame()["item_id"].to_list() == [2, 3]
    assert found.labels.tolist() == [1, 1]
    assert found.shape == (2, 3)  # D has every user and item of the log
    assert found.take([1]).feedback == "clicks"


def test_repeated_clicks_are_counted() -> None:
    found = FeedbackLog.from_arrays([1, 1, 2, 1], [5, 5, 5, 6])
    assert found.to_frame().rows() == [(1, 5, 2.0), (2, 5, 1.0), (1, 6, 1.0)]
    assert found.labels.tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="repeat a pair"):
        FeedbackLog.from_arrays([1, 1], [5, 5], duplicates="error")


def test_clicks_without_a_click_are_refused() -> None:
    with pytest.raises(DataError, match='must be a click for feedback="clicks", got 1 of 4 rows'):
        log([1, 0, 1, 1], feedback="clicks")
    with pytest.raises(DataError, match="no row is a click"):
        log([1, 0, 1, 1], feedback="clicks", threshold=2)
    with pytest.raises(DataError, match="`ratings` must be given for feedback='ratings'"):
        log(None, feedback="ratings")
    with pytest.raises(DataError, match="`ratings` must be given for a `threshold`"):
        log(None, threshold=3)


def test_a_frame_of_clicks_needs_no_ratings() -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": [3, 4]})
    assert FeedbackLog.from_frame(frame, rating_col=None).feedback == "clicks"


def test_a_file_of_clicks_needs_no_ratings(tmp_path: Path) -> None:
    plain, other, test = (tmp_path / f"{name}.csv" for name in ("plain", "other", "test"))
    plain.write_text("user_id,item_id,timestamp\n1,1,5\n2,2,6\n")
    other.write_text("user_id,item_id,stars\n1,1,5\n2,2,1\n")
    test.write_text("user_id,item_id,rating\n1,1,5\n2,2,1\n")
    assert cp.read_log(plain).feedback == "clicks"
    assert cp.read_log(other, feedback="clicks").feedback == "clicks"
    with pytest.raises(DataError, match=r'no column \'rating\'.*say feedback="clicks"'):
        cp.read_log(other)  # stars may be ratings
    logs = cp.read_logs({"train": plain, "test": test}, threshold=4)
    assert [log.feedback for log in logs.values()] == ["clicks", "ratings"]
    assert logs["test"].labels.tolist() == [1, 0]


def test_methods_refuse_other_kinds_and_name_those_that_fit() -> None:
    clicks, ratings = log(), log([1, 0, 1, 1])
    with pytest.raises(DataError, match=r'every label of the log is 1.*make\(name, feedback="clicks"\).*popularity'):
        cp.make("mf").fit(clicks)
    with pytest.raises(DataError, match=r'has ratings, with a mean label of 0.75.*feedback="clicks" and a `threshold`'):
        cp.make("popularity", feedback="clicks").fit(ratings)
    with pytest.raises(cp.ConfigError, match="method 'mf' learns from ratings or impressions"):
        cp.make("mf", feedback="clicks")
    impressions = log([1, 0, 1, 1], feedback="impressions")
    assert cp.make("mf", feedback="impressions", epochs=1).fit(impressions).log_facts_["feedback"] == "impressions"


def test_popularity_of_clicks_ranks_items_by_their_clicks() -> None:
    rng = np.random.default_rng(0)
    clicks = FeedbackLog.from_arrays(rng.integers(0, 50, 600), (rng.random(600) ** 2 * 20).astype(int))
    model = cp.make("popularity", feedback="clicks").fit(clicks)
    counts = np.bincount(clicks.items, minlength=clicks.shape[1])
    scores = model.score_items(np.array([0]))[0]
    assert (np.diff(counts[np.argsort(scores)]) >= 0).all()
    assert model.predict_log(clicks).mean() < 0.9  # a probability over all pairs, of which few were clicked


def test_a_dataset_of_ratings_is_read_as_clicks(tmp_path: Path) -> None:
    (tmp_path / "train.ascii").write_text("5 1 0\n0 4 3\n")
    (tmp_path / "test.ascii").write_text("0 0 5\n1 0 0\n")
    data = cp.load_dataset("coat", tmp_path, feedback="clicks")
    assert (data.train.feedback, len(data.train), data.description["threshold"]) == ("clicks", 2, 4)
    assert data.probe is None
    assert data.test is not None
    assert data.test.labels.tolist() == [1, 0]


def test_texts_of_ratings_are_said_of_other_kinds() -> None:
    text = "Ratings per user; 3 ratings, not rated; a rating_col and rates stay."
    assert words_of("ratings")(text) == text
    assert words_of("clicks")(text) == "Clicks per user; 3 clicks, not clicked; a rating_col and rates stay."
    assert (
        words_of("impressions")(text) == "Impressions per user; 3 impressions, not shown; a rating_col and rates stay."
    )
    assert words_of("clicks").count(1) == "1 click"
    assert words_of("clicks").count(1200) == "1,200 clicks"
    assert words_of("a kind of the future")(text) == text


def test_clicks_of_new_users_are_read_without_ratings(tmp_path: Path) -> None:
    given = tmp_path / "new.csv"
    given.write_text("user_id,item_id\na,7\nb,8\n")
    assert read_ratings(given, clicks=True).rows() == [(7, "a"), (8, "b")]
    with pytest.raises(DataError, match="no column 'rating'"):
        read_ratings(given)
    given.write_text("item_id,rating\n7,2\n")
    assert read_ratings(given, clicks=True).rows() == [(7, 2.0)]
