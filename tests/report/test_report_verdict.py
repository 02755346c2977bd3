"""The first line of a report: better, worse or not clear, by paired differences; and charts where right is better."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender
from counterpoise.report.page import Column
from counterpoise.report.sections import difference_figure
from counterpoise.report.summary import compare_sentence


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ({"log loss": "better", "NDCG@5": "worse"}, "Better than plain MF in log loss, worse in NDCG@5."),
        ({"AUC": "better", "log loss": "better"}, "Better than plain MF in AUC and log loss."),
        ({"AUC": "worse", "NDCG@5": "not clear"}, "Worse than plain MF in AUC; no clear difference in NDCG@5."),
        (
            dict.fromkeys(("AUC", "NDCG@5", "log loss"), "not clear"),
            "No clear difference from plain MF in AUC, NDCG@5 and log loss.",
        ),
    ],
)
def test_verdicts_become_one_sentence(verdicts: dict[str, str], sentence: str) -> None:
    assert compare_sentence(verdicts, "plain MF") == sentence


def written(model: DebiasedRecommender, dataset: Dataset, folder: Path, **options: Any) -> tuple[dict[str, Any], str]:
    facts = cp.write_report(model, dataset, out=folder / "page.html", **options)
    return facts, (folder / "page.html").read_text(encoding="utf-8")


def test_verdict_follows_the_paired_differences_on_a_uniform_test(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("counterpoise", epochs=60, device="cpu").fit(dataset.train, probe=dataset.probe)
    facts, page = written(model, dataset, tmp_path)
    own = {
        row["name"]: row["verdict"] for row in facts["model"]["metrics"] if row["metric"] in ("auc", "ndcg", "log_loss")
    }
    assert facts["verdict"]["text"] == compare_sentence(own, "plain MF")
    assert dataset.test is not None
    assert facts["verdict"]["grounds"] == f"By {len(dataset.test)} ratings of pairs drawn at random."
    first = re.search(r"<h1>.*?</h1>\s*<p class=\"verdict \w+\">(.*?)</p>", page, re.DOTALL)
    assert first is not None
    assert first[1] == facts["verdict"]["text"]


def test_verdict_on_a_hold_out_follows_weighted_differences(dataset: Dataset, tmp_path: Path) -> None:
    train, holdout, _ = cp.split(dataset.train, 0.3, seed=0)
    model = cp.make("skb-ips", epochs=30, device="cpu").fit(train)
    facts, page = written(model, Dataset(train, None, holdout), tmp_path)
    weighted = facts["model"]["weighted"]
    names = {"auc": "AUC", "ndcg": "NDCG@5", "log_loss": "log loss"}
    own = {title: weighted["differences"]["run"][key]["verdict"] for key, title in names.items()}
    assert facts["verdict"]["text"] == compare_sentence(own, "plain MF")
    assert facts["verdict"]["grounds"].startswith("Estimated over all pairs from ")
    assert weighted["reference"] == "baseline"
    found = weighted["differences"]["run"]["auc"]["difference"]["value"]
    assert found == pytest.approx(weighted["models"]["run"]["auc"] - weighted["models"]["baseline"]["auc"])
    assert "calibration_level" not in weighted["differences"]["run"]  # it has no direction
    assert "Estimates over all pairs from the biased test" in page


def test_without_a_test_the_page_cannot_tell_and_is_whole(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("skb-ips", epochs=5, device="cpu").fit(dataset.train)
    facts, page = written(model, Dataset(dataset.train, None, None), tmp_path)
    assert facts["verdict"]["text"] == "No test: cannot tell whether this run is better than plain MF."
    for heading in ("Selection bias", "Love plot", "Recommendations", "Path of strengths"):
        assert heading in page


def test_plain_mf_is_not_compared_with_itself(fitted: DebiasedRecommender, dataset: Dataset, tmp_path: Path) -> None:
    facts, _ = written(fitted, dataset, tmp_path)
    assert facts["verdict"]["text"] == "This run is plain MF itself: nothing was corrected."
    weighted = cp.make("skb-ips", epochs=5, device="cpu").fit(dataset.train)
    facts, _ = written(weighted, dataset, tmp_path, baseline=False)
    assert facts["verdict"]["text"] == "Not compared with plain MF."


def row(name: str, low: float, value: float, high: float, verdict: str, lower_is_better: bool) -> dict[str, Any]:
    difference = {"value": value, "low": low, "high": high}
    return {"name": name, "difference": difference, "verdict": verdict, "lower_is_better": lower_is_better}


def test_right_is_better_in_the_chart_of_differences() -> None:
    rows = [row("AUC", 0.1, 0.2, 0.3, "better", False), row("log loss", -0.3, -0.2, -0.1, "better", True)]
    rows.append(row("MSE", 0.1, 0.2, 0.3, "worse", True))
    figure = difference_figure(rows, "title", "x")
    places = [float(x) for x in re.findall(r"<circle cx=\"([\d.]+)\"", figure.svg)]
    assert places[0] == places[1] > places[2]
    ends = re.findall(r"<line x1=\"([\d.]+)\" y1=\"[\d.]+\" x2=\"([\d.]+)\"[^>]*class=\"span", figure.svg)
    assert ends[0] == ends[1]
    assert all(float(low) < float(high) for low, high in ends)
    assert "log loss: -0.2000 (-0.3000 to -0.1000), better" in figure.svg  # the number as it is
    assert "log loss and MSE are turned round" in figure.caption


def test_verdicts_in_tables_have_a_sign_beside_the_colour() -> None:
    column = Column("verdict", "verdict")
    assert [column.show(word) for word in ("better", "worse", "not clear", None)] == [
        "▲ better",
        "▼ worse",
        "≈ not clear",
        "–",
    ]
    assert [column.style(word) for word in ("better", "worse", "not clear", None)] == ["good", "warn", "unclear", ""]
