"""Loading a dataset whose log may be larger than memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise import ConfigError, DataError, Dataset
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
    with pytest.raises(ConfigError, match=r"`holdout` needs the log in memory\. Raise"):
        load_dataset_out_of_core(folder / "log", memory="1GB", cache=folder / "cache", holdout=0.2)
    with pytest.raises(ConfigError, match="`users` and `items` do not go with a log that is streamed"):
        load_dataset_out_of_core(folder / "log", memory="1GB", users=folder / "users.csv")


def test_wrong_memory_and_named_dataset_with_ray_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="`memory` must be a size of at least 64 MiB"):
        load_dataset_out_of_core(folder / "test.csv", memory="little")
    with pytest.raises(ConfigError, match="`engine` 'ray' works on files of your own; 'coat' fits into memory"):
        load_dataset_out_of_core("coat", memory="1GB", engine=RayEngine())
    with pytest.raises(DataError, match="there is no such file"):
        load_dataset_out_of_core(folder / "nowhere.csv", memory="1GB")
