"""Shards: the rows of a log in files, and errors for files that cannot be part of it."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard

from counterpoise import read_log
from counterpoise.data.files import TEXT_PART, layout_of, text_parts, unpacked
from counterpoise.errors import ConfigError, DataError, ReadingWarning
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.shards import ShardedLog, Shards, ShardWriter, as_bytes, write_array

RNG = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {"user_id": RNG.integers(0, 9, 50), "item_id": RNG.permutation(1000)[:50], "rating": RNG.integers(1, 6, 50)}
)


def split(folder: Path, parts: int, ending: str = "parquet", frame: pl.DataFrame = FRAME) -> Path:
    """A frame as so many files in partitions of a folder."""
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        file = folder / f"day={number:03d}" / f"part.{ending}"
        file.parent.mkdir(parents=True)
        part = frame[rows]
        part.write_parquet(file) if ending == "parquet" else part.write_csv(file)
    return folder


def rows_of(log: ShardedLog) -> pl.DataFrame:
    users, items, ratings = (log.shards.whole(name) for name in ("users", "items", "ratings"))
    return pl.DataFrame(
        {"user_id": log.user_ids.decode(users), "item_id": log.item_ids.decode(items), "rating": ratings}
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(("files", "shard_rows"), [(1, 100), (3, 7), (60, 1)])
def test_shards_hold_the_rows_of_all_files_in_order(tmp_path: Path, ending: str, files: int, shard_rows: int) -> None:
    folder = split(tmp_path / "log", files, ending)
    log = shard_log(folder, cache=tmp_path / "cache", shard_rows=shard_rows)
    assert rows_of(log).equals(FRAME.with_columns(pl.col("rating").cast(pl.Float64)))
    assert len(log.shards) == -(-50 // shard_rows)
    assert log.shape == (9, 50)


def test_glob_takes_the_files_it_names(tmp_path: Path) -> None:
    folder = split(tmp_path / "log", 5)
    log = shard_log(str(folder / "day=00[01]" / "*.parquet"), cache=tmp_path / "cache")
    assert rows_of(log)["item_id"].to_list() == FRAME["item_id"][:20].to_list()
    whole = read_log(str(folder / "**" / "*.parquet"))
    assert whole.to_frame().equals(FRAME.with_columns(pl.col("rating").cast(pl.Float64)))


def test_shards_are_reused_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = split(tmp_path / "log", 3), tmp_path / "cache"
    first = shard_log(folder, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr("counterpoise.out_of_core.encoding._parts", lambda *_: pytest.fail("read again"))
        assert rows_of(shard_log(folder, cache=cache)).equals(rows_of(first))
    FRAME.head(1).with_columns(rating=9).write_parquet(folder / "day=000" / "more.parquet")
    assert len(shard_log(folder, cache=cache)) == 51


def test_files_of_different_types_make_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "a.csv").write_text("user_id,item_id,rating\n7,1,2\n")
    (folder / "b.csv").write_text("other,rating,user_id,item_id\nx,3,seven,1\n")
    pl.DataFrame({"user_id": [7], "item_id": [2], "rating": [4.5]}).write_parquet(folder / "c.parquet")
    log = shard_log(folder, cache=tmp_path / "cache")
    assert rows_of(log).rows() == [("7", 1, 2.0), ("seven", 1, 3.0), ("7", 2, 4.5)]
    assert read_log(folder, duplicates="last").to_frame().rows() == rows_of(log).rows()


def test_files_without_header_are_guessed_once_or_named(tmp_path: Path) -> None:
    folder, cache = tmp_path / "log", tmp_path / "cache"
    folder.mkdir()
    for name in ("a.tsv", "b.tsv"):
        (folder / name).write_text("7\t1\t2\n8\t1\t3\n")
    with pytest.warns(ReadingWarning, match=r"a\.tsv: fields separated by tabs, no header; read as user_id") as caught:
        log = shard_log(folder, cache=cache)
    assert len(caught) == 1
    assert rows_of(log).rows() == [(7, 1, 2.0), (8, 1, 3.0)] * 2
    swapped = shard_log(folder, cache=cache, header="item_id,user_id,rating", separator="tab")
    assert rows_of(swapped).rows() == [(1, 7, 2.0), (1, 8, 3.0)] * 2
    (folder / "b.tsv").write_text("7\t1\t2\n8\t1\tmany\n" + "9\t1\t3\n" * 20)
    with pytest.raises(DataError, match=r"b\.tsv: column 'rating', row 2: expected a finite number"):
        shard_log(folder, cache=cache, header="user_id,item_id,rating")


def test_empty_files_are_skipped_unless_all_are_empty(tmp_path: Path) -> None:
    folder = split(tmp_path / "log", 2)
    FRAME.head(0).write_parquet(folder / "day=000" / "a.parquet")
    (folder / "nothing.csv").write_text("")
    (folder / "header.csv").write_text("user_id,item_id,rating\n")
    (folder / "_SUCCESS").write_text("")
    assert len(shard_log(folder, cache=tmp_path / "cache")) == len(read_log(folder)) == 50
    for file in folder.rglob("part.parquet"):
        file.unlink()
    for read in (lambda: shard_log(folder, cache=tmp_path / "cache"), lambda: read_log(folder)):
        with pytest.raises(DataError, match="no rows of data in any of the"):
            read()


def test_file_of_a_wrong_schema_is_named(tmp_path: Path) -> None:
    folder, cache = split(tmp_path / "log", 3), tmp_path / "cache"
    wrong = folder / "day=001" / "part.parquet"
    FRAME.rename({"item_id": "product"}).write_parquet(wrong)
    with pytest.raises(DataError, match=r"day=001/part\.parquet: there is no column 'item_id'"):
        shard_log(folder, cache=cache)
    FRAME.with_columns(item_id=pl.concat_list("item_id")).write_parquet(wrong)
    with pytest.raises(DataError, match=r"day=001/part\.parquet: column 'item_id': expected numbers, text or dates"):
        shard_log(folder, cache=cache)
    wrong.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"day=001/part\.parquet: not a whole Parquet file"):
        shard_log(folder, cache=cache)
    assert not cache.exists()


def test_bad_value_is_located_in_its_file(tmp_path: Path) -> None:
    folder, cache = split(tmp_path / "log", 2, "csv"), tmp_path / "cache"
    bad = folder / "day=001" / "part.csv"
    bad.write_text("user_id,item_id,rating\n1,1,1\n2,2,many\n")
    with pytest.raises(DataError, match=r"day=001/part\.csv: column 'rating', row 3: expected a finite number"):
        shard_log(folder, cache=cache)
    with pytest.raises(DataError, match=r"day=001/part\.csv: column 'rating', row 3: expected a finite number"):
        read_log(folder)
    bad.write_text("user_id,item_id,rating\n1,1,1\n,2,3\n")
    with pytest.raises(DataError, match=r"day=001/part\.csv: column 'user_id', row 3: the id is missing"):
        shard_log(folder, cache=cache)
    assert list(cache.iterdir()) == []


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file of that name that ends in \.csv"):
        shard_log(tmp_path / "*.csv")


TEXTS = {
    "plain.csv": "user_id,item_id,rating\n" + "".join(f"{n % 7},{n},{n % 5}\n" for n in range(40)),
    "quoted.csv": '\n\nuser_id,"note\nof two lines",item_id,rating\n'
    + "".join(f'"{n % 7}","a ""note"",\nof {"two, " * (n % 3)}\nlines",i{n},{n % 5}\n' for n in range(40)),
    "named.csv": "".join(f"{n % 7};{n};{n % 5}\r\n" for n in range(40)) + "\n\n",
    "long.dat": "".join(f"{n % 7}::{n:03d}::{n % 5}\n" for n in range(40)),
    "mixed.csv": "user_id,item_id,rating\n" + "".join(f"{'u' * (n > 30)}{n % 7},{n},{n % 5}\n" for n in range(40)),
    "lines.jsonl": "".join(f'{{"item_id": "é{n}", "rating": {n % 5}, "user_id": {n % 7}}}\n' for n in range(40)),
}


PACK: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".zlib": zlib.compress, ".zst": zstandard.compress}


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is read in parts of a few rows."""
    monkeypatch.setattr("counterpoise.data.files.TEXT_PART", 50)
    monkeypatch.setattr("counterpoise.out_of_core.encoding.PARQUET_PART_ROWS", 3)


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.filterwarnings("ignore::counterpoise.errors.ReadingWarning")
def test_text_read_in_parts_is_the_text_read_at_once(
    tmp_path: Path, name: str, compression: str, short_parts: None
) -> None:
    content = TEXTS[name].encode()
    file = tmp_path / (name if compression == ".zlib" else f"{name}{compression}")
    file.write_bytes(PACK[compression](content))
    log = shard_log(file, cache=tmp_path / "cache", shard_rows=7)
    expected = read_log(file).to_frame().select("user_id", "item_id", "rating")
    assert len(expected) == 40
    assert rows_of(log).equals(expected)
    assert len(text_parts(file, layout_of(file, expected.columns), unpacked(file, tmp_path, 0))) > 3
    assert not list((tmp_path / "cache").rglob("unpacked*"))


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("wrong", ["many,", "\xff", '"', "", "\n\n"])
@pytest.mark.filterwarnings("ignore::counterpoise.errors.ReadingWarning")
def test_a_wrong_row_in_a_part_is_named_as_in_a_whole_file(
    tmp_path: Path, name: str, compression: str, wrong: str, short_parts: None
) -> None:
    """A row gets text at its end, or has one field alone, or is followed by blank lines."""
    rows = TEXTS[name].split("\n")
    rows[len(rows) // 4 * 3] = rows[len(rows) // 4 * 3] + wrong if wrong else "a"
    content = "\n".join(rows).encode("latin-1" if wrong == "\xff" else "utf-8")
    file = tmp_path / f"{name}{compression}"
    file.write_bytes(PACK[compression](content))
    messages = []
    for read in (lambda: read_log(file), lambda: shard_log(file, cache=tmp_path / "cache", shard_rows=7)):
        try:
            messages.append(str(len(read())))
        except DataError as error:
            messages.append(str(error))
    if name == "quoted.csv":  # where rows span lines, which one is wrong depends on where one begins
        messages = [re.sub(r"row [0-9]+", "row", message) for message in messages]
    assert messages[1] == messages[0]
    assert (messages[0] == "40") == (name == "lines.jsonl" and "\n" in wrong)


def test_ids_that_are_whole_in_one_part_only_have_one_type(tmp_path: Path, short_parts: None) -> None:
    frame = pl.DataFrame({"user_id": [1.0, 2.0, 3.0, 4.0, 2.5], "item_id": [1, 2, 3, 4, 5], "rating": [1.0] * 5})
    frame.write_parquet(tmp_path / "log.parquet")
    log = shard_log(tmp_path / "log.parquet", cache=tmp_path / "cache")
    assert log.user_ids.column.to_list() == [1.0, 2.0, 2.5, 3.0, 4.0]
    assert rows_of(log).equals(frame)
    frame.with_columns(user_id=pl.lit("a")).write_parquet(tmp_path / "more.parquet")
    log = shard_log(tmp_path / "*.parquet", cache=tmp_path / "cache")
    assert rows_of(log)["user_id"].to_list() == ["1.0", "2.0", "3.0", "4.0", "2.5", *"aaaaa"]


def test_text_is_read_in_short_parts_of_whole_rows(tmp_path: Path) -> None:
    file = tmp_path / "big.csv"
    file.write_text("user_id,item_id,rating\n" + "17,1,1\n" * 1_500_000)
    parts = text_parts(file, layout_of(file))
    assert len(parts) == 3
    assert max(part.stop - part.start for part in parts) < TEXT_PART + 30
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert parts[-1].stop == file.stat().st_size
    assert len(shard_log(file, cache=tmp_path / "cache", memory="64MiB")) == 1_500_000


def test_memory_is_given_with_or_without_a_unit() -> None:
    assert [as_bytes(text) for text in ("4GB", "512 MiB", 1e8)] == [4 * 10**9, 512 * 2**20, 10**8]
    for text in ("4 apples", "-1GB", "1KB", "1.2.3GB"):
        with pytest.raises(ConfigError, match="`memory` must be a size of at least 64 MiB"):
            as_bytes(text)


def test_rows_are_taken_in_any_order(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", 7) as writer:
        writer.append(users=np.arange(30), items=np.arange(30), ratings=np.arange(30) / 2)
        shards = writer.finish((30, 30))
    rows = np.array([29, 0, 7, 7, 6, 13])
    assert shards.take("ratings", rows).tolist() == (rows / 2).tolist()
    assert Shards.open(tmp_path / "shards") == shards


def test_unfinished_writer_leaves_nothing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", 2) as writer:
        writer.append(users=np.arange(9), items=np.arange(9), ratings=np.ones(9))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", [np.arange(7.0), np.arange(10, dtype=np.int32)[2:8:2], np.empty(0, np.float32)])
def test_arrays_are_written_as_numpy_writes_them(values: np.ndarray[Any, Any], tmp_path: Path) -> None:
    write_array(tmp_path / "ours.npy", values)
    np.save(tmp_path / "numpys.npy", values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpys.npy").read_bytes()
