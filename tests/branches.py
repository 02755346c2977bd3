"""The share of the branches of src that the tests take, and the files that miss most: `make coverage`.

    python tests/branches.py .cache/coverage.json 95

Fails below the share. That of `coverage report --fail-under` is of lines and branches together, and is higher.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SHOWN = 10  # files


def main(path: str, required: str) -> int:
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    missing = {name: file["summary"]["missing_branches"] for name, file in report["files"].items()}
    for name in sorted(missing, key=lambda name: -missing[name])[:SHOWN]:
        print(f"{missing[name]:5} branches missing in {name}")
    totals = report["totals"]
    taken, total = totals["covered_branches"], totals["num_branches"]
    print(f"Branch coverage of src: {taken / total:.2%} ({taken:,} of {total:,}); required: {float(required):g}%")
    return int(100 * taken < float(required) * total)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
