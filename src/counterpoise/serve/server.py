"""One server process: a socket, uvicorn, and a reload of the run on SIGHUP."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from threading import Thread

import torch
import uvicorn

from counterpoise.serve.app import make_app
from counterpoise.serve.connections import (
    ACCEPTED_AT_ONCE,
    BACKLOG,
    REQUEST_SECONDS,
    SHUTDOWN_SECONDS,
    BoundedHTTP,
    close_overdue,
)
from counterpoise.serve.guard import Guard
from counterpoise.serve.model import ServedRun

RELOAD_SIGNAL = getattr(signal, "SIGHUP", None)  # Windows has none: restart the server there
RELOAD_SECONDS = 300  # after which a reload is given up
SWITCH_SECONDS = 0.0005  # that a thread ranks before the event loop has its turn; Python's default is ten times that
Load = Callable[[], ServedRun]
Notify = Callable[[str], None]  # writes one line to the server's log


class RunHolder:
    """The run that is served now, and how to load it again."""

    def __init__(self, load: Load, notify: Notify) -> None:
        self.load, self.notify = load, notify
        self.requested = asyncio.Event()
        if RELOAD_SIGNAL is not None:
            signal.signal(RELOAD_SIGNAL, lambda *_: self.requested.set())  # also while the first run is loaded
        self.run = load()

    async def reload_on_request(self) -> None:
        """Replace the run by a fresh one whenever that is requested; where loading fails the previous one stays.

        Several requests during one reload cause one more. A reload that hangs is left behind after `RELOAD_SECONDS`.
        """
        while True:
            await self.requested.wait()
            self.requested.clear()
            try:
                self.run = await asyncio.wait_for(in_background(self.load), RELOAD_SECONDS)
            except TimeoutError:
                self._keep(f"it took longer than {RELOAD_SECONDS} s")
            except Exception as error:  # whatever is wrong with the folder, the server goes on
                self._keep(str(error) or type(error).__name__)
            else:
                self.notify(f"{self.run.folder} was reloaded.")

    def _keep(self, reason: str) -> None:
        self.notify(f"{self.run.folder} could not be reloaded, the previous run stays: {reason}")


def in_background(load: Load) -> asyncio.Future[ServedRun]:
    """The result of `load` or its exception, from a thread that the end of the process does not wait for."""
    loaded: Future[ServedRun] = Future()
    loaded.set_running_or_notify_cancel()

    def work() -> None:
        try:
            loaded.set_result(load())
        except BaseException as error:
            loaded.set_exception(error)

    Thread(target=work, daemon=True).start()
    return asyncio.wrap_future(loaded)


class Server(uvicorn.Server):
    """uvicorn with a long queue of connections to accept, few of them at a time."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # uvicorn takes one number for both
        self.sweeping = asyncio.create_task(close_overdue(self.server_state.connections))


def serve(
    load: Load,
    open_listening: Callable[[], socket.socket],
    notify: Notify,
    token: str | None = None,
    started: Callable[[Server, socket.socket], None] = lambda *_: None,
) -> None:
    """Answer requests until the process is stopped; `started` is called when it is about to."""
    torch.set_num_threads(1)  # one list is too little work for a second thread
    sys.setswitchinterval(SWITCH_SECONDS)
    holder = RunHolder(load, notify)
    listening = open_listening()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        reloading = loop.create_task(holder.reload_on_request())
        if RELOAD_SIGNAL is not None:
            loop.add_signal_handler(RELOAD_SIGNAL, holder.requested.set)
        started(server, listening)
        yield
        reloading.cancel()

    config = uvicorn.Config(
        Guard(make_app(lambda: holder.run, lifespan), token),
        http=BoundedHTTP,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=REQUEST_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = Server(config)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
