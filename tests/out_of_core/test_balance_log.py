"""`counterpoise balance` on a log in many files: all of its rows come back, with weights that balance all pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import counterpoise as cp
from counterpoise.cli.main import main

RNG = np.random.default_rng(1)
USERS = pl.DataFrame({"user_id": [f"u{n}" for n in range(40)], "age": RNG.normal(40, 9, 40), "days": RNG.random(40)})
ITEMS = pl.DataFrame({"item_id": np.arange(100, 130), "price": RNG.random(30)})
CHANCE = np.exp(USERS["age"].to_numpy() / 15)
LOG = pl.DataFrame(
    {
        "day": ["monday"] * 900,
        "user_id": RNG.choice(USERS["user_id"].to_numpy(), 900, p=CHANCE / CHANCE.sum()),
        "item_id": RNG.choice(ITEMS["item_id"].to_numpy(), 900),
        "stars": RNG.integers(1, 6, 900),
    }
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    USERS.write_csv(tmp_path / "users.csv")
    ITEMS.write_parquet(tmp_path / "items.parquet")
    (tmp_path / "log").mkdir()
    LOG[:500].write_parquet(tmp_path / "log" / "a.parquet")
    LOG[:0].write_parquet(tmp_path / "log" / "b.parquet")
    LOG[500:].write_csv(tmp_path / "log" / "c.csv")
    (tmp_path / "log" / "d.csv").write_text("day,user_id,item_id,stars\n")
    return tmp_path


def command(folder: Path, *more: str, log: str = "log") -> list[str]:
    sides = ["--users", str(folder / "users.csv"), "--items", str(folder / "items.parquet")]
    return ["balance", str(folder / log), *sides, "--out", str(folder / "out"), *more]


def test_all_rows_come_back_with_balancing_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--moments", "1", "--tolerance", "0", "--memory", "100MB", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    found = pl.concat([pl.read_parquet(file) for file in sorted((folder / "out").iterdir())])
    assert found.drop("weight").equals(LOG)
    assert (facts["rows"], facts["users"], facts["items"], facts["status"]) == (900, 40, 30, "solved")
    weights = found["weight"].to_numpy()
    assert facts["effective_sample_size"] == pytest.approx(1 / (weights**2).sum())
    features = found.join(USERS, on="user_id").join(ITEMS, on="item_id")
    for name, table in (("age", USERS), ("days", USERS), ("price", ITEMS)):
        assert float(weights @ features[name].to_numpy()) == pytest.approx(float(table[name].mean()), rel=1e-6)
    assert not list((folder / "cache").rglob("weights-*"))


def test_kernels_are_balanced_for_a_glob(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--n-functions", "10", log="log/*")) == 0
    shown = capsys.readouterr().out
    assert "900 rows of 40 users x 30 items, 10 functions: largest imbalance" in shown
    assert f"written to {folder / 'out'}" in shown


def test_wrong_file_is_one_error_and_no_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOG.rename({"item_id": "product"}).write_parquet(folder / "log" / "b.parquet")
    assert main(command(folder, "--quiet")) == 2
    error = capsys.readouterr().err
    assert "b.parquet: there is no column 'item_id'" in error
    assert len(error.splitlines()) == 1
    LOG.with_columns(user_id=pl.lit("nobody")).write_parquet(folder / "log" / "b.parquet")
    assert main(command(folder)) == 2
    assert "b.parquet: unknown user 'nobody' (and 899 more)" in capsys.readouterr().err
    LOG.with_columns(weight=1.0).write_parquet(folder / "log" / "b.parquet")
    assert main(command(folder)) == 2
    assert "b.parquet: the column 'weight' has the name of the result" in capsys.readouterr().err
    assert not (folder / "out").exists()
    assert not list((folder / "cache").rglob("*.npy"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["balance", "{}/log", "--out", "{}/out"], "give --users and --items, and no POPULATION"),
        (["balance", "{}/users.csv", "--out", "{}/out"], "`population` must be given"),
        (["balance", "{}/log", "{}/users.csv"], "`out` must be given"),
        (
            ["balance", "{}/none/*.csv", "--users", "{}/users.csv", "--items", "{}/items.parquet", "--out", "{}/out"],
            "no file",
        ),
        (
            ["balance", "{}/log", "--users", "{}/none.csv", "--items", "{}/items.parquet", "--out", "{}/out"],
            "no such file",
        ),
        (
            ["balance", "{}/log", "--users", "{}/items.parquet", "--items", "{}/items.parquet", "--out", "{}/out"],
            "'user_id'",
        ),
        (
            ["balance", "{}/log", "--users", "{}/users.csv", "--items", "{}/items.parquet", "--out", "{}/w.csv"],
            "new or empty",
        ),
        (
            ["balance", "{}/log", "--users", "{}/users.csv", "--items", "{}/items.parquet", "--out", "{}/log"],
            "new or empty",
        ),
    ],
)
def test_errors_name_missing_or_wrong_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([word.format(folder) for word in words]) == 2
    assert message in capsys.readouterr().err


def test_greedy_rule_balances_a_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(folder, "--select", "greedy", "--n-functions", "4"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "solved"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--memory", "lots"], "`memory` must be a size of at least 64 MiB"),
        (["--workers", "0"], "`workers` must be an integer >= 1"),
        (["--max-weight", "0.1"], "--max-weight, --features and --sample-weights go with a POPULATION"),
    ],
)
def test_invalid_settings_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(command(folder, *more)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_ray_runs_for_the_command_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'counterpoise[ray]'")
    assert main(command(folder, "--n-functions", "5", "--json")) == 0
    here = json.loads(capsys.readouterr().out)
    (folder / "out").rename(folder / "here")
    assert main(command(folder, "--n-functions", "5", "--json", "--engine", "ray", "--workers", "2")) == 0
    there = json.loads(capsys.readouterr().out)
    assert not ray.is_initialized()
    np.testing.assert_allclose(there["dual"], here["dual"], rtol=1e-10)
    first, second = (pl.read_parquet(folder / name)["weight"].to_numpy() for name in ("here", "out"))
    np.testing.assert_allclose(first, second, rtol=1e-10)


def test_frames_are_balanced_as_their_files(folder: Path) -> None:
    options = {"functions": cp.Moments(1), "tolerance": 0.0}
    written = cp.balance_log(folder / "log", folder / "users.csv", folder / "items.parquet", folder / "a", **options)
    found = cp.balance_log(pa.table(LOG.to_dict(as_series=False)), USERS, ITEMS.lazy(), folder / "b", **options)
    assert found.effective_sample_size == pytest.approx(written.effective_sample_size)
    weights = [pl.concat(map(pl.read_parquet, sorted((folder / out).iterdir())))["weight"] for out in ("a", "b")]
    np.testing.assert_allclose(weights[0].to_numpy(), weights[1].to_numpy(), rtol=1e-6)
    with pytest.raises(cp.DataError, match="`users`: there is no column 'user_id'"):
        cp.balance_log(LOG, USERS.rename({"user_id": "id"}), ITEMS, folder / "c")
