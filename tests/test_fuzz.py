"""A short form of `make fuzz`: some inputs of every kind, and arbitrary arguments."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import zstandard
from command_line import one_line, run
from fuzzing import FINDINGS, Seeds, again, fuzz, made_seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise import DataError, DebiasedRecommender
from counterpoise.data.ids import Vocabulary
from counterpoise.data.reading import read_log

EXAMPLES = int(os.environ.get("COUNTERPOISE_EXAMPLES", "15"))  # `make fuzz` asks for more


def test_bad_files_give_one_line_and_no_output() -> None:
    tried, findings = fuzz(200)
    assert findings == []
    assert len(tried) == 16  # every kind of input


def test_same_seed_tries_the_same_inputs() -> None:
    assert fuzz(5, seed=3)[0] == fuzz(5, seed=3)[0]


@pytest.fixture(scope="module")
def seeds() -> Iterator[Seeds]:
    with made_seeds() as found:
        yield found


@pytest.mark.parametrize("finding", sorted(FINDINGS.iterdir()), ids=lambda path: path.name)
def test_input_that_once_broke_a_promise_keeps_it_now(finding: Path, seeds: Seeds) -> None:
    assert again(finding, seeds) is None


def test_input_that_breaks_a_promise_is_kept_and_tried_again(
    seeds: Seeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("counterpoise.recommender._check_numbers", lambda name, values, *rest: values)
        found = fuzz(20, seed=1, only="run_tensors", keep=tmp_path)[1]
        assert found
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            f"run_tensors-1-{one.number}" for one in found
        )
        assert [again(path, seeds) is None for path in tmp_path.iterdir()] == [False] * len(found)
    assert [again(path, seeds) for path in tmp_path.iterdir()] == [None] * len(found)


@pytest.fixture(scope="session")
def saved(fitted: DebiasedRecommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    fitted.save(folder)
    return folder


@settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
@given(users=st.text(max_size=40), k=st.integers(-(2**70), 2**70), candidates=st.none() | st.text(max_size=20))
def test_any_users_and_candidates_are_answered(users: str, k: int, candidates: str | None, saved: Path) -> None:
    words = ["recommend", str(saved), f"--users={users}", f"--k={k}", "--json"]
    code, out, err = run(*words, *([] if candidates is None else [f"--candidates={candidates}"]))
    assert (code == 0 and out) or (code == 2 and one_line(err))


@settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(("dim", "l2", "epochs", "backbone", "weights", "training", "backbone__dim", "risk", "seed"))
    | st.text(max_size=12),
    value=st.text(max_size=20) | st.integers(max_value=3).map(str) | st.floats(max_value=0).map(str),
)
def test_any_setting_is_used_or_refused_in_one_line(name: str, value: str, saved: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user_id,item_id,rating\na,x,1\na,y,0\nb,x,0\nb,z,1\n")
    out = tmp_path / "out"
    code, _, err = run("fit", log, "--method=mf", "--quiet", f"--set={name}={value}", "--set=epochs=1", f"--out={out}")
    assert code == 0 or (code == 2 and one_line(err)), (code, err)


@pytest.mark.parametrize("kind", ["gz", "zst", "csv"])
def test_decompression_bomb_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.data.parquet.MIN_CHECKED_SIZE", 1 << 20)
    rows = b"user_id,item_id,rating\n" + b"1,1,2\n" * 1_000_000
    content = zstandard.compress(rows) if kind == "zst" else gzip.compress(rows)
    file = tmp_path / ("log.csv" if kind == "csv" else f"log.csv.{kind}")  # packed, whatever its name says
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"more than 100 times its size\. If you trust it, write it as plain"):
        read_log(file)
    monkeypatch.undo()
    assert one_line(run("fit", file)[2])  # of so small a file the answer is about its rows: they repeat a pair
    assert "repeat a pair" in run("fit", file)[2]


def test_parquet_bomb_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"id": pl.repeat(7, 40_000_000, eager=True)}).write_parquet(tmp_path / "ids.parquet")
    content = (tmp_path / "ids.parquet").read_bytes()
    assert len(content) < 2_000_000
    with pytest.raises(DataError, match="unpacks to more than"):
        Vocabulary.from_parquet(content)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_log(tmp_path / "ids.parquet", user_col="id", item_col="id", rating_col="id")
