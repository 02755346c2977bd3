"""Files in, logs out; and every bad file is answered by one line that names the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import FeedbackLog
from counterpoise.data.reading import read_columns, read_log, read_logs, read_pairs
from counterpoise.errors import ConfigError, DataError

HEADER = "user_id,item_id,rating\n"
ROWS = {"user_id": [1, 1, 2], "item_id": [10, 20, 10], "rating": [4.0, 2.0, 5.0]}
FRAME = pl.DataFrame(ROWS)


def write(folder: Path, content: str | bytes, name: str = "log.csv") -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def failure(path: Path, **options: object) -> str:
    """The message of the `DataError`; always one line that begins with the file."""
    with pytest.raises(DataError) as caught:
        read_log(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def rows(log: FeedbackLog) -> dict[str, list[object]]:
    return log.to_frame().to_dict(as_series=False)


# ---- formats


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.txt", ","), ("a.tsv", "\t"), ("A.TAB", "\t")])
def test_text_files_are_read_by_their_ending(tmp_path: Path, name: str, separator: str) -> None:
    FRAME.write_csv(tmp_path / name, separator=separator)
    assert rows(read_log(tmp_path / name)) == ROWS


@pytest.mark.parametrize("name", ["a.parquet", "a.pq"])
def test_parquet_files_are_read(tmp_path: Path, name: str) -> None:
    FRAME.write_parquet(tmp_path / name)
    assert rows(read_log(tmp_path / name)) == ROWS


def test_gzip_and_zstandard_text_is_decompressed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = FRAME.write_csv().encode()
    assert rows(read_log(write(tmp_path, gzip.compress(text), "a.csv.gz"))) == ROWS
    assert rows(read_log(write(tmp_path, zstandard.compress(text), "a.csv.zst"))) == ROWS


def test_another_separator_can_be_given_for_any_ending(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "ratings.dat", separator=";")
    assert rows(read_log(tmp_path / "ratings.dat", separator=";")) == ROWS


def test_path_with_glob_characters_is_one_file(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "log[1]*.csv")
    FRAME.write_parquet(tmp_path / "log[1]*.parquet")
    assert rows(read_log(tmp_path / "log[1]*.csv")) == rows(read_log(tmp_path / "log[1]*.parquet")) == ROWS


def test_columns_can_be_mapped_and_others_are_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, "when,stars,who,what,note\n3,5,a,x,\n4,1,b,y,hm\n")
    log = read_log(file, user_col="who", item_col="what", rating_col="stars", timestamp_col="when", threshold=3)
    assert rows(log) == {"user_id": ["a", "b"], "item_id": ["x", "y"], "rating": [5, 1], "timestamp": [3, 4]}
    assert log.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("\n", "\r\n") + "1,10,4\r\n1,20,2\r\n2,10,5\r\n",
        "\ufeff" + HEADER + "1,10,4\n1,20,2\n2,10,5",
        HEADER + "1,10,4\n1,20,2\n2,10,5\n\n\r\n\n",
        "\n\n" + HEADER + "1,10,4\n1,20,2\n2,10,5\n",
        '"user_id","item_id","rating"\n"1","10","4"\n1,20,2e0\n2,10,+5.\n',
    ],
    ids=["windows line ends", "byte order mark", "blank lines at the end", "blank lines at the top", "quotes"],
)
def test_usual_csv_dialects_are_read(tmp_path: Path, text: str) -> None:
    assert rows(read_log(write(tmp_path, text))) == ROWS


def test_quoted_ids_may_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    file = write(tmp_path, HEADER + '"Doe, Jane","say ""hi""",4\n"a\nb",x,\n')
    assert "row 3" in failure(file)  # the row, not the line
    file = write(tmp_path, HEADER + '"Doe, Jane","say ""hi""",4\n"a\nb",x,5\n')
    assert rows(read_log(file))["user_id"] == ["Doe, Jane", "a\nb"]
    assert rows(read_log(file))["item_id"] == ['say "hi"', "x"]
    file = write(tmp_path, 'user_id,item_id,rating,"a\nnote"\n1,1,1,"two\nlines"\n')
    assert rows(read_log(file))["user_id"] == [1]


# ---- ids


@pytest.mark.parametrize("ids", [["0", "-3", "12"], ["9223372036854775807", "-9223372036854775808"]])
def test_ids_are_integers_where_every_id_is_one(tmp_path: Path, ids: list[str]) -> None:
    log = read_log(write(tmp_path, HEADER + "".join(f"{i},a,1\n" for i in ids)))
    assert log.user_ids.dtype == pl.Int64
    assert rows(log)["user_id"] == [int(i) for i in ids]


@pytest.mark.parametrize("odd", ["007", "+1", "-0", "1.0", " 1", "1e3", "a", "9223372036854775808", "NA"])
def test_one_id_that_is_text_makes_all_text(tmp_path: Path, odd: str) -> None:
    log = read_log(write(tmp_path, f"{HEADER}7,a,1\n{odd},a,1\n"))
    assert rows(log)["user_id"] == ["7", odd]


def test_files_read_together_share_their_users_and_items(tmp_path: Path) -> None:
    train = write(tmp_path, HEADER + "1,a,5\n2,b,1\n", "train.csv")
    test = write(tmp_path, HEADER + "3,a,5\n1,c,1\n", "test.csv")
    logs = read_logs({"train": train, "test": test})
    assert logs["train"].user_ids == logs["test"].user_ids == Vocabulary([1, 2, 3])
    assert logs["train"].item_ids == logs["test"].item_ids == Vocabulary(["a", "b", "c"])
    assert rows(logs["test"])["user_id"] == [3, 1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_that_are_text_in_one_are_text_in_all(tmp_path: Path, kind: str) -> None:
    train = write(tmp_path, HEADER + "1,10,5\n2,20,1\n", "train.csv")
    test = pl.DataFrame({"user_id": ["1", "x"], "item_id": [10, 20], "rating": [1, 2]})
    test.write_parquet(tmp_path / "test.parquet")
    test.write_csv(tmp_path / "test.csv")
    logs = read_logs({"train": train, "test": tmp_path / f"test.{kind}"})
    assert logs["train"].user_ids == logs["test"].user_ids == Vocabulary(["1", "2", "x"])
    assert logs["test"].users.tolist() == [0, 2]
    assert logs["test"].item_ids == Vocabulary([10, 20])


def test_integers_of_any_width_and_floats_are_the_same_ids(tmp_path: Path) -> None:
    train = write(tmp_path, HEADER + "1,10,5\n2,20,1\n", "train.csv")
    pl.DataFrame({"user_id": [1.0, 2.0], "item_id": [10, 20], "rating": [1, 2]}).with_columns(
        pl.col("item_id").cast(pl.UInt8)
    ).write_parquet(tmp_path / "test.parquet")
    logs = read_logs({"train": train, "test": tmp_path / "test.parquet"})
    assert logs["test"].users.tolist() == logs["train"].users.tolist()
    assert logs["test"].item_ids == Vocabulary([10, 20])


def test_given_vocabulary_sets_the_type_of_the_ids(tmp_path: Path) -> None:
    file = write(tmp_path, HEADER + "1,10,5\n2,20,1\n")
    users, items = Vocabulary(["0", "1", "2"]), Vocabulary([10, 20, 30])
    log = read_log(file, user_ids=users, item_ids=items)
    assert log.users.tolist() == [1, 2]
    assert log.shape == (3, 3)
    assert failure(file, user_ids=Vocabulary([1])).startswith("unknown user 2: this log has 1 users")


def test_pairs_are_read_from_a_file_without_ratings(tmp_path: Path) -> None:
    file = write(tmp_path, "u,i\n1,10\n2,20\n")
    assert read_pairs(file, user_col="u", item_col="i").to_dict(as_series=False) == {
        "user_id": [1, 2],
        "item_id": [10, 20],
    }
    file = write(tmp_path, "u,i\n1,10\n,20\n")
    with pytest.raises(DataError, match=r"log.csv: column 'u', row 3: the id is missing"):
        read_pairs(file, user_col="u", item_col="i")


def test_columns_are_named_by_role_and_unknown_roles_stay_text(tmp_path: Path) -> None:
    frame = read_columns(write(tmp_path, "a,b,c\n1,2,3\n"), {"user": "c", "weight": "a"})
    assert frame.to_dict(as_series=False) == {"user": [3], "weight": ["1"]}


def test_file_without_header_takes_given_names(tmp_path: Path) -> None:
    file = write(tmp_path, "1,10,4,x\n1,20,2,x\n2,10,5,x\n")
    names = ["user_id", "item_id", "rating"]
    assert rows(read_log(file, header=names)) == ROWS
    file = write(tmp_path, "1,10,4\n1,20,bad\n")
    assert failure(file, header=names).startswith("column 'rating', row 2:")
    file = write(tmp_path, "1,10\n1,20\n")
    assert failure(file, header=names) == "row 1: expected 3 fields, got 2."


# ---- timestamps


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["5", "3"], [5, 3]),
        (["5.7", "3.2"], [5, 3]),
        (["1970-01-02", "1970-01-01"], [86_400_000_000, 0]),
        (["1970-01-01 00:00:01", "1970-01-01 00:00:00"], [1_000_000, 0]),
    ],
)
def test_timestamps_are_numbers_or_dates(tmp_path: Path, texts: list[str], numbers: list[int]) -> None:
    file = write(tmp_path, "user_id,item_id,rating,t\n" + "".join(f"1,10,{row},{t}\n" for row, t in enumerate(texts)))
    log = read_log(file, timestamp_col="t", duplicates="last")
    assert (log.ratings.tolist(), log.timestamps.tolist()) == ([0], [numbers[0]])  # the later of the two


def test_wrong_timestamp_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "user_id,item_id,rating,t\n1,10,4,1\n1,20,4,soon\n")
    assert failure(file, timestamp_col="t").startswith("column 't', row 3: expected a whole number or a date, got 'so")


# ---- bad files


def test_missing_column_lists_columns_and_the_option(tmp_path: Path) -> None:
    file = write(tmp_path, "userId,movieId,rating\n1,2,3\n")
    assert failure(file) == (
        "there is no column 'user_id'; the columns are 'userId', 'movieId', 'rating'. "
        "Did you mean 'userId'? Name yours with `user_col` (--user-col)."
    )
    FRAME.rename({"rating": "stars"}).write_parquet(tmp_path / "a.parquet")
    assert "--rating-col" in failure(tmp_path / "a.parquet")


def test_header_of_one_field_suggests_another_separator(tmp_path: Path) -> None:
    file = write(tmp_path, "user_id;item_id;rating\n1;2;3\n")
    assert failure(file).endswith("Give the `separator` (--separator) that the file uses.")


def test_separator_must_be_one_character(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`separator` must be one character"):
        read_log(write(tmp_path, HEADER), separator="::")


def test_duplicate_column_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "user_id,item_id,rating,rating\n1,2,3,4\n")
    assert failure(file) == "column 'rating', row 1: the header has this name twice. Rename one."


@pytest.mark.parametrize("bad", ["good", "NaN", "inf", "-inf", "", '""', "1_000", "3,5"])
def test_rating_that_is_not_finite_is_located(tmp_path: Path, bad: str) -> None:
    bad = f'"{bad}"' if "," in bad else bad
    file = write(tmp_path, f"user_id,rating,item_id\n1,1,10\n1,{bad},20\n1,worse,30\n")
    assert failure(file).startswith("column 'rating', row 3: expected a finite number, got ")


def test_rows_of_parquet_are_counted_from_one(tmp_path: Path) -> None:
    FRAME.with_columns(rating=pl.Series([1.0, float("nan"), None])).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet").startswith("column 'rating', row 2: expected a finite number, got nan")


def test_blank_lines_above_the_header_count_as_rows(tmp_path: Path) -> None:
    assert failure(write(tmp_path, "\n\n" + HEADER + "1,1,1\n1,2,x\n")).startswith("column 'rating', row 5:")


@pytest.mark.parametrize(("row", "column"), [(",10,4", "user_id"), ("1,,4", "item_id"), ('"",10,4', "user_id")])
def test_missing_id_is_located(tmp_path: Path, row: str, column: str) -> None:
    file = write(tmp_path, f"{HEADER}5,50,5\n{row}\n")
    assert failure(file) == f"column {column!r}, row 3: the id is missing. Fill it in or drop the row."


def test_missing_id_in_parquet_is_located(tmp_path: Path) -> None:
    FRAME.with_columns(item_id=pl.Series([1, 2, None])).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet").startswith("column 'item_id', row 3: the id is missing")
    FRAME.with_columns(item_id=None).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet").startswith("column 'item_id', row 1: the id is missing")


def test_lists_in_parquet_are_refused(tmp_path: Path) -> None:
    FRAME.with_columns(item_id=pl.Series([[1], [2], [3]])).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet") == "column 'item_id': expected numbers, text or dates, got List(Int64)."


@pytest.mark.parametrize("separator", [",", "\t", "|"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_short_row_is_named_by_its_number(tmp_path: Path, separator: str, quote: str) -> None:
    text = f"user_id,item_id,rating\n{quote}1{quote},10,4\n2,20\n3,30,4\n".replace(",", separator)
    assert failure(write(tmp_path, text), separator=separator) == (
        "row 3: expected 3 fields as in the first row, got 2. Correct or drop the row."
    )


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("extra", ["7", "", "7,8"])
def test_long_row_is_named_by_its_number(tmp_path: Path, extra: str, quote: str) -> None:
    file = write(tmp_path, f"user_id,note,item_id,rating,z\n{quote}1{quote},,10,4,0\n2,,20,4,0,{extra}\n3,,30,4,0\n")
    found = 6 + extra.count(",")
    assert failure(file).startswith(f"row 3: expected 5 fields as in the first row, got {found}.")


def test_blank_line_between_rows_is_named(tmp_path: Path) -> None:
    assert failure(write(tmp_path, HEADER + "1,1,1\n\n1,2,2\n")) == "row 3: the row is blank. Correct or drop the row."


def test_empty_last_column_is_not_a_short_row(tmp_path: Path) -> None:
    file = write(tmp_path, "user_id,item_id,rating,note\n1,10,4,\n1,20,2,x\n2,10,5,\n")
    assert rows(read_log(file)) == ROWS


@pytest.mark.parametrize("row", ['1,"10,4', '1,"10"x,4'])
def test_quote_in_the_wrong_place_is_named_by_its_row(tmp_path: Path, row: str) -> None:
    file = write(tmp_path, f"{HEADER}1,1,1\n{row}\n3,30,4\n")
    assert failure(file) == "row 3: a quote is not closed or not doubled. Correct the row."


@pytest.mark.parametrize("last", ["4,b,2", '4,12" single,2'])
def test_quote_inside_a_field_never_swallows_rows(tmp_path: Path, last: str) -> None:
    file = write(tmp_path, f'{HEADER}1,1,1\n2,7" single,4\n3,b,3\n{last}\n5,d,1\n')
    try:
        assert rows(read_log(file))["user_id"] == [1, 2, 3, 4, 5]  # some versions of polars take it as it is
    except DataError:
        assert failure(file) == "row 3: a quote is not closed or not doubled. Correct the row."


def test_text_that_is_not_utf8_is_named_by_its_row(tmp_path: Path) -> None:
    file = write(tmp_path, HEADER.encode() + b"1,1,1\nJos\xe9,2,2\n")
    assert failure(file) == "row 3: the text is not UTF-8. Save the file with the encoding UTF-8."
    file = write(tmp_path, (HEADER + "1,1,1\n").encode("utf-16"))
    assert failure(file) == "row 1: the text is not UTF-8. Save the file with the encoding UTF-8."


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"", "a.csv", "the file is empty."),
        (b"", "a.parquet", "the file is empty."),
        (b"\n\n", "a.csv", "the file is empty."),
        (gzip.compress(b"", mtime=0), "a.csv.gz", "the file is empty."),
        (HEADER.encode(), "a.csv", "there are no rows of data."),
        (HEADER.encode() + b"\n\n", "a.csv", "there are no rows of data."),
    ],
)
def test_empty_file_is_called_empty(tmp_path: Path, content: bytes, name: str, words: str) -> None:
    assert failure(write(tmp_path, content, name)) == words


def test_parquet_without_rows_is_called_empty(tmp_path: Path) -> None:
    FRAME.head(0).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet") == "there are no rows of data."


def test_missing_file_folder_and_unknown_ending_have_own_messages(tmp_path: Path) -> None:
    assert failure(tmp_path / "nowhere.csv") == "there is no such file."
    (tmp_path / "folder.csv").mkdir()
    assert failure(tmp_path / "folder.csv").startswith("there is no file in this folder that ends in .csv,")
    assert failure(write(tmp_path, "x", "a.xlsx")).startswith("the format is not known from the name. Use one of .csv")


def test_file_without_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, HEADER + "1,1,1\n")

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert failure(file) == "no permission to read it. Change its permissions or copy it."


def test_truncated_or_foreign_file_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress((HEADER + "1,1,1\n" * 1000).encode())
    assert failure(write(tmp_path, packed[: len(packed) // 2], "a.csv.gz")).endswith("Is the file whole?")
    FRAME.write_parquet(tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for content in (whole[:-20], whole[20:], b"PAR1", b"user_id,item_id,rating\n1,2,3\n"):
        assert failure(write(tmp_path, content, "a.parquet")).startswith("not a whole Parquet file (")


def test_repeated_pair_is_located(tmp_path: Path) -> None:
    file = write(tmp_path, HEADER + "1,10,4\n1,20,2\n1,10,5\n1,10,3\n")
    message = failure(file)
    assert message.startswith("column 'item_id', row 4: 2 rows repeat a pair, the first is user 1, item 10.")
    assert rows(read_log(file, duplicates="last"))["rating"] == [2, 3]
    assert rows(read_log(file, duplicates="mean"))["rating"] == [2, 4]


# ---- properties

EXAMPLES = int(os.environ.get("COUNTERPOISE_EXAMPLES", "50"))  # `make fuzz` asks for more
quiet = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(content=st.one_of(st.binary(max_size=60), st.text('01a,"\n\r\t é', max_size=60).map(str.encode)))
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.csv.gz"])
def test_any_file_gives_a_log_or_one_line(tmp_path: Path, content: bytes, name: str) -> None:
    file = write(tmp_path, HEADER.encode() + content if name == "a.csv" else content, name)
    try:
        answer = f"{file}: {read_log(file, duplicates='last')!r}"
    except DataError as error:
        answer = str(error)
    assert re.fullmatch(re.escape(str(file)) + r": [^\n\r]+", answer)


ids = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5))
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=8)


@quiet
@given(
    pairs=st.one_of(
        st.lists(st.tuples(ids, texts), min_size=1, max_size=20, unique=True),
        st.lists(st.tuples(texts, ids), min_size=1, max_size=20, unique=True),
    ),
    data=st.data(),
)
def test_what_is_written_is_read_back(tmp_path: Path, pairs: list[tuple[object, object]], data: st.DataObject) -> None:
    number = st.floats(allow_nan=False, allow_infinity=False)
    ratings = data.draw(st.lists(number, min_size=len(pairs), max_size=len(pairs)))
    users, items = zip(*pairs, strict=True)
    frame = pl.DataFrame({"user_id": users, "item_id": items, "rating": pl.Series(ratings, dtype=pl.Float64)})
    frame.write_csv(tmp_path / "a.csv", quote_style="non_numeric")
    frame.write_parquet(tmp_path / "a.parquet")
    from_text, from_parquet = read_log(tmp_path / "a.csv"), read_log(tmp_path / "a.parquet")
    assert from_parquet.to_frame().equals(frame)
    assert from_text.to_frame().cast(pl.String).equals(frame.cast(pl.String))
    np.testing.assert_array_equal(from_text.ratings, from_parquet.ratings)


field = st.sampled_from(["1", "2", "a", "1.5", "", '"a"', '"a,b"', '"1\n2"', '"x""y"', 'q"q'])
lines = st.lists(st.lists(field, min_size=1, max_size=5).map(",".join), max_size=5)


@quiet
@given(lines=lines, end=st.sampled_from(["", "\n", "\n\n"]), line_end=st.sampled_from(["\n", "\r\n"]))
def test_accepted_file_equals_what_csv_module_reads(tmp_path: Path, lines: list[str], end: str, line_end: str) -> None:
    text = line_end.join(["rating,user_id,note,item_id", *lines]) + end
    file = write(tmp_path, text)
    try:
        frame = read_columns(file, {"user": "user_id", "item": "item_id"})
    except DataError:
        return
    expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))[1:]
    while expected and not any(expected[-1]):
        expected.pop()
    if not end and expected and expected[-1][4:] == [""]:  # polars forgives a separator at the very end of a file
        expected[-1].pop()
    assert all(len(row) == 4 for row in expected)
    assert frame.cast(pl.String).rows() == [(row[1] or None, row[3] or None) for row in expected]
