"""The server process: a socket, uvicorn, and a reload of the run on SIGHUP."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import torch
import uvicorn

from counterpoise.errors import DataError
from counterpoise.serve.app import make_app
from counterpoise.serve.guard import BoundedHeaders, Guard
from counterpoise.serve.model import ServedRun

RELOAD_SIGNAL = getattr(signal, "SIGHUP", None)  # Windows has none: restart the server there
SHUTDOWN_SECONDS = 5  # time that open requests have when the server stops
Notify = Callable[[str], None]  # writes one line to the server's log


class RunHolder:
    """The run that is served now, and how to load it again."""

    def __init__(self, load: Callable[[], ServedRun], notify: Notify) -> None:
        self.load, self.notify = load, notify
        self.run = load()
        self.requested = asyncio.Event()

    def reload(self) -> None:
        """Replace the run in one step by a fresh one; where loading fails the previous one stays."""
        try:
            self.run = self.load()
        except Exception as error:  # whatever is wrong with the folder, the server goes on
            reason = str(error) or type(error).__name__
            self.notify(f"{self.run.folder} could not be reloaded, the previous run stays: {reason}")
        else:
            self.notify(f"{self.run.folder} was reloaded.")

    async def reload_on_request(self) -> None:
        """Reload whenever that is requested; several requests during one reload cause one more."""
        while True:
            await self.requested.wait()
            self.requested.clear()
            await asyncio.to_thread(self.reload)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only for this
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(1024)
    except (OSError, OverflowError, UnicodeError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot listen at {host}:{port}: {reason}. Try another --port, or 0 for any.") from None
    return opened


def serve(
    load: Callable[[], ServedRun],
    listening: socket.socket,
    notify: Notify,
    token: str | None = None,
    quiet: bool = False,
) -> None:
    """Answer requests until the process is stopped; `quiet` leaves out the line at the start."""
    torch.set_num_threads(1)  # one list is too little work for a second thread
    holder = RunHolder(load, notify)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        reloading = loop.create_task(holder.reload_on_request())
        if RELOAD_SIGNAL is not None:
            loop.add_signal_handler(RELOAD_SIGNAL, holder.requested.set)
        if not quiet:
            notify(f"Serving {holder.run.folder} at {address(listening)} - Ctrl-C stops, SIGHUP reloads the run.")
        yield
        reloading.cancel()

    config = uvicorn.Config(
        Guard(make_app(lambda: holder.run, lifespan), token),
        http=BoundedHeaders,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def address(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
