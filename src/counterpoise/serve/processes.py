"""Several server processes at one port.

Each loads the run and listens at a socket of its own; Linux spreads connections evenly among such sockets. They are
forked from a process that has imported what starts no thread, so they share the memory of these packages.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.config import Unknown
from counterpoise.errors import ConfigError, CounterpoiseError, DataError
from counterpoise.serve.connections import SHUTDOWN_SECONDS, open_socket

if TYPE_CHECKING:
    from counterpoise.serve.model import ServedRun
    from counterpoise.serve.server import Notify, Server

PRELOADED = ["torch", "scipy.special", "fastapi", "uvicorn"]  # not polars: its threads do not survive a fork
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds until a process that ended is started again; doubled where it cannot
KILL_SECONDS = SHUTDOWN_SECONDS + 2  # after which a process that was asked to end is killed


def load_run(folder: Path, baseline: Path | None, unknown_users: Unknown) -> ServedRun:
    """`ServedRun.load`; what it needs is imported when it is called."""
    from counterpoise.serve.model import ServedRun

    return ServedRun.load(folder, baseline, unknown_users)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps an address for processes of this user, and does not listen; an error if it is in use."""
    if not hasattr(socket, "SO_REUSEPORT") or "forkserver" not in multiprocessing.get_all_start_methods():
        raise ConfigError("`processes` must be 1 on this system: its processes cannot share a port.")
    with open_socket(host, port) as alone:  # fails where another listens, sharing or not
        family, place = alone.family, alone.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(place)
    return reserved


class Supervisor:
    """Starts `count` processes at the address of `reserved`, starts again what ends, and passes signals on.

    SIGHUP reloads the run in all of them. They end with this process, however it ends.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[], ServedRun],
        reserved: socket.socket,
        notify: Notify,
        token: str | None = None,
    ) -> None:
        self.count, self.notify = count, notify
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.arguments = load, *reserved.getsockname()[:2], notify, token
        self.processes: dict[int, Any] = {}
        self.answering: set[int] = set()
        self.reloads = 0
        self.stop = asyncio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        """Run until SIGINT or SIGTERM; raise what keeps a process from starting for the first time."""
        loop = asyncio.get_running_loop()
        for ending in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(ending, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        first: list[asyncio.Future[None]] = [loop.create_future() for _ in range(self.count)]
        keepers = [asyncio.create_task(self.keep_running(number, first[number])) for number in range(self.count)]
        stopping, all_started = asyncio.create_task(self.stop.wait()), asyncio.gather(*first)
        either: list[asyncio.Future[Any]] = [stopping, all_started]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if all_started.done():
                all_started.result()
                started()
                await stopping
        finally:
            self.stop.set()
            all_started.cancel()
            await self.end_all(keepers)

    def reload(self) -> None:
        """Pass SIGHUP on to all that answer; the others get it when they do."""
        self.reloads += 1
        for number in self.answering:
            self.signal(number, signal.SIGHUP)

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to one process."""
        with suppress(ProcessLookupError):
            os.kill(self.processes[number].pid, which)

    async def keep_running(self, number: int, first: asyncio.Future[None]) -> None:
        """Start a process, wait for its end, and start it again, until all are stopped."""
        pause = FIRST_PAUSE
        while not self.stop.is_set():
            reloads, (receiving, sending) = self.reloads, self.context.Pipe(duplex=False)
            process = self.context.Process(target=work, args=(*self.arguments, sending))
            process.start()
            self.processes[number] = process
            sending.close()
            problem = await asyncio.to_thread(received, receiving)
            if not first.done():
                first.set_exception(DataError(problem)) if problem else first.set_result(None)
            if not problem:
                self.answering.add(number)
                pause = FIRST_PAUSE
                if reloads != self.reloads:
                    self.signal(number, signal.SIGHUP)
            await ended(process.sentinel)
            self.answering.discard(number)
            if not self.stop.is_set():
                reason = problem or f"exit code {process.exitcode}"
                self.notify(f"Process {number + 1} of {self.count} ended ({reason}) and is started again.")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def end_all(self, keepers: list[asyncio.Task[None]]) -> None:
        """Ask all processes to end, and kill those that do not."""
        for process in self.processes.values():
            process.terminate()
        _, late = await asyncio.wait(keepers, timeout=KILL_SECONDS)
        for process in self.processes.values() if late else ():
            process.kill()
        await asyncio.gather(*keepers)


def work(
    load: Callable[[], ServedRun], host: str, port: int, notify: Notify, token: str | None, report: Connection
) -> None:
    """One process; it reports "" when it answers, else what is wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the supervisor decides
    from counterpoise.serve.server import serve

    def started(server: Server, _: socket.socket) -> None:
        supervisor = multiprocessing.parent_process()
        assert supervisor is not None
        asyncio.get_running_loop().add_reader(supervisor.sentinel, partial(setattr, server, "should_exit", True))
        report.send("")

    try:
        serve(load, partial(open_socket, host, port, shared=True), notify, token, started)
    except CounterpoiseError as error:
        report.send(str(error))


def received(receiving: Connection) -> str:
    """The reports of a process."""
    with receiving:
        try:
            return str(receiving.recv())
        except (EOFError, OSError):
            return "it ended before it could answer"


async def ended(sentinel: int) -> None:
    """Wait until a process has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sentinel, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(sentinel)
