"""`counterpoise serve`: a saved run over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.options import Quiet, Run, UnknownUsers
from counterpoise.errors import ConfigError

GUARD_HELP = "File with a token that every request must carry."
PLAIN_HELP = "A run of mf on the same log, to show beside it on the page."


def serve(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at, 0 for any.")] = 8000,
    token_file: Annotated[Path | None, typer.Option(help=GUARD_HELP, show_default="none")] = None,
    plain: Annotated[Path | None, typer.Option(help=PLAIN_HELP, show_default="none")] = None,
    unknown: UnknownUsers = "error",
    quiet: Quiet = False,
) -> None:
    """Answer /recommend, /similar, /model and /health over HTTP, with a page at /. SIGHUP reads the run again."""
    from counterpoise.serve import guard

    token = None if token_file is None else guard.read_token(token_file)
    guard.check_host(host, token)
    _need_packages()

    from counterpoise.serve.model import Served
    from counterpoise.serve.server import open_socket
    from counterpoise.serve.server import serve as answer

    with open_socket(host, port) as listening:
        answer(lambda: Served.load(run, plain, unknown), listening, token, quiet)


def _need_packages() -> None:
    """Raise `ConfigError` where what serving needs is not installed."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f'serving needs {error.name}: pip install "counterpoise[serve]"') from None
