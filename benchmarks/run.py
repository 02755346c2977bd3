"""All benchmarks, one after the other: `make bench`. Name some to run only those. (`make reproduce` is its own.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run each script in a process of its own, so that caches of one do not help another."""
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.py") if path.name not in ("run.py", "results.py"))
    for name in names:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)


if __name__ == "__main__":
    main()
