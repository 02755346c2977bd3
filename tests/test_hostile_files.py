"""Files that were made to do harm: pipes, devices, links, small files of huge content, and outputs over inputs."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import zstandard
from command_line import one_line, run
from safetensors.torch import load, save

from counterpoise import ConfigError, DataError, Dataset, load_model
from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.cli import interrupts
from counterpoise.cli.console import MAX_ERROR_LENGTH, print_error, show_json
from counterpoise.data.parquet import MIN_CHECKED_ROWS, MIN_CHECKED_SIZE, check_parquet
from counterpoise.data.reading import read_all_columns
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.shards import Shards
from counterpoise.report.context import load_context, with_baseline
from counterpoise.runs import resolve, stopped_folder
from counterpoise.serve.guard import read_token
from counterpoise.storage import ScratchFolder, check_file, to_json, write_lock

MEBIBYTES = 512  # that a small hostile file may take beyond the program
pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are those of POSIX")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A folder with train.csv, test.csv and a run of both."""
    folder = tmp_path_factory.mktemp("hostile-files")
    assert dataset.test is not None
    for name, log in (("train", dataset.train), ("test", dataset.test)):
        log.to_frame().drop("propensity", strict=False).write_csv(folder / f"{name}.csv")
    fit = ("fit", folder / "train.csv", "--method", "mf", "--epochs", 2, "--set", "dim=2", "--out", folder / "run")
    assert run(*fit, "--quiet")[0] == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def edited(folder: Path, **changes: Any) -> Path:
    """A run whose manifest says something else."""
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | changes))
    return folder


def with_file(folder: Path, name: str, content: bytes) -> Path:
    """A run whose manifest vouches for another content of one of its files."""
    files = json.loads((folder / "run.json").read_text())["files"]
    (folder / files[name]["file"]).write_bytes(content)
    files[name]["sha256"] = hashlib.sha256(content).hexdigest()
    return edited(folder, files=files)


def content_of(folder: Path, name: str) -> bytes:
    return (folder / json.loads((folder / "run.json").read_text())["files"][name]["file"]).read_bytes()


def fitted(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text())["fit"])


def refused(*words: object, reason: str = "") -> None:
    """A command that ends with exit code 2, one line that gives this reason, and nothing else."""
    code, out, err = run(*words)
    assert code == 2, (code, err)
    assert one_line(err)
    assert reason in err
    assert out == ""


# Reports of runs that came from others


def test_report_writes_nothing_to_the_cache_of_a_run(place: Path, tmp_path: Path) -> None:
    cache = tmp_path / "elsewhere"
    fit = fitted(place / "run") | {"engine": "ray", "cache": str(cache), "memory": "100MB", "workers": 3}
    code, _, _ = run("report", edited(place / "run", fit=fit), "--out", tmp_path / "page.html", "--quiet")
    assert code == 0
    assert not cache.exists()
    assert load_context(place / "run").train is not None  # a single file is read all the same


@pytest.mark.parametrize("names", [{"data": "{}/**/*.csv"}, {"data": "{}/logs"}, {"test": "{}/logs"}])
def test_report_walks_no_folder_that_a_run_names(
    names: dict[str, str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "logs" / "deep").mkdir(parents=True)
    shutil.copy(place / "train.csv", place / "logs" / "deep")
    monkeypatch.setattr("counterpoise.data.reading.files_of", lambda path: pytest.fail(f"walks {path}"))
    monkeypatch.setattr("counterpoise.out_of_core.datasets.files_of", lambda path: pytest.fail(f"walks {path}"))
    named = {name: path.format(place) for name, path in names.items()}
    context = load_context(edited(place / "run", fit=fitted(place / "run") | named))
    assert context.train is None
    assert "which a report reads where you name them" in context.notes[0]


def test_report_reads_the_log_that_is_named_on_its_command_line(place: Path) -> None:
    (place / "logs").mkdir()
    shutil.copy(place / "train.csv", place / "logs")
    edited(place / "run", fit=fitted(place / "run") | {"data": str(place / "logs" / "*.csv")})
    words = ("report", place / "run", "--baseline", "none", "--json")
    assert "fitted on many files" in run(*words)[1]
    code, out, _ = run(*words, "--data", place / "logs")
    assert code == 0
    assert "fitted on many files" not in out


def test_epochs_of_a_baseline_are_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((place / "run" / "run.json").read_text())
    configuration = manifest["configuration"] | {"weights": {"part": "Popularity"}}
    configuration["training"] |= {"epochs": 10**9}
    context = load_context(edited(place / "run", configuration=configuration, fit=manifest["fit"] | {"method": "ips"}))
    epochs: list[int] = []
    monkeypatch.setattr(
        "counterpoise.recommender.DebiasedRecommender.fit", lambda model, *_: epochs.append(model.training.epochs)
    )
    with_baseline(context)
    assert epochs == [1000]


def test_baseline_of_other_settings_than_the_model_is_refused(place: Path) -> None:
    manifest = json.loads((place / "run" / "run.json").read_text())
    configuration = manifest["configuration"] | {"weights": {"part": "Popularity"}}
    fit = manifest["fit"] | {"method": "ips", "settings": {"dim": 2**24}}
    context = load_context(edited(place / "run", configuration=configuration, fit=fit))
    with pytest.raises(DataError, match="are not those of its model"):
        with_baseline(context)


# Pipes, devices and links


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def in_place_of_a_shard(place: Path) -> Callable[[], object]:
    log = shard_log(place / "train.csv", cache=place / "cache")
    pipe(log.shards.folder / "users-000000.npy")
    return lambda: log.shards.whole("users")


def as_log_of_shards(place: Path) -> Callable[[], object]:
    return lambda: shard_log(pipe(place / "train.csv"), cache=place / "cache")


def in_place_of_a_result(place: Path) -> Callable[[], object]:
    job, store = Job("coat-like", "mf", 0), Store(place / "results")
    store.open()
    pipe(store.path(job))
    return lambda: store.read(job)


def in_place_of_ids(place: Path) -> Callable[[], object]:
    pipe(next((place / "run").glob("users.*.parquet")))
    return lambda: load_model(place / "run")


def in_place_of_a_manifest(place: Path) -> Callable[[], object]:
    pipe(place / "run" / "run.json")
    return lambda: load_model(place / "run")


def as_configuration(place: Path) -> Callable[[], object]:
    return lambda: resolve(pipe(place / "fit.toml"), {}, {})


def as_token(place: Path) -> Callable[[], object]:
    return lambda: read_token(pipe(place / "token"))


def as_table(place: Path) -> Callable[[], object]:
    return lambda: read_all_columns(pipe(place / "users.parquet"))


PIPES = (in_place_of_a_shard, in_place_of_a_result, in_place_of_ids, in_place_of_a_manifest)


@pytest.mark.parametrize("hostile", [*PIPES, as_configuration, as_token, as_table, as_log_of_shards])
def test_no_pipe_is_waited_for(hostile: Callable[[Path], Callable[[], object]], place: Path) -> None:
    read, started = hostile(place), time.monotonic()
    with pytest.raises((DataError, ConfigError), match="is not a regular file"):
        read()
    assert time.monotonic() - started < 5


def test_files_of_users_that_never_end_are_refused(place: Path) -> None:
    for file in (pipe(place / "ids.txt"), Path("/dev/zero")):
        for option in ("--users-file", "--candidates-file", "--exclude-file", "--ratings", "--exclude-pairs"):
            refused("recommend", place / "run", option, file, reason="is not a regular file")


def test_large_file_is_no_list_of_ids(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.storage.MAX_TEXT_FILE", 1 << 20)
    (place / "ids.txt").write_bytes(b"1\n" * (1 << 20))
    refused("recommend", place / "run", "--users-file", place / "ids.txt", reason="has more than 1 MiB")


def test_report_of_a_file_says_what_a_run_is(place: Path) -> None:
    refused("report", place / "train.csv", reason="is not a saved run")


def test_file_that_becomes_a_pipe_while_it_is_opened_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = place / "train.csv", os.open
    monkeypatch.setattr("os.open", lambda path, *rest: opened(pipe(Path(path)), *rest))
    with pytest.raises(DataError, match="is not a regular file"):
        check_file(file)


def test_links_are_not_followed_in_a_cache(place: Path) -> None:
    log = shard_log(place / "train.csv", cache=place / "cache")
    for name in ("users-000000.npy", "shards.json"):
        file = log.shards.folder / name
        file.rename(place / name)
        file.symlink_to(place / name)
    with pytest.raises(DataError, match="is a link"):
        next(iter(log.shards)).column("users")
    with pytest.raises(DataError, match="is a link"):
        Shards.open(log.shards.folder)


# Small files of huge content


def rows_of(content: str, count: int) -> bytes:
    return b"user_id,item_id,rating\n" + content.encode() * count


def dictionary_bomb(place: Path) -> Path:
    """20 strings of a megabyte, each repeated a thousand times: two kilobytes, and 20 GB when they are written out."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = pa.array([f"{number:02d}" + "x" * 1_000_000 for number in range(20)])
    codes = pa.array([number % 20 for number in range(20_000)], pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, words)
    table = pa.table({"user_id": column, "item_id": pa.array(range(20_000)), "rating": pa.array([0, 1] * 10_000)})
    file = place / "dictionary.parquet"
    options = {"dictionary_pagesize_limit": 1 << 30, "write_statistics": False, "store_schema": False}
    pq.write_table(table, file, compression="zstd", compression_level=9, **options)
    return file


def long_string(place: Path) -> Path:
    """One string of 300 MB."""
    frame = pl.DataFrame({"user_id": ["x" * 300_000_000, "b"], "item_id": [1, 2], "rating": [0, 1]})
    frame.write_parquet(place / "long.parquet", statistics=False)
    return place / "long.parquet"


def long_lists(place: Path) -> Path:
    """A million numbers in each of a hundred rows."""
    rows = pl.Series([pl.repeat(1, 1_000_000, eager=True)] * 100)
    pl.DataFrame({"user_id": range(100), "many": rows}).write_parquet(place / "lists.parquet")
    return place / "lists.parquet"


def short_rows(place: Path) -> Path:
    """Many short rows: each takes more as a row of a log than as text."""
    (place / "rows.csv.gz").write_bytes(gzip.compress(rows_of("1,1,1\n", 9_000_000)))
    return place / "rows.csv.gz"


def short_rows_of_zstandard(place: Path) -> Path:
    (place / "rows.csv.zst").write_bytes(zstandard.compress(rows_of("1,1,1\n", 9_000_000)))
    return place / "rows.csv.zst"


def many_columns(place: Path) -> Path:
    names = ",".join(f"c{number}" for number in range(200_000))
    (place / "wide.csv").write_text(f"{names}\n{names}\n")
    return place / "wide.csv"


BOMBS = (dictionary_bomb, long_string, long_lists, short_rows, short_rows_of_zstandard, many_columns)


READING = """
import json, resource, sys, time
from counterpoise import DataError
from counterpoise.data.reading import read_all_columns, read_log
read_log(sys.argv[1])
before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
for file in sys.argv[2:]:
    for read in (read_log, read_all_columns):
        started, said = time.process_time(), ""
        try:
            read(file)
        except DataError as error:
            said = str(error)
        found.append([file, said, time.process_time() - started])
print(json.dumps([found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10]))
"""  # what reading takes, and what it says


def test_small_files_of_huge_content_take_little(place: Path) -> None:
    files = [bomb(place) for bomb in BOMBS]
    assert all(file.stat().st_size < 4_000_000 for file in files)
    words = [sys.executable, "-c", READING, str(place / "train.csv"), *map(str, files)]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    answers, grown = json.loads(found.stdout)
    for file, said, seconds in answers:
        reasons = ("unpacks to more than", "at most 10,000 are read", "there is no column 'item_id'")
        assert any(reason in said for reason in reasons), (file, said)
        assert seconds < 10, file
    assert grown < MEBIBYTES
    assert found.stderr == ""


def test_first_row_of_millions_of_fields_takes_no_time(place: Path) -> None:
    for number, first in enumerate(("", '"a\n"')):  # in the first line, and in the second one of the first row
        (place / f"{number}.csv").write_text(f"user_id,item_id,rating{first}{',' * 2_000_000}\n")
        started = time.process_time()
        for words in (("fit",), ("recommend", place / "run", "--ratings"), ("fit", place / "train.csv", "--users")):
            refused(*words, place / f"{number}.csv", reason="columns, and at most 10,000 are read")
        assert time.process_time() - started < 5


def test_stored_ids_are_bounded_as_files_are(place: Path) -> None:
    with_file(place / "run", "items.parquet", dictionary_bomb(place).read_bytes())
    refused("recommend", place / "run", reason="unpacks to more than")


def test_ordinary_parquet_is_within_the_bounds() -> None:
    rng, rows = np.random.default_rng(0), 5 * MIN_CHECKED_ROWS // 4
    users, items = np.sort(rng.integers(0, 10**5, rows)), rng.integers(0, 100, rows)
    frame = pl.DataFrame({"user_id": users, "item_id": items.astype(str), "rating": rng.integers(0, 2, rows)})
    assert frame.estimated_size() < MIN_CHECKED_SIZE
    for options in ({}, {"use_pyarrow": True}, {"row_group_size": 10_000}, {"compression": "uncompressed"}):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, **options)
        check_parquet("log", buffer)
    frame = frame.head(1000).with_columns(tags=pl.Series([["a", "b"]] * 1000), none=pl.lit(None))
    for options in ({}, {"use_pyarrow": True, "pyarrow_options": {"data_page_version": "2.0"}}):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, **options)
        check_parquet("log", buffer)


def test_column_chunks_may_not_overlap(tmp_path: Path) -> None:
    """Else a reader would walk the same pages for each of them."""
    buffer = io.BytesIO()
    pl.DataFrame({f"c{number}": range(100) for number in range(30)}).write_parquet(buffer, compression="uncompressed")
    content = buffer.getvalue()
    check_parquet("whole", io.BytesIO(content))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        check_parquet("cut", io.BytesIO(content[:4] + content[len(content) // 2 :]))


def unsigned(number: int) -> bytes:
    """A number as Thrift's compact protocol has it: seven bits a byte, the lowest first."""
    return bytes([number & 127 | 128]) + unsigned(number >> 7) if number > 127 else bytes([number])


def structure(fields: dict[int, Any]) -> bytes:
    """A Thrift structure of numbers, bytes, lists of either, and structures."""
    return b"".join(bytes([kind_of(value)]) + unsigned(2 * n) + encoded(value) for n, value in fields.items()) + b"\0"


def kind_of(value: Any) -> int:
    return {int: 6, bytes: 8, list: 9, dict: 12}[type(value)]


def encoded(value: Any) -> bytes:
    if isinstance(value, int):
        return unsigned(2 * value if value >= 0 else -2 * value - 1)
    if isinstance(value, bytes):
        return unsigned(len(value)) + value
    if isinstance(value, list):
        return bytes([240 | kind_of(value[0])]) + unsigned(len(value)) + b"".join(map(encoded, value))
    return structure(value)


def parquet(page: dict[int, Any], size: int | None = None, chunks: int = 1) -> bytes:
    """A file of one page, in a column chunk of `size` bytes, which may be listed more than once."""
    content = structure(page)
    chunk = {3: {3: [b"c"], 5: 1, 7: len(content) if size is None else size, 9: 4}}
    footer = structure({3: 1, 4: [{1: [chunk] * chunks}]})
    return b"PAR1" + content + footer + len(footer).to_bytes(4, "little") + b"PAR1"


PAGE = {2: 8, 3: 0, 5: {1: 1}}  # bytes unpacked, bytes in the file, values


def with_footer(footer: bytes) -> bytes:
    return b"PAR1" + bytes(16) + footer + len(footer).to_bytes(4, "little") + b"PAR1"


NOT_PARQUET = {
    "chunk of negative size": parquet(PAGE, -1),
    "chunk that is listed often": parquet(PAGE | {9: bytes(200)}, chunks=9),
    "page of negative size": parquet(PAGE | {3: -50}),
    "page that unpacks to a negative size": parquet(PAGE | {2: -8}),
    "header of a page that is cut off": parquet(PAGE, 3),
    "structures in structures": with_footer(b"\x1c" * 40),
    "number of more than 64 bits": with_footer(b"\x16" + b"\xff" * 12 + b"\0"),
    "bytes beyond the end": with_footer(b"\x18\x7f" + bytes(8)),
    "unknown type": with_footer(b"\x1f" + bytes(8)),
}


@pytest.mark.parametrize("kind", NOT_PARQUET)
def test_headers_of_parquet_that_cannot_be_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"not a whole Parquet file \(a page is not where it should be\)"):
        check_parquet("log", io.BytesIO(NOT_PARQUET[kind]))


def test_headers_of_pages_may_be_long_and_hold_all_types() -> None:
    """Statistics of a page can have any length, and a footer fields that are not known here."""
    check_parquet("log", io.BytesIO(parquet(PAGE | {9: bytes(10_000)})))
    whole = parquet(PAGE)
    length = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - length : -9] + b"\x17" + bytes(8) + b"\0"  # a double
    content = whole[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    check_parquet("log", io.BytesIO(content))
    with pytest.raises(DataError, match="unpacks to more than"):
        check_parquet("log", io.BytesIO(parquet(PAGE | {2: 2 * MIN_CHECKED_SIZE, 9: bytes(10_000)})))


# Outputs


def outputs(place: Path) -> list[tuple[object, ...]]:
    run_, train = place / "run", place / "train.csv"
    return [
        ("predict", run_, train),
        ("evaluate", run_, train, "--protocol", "paper"),
        ("recommend", run_),
        ("balance", train, place / "test.csv"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_output_replaces_neither_device_nor_pipe_nor_input(number: int, place: Path) -> None:
    words = outputs(place)[number]
    special = [pipe(place / "pipe.csv"), Path("/dev/null")]
    for out in special:
        refused(*words, "--out", out, reason="is not a regular file, so it is not replaced")
    assert all(not stat.S_ISREG(out.stat().st_mode) for out in special)
    (place / "link.csv").symlink_to("/dev/null")
    refused(*words, "--out", place / "link.csv", reason="is not a regular file")
    for file in [word for word in words if isinstance(word, Path) and word.is_file()]:
        before = file.read_bytes()
        hard = place / "same.csv"
        hard.unlink(missing_ok=True)
        hard.hardlink_to(file)
        for name in (file, hard):
            refused(*words, "--out", name, reason="is read by this command")
        assert file.read_bytes() == before


@pytest.mark.parametrize("number", range(4))
def test_output_replaces_no_file_of_a_run(number: int, place: Path) -> None:
    words = outputs(place)[number]
    for file in (place / "run").iterdir():
        if words[0] == "evaluate" or file.suffix == ".parquet":  # the others write tables
            before = file.read_bytes()
            refused(*words, "--out", file, reason="is a file of the run saved there")
            assert file.read_bytes() == before


def test_output_replaces_no_part_of_a_folder_that_is_read(place: Path) -> None:
    (place / "logs").mkdir()
    part = Path(shutil.copy(place / "train.csv", place / "logs"))
    for log in (place / "logs", place / "logs" / "*.csv"):
        refused("predict", place / "run", log, "--out", part, reason="is read by this command")
    assert run("predict", place / "run", place / "logs", "--out", place / "scores.csv")[0] == 0


def test_commands_with_folders_spare_inputs_too(place: Path) -> None:
    (place / "out").mkdir()
    best = place / "out" / "best.toml"
    best.write_text(f'data = "{place / "train.csv"}"\nmethod = "mf"\n')
    before = best.read_text()
    tune = ("tune", "--config", best, "--trials", 1, "--folds", 2, "--set", "epochs=1", "--out", place / "out")
    refused(*tune, reason="best.toml: is read by this command")
    assert best.read_text() == before
    refused("fit", place / "train.csv", "--out", pipe(place / "fifo"), reason="fifo")
    refused("report", place / "run", "--out", place / "run.html", "--test", place / "run.html", reason="run.html")
    (place / "page.json").mkdir()
    refused("report", place / "run", "--out", place / "page.html", reason="page.json: is a folder")


# Runs of wrong types


def retyped(name: str, kind: torch.dtype) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        tensors = load(content_of(folder, "tensors.safetensors"))
        tensors[name] = tensors[name].to(kind)
        return with_file(folder, "tensors.safetensors", save(tensors))

    return change


def put(name: str, value: float) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        tensors = load(content_of(folder, "tensors.safetensors"))
        tensors[name].view(-1)[0] = value
        return with_file(folder, "tensors.safetensors", save(tensors))

    return change


def without(name: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        tensors = load(content_of(folder, "tensors.safetensors"))
        del tensors[name]
        return with_file(folder, "tensors.safetensors", save(tensors))

    return change


def ids(values: Any, column: str = "id") -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        size = len(pl.read_parquet(io.BytesIO(content_of(folder, "items.parquet"))))
        buffer = io.BytesIO()
        pl.DataFrame({column: values(size)}).write_parquet(buffer)
        return with_file(folder, "items.parquet", buffer.getvalue())

    return change


WRONG = {
    "double table": retyped("scorer.user_factors.weight", torch.float64),
    "half table": retyped("scorer.user_factors.weight", torch.float16),
    "whole table": retyped("scorer.item_factors.weight", torch.int32),
    "double rates": retyped("item_rates", torch.float64),
    "short codes": retyped("seen.items", torch.int32),
    "no table": without("scorer.user_factors.weight"),
    "nan in a table": put("scorer.user_factors.weight", float("nan")),
    "infinite bias": put("scorer.item_bias.weight", float("inf")),
    "nan in the ratios": put("ratio", float("nan")),
    "code of no item": put("seen.items", 10**6),
    "negative code": put("seen.items", -1),
    "bytes": ids(lambda size: [bytes([k]) for k in range(size)]),
    "lengths of time": ids(lambda size: [timedelta(k) for k in range(size)]),
    "lists": ids(lambda size: [[k] for k in range(size)]),
    "nan": ids(lambda size: [float("nan"), *map(float, range(size - 1))]),
    "missing": ids(lambda size: [None, *range(size - 1)]),
    "too few": ids(lambda size: list(range(size - 1))),
    "column of another name": ids(lambda size: list(range(size)), "name"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_run_of_wrong_types_is_one_line(kind: str, place: Path) -> None:
    WRONG[kind](place / "run")
    for command in (("recommend", place / "run", "--json"), ("report", place / "run", "--baseline", "none")):
        refused(*command)


def test_configuration_of_very_many_layers_is_refused_at_once(place: Path) -> None:
    configuration = json.loads((place / "run" / "run.json").read_text())["configuration"]
    backbone = {"part": "NeuralCF", "dim": 2, "hidden": [1] * 200_000}
    edited(place / "run", configuration=configuration | {"backbone": backbone})
    started = time.process_time()
    refused("recommend", place / "run", reason="has more than 1,000 values")
    assert time.process_time() - started < 1


@pytest.mark.parametrize("value", [0.5, "x", [], True])
def test_facts_that_are_no_table_are_one_line(value: Any, place: Path) -> None:
    edited(place / "run", fit=value)
    for words in (("report", place / "run"), ("evaluate", place / "run", place / "test.csv")):
        refused(*words, reason="'fit' must be a table")


def test_number_that_is_none_is_no_json(place: Path) -> None:
    edited(place / "run", fit=fitted(place / "run") | {"protocol": float("nan")})
    refused("evaluate", place / "run", place / "test.csv", "--json", reason="is not valid JSON: NaN")
    facts = {"a": float("nan"), "b": [float("inf"), 1.5], "c": "NaN Infinity", "d": {"e": -float("inf")}}
    assert json.loads(to_json(facts)) == {"a": None, "b": [None, 1.5], "c": "NaN Infinity", "d": {"e": None}}


def test_printed_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    show_json([{"user_id": float("nan"), "score": 0.5}])
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == [{"user_id": None, "score": 0.5}]


def test_lengths_of_time_are_no_ids(place: Path) -> None:
    frame = pl.read_csv(place / "train.csv").with_columns(user_id=pl.duration(days=pl.col("user_id")))
    frame.write_parquet(place / "log.parquet")
    refused("fit", place / "log.parquet", reason="expected numbers, text or dates, got Duration")


# Databases and caches that somebody has changed


@pytest.fixture(scope="module")
def searched(made: Path) -> Path:
    """A folder with a finished search."""
    tune = ("tune", made / "train.csv", "--method", "mf", "--trials", 2, "--folds", 2, "--set", "epochs=1")
    assert run(*tune, "--set", "dim=2", "--out", made / "tuned", "--quiet")[0] == 0
    return made


def search(place: Path) -> tuple[object, ...]:
    tune = ("tune", place / "train.csv", "--method", "mf", "--trials", 3, "--folds", 2, "--set", "epochs=1")
    return (*tune, "--set", "dim=2", "--out", place / "tuned", "--quiet")


@pytest.fixture
def tuned(searched: Path, tmp_path: Path) -> Path:
    shutil.copytree(searched, tmp_path / "tuned-copy")
    return tmp_path / "tuned-copy"


def test_database_that_is_a_link_is_not_touched(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine.db"
    with sqlite3.connect(other) as database:
        database.execute("create table mine (x)")
    before = other.read_bytes()
    (place / "tuned").mkdir()
    for name in ("study.db", "study.db-journal", "study.db-wal"):
        (place / "tuned" / name).symlink_to(other)
        refused(*search(place), reason="is a link")
        (place / "tuned" / name).unlink()
    assert other.read_bytes() == before
    pipe(place / "tuned" / "study.db")
    refused(*search(place), reason="is not a regular file")


EDITS = [
    "update trial_user_attributes set value_json = '3' where key = 'settings'",
    "update trial_user_attributes set value_json = '\"odd\"' where key = 'state'",
    "update trial_user_attributes set value_json = 'null' where key = 'seconds'",
    "update trial_user_attributes set value_json = '[' where key = 'default'",
    "delete from trial_user_attributes where key = 'state'",
    "insert into trial_user_attributes values (9999, 1, 'surplus', '1')",
    "update trial_values set value = 1e999",
    "update trial_values set value_type = 'ODD'",
    "delete from trial_values",
    "update trials set state = 'ODD'",
    "update trials set number = 7",
    "update study_user_attributes set value_json = '[1]'",
    "update study_user_attributes set value_json = '{'",
    "delete from study_user_attributes",
    "update trial_params set param_value = 1e999",
    "update trial_params set distribution_json = '{}'",
    "delete from study_directions",
    "update studies set study_name = ''",
    "drop table trial_intermediate_values",
    "drop table version_info",
    "update version_info set schema_version = 1",
]


@pytest.mark.parametrize("edit", EDITS)
def test_edited_database_is_answered_or_refused_in_one_line(edit: str, tuned: Path) -> None:
    with sqlite3.connect(tuned / "tuned" / "study.db") as database:
        database.execute(edit)
    database.close()
    code, _, err = run(*search(tuned))
    assert code == 0 or (code == 2 and one_line(err)), (code, err)


def test_file_that_is_no_database_is_refused(tuned: Path) -> None:
    (tuned / "tuned" / "study.db").write_bytes(b"precious" * 100)
    refused(*search(tuned), reason="is not a database of a search")


def test_database_of_another_program_is_not_touched(tuned: Path) -> None:
    mine = tuned / "mine.db"
    with sqlite3.connect(mine) as database:
        database.execute("create table mine (x)")
    database.close()
    before = mine.read_bytes()
    (tuned / "tuned" / "study.db").unlink()
    (tuned / "tuned" / "study.db").hardlink_to(mine)
    refused(*search(tuned), reason="is a database of another program")
    assert mine.read_bytes() == before


def test_lock_that_is_a_link_is_one_line(tuned: Path) -> None:
    (tuned / "tuned" / ".at-work.lock").symlink_to(tuned / "nothing")
    refused(*search(tuned), reason="Remove it, or choose another folder.")
    assert not (tuned / "nothing").exists()


def npy(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    return buffer.getvalue()


SHARD_EDITS: dict[str, list[bytes]] = {  # arrays of more rows than the log has, whose headers get its number
    "users-000000.npy": [
        b"",
        b"\x93NUMPY",
        npy(np.zeros(3, np.int32)),
        npy(np.zeros(700, np.float64)),
        npy(np.array([{}] * 700)),
        b"PK\x03\x04" + bytes(100),
    ],
    "items-000000.npy": [npy(np.full(700, -1, np.int32)), npy(np.full(700, 10**6, np.int32))],
    "ratings-000000.npy": [npy(np.full(700, np.nan)), npy(np.full((700, 1), 1.0))],
    "shards.json": [
        *(b"", b"{}", b"[]", b"NaN", b"[" * 10**5, b'{"format_version": 1}'),
        *(
            json.dumps({"format_version": 1, "rows": rows, "shard_rows": size, "users": 60, "items": 50}).encode()
            for rows, size in ((-1, 1), (10**18, 1), ("x", 1), (600, 0), (600.5, 9), (True, 1), (None, 1))
        ),
    ],
    "user_ids.parquet": [b"", b"PAR1", b"PAR1" * 10],
}


@pytest.mark.parametrize("name", SHARD_EDITS)
def test_edited_cache_is_refused_in_one_line(name: str, place: Path) -> None:
    log = shard_log(place / "train.csv", cache=place / "cache")
    file, rows = log.shards.folder / name, len(log)
    for content in SHARD_EDITS[name]:
        file.write_bytes(content.replace(b"(700,", f"({rows},".encode()))
        with pytest.raises(DataError) as error:  # noqa: PT012
            again = shard_log(place / "train.csv", cache=place / "cache")
            [again.shards.whole(column) for column in ("users", "items", "ratings")]
        assert "\n" not in str(error.value)


def test_ids_of_another_log_do_not_go_with_shards(place: Path) -> None:
    log = shard_log(place / "train.csv", cache=place / "cache")
    shutil.copy(log.shards.folder / "item_ids.parquet", log.shards.folder / "user_ids.parquet")
    with pytest.raises(DataError, match="has other ids than its shards"):
        shard_log(place / "train.csv", cache=place / "cache")


def test_cache_whose_facts_are_gone_is_made_again(place: Path) -> None:
    log = shard_log(place / "train.csv", cache=place / "cache")
    (log.shards.folder / "shards.json").unlink()
    assert len(shard_log(place / "train.csv", cache=place / "cache")) == len(log)


# What killed processes leave


def test_scratch_folder_of_a_killed_process_is_swept_by_the_next(tmp_path: Path) -> None:
    alive = ScratchFolder.make(tmp_path, "out")
    for name in (".out.abcd1234.partial", ".other.abcd1234.partial", "out.abcd1234.partial"):
        (tmp_path / name / "inside").mkdir(parents=True)
    with ScratchFolder.make(tmp_path, "out") as place:
        left = {".other.abcd1234.partial", "out.abcd1234.partial", place.parent.name, alive.path.parent.name}
        assert {entry.name for entry in tmp_path.iterdir()} == left
    alive.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_scratch_folder_can_be_locked_by_whoever_writes_there(tmp_path: Path) -> None:
    with ScratchFolder.make(tmp_path, "out") as place, write_lock(place):
        place.rename(tmp_path / "done")
    with ScratchFolder.make(tmp_path / "done", "weights"):
        assert [entry.name for entry in tmp_path.iterdir()] == ["done"]


def test_scratch_folder_beside_a_complete_cache_is_swept_too(place: Path) -> None:
    folder = shard_log(place / "train.csv", cache=place / "cache").shards.folder
    (place / "cache" / f".{folder.name}.abcd1234.partial").mkdir()  # killed between the last rename and its end
    shard_log(place / "train.csv", cache=place / "cache")
    assert list((place / "cache").iterdir()) == [folder]


def test_scratch_folder_beside_a_complete_result_is_swept_too(place: Path) -> None:
    for side in ("user", "item"):
        ids = pl.read_csv(place / "train.csv")[f"{side}_id"].unique().sort()
        pl.DataFrame({f"{side}_id": ids, "a": np.linspace(0, 1, len(ids))}).write_csv(place / f"{side}s.csv")
    tables = ("--users", place / "users.csv", "--items", place / "items.csv", "--cache", place / "cache")
    balance = ("balance", place / "train.csv", *tables, "--out", place / "weighted")
    assert run(*balance)[0] == 0
    (place / ".weighted.abcd1234.partial").mkdir()  # killed between the last rename and its end
    refused(*balance, reason="must be a folder that is new or empty")
    assert not (place / ".weighted.abcd1234.partial").exists()


def test_link_in_place_of_a_scratch_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("")
    (tmp_path / ".out.abcd1234.partial").symlink_to(tmp_path / "mine")
    with ScratchFolder.make(tmp_path, "out"):
        assert (tmp_path / "mine" / "precious").exists()


def test_lock_ends_with_its_block(tmp_path: Path) -> None:
    for _ in range(2):
        with write_lock(tmp_path):
            pass


# The process of the command line


def test_what_nobody_foresaw_is_one_line_and_exit_code_1(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("first\nsecond")

    monkeypatch.setattr("counterpoise.recommender.load_model", fail)
    code, out, err = run("recommend", place / "run")
    assert (code, out) == (1, "")
    assert err.startswith("error: this should not happen: AssertionError: first (")
    assert err.count("\n") == 1
    assert "COUNTERPOISE_DEBUG=1 shows where it came from." in err
    monkeypatch.setenv("COUNTERPOISE_DEBUG", "1")
    with pytest.raises(AssertionError):
        run("recommend", place / "run")


def test_long_message_is_shortened_to_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("beginning " + "x" * 10_000 + " end")
    line = capsys.readouterr().err
    assert len(line) <= MAX_ERROR_LENGTH + 1
    assert line.startswith("beginning")
    assert line.endswith(" end\n")


def test_home_folder_of_nobody_is_one_line(place: Path) -> None:
    nobody = "~nobody-of-this-name/log.csv"
    for words in (
        ("fit", nobody),
        ("predict", place / "run", nobody, "--out", place / "x.csv"),
        ("evaluate", place / "run", nobody),
        ("recommend", nobody),
        ("recommend", place / "run", "--users-file", nobody),
        ("fit", place / "train.csv", "--config", nobody),
        ("balance", nobody, nobody, "--out", place / "x.csv"),
        ("bench", "table", "--datasets", nobody, "--methods", "mf", "--seeds", 1),
    ):
        refused(*words)
    for words in (
        ("predict", place / "run", place / "train.csv"),
        ("fit", place / "train.csv", "--threshold", 3, "--method", "mf", "--epochs", 1),
        ("demo",),
    ):
        refused(*words, "--out", nobody, reason="there is no such home folder. Write the path out, or as ./~...")


def test_results_are_written_to_the_home_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert run("predict", place / "run", place / "train.csv", "--out", "~/new/p.csv")[0] == 0
    assert (tmp_path / "new" / "p.csv").is_file()
    load_model(place / "run").save("~/copy")
    assert load_model("~/copy").user_ids_ == load_model(tmp_path / "copy").user_ids_


def test_name_that_is_no_text_is_refused_to_read_and_can_be_written(place: Path) -> None:
    name = os.fsdecode(b"log-\xff.csv")
    try:
        shutil.copy(place / "train.csv", place / name)
    except OSError as error:
        pytest.skip(f"not a name here: {errno.errorcode[error.errno or 0]}")
    refused("fit", place / name, reason="the name of the file is not UTF-8. Rename it.")
    code, _, _ = run("predict", place / "run", place / "train.csv", "--out", place / os.fsdecode(b"out-\xfe.csv"))
    assert code == 0


def test_words_that_are_no_text_are_one_line(place: Path) -> None:
    odd = os.fsdecode(b"x\xff")
    shutil.copytree(place / "run", place / odd)  # a folder of Parquet
    for words in (
        ("fit", place / "train.csv", "--separator", odd),
        ("fit", place / odd, "--method", "mf"),
        ("recommend", place / "run", "--users", odd),
        ("recommend", place / "run", "--candidates", odd),
        ("balance", place / "train.csv", place / "test.csv", "--header", odd, "--out", place / "w.csv"),
    ):
        refused(*words, reason="UTF-8")


def test_run_may_be_written_into_the_working_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    fit = ("fit", place / "train.csv", "--method", "mf", "--epochs", 1, "--quiet", "--out", ".")
    for _ in range(2):
        assert run(*fit)[0] == 0
    assert len(list((place / "here").iterdir())) == 4
    assert stopped_folder(Path()) == place / "here.stopped"


def started(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "counterpoise", *words], **pipes)


def test_closed_standard_output_is_silent(place: Path) -> None:
    """A reader that has gone, and no output at all."""
    read, write = os.pipe()
    os.close(read)
    gone = started("--version", stdout=write)
    os.close(write)
    assert gone.communicate()[1] == b""
    assert gone.returncode == 141
    line = f"{sys.executable} -m counterpoise methods >&-"
    closed = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, b"")
    line = f"{sys.executable} -m counterpoise recommend {place / 'run'} --json <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], check=False, timeout=60).returncode == 0


def test_ctrl_c_waits_for_the_end_of_an_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("counterpoise.cli.interrupts.RETRY_SECONDS", 0.001)
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.02)\ndone = True\n"
    (tmp_path / "slow_to_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.hold_while_importing()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            import slow_to_import  # type: ignore[import-not-found]

            time.sleep(5)
        assert slow_to_import.done
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start_is_one_line(place: Path) -> None:
    begun = time.monotonic()
    started("fit", str(place / "train.csv"), "--epochs", "1", "--out", str(place / "x"), "--quiet").wait()
    whole = time.monotonic() - begun
    for moment in np.linspace(0.2 * whole, 0.9 * whole, 12):
        process = started("fit", str(place / "train.csv"), "--epochs", "100000", "--out", str(place / "x"), "--quiet")
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1].decode()
        assert process.returncode in (130, -signal.SIGINT), err
        assert err.count("\n") <= 1
        assert "Traceback" not in err
