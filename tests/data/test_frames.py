"""Frames of pandas, polars and pyarrow in the place of logs, and results in the kind that came in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import counterpoise as cp
from counterpoise import ConfigError, DataError, DebiasedRecommender, FeedbackLog
from counterpoise.data.log import as_log, as_logs

NAMES = {"user_col": "who", "item_col": "what", "rating_col": "stars"}
KINDS: dict[str, tuple[Callable[[pd.DataFrame], Any], type]] = {
    "pandas": (lambda frame: frame, pd.DataFrame),
    "polars": (lambda frame: pl.DataFrame(frame.to_dict("list")), pl.DataFrame),
    "lazy": (lambda frame: pl.LazyFrame(frame.to_dict("list")), pl.DataFrame),
    "pyarrow": (lambda frame: pa.table(frame.to_dict("list")), pa.Table),
}


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from, and others of the same users and items."""
    data = cp.simulate(n_users=40, n_items=30, density=0.3, seed=1).dataset
    table = pd.DataFrame(data.train.to_frame().rename({"user_id": "who", "item_id": "what"}).to_dict(as_series=False))
    table = table.assign(stars=table.pop("rating") * 3 + 2).drop(columns="propensity", errors="ignore")
    held_out = np.random.default_rng(0).random(len(table)) < 0.3
    return table[~held_out], table[held_out]


def small(**settings: Any) -> DebiasedRecommender:
    return cp.make("mf", epochs=3, dim=2, device="cpu", **settings)


@pytest.fixture(scope="module")
def fitted() -> tuple[DebiasedRecommender, pd.DataFrame]:
    train, test = frames()
    return small().fit(train, threshold=4, **NAMES), test


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_fitted_and_evaluated_as_its_log(kind: str) -> None:
    train, test = frames()
    convert, _ = KINDS[kind]
    model = small().fit(convert(train), threshold=4, **NAMES)
    log, holdout = as_logs({"log": train, "holdout": test}, threshold=4, **NAMES)
    expected = small().fit(log)
    assert cp.evaluate(model, convert(test)).auc == cp.evaluate(expected, holdout).auc
    assert cp.evaluate_ranking(model, convert(test)).recall == cp.evaluate_ranking(expected, holdout).recall


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_of_the_kind_that_came_in(kind: str) -> None:
    train, test = frames()
    convert, result = KINDS[kind]
    model = small().fit(convert(train), threshold=4, **NAMES)
    found = [
        model.recommend(k=2),
        model.recommend(convert(test)),
        model.similar_items([1]),
        cp.evaluate(model, convert(test)).to_frame(),
        cp.evaluate_ranking(model, convert(test)).to_frame(),
        cp.split(convert(train), threshold=4, **NAMES).train.to_frame(),
    ]
    assert {type(frame) for frame in found} == {result}
    assert len(model.predict(convert(test))) == len(test)


def test_predictions_of_a_pandas_frame_have_its_index(fitted: tuple[DebiasedRecommender, pd.DataFrame]) -> None:
    model, test = fitted
    scores = model.predict(test)
    assert isinstance(scores, pd.Series)
    assert scores.index.equals(test.index)
    assert np.array_equal(scores.to_numpy(), model.predict(test["who"], test["what"]))
    repeated = test.set_axis([0] * len(test))
    assert np.array_equal(model.predict(repeated), scores)


def test_a_frame_of_users_gives_one_list_for_each(fitted: tuple[DebiasedRecommender, pd.DataFrame]) -> None:
    model, test = fitted
    lists = model.recommend(test, k=1)
    assert lists["user_id"].tolist() == test["who"].drop_duplicates().tolist()
    among = model.recommend([int(test["who"].iloc[0])], candidates=test.head(5), filter_seen=False)
    assert set(among["item_id"]) == set(test["what"].head(5))


def test_a_loaded_model_remembers_columns_and_gives_polars(
    fitted: tuple[DebiasedRecommender, pd.DataFrame], tmp_path: Any
) -> None:
    model, test = fitted
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert isinstance(loaded.recommend(), pl.DataFrame)
    assert isinstance(loaded.recommend(test), pd.DataFrame)
    assert cp.evaluate(loaded, test).to_dict() == cp.evaluate(model, test).to_dict()


def test_frames_given_together_share_users_and_items() -> None:
    first = pd.DataFrame({"user_id": [1, 2], "item_id": ["a", "b"], "rating": [1, 0]})
    second = pd.DataFrame({"user_id": ["3", "1"], "item_id": ["c", "a"], "rating": [1, 1]})
    log, other = as_logs({"log": first, "probe": second})
    assert log.user_ids is other.user_ids
    assert log.shape == (3, 3)
    assert other.to_frame()["user_id"].tolist() == ["3", "1"]
    assert np.isin(log.users, other.users).tolist() == [True, False]


def test_a_frame_beside_a_log_is_read_as_that_log() -> None:
    train, test = frames()
    log, _ = as_logs({"log": train, "holdout": test}, threshold=4, **NAMES)
    probe = as_logs({"log": log, "probe": test})[1]
    assert (probe.threshold, probe.user_ids is log.user_ids) == (4, True)


def test_sample_and_named_columns_are_of_the_first_frame() -> None:
    first = pl.DataFrame({"user_id": [1], "item_id": [1], "rating": [1], "when": [5]})
    log, other = as_logs({"log": first, "probe": first.drop("when")}, sample="biased", timestamp_col="when")
    assert (log.sample, other.sample) == ("biased", None)
    assert (log.timestamps.tolist(), other.timestamps) == ([5], None)
    with pytest.raises(DataError, match="`log`: there is no column 'when'"):
        as_logs({"log": first.drop("when"), "probe": first}, timestamp_col="when")


def test_models_without_a_memory_take_options() -> None:
    train, test = frames()
    options: dict[str, Any] = {"threshold": 4, **NAMES}
    assert cp.evaluate(np.arange(len(test)), test, **options).n_rows == len(test)
    weights = cp.weigh_holdout(test, train, **options)
    assert len(weights.values) == len(test)
    found = cp.evaluate(lambda users, items: 0.01 * items, test, weights=weights, train=train, **options)
    assert found.method == "balanced"
    assert isinstance(found.to_frame(), pd.DataFrame)
    lists = small().fit(train, **options).recommend(k=30)
    assert cp.evaluate_lists(lists, test, **options).recall > 0
    assert cp.evaluate_lists(pa.table(lists.to_dict("list")), test, **options).recall > 0


def test_tune_and_fit_many_take_frames() -> None:
    train, _ = frames()
    pytest.importorskip("optuna")
    found = cp.tune(train, "mf", trials=1, folds=2, settings={"epochs": 2}, threshold=4, **NAMES)
    assert isinstance(found.to_frame(), pd.DataFrame)
    assert len(cp.fit_many(small(), train, seeds=[0, 1], jobs=1, threshold=4, **NAMES)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.rename(columns={"who": "whom"}), "there is no column 'who'.* mean 'whom'.*`user_col`"),
        (lambda frame: frame.assign(stars="many"), "`log`: column 'stars', row 0: expected a finite number"),
        (lambda frame: frame.assign(what=None), "`log`: column 'what', row 0: the id is missing"),
        (lambda frame: frame.head(0), "`log`: a log needs at least one row"),
        (lambda frame: frame.to_dict(), "`log` must be a FeedbackLog or a frame .*, got dict"),
        (lambda frame: frame["who"], "got Series"),
        (lambda frame: pd.concat([frame, frame], axis=1), "a frame cannot be read: Expected unique column names"),
        (lambda frame: frame.assign(who=frame["who"].map(lambda who: {who})), "'who', row 0: expected an id, .* got {"),
        (lambda frame: frame.assign(who=frame["who"].map(lambda who: np.array([who]))), "expected an id, .* got array"),
        (
            lambda frame: pl.DataFrame(frame.to_dict("list")).with_columns(who=pl.struct("who")),
            "expected an id, .* {'who",
        ),
        (
            lambda frame: frame.assign(who=pd.Series("\ud800", frame.index, object)),
            r"'\\ud800' cannot be written in UTF-8",
        ),
        (lambda frame: frame.assign(stars=frame["stars"] * 1j), "column 'stars' of complex128 cannot be read"),
        (lambda frame: of_arrow(frame, pa.decimal256(50, 0)), r"a column of decimal256\(50, 0\) cannot be read"),
    ],
)
def test_a_wrong_frame_is_an_error_in_one_line(change: Callable[[pd.DataFrame], Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        small().fit(change(frames()[0]), threshold=4, **NAMES)
    assert "\n" not in str(error.value)


def of_arrow(frame: pd.DataFrame, kind: pa.DataType) -> pa.Table:
    """The frame in pyarrow, its users in a type."""
    table = pa.table(frame.to_dict("list"))
    return table.set_column(table.column_names.index("who"), "who", table["who"].cast(kind))


@pytest.mark.parametrize("role", ["user", "item"])
def test_ids_without_a_column_are_an_error(role: str) -> None:
    with pytest.raises(ConfigError, match=f"`{role}_col` must be the name of a column, got None"):
        small().fit(frames()[0], threshold=4, **NAMES | {f"{role}_col": None})


@pytest.mark.parametrize("kind", [pl.Binary, pl.Duration("us")])
def test_ids_that_cannot_be_loaded_are_not_saved(kind: Any, tmp_path: Path) -> None:
    frame = pl.DataFrame(frames()[0].to_dict("list"))
    who = pl.col("who").cast(pl.String).cast(kind) if kind == pl.Binary else pl.col("who").cast(kind)
    model = small().fit(frame.with_columns(who), threshold=4, **NAMES)
    with pytest.raises(DataError, match=r"only numbers, text and dates can be saved as ids, got (Binary|Duration)\."):
        model.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_columns_may_have_numbers_as_names() -> None:
    frame = pd.DataFrame([[1, 2, 1.0], [2, 1, 0.0]])
    assert FeedbackLog.from_frame(frame, user_col=0, item_col=1, rating_col=2).ratings.tolist() == [1, 0]
    with pytest.raises(DataError, match="the columns are 0, 1, 2"):
        as_log("log", frame)


def test_options_of_frames_do_not_go_with_logs(fitted: tuple[DebiasedRecommender, pd.DataFrame]) -> None:
    log = as_log("log", frames()[0], threshold=4, **NAMES)
    with pytest.raises(ConfigError, match="`threshold`: such options are for frames"):
        small().fit(log, threshold=4)
    with pytest.raises(DataError, match="`items` must be given"):
        fitted[0].predict([1])


@pytest.mark.parametrize("function", [cp.read_log, cp.evaluate, cp.split, cp.tune, DebiasedRecommender.fit])
def test_options_are_in_the_signature_and_misspelt_ones_are_named(function: Callable[..., Any]) -> None:
    assert {"user_col", "threshold"} <= set(inspect.signature(function).parameters)
    with pytest.raises(ConfigError, match=r"no argument `treshold`\. Did you mean 'threshold'"):
        function(None, None, treshold=4)


def test_make_shows_common_settings_and_takes_others() -> None:
    assert {"epochs", "dim", "seed", "settings"} <= set(inspect.signature(cp.make).parameters)
    assert cp.make("mf", training__epochs=7).training.epochs == 7


def test_a_pandas_frame_of_a_log_needs_no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.DataFrame, "to_arrow", None)
    monkeypatch.setattr(pl.DataFrame, "to_pandas", None)
    log = FeedbackLog.from_frame(pd.DataFrame({"user_id": ["a"], "item_id": [(1, 2)], "rating": [1]}))
    assert nw.from_native(log.to_frame()).rows() == [("a", (1, 2), 1.0)]


def test_all_questions_take_the_names_of_the_training_frame(fitted: tuple[DebiasedRecommender, pd.DataFrame]) -> None:
    model = fitted[0]
    rated = pd.DataFrame({"who": ["a", "a", "b"], "what": [0, 1, 2], "stars": [5, 2, 5]})
    usual = rated.rename(columns={"who": "user_id", "what": "item_id", "stars": "rating"})
    assert model.recommend_for(rated, k=3).equals(model.recommend_for(usual, k=3))
    assert model.recommend_for(rated.drop(columns="who"), k=3)["user_id"].tolist() == ["new"] * 3
    best = model.recommend([1, 2], k=1)
    pairs = pd.DataFrame({"who": best["user_id"], "what": best["item_id"]})
    others = model.recommend([1, 2], k=1, exclude=pairs)
    assert others["item_id"].tolist() == model.recommend([1, 2], k=2)["item_id"][1::2].tolist()
    with pytest.raises(DataError, match=r"no column 'stars'; .*\. Did you mean 'star'\?"):
        model.recommend_for(rated.rename(columns={"stars": "star"}).drop(columns="who"))
    with pytest.raises(DataError, match="column 'stars', row 1: expected a finite number"):
        model.recommend_for(rated.assign(stars=[5, None, 5]))
    with pytest.raises(DataError, match="column 'rating', row 1: expected a finite number"):
        model.recommend_for(usual.assign(rating=[5, None, 5]))


def test_side_tables_and_new_items_are_named_as_the_log() -> None:
    train, _ = frames()
    movies = pd.DataFrame({"what": range(30), "length": np.arange(30) % 7, "title": [f"Film {n}" for n in range(30)]})
    log = FeedbackLog.from_frame(train, threshold=4, **NAMES).with_side_tables(items=movies)
    assert log.item_feature_names == ["length"]
    with pytest.raises(DataError, match="no column 'item_id'"):
        log.with_side_tables(items=movies, item_col="item_id")
    model = small(side_features=True).fit(log, item_names=movies)
    new = pd.DataFrame({"what": [90, 91, 3], "length": [1, 2, 3], "title": ["New film", None, "Renamed"]})
    lists = model.recommend([1], k=50, new_items=new, filter_seen=False)
    names = dict(zip(lists["item_id"], lists["item_name"], strict=True))
    assert (names[90], names[91], names[3], names[4]) == ("New film", "91", "Film 3", "Film 4")
    folded = model.recommend_for({4: 5}, k=5, new_items=new, candidates=[90])
    assert folded["item_name"].tolist() == ["New film"]
    assert model.recommend([1], k=1, new_items=new.drop(columns="title"), candidates=[90])["item_name"][0] == "90"
    assert model.item_names_.of([90])[0] == "90"


def test_warning_of_a_side_table_points_to_the_caller() -> None:
    train, _ = frames()
    movies = pd.DataFrame({"what": range(30), "length": np.arange(30) % 7, "title": [f"Film {n}" for n in range(30)]})
    with pytest.warns(cp.ReadingWarning, match="Left out: title") as caught:
        FeedbackLog.from_frame(train, threshold=4, **NAMES).with_side_tables(items=movies)
    assert caught[0].filename == __file__


def test_columns_called_by_numbers_are_columns() -> None:
    """As pandas calls them where a file or an array has no names."""
    train, _ = frames()
    usual = small().fit(train, threshold=4, **NAMES)
    bare = train[list(NAMES.values())].set_axis(range(3), axis=1)
    for names in ((0, 1, 2), ("0", "1", "2")):
        model = small().fit(bare, threshold=4, **dict(zip(NAMES, names, strict=True)))
        assert np.array_equal(model.predict(bare), usual.predict(train))
    movies = pd.DataFrame({0: range(30), 1: np.arange(30) % 7, 2: list("abc") * 10})
    log = FeedbackLog.from_frame(train, threshold=4, **NAMES)
    for settings in ({"item_col": 0, "categorical": [1]}, {"item_col": "0", "categorical": ["1"]}):
        found = log.with_side_tables(items=movies, **settings)
        assert {"1=0", "1=6", "2=a", "2=c"} <= set(found.item_feature_names)
        assert np.array_equal(found.item_features[:, found.item_feature_names.index("2=b")], np.arange(30) % 3 == 1)
