"""The Python of the README and of the page of methods runs as it stands, and the commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.datasets import available

ROOT = Path(__file__).parents[1]
README, METHODS, BENCH = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/methods.md", "docs/bench.md")
)
ROWS = [f"u{n % 7},i{n % 11},{1 + n % 5}\n" for n in range(77)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the files that the README speaks of."""
    for name, rows in {"ratings.csv": ROWS[:40], "uniform.csv": ROWS[40:], "pairs.csv": ROWS[:5]}.items():
        (tmp_path / name).write_text("user_id,item_id,rating\n" + "".join(rows))
    for name, shift in (("sample.csv", 1), ("population.csv", 0)):
        lines = [f"{(n * 7 % 11) / 3 + shift},{(n * 5 % 13) / 4}\n" for n in range(90)]
        (tmp_path / name).write_text("age,income\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(text: str) -> dict[str, object]:
    """Run the Python blocks of a page one after the other; the names they leave."""
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    return names


def commands_of(text: str) -> list[tuple[list[str], int]]:
    """(arguments, exit code to expect) of the commands of a page; 2 where they name data that is not there."""
    missing = {row["name"] for row in available() if not row["ready"]}
    commands = [line.split() for line in re.findall(r"^counterpoise (.*?)\s*(?:#.*)?$", text, flags=re.MULTILINE)]
    return [(words, 2 if missing & set(words) else 0) for words in commands]


def test_the_python_of_the_readme_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python(README)
    assert "NDCG@5" in capsys.readouterr().out
    assert (folder / "runs" / "mine" / "run.json").is_file()


def test_the_commands_of_the_readme_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = commands_of(README)
    assert len(commands) >= 5
    for words, code in commands:
        assert main(words) == code, (words, capsys.readouterr().err)
    assert (folder / "recs.parquet").is_file()
    assert (folder / "scores.csv").is_file()


def test_the_python_of_the_methods_runs_and_prints_the_stated_figures(capsys: pytest.CaptureFixture[str]) -> None:
    run_python(METHODS)
    (_, one, size_of_one), (_, two, size_of_two) = (
        map(float, line.split()) for line in capsys.readouterr().out.splitlines()[:2]
    )
    assert one == pytest.approx(0.080, rel=0.1)  # as the page says, up to rounding on other machines
    assert two == pytest.approx(0.015, rel=0.2)
    assert size_of_one == pytest.approx(5204, rel=0.05)
    assert size_of_two == pytest.approx(10068, rel=0.01)


def test_the_commands_of_the_methods_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in commands_of(METHODS):
        assert main([*words, *(["--epochs", "2"] if words[0] == "fit" else [])]) == code, capsys.readouterr().err


def test_every_method_is_on_the_page_of_methods() -> None:
    patterns = [name.replace("*", ".*") for name in re.findall(r"`([a-z0-9*-]+)`", METHODS)]
    for name in cp.METHODS:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_the_example_of_ones_own_methods_is_that_of_the_page_and_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_python(BENCH)
    example = (ROOT / "examples" / "own_methods.py").read_text(encoding="utf-8")
    (folder / "own_methods.py").write_text(example)
    command = next(words for words, _ in commands_of(BENCH) if "own_methods:item_rates" in words)
    assert main([*command, "--seeds", "1", "--set", "epochs=2", "--quiet"]) == 2  # settings do not reach `item_rates`
    assert main([*command[:-2], "--seeds", "1"]) == 0
    assert "popularity_snips" in capsys.readouterr().out
    world = cp.simulate(n_users=20, n_items=15, density=0.3)
    log = world.dataset.train
    module: dict[str, Any] = {}
    exec(example, module)
    scores = [source["item_rates"](0).fit(log).predict_log(log) for source in (names, module)]  # type: ignore[operator]
    assert (scores[0] == scores[1]).all()
