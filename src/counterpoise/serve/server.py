"""The server: a socket, one process, and a new run whenever SIGHUP asks for it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import torch
import uvicorn

from counterpoise.cli.console import complain
from counterpoise.errors import DataError
from counterpoise.serve.app import make_app
from counterpoise.serve.guard import BoundedHeads, Guard
from counterpoise.serve.model import Served

RELOAD = getattr(signal, "SIGHUP", None)  # other systems have none: start again there
PATIENCE = 5  # seconds that open requests have when the server stops


class Holder:
    """The run that is served now, and how to read it again."""

    def __init__(self, load: Callable[[], Served]) -> None:
        self.load = load
        self.run = load()
        self.asked = asyncio.Event()

    def reload(self) -> None:
        """Replace the run in one step by a fresh reading; where that fails the old one stays."""
        try:
            self.run = self.load()
        except Exception as error:  # whatever is wrong with it, the server goes on
            reason = str(error) or type(error).__name__
            complain(f"{self.run.folder} could not be read again, the run of before stays: {reason}")
        else:
            complain(f"{self.run.folder} was read again.")

    async def keep_reloading(self) -> None:
        """Read the run again whenever that is asked for; asked many times meanwhile, once more."""
        while True:
            await self.asked.wait()
            self.asked.clear()
            await asyncio.to_thread(self.reload)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, or an error that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio lets answers wait
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(1024)
    except (OSError, OverflowError, UnicodeError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{host}:{port} cannot be listened at: {reason}. Try another --port, or 0 for any.") from None
    return opened


def serve(load: Callable[[], Served], listening: socket.socket, token: str | None = None, quiet: bool = False) -> None:
    """Answer until the process is told to stop."""
    torch.set_num_threads(1)  # a list is too small a piece of work for a second thread
    holder = Holder(load)
    app = make_app(lambda: holder.run, lambda _: _watching(holder, listening, quiet))
    config = uvicorn.Config(
        Guard(app, token),
        http=BoundedHeads,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


@asynccontextmanager
async def _watching(holder: Holder, listening: socket.socket, quiet: bool) -> AsyncIterator[None]:
    """While the server runs: listen to SIGHUP."""
    loop = asyncio.get_running_loop()
    reloading = loop.create_task(holder.keep_reloading())
    if RELOAD is not None:
        loop.add_signal_handler(RELOAD, holder.asked.set)
    if not quiet:
        complain(f"Serving {holder.run.folder} at {address(listening)} - Ctrl-C stops, SIGHUP reads the run again.")
    yield
    reloading.cancel()


def address(listening: socket.socket) -> str:
    """Where a browser finds a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
