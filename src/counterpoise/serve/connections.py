"""Sockets, and the limits of a connection: how many there are, how large a head is, how long a request may take.

uvicorn accepts connections until the process runs out of file descriptors, never closes idle ones, and collects a
head as long as it comes.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
from contextlib import suppress
from functools import cache
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from counterpoise.errors import DataError

MAX_CONNECTIONS = 1000  # of one process
BACKLOG = 1024  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 64  # connections, in one turn of the event loop
SPARE_DESCRIPTORS = 5 * ACCEPTED_AT_ONCE  # for files, and for what is accepted before the oldest connection is closed
MAX_HEADER_BYTES = 1 << 16  # of a request's first line and headers
REQUEST_SECONDS = 20  # from when a connection could send a request to when the request is whole
ANSWER_SECONDS = 60  # that a client may take to read an answer
SWEEP_SECONDS = 1  # between two looks for connections that took longer
SHUTDOWN_SECONDS = 5  # time that open requests have when the server stops


@cache
def connection_limit() -> int:
    """`MAX_CONNECTIONS`, or what the limit of open files leaves, which is raised as far as it can be."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    free = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - SPARE_DESCRIPTORS
    return max(ACCEPTED_AT_ONCE, min(MAX_CONNECTIONS, free))


class BoundedHTTP(HttpToolsProtocol):
    """HTTP on one connection. Where there are too many, the one that has been idle for longest is closed."""

    pending = 0  # bytes received since a head ended or a piece of a body arrived
    since = 0.0  # when the connection opened, an answer was complete, or the client stopped reading one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close another connection where this is one too many; this one, if all others are being answered."""
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > connection_limit():
            open_ones = cast(set[BoundedHTTP], self.connections)
            oldest = min(open_ones, key=lambda other: other.since if other.is_idle else math.inf)
            oldest.transport.abort()
            open_ones.discard(oldest)

    @property
    def is_idle(self) -> bool:
        """Whether the server has nothing to do for this connection but wait for its client."""
        answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return not answering or self.transport.get_write_buffer_size() > 0

    def close_if_overdue(self) -> None:
        """Close the connection if its client took too long to send a request, or to read an answer."""
        waited = self.loop.time() - self.since
        if self.transport.get_write_buffer_size():
            if waited > ANSWER_SECONDS:
                self.transport.abort()
        elif self.is_idle and waited > REQUEST_SECONDS and not self.transport.is_closing():
            if self.pending or (self.cycle is not None and self.cycle.more_body):  # a request has begun
                self._answer_timeout()
            self.transport.close()

    def _answer_timeout(self) -> None:
        body = json.dumps({"error": f"the request must be whole within {REQUEST_SECONDS} seconds."}).encode()
        head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        """Parse, which calls the two methods below, and count what they have not claimed."""
        self.pending += len(data)
        super().data_received(data)
        if self.pending > MAX_HEADER_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The headers have ended."""
        self.pending = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body arrived; `Guard` limits its size."""
        self.pending = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """The next request may come."""
        self.since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        self.since = self.loop.time()
        super().pause_writing()


async def close_overdue(connections: set[Any]) -> None:
    """Look at all connections once a second, as long as the server runs."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        for connection in list(connections):
            connection.close_if_overdue()


def open_socket(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that listens at an address; `shared` where others of this user's processes may listen there too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only for this
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot listen at {host}:{port}: {reason}. Try another --port, or 0 for any.") from None
    return opened


def address(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
