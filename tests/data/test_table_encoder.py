"""Columns of all kinds as features, against what pandas makes of them, and what is stored of it."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from counterpoise.data.side_tables import TableEncoder
from counterpoise.errors import ConfigError, DataError, NotFittedError, RowError

ROWS = 400
RNG = np.random.default_rng(3)
JOBS = RNG.choice(["cook", "smith", "baker", "rare", "rarer"], ROWS, p=[0.5, 0.3, 0.18, 0.01, 0.01])


def people() -> pl.DataFrame:
    """A table with gaps in age and job."""
    ages = [None if row % 10 == 0 else float(20 + row % 50) for row in range(ROWS)]
    jobs = [None if row % 25 == 1 else str(job) for row, job in enumerate(JOBS)]
    genres = [("Drama", "Comedy|Drama", "Action")[row % 3] for row in range(ROWS)]
    return pl.DataFrame(
        {
            "user_id": np.arange(ROWS) + 7,
            "age": ages,
            "job": jobs,
            "genres": genres,
            "member": [row % 2 == 0 for row in range(ROWS)],
            "since": [dt.date(2000, 1, 1) + dt.timedelta(days=row) for row in range(ROWS)],
            "name": [f"name {row}" for row in range(ROWS)],
            "row": np.arange(ROWS),
            "planet": ["earth"] * ROWS,
            "empty": pl.Series([None] * ROWS, dtype=pl.String),
            "zip_code": RNG.integers(10000, 99999, ROWS),
        }
    )


def test_features_are_what_pandas_makes_of_each_column() -> None:
    table = people()
    encoder = TableEncoder(min_rows=20).fit(table, "user_id")
    found = pd.DataFrame(encoder.encode(table), columns=encoder.feature_names_)
    frame = table.to_pandas()
    kept = frame["job"].where(frame["job"].isna() | frame["job"].isin(["cook", "smith", "baker"]), "other")
    dummies = pd.get_dummies(kept, dummy_na=True).astype(float)
    dummies.columns = [
        "job (missing)" if pd.isna(c) else "job (other)" if c == "other" else f"job={c}" for c in dummies
    ]
    expected: dict[str, Any] = {name: dummies[name] for name in dummies}
    expected |= {"age": frame["age"].fillna(frame["age"].mean()), "age (missing)": frame["age"].isna()}
    lists = frame["genres"].str.get_dummies("|")
    expected |= {f"genres={name}": lists[name] for name in lists}
    expected |= {"member": frame["member"], "since (year)": 2000 + np.arange(ROWS) / 365.2425}
    assert set(expected) == set(found.columns)
    for name, values in expected.items():
        assert np.allclose(found[name], np.asarray(values, dtype=float), atol=2e-3), name


def test_columns_that_say_nothing_are_left_out_with_reasons() -> None:
    encoder = TableEncoder().fit(people(), "user_id")
    assert encoder.left_out_ == {
        "name": "most values occur once",
        "row": "an id",
        "planet": "one value only",
        "empty": "no values",
        "zip_code": "an id",
    }
    assert "name (most values occur once); row, zip_code (an id)" in encoder.summary()
    with pytest.raises(DataError, match="column 'empty' cannot be encoded: no values"):
        TableEncoder(columns=["age", "empty"]).fit(people())
    assert TableEncoder(columns=["row"]).fit(people()).feature_names_ == ["row"]


def test_odd_values_among_numbers_and_dates_are_reported() -> None:
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "age": [*map(str, rng.integers(15, 80, ROWS - 1)), "unknown"],
            "price": ["?", *(f"{price:.3f}" for price in rng.random(ROWS - 1))],
            "born": [*(f"{year}-01-02" for year in rng.integers(1930, 2000, ROWS - 1)), "1999-99-99"],
            "size": [*rng.choice(["1", "2", "3"], ROWS - 1), "4+"],
            "postal": [*map(str, rng.integers(10000, 99999, ROWS - 1)), "V3N4P"],
        }
    )
    encoder = TableEncoder(min_rows=1).fit(table)
    way_out = "correct it, leave it empty, or name the column as categorical"
    assert encoder.left_out_ == {
        "age": f"numbers but for 'unknown': {way_out}",
        "price": f"numbers but for '?': {way_out}",
        "born": f"dates but for '1999-99-99': {way_out}",
        "postal": "most values occur once",
    }
    assert set(encoder.feature_names_) == {"size=1", "size=2", "size=3", "size=4+"}
    assert TableEncoder(categorical=["age"]).fit(table).feature_names_[0].startswith("age=")
    gaps = table.with_columns(age=pl.col("age").replace("unknown", ""))
    assert TableEncoder().fit(gaps).feature_names_[:2] == ["age", "age (missing)"]


def test_numbers_named_categorical_have_levels() -> None:
    table = {"size": [1, 2, 3] * 10}
    assert TableEncoder().fit(table).feature_names_ == ["size"]
    encoder = TableEncoder(categorical=["size"]).fit(table)
    assert encoder.feature_names_ == ["size=1", "size=2", "size=3"]
    assert encoder.encode({"size": ["3", "1.0", 2.0]}).tolist()[0] == [0, 0, 1]


def test_stored_encoder_encodes_alike() -> None:
    table = people()
    encoder = TableEncoder().fit(table, "user_id")
    stored = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False)))
    assert (stored.feature_names_, stored.left_out_) == (encoder.feature_names_, encoder.left_out_)
    ids, features = stored.transform(table)
    assert np.array_equal(features, encoder.encode(table))
    assert ids.column.to_list() == table["user_id"].to_list()
    scaled = stored.standardise(features)
    assert np.allclose(scaled.mean(0), 0, atol=1e-9)
    assert np.allclose(scaled.std(0), 1)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("columns", 0, "fill"), ["x", 0.0]),
        (("columns", 0, "fill"), []),
        (("columns", 0, "kind"), "code"),
        (("columns", 1, "levels"), [1, 2]),
        (("means",), [0.0]),
        (("left_out",), {"name": 3}),
        (("deviations", 0), float("nan")),
    ],
)
def test_damaged_encoder_is_refused(place: tuple[Any, ...], value: Any) -> None:
    facts = json.loads(json.dumps(TableEncoder().fit(people()).to_dict()))
    inner = facts
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises((DataError, TypeError, ValueError)):
        TableEncoder.from_dict(facts)


def test_unknown_level_is_other_or_the_average() -> None:
    pooled = TableEncoder().fit({"job": ["a"] * 5 + ["b"] * 4 + ["c"]})
    assert pooled.feature_names_ == ["job=a", "job=b", "job (other)"]
    assert pooled.encode({"job": ["new"]}).tolist() == [[0, 0, 1]]
    whole = TableEncoder().fit({"job": ["a"] * 5 + ["b"] * 3 + ["c"] * 2})
    assert np.allclose(whole.encode({"job": ["new", None, "b"]}), [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0, 1, 0]])
    two = TableEncoder().fit({"sex": ["m", "m", "f", "m", "f"]})
    assert two.feature_names_ == ["sex=f"]
    assert two.encode({"sex": ["f", "m", "?"]}).ravel().tolist() == [1, 0, 0.4]


@pytest.mark.parametrize(
    ("values", "years"),
    [
        (["01-Jan-1995", "02-Jul-1996", ""], [1995, 1996.5]),
        (["1995-01-01", "1996-07-02", None], [1995, 1996.5]),
        (["1995-01-01 00:00:00", "1996-07-02 12:00:00", "NA"], [1995, 1996.5]),
        ([dt.datetime(1995, 1, 1), dt.datetime(1996, 7, 2), None], [1995, 1996.5]),
        (["31/12/1994", "02/07/1996", ""], [1995, 1996.5]),
    ],
)
def test_dates_are_years(values: list[Any], years: list[float]) -> None:
    table = {"day": values * 20}
    encoder = TableEncoder().fit(table)
    assert encoder.feature_names_ == ["day (year)", "day (missing)"]
    assert np.allclose(encoder.encode(table)[:2, 0], years, atol=0.01)


@pytest.mark.parametrize(
    "values",
    [
        ["a|b", "b", "a", "b|a", None] * 4,
        ["['a', 'b']", '["b"]', "['a']", "[b, a]", ""] * 4,
        [["a", "b"], ["b"], ["a"], ["b", "a"], None] * 4,
        ["a; b", "b", "a", "b;a", "NA"] * 4,
    ],
    ids=["pipes", "written lists", "lists", "semicolons"],
)
def test_lists_have_a_feature_for_each_level(values: list[Any]) -> None:
    encoder = TableEncoder().fit({"tags": values})
    assert encoder.feature_names_ == ["tags=a", "tags=b", "tags (missing)"]
    expected = [[1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert encoder.encode({"tags": values[:5]}).tolist() == expected


def test_titles_with_commas_are_no_lists() -> None:
    titles = [f"Film {row}, The" for row in range(30)]
    assert TableEncoder().fit({"title": titles, "x": range(0, 60, 2)}).left_out_ == {"title": "most values occur once"}


def test_codes_with_leading_zeros_are_levels() -> None:
    assert TableEncoder().fit({"region": ["01", "02"] * 5}).feature_names_ == ["region=02"]


def test_the_same_gaps_are_marked_once() -> None:
    table = {"a": [1, None, 3, 4], "b": [5, None, 7, 9], "c": [None, 1, 2, 3]}
    assert TableEncoder().fit(table).feature_names_ == ["a", "a (missing)", "b", "c", "c (missing)"]
    assert TableEncoder(missing="mean").fit(table).feature_names_ == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame, lambda table: pl.DataFrame(table).to_arrow()])
def test_frames_of_all_libraries_are_encoded_alike(kind: Any) -> None:
    table = people()
    expected = TableEncoder().fit(table, "user_id")
    frame = kind(table) if kind is pl.DataFrame else kind({name: table[name].to_list() for name in table.columns})
    found = TableEncoder().fit(frame, "user_id")
    assert found.feature_names_ == expected.feature_names_
    assert np.allclose(found.encode(frame), expected.encode(table))


def test_truth_as_text_is_a_number() -> None:
    encoder = TableEncoder().fit({"member": ["true", "False", None, "TRUE"]})
    assert encoder.encode({"member": ["FALSE", "True"]})[:, 0].tolist() == [0, 1]


def test_arrays_of_dates_are_dates() -> None:
    days = np.array(["2001-01-01", "2003-01-01"], "datetime64[D]")
    encoder = TableEncoder().fit({"since": days})
    assert np.array_equal(encoder.encode({"since": days}), encoder.encode({"since": ["2001-01-01", "2003-01-01"]}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([[0.5], [1.5]], "lists of Float64"),
        ([dt.time(1), dt.time(2)], "values of the type Time"),
        ([b"1", b"2"], "values of the type Binary"),
    ],
)
def test_columns_that_cannot_be_numbers_are_left_out(values: list[Any], reason: str) -> None:
    encoder = TableEncoder().fit(pl.DataFrame({"odd": values}))
    assert encoder.left_out_ == {"odd": reason}
    assert encoder.encode(pl.DataFrame({"odd": values})).shape == (2, 0)


def test_errors_name_the_column_the_row_and_the_way_out() -> None:
    encoder = TableEncoder().fit({"age": [1, 2, 3]})
    with pytest.raises(RowError, match="column 'age', row 1: expected a finite number, got 'old'"):
        encoder.encode({"age": ["1", "old"]})
    with pytest.raises(DataError, match=r"there is no column 'age'; the columns are 'ages'. Did you mean 'ages'"):
        encoder.encode({"ages": [1]})
    with pytest.raises(RowError, match="column 'age', row 1: expected a date, got 'soon'"):
        TableEncoder().fit({"age": ["2001-01-01", "2002-01-01"]}).encode({"age": ["2001-01-01", "soon"]})
    with pytest.raises(DataError, match="column 'since': expected dates, got Int64"):
        TableEncoder().fit({"since": ["2001-01-01", "2002-01-01"]}).encode({"since": [3]})
    with pytest.raises(DataError, match=r"the table has two columns '1'\. Rename one"):
        TableEncoder().fit(pd.DataFrame([[1, 2], [3, 4]], columns=[1, "1"]))
    with pytest.raises(RowError, match=r'row 1: the value is missing. Fill it in, or choose missing="indicator"'):
        TableEncoder(missing="error").fit({"age": [1, None, 2]})
    with pytest.raises(ConfigError, match="`missing` must be one of"):
        TableEncoder(missing="drop").fit({"age": [1]})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"`categorical` must be a list of names, got 'age'. Write \['age'\]"):
        TableEncoder(categorical="age").fit({"age": [1]})
    with pytest.raises(NotFittedError):
        TableEncoder().encode({"age": [1]})
    with pytest.raises(NotFittedError, match="table with ids"):
        encoder.transform({"age": [1]})
    with pytest.raises(DataError, match="expected a pandas, polars or pyarrow frame"):
        TableEncoder().fit(3)
    with pytest.raises(DataError, match="column 'id': 1 is in more than one row"):
        TableEncoder().fit({"id": [1, 2], "age": [1, 2]}, "id").transform({"id": [1, 1], "age": [1, 2]})
