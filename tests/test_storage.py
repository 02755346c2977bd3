"""Saved folders: whole or not at all, checked, and never executed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise import ConfigError, DataError, DebiasedRecommender
from counterpoise import storage as store
from counterpoise.data.side_tables import TableEncoder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_written_run_is_read_back(tmp_path: Path) -> None:
    store.write_folder(tmp_path / "a" / "run", {"answer": 42}, {"x.bin": b"123", "y.bin": b""})
    manifest, files = store.read_folder(tmp_path / "a" / "run")
    assert manifest["answer"] == 42
    assert files == {"x.bin": b"123", "y.bin": b""}


def test_second_write_replaces_the_first(tmp_path: Path) -> None:
    store.write_folder(tmp_path, {}, {"x.bin": b"old", "z.bin": b"same"})
    (tmp_path / ".x.0123456789ab.bin.abc.partial").write_bytes(b"left by an interrupted write")
    (tmp_path / "x.0123456789ab.bin").write_bytes(b"left by another")
    own = {"notes.txt", ".mine.partial", "x.bin"}
    for name in own:
        (tmp_path / name).write_text("the user's own")
    store.write_folder(tmp_path, {}, {"x.bin": b"new", "z.bin": b"same"})
    assert store.read_folder(tmp_path)[1] == {"x.bin": b"new", "z.bin": b"same"}
    assert len(files_of(tmp_path)) == 3 + len(own)
    assert all((tmp_path / name).read_text() == "the user's own" for name in own)


@pytest.mark.parametrize("fail_at", range(8))
def test_interrupted_write_leaves_the_old_or_the_new_run(
    fail_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = {"x.bin": b"old", "y.bin": b"old"}, {"x.bin": b"new", "y.bin": b"new"}
    store.write_folder(tmp_path, {}, old)
    steps = iter(range(100))

    def interrupted(function):
        def wrapper(*args, **kwargs):
            if next(steps) == fail_at:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(Path, "replace", interrupted(Path.replace))
    monkeypatch.setattr(Path, "chmod", interrupted(Path.chmod))
    monkeypatch.setattr(Path, "unlink", interrupted(Path.unlink))
    with contextlib.suppress(KeyboardInterrupt):
        store.write_folder(tmp_path, {}, new)
    monkeypatch.undo()
    assert store.read_folder(tmp_path)[1] in (old, new)
    store.write_folder(tmp_path, {}, new)
    assert store.read_folder(tmp_path)[1] == new
    assert not list(tmp_path.glob(".*"))


def test_full_disk_keeps_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_folder(tmp_path, {}, {"x.bin": b"old"})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"cannot be written: No space left on device\. What was there is unharmed"):
        store.write_folder(tmp_path, {}, {"x.bin": b"new"})
    assert store.read_folder(tmp_path)[1] == {"x.bin": b"old"}


@pytest.fixture
def run(fitted: DebiasedRecommender, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "run")
    return tmp_path / "run"


def edit_manifest(run: Path, **changes: object) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | changes))


def test_folder_without_a_run_is_no_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"is not a saved run: there is no run\.json"):
            cp.load_model(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": "other"}', "\x00\x01", "NaN"])
def test_foreign_manifest_is_refused(content: str, run: Path, fitted: DebiasedRecommender) -> None:
    (run / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json"):
        cp.load_model(run)
    with pytest.raises(DataError, match="nothing was written"):
        fitted.save(run)
    assert (run / "run.json").read_text() == content


def test_newer_format_is_refused(run: Path) -> None:
    edit_manifest(run, format_version=99)
    with pytest.raises(DataError, match=r"has format version 99.*Upgrade counterpoise"):
        cp.load_model(run)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_run_of_an_older_format_must_be_fitted_again(run: Path, fitted: DebiasedRecommender, version: int) -> None:
    edit_manifest(run, format_version=version)
    with pytest.raises(DataError, match=rf"run\.json is a run of format {version}, .* reads format 4\. Fit it again"):
        cp.load_model(run)
    fitted.save(run)  # the same folder may be used
    assert store.read_manifest(run)["format_version"] == 4


def test_truncated_or_changed_file_is_refused(run: Path) -> None:
    for path in [path for path in run.iterdir() if path.name != "run.json"]:
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], b"", content[:-1] + bytes([content[-1] ^ 1])):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="is damaged"):
                cp.load_model(run)
        path.unlink()
        with pytest.raises(DataError, match="there is no such file"):
            cp.load_model(run)
        path.write_bytes(content)
    cp.load_model(run)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", "..", ""])
def test_manifest_cannot_point_out_of_its_folder(name: str, run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest["files"]["users.parquet"]["file"] = name
    (run / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="not a file of this folder"):
        cp.load_model(run)


def test_link_in_the_folder_is_not_followed(run: Path, tmp_path: Path) -> None:
    users = next(run.glob("users.*"))
    users.rename(tmp_path / "elsewhere")
    users.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link"):
        cp.load_model(run)


def test_saving_over_a_hostile_manifest_deletes_nothing(run: Path, fitted: DebiasedRecommender, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    edit_manifest(run, files={"users.parquet": {"file": "../precious", "sha256": ""}})
    with pytest.raises(DataError, match="nothing was written"):
        fitted.save(run)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []}, {"files": {"users.parquet": 3}}, {"files": {}}, {"configuration": {"part": "Popen"}},
        {"configuration": {"part": "Training"}}, {"configuration": None}, {"configuration": "x"}, {"log": {}},
        {"history": {"x": 1}},
        {"configuration": {"part": "DebiasedRecommender", "backbone": {"part": "MatrixFactorization", "dim": 9}}},
    ],
)  # fmt: skip
def test_inconsistent_manifest_is_one_clear_error(changes: dict[str, object], run: Path) -> None:
    edit_manifest(run, **changes)
    with pytest.raises(DataError) as error:
        cp.load_model(run)
    assert "\n" not in str(error.value)


ONE_FEATURE = TableEncoder().fit(pl.DataFrame({"age": [30.5, 40.5]})).to_dict()


@pytest.mark.parametrize(
    ("table", "changes", "reason"),
    [
        ("history", {"loss": ["low"]}, "'history' must hold numbers"),
        ("log", {"threshold": "four"}, "'log' must hold the threshold and the rows as numbers"),
        ("log", {"feature_columns": [1]}, "'log' must hold how many features users and items have"),
        ("log", {"columns": {"who": "user"}}, "'log' must hold the names of its columns"),
        ("parts", {"weights": 3}, "'parts' must have tables of weights and imputation"),
        ("parts", {"risk": "low"}, "'parts' must hold the risk as a number"),
        ("side_encoders", {"user": ONE_FEATURE}, r"'side_encoders' must have \d+ features, got 1"),
    ],
)
def test_wrong_facts_of_a_manifest_are_named(table: str, changes: dict[str, object], reason: str, run: Path) -> None:
    edit_manifest(run, **{table: json.loads((run / "run.json").read_text())[table] | changes})
    with pytest.raises(DataError, match=reason):
        cp.load_model(run)


def test_run_needs_a_loss_of_rows_for_each_predictor(run: Path) -> None:
    edit_manifest(run, row_losses=[])
    with pytest.raises(DataError, match="must hold a loss of rows for each of its predictors"):
        cp.load_model(run)


def test_folder_that_is_written_for_too_long_is_an_error(
    run: Path, fitted: DebiasedRecommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr(store, "LOCK_RETRY", 0.001)
    with store.write_lock(run), pytest.raises(DataError, match="is being written by another process for more than 0 s"):
        fitted.save(run)


def test_facts_are_kept_with_the_model(fitted: DebiasedRecommender, tmp_path: Path) -> None:
    fitted.save(tmp_path, evaluation={"auc": 0.7})
    assert store.read_manifest(tmp_path)["evaluation"] == {"auc": 0.7}
    for facts in ({"auc": float("nan")}, {"auc": np.float32(0.5)}, {"files": {}}, {"configuration": 1}):
        with pytest.raises(ConfigError):
            fitted.save(tmp_path, **facts)
    assert store.read_manifest(tmp_path)["evaluation"] == {"auc": 0.7}
    assert len(files_of(tmp_path)) == 4


def test_fit_facts_that_are_no_dict_are_refused(fitted: DebiasedRecommender, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`fit` must be a dict of facts, got 'by hand'"):
        fitted.save(tmp_path / "run", fit="by hand")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_tables_are_written_by_their_ending(ending: str, tmp_path: Path) -> None:
    frame, path = pl.DataFrame({"a": [1, 2], "b": ["x", "y,z"]}), tmp_path / "new" / f"t{ending}"
    store.write_table(frame, path)
    back = (
        pl.read_parquet(path) if ending == ".parquet" else pl.read_csv(path, separator="," if "c" in ending else "\t")
    )
    assert back.equals(frame)


def test_table_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.parquet, \.csv, \.tsv, got"):
        store.write_table(pl.DataFrame({"a": [1]}), tmp_path / "t.xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        store.write_table(pl.DataFrame({"a": [1]}), tmp_path / "file" / "t.csv")
