"""Bad input by the thousand: every answer is a result or one line, quickly, in little memory, with no partial output.

`make fuzz` tries 10,000 inputs, those of another seed each day unless SEED= names one, and keeps an input that breaks a
promise in `tests/findings`; `test_fuzz.py` tries a few hundred, and all that were kept.
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
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars
import torch
import zstandard
from mutations import json_bytes, mutate_bytes, mutate_text, mutate_tree, odd_frame, toml_bytes
from safetensors.torch import load, save

from counterpoise import CounterpoiseError, load_model, make, simulate
from counterpoise.bench.jobs import Job
from counterpoise.bench.store import Store
from counterpoise.bench.summary import summarise
from counterpoise.cli.main import main
from counterpoise.data.reading import read_log, read_pairs
from counterpoise.errors import ConvergenceWarning, ReadingWarning
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.shards import Shards
from counterpoise.runs import resolve

SECONDS, MEBIBYTES = 10, 512  # that one input may take
FINDINGS = Path(__file__).parent / "findings"  # a folder for each input that once broke a promise
ORDER = "order.json"  # in such a folder: what was done with its files
Order = dict[str, Any]  # "do": the name of a function in `DOERS`; else its arguments, plain JSON
Case = Callable[[random.Random, Path], Order]  # writes a bad input into an empty folder


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
        self.runs, self.cache = [folder / "mf", folder / "skb-dr"], folder / "cache"
        shard_log(self.train, cache=self.cache)
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
    """{name: (how often among 100 inputs, the case)}."""

    def table(rng: random.Random, separator: bytes = b",") -> bytes:
        content = seeds.csv.replace(b",", separator)
        return mutate_text(content, rng, separator) if rng.random() < 0.5 else mutate_bytes(content, rng)

    def csv_file(rng: random.Random, folder: Path) -> Order:
        return _log(_write(folder / "log.csv", table(rng)), rng)

    def tsv_file(rng: random.Random, folder: Path) -> Order:
        return _log(_write(folder / "log.tsv", table(rng, b"\t")), rng)

    def raw_file(rng: random.Random, folder: Path) -> Order:
        rows = seeds.csv.partition(b"\n")[2]
        separator = rng.choice((b"\t", b"::", b";", b"|", b" "))
        content = mutate_text(rows.replace(b",", separator), rng, separator)
        return _log(_write(folder / rng.choice(("u.data", "log", "ratings.dat", "log.csv")), content), rng)

    def json_lines(rng: random.Random, folder: Path) -> Order:
        content = polars.read_csv(seeds.csv).write_ndjson().encode()
        return _log(_write(folder / "log.jsonl", mutate_bytes(content, rng)), rng)

    def packed_file(rng: random.Random, folder: Path) -> Order:
        pack, ending = rng.choice(((gzip.compress, "gz"), (zstandard.compress, "zst")))
        content = pack(table(rng)) if rng.random() < 0.5 else mutate_bytes(pack(seeds.csv), rng)
        return _log(_write(folder / f"log.csv.{ending}", content), rng)

    def parquet_bytes(rng: random.Random, folder: Path) -> Order:
        return _log(_write(folder / "log.parquet", mutate_bytes(seeds.parquet, rng)), rng)

    def parquet_types(rng: random.Random, folder: Path) -> Order:
        odd_frame(rng).write_parquet(folder / "log.parquet")
        return _log(folder / "log.parquet", rng)

    def command_fit(rng: random.Random, folder: Path) -> Order:
        name, content = rng.choice((("log.csv", table(rng)), ("log.parquet", mutate_bytes(seeds.parquet, rng))))
        _write(folder / name, content)
        method = rng.choice(("mf", "ips", "skb-ips"))
        return _command(f"fit HERE/{name} --method {method} --epochs 1 --threshold 1 --json", "run")

    def command_evaluate(rng: random.Random, folder: Path) -> Order:
        _write(folder / "test.csv", table(rng))
        return _command("evaluate SEEDS/mf HERE/test.csv", "evaluation.json")

    def command_predict(rng: random.Random, folder: Path) -> Order:
        _write(folder / "pairs.csv", table(rng))
        return _command("predict SEEDS/mf HERE/pairs.csv", "scores.csv")

    def command_balance(rng: random.Random, folder: Path) -> Order:
        _write(folder / "observed.csv", table(rng))
        return _command("balance HERE/observed.csv SEEDS/test.csv --n-functions 5", "weights.csv")

    def configuration(rng: random.Random, folder: Path) -> Order:
        if rng.random() < 0.5:
            content = toml_bytes(mutate_tree(tomllib.loads(seeds.config.decode()), rng))
        else:
            content = mutate_bytes(seeds.config, rng)
        _write(folder / "fit.toml", content)
        return {"do": "configure", "file": "fit.toml"}

    def run_folder(rng: random.Random, folder: Path) -> Order:
        run = folder / "run"
        shutil.copytree(rng.choice(seeds.runs), run)
        manifest = json.loads((run / "run.json").read_text())
        if rng.random() < 0.5:
            _write(run / "run.json", json_bytes(mutate_tree(manifest, rng)))
        elif rng.random() < 0.2:
            _write(run / "run.json", mutate_bytes((run / "run.json").read_bytes(), rng))
        else:
            name = rng.choice(list(manifest["files"]))
            vouch(run, name, mutate_bytes(stored(run, name).read_bytes(), rng))
        if rng.random() < 0.1:
            return _command("report HERE/run", "report.html")
        if rng.random() < 0.2:
            return _command("recommend HERE/run", "lists.csv")
        return {"do": "load"}

    def run_tensors(rng: random.Random, folder: Path) -> Order:
        run = folder / "run"
        shutil.copytree(rng.choice(seeds.runs), run)
        tensors = load(stored(run, "tensors.safetensors").read_bytes())
        name = rng.choice([name for name, values in tensors.items() if values.numel()])
        tensors[name] = wrong_tensor(tensors[name], rng)
        vouch(run, "tensors.safetensors", save(tensors))
        return {"do": "refuse", "tensor": name}

    def shards(rng: random.Random, folder: Path) -> Order:
        shutil.copytree(seeds.cache, folder / "cache")
        file = rng.choice(sorted(path for path in (folder / "cache").glob("*/*") if path.is_file()))
        if file.suffix == ".npy" and rng.random() < 0.5:
            np.save(file, wrong_tensor(torch.from_numpy(np.load(file)), rng).numpy())
            return {"do": "refuse_shards"}
        _write(file, mutate_bytes(file.read_bytes(), rng))
        return {"do": "load_shards"}

    def result_folder(rng: random.Random, folder: Path) -> Order:
        tree = rng.random() < 0.7
        _write(
            folder / "row.json",
            json_bytes(mutate_tree(seeds.row, rng)) if tree else mutate_bytes(json_bytes(seeds.row), rng),
        )
        return {"do": "summarise"}

    found: dict[str, tuple[int, Case]] = {}
    frequencies = {csv_file: 20, tsv_file: 10, raw_file: 10, json_lines: 8, packed_file: 10, parquet_bytes: 12}
    frequencies |= {parquet_types: 8, command_fit: 4}
    frequencies |= {command_evaluate: 3, command_predict: 3, command_balance: 3}
    frequencies |= {configuration: 9, run_folder: 12, run_tensors: 6, shards: 6, result_folder: 6}
    for case, often in frequencies.items():
        found[case.__name__] = often, case
    return found


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _log(file: Path, rng: random.Random) -> Order:
    if rng.random() < 0.15:
        return {"do": "read_pairs", "file": file.name}
    timed = {"timestamp_col": "time"} if rng.random() < 0.3 and file.suffix == ".parquet" else {}
    return {"do": "read", "file": file.name, "duplicates": rng.choice(("error", "last", "mean")), **timed}


def _command(words: str, out: str) -> Order:
    return {"do": "call", "words": words.split(), "out": out}


def stored(run: Path, name: str) -> Path:
    """The file of a run that is stored under a name."""
    return run / json.loads((run / "run.json").read_text())["files"][name]["file"]


def vouch(run: Path, name: str, content: bytes) -> None:
    """Write another content of a file of a run, and its hash into the manifest."""
    stored(run, name).write_bytes(content)
    manifest = json.loads((run / "run.json").read_text())
    manifest["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    _write(run / "run.json", json_bytes(manifest))


def wrong_tensor(values: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Numbers or codes that cannot be right: of another type or shape, not finite, or codes of nothing."""
    kind = rng.choice(("value", "value", "type", "shape"))
    if kind == "type":
        others = [torch.float16, torch.int32, torch.int8, torch.bool]  # weights may be of 32 or 64 bits
        return values.to(rng.choice([other for other in others if other != values.dtype]))
    if kind == "shape":
        return torch.cat([values, values[:1]]) if values.dim() and rng.random() < 0.5 else values[None]
    found = values.clone()
    wrong = (float("nan"), float("inf"), -float("inf")) if found.is_floating_point() else (-1, 2**31 - 1, -(2**31))
    found.view(-1)[rng.randrange(found.numel())] = rng.choice(wrong)
    return found


def do(order: Order, folder: Path, seeds: Seeds) -> None:
    """Hand the files of a folder to the package, as an order says."""
    arguments = {name: value for name, value in order.items() if name != "do"}
    if "file" in arguments:
        arguments["file"] = folder / arguments["file"]
    DOERS[order["do"]](folder, seeds, **arguments)


def read(folder: Path, seeds: Seeds, file: Path, **options: Any) -> None:
    log = read_log(file, threshold=1, **options)
    if log.labels.min() < 0 or log.labels.max() > 1 or len(log) < 1:
        raise NoAnswerError(f"a log with labels outside [0, 1]: {log}")


def configure(folder: Path, seeds: Seeds, file: Path) -> None:
    found = resolve(file, {"data": str(seeds.train)}, {})
    make(found.method, **{"seed": found.seed, **found.settings}).check(read_log(seeds.train), None)


def load_run(folder: Path, seeds: Seeds) -> None:
    scores = load_model(folder / "run").recommend(k=2)["score"]
    if not (scores.is_finite() & scores.is_between(0, 1)).all():
        raise NoAnswerError(f"scores that are no probabilities: {scores.to_list()}")


def refuse(folder: Path, seeds: Seeds, tensor: str) -> None:
    load_run(folder, seeds)
    raise NoAnswerError(f"a run with a wrong {tensor!r} was loaded")


def load_shards(folder: Path, seeds: Seeds) -> None:
    log = Shards.open(next((folder / "cache").iterdir()))
    for name in ("users", "items", "ratings"):
        log.whole(name)


def refuse_shards(folder: Path, seeds: Seeds) -> None:
    load_shards(folder, seeds)
    raise NoAnswerError("wrong shards were read")


def summarise_row(folder: Path, seeds: Seeds) -> None:
    store = Store(folder / "results")
    store.open()
    shutil.copy(folder / "row.json", store.path(seeds.job))
    row = store.read(seeds.job)
    assert row is not None
    summarise([row]).to_dict()


def call(folder: Path, seeds: Seeds, words: list[str], out: str) -> None:
    """Call the command line: code 0, or code 2 with one line and nothing written."""
    errors, place = io.StringIO(), folder / "out" / out
    words = [word.replace("HERE", str(folder)).replace("SEEDS", str(seeds.folder)) for word in words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main([*words, "--out", str(place)])
    err = "".join(line for line in errors.getvalue().splitlines(True) if "fields separated by" not in line)
    if code not in (0, 2) or (code == 2 and not (err.startswith("error: ") and err.count("\n") == 1)):
        raise NoAnswerError(f"exit code {code}, {err[:300]!r}")
    if code == 0 and not place.exists():
        raise NoAnswerError(f"exit code 0 and no {out}")
    if code == 2 and place.parent.exists() and any(place.parent.rglob("*")):
        raise NoAnswerError(f"exit code 2 and {sorted(map(str, place.parent.rglob('*')))}")
    if list(place.parent.rglob("*.partial")):
        raise NoAnswerError("a partial file is left")


DOERS: dict[str, Callable[..., Any]] = {
    **{"read": read, "read_pairs": lambda folder, seeds, file: read_pairs(file), "configure": configure, "call": call},
    **{"load": load_run, "refuse": refuse, "load_shards": load_shards, "refuse_shards": refuse_shards},
    "summarise": summarise_row,
}


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


def answer(work: Callable[[], None]) -> str | None:
    """What is wrong with the answer to an input; None if nothing is."""
    try:
        with _watched(), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", ReadingWarning)
            work()
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


@contextlib.contextmanager
def made_seeds() -> Iterator[Seeds]:
    """Valid files, and a folder beside theirs for inputs."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder) / "seeds"
        place.mkdir()
        yield Seeds(place)


def fuzz(
    inputs: int, seed: int = 0, only: str | None = None, keep: Path | None = None
) -> tuple[Counter[str], list[Finding]]:
    """(how many inputs of each case, those that broke a promise). The same seed tries the same inputs.

    `keep`: a folder that gets the files of those, for `again`.
    """
    tried: Counter[str] = Counter()
    findings = []
    with made_seeds() as seeds:
        known = cases(seeds)
        names = [name for name in known if only is None or name == only]
        for number in range(inputs):
            rng = random.Random(f"{seed} {number}")
            name = rng.choices(names, [known[n][0] for n in names])[0]
            here = seeds.folder.parent / "input"
            here.mkdir()
            order = known[name][1](rng, here)
            if keep is not None:
                shutil.copytree(here, here.with_name("kept"))
            wrong = answer(lambda: do(order, here, seeds))  # noqa: B023
            if wrong is not None:
                findings.append(Finding(name, number, wrong))
                if keep is not None:
                    _write(here.with_name("kept") / ORDER, json_bytes(order | {"found": wrong[:200]}))
                    _rename_seeds(here.with_name("kept"), str(seeds.folder), "SEEDS")
                    shutil.copytree(here.with_name("kept"), keep / f"{name}-{seed}-{number}", dirs_exist_ok=True)
            tried[name] += 1
            for place in (here, here.with_name("kept")):
                shutil.rmtree(place, ignore_errors=True)
    return tried, findings


def _rename_seeds(folder: Path, old: str, new: str) -> None:
    """Change where the manifest of a run says that its log is."""
    for manifest in folder.glob("run/run.json"):
        manifest.write_bytes(manifest.read_bytes().replace(old.encode(), new.encode()))


def again(finding: Path, seeds: Seeds) -> str | None:
    """What is wrong with the answer to an input that was kept."""
    order = json.loads((finding / ORDER).read_text())
    del order["found"]
    here = seeds.folder.parent / "again"
    shutil.copytree(finding, here)
    _rename_seeds(here, "SEEDS", str(seeds.folder))
    try:
        return answer(lambda: do(order, here, seeds))
    finally:
        shutil.rmtree(here)


def report() -> int:
    """`make fuzz`: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(f"{date.today():%Y%m%d}"))
    parser.add_argument("--only", help="one case")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a runaway input must not take the machine down
    tried, findings = fuzz(given.inputs, given.seed, given.only, FINDINGS)
    for finding in findings[:40]:
        print(f"{finding.case} {finding.number}: {finding.reason}")
    print(f"seed {given.seed}: {sum(tried.values()):,} inputs, {len(findings)} findings: {dict(tried)}")
    if findings:
        print(f"Their files are in {FINDINGS}: the tests try them until they are removed.")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(report())
