"""Names of items: where they are found, and what is shown for items without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import DataError, DebiasedRecommender
from counterpoise.data.ids import Vocabulary
from counterpoise.data.item_names import ItemNames
from counterpoise.data.reading import read_item_names

EVIL = "<script>alert('x')</script> \"=1+1\""
FRAME = pl.DataFrame({"item_id": [0, 1, 2], "movie_title": [EVIL, None, " Heat "], "year": [1, 2, 3]})


def model_with_names(names: Any) -> DebiasedRecommender:
    log = cp.simulate(n_users=20, n_items=15, density=0.3).dataset.train
    return cp.make("mf", epochs=2).fit(log, item_names=names)


def test_items_without_a_name_are_called_by_their_id() -> None:
    names = ItemNames.from_frame(FRAME)
    assert names.of([2, 1, 7, 0]).to_list() == ["Heat", "1", "7", EVIL]
    assert names.of(["2"]).to_list() == ["Heat"]
    assert ItemNames.from_frame(FRAME.head(0)).of([5]).to_list() == ["5"]
    assert names.of([]).to_list() == []


@pytest.mark.parametrize(
    ("columns", "guess"),
    [
        (["title", "name_of_director"], "title"),
        (["genre", "Name"], "Name"),
        (["year", "movie_title"], "movie_title"),
        (["label"], "label"),
        (["url", "code", "label"], "label"),
    ],
)
def test_the_column_of_names_is_guessed(columns: list[str], guess: str) -> None:
    values = {"url": ["http://a", "http://b"], "code": ["1", "2"], "genre": ["x", "x"]}
    frame = pl.DataFrame({"item_id": [1, 2], **{column: values.get(column, ["x", "y"]) for column in columns}})
    assert ItemNames.from_frame(frame).source == guess


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pl.DataFrame({"item_id": [1, 2], "a": ["x", "x"], "b": [1, 2]}), "`item_names`: which column has the names"),
        (pl.DataFrame({"id": [1], "title": ["x"]}), "`item_names`: there is no column 'item_id'"),
        (pl.DataFrame({"item_id": [1, 1], "title": ["x", "y"]}), "one row for each item"),
        (pl.DataFrame({"item_id": [999], "title": ["x"]}), "no item of the log has a name"),
        (
            pd.DataFrame({"item_id": [1], "title": [("x", "y")]}),
            "column 'title': expected one name in each row, got tuple",
        ),
        (["x"], "`item_names` must be a pandas, polars or pyarrow frame"),
    ],
)
def test_wrong_names_are_an_error(frame: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        model_with_names(frame)


@pytest.mark.cpu
def test_lists_show_names_only_where_there_are_some(tmp_path: Path) -> None:
    model = model_with_names(pd.DataFrame(FRAME.to_dict(as_series=False)))
    lists = model.recommend([0], k=15, filter_seen=False)
    assert lists.columns[:5] == ["user_id", "item_id", "item_name", "score", "rank"]
    shown = dict(zip(lists["item_id"], lists["item_name"], strict=True))
    assert (shown[0], shown[1], shown[2], shown[5]) == (EVIL, "1", "Heat", "5")
    similar = model.similar_items([2], k=1)
    assert similar.columns == ["item_id", "item_name", "similar_id", "similar_name", "score", "rank"]
    model.save(tmp_path)
    assert cp.load_model(tmp_path).recommend([0], k=15, filter_seen=False).equals(lists)
    assert "item_name" not in model_with_names(None).recommend().columns


def test_a_run_saved_again_without_names_has_none(tmp_path: Path) -> None:
    model_with_names(FRAME).save(tmp_path)
    model_with_names(None).save(tmp_path)
    assert cp.load_model(tmp_path).item_names_ is None
    assert not list(tmp_path.glob("item_names*"))


def test_names_in_a_file_are_read_by_the_ids_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "movies.csv").write_text('movieId,title\n1,"A, B"\n2,\n007,C\n')
    names = read_item_names(tmp_path / "movies.csv", "movieId")
    assert names.of(["1", "2", "007"]).to_list() == ["A, B", "2", "C"]
    (tmp_path / "u.item").write_text("1|Toy Story (1995)|01-Jan-1995|0\n2|Se7en (1995)|01-Jan-1995|1\n")
    assert read_item_names(tmp_path / "u.item").of([2, 3]).to_list() == ["Se7en (1995)", "3"]
    with pytest.raises(DataError, match=r"movies\.csv: there is no column 'titel'.*mean 'title'"):
        read_item_names(tmp_path / "movies.csv", "movieId", "titel")


def test_count_refuses_names_of_other_items() -> None:
    assert ItemNames.from_frame(FRAME).count(Vocabulary([0, 1, 5])) == 1
    with pytest.raises(DataError, match="names are of 2 items with ids such as 0, the log has 1 items"):
        ItemNames.from_frame(FRAME).count(Vocabulary(["x"]))


def test_lists_of_new_users_have_names_and_the_kind_of_their_ratings() -> None:
    ratings = pd.DataFrame({"user_id": ["a", "b"], "item_id": [0, 2], "rating": [1.0, 0.0]})
    lists = model_with_names(FRAME).recommend_for(ratings, k=15, filter_seen=False)
    assert isinstance(lists, pd.DataFrame)
    assert set(lists.loc[lists["item_id"] == 2, "item_name"]) == {"Heat"}
