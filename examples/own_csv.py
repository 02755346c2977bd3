"""From a CSV of ratings to recommendations, and how much better they are than those of plain matrix factorisation.

python examples/own_csv.py [ratings.csv [uniform.csv]]

Without files it writes two of a simulated world into a temporary folder first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import counterpoise as cp


def write_files(folder: Path) -> tuple[Path, Path]:
    """A biased log, and ratings of items that nobody chose, with ratings of 2 and 5."""
    data = cp.simulate(n_users=200, n_items=150, probe_fraction=0, seed=1).dataset
    for name, log in (("ratings.csv", data.train), ("uniform.csv", data.test)):
        frame = log.to_frame()
        frame.with_columns(rating=2 + 3 * frame["rating"]).write_csv(folder / name)
    return folder / "ratings.csv", folder / "uniform.csv"


def main(ratings: Path, uniform: Path | None) -> None:
    """Fit two methods, compare them on uniform ratings or on a hold-out, and recommend."""
    kind = None if uniform is None else "uniform"  # its pairs were drawn at random
    data = cp.load_dataset(ratings, test=uniform, test_kind=kind, threshold=4, probe_fraction=0)
    log, test = data.train, data.test
    if test is None:
        log, test, _ = cp.split(log, 0.2, by="user")  # biased: evaluated with weights, to stand for all pairs
    print(log)
    models = {name: cp.make(name, seed=0).fit(log) for name in ("mf", "counterpoise")}
    for name, model in models.items():
        found = cp.evaluate(model, test, k=5)  # leaves out pairs that were trained on
        low, high = found.intervals["ndcg"]
        print(f"{name:>12}: AUC {found.auc:.3f}, NDCG@5 {found.ndcg:.3f} ({low:.3f} to {high:.3f})")
    print(models["counterpoise"].recommend(log.user_ids.decode([0, 1]), k=3))


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        main(*[*files, None][:2] if files else write_files(Path(folder)))
