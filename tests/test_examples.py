"""The examples run as they stand and are short; the notebook too, and holds what it printed."""

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


def cells() -> list[dict[str, Any]]:
    notebook = json.loads((FOLDER / "tour.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_was_run_from_top_to_bottom_and_is_small() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, len(cells()) + 1))
    kinds = [kind for cell in cells() for output in cell["outputs"] for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3
    assert not any(output["output_type"] == "error" for cell in cells() for output in cell["outputs"])
    assert (FOLDER / "tour.ipynb").stat().st_size < 200_000


def test_the_cells_of_the_notebook_run_and_print_what_it_holds() -> None:
    names: dict[str, object] = {}
    for cell in cells():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        held = [line for output in cell["outputs"] for line in output.get("text", [])]
        assert [line.split()[:1] for line in printed.getvalue().splitlines()] == [line.split()[:1] for line in held]
