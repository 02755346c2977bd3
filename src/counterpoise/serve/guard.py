"""Who is let in, and with how much: token, name of the host and size of the body, before anything is parsed."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from counterpoise.errors import ConfigError, DataError
from counterpoise.serve.schema import MOST_BYTES

# HTTP whose heads have a bound: uvicorn's parser would collect the headers of a request as long as they come.

MOST_HEAD = 1 << 16  # bytes of a request's first line and headers


class BoundedHeads(HttpToolsProtocol):
    """Closes a connection whose head goes on beyond the bound, before anything is made of it."""

    without_end = 0  # bytes since a head ended or a body went on

    def data_received(self, data: bytes) -> None:
        """Count, and parse; the two below have come in between where there was an end."""
        self.without_end += len(data)
        super().data_received(data)
        if self.without_end > MOST_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self.without_end = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A body goes on; its size is the guard's business."""
        self.without_end = 0
        super().on_body(body)


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/health",)  # needs no token: it says only that the server answers
SHORTEST = 16  # letters of a token
MAKE_ONE = 'python -c "import secrets; print(secrets.token_urlsafe())" > FILE'


def read_token(path: Path) -> str:
    """The token of a file: one word of printable ASCII."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain ASCII text"
        raise DataError(f"the token file {path} cannot be read: {reason}. Make one: {MAKE_ONE}") from None
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {path} must be a word of {SHORTEST} letters or more, got {len(token)}. Make one: {MAKE_ONE}"
        )
    return token


@lru_cache(maxsize=64)
def is_local(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, token: str | None) -> None:
    """Raise `ConfigError` where others could reach the server and no token keeps them out."""
    if token is None and not is_local(host):
        raise ConfigError(
            f"`host` must be 127.0.0.1, ::1 or localhost without a token, got {host!r}: "
            f"anybody who reaches it could ask. Give --token-file FILE. Make one: {MAKE_ONE}"
        )


class Guard:
    """Wraps an application: what it refuses, the application never sees."""

    def __init__(self, app: App, token: str | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.app, self.most_bytes = app, most_bytes
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, 413 or 421, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self.refusal(scope["path"], dict(scope["headers"]))
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            body = await self.whole_body(receive)
            receive = _replayed(body or b"", receive)
            refused = self.too_large if body is None else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await _refuse(send, *refused)

    def refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """(status, why) of a request that is refused by its head alone."""
        if self.token is None and not is_local(_host_name(headers)):
            return 421, "without a token this server answers under the names of this machine only: use 127.0.0.1."
        if self.token is not None and path not in OPEN and not self.is_let_in(headers.get(b"authorization", b"")):
            return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.most_bytes:
            return self.too_large
        return None

    def is_let_in(self, authorization: bytes) -> bool:
        """Whether a header carries the token, compared in constant time: as Bearer, or as a browser's password."""
        assert self.token is not None
        scheme, _, word = authorization.partition(b" ")
        if scheme.lower() == b"basic":
            word = _password(word)
        elif scheme.lower() != b"bearer":
            word = b""
        return hmac.compare_digest(word.strip(), self.token)

    async def whole_body(self, receive: Receive) -> bytes | None:
        """The body, read to its end; None where it goes on beyond the limit."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self.most_bytes:
                return None
        return b"".join(parts)

    @property
    def too_large(self) -> tuple[int, str]:
        """What a body beyond the limit is answered."""
        return 413, f"the body must have at most {self.most_bytes:,} bytes. Ask for fewer users at a time."


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then whatever comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="counterpoise"')]
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _host_name(headers: dict[bytes, bytes]) -> str:
    """The name under which the server was called, without its port."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).strip("[]")


def _password(word: bytes) -> bytes:
    try:
        return base64.b64decode(word, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
