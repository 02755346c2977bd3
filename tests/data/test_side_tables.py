"""Side features from files of ids and numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.cli.main import main
from counterpoise.errors import ConfigError, DataError


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


def test_features_of_one_side_suffice(files: Path) -> None:
    log = cp.load_dataset(files / "log.csv", users=files / "users.csv").train
    assert log.user_features is not None
    assert log.item_features is None


def test_id_without_a_row_is_named(files: Path) -> None:
    pl.DataFrame({"user_id": ["a"], "age": [1]}).write_csv(files / "few.csv")
    with pytest.raises(DataError, match="no row for 1 of 2 users of the log, the first is 'b'"):
        cp.load_dataset(files / "log.csv", users=files / "few.csv")


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


def test_value_that_is_not_a_number_is_located(files: Path) -> None:
    (files / "odd.csv").write_text("user_id,age\na,1\nb,NaN\n")
    with pytest.raises(DataError, match=r"odd\.csv: column 'age', row 3: expected a finite number"):
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
