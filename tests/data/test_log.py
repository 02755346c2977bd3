"""The data model: ids and their codes, logs, and the three logs of a dataset."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from counterpoise.data.ids import TABLE_TYPES, Vocabulary, as_column, distinct_values
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.splits import apply_protocol
from counterpoise.errors import ConfigError, DataError, RowError

COLUMNS = {"user_id": ["b", "a", "b"], "item_id": [7, 7, 5], "rating": [4, 2, 5]}


def log(users: Any = ("b", "a", "b"), items: Any = (7, 7, 5), ratings: Any = (4, 2, 5), **options: Any) -> FeedbackLog:
    return FeedbackLog.from_arrays(list(users), list(items), list(ratings), **options)


# ---- vocabularies

plain_ids = st.one_of(
    st.lists(st.integers(-(2**70), 2**70), min_size=1),
    st.lists(st.integers(-9, 9), min_size=1),
    st.lists(st.text(max_size=5), min_size=1),
    st.lists(st.dates(), min_size=1),
    st.lists(st.booleans(), min_size=1),
    st.lists(st.tuples(st.integers(0, 3), st.text(max_size=2)), min_size=1),
    st.lists(st.frozensets(st.integers(0, 3)), min_size=1),
    st.lists(st.one_of(st.integers(2, 5), st.text("2345", max_size=2)), min_size=1),
)


@pytest.mark.parametrize("dtype", [*TABLE_TYPES, pl.UInt64, pl.Float64, pl.String])
@pytest.mark.parametrize("values", [[], [5], [0, 127, 3, 127], [1, None, 1], [100, 101, 100, 102]])
def test_distinct_values_keep_their_type(values: list[Any], dtype: Any) -> None:
    column = pl.Series("id", values).cast(dtype)
    assert distinct_values(column).sort().equals(column.unique().sort())


def test_distinct_values_of_a_whole_type_do_not_overflow() -> None:
    for dtype, low in ((pl.Int8, -(2**7)), (pl.Int64, -(2**63))):
        column = pl.Series([low, -1 - low] * 2, dtype=dtype)
        assert distinct_values(column).sort().to_list() == [low, -1 - low]


def test_integers_beyond_the_table_of_codes_are_unknown() -> None:
    vocabulary = Vocabulary([-3, 4, 0])
    far = [2**63 - 1, -(2**63), 5, -4, 1, None, 0, -3]
    assert vocabulary.encode(pl.Series(far, dtype=pl.Int64)).tolist() == [-1, -1, -1, -1, -1, -1, 2, 0]
    lowest = Vocabulary([-(2**63), 1 - 2**63])
    assert lowest.encode(pl.Series([None, 2**63 - 1, 1 - 2**63], dtype=pl.Int64)).tolist() == [-1, -1, 1]


@settings(deadline=None)
@given(values=plain_ids)
def test_decoding_the_codes_gives_the_ids_back(values: list[Any]) -> None:
    vocabulary = Vocabulary.of(values)
    codes = vocabulary.encode(values)
    assert vocabulary.decode(codes).to_list() == values
    assert len(vocabulary) == len(set(values)) == len(set(codes.tolist()))
    assert all(value in vocabulary for value in values)


@settings(deadline=None)
@given(values=st.lists(st.one_of(st.integers(0, 30)), min_size=1), data=st.data())
def test_codes_do_not_depend_on_the_order_of_rows(values: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    assert Vocabulary.of(values) == Vocabulary.of(shuffled)
    assert Vocabulary.of(values[:3], values) == Vocabulary.of(values)


def test_number_1_and_text_1_are_two_ids() -> None:
    assert len(Vocabulary.of([1, "1"])) == 2
    assert Vocabulary.of([1, "1"]).encode(["1", 1]).tolist() in ([1, 0], [0, 1])


def test_ids_of_another_type_match_by_their_text() -> None:
    assert Vocabulary([1, 2]).encode(["1", "2", "abc", "007", "+1", "1.0"]).tolist() == [0, 1, -1, -1, -1, -1]
    assert Vocabulary(["1", "02"]).encode([1, 2]).tolist() == [0, -1]
    assert Vocabulary([1, 2]).encode([2.0, 1.0]).tolist() == [1, 0]
    assert Vocabulary([1, 2]).encode([2.5]).tolist() == [-1]
    assert Vocabulary([dt.date(2020, 1, 1)]).encode(["2020-01-01", "2020"]).tolist() == [0, -1]
    assert Vocabulary([True, False]).encode(["false", "no"]).tolist() == [1, -1]


def test_unknown_id_is_the_one_named() -> None:
    with pytest.raises(DataError, match="unknown user 'new': "):
        Vocabulary([1, 2]).require(["1", "2", "new"], "user")


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_integers_of_all_widths_are_the_same_ids(kind: Any) -> None:
    vocabulary = Vocabulary.of(np.array([3, 1, 2], dtype=kind))
    assert vocabulary == Vocabulary([1, 2, 3])
    assert vocabulary.encode([2, 1]).tolist() == [1, 0]
    assert vocabulary.encode(np.array([2, 9], dtype=np.uint64)).tolist() == [1, -1]


def test_integers_past_63_bits_are_found_again() -> None:
    large = [2**63 + 1, 5]
    vocabulary = Vocabulary.of(np.array(large, dtype=np.uint64))
    assert vocabulary.encode(large).tolist() == [1, 0]
    assert vocabulary.encode([5, -1]).tolist() == [0, -1]


@settings(deadline=None)
@given(values=st.lists(st.integers(-50, 50), min_size=1), others=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()))
def test_lookup_of_dense_integers_equals_a_dictionary(values: list[int], others: list[int | None]) -> None:
    vocabulary = Vocabulary.of(values)
    index = {value: code for code, value in enumerate(sorted(set(values)))}
    asked = [*others, *values, *range(-60, 60)]
    assert vocabulary.encode(pl.Series(asked, dtype=pl.Int64)).tolist() == [index.get(value, -1) for value in asked]


def test_unknown_id_is_named_with_examples_of_known_ids() -> None:
    with pytest.raises(DataError, match=r"unknown user 'z' \(and 1 more\): this log has 2 users with ids such as 'a'"):
        Vocabulary(["a", "b"]).require(["a", "z", "y"], "user")


def test_vocabulary_with_a_repeated_id_is_refused() -> None:
    with pytest.raises(DataError, match="must be distinct, got 1 repetitions"):
        Vocabulary(["a", "b", "a"])


def test_extended_vocabulary_keeps_known_codes() -> None:
    grown = Vocabulary(["b", "a"]).extended(["c", "a", "aa", "c"])
    assert list(grown.column) == ["b", "a", "aa", "c"]
    mixed = Vocabulary([1, 2]).extended(["2", "x"])
    assert mixed.encode([1, 2, "x"]).tolist() == [0, 1, 2]
    pairs = Vocabulary([(1, 2)]).extended([(1, 2), (0, 1)])
    assert pairs == Vocabulary([(1, 2), (0, 1)])
    assert pairs != Vocabulary([(0, 1), (1, 2)])


@pytest.mark.parametrize("ids", [3, "ann", None, b"x"])
def test_single_id_is_not_a_column(ids: object) -> None:
    with pytest.raises(DataError, match="Wrap a single id in a list"):
        as_column(ids)


def test_numpy_scalars_are_plain_ids() -> None:
    assert Vocabulary.of([1, np.int64(2)]).to_parquet()
    assert Vocabulary.of(["a", np.str_("b")]).encode(["b"]).tolist() == [1]


def test_vocabularies_can_be_given_as_sequences() -> None:
    log = FeedbackLog.from_arrays([1, 3], ["a", "b"], [1, 0], user_ids=[1, 2, 3], item_ids=["b", "a"])
    assert log.shape == (3, 2)
    assert log.items.tolist() == [1, 0]
    with pytest.raises(DataError, match="unknown user 9"):
        FeedbackLog.from_arrays([9], ["a"], [1], user_ids=[1, 2, 3])
    with pytest.raises(DataError, match="must be distinct"):
        FeedbackLog.from_arrays([1], ["a"], [1], user_ids=[1, 1])


@pytest.mark.parametrize("frame", [None, 3, {"user_id": [1]}, [1, 2]])
def test_other_objects_than_frames_are_refused(frame: object) -> None:
    with pytest.raises(DataError, match="`frame` must be a pandas, polars or pyarrow frame"):
        FeedbackLog.from_frame(frame)


def test_matrix_that_does_not_fit_is_refused() -> None:
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(DataError, match="at least one row"):
        FeedbackLog.from_csr(matrix, np.zeros((2, 2)))
    with pytest.raises(DataError, match="`user_ids` must hold 2 ids"):
        FeedbackLog.from_csr(matrix, matrix > 0, user_ids=["a"])
    with pytest.raises(DataError, match="must be"):
        FeedbackLog.from_csr(matrix[0], matrix[0] > 0)
    assert FeedbackLog.from_csr(matrix, matrix > 0, user_ids=["a", "b"]).to_frame()["user_id"].to_list() == ["a", "b"]


def test_timestamps_of_any_resolution_are_read() -> None:
    times = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[s]")
    log = FeedbackLog.from_arrays([1, 2], [1, 2], [1, 0], timestamps=times)
    assert np.diff(log.timestamps).tolist() == [86_400 * 10**6]


# ---- building a log


def test_rows_keep_their_order_and_codes_are_sorted_ids() -> None:
    built = log(threshold=4, timestamps=[3, 1, 2])
    assert built.users.tolist() == [1, 0, 1]
    assert built.items.tolist() == [1, 1, 0]
    assert built.pairs.tolist() == [3, 1, 2]
    assert built.labels.tolist() == [1, 0, 1]
    assert built.ratings.tolist() == [4, 2, 5]
    assert (built.shape, built.n_pairs, built.density, len(built)) == ((2, 2), 4, 0.75, 3)
    assert built.to_frame().to_dict(as_series=False) == COLUMNS | {"timestamp": [3, 1, 2]}


def test_without_a_threshold_the_ratings_are_the_labels() -> None:
    assert log().labels.tolist() == [4, 2, 5]


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS).convert_dtypes(),
        pd.DataFrame(COLUMNS).astype("category"),
        pd.DataFrame(COLUMNS).astype(object),
        pd.DataFrame(COLUMNS, index=[5, 5, 9]),
        pa.table(COLUMNS),
    ],
    ids=["polars", "lazy", "pandas", "pandas nullable", "categories", "objects", "odd index", "pyarrow"],
)
def test_frames_of_all_libraries_give_the_same_log(frame: Any) -> None:
    table = nw.from_native(FeedbackLog.from_frame(frame).to_frame())
    assert {name: table[name].to_list() for name in table.columns} == COLUMNS


@pytest.mark.parametrize("column", [pd.Series, pa.array, pl.Series, np.array, tuple, iter])
def test_columns_of_all_libraries_give_the_same_log(column: Any) -> None:
    users, items, ratings = COLUMNS.values()
    built = FeedbackLog.from_arrays(column(users), column(items), list(ratings), timestamps=[1, 2, 3])
    assert built.user_ids == Vocabulary(["a", "b"])
    assert built.item_ids == Vocabulary([5, 7])


def test_missing_frame_column_lists_the_others() -> None:
    frame = pl.DataFrame({"who": ["a"], "what": ["x"], "stars": [3.0], "when": [dt.datetime(1970, 1, 1, 0, 0, 1)]})
    names = {"user_col": "who", "item_col": "what", "rating_col": "stars", "timestamp_col": "when"}
    assert FeedbackLog.from_frame(frame, **names).timestamps.tolist() == [1_000_000]
    with pytest.raises(DataError, match="no column 'user_id'; the columns are 'who', 'what', 'stars', 'when'"):
        FeedbackLog.from_frame(frame)


@pytest.mark.parametrize("matrix", [np.asarray, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_matrix_with_a_mask_keeps_ratings_of_zero(matrix: Any) -> None:
    ratings, mask = np.array([[0, 3, 0], [1, 0, 0]]), np.array([[1, 1, 0], [1, 0, 0]], dtype=bool)
    built = FeedbackLog.from_csr(matrix(ratings), matrix(mask))
    assert built.shape == (2, 3)
    assert dict(zip(built.pairs.tolist(), built.ratings.tolist(), strict=True)) == {0: 0, 1: 3, 3: 1}


def test_matrix_needs_a_mask_of_its_shape() -> None:
    with pytest.raises(DataError, match="0 and missing are the same"):
        FeedbackLog.from_csr(np.eye(2), None)
    with pytest.raises(DataError, match=r"shape of the ratings \(2, 2\), got \(3, 3\)"):
        FeedbackLog.from_csr(np.eye(2), np.eye(3))


@pytest.mark.parametrize("bad", ["x", None, float("nan"), float("inf"), "", [1], object()])
def test_rating_that_is_not_finite_is_refused(bad: Any) -> None:
    with pytest.raises(DataError, match="column 'rating'"):
        log(ratings=[4, bad, bad])


@pytest.mark.parametrize("bad", [None, float("nan")])
@pytest.mark.parametrize("make", [list, pd.Series, lambda values: pd.Series(values, dtype=object)])
def test_missing_id_is_refused_by_its_row(bad: Any, make: Any) -> None:
    with pytest.raises(RowError) as caught:
        FeedbackLog.from_arrays(make(["b", bad, "c"]), [1, 2, 3], [1, 2, 3])
    assert (caught.value.column, caught.value.row) == ("user_id", 1)
    assert str(caught.value.located("f.csv", 2)).startswith("f.csv: column 'user_id', row 3: the id is missing")


@pytest.mark.parametrize(
    ("ratings", "words"),
    [
        ([dt.date(2020, 1, 1)] * 3, "expected numbers, got Date"),
        ([[1], [2], [3]], r"expected one number in each row, got List"),
        ([b"1", b"2", b"3"], "expected one number in each row, got Binary"),
    ],
)
def test_ratings_of_another_type_are_refused(ratings: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=f"column 'rating': {words}"):
        log(ratings=ratings)


def test_single_rating_is_not_a_column() -> None:
    with pytest.raises(DataError, match=r"column 'rating': expected a column of numbers, got 4. Wrap a single one"):
        FeedbackLog.from_arrays(["a"], [7], 4)


def test_ratings_that_are_categories_are_their_numbers() -> None:
    assert log(ratings=pl.Series(["1", "5", "3"], dtype=pl.Categorical)).ratings.tolist() == [1, 5, 3]


def test_frame_without_ratings_has_clicks() -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": [3, 3]})
    clicks = FeedbackLog.from_frame(frame)
    assert (clicks.feedback, clicks.labels.tolist()) == ("clicks", [1, 1])


def test_bad_timestamp_is_refused_by_its_row() -> None:
    with pytest.raises(RowError, match="column 'timestamp', row 2: expected a whole number or a date, got 'x'"):
        log(timestamps=["1", "2", "x"])


def test_log_needs_rows_and_columns_of_one_length() -> None:
    with pytest.raises(DataError, match="at least one row"):
        log([], [], [])
    with pytest.raises(DataError, match=r"equal lengths, got \[2, 3\]"):
        log(users=["a", "b"])


def test_settings_that_break_their_rule_are_refused() -> None:
    with pytest.raises(ConfigError, match="`threshold` must be a number, got nan"):
        log(threshold=float("nan"))
    with pytest.raises(
        ConfigError, match="`duplicates` must be one of 'auto', 'error', 'last', 'mean', 'sum', got 'first'"
    ):
        log(duplicates="first")


def test_features_must_have_a_finite_row_for_each_id() -> None:
    assert log(user_features=np.ones((2, 5))).user_features.dtype == np.float32
    with pytest.raises(
        DataError, match=r"`item_features` must be a table with 2 rows, one for each id, got shape \(3,"
    ):
        log(item_features=np.ones((3, 5)))
    with pytest.raises(DataError, match="`user_features` must be finite, got nan in row 1, column 0"):
        log(user_features=[[1.0], [np.nan]])


# ---- duplicates

repeated_rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=40
)


def test_repeated_pairs_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(RowError, match=r"row 2: 2 rows repeat a pair, the first is user 'b', item 7\. Choose dupl"):
        log(users="abbab", items=[7, 7, 7, 5, 7], ratings=[1, 2, 3, 4, 5])


@settings(deadline=None)
@given(rows=repeated_rows, timed=st.booleans())
def test_duplicates_are_resolved_as_a_dictionary_would(rows: list[tuple[int, ...]], timed: bool) -> None:
    users, items, ratings, times = (list(column) for column in zip(*rows, strict=True))
    timestamps = times if timed else None
    order = sorted(range(len(rows)), key=lambda row: times[row]) if timed else range(len(rows))
    last = {(users[row], items[row]): row for row in order}
    groups: dict[tuple[int, int], list[int]] = {}
    for user, item, rating in zip(users, items, ratings, strict=True):
        groups.setdefault((user, item), []).append(rating)

    kept = log(users, items, ratings, timestamps=timestamps, duplicates="last").to_frame()
    assert [row[:3] for row in kept.rows()] == [rows[row][:3] for row in sorted(last.values())]
    mean = log(users, items, ratings, timestamps=timestamps, duplicates="mean").to_frame()
    assert {row[:2]: row[2] for row in mean.rows()} == pytest.approx({p: np.mean(g) for p, g in groups.items()})
    assert mean.select("user_id", "item_id").equals(kept.select("user_id", "item_id"))
    if timed:
        assert mean["timestamp"].to_list() == kept["timestamp"].to_list() == [times[r] for r in sorted(last.values())]


# ---- taking and splitting


def some_log(rows: int, shape: tuple[int, int] = (12, 11), seed: int = 0) -> FeedbackLog:
    pairs = np.random.default_rng(seed).choice(shape[0] * shape[1], rows, replace=False)
    ids = {"user_ids": Vocabulary.numbered(shape[0]), "item_ids": Vocabulary.numbered(shape[1])}
    return FeedbackLog.from_arrays(pairs // shape[1], pairs % shape[1], pairs % 5, timestamps=pairs, **ids)


@given(rows=st.integers(1, 132), fraction=st.floats(0, 1), seed=st.integers(0, 9))
def test_split_partitions_rows_and_follows_the_seed(rows: int, fraction: float, seed: int) -> None:
    whole = some_log(rows)
    drawn, rest = whole.split(fraction, np.random.default_rng(seed))
    again, _ = whole.split(fraction, np.random.default_rng(seed))
    assert len(drawn) == round(fraction * rows)
    assert sorted([*drawn.pairs, *rest.pairs]) == sorted(whole.pairs)
    assert (drawn.pairs.tolist(), drawn.user_ids) == (again.pairs.tolist(), whole.user_ids)
    assert np.all(drawn.timestamps == drawn.pairs)


def test_every_row_is_drawn_equally_often() -> None:
    whole, rng = some_log(20), np.random.default_rng(1)
    times = sum(np.isin(whole.pairs, whole.split(0.25, rng)[0].pairs).astype(int) for _ in range(2000))
    assert abs(times - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_fraction_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`fraction` must be a number >= 0 and <= 1, got 1\.5"):
        some_log(5).split(1.5, np.random.default_rng(0))


def test_dataset_needs_shared_vocabularies() -> None:
    with pytest.raises(DataError, match="must share their vocabularies"):
        Dataset(some_log(5), test=some_log(5, shape=(12, 12)))
    assert Dataset(some_log(5), test=some_log(9)).probe is None


# ---- protocols


@given(train=st.integers(1, 100), unbiased=st.integers(1, 100), fraction=st.floats(0, 0.9), seed=st.integers(0, 9))
def test_honest_test_excludes_pairs_of_probe_and_log(train: int, unbiased: int, fraction: float, seed: int) -> None:
    log, ratings = some_log(train, seed=1), replace(some_log(unbiased, seed=2), sample="uniform")
    rng = np.random.default_rng(seed)
    own, _ = ratings.split(fraction, np.random.default_rng(seed))
    if set(ratings.pairs) <= set(own.pairs) | set(log.pairs):
        with pytest.raises(DataError, match="leaves no test"):
            apply_protocol(log, ratings, "honest", fraction, rng=rng)
        return
    probe, test, counts = apply_protocol(log, ratings, "honest", fraction, rng=rng)
    drawn = set() if probe is None else set(probe.pairs)
    assert len(drawn) == counts["probe_rows"] == counts["removed_as_probe"] == round(fraction * unbiased)
    assert set(test.pairs) == set(ratings.pairs) - drawn - set(log.pairs)
    assert counts["rows_in_train"] == len(set(ratings.pairs) & set(log.pairs))
    removed = counts["removed_as_probe"] + counts["removed_as_in_train"]
    assert counts["given_rows"] - removed == counts["test_rows"] == len(test)


def test_paper_protocol_draws_the_same_probe_and_keeps_the_test() -> None:
    log, ratings = some_log(60, seed=1), replace(some_log(60, seed=2), sample="uniform")
    honest = apply_protocol(log, ratings, "honest", 0.2, rng=np.random.default_rng(3))
    paper = apply_protocol(log, ratings, "paper", 0.2, rng=np.random.default_rng(3))
    assert paper[0].pairs.tolist() == honest[0].pairs.tolist()
    assert paper[1] is ratings
    assert paper[2]["removed_as_probe"] == paper[2]["removed_as_in_train"] == 0


def test_zero_fraction_draws_no_probe_and_given_probe_is_kept() -> None:
    log, ratings, own = some_log(30, seed=1), some_log(60, seed=2), some_log(20, seed=4)
    rng = np.random.default_rng(0)
    assert apply_protocol(log, ratings, "honest", 0, rng=rng)[0] is None
    probe, test, counts = apply_protocol(log, ratings, "honest", 0.5, rng=rng, probe=own)
    assert probe is own
    assert set(test.pairs) == set(ratings.pairs) - set(own.pairs) - set(log.pairs)
    assert counts["probe_rows"] == 20


@pytest.mark.parametrize("sample", [None, "biased"])
def test_no_probe_is_drawn_from_ratings_that_are_not_uniform(sample: Any) -> None:
    ratings = replace(some_log(60, seed=2), sample=sample)
    probe, test, _ = apply_protocol(some_log(30, seed=1), ratings, "honest", 0.5, rng=np.random.default_rng(0))
    assert probe is None
    assert test.sample == sample


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`protocol` must be one of 'honest', 'paper', .*got 'kind'"):
        apply_protocol(some_log(3), some_log(3), "kind", rng=np.random.default_rng(0))
