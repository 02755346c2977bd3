"""The numbers of the pages can be compared with what is measured (`make reproduce`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from counterpoise import METHODS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from results import METRICS, PARTS, PROBED, agree, compare, differing, main, table_of

PAGE = """
| method | AUC | NDCG@5 |
| --- | --- | --- |
| `a`, `b` | 0.771 | 0.627 to 0.628 \\*† |
| `c` | .70 / .60 | |
"""


@pytest.mark.parametrize(("printed", "value"), [("0.771", 0.7714), ("-379", -379.4), ("+.5", 0.45)])
def test_a_number_agrees_as_it_is_rounded(printed: str, value: float) -> None:
    assert agree(printed, value)
    assert not agree(printed, value + 1.01 * 10.0 ** -len(printed.partition(".")[2]))


def test_only_cells_that_changed_differ() -> None:
    printed = table_of(PAGE, "| method")
    measured = {
        ("`a`, `b`", "AUC"): [0.7711, 0.7708],
        ("`a`, `b`", "NDCG@5"): [0.6281, 0.6268],
        ("`c`", "AUC"): [0.7, 0.6],
    }
    assert differing("page", printed, measured) == []
    measured["`a`, `b`", "AUC"][1] = 0.7722
    measured["`c`", "AUC"] = [0.7, 0.61]
    assert [one.row for one in differing("page", printed, measured)] == ["`a`, `b`", "`c`"]
    del measured["`c`", "AUC"]
    assert differing("page", printed, measured)[-1].measured is None


def test_every_number_of_the_tables_has_a_measurement(tmp_path: Path) -> None:
    rows = [
        f"{preset},{method},{metric},0.5,baseline,DR\n"
        for preset in ("default", "paper")
        for method in METHODS
        for metric in (*METRICS.values(), "ndcg_one", "f1_one")
    ]
    for name in ("coat", "published"):
        (tmp_path / f"{name}.csv").write_text("preset,method,metric,mean,group,block\n" + "".join(rows))
    columns = "| method | AUC | NDCG@5 | F1@5 | log loss |\n| --- | --- | --- | --- | --- |\n"
    parts = "".join(f"| {name} | 0.5 (0.1) + | 0.5 | 0.5 | 0.5 |\n" for name in PARTS.values())
    (tmp_path / "ablation.md").write_text(f"## coat\n\n{columns}{parts}\n")
    kinds = "| mixed | 203.0 (1)+ | -5 (4) | 2 (1) | -1 (0.1)- |\n| mean | 1 | 1 | 1 | 1 |\n"
    (tmp_path / "probes.md").write_text("".join(f"{title}\n\n{columns}{kinds}\n" for title in PROBED.values()))
    count, found = compare(tmp_path)
    assert count > 180
    assert [one for one in found if one.measured is None] == []
    assert len(found) > 150  # 0.5 is not what the pages say


def test_a_quick_run_measures_and_compares(tmp_path: Path) -> None:
    main(["--quick", "--jobs", "1", "--out", str(tmp_path)])
    text = (tmp_path / "differences.md").read_text(encoding="utf-8")
    assert text.startswith("Of ")
    assert "- All methods on Coat, `mf`, AUC: printed 0." in text  # another log, other numbers
    assert "cells were not measured" in text
