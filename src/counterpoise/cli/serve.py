"""`counterpoise serve`: a saved run over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from counterpoise.cli.console import print_error
from counterpoise.cli.options import Quiet, Run, UnknownUsers, option
from counterpoise.errors import ConfigError


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
    from counterpoise.serve.model import ServedRun
    from counterpoise.serve.server import open_socket
    from counterpoise.serve.server import serve as answer

    token = None if token_file is None else guard.read_token(token_file)
    guard.check_host(host, token)
    with open_socket(host, port) as listening:
        answer(lambda: ServedRun.load(run, baseline, unknown_users), listening, print_error, token, quiet)
