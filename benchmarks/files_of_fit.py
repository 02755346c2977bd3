"""The number of files of the package whose functions run in one `counterpoise fit`.

    python benchmarks/files_of_fit.py [--data coat] [--method akb-dr]

Module-level code is not counted, functions that it calls on import are. Without Coat (COUNTERPOISE_DATA) the log is
simulated. Limit: 47 files, two of them for the outcome model of kernel DR.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import counterpoise as cp

PACKAGE = Path(cp.__file__).parent


def files_of_fit(data: str, method: str) -> set[str]:
    """The files, relative to the package, of all functions that the command calls in any thread of this process."""
    files: set[str] = set()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            from counterpoise.cli.main import main

            code = main(["fit", data, "--method", method, "--out", f"{folder}/run", "--quiet"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if code:
        sys.exit(code)
    paths = (Path(file) for file in files)
    return {str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE)}


def main() -> None:
    """Print the number and the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="coat")
    parser.add_argument("--method", default="akb-dr")
    options = parser.parse_args()
    data = options.data
    if data == "coat":
        try:
            cp.load_dataset("coat")
        except cp.DataError as error:
            print(f"simulated instead of coat: {error}")
            data = "simulated"
    files = files_of_fit(data, options.method)
    print(f"{len(files)} files of the package run in: counterpoise fit {data} --method {options.method}")
    print(*sorted(files), sep="\n")


if __name__ == "__main__":
    main()
