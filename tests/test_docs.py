"""Every block of code in the README and the pages runs as it stands."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pages import PAGES, ROOT, RUN, blocks, run_page

import counterpoise as cp

Names = dict[str, Any]
ROWS = [f"u{n % 7},i{n % 11},{1 + n % 5}\n" for n in range(77)]
MOST_NOT_RUN = 5  # blocks on all pages together: a page that cannot be tried is a page that may be wrong
KINDS = (*RUN, "toml", "text", "csv", "")  # of blocks; the last ones are shown, not run


def write_movielens(folder: Path) -> None:
    """Small files as those of MovieLens 100K: no header, tabs and pipes, text, gaps, Western European letters."""
    jobs, genres = ("writer", "student", "other"), ["|".join("01"[(n + g) % 2] for g in range(19)) for n in range(2)]
    dates = ["", *["01-Jan-1995"] * 3]
    users = [f"{n}|{20 + n}|{'MF'[n % 2]}|{jobs[n % 3]}|{10000 + n}\n" for n in range(1, 31)]
    items = [f"{n}|Film \xe9 {n} (1995)|{dates[n % 4]}||http://x/{n}|{genres[n % 2]}\n" for n in range(1, 21)]
    pairs = [(u, i) for u in range(1, 31) for i in range(1, 21) if (u + i) % 3]
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{1 + (u * i) % 5}\t{880000000 + u * i}\n" for u, i in pairs))
    (folder / "u.user").write_text("".join(users))
    (folder / "u.item").write_text("".join(items), encoding="latin-1")


class Tracker(ModuleType):
    """Stands in for MLflow: keeps what is logged."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.parameters: dict[str, Any] = {}
        self.steps: dict[str, list[int]] = {}

    def start_run(self) -> Any:
        return nullcontext()

    def log_params(self, parameters: dict[str, Any]) -> None:
        self.parameters |= parameters

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            assert isinstance(value, float)
            assert re.fullmatch(r"[\w./ -]+", name)  # what MLflow takes
            self.steps.setdefault(name, []).append(step)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name."""
    for name, rows in {"ratings.csv": ROWS[:40], "uniform.csv": ROWS[40:], "pairs.csv": ROWS[:5]}.items():
        (tmp_path / name).write_text("user_id,item_id,rating\n" + "".join(rows))
    for name, shift in (("sample.csv", 1), ("population.csv", 0)):
        lines = [f"{(n * 7 % 11) / 3 + shift},{(n * 5 % 13) / 4}\n" for n in range(90)]
        (tmp_path / name).write_text("age,income\n" + "".join(lines))
    clicks = [f"u{n % 7},i{n * n % 13},{n}\n" for n in range(77)]
    (tmp_path / "clicks.csv").write_text("user_id,item_id,timestamp\n" + "".join(clicks))
    write_movielens(tmp_path)
    shutil.copy(ROOT / "examples" / "own_methods.py", tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", Tracker("mlflow"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_readme(output: str, names: Names) -> None:
    assert "NDCG@5" in output
    assert Path("runs/mine/run.json").is_file()


def check_weights(output: str, names: Names) -> None:
    found = [float(line.split()[-1]) for line in output.splitlines()[:3]]
    assert found == pytest.approx([0.921, 0.548, 0.066], abs=0.002)  # as the page shows


def check_data(output: str, names: Names) -> None:
    """What the page shows is what is printed."""
    assert "the table of items: 3 columns as 7 features" in output
    assert "'genres (missing)', 'released (year)', 'price', 'price (missing)'" in output


def check_own_method(output: str, names: Names) -> None:
    """The example is that of the page."""
    module: dict[str, Any] = {}
    exec((ROOT / "examples" / "own_methods.py").read_text(encoding="utf-8"), module)
    log = cp.simulate(n_users=20, n_items=15, density=0.3).dataset.train
    scores = [source["item_rates"](0).fit(log).predict_log(log) for source in (names, module)]
    assert (scores[0] == scores[1]).all()
    assert "popularity_snips" in output
    assert np.isfinite(names["model"].facts_["weights"]["effective_sample_size"])


def check_recommending(output: str, names: Names) -> None:
    assert "fold-in" in output
    assert Path("vectors/items.parquet").is_file()
    assert names["mlflow"].parameters["training__epochs"] == 40
    assert names["mlflow"].steps["loss"] == list(range(1, 41))
    assert names["mlflow"].steps["weights.effective_sample_size"] == [40]


CHECKS = {
    "recommending.md": check_recommending,
    "README.md": check_readme,
    "data.md": check_data,
    "weights.md": check_weights,
    "experiments.md": check_own_method,
}
RUNNING = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(page)
    CHECKS.get(page.name, lambda text, names: None)(capsys.readouterr().out, names)


def test_blocks_are_of_known_kinds_and_few_are_not_run() -> None:
    found = {page: blocks(page) for page in PAGES}
    for page, here in found.items():
        assert {block.kind for block in here} <= set(KINDS), page
        assert len(here) == page.read_text(encoding="utf-8").count("```") // 2, f"{page}: a block was not found"
    left_out = [block for here in found.values() for block in here if block.kind in RUN and not block.runs]
    assert len(left_out) <= MOST_NOT_RUN, [block.text for block in left_out]


def test_every_method_is_on_the_page_of_methods() -> None:
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    patterns = [name.replace("*", ".*") for name in re.findall(r"`([a-z0-9*-]+)`", text)]
    for name in cp.METHODS:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_the_page_of_methods_says_what_their_registry_says() -> None:
    """The families, the methods of each, and when they are right."""
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    family, found = "", {}
    for first, *others in rows:
        family = first.strip("* |").removesuffix(" |") if first.startswith("*") else family
        for pattern in re.findall(r"`([a-z0-9*-]+)`", first) if family else []:
            names = [name for name in cp.METHODS if re.fullmatch(pattern.replace("*", ".*"), name)]
            assert names, pattern
            found |= {name: (family, others[0], others[1]) for name in names if name not in found or pattern == name}
    assert found == {method.name: (method.family, method.when, method.needs) for method in cp.METHODS.values()}


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: counterpoise\.[\w.]+\.(\w+)$", text, flags=re.MULTILINE)
    assert set(cp.__all__) <= set(listed)


def test_pages_are_short() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert sum(words.values()) <= 18_000, words
    assert all(count <= 2_500 for count in words.values()), words


def test_the_readme_links_to_files_that_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) >= 5
    for link in links:
        assert (ROOT / link).exists(), link


def test_scripts_that_pages_name_are_there() -> None:
    for page in PAGES:
        for name in re.findall(
            r"\b(?:benchmarks|examples|docs|tests)/\w+\.(?:py|ipynb)\b", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).is_file(), (page.name, name)
