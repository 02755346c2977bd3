"""The process of the command line: its signals and its streams. `cli.main` has the commands."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def open_standard_streams() -> None:
    """Open the descriptors 0 to 2 where they are closed: else the next file that is opened gets their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def main() -> int:
    """Run the command line; the exit code."""
    from counterpoise.cli.interrupts import hold_while_importing

    try:
        hold_while_importing()
        open_standard_streams()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:  # closed by who started the process
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
            elif hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # names of files may be no text
        from counterpoise.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("stopped before the end. Nothing was written. The same command starts anew.\n")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is to end


if __name__ == "__main__":
    sys.exit(main())
