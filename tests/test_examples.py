"""The examples run as they stand and are short; the notebooks too, and hold what they printed."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
SAYS = {
    "own_csv.py": "counterpoise: AUC",
    "weights_only.py": "rows count as",
    "compare_methods.py": "bias of the weights",
    "own_backbone.py": "skb-dr",
    "draw.py": "8 pictures in",
    "own_methods.py": "",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["mf", "skb-ips"] if script.stem == "compare_methods" else []
    monkeypatch.setattr(sys, "argv", [str(script), *few])
    runpy.run_path(str(script), run_name="__main__")
    assert SAYS[script.name] in capsys.readouterr().out
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60


NOTEBOOKS = sorted((FOLDER.parent / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    found = json.loads(notebook.read_text(encoding="utf-8"))
    return [cell for cell in found["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_and_is_small(notebook: Path) -> None:
    code = cells(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = [kind for cell in code for output in cell["outputs"] for kind in output.get("data", {})]
    assert "image/png" in kinds
    assert "text/html" in kinds
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert notebook.stat().st_size < 200_000


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_and_print_what_it_holds(notebook: Path) -> None:
    names: dict[str, object] = {}
    for cell in cells(notebook):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        held = [line for output in cell["outputs"] for line in output.get("text", [])]
        assert [line.split()[:1] for line in printed.getvalue().splitlines()] == [line.split()[:1] for line in held]
