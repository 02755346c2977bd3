"""Loading a dataset whose log may be larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counterpoise import ConfigError, DataError, Dataset, WeightedEvaluation, evaluate, weigh_holdout
from counterpoise.out_of_core.datasets import load_dataset_out_of_core
from counterpoise.out_of_core.engines import RayEngine
from counterpoise.out_of_core.log import StreamedLog


@pytest.fixture
def folder(dataset: Dataset, tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    frame = dataset.train.to_frame()
    for number, start in enumerate((0, 100)):
        frame[start : start + 100].write_csv(tmp_path / "log" / f"{number}.csv")
    dataset.test.to_frame().write_csv(tmp_path / "test.csv")
    return tmp_path


def test_log_is_streamed_where_memory_is_too_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "test": folder / "test.csv",
        "cache": folder / "cache",
        "threshold": 1,
        "seed": 3,
        "test_kind": "uniform",
    }
    whole = load_dataset_out_of_core(folder / "log", memory="1GB", **options)
    assert not isinstance(whole.train, StreamedLog)
    monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", 10**9)
    streamed = load_dataset_out_of_core(folder / "log", memory="1GB", **options)
    assert isinstance(streamed.train, StreamedLog)
    assert streamed.description == whole.description
    for part in ("train", "probe", "test"):
        assert getattr(streamed, part).pairs.tolist() == getattr(whole, part).pairs.tolist()
    with pytest.raises(ConfigError, match="`users` and `items` do not go with a log that is streamed"):
        load_dataset_out_of_core(folder / "log", memory="1GB", users=folder / "users.csv")


@pytest.mark.parametrize("by", ["random", "user"])
def test_holdout_of_a_streamed_log_is_that_of_one_in_memory(
    by: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"memory": "1GB", "cache": folder / "cache", "threshold": 1, "seed": 3, "holdout": 0.3, "by": by}
    whole = load_dataset_out_of_core(folder / "log", **options)
    monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", 10**9)
    for _ in range(2):  # the second time its shards are there
        streamed = load_dataset_out_of_core(folder / "log", **options)
        assert isinstance(streamed.train, StreamedLog)
        assert streamed.test is not None
        assert streamed.test.in_memory
        assert streamed.description == whole.description
        for part in ("train", "test"):
            assert getattr(streamed, part).pairs.tolist() == getattr(whole, part).pairs.tolist()
            assert getattr(streamed, part).labels.tolist() == getattr(whole, part).labels.tolist()
    with pytest.raises(DataError, match='by="time" needs timestamps'):
        load_dataset_out_of_core(folder / "log", **options | {"by": "time"})


def test_weighted_estimates_of_a_streamed_log_are_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"memory": "1GB", "cache": folder / "cache", "threshold": 1, "holdout": 0.3}
    found = []
    for row_bytes in (160, 10**9):
        monkeypatch.setattr("counterpoise.out_of_core.datasets.IN_MEMORY_ROW", row_bytes)
        dataset = load_dataset_out_of_core(folder / "log", **options)
        assert dataset.test is not None
        weights = weigh_holdout(dataset.test, dataset.train)
        score = np.random.default_rng(0).random(dataset.train.shape)
        own = evaluate(lambda u, i, s=score: s[u, i], dataset.test, weights=weights, train=dataset.train)
        assert isinstance(own, WeightedEvaluation)
        found.append(own)
    assert found[1].auc == pytest.approx(found[0].auc, abs=0.02)  # exposure is learned in another order of rows
    assert found[1].ndcg == pytest.approx(found[0].ndcg, abs=0.05)


def test_wrong_memory_and_named_dataset_with_ray_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="`memory` must be a size of at least 64 MiB"):
        load_dataset_out_of_core(folder / "test.csv", memory="little")
    with pytest.raises(ConfigError, match="`engine` 'ray' works on files of your own; 'coat' fits into memory"):
        load_dataset_out_of_core("coat", memory="1GB", engine=RayEngine())
    with pytest.raises(DataError, match="there is no such file"):
        load_dataset_out_of_core(folder / "nowhere.csv", memory="1GB")
