"""Side features from files and frames of users and items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.cli.main import main
from counterpoise.data.reading import read_side_table
from counterpoise.errors import ConfigError, DataError, ReadingWarning


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Users b and a, items 3, 1 and 2; the files have them in another order, and one more."""
    log = pl.DataFrame({"user_id": ["b", "a", "b", "a"], "item_id": [3, 1, 1, 2], "rating": [1.0, 0.0, 0.0, 1.0]})
    log.write_csv(tmp_path / "log.csv")
    pl.DataFrame({"user_id": ["c", "a", "b"], "age": [1, 2, 3], "tall": [0, 1, 0]}).write_csv(tmp_path / "users.csv")
    pl.DataFrame({"item_id": [1, 2, 3], "price": [0.5, 1.5, 2.5]}).write_parquet(tmp_path / "items.parquet")
    return tmp_path


def test_every_id_gets_its_own_row(files: Path) -> None:
    log = cp.load_dataset(files / "log.csv", users=files / "users.csv", items=files / "items.parquet").train
    assert log.user_features is not None
    assert log.item_features is not None
    by_user = dict(zip(log.user_ids.decode(np.arange(2)), log.user_features.tolist(), strict=True))
    by_item = dict(zip(log.item_ids.decode(np.arange(3)), log.item_features.ravel().tolist(), strict=True))
    assert by_user == {"a": [2.0, 1.0], "b": [3.0, 0.0]}
    assert by_item == {1: 0.5, 2: 1.5, 3: 2.5}


def test_tables_may_be_frames_and_have_the_separator_of_the_log(files: Path) -> None:
    expected = cp.load_dataset(files / "log.csv", users=files / "users.csv").train.user_features
    for file, separator in (("log.csv", ";"), ("users.csv", ";")):
        (files / file).write_text((files / file).read_text().replace(",", separator))
    frame = pl.read_csv(files / "users.csv", separator=";")
    for users in (frame, files / "users.csv"):
        found = cp.load_dataset(files / "log.csv", users=users, separator=";").train
        assert np.array_equal(found.user_features, expected)


def test_features_of_one_side_suffice(files: Path) -> None:
    log = cp.load_dataset(files / "log.csv", users=files / "users.csv").train
    assert log.user_features is not None
    assert log.item_features is None


def test_id_without_a_row_is_missing_in_all_columns(files: Path) -> None:
    pl.DataFrame({"user_id": ["a"], "age": [1]}).write_csv(files / "few.csv")
    with pytest.warns(ReadingWarning, match=r"few.csv: .* 1 of 2 ids have no row: they count as missing"):
        log = cp.load_dataset(files / "log.csv", users=files / "few.csv").train
    assert log.user_feature_names == ["age", "age (missing)"]
    assert log.user_features is not None
    assert log.user_features.tolist() == [[1, 0], [1, 1]]
    pl.DataFrame({"user_id": ["z"], "age": [1]}).write_csv(files / "none.csv")
    with pytest.raises(DataError, match=r"none.csv: no id of the log has a row: those here are such as 'z'"):
        cp.load_dataset(files / "log.csv", users=files / "none.csv")


def test_named_datasets_have_features_of_their_own(files: Path) -> None:
    with pytest.raises(ConfigError, match="`users` and `items` go with your own files"):
        cp.load_dataset("simulated", users=files / "users.csv")


def test_command_line_fits_with_side_features(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--users", str(files / "users.csv"), "--items", str(files / "items.parquet")]
    run = ["fit", str(files / "log.csv"), "--out", str(files / "run"), "--epochs", "2", *sides, "--quiet"]
    assert main(run) == 0
    assert cp.load_model(files / "run").log_facts_["feature_columns"] == [2, 1]
    wrong = [*run[:-5], "--users", str(files / "items.parquet"), "--quiet"]
    assert main(wrong) != 0
    assert "there is no column 'user_id'" in capsys.readouterr().err


def test_id_in_two_rows_is_named(files: Path) -> None:
    pl.DataFrame({"user_id": ["a", "b", "b"], "age": [1, 2, 3]}).write_csv(files / "twice.csv")
    with pytest.raises(DataError, match="column 'user_id': 'b' is in more than one row"):
        cp.load_dataset(files / "log.csv", users=files / "twice.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,age\na,1\nb,inf\n", r"odd.csv: column 'age', row 3: expected a finite number, got 'inf'"),
        ("a,1\nb,inf\n", r"odd.csv: column 'column_2', row 2: expected a finite number"),
        (
            "user,age\na,1\nb,2\n",
            r"no column 'user_id'; .* Did you mean 'user'\? The column of ids must be called as in",
        ),
        ("user_id,name\na,al\nb,bo\nc,cy\n", r"no feature beside 'user_id': name \(no level is frequent\)"),
        ("a,1\na,2\n", "must have another id in the first field of each row"),
        ("user_id\na\nb\n", "there is no column of features besides 'user_id'. Add one"),
        ("user_id,age\na,1\nb\n", "row 3: expected 2 fields as in the first row, got 1"),
    ],
)
def test_bad_side_table_is_an_error_that_says_where(files: Path, text: str, message: str) -> None:
    (files / "odd.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        cp.load_dataset(files / "log.csv", users=files / "odd.csv")


def test_feature_past_float32_is_refused(files: Path) -> None:
    pl.DataFrame({"user_id": ["a", "b"], "age": [1.0, 6e39]}).write_csv(files / "large.csv")
    with pytest.raises(DataError, match="past float32"):
        cp.load_dataset(files / "log.csv", users=files / "large.csv")


def test_unused_features_are_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["fit", str(files / "log.csv"), "--epochs", "2", "--users", str(files / "users.csv")]
    assert main([*run, "--method", "mf", "--out", str(files / "plain")]) == 0
    assert "are not used here" in " ".join(capsys.readouterr().out.split())
    assert main([*run, "--method", "mf", "--out", str(files / "sided"), "--set", "side_features=true"]) == 0
    assert "are not used here" not in " ".join(capsys.readouterr().out.split())


GENRES = 4


def write_raw_files(folder: Path) -> None:
    """Files in the form of MovieLens 100K: no headers, two separators, Latin-1, gaps, ids without a row."""
    rng = np.random.default_rng(0)
    jobs = rng.choice(["technician", "student", "writer", ""], 60, p=[0.4, 0.3, 0.2, 0.1])
    users = [
        f"{u}|{'' if u % 9 == 0 else 20 + u % 30}|{'MF'[u % 2]}|{jobs[u - 1]}|{10000 + 37 * u if u % 7 else 'V3N4P'}"
        for u in range(1, 61)
    ]
    flags = (rng.random((50, GENRES)) < 0.4).astype(int)
    items = [
        f"{i}|Café {i} ({1950 + i})|{'' if i % 11 == 0 else f'{1 + i % 28:02d}-Jan-{1950 + i}'}||http://a.b/?{i}|"
        + "|".join(map(str, flags[i - 1]))
        for i in range(1, 51)
    ]
    pairs = rng.permutation(62 * 51)[:900]
    rows = [f"{1 + p // 51}\t{1 + p % 51}\t{1 + p % 5}\t{881250949 + p}" for p in pairs]
    for name, lines in (("u.user", users), ("u.item", items), ("u.data", rows)):
        (folder / name).write_bytes(("\n".join(lines) + "\n").encode("latin-1"))


def test_raw_files_fit_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_raw_files(tmp_path)
    files = {name: str(tmp_path / f"u.{name}") for name in ("data", "user", "item")}
    words = ["fit", files["data"], "--threshold", "4", "--users", files["user"], "--items", files["item"]]
    assert main([*words, "--epochs", "2", "--report", "--out", str(tmp_path / "run")]) == 0
    warned = capsys.readouterr().err
    assert "column_5 (most values occur once). 2 of 62 ids have no row" in warned
    assert "not UTF-8, read as Windows-1252): 5 columns as 7 features. Left out: column_2, column_5" in warned
    model = cp.load_model(tmp_path / "run")
    users, items = model.side_encoders_["user"], model.side_encoders_["item"]
    assert users is not None
    assert users.feature_names_[:4] == ["column_2", "column_2 (missing)", "column_3=F", "column_3=M"]
    assert {"column_4=student", "column_4 (missing)"} <= set(users.feature_names_)
    assert items is not None
    assert items.feature_names_[:2] == ["column_3 (year)", "column_3 (missing)"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "user column_4=student" in page
    assert "Left out: column_2, column_5" in page


@pytest.mark.cpu
def test_stored_encoder_gives_new_rows_the_features_of_the_fit(tmp_path: Path) -> None:
    write_raw_files(tmp_path)
    with pytest.warns(ReadingWarning):
        log = cp.load_dataset(tmp_path / "u.data", threshold=4, items=tmp_path / "u.item").train
    model = cp.make("mf", side_features=True, epochs=2).fit(log)
    model.save(tmp_path / "run")
    encoder = cp.load_model(tmp_path / "run").side_encoders_["item"]
    assert encoder is not None
    ids, features = encoder.transform(read_side_table(tmp_path / "u.item", "item_id").frame)
    known = log.item_ids.encode(ids.column)
    assert log.item_features is not None
    assert np.allclose(features, log.item_features[known], rtol=1e-6)
    used = model.scorer_.item_features.numpy()[known, 1:]  # as the backbone has them
    assert np.allclose(encoder.standardise(features), used, atol=1e-4)


def test_frames_of_users_and_items_become_named_features() -> None:
    log = cp.FeedbackLog.from_arrays([1, 1, 2, 3], ["x", "y", "x", "z"], [1, 0, 1, 0])
    users = pl.DataFrame({"user_id": [3, 2, 1], "team": ["red", "blue", "red"], "fee": [1, 2, 1]})
    items = pl.DataFrame({"item_id": ["x", "y", "z"], "tags": [["a"], ["a", "b"], ["b"]]}).to_pandas()
    found = log.with_side_tables(users, items, categorical=["fee"])
    assert found.user_feature_names == ["team=red", "fee=1"]
    assert found.user_features is not None
    assert found.user_features.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert found.item_feature_names == ["tags=a", "tags=b"]
    assert found.item_features is not None
    assert found.item_features.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert found.take([0]).item_feature_names == found.item_feature_names
    with pytest.raises(DataError, match=r"`categorical` names 'fees'; .* Did you mean 'fee'"):
        log.with_side_tables(users, categorical=["fees"])
    with pytest.raises(ConfigError, match="neither is given"):
        log.with_side_tables(categorical=["fee"])
    with pytest.raises(DataError, match="the table of users: there is no column 'user_id'"):
        log.with_side_tables(users.rename({"user_id": "user"}))


def test_features_of_arrays_are_numbered() -> None:
    log = cp.FeedbackLog.from_arrays([1, 2], [1, 2], [1, 0], user_features=[[1.0, 2.0], [3.0, 4.0]])
    assert log.user_feature_names == ["feature 1", "feature 2"]
    assert log.item_feature_names == []
