"""Checks before a request is parsed: token, host name, and the size of its body."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterpoise.errors import ConfigError, DataError
from counterpoise.serve.schema import MAX_BODY_BYTES
from counterpoise.storage import expanded, read_file

PUBLIC_PATHS = ("/health",)  # need no token
MAX_TOKEN_FILE = 1 << 16  # bytes
MIN_TOKEN_LENGTH = 16  # characters
TOO_LARGE = 413, f"the body must have at most {MAX_BODY_BYTES:,} bytes. Ask for fewer users at a time."
CREATE_COMMAND = 'python -c "import secrets; print(secrets.token_urlsafe())" > FILE'


def read_token(path: Path) -> str:
    """The token in a file: one word of printable ASCII."""
    try:
        token = read_file(expanded(path), limit=MAX_TOKEN_FILE).decode("ascii").strip()
    except (DataError, UnicodeDecodeError) as error:
        reason = str(error).rstrip(".") if isinstance(error, DataError) else "it is not plain ASCII text"
        raise DataError(f"the token file {path} cannot be read: {reason}. Make one: {CREATE_COMMAND}") from None
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {path} must be one word of {MIN_TOKEN_LENGTH} characters or more, got {len(token)}. "
            f"Make one: {CREATE_COMMAND}"
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
    """Raise `ConfigError` where other machines can reach the server and there is no token."""
    if token is None and not is_local(host):
        raise ConfigError(
            f"`host` must be 127.0.0.1, ::1 or localhost without a token, got {host!r}: "
            f"anybody who reaches it could ask. Give --token-file FILE. Make one: {CREATE_COMMAND}"
        )


class Guard:
    """Middleware that refuses requests by token, host name and body size."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app = app
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, 413 or 421, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self.refusal(scope["path"], scope["headers"])
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            try:
                body = await self.whole_body(receive)
            except ConnectionError:
                return
            receive = _replayed(body or b"", receive)
            refused = TOO_LARGE if body is None else None
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await _refuse(send, *refused)

    def refusal(self, path: str, lines: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """(status, reason) where the headers are enough to refuse a request."""
        headers = dict(lines)
        if len(headers) < len(lines) and [name for name, _ in lines].count(b"host") > 1:
            return 400, "a request must have one Host header."
        if self.token is None and not is_local(_host_name(headers)):
            return 421, "without a token this server answers only requests to this machine's own names: use 127.0.0.1."
        if self.token is not None and path not in PUBLIC_PATHS and not self.has_token(headers):
            return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
            return TOO_LARGE
        return None

    def has_token(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the headers have the token, as Bearer or as the password of a browser; compared in constant time."""
        assert self.token is not None
        scheme, _, word = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"basic":
            try:
                word = base64.b64decode(word, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(word.strip(), self.token)

    async def whole_body(self, receive: Receive) -> bytes | None:
        """The body, read to its end; None if it exceeds the limit."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its request was whole")
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > MAX_BODY_BYTES:
                return None
        return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body in one piece, then what follows it."""
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
    """The name in the Host header, without its port."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).strip("[]")
