"""Requests per second of `counterpoise serve`: 15,400 users x 1,000 items, 64 and 256 connections on loopback.

Limits on a quiet machine: p99 below 50 ms, no error, memory flat. The program that sends the requests takes a core of
its own: give the server --processes, and the machine one core more. Without the extra `serve` nothing is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import counterpoise as cp

USERS, ITEMS, K = 15_400, 1_000, 10


class Client(asyncio.Protocol):
    """One connection that requests the list of a random user, waits for the answer, and repeats until the end."""

    def __init__(self, users: np.ndarray, until: float, finished: asyncio.Future) -> None:
        self.users, self.until, self.finished = iter(users.tolist()), until, finished
        self.times, self.errors, self.received = [], 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send_request()

    def send_request(self) -> None:
        user = next(self.users, None)
        self.started = time.perf_counter()
        if user is None or self.started > self.until:
            self.transport.close()
            return
        request = f"GET /recommend?user={user}&k={K} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        self.transport.write(request.encode())

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head) if found else None
        if length is None or len(body) < int(length[1]):
            return
        self.times.append(time.perf_counter() - self.started)
        self.errors += not (head.startswith(b"HTTP/1.1 200") and body.count(b"item_id") == K)
        self.received = b""
        self.send_request()

    def connection_lost(self, error: Exception | None) -> None:
        self.errors += error is not None or bool(self.received)
        self.finished.set_result(None)


async def load(port: int, seconds: float, connections: int) -> tuple[np.ndarray, int]:
    """(seconds of each request, errors)."""
    loop, rng = asyncio.get_running_loop(), np.random.default_rng(0)
    until, clients = time.perf_counter() + seconds, []
    for _ in range(connections):
        users = rng.integers(USERS, size=int(5000 * seconds))
        client = Client(users, until, loop.create_future())
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.finished for client in clients)), seconds + 60)
    return np.concatenate([client.times for client in clients]), sum(client.errors for client in clients)


def tree(process: int) -> list[int]:
    """A process and all that it started."""
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(child for each in started for child in tree(int(each)))]


def memory(process: int) -> float:
    """Memory of a server, in MB; what its processes share counts once."""
    shares = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in tree(process)]
    return sum(int(re.search(r"^Pss:\s+(\d+)", share, re.MULTILINE)[1]) for share in shares) / 1024


def busy_seconds(process: int) -> float:
    """Processor time of a server, in seconds."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in tree(process)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def start(run: Path, processes: int) -> tuple[subprocess.Popen, int]:
    """The server, and its port."""
    options = ["--port", "0", "--processes", str(processes)]
    command = [sys.executable, "-m", "counterpoise.cli.main", "serve", str(run), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    return process, int(re.search(r":(\d+) ", line)[1])


def main() -> None:
    """Print requests per second, latencies, errors and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--method", default="mf")
    options = parser.parse_args()
    if find_spec("uvicorn") is None:
        print('not measured: pip install "counterpoise[serve]"')
        return
    print(f"{options.method}, {USERS:,} x {ITEMS:,}, k = {K}, {options.processes} processes, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        cp.make(options.method, epochs=3).fit(cp.simulate(USERS, ITEMS, 0.0202).dataset.train).save(run)
        process, port = start(run, options.processes)
        try:
            asyncio.run(load(port, 2, 16))  # warm
            for connections in options.connections:
                measure(process.pid, port, options.seconds, connections)
        finally:
            process.terminate()
            process.wait(20)


def measure(server: int, port: int, seconds: float, connections: int) -> None:
    """Print what one load does."""
    before, busy, others = memory(server), busy_seconds(server), os.getloadavg()[0]
    own, started = time.process_time(), time.perf_counter()
    times, errors = asyncio.run(load(port, seconds, connections))
    took, busy, own = time.perf_counter() - started, busy_seconds(server) - busy, time.process_time() - own
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
    print(f"{connections} connections: {len(times) / took:,.0f} requests/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(
        f"  {errors} errors; memory {before:.0f} MB before, {memory(server):.0f} MB after; a request took "
        f"{busy / len(times) * 1e6:.0f} us of the server's cores and {own / len(times) * 1e6:.0f} us of the client's; "
        f"load average before {others:.1f}"
    )


if __name__ == "__main__":
    main()
