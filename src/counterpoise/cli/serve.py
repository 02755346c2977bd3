"""`counterpoise serve`: a saved run over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated

from counterpoise.cli.console import print_error
from counterpoise.cli.options import Quiet, Run, UnknownUsers, option
from counterpoise.errors import ConfigError, check_number

MAX_PROCESSES = 64


def serve(
    run: Run,
    host: Annotated[
        str, option("Address to listen at; one that other machines can reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to listen at; 0 chooses a free one.")] = 8000,
    token_file: Annotated[Path | None, option("File with a token that every request must carry.", shown="none")] = None,
    baseline: Annotated[
        Path | None,
        option("Saved run of mf (of clicks: wmf) on the same log, to show beside this one on the page.", shown="none"),
    ] = None,
    unknown_users: UnknownUsers = "error",
    processes: Annotated[int, option("Number of processes that answer, at one port.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Answer /recommend, /recommend_for, /similar, /model and /health over HTTP. SIGHUP reloads the run.

    At / is a page to try it.
    """
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f'serving needs {error.name}: pip install "counterpoise[serve]"') from None

    from counterpoise.serve import guard
    from counterpoise.serve.connections import address, open_socket
    from counterpoise.serve.processes import Supervisor, load_run, reserve

    check_number("processes", processes, at_least=1, at_most=MAX_PROCESSES, integer=True)
    token = None if token_file is None else guard.read_token(token_file)
    guard.check_host(host, token)
    load = partial(load_run, run, baseline, unknown_users)

    def started(_: object, listening: socket) -> None:
        if not quiet:
            by = f" by {processes} processes" if processes > 1 else ""
            print_error(f"Serving {run} at {address(listening)}{by} - Ctrl-C stops, SIGHUP reloads the run.")

    if processes > 1:
        with reserve(host, port) as reserved:
            supervisor = Supervisor(processes, load, reserved, print_error, token)
            asyncio.run(supervisor.run(lambda: started(supervisor, reserved)))
    else:
        from counterpoise.serve.server import serve as answer

        with open_socket(host, port) as listening:
            answer(load, lambda: listening, print_error, token, started)
