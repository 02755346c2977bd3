"""The documentation builds without a warning and loads nothing from the network; its pictures can be drawn again."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

NAMED = r"link(?![^>]*rel=\"?(?:canonical|next|prev))"  # links that only name other pages load nothing
LOADED = re.compile(rf"<(?:script|img|iframe|source|{NAMED})[^>]*?(?:src|href)=\"?(https?:|//)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip('the site needs mkdocs-material and mkdocstrings: pip install "counterpoise[docs]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "WARNING -" not in result.stderr
    return out


def test_every_page_is_built_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.is_file(), page
        assert not LOADED.search(built.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:|//)", style.read_text(encoding="utf-8")), style


def test_search_finds_pages_and_the_api(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "tutorials/own-data.html" in index
    assert "KernelBalancer" in index


def test_the_pictures_are_there_and_the_page_states_what_they_show(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.gallery = lambda *arguments: {}  # examples/draw.py draws the same kinds
    facts = pictures.draw(tmp_path)
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    shown = page + "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/plots.md"))
    for picture in tmp_path.glob("*.svg"):
        assert (ROOT / "docs" / "figures" / picture.name).is_file(), picture.name
        assert f"figures/{picture.name}" in shown
    stated = {
        ("selection", "log"): (0.77, 0.01),
        ("selection", "probe"): (0.41, 0.01),
        ("selection", "all pairs"): (0.39, 0.01),
        ("propensity", "most liked"): (0.38, 0.01),
        ("propensity", "least liked"): (0.002, 0.0005),
        ("propensity", "effective"): (160, 1),
        ("propensity", "naive"): (-0.47, 0.01),
        ("propensity", "weighted"): (0.16, 0.01),
        ("balancing", "before"): (0.75, 0.01),
        ("balancing", "after"): (0.003, 0.001),
        ("balancing", "effective"): (2548, 30),
        ("balancing", "naive"): (-0.34, 0.01),
        ("balancing", "weighted"): (-0.07, 0.01),
        ("doubly robust", "neither right"): (-0.47, 0.01),
        ("kernels", "means"): (0.65, 0.01),
        ("kernels", "kernels"): (0.0003, 0.0003),
        ("certificate", "passes"): (15, 2),
        ("certificate", "relaxed"): (2, 1),
    }
    for (picture, name), (value, margin) in stated.items():
        assert facts[picture][name] == pytest.approx(value, abs=margin), (picture, name)
