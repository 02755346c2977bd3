"""Time and size of the report of a log of a million pairs, on one thread.

Most of the time goes to the MF baseline, which is fitted for the comparison. Limits: 60 s and 3 MB.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

import counterpoise as cp

USERS, ITEMS, DENSITY = 20_000, 2_000, 0.025
METHODS = ("skb-ips", "counterpoise")


def main() -> None:
    """Fit briefly, as only the report is timed, and print seconds and bytes."""
    torch.set_num_threads(1)
    data = cp.simulate(USERS, ITEMS, DENSITY).dataset
    print(f"{len(data.train):,} pairs of {USERS:,} users x {ITEMS:,} items, a test of {len(data.test):,}, one thread")
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            model = cp.make(method, epochs=3).fit(data.train, probe=data.probe)
            model.training.epochs = cp.Training().epochs  # the MF baseline is trained as for a fit of full length
            out = Path(folder) / f"{method}.html"
            started = time.perf_counter()
            facts = cp.write_report(model, data, out=out)
            seconds, baseline = time.perf_counter() - started, facts["configuration"]["baseline_seconds"]
            sizes = [path.stat().st_size / 1e6 for path in (out, out.with_suffix(".json"))]
            print(f"{method}: {seconds:.1f} s (limit 60), of which the MF baseline {baseline:.1f} s;", end=" ")
            print(f"page {sizes[0]:.2f} MB (limit 3), facts {sizes[1]:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
