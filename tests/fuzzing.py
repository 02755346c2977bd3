"""Bad input by the thousand: every answer is a result or one line, quickly, in little memory, with no partial output.

`make fuzz` tries 10,000 inputs with a fixed seed; `test_fuzz.py` a few hundred of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
import zstandard
from mutations import json_bytes, mutate_bytes, mutate_text, mutate_tree, odd_frame, toml_bytes

from counterpoise import CounterpoiseError, load_model, make, simulate
from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.bench.summary import summarise
from counterpoise.cli.main import main
from counterpoise.data.reading import read_log, read_pairs
from counterpoise.errors import ConvergenceWarning, ReadingWarning
from counterpoise.runs import resolve

SECONDS, MEBIBYTES = 10, 512  # that one input may take
Case = Callable[[random.Random, Path], None]  # writes a bad input into an empty folder and hands it to the package


class NoAnswerError(Exception):
    """The package broke its promise for an input."""


@dataclass(frozen=True)
class Finding:
    """An input that broke a promise."""

    case: str
    number: int
    reason: str


class Seeds:
    """Valid files, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        data = simulate(n_users=9, n_items=7, density=0.4, seed=1).dataset
        assert data.test is not None
        self.train, self.test = folder / "train.csv", folder / "test.csv"
        data.train.to_frame().drop("propensity", strict=False).write_csv(self.train)
        data.test.to_frame().drop("propensity", strict=False).write_csv(self.test)
        buffer = io.BytesIO()
        data.train.to_frame().write_parquet(buffer)
        self.parquet, self.csv = buffer.getvalue(), self.train.read_bytes()
        for method in ("mf", "skb-dr"):
            model = make(method, epochs=2, dim=2).fit(data.train)
            model.save(folder / method, fit={"data": str(self.train), "method": method, "settings": {"epochs": 2}})
        self.runs = [folder / "mf", folder / "skb-dr"]
        self.config = (
            b'data = "train.csv"\nmethod = "mf"\nseed = 3\nthreshold = 1.0\nk = 3\n\n[settings]\ndim = 2\nepochs = 2\n'
            b'l2 = 4.0\nbackbone = "mf"\nbatch_size = "full"\n'
        )
        store_data = folder / "bench"
        store_data.mkdir()
        shutil.copy(self.train, store_data / "train.csv")
        shutil.copy(self.test, store_data / "test.csv")
        self.job = Job(str(store_data), "mf", 0, settings={"epochs": 1, "dim": 2})
        self.row = json.loads(json.dumps(self.job.measure(), default=str))


def cases(seeds: Seeds) -> dict[str, tuple[int, Case]]:
    """By name: (how often among 100 inputs, the case)."""

    def table(rng: random.Random, separator: bytes = b",") -> bytes:
        content = seeds.csv.replace(b",", separator)
        return mutate_text(content, rng, separator) if rng.random() < 0.5 else mutate_bytes(content, rng)

    def csv_file(rng: random.Random, folder: Path) -> None:
        _log(_write(folder / "log.csv", table(rng)), rng)

    def tsv_file(rng: random.Random, folder: Path) -> None:
        _log(_write(folder / "log.tsv", table(rng, b"\t")), rng)

    def raw_file(rng: random.Random, folder: Path) -> None:
        rows = seeds.csv.partition(b"\n")[2]
        separator = rng.choice((b"\t", b"::", b";", b"|", b" "))
        content = mutate_text(rows.replace(b",", separator), rng, separator)
        _log(_write(folder / rng.choice(("u.data", "log", "ratings.dat", "log.csv")), content), rng)

    def json_lines(rng: random.Random, folder: Path) -> None:
        content = polars.read_csv(seeds.csv).write_ndjson().encode()
        _log(_write(folder / "log.jsonl", mutate_bytes(content, rng)), rng)

    def packed_file(rng: random.Random, folder: Path) -> None:
        pack, ending = rng.choice(((gzip.compress, "gz"), (zstandard.compress, "zst")))
        content = pack(table(rng)) if rng.random() < 0.5 else mutate_bytes(pack(seeds.csv), rng)
        _log(_write(folder / f"log.csv.{ending}", content), rng)

    def parquet_bytes(rng: random.Random, folder: Path) -> None:
        _log(_write(folder / "log.parquet", mutate_bytes(seeds.parquet, rng)), rng)

    def parquet_types(rng: random.Random, folder: Path) -> None:
        odd_frame(rng).write_parquet(folder / "log.parquet")
        _log(folder / "log.parquet", rng)

    def command_fit(rng: random.Random, folder: Path) -> None:
        name, content = rng.choice((("log.csv", table(rng)), ("log.parquet", mutate_bytes(seeds.parquet, rng))))
        method, out = rng.choice(("mf", "ips", "skb-ips")), folder / "out" / "run"
        words = [
            "fit",
            _write(folder / name, content),
            "--method",
            method,
            "--epochs",
            1,
            "--threshold",
            1,
            "--out",
            out,
        ]
        _command([*words, "--json"], out)

    def command_evaluate(rng: random.Random, folder: Path) -> None:
        out = folder / "out" / "evaluation.json"
        _command(["evaluate", seeds.runs[0], _write(folder / "test.csv", table(rng)), "--out", out], out)

    def command_predict(rng: random.Random, folder: Path) -> None:
        out = folder / "out" / "scores.csv"
        _command(["predict", seeds.runs[0], _write(folder / "pairs.csv", table(rng)), "--out", out], out)

    def command_balance(rng: random.Random, folder: Path) -> None:
        out = folder / "out" / "weights.csv"
        files = _write(folder / "observed.csv", table(rng)), seeds.test
        _command(["balance", *files, "--n-functions", 5, "--out", out], out)

    def configuration(rng: random.Random, folder: Path) -> None:
        if rng.random() < 0.5:
            content = toml_bytes(mutate_tree(tomllib.loads(seeds.config.decode()), rng))
        else:
            content = mutate_bytes(seeds.config, rng)
        found = resolve(_write(folder / "fit.toml", content), {"data": str(seeds.train)}, {})
        model = make(found.method, **{"seed": found.seed, **found.settings})
        model.check(read_log(seeds.train), None)

    def run_folder(rng: random.Random, folder: Path) -> None:
        run = folder / "run"
        shutil.copytree(rng.choice(seeds.runs), run)
        manifest = json.loads((run / "run.json").read_text())
        if rng.random() < 0.5:
            _write(run / "run.json", json_bytes(mutate_tree(manifest, rng)))
        elif rng.random() < 0.2:
            _write(run / "run.json", mutate_bytes((run / "run.json").read_bytes(), rng))
        else:
            entry = rng.choice(list(manifest["files"].values()))
            content = mutate_bytes((run / entry["file"]).read_bytes(), rng)
            _write(run / entry["file"], content)
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            _write(run / "run.json", json_bytes(manifest))
        if rng.random() < 0.1:
            _command(["report", run, "--out", folder / "out" / "report.html"], folder / "out" / "report.html")
        elif rng.random() < 0.2:
            _command(["recommend", run, "--out", folder / "out" / "lists.csv"], folder / "out" / "lists.csv")
        else:
            load_model(run).recommend(k=2)

    def result_folder(rng: random.Random, folder: Path) -> None:
        store = Store(folder / "results")
        store.open()
        changed = (
            json_bytes(mutate_tree(seeds.row, rng)) if rng.random() < 0.7 else mutate_bytes(json_bytes(seeds.row), rng)
        )
        _write(store.path(seeds.job), changed)
        row = store.read(seeds.job)
        assert row is not None
        summarise([row]).to_dict()

    found: dict[str, tuple[int, Case]] = {}
    frequencies = {csv_file: 20, tsv_file: 10, raw_file: 10, json_lines: 8, packed_file: 10, parquet_bytes: 12}
    frequencies |= {parquet_types: 8, command_fit: 4}
    frequencies |= {command_evaluate: 3, command_predict: 3, command_balance: 3}
    frequencies |= {configuration: 9, run_folder: 12, result_folder: 6}
    for case, often in frequencies.items():
        found[case.__name__] = often, case
    return found


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _log(file: Path, rng: random.Random) -> None:
    if rng.random() < 0.15:
        read_pairs(file)
        return
    timed = {"timestamp_col": "time"} if rng.random() < 0.3 and file.suffix == ".parquet" else {}
    log = read_log(file, threshold=1, duplicates=rng.choice(("error", "last", "mean")), **timed)
    if log.labels.min() < 0 or log.labels.max() > 1 or len(log) < 1:
        raise NoAnswerError(f"a log with labels outside [0, 1]: {log}")


def _command(words: list[Any], out: Path) -> None:
    """Call the command line: code 0, or code 2 with one line and nothing written."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in words])
    err = "".join(line for line in errors.getvalue().splitlines(True) if "fields separated by" not in line)
    if code not in (0, 2) or (code == 2 and not (err.startswith("error: ") and err.count("\n") == 1)):
        raise NoAnswerError(f"exit code {code}, {err[:300]!r}")
    if code == 0 and not out.exists():
        raise NoAnswerError(f"exit code 0 and no {out.name}")
    if code == 2 and out.parent.exists() and any(out.parent.rglob("*")):
        raise NoAnswerError(f"exit code 2 and {sorted(map(str, out.parent.rglob('*')))}")
    if list(out.parent.rglob("*.partial")):
        raise NoAnswerError("a partial file is left")


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Limits of time and memory, and no output of other libraries to standard error."""

    def late(*arguments: object) -> None:
        raise NoAnswerError(f"no answer after {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous, kept = signal.signal(signal.SIGALRM, late), os.dup(2)
    with tempfile.TemporaryFile() as unasked:
        os.dup2(unasked.fileno(), 2)
        signal.alarm(SECONDS)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
            os.dup2(kept, 2)
            os.close(kept)
            unasked.seek(0)
            noise = unasked.read().decode(errors="replace")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    if grown > MEBIBYTES:
        raise NoAnswerError(f"{grown} MiB of memory")
    if noise:
        raise NoAnswerError(f"standard error: {noise[:500]}")


def answer(case: Case, rng: random.Random, folder: Path) -> str | None:
    """What is wrong with the answer to an input; None if nothing is."""
    try:
        with _watched(), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", ReadingWarning)
            case(rng, folder)
    except CounterpoiseError as error:
        text = str(error)
        return f"no line: {text!r}" if not text or "\n" in text.strip() else None
    except NoAnswerError as error:
        return str(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in where if "counterpoise" in frame.filename]
        return f"{type(error).__name__}: {str(error)[:200]} at {' '.join(own[-4:])}"
    return None


def fuzz(inputs: int, seed: int = 0, only: str | None = None) -> tuple[Counter[str], list[Finding]]:
    """(how many inputs of each case, those that broke a promise). The same seed tries the same inputs."""
    tried: Counter[str] = Counter()
    findings = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder)
        (place / "seeds").mkdir()
        known = cases(Seeds(place / "seeds"))
        names = [name for name in known if only is None or name == only]
        for number in range(inputs):
            rng = random.Random(f"{seed} {number}")
            name = rng.choices(names, [known[n][0] for n in names])[0]
            here = place / "input"
            here.mkdir()
            wrong = answer(known[name][1], rng, here)
            if wrong is not None:
                findings.append(Finding(name, number, wrong))
            tried[name] += 1
            shutil.rmtree(here)
    return tried, findings


def report() -> int:
    """`make fuzz`: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one case")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a runaway input must not take the machine down
    tried, findings = fuzz(given.inputs, given.seed, given.only)
    for finding in findings[:40]:
        print(f"{finding.case} {finding.number}: {finding.reason}")
    print(f"{sum(tried.values()):,} inputs, {len(findings)} findings: {dict(tried)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(report())
