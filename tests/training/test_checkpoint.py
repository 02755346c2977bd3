"""A fit that is stopped and resumed ends where it would have ended."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graded_world import graded

from counterpoise import Dataset, load_model, make
from counterpoise.cli.main import main
from counterpoise.errors import ConfigError
from counterpoise.storage import CHECKPOINT, read_manifest
from counterpoise.training.checkpoint import Checkpoint
from counterpoise.training.events import by_epoch


class Stopped(BaseException):
    """The driver dies: nothing catches it."""


def stop(epoch: int, planned: int, loss: float) -> None:
    if epoch == 6:
        raise Stopped


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.training.checkpoint.SECONDS_BETWEEN", 0)


METHODS = ["mf", "mr", "dr-v2", "tdr-jl", "skb-dr", "cause", "autodebias", "cdr", "d-dr", "dce-dr", "dce-tdr"]
METHODS += ["counterpoise", "counterpoise, ordinal"]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_fit_is_the_fit_that_was_not_stopped(
    method: str, dataset: Dataset, tmp_path: Path, often: None
) -> None:
    method, _, ordinal = method.partition(", ")
    dataset = graded() if ordinal else dataset
    settings: dict[str, Any] = {"epochs": 9, "batch_size": 200}
    expected = make(method, **settings).fit(dataset.train, probe=dataset.probe)
    checkpoint = Checkpoint(tmp_path / "c", "key")
    with pytest.raises(Stopped):
        make(method, **settings).fit(dataset.train, probe=dataset.probe, callback=by_epoch(stop), checkpoint=checkpoint)
    model = make(method, **settings)
    kept = Checkpoint(tmp_path / "c", "key", resume=True)
    model.fit(dataset.train, probe=dataset.probe, checkpoint=kept)
    assert np.array_equal(model.predict_log(dataset.test), expected.predict_log(dataset.test))
    assert np.allclose(model.history_.loss, expected.history_.loss, rtol=1e-5)


def test_skipped_epochs_make_no_step(
    dataset: Dataset, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        make("mf", epochs=8).fit(dataset.train, callback=by_epoch(stop), checkpoint=Checkpoint(tmp_path / "c", "key"))
    from counterpoise.training.learner import Learner

    steps, own = [], Learner.step
    monkeypatch.setattr(Learner, "step", lambda *arguments, **more: steps.append(1) or own(*arguments, **more))
    make("mf", epochs=8).fit(dataset.train, checkpoint=Checkpoint(tmp_path / "c", "key", resume=True))
    assert len(steps) == 3  # five epochs were written down, the sixth was not closed


def test_a_foreign_or_damaged_checkpoint_is_refused(dataset: Dataset, tmp_path: Path, often: None) -> None:
    make("mf", epochs=3).fit(dataset.train, checkpoint=Checkpoint(tmp_path / "c", "key"))
    with pytest.raises(ConfigError, match="is of another fit: other data or settings"):
        make("mf", epochs=3).fit(dataset.train, checkpoint=Checkpoint(tmp_path / "c", "other", resume=True))
    (tmp_path / "c").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="cannot be read"):
        make("mf", epochs=3).fit(dataset.train, checkpoint=Checkpoint(tmp_path / "c", "key", resume=True))


def test_the_command_resumes_and_cleans_up(
    tmp_path: Path, often: None, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.train.to_frame().write_csv(tmp_path / "log.csv")
    words = ["fit", str(tmp_path / "log.csv"), "--method", "mf", "--epochs", "9", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("counterpoise.cli.fit.progress_bar", dying)
        with pytest.raises(Stopped):
            main([*words, "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / CHECKPOINT).exists()
    assert main([*words, "--out", str(tmp_path / "run"), "--learning-rate", "0.1", "--resume"]) == 2
    assert "is of another fit" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    rows = dataset.train
    runs = [load_model(tmp_path / name).predict_log(rows) for name in ("whole", "run")]
    assert np.array_equal(*runs)
    assert main([*words, "--out", str(tmp_path / "run"), "--resume", "--patience", "2"]) == 2
    assert "`resume` cannot continue this fit" in capsys.readouterr().err


def test_a_stop_in_skipped_epochs_names_the_epoch_reached(
    tmp_path: Path, often: None, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.train.to_frame().write_csv(tmp_path / "log.csv")
    words = ["fit", str(tmp_path / "log.csv"), "--method", "mf", "--epochs", "9", "--quiet", "--out"]
    words.append(str(tmp_path / "run"))
    monkeypatch.setattr("counterpoise.cli.fit.progress_bar", dying)
    with pytest.raises(Stopped):
        main(words)  # five epochs are written down
    monkeypatch.setattr("counterpoise.cli.fit.progress_bar", lambda *_: nullcontext(press_at_three))
    assert main([*words, "--resume"]) == 130
    place = tmp_path / "run.stopped"
    assert f"up to epoch 5 of 9 is kept as a run in {place}. The same command goes on" in capsys.readouterr().err
    assert read_manifest(place)["stopped"] == {"epoch": 5, "epochs": 9}


def press_at_three(epoch: int, planned: int, loss: float) -> None:
    if epoch == 3:
        raise KeyboardInterrupt


class dying:
    """A progress bar at which the driver dies."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Any:
        return stop

    def __exit__(self, *_: Any) -> None: ...
