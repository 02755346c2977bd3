"""`counterpoise serve --processes N`: one port, one command, several processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from serving_process import Server

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender
from counterpoise.cli.main import main
from counterpoise.errors import DataError
from counterpoise.serve.connections import open_socket

pytest.importorskip("uvicorn", reason="serving is not installed: pip install -e '.[serve]'")
pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")
if not Path("/proc/self/task").exists():
    pytest.skip("these tests find the processes in /proc", allow_module_level=True)


@pytest.fixture
def run(fitted: DebiasedRecommender, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "run")
    return tmp_path / "run"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of an error."""
    assert main(["serve", *map(str, arguments), "--processes", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_number_of_processes_and_port_are_checked(run: Path, capsys) -> None:
    for count in ("0", "65"):
        assert main(["serve", str(run), "--processes", count]) == 2
        assert f"`processes` must be an integer >= 1 and <= 64, got {count}" in capsys.readouterr().err
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # another server of several processes counts too
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            assert "in use" in refused(capsys, run, "--port", taken.getsockname()[1])


def test_a_system_without_shared_ports_has_one_process(run: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    assert "`processes` must be 1 on this system" in refused(capsys, run, "--port", 0)


def test_sockets_that_share_a_port_listen_together() -> None:
    with open_socket("127.0.0.1", 0, shared=True) as first:
        place = first.getsockname()
        with open_socket(*place, shared=True) as second:
            assert second.getsockname() == place
        with pytest.raises(DataError, match="in use"):
            open_socket(*place)


def children(process: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    own = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [*own, *(found for child in own for found in children(child))]


def workers(server: Server) -> set[int]:
    """The processes of a server that listen at its port: the children of its fork server."""
    return {found for child in children(server.process.pid) for found in children(child)}


def asks_both(server: Server, path: str) -> list:
    """Answers on many connections, so that each process gets some."""
    return [server.get(path) for _ in range(40)]


@pytest.mark.slow
class TestStarted:
    """Tests that start processes, which takes seconds."""

    def test_all_processes_reload_and_a_died_one_is_started_again(self, run: Path, dataset: Dataset) -> None:
        with Server(run, "--processes", "2") as server:
            first = workers(server)
            assert len(first) == 2
            (before,) = {str(answer) for answer in asks_both(server, "/recommend?user=3")}
            new_user = {"ratings": [{"item": 3, "rating": 1}], "k": 2}
            assert len(server.post("/recommend_for", new_user)[1]["users"][0]["items"]) == 2
            cp.make("mf", dim=3, epochs=2, seed=9).fit(dataset.train).save(run)
            assert "was reloaded" in server.reload()
            assert "was reloaded" in server.line()
            (after,) = {str(answer) for answer in asks_both(server, "/recommend?user=3")}
            assert before != after
            died = first.pop()
            os.kill(died, signal.SIGKILL)
            assert "ended (exit code -9) and is started again" in server.line()
            until = time.monotonic() + 60
            while len(workers(server)) < 2 or died in workers(server):
                assert time.monotonic() < until
                assert server.get("/health")[0] == 200
                time.sleep(0.1)
            check_everything_ends(server, signal.SIGTERM)

    def test_processes_end_with_a_supervisor_that_is_killed(self, run: Path) -> None:
        with Server(run, "--processes", "2") as server:
            check_everything_ends(server, signal.SIGKILL)

    def test_a_broken_run_is_an_error(self, tmp_path: Path, capsys) -> None:
        assert "is not a saved run" in refused(capsys, tmp_path, "--port", 0)


def check_everything_ends(server: Server, how: signal.Signals) -> None:
    """All processes are gone a few seconds after the first one got a signal."""
    started = [server.process.pid, *children(server.process.pid)]
    assert len(started) >= 4
    code, seconds = server.stop(how)
    assert code == (0 if how == signal.SIGTERM else -how)
    assert seconds < 10
    until = time.monotonic() + 10
    while any(map(is_running, started)):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether a process is there and is not a zombie."""
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
