"""Files in, logs out; and every bad file is answered by one line that names the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.data.files import layout_of
from counterpoise.data.ids import Vocabulary
from counterpoise.data.log import FeedbackLog
from counterpoise.data.parquet import hidden_panics
from counterpoise.data.reading import read_columns, read_log, read_logs, read_pairs
from counterpoise.errors import ConfigError, DataError, ReadingWarning

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
    packed = zstandard.compress(text)
    assert rows(read_log(write(tmp_path, packed, "a.csv.zst"))) == ROWS
    skipped = b"\x50\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"comment"  # a frame that is no data
    assert rows(read_log(write(tmp_path, packed + skipped, "b.csv.zst"))) == ROWS
    assert failure(write(tmp_path, packed[:-6], "c.csv.zst")).endswith("Is the file whole?")


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


# ---- what is not said of a text file

RAW = [(1, 10, 4, 881250949), (1, 20, 2, 891717742), (2, 10, 5, 878887116)]  # a log as MovieLens writes it
RAW_ROWS = ROWS | {"timestamp": [row[3] for row in RAW]}


def raw(separator: str, columns: int = 4) -> str:
    return "".join(separator.join(map(str, row[:columns])) + "\n" for row in RAW)


def guess_of(file: Path, **options: object) -> tuple[dict[str, list[object]], list[str]]:
    """The rows of a log, and what was guessed about its file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = read_log(file, **options)
    assert all(issubclass(warning.category, ReadingWarning) for warning in caught)
    return rows(log), [str(warning.message).removeprefix(f"{file}: ") for warning in caught]


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "u1.base", "ratings", "a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize(
    ("separator", "named"),
    [("\t", "tabs"), ("::", "'::'"), (",", "commas"), (";", "semicolons"), ("|", "pipes"), (" ", "spaces")],
)
def test_log_without_header_is_guessed_and_said(tmp_path: Path, name: str, separator: str, named: str) -> None:
    found, guesses = guess_of(write(tmp_path, raw(separator), name))
    assert found == RAW_ROWS
    assert guesses == [f"fields separated by {named}, no header; read as user_id, item_id, rating, timestamp"]


def test_compressed_log_without_header_is_guessed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    for name, pack in (("u.data.gz", gzip.compress), ("u.data.zst", zstandard.compress)):
        found, guesses = guess_of(write(tmp_path, pack(raw("\t").encode()), name))
        assert found == RAW_ROWS
        assert len(guesses) == 1


def test_three_columns_are_guessed_without_times(tmp_path: Path) -> None:
    found, guesses = guess_of(write(tmp_path, raw("\t", 3), "u.data"))
    assert found == ROWS
    assert guesses[0].endswith("read as user_id, item_id, rating")


def test_nothing_is_guessed_of_the_usual_or_the_said(tmp_path: Path) -> None:
    header = ["user_id", "item_id", "rating", "timestamp"]
    files = [
        (write(tmp_path, HEADER + raw(",", 3), "a.csv"), {}),
        (write(tmp_path, (HEADER + raw(",", 3)).replace(",", "\t"), "a.tsv"), {}),
        (write(tmp_path, raw("\t"), "u.data"), {"header": header, "separator": "tab"}),
        (write(tmp_path, raw("::"), "r.dat"), {"header": ",".join(header), "separator": "::"}),
    ]
    for file, options in files:
        assert guess_of(file, **options)[1] == []


def test_separator_of_another_ending_is_guessed(tmp_path: Path) -> None:
    text = "user_id;item_id;rating;note\n1;10;4;a, b\n1;20;2;c\n2;10;5;\n"
    assert guess_of(write(tmp_path, text)) == (ROWS, ["fields separated by semicolons"])
    quoted = text.replace("a, b", '"a; b"')
    assert guess_of(write(tmp_path, quoted, "ratings")) == (ROWS, ["fields separated by semicolons"])


def test_separators_of_titles_are_not_those_of_fields(tmp_path: Path) -> None:
    titles = "".join(f"{number}::Les, Film: {number} (1995)::Drama|War|Comedy\n" for number in range(5))
    assert layout_of(write(tmp_path, titles, "movies.dat"), ["item_id"], id_col="item_id").separator == "::"
    tabs = "".join(f"{number}\tA b c d, e, f\n" for number in range(5))
    assert layout_of(write(tmp_path, tabs, "movies"), ["item_id"], id_col="item_id").separator == "\t"


@pytest.mark.parametrize("word", ["tab", "\t", r"\t"])
def test_separators_can_be_given_as_words(tmp_path: Path, word: str) -> None:
    assert rows(read_log(write(tmp_path, raw("\t"), "u.data"), separator=word, header=tuple(RAW_ROWS))) == RAW_ROWS


@pytest.mark.parametrize("separator", ["", ":::", '"', "\n", "tabb"])
def test_impossible_separator_is_refused(tmp_path: Path, separator: str) -> None:
    with pytest.raises(ConfigError, match="`separator` must be one or two characters or one of tab, comma") as caught:
        read_log(write(tmp_path, HEADER), separator=separator)
    assert str(caught.value).endswith("Did you mean 'tab'?") == (separator == "tabb")


@pytest.mark.parametrize("header", ["user_id,,rating", ["user_id", "user_id"], [], [1, 2]])
def test_impossible_header_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(ConfigError, match="`header` must be different names of columns, such as user_id,item_id,"):
        read_log(write(tmp_path, raw(",")), header=header)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("1,10,4,0.5\n1,20,2,0.5\n", "user_id,item_id,rating,column_4"),
        ("881250949,1,10,4\n881250950,1,20,2\n", "user_id,item_id,rating,column_4"),
        ("1,10,4,881250949,x\n", "user_id,item_id,rating,column_4,column_5"),
        ("1,10,881250949\n", "user_id,item_id,rating"),
        ("1.5,10,4\n", "user_id,item_id,rating"),
        ("".join(f"{row},{row % 5},{row * 7}\n" for row in range(50)), "user_id,item_id,rating"),
    ],
    ids=["no time", "time first", "five columns", "no rating", "no id", "ids in the place of ratings"],
)
def test_file_without_header_that_may_be_anything_is_refused(tmp_path: Path, text: str, example: str) -> None:
    message = failure(write(tmp_path, text))
    assert message.startswith("row 1 looks like data, not like the names of columns: ")
    assert message.endswith(f"columns in their order with `header` (--header), for example {example}.")


def test_named_columns_are_never_guessed(tmp_path: Path) -> None:
    message = failure(write(tmp_path, raw("\t"), "u.data"), user_col="uid")
    assert message.startswith("row 1 looks like data")
    assert message.endswith("for example uid,item_id,rating,column_4.")


def test_header_of_years_is_no_data(tmp_path: Path) -> None:
    file = write(tmp_path, "user_id,item_id,rating,2019\n1,10,4,0\n1,20,2,0\n2,10,5,1\n")
    assert guess_of(file) == (ROWS, [])


def test_given_header_leaves_a_file_with_names_alone(tmp_path: Path) -> None:
    train, test = write(tmp_path, raw(","), "train.csv"), write(tmp_path, HEADER + "2,20,1\n", "test.csv")
    with pytest.warns(ReadingWarning, match=r"test\.csv: row 1 has the names of columns, so the header .* not used"):
        logs = read_logs({"train": train, "test": test}, header=tuple(RAW_ROWS))
    assert rows(logs["train"]) == RAW_ROWS
    assert rows(logs["test"]) == {"user_id": [2], "item_id": [20], "rating": [1]}


def test_names_below_a_given_header_are_announced(tmp_path: Path) -> None:
    file = write(tmp_path, "userId,movieId\n" + raw(",", 2))
    found, guesses = guess_of(file, header="user_id,item_id")
    assert found["user_id"][0] == "userId"
    assert guesses == ["row 1 looks like names ('userId', 'movieId') and is read as data, since a header is given"]


def test_header_example_of_many_columns_is_short(tmp_path: Path) -> None:
    message = failure(write(tmp_path, ",".join(map(str, range(100))) + "\n"))
    assert message.endswith("for example user_id,item_id,rating,column_4,column_5,column_6,column_7,column_8,....")


def test_blank_lines_alone_have_no_column_names(tmp_path: Path) -> None:
    assert "_duplicated_" not in failure(write(tmp_path, "\n\n  \n"))


def test_wrong_row_is_counted_also_without_header(tmp_path: Path) -> None:
    many = raw("::") * 4
    with pytest.warns(ReadingWarning, match="no header; read as"):
        assert failure(write(tmp_path, many + "3::30\n", "r.dat")).startswith("row 13: expected 4 fields as in the fi")
    with pytest.warns(ReadingWarning):
        assert failure(write(tmp_path, many + "3::30::good::881250949\n", "r.dat")).startswith(
            "column 'rating', row 13:"
        )


def test_text_after_long_separators_must_be_utf8(tmp_path: Path) -> None:
    file = write(tmp_path, b"user_id::item_id::rating\n1::10::4\nJos\xe9::1::2\n", "r.dat")
    assert failure(file, separator="::") == "row 3: the text is not UTF-8. Save the file with the encoding UTF-8."


def test_files_of_a_log_are_guessed_once(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, raw("\t"), f"part-{number}")
    with pytest.warns(ReadingWarning) as caught:
        log = read_log(tmp_path / "part-*", duplicates="last")
    assert rows(log) == RAW_ROWS
    assert len(caught) == 1


def test_pairs_without_header_are_read(tmp_path: Path) -> None:
    with pytest.warns(ReadingWarning, match="read as user_id, item_id$"):
        assert read_pairs(write(tmp_path, raw("\t", 2), "pairs")).to_dict(as_series=False) == {
            "user_id": [1, 1, 2],
            "item_id": [10, 20, 10],
        }
    assert read_pairs(write(tmp_path, raw("\t")), header="user_id,item_id,x,y", separator="tab").columns == [
        "user_id",
        "item_id",
    ]


def test_table_of_ids_without_header_begins_with_the_ids(tmp_path: Path) -> None:
    users = write(tmp_path, "1|24|M|technician|85711\n2|53|F|other|94043\n", "u.user")
    layout = layout_of(users, ["user_id"], id_col="user_id")
    assert layout.header == ("user_id", "column_2", "column_3", "column_4", "column_5")
    assert layout.guess.startswith("fields separated by pipes, no header; read as user_id, column_2, ")
    with pytest.raises(DataError, match="row 1 looks like data"):
        layout_of(write(tmp_path, "1|24\n1|25\n", "u.user"), ["user_id"], id_col="user_id")


# ---- JSON lines


def test_json_lines_are_read_plain_and_compressed(tmp_path: Path) -> None:
    text = "".join(json.dumps(dict(zip(RAW_ROWS, row, strict=True))) + "\n\n" for row in RAW)
    for name, content in (("a.jsonl", text.encode()), ("[a]*.ndjson", text.encode()), ("a.jsonl.gz", text.encode())):
        file = write(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
        assert rows(read_log(file)) == ROWS
        assert rows(read_log(file, timestamp_col="timestamp")) == RAW_ROWS
    assert rows(read_log(write(tmp_path, b"\xef\xbb\xbf" + text.encode(), "bom.jsonl"))) == ROWS


def test_json_of_other_layout_or_ending_is_one_clear_line(tmp_path: Path) -> None:
    lines = "".join(json.dumps(dict(zip(RAW_ROWS, row, strict=True))) + "\n" for row in RAW)
    assert rows(read_log(write(tmp_path, lines, "a.json"))) == ROWS
    words = "this is JSON. Write one record in each line, to a file that ends in .jsonl."
    assert failure(write(tmp_path, lines, "a.data")) == words
    array = "[" + lines.replace("\n", ",")[:-1] + "]"
    assert failure(write(tmp_path, array, "a.csv")) == words
    assert failure(write(tmp_path, array, "a.json")).startswith("row 1: expected a record such as")


def test_ids_of_json_lines_may_be_text_and_numbers(tmp_path: Path) -> None:
    text = '{"user_id": "007", "item_id": 1, "rating": 1, "t": "soon"}\n'
    text += '{"rating": 2.5, "user_id": 7, "item_id": 2}\n'
    assert rows(read_log(write(tmp_path, text, "a.jsonl")))["user_id"] == ["007", "7"]
    assert failure(write(tmp_path, text, "a.jsonl"), timestamp_col="t").startswith("column 't', row 1: expected a")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"user_id": 2,', 'row 2: expected a record such as {"user_id": 1}, got \'{"user_id": 2,\'.'),
        ("[2, 20, 1]", "row 2: expected a record such as"),
        ("2,20,1", "row 2: expected a record such as"),
        ('{"user_id": 2, "item_id": 20}', "column 'rating', row 2: expected a finite number, got None"),
        ('{"item_id": 2, "rating": 20}', "column 'user_id', row 2: the id is missing"),
        ('{"user_id": 2, "item_id": 20, "rating": [1]}', "column 'rating', row 2: expected a finite number, got '[1]'"),
        ('{"user_id": 2, "item_id": 20, "rating": NaN}', "row 2: expected a record such as"),
        ('{"user_id": 2, "item_id": 20, "rating": 1e999}', "row 2: expected a record such as"),
    ],
)
def test_wrong_record_is_named_by_its_row(tmp_path: Path, line: str, words: str) -> None:
    file = write(tmp_path, f'{{"user_id": 1, "item_id": 10, "rating": 4}}\n{line}\n', "a.jsonl")
    assert failure(file).startswith(words)


def test_records_without_names_are_one_line(tmp_path: Path) -> None:
    words = "there is no column 'user_id', and no other. Is it the right file?"
    assert failure(write(tmp_path, "{}\n{}\n", "a.jsonl")) == words


def test_column_in_other_case_is_suggested(tmp_path: Path) -> None:
    assert "Did you mean 'USER_ID'?" in failure(write(tmp_path, HEADER.upper() + raw(",", 3)))


def test_misspelt_column_is_suggested_in_every_format(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "a.csv")
    FRAME.write_parquet(tmp_path / "a.parquet")
    FRAME.write_ndjson(tmp_path / "a.jsonl")
    write(tmp_path, FRAME.write_csv().replace(",", "::"), "a.dat")
    for name in ("a.csv", "a.parquet", "a.jsonl", "a.dat"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReadingWarning)
            assert "Did you mean 'rating'? Name yours with `rating_col`" in failure(
                tmp_path / name, rating_col="ratting"
            )


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
        (b"\n\n", "a.jsonl", "the file is empty."),
        (gzip.compress(b"", mtime=0), "a.csv.gz", "the file is empty."),
        (HEADER.encode(), "a.csv", "there are no rows of data. Is it the right file?"),
        (HEADER.encode() + b"\n\n", "a.csv", "there are no rows of data. Is it the right file?"),
    ],
)
def test_empty_file_is_called_empty(tmp_path: Path, content: bytes, name: str, words: str) -> None:
    assert failure(write(tmp_path, content, name)) == words


def test_parquet_without_rows_is_called_empty(tmp_path: Path) -> None:
    FRAME.head(0).write_parquet(tmp_path / "a.parquet")
    assert failure(tmp_path / "a.parquet") == "there are no rows of data. Is it the right file?"


def test_missing_file_folder_and_unknown_ending_have_own_messages(tmp_path: Path) -> None:
    assert failure(tmp_path / "nowhere.csv") == "there is no such file."
    (tmp_path / "folder.csv").mkdir()
    assert failure(tmp_path / "folder.csv").startswith("there is no file in this folder that ends in .csv,")
    assert failure(write(tmp_path, "PK\0\3", "a.xlsx")).startswith(
        "neither text nor Parquet by its name. Write it as on"
    )


def test_file_without_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, HEADER + "1,1,1\n")

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    assert failure(file) == "no permission to read it. Change its permissions or copy it."


def test_truncated_or_foreign_file_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress((HEADER + "1,1,1\n" * 1000).encode())
    assert failure(write(tmp_path, packed[: len(packed) // 2], "a.csv.gz")).endswith("Is the file whole?")
    FRAME.write_parquet(tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    for content in (whole[:-20], whole[20:], b"PAR1", b"user_id,item_id,rating\n1,2,3\n"):
        assert failure(write(tmp_path, content, "a.parquet")).startswith("not a whole Parquet file (")


def test_panics_stay_hidden_in_nested_blocks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("counterpoise.data.parquet.HIDING", [True])
    with hidden_panics():
        with hidden_panics():
            os.write(2, b"inner")
        os.write(2, b"outer")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


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
@given(content=st.one_of(st.binary(max_size=60), st.text('01a,"\n\r\t é:|{}', max_size=60).map(str.encode)))
@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.csv.gz", "a.data", "a.jsonl"])
@pytest.mark.filterwarnings("ignore::counterpoise.errors.ReadingWarning")
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
