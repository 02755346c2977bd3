"""The page of a report: complete, escaped, self-contained, every term defined; and the command that writes it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import IMAGE_ID, SCRIPT_ID

import counterpoise as cp
from counterpoise import Dataset, DebiasedRecommender
from counterpoise.cli.main import main
from counterpoise.evaluation.metrics import METRIC_NAMES
from counterpoise.report.charts import Bar, Line, Mark, Scale, bar_chart, line_chart, row_chart, short, tag
from counterpoise.report.definitions import BASIC_TERMS, DEFINITIONS
from counterpoise.report.page import Column, slug
from counterpoise.report.sections import report_page

SECTIONS = ("summary", "results", "lists", "log", "balance", "weights", "model", "configuration", "definitions")
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """What stands on a page: ids, links, texts, and the names of tags; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.text = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, name, attributes):
        given = dict(attributes)
        self.tags.append((name, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


@pytest.fixture(scope="module")
def html(hostile_run: Path) -> str:
    return (hostile_run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_section_is_linked(page: Page) -> None:
    assert [name for name in page.ids if name in SECTIONS] == list(SECTIONS)
    assert {f"#{name}" for name in SECTIONS} <= set(page.links)
    assert len(page.ids) == len(set(page.ids))


def test_every_link_has_a_target_on_the_page(page: Page) -> None:
    inside = [link for link in page.links if not link.startswith("data:")]
    assert {link[1:] for link in inside} <= set(page.ids)
    assert sum(link.startswith("#def-") for link in inside) > 20


def test_glossary_has_the_terms_that_the_page_links_to(page: Page) -> None:
    shown = {slug(term): text for term, text in DEFINITIONS.items() if slug(term) in page.ids}
    linked = {link[1:] for link in page.links if link.startswith("#def-")}
    assert set(shown) == linked | {slug(term) for term in BASIC_TERMS}
    words = " ".join(page.text)
    assert all(text in words for text in shown.values())


def test_column_with_undefined_term_is_refused() -> None:
    with pytest.raises(AssertionError):
        Column("x", term="no such term")


def test_hostile_ids_are_escaped(page: Page, html: str) -> None:
    assert SCRIPT_ID in "".join(page.text)
    assert IMAGE_ID in "".join(page.text)
    assert page.count("img") == 0
    assert page.count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_hostile_ids_are_escaped_in_charts() -> None:
    marks = [(SCRIPT_ID, [Mark(0.1, IMAGE_ID)]), (IMAGE_ID, [Mark(0.2, SCRIPT_ID)])]
    svg = str(row_chart(marks, SCRIPT_ID, IMAGE_ID))
    assert "<script" not in svg
    assert "<img" not in svg
    tree = ElementTree.fromstring(svg)
    tips = [element.attrib["data-tip"] for element in tree.iter() if "data-tip" in element.attrib]
    assert tips == [IMAGE_ID, SCRIPT_ID]
    assert str(tag("text", "a < b", class_='"x"')) == '<text class="&#34;x&#34;">a &lt; b</text>'


def test_nearly_equal_shares_have_different_tick_labels() -> None:
    rows = [("log", [Mark(55.787, "")]), ("log, weighted", [Mark(55.785, "")])]
    tree = ElementTree.fromstring(str(row_chart(rows, "%", "", guides=(), least=1.0)))
    labels = [element.text for element in tree.iter() if element.attrib.get("class") == "tick middle"]
    assert len(labels) == len(set(labels)) > 2


def test_page_is_small_and_loads_nothing(html: str, page: Page) -> None:
    assert len(html.encode()) < 3_000_000
    loading = [given for _, given in page.tags if "src" in given or given.get("href", "#")[0] not in "#d"]
    assert loading == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", html)
    policy = next(given["content"] for _, given in page.tags if given.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy


def test_charts_have_titles_and_tables_captions(page: Page, html: str) -> None:
    charts = [given for name, given in page.tags if name == "svg"]
    assert len(charts) >= 8
    assert all(given["role"] == "img" and given["aria-label"] for given in charts)
    assert page.count("caption") == page.count("table") >= 8
    assert len(re.findall(r"<svg[^>]*><title>", html)) == len(charts)


def test_page_is_rendered_from_the_json_facts(hostile_run: Path, html: str) -> None:
    facts = json.loads((hostile_run / "report.json").read_text(encoding="utf-8"))
    assert report_page(facts) == html
    row = next(row for row in facts["model"]["metrics"] if row["metric"] == "auc")
    assert f"{row['run']['value']:.4f}" in html
    assert f"{row['difference']['value']:+.4f}" in html


def test_method_without_weights_shows_its_other_corrections(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("counterpoise", dim=4, epochs=10).fit(dataset.train, probe=dataset.probe)
    cp.write_report(model, dataset, out=tmp_path / "page.html", baseline=False)
    text = " ".join(Page((tmp_path / "page.html").read_text()).text)
    assert "have the same weight" in text
    assert "Missingness model: probability that a pair is observed" in text
    assert "Exposure coefficients" in text
    assert "No baseline." in text


def test_reasons_in_facts_are_escaped(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("mf", dim=4, epochs=2).fit(dataset.train)
    model.facts_["inactive"] = {"ordinal": SCRIPT_ID}
    cp.write_report(model, out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert SCRIPT_ID not in page
    assert SCRIPT_ID in " ".join(Page(page).text)


def test_report_of_a_model_and_its_dataset(dataset: Dataset, fitted: DebiasedRecommender, tmp_path: Path) -> None:
    facts = cp.write_report(fitted, dataset, out=tmp_path / "deep" / "page.html")
    assert facts["log"]["rows"] == len(dataset.train)
    assert json.loads((tmp_path / "deep" / "page.json").read_text()) == facts
    given = cp.write_report(fitted, test=dataset.test, out=tmp_path / "given.html")
    assert given["model"]["metrics"] == cp.write_report(fitted, dataset, out=tmp_path / "own.html")["model"]["metrics"]
    assert given["model"]["test"]["name"] == "the given test"
    fitted.save(tmp_path / "run")
    with pytest.raises(cp.ConfigError, match="`test` must be a file or the name of a dataset for a saved run"):
        cp.write_report(tmp_path / "run", test=dataset.test)
    alone = cp.write_report(fitted, out=tmp_path / "alone.html")
    assert alone["model"]["metrics"] == []
    assert 'give some with <span class="option">--test FILE</span>' in (tmp_path / "alone.html").read_text()


def test_scales_and_ticks() -> None:
    linear, logarithmic = Scale(0, 10, 100, 200), Scale(1, 100, 0, 50, logarithmic=True)
    assert linear(2.5) == 125
    assert logarithmic(10) == pytest.approx(25)
    assert linear.ticks() == [0, 2, 4, 6, 8, 10]
    assert Scale(3, 3, 0, 1).ticks() == [3]
    assert logarithmic.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert [short(value) for value in (0.25, 1200, 20_000, 3e6)] == ["0.25", "1,200", "20k", "3M"]


def test_marks_follow_the_scale() -> None:
    svg = ElementTree.fromstring(str(line_chart([Line([(0, 0), (1, 1)], ["low", "high"])], "x", "y", "alt")))
    low, high = ([float(e.attrib[k]) for k in ("cx", "cy")] for e in svg.iter() if e.attrib.get("data-tip"))
    assert low[0] < high[0]
    assert low[1] > high[1]  # y points upwards
    bars = [Bar(0, 1, 2, "two"), Bar(1, 2, 4, "four")]
    heights = [
        float(e.attrib["height"])
        for e in ElementTree.fromstring(str(bar_chart(bars, "x", "y", "alt"))).iter()
        if e.attrib.get("data-tip")
    ]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)


def test_report_takes_a_test_and_a_baseline_run(
    hostile_run: Path, hostile_folder: Path, tmp_path: Path, capsys
) -> None:
    baseline, out = tmp_path / "mf", tmp_path / "page.html"
    files = ["--test", str(hostile_folder / "test.csv"), "--probe", str(hostile_folder / "probe.csv")]
    assert (
        main(
            [
                "fit",
                str(hostile_folder / "train.csv"),
                "--method",
                "mf",
                "--epochs",
                "3",
                "--out",
                str(baseline),
                *files,
            ]
        )
        == 0
    )
    half = tmp_path / "half.csv"
    lines = (hostile_folder / "test.csv").read_text().splitlines(keepends=True)
    half.write_text("".join(lines[: len(lines) // 2]))
    capsys.readouterr()
    arguments = ["report", str(hostile_run), "--test", str(half), "--baseline", str(baseline), "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["test"]["rows"] == len(lines) // 2 - 1
    assert facts["configuration"]["baseline_epochs"] == 3
    assert main([*arguments[:-4], "--baseline", "none", "--out", str(out)]) == 0
    assert "page.json" in capsys.readouterr().out
    assert "baseline" not in json.loads(out.with_suffix(".json").read_text())["lists"]


def test_unknown_users_are_an_error_or_get_item_rates(
    hostile_run: Path, hostile_folder: Path, tmp_path: Path, capsys
) -> None:
    test, out = tmp_path / "test.csv", tmp_path / "page.html"
    first, *lines = (hostile_folder / "test.csv").read_text().splitlines(keepends=True)
    unknown = lines[-1].replace(SCRIPT_ID, "<b>unknown</b>")
    test.write_text("".join([first, *lines, unknown]))
    arguments, allowed = [str(hostile_run), "--test", str(test), "--out", str(out)], ["--unknown-users", "popular"]
    complaints = []
    for command in (["evaluate", str(hostile_run), str(test)], ["report", *arguments, "--baseline", "none"]):
        assert main(command) == 2
        complaints.append(capsys.readouterr().err)
    assert complaints[0] == complaints[1]
    assert "Use --unknown-users popular to score new users by the items alone." in complaints[0]
    assert main(["evaluate", str(hostile_run), str(test), *allowed, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert main(["report", *arguments, *allowed, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["test"]["rows"] == len(lines) + 1
    assert [row["run"]["value"] for row in facts["model"]["metrics"]] == [evaluated[name] for name in METRIC_NAMES]
    assert (
        "22 rows of the test are of 1 user and 1 item without rows in the training log: predicted" in facts["notes"][0]
    )
    assert (evaluated["sample"], evaluated["cold_users"], evaluated["cold_items"]) == ("biased", 1, 1)
    assert "These ratings are of pairs that users chose" in facts["summary"][-1]["text"]
    assert main(["report", *arguments, "--unknown-users", "drop", "--test-kind", "uniform", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"]["test"] == facts["model"]["test"] | {"rows": len(lines), "sample": "uniform"}
    assert (
        "22 rows of the test are of 1 user and 1 item without rows in the training log: 1 left out" in facts["notes"][0]
    )
    assert "uniformly collected ratings" in facts["summary"][-1]["text"]
    assert main(["report", "--compare", str(hostile_run), *arguments]) == 2
    assert capsys.readouterr().err == complaints[0]
    assert main(["report", "--compare", str(hostile_run), *arguments, *allowed, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [run["value"] for run in compared["metrics"][0]["runs"]] == [evaluated["auc"]] * 2
    assert len(compared["notes"]) == 1  # what both runs say is said once


def test_comparison_page_has_all_sections(hostile_run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "comparison.html"
    assert main(["report", "--compare", str(hostile_run), str(hostile_run), "--out", str(out)]) == 0
    said = "run (2): No clear difference from run (1) in AUC, NDCG@5 and log loss."
    assert said in " ".join(capsys.readouterr().out.split())
    page = Page(out.read_text())
    assert [name for name in page.ids if not name.startswith("def-")][1:8:2] == [
        "summary",
        "metrics",
        "runs",
        "settings",
    ]
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert (tmp_path / "comparison.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{empty}"], "is not a saved run"),
        (["{file}"], "is not a saved run"),
        (["{run}", "--test", "{empty}/none.csv"], "none.csv"),
        (["{run}", "--out", "{file}/page.html"], "cannot be written"),
        (["{run}", "--out", "{empty}/page.pdf"], "`out` must end in .html"),
        (["{run}", "--out", "{empty}/run.html"], "run.json"),
        (["{run}", "{run}"], "Use --compare"),
        (["--compare", "{run}"], "needs at least two runs"),
        (["--compare", "{run}", "{run}", "--baseline", "{run}"], "goes with the report of one run"),
        (["{run}", "--baseline", "{run}"], "must be a run without correction"),
        (["{run}", "--baseline", "{empty}"], "is not a saved run"),
        (["{run}", "--test-kind", "uniform"], "`--test-kind` says how a test was collected, and none is given"),
    ],
)
def test_errors_are_one_line(hostile_run: Path, tmp_path: Path, capsys, arguments, words) -> None:
    (tmp_path / "file").write_text("")
    places = {"empty": str(tmp_path), "run": str(hostile_run), "file": str(tmp_path / "file")}
    assert main(["report", *(word.format(**places) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_page_replaces_an_old_one(fitted: DebiasedRecommender, dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    cp.write_report(fitted, dataset, out=out)
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "page.json"]


def test_complete_matrix_has_a_report(tmp_path: Path) -> None:
    users, items = np.divmod(np.arange(40), 8)  # every user rated every item: nothing varies
    log = cp.FeedbackLog.from_arrays(users, items, (users + items) % 2)
    model = cp.make("ips", weights="propensity", epochs=3).fit(log)
    facts = cp.write_report(model, Dataset(log), out=tmp_path / "page.html")
    assert facts["lists"]["run"]["items_shown"] == 0
    assert Page((tmp_path / "page.html").read_text()).count("svg") >= 3
