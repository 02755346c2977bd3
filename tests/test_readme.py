"""The README's Python runs as it stands, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from counterpoise.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
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


def test_the_python_of_the_readme_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "NDCG@5" in capsys.readouterr().out
    assert (folder / "runs" / "mine" / "run.json").is_file()


def test_the_commands_of_the_readme_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^counterpoise (.*?)\s*(?:#.*)?$", README, flags=re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        assert main(command.split()) == 0, (command, capsys.readouterr().err)
    assert (folder / "recs.parquet").is_file()
    assert (folder / "scores.csv").is_file()
