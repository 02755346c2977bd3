"""Commands killed at random moments leave the old state or the new, and the next success leaves no trace of it.

`make faults` kills each command 50 times; `test_faults.py` a few times.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterpoise import load_model, make, read_log, simulate
from counterpoise.cli.main import main

SEED = 20
KINDS = ("fit", "save", "bench", "tune", "balance", "report")


@dataclass(frozen=True)
class Victim:
    """A command to kill, what must hold at any moment, and the result that a whole run must have."""

    words: list[str]  # with OUT where the place of the result stands
    begin: Callable[[Path], None]  # what is there before
    holds: Callable[[Path], None]  # at any moment
    result: Callable[[Path], Any]  # of a whole run, without what depends on the clock
    leaves: str  # the names that a success may leave, as a pattern


def run_words(words: list[str]) -> None:
    """In a process of its own: a command, or a model saved again and again."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if words[0] == "save":
            model = load_model(words[1])
            for _ in range(10):
                model.save(words[2])
            sys.exit(0)
        from counterpoise.training import checkpoint

        assert checkpoint.SECONDS_BETWEEN > 0
        checkpoint.SECONDS_BETWEEN = 0.0  # a checkpoint at every epoch, so that kills happen while one is written
        sys.exit(main(words))


def victims(place: Path) -> dict[str, Victim]:
    """The commands by name, on small data in a folder."""
    data = simulate(n_users=30, n_items=20, density=0.2, seed=3).dataset
    assert data.test is not None
    (place / "data").mkdir()
    for name, log in (("train", data.train), ("test", data.test)):
        log.to_frame().drop("propensity", strict=False).write_csv(place / "data" / f"{name}.csv")
    log = read_log(place / "data" / "train.csv")
    old, new = place / "old", place / "new"
    make("mf", seed=1, epochs=3).fit(log).save(old)
    make("mf", seed=2, epochs=3).fit(log).save(new)
    rng = np.random.default_rng(0)
    for name, rows in (("observed", 4000), ("population", 4000)):
        pl.DataFrame(rng.normal(size=(rows, 3)), schema=["a", "b", "c"]).write_csv(place / "data" / f"{name}.csv")
    folder, quick = str(place / "data"), ["--set", "epochs=20", "--set", "dim=4", "--test-kind", "uniform"]
    tables = [f"{folder}/observed.csv", f"{folder}/population.csv"]
    run_files = r"run\.json|(tensors|users|items)\.[0-9a-f]{12}\.\w+"
    fitted = ["fit", folder, "--test-kind", "uniform", "--method", "skb-ips", "--epochs", "60", "--out", "OUT"]
    saved = ["save", str(new), "OUT"]
    table = ["bench", "table", "--datasets", folder, "--methods", "mf,ips", "--seeds", "2", *quick, "--out", "OUT"]
    search = [
        "tune",
        folder,
        "--method",
        "mf",
        "--trials",
        "2",
        "--folds",
        "2",
        *quick[:2],
        *quick[-2:],
        "--out",
        "OUT",
    ]
    return {
        "fit": Victim(fitted, _copy(old), _run_holds, _scores, run_files),
        "save": Victim(saved, _copy(old), _run_holds, _scores, run_files),
        "bench": Victim(table, _nothing, _rows_hold, _rows, r"fits|table\.(md|tex|csv|json)|.*seed\d\.json"),
        "tune": Victim(search, _nothing, _trials_hold, _trials, r"best\.toml|trials\.csv|study\.db"),
        "balance": Victim(
            ["balance", *tables, "--out", "OUT/weights.csv"], _nothing, _weights_hold, _weights, r"weights\.csv"
        ),
        "report": Victim(["report", "OUT"], _copy(old), _page_holds, _page, rf"{run_files}|report\.(html|json)"),
    }


def _copy(source: Path) -> Callable[[Path], None]:
    return lambda out: shutil.copytree(source, out) and None


def _nothing(out: Path) -> None:
    out.mkdir()


def _scores(out: Path) -> list[float]:
    model = load_model(out)
    return model.predict(model.user_ids_.column, [model.item_ids_.column[0]] * len(model.user_ids_)).tolist()


def _run_holds(out: Path) -> None:
    assert np.isfinite(_scores(out)).all()


def _rows(out: Path) -> dict[str, Any]:
    rows = {path.name: json.loads(path.read_text()) for path in sorted((out / "fits").glob("[!.]*.json"))}
    return {name: {key: value for key, value in row.items() if key != "seconds"} for name, row in rows.items()}


def _rows_hold(out: Path) -> None:
    assert all(row["failed"] is None and row["metrics"] for row in _rows(out).values())


def _trials(out: Path) -> list[list[Any]]:
    return pl.read_csv(out / "trials.csv").drop("seconds", "number").rows()


def _trials_hold(out: Path) -> None:
    if (out / "trials.csv").exists():
        assert len(_trials(out)) >= 1


def _weights(out: Path) -> list[float]:
    return pl.read_csv(out / "weights.csv")["weight"].to_list()


def _weights_hold(out: Path) -> None:
    if (out / "weights.csv").exists():
        assert abs(sum(_weights(out)) - 1) < 1e-9


def _page(out: Path) -> dict[str, Any]:
    facts = json.loads((out / "report.json").read_text())
    return {key: facts[key] for key in ("log", "weights")}


def _page_holds(out: Path) -> None:
    _run_holds(out)
    if (out / "report.html").exists():
        assert (out / "report.html").read_text().rstrip().endswith("</html>")
        assert _page(out)


def _process(target: Callable[..., Any], *arguments: Any) -> Any:
    """A process forked from one that has imported all modules, so that the work begins at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["counterpoise.cli.main", "torch", "polars", "optuna", "counterpoise.tuning.tune"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _started(victim: Victim, out: Path) -> Any:
    return _process(run_words, [word.replace("OUT", str(out)) for word in victim.words])


def _finished(victim: Victim, out: Path) -> float:
    """Run to the end; how long it took."""
    begun, process = time.monotonic(), _started(victim, out)
    process.join()
    assert process.exitcode == 0, (victim.words, process.exitcode)
    return time.monotonic() - begun


def kill(name: str, times: int, seed: int = SEED) -> int:
    """Kill one of `KINDS` at random moments, so many times, one run after the other on one folder; runs that it took.

    The moments are uniform over the time of a whole run; one that ends before its kill does not count.
    """
    _process(int).join()  # the server imports
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        place = Path(folder)
        victim, rng, met = victims(place)[name], random.Random(f"{seed} {name}"), 0
        runs = 0
        victim.begin(place / "reference")
        whole, expected = _finished(victim, place / "reference"), victim.result(place / "reference")
        out = place / "out"
        victim.begin(out)
        while met < times and runs < 10 * times:
            process, runs = _started(victim, out), runs + 1
            process.join(rng.uniform(0, whole))
            met += process.exitcode is None
            process.kill()
            process.join()
            victim.holds(out)
            if victim.words[0] in ("bench", "tune") and process.exitcode == 0:  # done: begin anew
                shutil.rmtree(out)
                victim.begin(out)
        _finished(victim, out)
        assert victim.result(out) == expected
        left = [path.name for path in out.rglob("*") if not re.fullmatch(victim.leaves, path.name)]
        assert left == [], left
    assert met == times
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", choices=KINDS)
    given = parser.parse_args()
    for kind in KINDS:
        if given.only in (None, kind):
            print(f"{kind}: {given.times} kills in {kill(kind, given.times, given.seed)} runs", flush=True)
