"""How long a large CSV file takes to become a log, and how much memory: against a bare `polars.read_csv` of it.

    python benchmarks/ingest.py [--rows 10000000]

Each reader runs in a process of its own. Limits for 10 million rows on 2 cores: 20 seconds, 3 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

READERS = {
    "polars.read_csv": "import polars; read = polars.read_csv",
    "read_log": "import counterpoise.data.reading; read = counterpoise.data.reading.read_log",
}
MEASURE = """
import resource, sys, time
{reader}
start = time.perf_counter()
rows = len(read(sys.argv[1]))
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(rows, seconds, peak / 1e9)
"""


def write_log(file: Path, rows: int, n_users: int = 1_000_000, n_items: int = 100_000) -> None:
    """A log of distinct uniform pairs, about 20 bytes a row."""
    rng = np.random.default_rng(0)
    drawn = pl.Series(rng.integers(n_users * n_items, size=rows + rows // 100 + 100))
    pairs = drawn.unique(maintain_order=True).head(rows)
    ratings = rng.integers(2, 11, size=rows) / 2
    columns = {"user_id": 1_000_000 + pairs // n_items, "item_id": 100_000 + pairs % n_items, "rating": ratings}
    pl.DataFrame(columns).write_csv(file)


def measure(reader: str, file: Path) -> tuple[int, float, float]:
    """(rows, seconds, peak memory in GB) of one reader in a fresh process."""
    script = MEASURE.format(reader=reader)
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=True, capture_output=True, text=True)
    rows, seconds, peak = done.stdout.split()
    return int(rows), float(seconds), float(peak)


def main() -> None:
    """Write the file, measure both readers, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.csv"
        write_log(file, rows)
        print(f"{rows:,} rows, {file.stat().st_size / 1e6:.0f} MB")
        print(f"{'reader':<16} {'seconds':>8} {'peak GB':>8} {'ratio':>6}")
        bare = None
        for name, reader in READERS.items():
            read, seconds, peak = measure(reader, file)
            if read != rows:
                raise SystemExit(f"{name} read {read} of {rows} rows")
            bare = bare or seconds
            print(f"{name:<16} {seconds:8.2f} {peak:8.2f} {seconds / bare:6.1f}")


if __name__ == "__main__":
    main()
