"""`counterpoise serve` as a process: errors at the start, reloading a run, stopping."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from serving_process import Server

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender
from counterpoise.cli.main import main

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def run(fitted: DebiasedRecommender, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def refuses(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    """One line on standard error, and exit code 2."""
    assert main(["serve", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    for word in words:
        assert word in output.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_public_hosts_need_a_token(host: str, run: Path, capsys) -> None:
    refuses(capsys, [str(run), "--host", host], "`host`", repr(host), "--token-file")


@pytest.mark.parametrize(
    "content", [None, "", "\n", "short", "two words of enough letters", "caf\u00e9-of-enough-letters"]
)
def test_weak_or_missing_token_is_an_error(content: str | None, run: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    refuses(capsys, [str(run), "--token-file", str(path)], str(path), "secrets.token_urlsafe")


def test_missing_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    refuses(capsys, [str(run)], "fastapi", 'pip install "counterpoise[serve]"')


class TestStarted:
    """Tests that need the packages of the extra."""

    @pytest.fixture(autouse=True)
    def _packages(self) -> None:
        pytest.importorskip("uvicorn", reason="serving is not installed: pip install -e '.[serve]'")
        pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")

    def test_folder_that_is_no_run_is_an_error(self, tmp_path: Path, run: Path, capsys) -> None:
        refuses(capsys, [str(tmp_path / "nothing"), "--port", "0"], "not a saved run")
        refuses(capsys, [str(run), "--port", "0", "--baseline", str(tmp_path)], "not a saved run")

    def test_unusable_address_is_an_error(self, run: Path, token_file: Path, capsys) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            refuses(capsys, [str(run), "--port", port], f"127.0.0.1:{port}", "in use", "another --port")
        refuses(capsys, [str(run), "--port", "70000"], "127.0.0.1:70000", "another --port")
        refuses(capsys, [str(run), "--host", "a..b", "--token-file", str(token_file)], "cannot listen at a..b:8000")

    def test_server_checks_token_reloads_runs_and_stops(self, run: Path, token_file: Path, dataset: Dataset) -> None:
        options = ("--host", "0.0.0.0", "--token-file", str(token_file), "--unknown-users", "popular")
        with Server(run, *options) as server:
            check_token(server)
            before = server.get("/recommend?user=3")
            cp.make("mf", dim=3, epochs=2, seed=9).fit(dataset.train).save(run)
            assert server.get("/recommend?user=3") == before
            with requests_meanwhile(server) as statuses:
                assert "was reloaded" in server.reload()
            assert set(statuses) == {200}
            new = server.get("/recommend?user=3")
            assert new != before
            items = cp.load_model(run).recommend([3])["item_id"].to_list()
            assert [row["item_id"] for row in new[1]["items"]] == items
            check_broken_run_is_not_taken(server, run)
            check_endless_headers_are_cut(server)
            assert server.get("/recommend?user=3") == new
            code, seconds = server.stop(signal.SIGINT)
            assert code == 0
            assert seconds < 5
            assert server.lines.empty()


def check_token(server: Server) -> None:
    assert server.get("/recommend?user=3")[0] == 401
    assert server.get("/health") == (200, {"status": "ok"})
    server.headers = {"Authorization": f"Bearer {TOKEN}"}
    status, facts = server.get("/recommend?user=nobody")
    assert (status, facts["known"]) == (200, False)


def check_broken_run_is_not_taken(server: Server, run: Path) -> None:
    serving, manifest = server.get("/recommend?user=3"), (run / "run.json").read_text()
    for broken in ("{", manifest.replace("counterpoise-run", "another"), manifest.replace("Matrix", "Matrices")):
        (run / "run.json").write_text(broken)
        assert "the previous run stays" in server.reload()
        assert server.get("/recommend?user=3") == serving
    shutil.rmtree(run)
    assert "the previous run stays" in server.reload()


def check_endless_headers_are_cut(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for begun in (b"GET /", b"GET / HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;"):
        with socket.create_connection((host, int(port)), timeout=30) as endless, pytest.raises(ConnectionError):
            endless.sendall(begun + b"a" * (1 << 26))


class requests_meanwhile:
    """A context with a thread that sends requests all the time; yields the statuses of the answers."""

    def __init__(self, server: Server) -> None:
        self.server, self.over, self.statuses = server, Event(), []
        self.thread = Thread(target=self._ask)

    def _ask(self) -> None:
        while not self.over.is_set():
            self.statuses.append(self.server.get("/recommend?user=3")[0])

    def __enter__(self) -> list[int]:
        self.thread.start()
        return self.statuses

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
