"""Commands that are killed, stopped, out of disk space, or share a folder: one line, nothing lost."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import one_line, run
from faults import KINDS, Victim, kill, victims

from counterpoise import Dataset, DebiasedRecommender, load_model, make
from counterpoise.cli.main import main
from counterpoise.report.comparison import comparison_facts
from counterpoise.storage import exclusive_use, read_manifest
from counterpoise.training.events import by_epoch
from counterpoise.training.learner import Learner
from counterpoise.training.loop import DivergenceError, LastFiniteState


@pytest.mark.parametrize(("kind", "at_most"), [(kind, 12 if kind == "save" else 3) for kind in KINDS])
def test_killed_command_leaves_a_whole_state_and_can_be_repeated(kind: str, at_most: int) -> None:
    assert kill(kind, at_most) >= 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Victim]]:
    place = tmp_path_factory.mktemp("faults")
    return place, victims(place)


def words(victim: Victim, out: Path) -> list[str]:
    return [word.replace("OUT", str(out)) for word in victim.words]


def diverge(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Make the loss of this step, and the parameters after the step before, no numbers; on a CPU: none is replayed."""
    steps, step = iter(range(1, 10**9)), Learner.step

    def breaking(self: Learner, batch: Any, rate: Any) -> Any:
        number, loss = next(steps), step(self, batch, rate)
        if number == at - 1:
            for parameter in self.scorer.parameters():
                parameter.data.fill_(np.nan)
        return loss if number < at else loss * np.nan

    monkeypatch.setattr(Learner, "step", breaking)


def stopped_in(epoch: int, dataset: Dataset, **settings: Any) -> DebiasedRecommender:
    """A model whose fit got Ctrl-C after an epoch."""

    def stop(done: int, planned: int, loss: float) -> None:
        if done == epoch:
            raise KeyboardInterrupt

    model = make("mf", **settings)
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset.train, callback=by_epoch(stop))
    return model


@pytest.mark.cpu
def test_divergence_keeps_the_last_finite_epoch(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stopped_in(7, dataset)
    diverge(monkeypatch, at=8)
    model = make("mf")
    with pytest.raises(DivergenceError, match=r"diverged in epoch 8: the loss is nan\. Lower `learning_rate`") as error:
        model.fit(dataset.train)
    assert error.value.history is model.history_
    assert model.history_.best_epoch == len(model.history_.loss) == 6  # the seventh left no numbers
    assert np.array_equal(model.embeddings()[0], expected.embeddings()[0])


def test_divergence_in_the_first_epochs_keeps_nothing(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    diverge(monkeypatch, at=2)
    model = make("mf")
    with pytest.raises(DivergenceError) as error:
        model.fit(dataset.train)
    assert error.value.history is None
    assert not hasattr(model, "scorer_")


def test_ctrl_c_with_patience_keeps_the_best_epoch(dataset: Dataset) -> None:
    whole = make("mf", patience=1000, epochs=60, learning_rate=0.2).fit(dataset.train)
    model = stopped_in(40, dataset, patience=1000, epochs=60, learning_rate=0.2)
    assert whole.history_.best_epoch < 39
    assert model.history_.best_epoch == whole.history_.best_epoch
    assert np.array_equal(model.embeddings()[1], whole.embeddings()[1])


@pytest.mark.cpu
def test_divergence_message_names_epoch_setting_and_folder(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, at=9)
    code, _, err = run("fit", small[0] / "data", "--method", "mf", "--epochs", 50, "--out", tmp_path / "run")
    assert code == 2
    assert one_line(err)
    assert "diverged in epoch 9: the loss is nan. Lower `--learning-rate` (now 0.05) or raise `l2`." in err
    assert f"up to epoch 7 of 50 is kept as a run in {tmp_path / 'run.stopped'}" in err
    assert not (tmp_path / "run").exists()
    assert read_manifest(tmp_path / "run.stopped")["stopped"] == {"epoch": 7, "epochs": 50}
    assert load_model(tmp_path / "run.stopped").recommend(k=1)["score"].is_not_nan().all()


@pytest.mark.cpu
def test_stopped_run_is_reported_and_removed_by_a_whole_fit(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = ("fit", small[0] / "data", "--method", "mf", "--epochs", 50, "--out", tmp_path / "run", "--quiet")
    with monkeypatch.context() as patched:
        diverge(patched, at=9)
        run(*fit)
    kept = tmp_path / "run.stopped"
    code, out, _ = run("report", kept, "--baseline", "none")
    assert code == 0
    said = "run.stopped was stopped after epoch 7 of 50: the model is not trained fully."
    assert f"Incomplete fit: This run {said.partition(' ')[2]}" in out
    assert "This run was stopped" in (kept / "report.html").read_text(encoding="utf-8")
    assert run(*fit, "--learning-rate", 0.04)[0] == 0
    assert kept.exists()  # it is of another fit
    assert said in comparison_facts([tmp_path / "run", kept])["notes"]
    assert run(*fit)[0] == 0
    assert sorted(path.name for path in kept.iterdir()) == ["report.html", "report.json"]  # somebody asked for them
    assert "Incomplete fit" not in run("report", tmp_path / "run", "--baseline", "none")[1]


def captured(arguments: list[str]) -> tuple[int, str]:
    """(exit code, standard error) of a command."""
    complained = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complained):
        code = main(arguments)
    return code, complained.getvalue()


def stopped(arguments: list[str], folder: str, sign: str | None, answer: Any) -> None:
    """In a process of its own: a command, and Ctrl-C when the sign is in the folder, or after some epochs of a fit."""
    epochs: list[int] = []
    confirm, moment = LastFiniteState.confirm, [np.inf]
    LastFiniteState.confirm = lambda self, epoch: (epochs.append(epoch), confirm(self, epoch))[1]  # type: ignore[method-assign]

    def press() -> None:
        while not (list(Path(folder).glob(sign)) if sign else len(epochs) > 20):
            time.sleep(0.005)
        moment[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    found = captured(arguments)
    answer.send((*found, time.monotonic() - moment[0]))


def apart(work: Callable[..., None], *arguments: Any) -> Any:
    """What some work in a fresh process answers."""
    context = multiprocessing.get_context("forkserver")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, sender))
    process.start()
    found = answer.recv()
    process.join()
    return found


def test_ctrl_c_stops_a_fit_and_keeps_its_last_epoch(small: tuple[Path, dict[str, Victim]], tmp_path: Path) -> None:
    fit = ["fit", str(small[0] / "data"), "--method", "mf", "--epochs", "1000000", "--out", str(tmp_path / "run")]
    code, err, seconds = apart(stopped, fit, "", None)
    assert seconds < 2
    assert code == 130
    assert err.count("\n") == 1
    assert f"is kept as a run in {tmp_path / 'run.stopped'}. The same command fits it anew." in err
    assert not (tmp_path / "run").exists()
    assert len(load_model(tmp_path / "run.stopped").history_.loss) >= 19


def test_ctrl_c_while_baselines_are_fitted_keeps_the_run(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("counterpoise.runs.fit_baselines", stop)
    out = tmp_path / "run"
    code, _, err = run("fit", small[0] / "data", "--method", "mf", "--epochs", 2, "--out", out)
    assert code == 130
    assert f"The fitted run is in {out}: `counterpoise report` evaluates it." in err
    assert load_model(out).recommend(k=1)["score"].is_not_nan().all()
    assert run("report", out, "--baseline", "none")[0] == 0


@pytest.mark.parametrize(("kind", "sign"), [("bench", "fits/*.json"), ("tune", "trials.csv")])
def test_ctrl_c_stops_a_search_that_can_be_continued(
    kind: str, sign: str, small: tuple[Path, dict[str, Victim]], tmp_path: Path
) -> None:
    victim, out = small[1][kind], tmp_path / "out"
    longer = ["--seeds", "99"] if kind == "bench" else ["--trials", "99"]
    code, err, seconds = apart(stopped, [*words(victim, out), *longer], str(out), sign)
    assert seconds < 2
    assert code == 130
    assert err.count("\n") == 1
    assert f"done are in {out}: the same command goes on from there." in err
    victim.holds(out)


def limited(arguments: list[str], file_size: int, answer: Any) -> None:
    """In a process of its own: a command where no file may be larger than this, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    answer.send(captured(arguments))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "save"])
def test_full_disk_keeps_the_old_state(kind: str, small: tuple[Path, dict[str, Victim]], tmp_path: Path) -> None:
    victim, out = small[1][kind], tmp_path / "out"
    victim.begin(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, err = apart(limited, words(victim, out), 1000)
    assert code == 2
    assert one_line(err)
    assert "File too large" in err or "disk I/O error" in err
    left = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.stat().st_size}
    assert left == before


@pytest.mark.parametrize("kind", ["fit", "balance", "bench", "tune"])
def test_unwritable_place_is_one_line(kind: str, small: tuple[Path, dict[str, Victim]]) -> None:
    code, _, err = run(*words(small[1][kind], Path("/proc/nowhere")))
    assert code == 2
    assert one_line(err)
    assert "/proc/nowhere" in err


def test_unwritable_folder_is_refused_before_the_fit(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: False)  # as it is for all but the superuser
    monkeypatch.setattr("counterpoise.training.loop.train", pytest.fail)
    code, _, err = run(*words(small[1]["fit"], tmp_path / "run"))
    assert code == 2
    assert "no permission to write there. Choose another folder." in err


def test_folder_removed_during_a_fit_is_written_again(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = small[1]
    out, train = tmp_path / "out", LastFiniteState.confirm

    def removing(self: LastFiniteState, epoch: int) -> None:
        shutil.rmtree(out, ignore_errors=True)
        train(self, epoch)

    monkeypatch.setattr(LastFiniteState, "confirm", removing)
    known["fit"].begin(out)
    assert run(*words(known["fit"], out))[0] == 0
    known["fit"].holds(out)
    shutil.rmtree(out)
    code, _, err = run(*words(known["bench"], out))
    assert code == 2 or len(known["bench"].result(out)) == 6
    code, _, err = run(*words(known["tune"], out))
    assert code == 2
    assert one_line(err)
    assert "cannot be used" in err


def save_often(source: str, out: str) -> None:
    model = load_model(source)
    for _ in range(40):
        model.save(out)


def test_two_processes_saving_into_one_folder_leave_one_run(
    small: tuple[Path, dict[str, Victim]], tmp_path: Path
) -> None:
    place, out = small[0], tmp_path / "run"
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=save_often, args=(str(place / name), str(out))) for name in ("old", "new")]
    for writer in writers:
        writer.start()
    loaded = 0
    while any(writer.is_alive() for writer in writers):
        if (out / "run.json").exists():
            assert load_model(out).scorer_ is not None
            loaded += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert loaded > 0
    assert len(list(out.iterdir())) == 4
    configurations = [json.loads((place / name / "run.json").read_text())["configuration"] for name in ("old", "new")]
    assert read_manifest(out)["configuration"] in configurations


def test_second_search_in_one_folder_is_refused(small: tuple[Path, dict[str, Victim]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with exclusive_use(out):
        code, _, err = run(*words(small[1]["tune"], out))
    assert code == 2
    assert one_line(err)
    assert "is used by another process" in err
    assert list(out.iterdir()) == []
