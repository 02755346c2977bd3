"""Commands that die at every step of a write leave the old state or the new, and repeated, the whole result.

A step is what changes the folder of the result: a file that is opened to be written, renamed or removed, a folder that
is made or removed (Python's audit events), a transaction of a database. A command is killed before each step; where a
file is opened, also at its first byte and within it, by a limit of file size. `make faults` takes every step,
`test_faults.py` some of each command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterpoise import load_model, make, read_log, simulate
from counterpoise.cli.main import main

KINDS = ("fit", "save", "bench", "tune", "balance", "balance-log", "report")
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "open")  # audit events: the path comes first
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
INSIDE = 60  # bytes of a file that are written before its process dies within it
DIED = (-signal.SIGKILL, -signal.SIGXFSZ)  # exit codes


@dataclass(frozen=True)
class Victim:
    """A command to kill, what must hold at any moment, and the result that a whole run must have."""

    words: list[str]  # with OUT where the place of the result stands
    begin: Callable[[Path], None]  # what is there before
    holds: Callable[[Path], None]  # at any moment
    result: Callable[[Path], Any]  # of a whole run, without what depends on the clock
    leaves: str  # the names that a success may leave, as a pattern


@dataclass(frozen=True)
class Fault:
    """A process is killed at this step (counted from 0): before it, or when it has written so many bytes to a file."""

    step: int
    written: int | None = None


class Steps:
    """Watches the steps of this process in a folder, writes them down, and kills the process at one of them."""

    def __init__(self, folder: Path, notes: Path, fault: Fault | None) -> None:
        self.folder, self.fault, self.count = str(folder), fault, 0
        self.notes = os.open(notes, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.addaudithook(self.on_event)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event."""
        if event in CHANGES and not isinstance(arguments[0], int):
            relative = arguments[-1] != -1 and event in ("os.remove", "os.rmdir")  # to a folder: `rmtree` alone does so
            opened = event == "open"
            if (relative or os.fsdecode(arguments[0]).startswith(self.folder)) and not (
                opened and not arguments[2] & WRITING
            ):
                self.take(f"{event} {os.fsdecode(arguments[0])}", opened)

    def take(self, name: str, opens: bool = False) -> None:
        """One step begins."""
        number, self.count = self.count, self.count + 1
        os.write(self.notes, f"{'opens' if opens else 'does'} {name}\n".encode())
        if self.fault is None or number != self.fault.step:
            return
        if self.fault.written is None:
            os.kill(os.getpid(), signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.written, resource.RLIM_INFINITY))


def run_words(words: list[str], folder: Path, notes: Path, fault: Fault | None) -> None:
    """In a process of its own: a command, or a model that is saved."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    from counterpoise.training import checkpoint

    checkpoint.SECONDS_BETWEEN = 0.0  # a checkpoint at every epoch
    steps = Steps(folder, notes, fault)
    event.listen(Engine, "commit", lambda connection: steps.take("commit"))
    complained = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complained):
        if words[0] == "save":
            load_model(words[1]).save(words[2])
            sys.exit(0)
        code = main(words)
    os.write(steps.notes, complained.getvalue().encode() if code else b"")
    sys.exit(code)


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
    for name in ("observed", "population"):
        pl.DataFrame(rng.normal(size=(400, 3)), schema=["a", "b", "c"]).write_csv(place / "data" / f"{name}.csv")
    for side, size in (("user", 30), ("item", 20)):
        table = pl.DataFrame({f"{side}_id": range(size), "a": rng.normal(size=size)})
        table.write_csv(place / f"{side}s.csv")
    folder, quick = str(place / "data"), ["--set", "epochs=20", "--set", "dim=4", "--test-kind", "uniform"]
    tables = [f"{folder}/observed.csv", f"{folder}/population.csv"]
    log_words = [f"{folder}/train.csv", "--users", f"{place}/users.csv", "--items", f"{place}/items.csv"]
    run_files = r"run\.json|(tensors|users|items)\.[0-9a-f]{12}\.\w+"
    fitted = ["fit", folder, "--test-kind", "uniform", "--method", "skb-ips", "--epochs", "3", "--out", "OUT"]
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
    one = ["balance", *tables, "--out", "OUT/weights.csv"]
    many = ["balance", *log_words, "--cache", "OUT/cache", "--out", "OUT/weighted"]
    shards = r"weighted|cache|[0-9a-f]+|part-000000\.parquet|(user|item)_ids\.parquet|shards\.json|\w+-000000\.npy"
    return {
        "fit": Victim(fitted, _copy(old), _run_holds, _scores, run_files),
        "save": Victim(saved, _copy(old), _run_holds, _scores, run_files),
        "bench": Victim(table, _nothing, _rows_hold, _rows, r"fits|table\.(md|tex|csv|json)|.*seed\d\.json"),
        "tune": Victim(search, _nothing, _trials_hold, _trials, r"best\.toml|trials\.csv|study\.db"),
        "balance": Victim(one, _nothing, _weights_hold, _weights, r"weights\.csv"),
        "balance-log": Victim(many, _nothing, _parts_hold, _parts, shards),
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


def _parts(out: Path) -> list[float]:
    return pl.read_parquet(out / "weighted" / "*.parquet")["weight"].to_list()


def _parts_hold(out: Path) -> None:
    if (out / "weighted").exists():
        assert abs(sum(_parts(out)) - 1) < 1e-9


def _page(out: Path) -> dict[str, Any]:
    facts = json.loads((out / "report.json").read_text())
    return {key: facts[key] for key in ("log", "weights")}


def _page_holds(out: Path) -> None:
    _run_holds(out)
    if (out / "report.html").exists():
        assert (out / "report.html").read_text().rstrip().endswith("</html>")
        assert _page(out)


def _ended(victim: Victim, out: Path, fault: Fault | None = None) -> tuple[int, list[str]]:
    """(exit code, steps) of a command in a process forked from one that has imported all modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["counterpoise.cli.main", "torch", "polars", "optuna", "counterpoise.tuning.tune"])
    notes, words = out.with_name(f"{out.name}.steps"), [word.replace("OUT", str(out)) for word in victim.words]
    process = context.Process(target=run_words, args=(words, out, notes, fault))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, notes.read_text().splitlines()


def faults_of(steps: list[str]) -> list[Fault]:
    """The faults of a command that takes these steps."""
    inside = [
        Fault(number, size) for number, step in enumerate(steps) if step.startswith("opens") for size in (0, INSIDE)
    ]
    return sorted([*map(Fault, range(len(steps))), *inside], key=lambda fault: fault.step)


def kill(name: str, at_most: int | None = None) -> int:
    """Kill one of `KINDS` at every step, or at so many of them, evenly spread, and repeat it; how many faults it met.

    A command that ends before the fault met none: its file had fewer bytes.
    """
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        place = Path(folder)
        victim, out, met = victims(place)[name], place / "out", 0
        victim.begin(out)
        code, steps = _ended(victim, out)
        assert code == 0, (victim.words, code)
        expected, known = victim.result(out), faults_of(steps)
        stride = 1 if at_most is None else max(1, -(-len(known) // at_most))
        for fault in known[stride // 2 :: stride]:
            where = f"{name} at {fault}: {steps[fault.step]}"
            shutil.rmtree(out)
            victim.begin(out)
            code, _ = _ended(victim, out, fault)
            assert code == 0 or code in DIED, (where, code)
            met += code != 0
            try:
                victim.holds(out)
            except Exception as error:
                raise AssertionError(f"{where}, half written: {error}") from error
            code, said = _ended(victim, out)
            if name == "balance-log" and "must be a folder that is new or empty" in said[-1]:  # the result is there
                assert victim.result(out) == expected, where
                shutil.rmtree(out / "weighted")
                code, said = _ended(victim, out)
            assert code == 0, (where, code, said[-1:])
            assert victim.result(out) == expected, where
            left = [path.name for path in out.rglob("*") if not re.fullmatch(victim.leaves, path.name)]
            assert left == [], (where, left)
    return met


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS)
    given = parser.parse_args()
    for kind in KINDS:
        if given.only in (None, kind):
            print(f"{kind}: killed by {kill(kind)} faults", flush=True)
