"""What clients may cost: connections, seconds, work. Who takes more is cut off, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from serving_process import Server as Process

import counterpoise as cp
from counterpoise import DebiasedRecommender

uvicorn = pytest.importorskip("uvicorn", reason="serving is not installed: pip install -e '.[serve]'")
pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")

from counterpoise.serve import app, connections, server  # noqa: E402
from counterpoise.serve.connections import MAX_CONNECTIONS, SPARE_DESCRIPTORS, BoundedHTTP, open_socket  # noqa: E402
from counterpoise.serve.guard import Guard  # noqa: E402
from counterpoise.serve.model import ServedRun  # noqa: E402
from counterpoise.serve.server import RunHolder, Server  # noqa: E402

Address = tuple[str, int]
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def folder(fitted: DebiasedRecommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limited") / "run"
    fitted.save(path)
    return path


@pytest.fixture
def address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """A server in a thread, which looks for late clients all the time."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.02)
    run = ServedRun.load(folder)
    config = uvicorn.Config(Guard(app.make_app(lambda: run)), http=BoundedHTTP, lifespan="off", log_level="error")
    running, listening = Server(config), open_socket("127.0.0.1", 0)
    thread = Thread(target=running.run, kwargs={"sockets": [listening]})
    found = listening.getsockname()
    thread.start()
    yield found
    running.should_exit = running.force_exit = True
    thread.join()


def connect(address: Address, content: bytes = b"") -> socket.socket:
    opened = socket.create_connection(address, timeout=30)
    opened.sendall(content)
    return opened


def everything(opened: socket.socket) -> bytes:
    """What a connection says until it is closed."""
    with opened:
        parts = [b"-"]
        while parts[-1]:
            try:
                parts.append(opened.recv(1 << 16))
            except ConnectionError:
                break
    return b"".join(parts[1:])


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(HEALTH)
    text = b""
    while not text.endswith(b"}"):
        text += connection.recv(1000)
    return text.startswith(b"HTTP/1.1 200")


def ask(address: Address, path: str, body: object = None) -> tuple[int, dict]:
    """(status, JSON) of a request on a connection of its own."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    found, _, text = everything(connect(address, head.encode() + content)).partition(b"\r\n\r\n")
    return int(found.split()[1]), json.loads(text)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of descriptors")
def test_idle_connections_beyond_the_descriptors_leave_the_server_reachable(folder: Path) -> None:
    with Process(folder, shell="ulimit -n 500") as process:
        idle = [connect(process.address) for _ in range(600)]
        assert process.get("/health") == (200, {"status": "ok"})
        assert process.get("/recommend?user=3")[0] == 200
        open_files = len(os.listdir(f"/proc/{process.process.pid}/fd")) if Path("/proc").exists() else 0  # noqa: PTH208
        assert open_files < 500
        assert process.lines.empty()
        for connection in idle:
            connection.close()


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [(-1, -1, MAX_CONNECTIONS), (100, SPARE_DESCRIPTORS + 200, 200), (SPARE_DESCRIPTORS + 200, 10**6, MAX_CONNECTIONS)],
)
def test_as_many_connections_are_open_as_there_may_be_files(soft: int, hard: int, limit: int, monkeypatch) -> None:
    """-1 is no limit; a soft limit is raised as far as the hard one."""
    resource = pytest.importorskip("resource", reason="these limits are those of POSIX")
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert connections.connection_limit.__wrapped__() == limit
    assert [new > soft for new, _ in asked] == [True] * (soft > 0)


def test_one_connection_too_many_closes_the_idle_longest(address: Address, monkeypatch) -> None:
    monkeypatch.setattr(connections, "connection_limit", lambda: 3)
    first, second, third = (connect(address) for _ in range(3))
    for connection in (first, second, third, first):  # then the second one is idle for longest
        assert is_answered(connection)
    assert ask(address, "/health")[0] == 200
    assert everything(second) == b""
    for connection in (first, third):
        assert is_answered(connection)
        connection.close()


def test_connections_that_are_answered_are_not_closed_for_new_ones(address: Address, monkeypatch) -> None:
    monkeypatch.setattr(connections, "connection_limit", lambda: 1)
    with blocked(monkeypatch) as (begun, release):
        answers: list[int] = []
        asking = Thread(target=lambda: answers.append(ask(address, "/recommend", {"users": [3]})[0]))
        asking.start()
        assert begun.wait(30)
        assert everything(connect(address, HEALTH)) == b""
        release.set()
        asking.join()
    assert answers == [200]


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nHost: 127", b"HTTP/1.1 408"),
        (b"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
        (HEALTH, b"HTTP/1.1 200"),
    ],
    ids=["silent", "slow head", "slow body", "kept alive"],
)
def test_connections_without_a_whole_request_are_closed(begun: bytes, status: bytes, address, monkeypatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    started = time.monotonic()
    said = everything(connect(address, begun))
    assert said.startswith(status)
    assert said != b"" or status == b""
    assert time.monotonic() - started >= 0.2


def test_answers_that_nobody_reads_are_dropped(address: Address, monkeypatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(30)
    reader.connect(address)
    body = json.dumps({"users": list(range(60)), "k": 50}).encode()
    head = f"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    one = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    until = time.monotonic() + 30
    with suppress(ConnectionError):  # the kernel takes some megabytes of answers first
        while time.monotonic() < until:
            reader.sendall(one)
            time.sleep(0.005)
    reader.close()
    assert time.monotonic() < until


class blocked:
    """A context in which ranking waits: (event that it has begun, event that lets it go on)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.release = Event(), Event()
        usual = ServedRun.recommend

        def recommend(*arguments: object, **options: object) -> object:
            self.begun.set()
            assert self.release.wait(60)
            return usual(*arguments, **options)

        monkeypatch.setattr(ServedRun, "recommend", recommend)

    def __enter__(self) -> tuple[Event, Event]:
        return self.begun, self.release

    def __exit__(self, *error: object) -> None:
        self.release.set()


@pytest.mark.parametrize(("path", "users"), [("/recommend?user=1", None), ("/recommend", 1), ("/recommend", 60)])
def test_long_work_does_not_keep_others_waiting(path: str, users: int | None, address, monkeypatch) -> None:
    monkeypatch.setattr(app, "MAX_INLINE_WORK", 0)
    with blocked(monkeypatch) as (begun, _):
        body = None if users is None else {"users": list(range(users)), "k": 1}
        asking = Thread(target=ask, args=(address, path, body))
        asking.start()
        assert begun.wait(30)
        assert ask(address, "/health")[0] == 200
        assert ask(address, "/similar?item=3")[0] == 200
    asking.join()


def test_large_requests_leave_threads_for_small_ones(address: Address, monkeypatch) -> None:
    usual = ServedRun.recommend
    with blocked(monkeypatch) as (begun, _):
        large = [Thread(target=ask, args=(address, "/recommend", {"users": list(range(60))})) for _ in range(8)]
        for asking in large:
            asking.start()
        assert begun.wait(30)
        monkeypatch.setattr(ServedRun, "recommend", usual)
        assert ask(address, "/recommend", {"users": [3], "k": 1})[0] == 200
    for asking in large:
        asking.join()


def test_too_much_work_is_refused(address: Address, monkeypatch) -> None:
    large = {"users": list(range(60)), "k": 1}
    monkeypatch.setattr(app, "MAX_SECONDS", -1)
    status, facts = ask(address, "/recommend", large)
    assert status == 503
    assert "1 of 60 lists took" in facts["error"]
    monkeypatch.setattr(app, "MAX_LARGE", 0)
    status, facts = ask(address, "/recommend", large)
    assert status == 503
    assert "too much to do" in facts["error"]
    assert ask(address, "/health")[0] == 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_the_run_does_not_end_reloading(fitted: DebiasedRecommender, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(server, "RELOAD_SECONDS", 1)
    fitted.save(tmp_path / "run")
    file = next((tmp_path / "run").glob("users.*.parquet"))
    content = file.read_bytes()
    lines: list[str] = []

    async def reload_twice() -> None:
        reloading = asyncio.create_task(holder.reload_on_request())
        file.unlink()
        os.mkfifo(file)
        await reloaded(1)
        file.unlink()
        file.write_bytes(content)
        await reloaded(2)
        reloading.cancel()

    async def reloaded(count: int) -> None:
        holder.requested.set()
        while len(lines) < count:
            await asyncio.sleep(0.02)

    holder = RunHolder(lambda: ServedRun.load(tmp_path / "run"), lines.append)
    before = holder.run
    asyncio.run(reload_twice())
    assert "could not be reloaded, the previous run stays" in lines[0]
    assert lines[1].endswith("was reloaded.")
    assert holder.run is not before
    assert cp.load_model(tmp_path / "run").recommend([3], k=1).height == 1
