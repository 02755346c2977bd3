"""The command line, run in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from counterpoise.cli.main import main


def run(*words: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def one_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1100
