"""`counterpoise serve`: a saved run over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated

from counterpoise.cli.console import print_error
from counterpoise.cli.options import Quiet, Run, UnknownUsers, option, with_options
from counterpoise.errors import ConfigError, check_number

MAX_PROCESSES = 64


@with_options
def serve(
    run: Run,
    host: Annotated[
        str,
        option(
            "Listen at this address; one that other machines can reach needs a token.", metavar="ADDRESS", panel="Scale"
        ),
    ] = "127.0.0.1",
    port: Annotated[int, option("Listen at this port; 0 chooses a free one.", metavar="PORT", panel="Scale")] = 8000,
    token_file: Annotated[
        Path | None,
        option("Require the token in this file from every request.", metavar="FILE", shown="none", panel="Scale"),
    ] = None,
    baseline: Annotated[
        Path | None,
        option(
            "Show this saved run of mf (of clicks: wmf) on the same log beside the run.",
            metavar="RUN",
            shown="none",
            panel="Output",
        ),
    ] = None,
    unknown_users: UnknownUsers = "error",
    processes: Annotated[
        int, option("Answer by this many processes, all at one port.", metavar="N", panel="Scale")
    ] = 1,
    quiet: Quiet = False,
) -> None:
    """Answer /recommend, /recommend_for, /similar, /model and /health over HTTP. SIGHUP reloads the run.

    At / is a page to try it.

    For example:
        counterpoise serve runs/mine
        counterpoise serve runs/mine --port 0 --unknown-users popular
        counterpoise serve runs/mine --host 0.0.0.0 --token-file token.txt
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
