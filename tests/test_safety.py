"""Files from others are data: nothing in them is executed, and nothing in them leads out of their folder."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import one_line, run

from counterpoise import DataError, Dataset, DebiasedRecommender, FeedbackLog, load_model, make
from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.data.reading import read_log
from counterpoise.errors import ConfigError
from counterpoise.runs import parse_settings, resolve
from counterpoise.storage import write_folder, write_text

NESTED = 100_000


@pytest.fixture
def saved(dataset: Dataset, tmp_path: Path) -> Path:
    make("mf", epochs=2, dim=2).fit(dataset.train).save(tmp_path / "run")
    return tmp_path / "run"


def edited(run: Path, **changes: Any) -> Path:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | changes))
    return run


def with_file(run: Path, name: str, content: bytes) -> Path:
    """A run whose manifest vouches for another content of one of its files."""
    manifest = json.loads((run / "run.json").read_text())
    entry = manifest["files"][name]
    (run / entry["file"]).write_bytes(content)
    entry["sha256"] = hashlib.sha256(content).hexdigest()
    return edited(run, files=manifest["files"])


def test_foreign_classes_are_not_constructed(saved: Path, tmp_path: Path) -> None:
    for part in ("os.system", "subprocess.Popen", "counterpoise.cli.main.main", "__import__", "Path"):
        with pytest.raises(DataError, match="must name a part of counterpoise"):
            load_model(edited(saved, configuration={"part": part, "command": f"touch {tmp_path / 'done'}"}))
    assert not (tmp_path / "done").exists()


def test_pickle_in_place_of_tensors_is_not_opened(saved: Path, tmp_path: Path) -> None:
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "done").encode() + b"'\ntR."
    for name in ("tensors.safetensors", "users.parquet"):
        with pytest.raises(DataError):
            load_model(with_file(saved, name, evil))
    assert not (tmp_path / "done").exists()


def test_manifest_that_is_a_link_is_not_followed(saved: Path, tmp_path: Path) -> None:
    (saved / "run.json").rename(tmp_path / "elsewhere.json")
    (saved / "run.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DataError, match="is a link"):
        load_model(saved)


def test_result_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    job, store = Job("coat-like", "mf", 0), Store(tmp_path / "results")
    store.open()
    (tmp_path / "elsewhere.json").write_text("{}")
    store.path(job).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DataError, match="is a link"):
        store.read(job)


def test_writing_over_a_link_replaces_only_the_link(tmp_path: Path) -> None:
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("mine")
    out.mkdir()
    for name in ("page.html", ".page.html.partial", "run.json.x", ".run.json.partial", ".a.partial"):
        (out / name).symlink_to(precious)
    write_text(out / "page.html", "ours")
    write_folder(out, {}, {"a.bin": b"1"})
    assert precious.read_text() == "mine"
    assert (out / "page.html").read_text() == "ours"
    assert not (out / "page.html").is_symlink()


def test_report_does_not_include_files_named_by_a_run(saved: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password,of,root\nhunter2,1,2\n")
    for data in (str(secret), "../secret.csv", "/etc/passwd", "/dev/zero", str(tmp_path)):
        code, _, _ = run("report", edited(saved, fit={"data": data}), "--out", tmp_path / "page.html", "--json")
        assert code == 0
        text = (tmp_path / "page.html").read_text() + (tmp_path / "page.json").read_text()
        assert ("reads where you name them" if data == str(tmp_path) else "could not be read again") in text
        assert not any(word in text for word in ("password,", "hunter2", "root:"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.csv")
    started = time.monotonic()
    for file in (tmp_path / "log.csv", Path("/dev/zero")):
        with pytest.raises(DataError, match="is not a regular file"):
            read_log(file, separator=",")
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("text", ["[" * NESTED, '{"a":' * NESTED, "[" * NESTED + "]" * NESTED])
def test_deep_nesting_is_one_line(text: str, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(f"data = {text}")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve(tmp_path / "fit.toml", {}, {})
    assert isinstance(parse_settings([f"dim={text}"])["dim"], str)
    (saved / "run.json").write_text(text)
    code, _, err = run("recommend", saved)
    assert code == 2
    assert one_line(err)
    job, store = Job("coat-like", "mf", 0), Store(tmp_path / "results")
    store.open()
    store.path(job).write_text(text)
    with pytest.raises(DataError, match="Delete it, and the fit is made again"):
        store.read(job)


@pytest.mark.parametrize("shape", [[2**40], [2**31, 2**31], [-1], [2**70]])
def test_huge_tensor_header_is_refused(shape: list[int], saved: Path) -> None:
    header = json.dumps({"ratio": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(16)
    with pytest.raises(DataError, match="its parts do not fit together"):
        load_model(with_file(saved, "tensors.safetensors", content))
    with pytest.raises(DataError, match="its parts do not fit together"):
        load_model(with_file(saved, "tensors.safetensors", struct.pack("<Q", 2**62) + header))


def test_model_with_impossible_dimensions_is_refused(saved: Path, fitted: DebiasedRecommender) -> None:
    big = {"part": "DebiasedRecommender", "backbone": {"part": "MatrixFactorization", "dim": 2**40}}
    with pytest.raises(DataError, match="its parts do not fit together"):
        load_model(edited(saved, configuration=big))


def test_ids_that_look_like_paths_or_formulas_stay_ids(tmp_path: Path) -> None:
    ids = ["../../etc/passwd", "/etc/passwd", "=cmd()", "{{7*7}}", "%s%n", "$(touch x)", "`touch x`", "\x1b[31m"]
    model = make("mf", epochs=1).fit(FeedbackLog.from_arrays(ids, ids[::-1], [0, 1] * 4))
    model.save(tmp_path / "run")
    assert set(load_model(tmp_path / "run").recommend(k=1)["user_id"]) == set(ids)
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "run").iterdir()) == [
        "items",
        "run",
        "tensors",
        "users",
    ]
