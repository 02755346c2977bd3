"""Fitting a log that is streamed: uniform batches across shards, and the models of the same log in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, strategies
from scipy.stats import chisquare

from counterpoise import Dataset, DebiasedRecommender, load_model, make, tune
from counterpoise.balance import diagnostics
from counterpoise.cli.main import main
from counterpoise.data.datasets import load_dataset
from counterpoise.data.files import title_of
from counterpoise.errors import ConfigError, ConvergenceWarning, DataError
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.engines import ThreadEngine
from counterpoise.out_of_core.fitting import fit_streamed
from counterpoise.out_of_core.log import StreamedBatches, StreamedLog
from counterpoise.out_of_core.shards import permuted
from counterpoise.report.context import load_context
from counterpoise.training.events import by_epoch


@pytest.fixture(scope="module")
def folder(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("streamed")
    (place / "log").mkdir()
    frame = dataset.train.to_frame()
    for number, start in enumerate(range(0, len(frame), 100)):
        frame[start : start + 100].write_parquet(place / "log" / f"{number}.parquet")
    dataset.test.to_frame().write_csv(place / "test.csv")
    return place


@pytest.fixture(scope="module")
def log(folder: Path) -> StreamedLog:
    return StreamedLog(shard_log(folder / "log", beside=[folder / "test.csv"], cache=folder / "cache", shard_rows=64))


@pytest.fixture
def streaming(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder is too long for memory."""
    monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", 10**9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@given(strategies.integers(1, 3000), strategies.integers(0, 2**62 - 1))
def test_every_row_stands_once_in_the_random_order(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(size), size, key)), np.arange(size))


def test_the_random_order_is_uniform() -> None:
    size, draws = 7, 3000
    places = np.stack([permuted(np.arange(size), size, key) for key in range(draws)])
    for position in range(size):
        assert chisquare(np.bincount(places[:, position], minlength=size)).pvalue > 1e-4
    pairs = np.bincount(places[:, 0] * size + places[:, 1], minlength=size**2)
    assert chisquare(pairs[pairs > 0]).pvalue > 1e-4
    assert (pairs > 0).sum() == size * (size - 1)


def test_batches_take_every_row_once_from_all_shards(log: StreamedLog) -> None:
    batches = StreamedBatches(log, 40, torch.device("cpu"), torch.Generator().manual_seed(0))
    counts, orders = np.zeros((2, len(log.shards))), []
    for _ in range(60):
        epoch = list(batches.epoch())
        rows = torch.cat([batch.rows for batch in epoch]).numpy()
        assert np.array_equal(np.sort(rows), np.arange(len(log)))
        assert {len(batch.rows) for batch in epoch} <= {39, 40, len(log) // len(batches), len(log) // len(batches) + 1}
        orders.append(rows)
        for number in (0, -1):
            counts[number] += np.bincount(epoch[number].rows.numpy() // 64, minlength=len(log.shards))
    sizes = np.array([shard.n_rows for shard in log.shards])
    for drawn in counts:
        assert chisquare(drawn, drawn.sum() * sizes / sizes.sum()).pvalue > 1e-4
    assert not np.array_equal(orders[0], orders[1])
    users, items = log.users, log.items
    for batch in (epoch[0], *batches.final()):
        rows = batch.rows.numpy()
        assert np.array_equal(batch.users.numpy(), users[rows])
        assert np.array_equal(batch.items.numpy(), items[rows])
        assert np.array_equal(batch.labels.numpy(), log.labels[rows])


def test_a_streamed_log_reads_like_the_log_in_memory(log: StreamedLog, dataset: Dataset) -> None:
    memory = load_dataset(Path(log.shards.folder).parents[1] / "log").train
    assert np.array_equal(log.labels, memory.labels)
    rows = np.array([5, 3, 90])
    assert log.take(rows).to_frame().equals(memory.take(rows).to_frame())
    assert len(log.take(log.labels > 0)) == int(memory.labels.sum())
    assert (len(log), log.density > 0) == (len(dataset.train), True)
    assert "StreamedLog" in repr(log)


@pytest.mark.parametrize("method", ["mf", "counterpoise", "eib", "dr-jl"])
def test_a_streamed_full_batch_fit_is_the_fit_in_memory(log: StreamedLog, method: str) -> None:
    memory = log.take(np.arange(len(log)))
    settings = {"epochs": 15, "batch_size": "full", "pairs": "all", "seed": 3}
    own = {"dr-jl": {"weights": "popularity"}, "eib": {"label": 0.3}, "counterpoise": {"weights": "uniform"}}
    settings |= own.get(method, {})
    expected = make(method, **settings).fit(memory)
    found = fit_streamed(make(method, **settings), log)
    assert np.allclose(found.predict_log(memory), expected.predict_log(memory), atol=2e-3)
    assert found.facts_["error_on_log"] == pytest.approx(expected.facts_["error_on_log"], abs=1e-3)
    assert found.log_facts_ == expected.log_facts_
    assert found.has_seen(memory).all()


@pytest.mark.parametrize("own", [{}, {"tolerance": 0.0}, {"kept": 0.7}, {"strength": "exact"}, {"strength": 0.2}])
def test_balancing_weights_of_a_streamed_fit_are_those_in_memory(log: StreamedLog, own: dict[str, Any]) -> None:
    settings = {"epochs": 3, "features": "activity", "folds": 1, "move_intercept": False} | own
    memory = make("skb-ips", **settings).fit(log.take(np.arange(len(log))))
    found = fit_streamed(make("skb-ips", **settings), log)
    np.testing.assert_allclose(found.ratio_, memory.ratio_, rtol=1e-4)
    assert found.facts_["weights"]["status"] == "solved"
    assert found.facts_["weights"]["warning"] is None
    assert not list(log.shards.folder.glob("weights-*"))


def test_a_streamed_fit_warns_of_collapsed_weights(log: StreamedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "MIN_EFFECTIVE_SHARE", 1.0)
    with pytest.warns(ConvergenceWarning, match="collapsed") as said:
        model = fit_streamed(make("skb-ips", epochs=1, features="activity", strength=1.0), log)
    assert model.facts_["weights"]["warning"] == str(said[0].message)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (
            "ips-v2",
            {},
            "`weights` must be one of Uniform, UnitWeights, NaiveBayes, Popularity, Balancing where the log is str",
        ),
        (
            "skb-dr",
            {"features": "activity"},
            "`imputation` must be one of NoImputation, Constant, Learned, MNARLikelihood where the log is streamed, "
            "got OutcomeModel. Choose another method, or raise --memory",
        ),
        ("mf", {"patience": 3}, "`patience` must be left out where the log is streamed"),
        ("skb-ips", {}, "balancing a log that is streamed needs features='activity'"),
        ("skb-ips", {"features": "activity", "select": "adaptive"}, "`select` must be .* for a log in shards"),
    ],
)
def test_what_a_streamed_fit_cannot_do_is_an_error(
    log: StreamedLog, method: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_streamed(make(method, **settings), log)


def test_fit_and_evaluate_take_a_folder_and_a_glob(
    folder: Path, streaming: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, test = str(tmp_path / "run"), str(folder / "test.csv")
    words = ["--method", "mf", "--epochs", "12", "--batch-size", "100", "--test", test, "--out", out, "--json"]
    assert main(["fit", str(folder / "log"), *words, "--memory", "100MB"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["evaluation"]["auc"] > 0.5
    assert isinstance(load_model(out), DebiasedRecommender)
    pl.read_csv(test)[:200].write_csv(folder / "test-0.csv")
    pl.read_csv(test)[200:].write_csv(folder / "test-1.csv")
    monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", 160)
    assert main(["evaluate", out, str(folder / "test-*.csv"), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert main(["evaluate", out, test, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert {**parts, "test": test} == whole
    monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", 10**9)
    assert main(["evaluate", out, str(folder / "log"), "--memory", "100MB"]) == 2
    assert "more rows than fit into the `memory` of 100MB" in capsys.readouterr().err


def test_a_streamed_fit_is_reported_beside_its_baseline(folder: Path, streaming: None, tmp_path: Path) -> None:
    words = ["--epochs", "2", "--test", str(folder / "test.csv"), "--memory", "100MB", "--quiet", "--report"]
    words += ["--workers", "1"]
    assert main(["fit", str(folder / "log" / "*.parquet"), *words, "--out", str(tmp_path / "run")]) == 0
    unnamed = load_context(tmp_path / "run")
    assert unnamed.train is None
    assert "fitted on many files" in unnamed.notes[0]
    train = load_context(tmp_path / "run", log=folder / "log").train
    assert isinstance(train, StreamedLog)
    assert train.engine == ThreadEngine()  # not that of the run
    facts = json.loads((tmp_path / "run" / "report.json").read_text())
    assert facts["log"]["name"] == "log"
    assert facts["summary"][0]["text"].startswith("601 ratings of 50 items")
    assert "MF baseline" in facts["summary"][-1]["text"]


def test_ctrl_c_keeps_the_last_epoch_of_a_streamed_fit(log: StreamedLog) -> None:
    def stop(epoch: int, planned: int, loss: float) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    model = make("mf", epochs=9)
    with pytest.raises(KeyboardInterrupt):
        fit_streamed(model, log, callback=by_epoch(stop))
    assert model.history_.best_epoch == 2
    assert model.has_seen(log.take([0, 1])).all()


def test_the_title_of_a_glob_is_its_folder() -> None:
    names = {"big/*.parquet": "big", "a/ratings-*.csv": "a", "*.csv": "log", "a/b.csv.gz": "b", "coat": "coat"}
    assert {path: title_of(path) for path in names} == names


def test_a_search_needs_a_log_in_memory(log: StreamedLog) -> None:
    with pytest.raises(DataError, match="a search needs a log in memory, got one of 601 rows that is streamed"):
        tune(log, "mf", 1)


def test_a_fit_in_memory_takes_a_folder_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "ips-v2", "--epochs", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["fit", str(folder / "log" / "*.parquet"), *words]) == 0
    assert len(load_model(tmp_path / "run").ratio_) == 601


def test_a_wrong_file_is_one_error_and_no_run(
    folder: Path, streaming: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    pl.DataFrame({"user_id": [1], "item_id": [2], "rating": [1]}).write_csv(tmp_path / "log" / "a.csv")
    pl.DataFrame({"user_id": [1], "stars": [1]}).write_csv(tmp_path / "log" / "b.csv")
    assert main(["fit", str(tmp_path / "log"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "b.csv: there is no column 'item_id'" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_too_little_memory_for_a_streamed_fit_is_refused(
    folder: Path, streaming: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(folder / "log"), "--out", str(tmp_path / "run")]
    assert main([*words, "--duplicates", "mean"]) == 2
    assert "a log that is streamed does not take 'duplicates'" in capsys.readouterr().err
    monkeypatch.setattr("counterpoise.out_of_core.datasets.STREAMED_ROW", 10**9)
    assert main(words) == 2
    assert "`memory` must be at least 601.0GB to fit 601 rows" in capsys.readouterr().err


def test_a_mistyped_size_is_an_error_also_for_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("user_id,item_id,rating\na,x,1\nb,y,0\n")
    assert main(["fit", str(tmp_path / "log.csv"), "--memory", "abc", "--out", str(tmp_path / "run")]) == 2
    assert "`memory` must be a size" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
