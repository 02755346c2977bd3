"""The numbers of the pages can be compared with what is measured (`make reproduce`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from counterpoise import METHODS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from results import (
    EVERY,
    METRICS,
    NUMBER,
    PARTS,
    PROBED,
    agree,
    compare,
    differing,
    filled,
    main,
    marks,
    of_page,
    table_of,
    texts,
)

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


def table_csv(file: Path, *rows: str) -> Path:
    columns = "preset,method,metric,mean,group,block,better,significant,significant_holm\n"
    file.write_text(columns + "".join(f"{row}\n" for row in rows))
    return file


def test_cells_have_ranges_of_methods_and_marks_that_they_share(tmp_path: Path) -> None:
    file = table_csv(
        tmp_path / "coat.csv",
        "default,mf,auc,0.7714,baseline,IPS,,,",
        "default,skb-ips-gau,auc,0.7724,ours,IPS,1,1,1",
        "default,wkb-ips-gau,auc,0.7706,ours,IPS,0,0,0",
        "default,rkb-ips-gau,auc,0.7606,ours,IPS,0,1,0",
        "default,rkb-ips-exp,auc,0.1,ours,IPS,0,1,0",
        "paper,mf,auc,0.5,baseline,IPS,1,1,1",
    )
    assert marks(file) == {("skb-ips", "auc"): "\\*†", ("rkb-ips", "auc"): "↓", ("rkb-ips-exp", "auc"): "↓"}
    rows = ["`mf`", "`skb-ips`", "`skb-ips`, `wkb-ips`", "`rkb-ips`", "`dr`"]
    assert texts(rows, "as it comes", file, "default", ["auc"], True) == {
        ("`mf`", "as it comes"): ".771",
        ("`skb-ips`", "as it comes"): ".772\\*†",
        ("`skb-ips`, `wkb-ips`", "as it comes"): ".771-.772",
        ("`rkb-ips`", "as it comes"): ".761↓",
    }


def test_a_page_is_filled_with_what_was_measured(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs/results.md").read_text(encoding="utf-8")
    rows = [f"default,{method},{metric},0.5,baseline,DR,1,1,0" for method in METHODS for metric in METRICS.values()]
    table_csv(tmp_path / "tuned.csv", *rows)
    for mark, (_, cells) in of_page(page, tmp_path).items():
        page = filled(page, mark, cells)
    every = table_of(page, EVERY)
    assert {cell for (_, column), cell in every.items() if column == "tuned"} == {"/".join([".500\\*"] * 3)}
    before = table_of((root / "docs/results.md").read_text(encoding="utf-8"), EVERY)
    assert all(cell == before[place] for place, cell in every.items() if place[1] == "as it comes")


def test_every_number_of_the_tables_has_a_measurement(tmp_path: Path) -> None:
    rows = [
        f"{preset},{method},{metric},0.5,baseline,DR\n"
        for preset in ("default", "paper")
        for method in METHODS
        for metric in (*METRICS.values(), "ndcg_one", "f1_one")
    ]
    for name in ("coat", "tuned", "published"):
        (tmp_path / f"{name}.csv").write_text("preset,method,metric,mean,group,block\n" + "".join(rows))
    columns = "| method | AUC | NDCG@5 | F1@5 | log loss |\n| --- | --- | --- | --- | --- |\n"
    parts = "".join(f"| {name} | 0.5 (0.1) + | 0.5 | 0.5 | 0.5 |\n" for name in PARTS.values())
    (tmp_path / "ablation.md").write_text(f"## coat\n\n{columns}{parts}\n")
    kinds = "| mixed | 203.0 (1)+ | -5 (4) | 2 (1) | -1 (0.1)- |\n| mean | 1 | 1 | 1 | 1 |\n"
    (tmp_path / "probes.md").write_text("".join(f"{title}\n\n{columns}{kinds}\n" for title in PROBED.values()))
    count, found = compare(tmp_path)
    assert count > 180
    assert [one for one in found if one.measured is None] == []
    assert sum(len(NUMBER.findall(one.printed)) for one in found) > 150  # 0.5 is not what the pages say


def test_a_quick_run_measures_and_compares(tmp_path: Path) -> None:
    main(["--quick", "--jobs", "1", "--out", str(tmp_path)])
    text = (tmp_path / "differences.md").read_text(encoding="utf-8")
    assert text.startswith("Of ")
    assert "- All methods on Coat, `mf`, as it comes: printed ." in text  # another log, other numbers
    assert "cells were not measured" in text
