"""The report in a browser: no errors, no requests, sortable, readable; no foreign script runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SCRIPT_ID

from counterpoise.cli.main import main
from counterpoise.report.write import compare

pytestmark = pytest.mark.slow


class Seen:
    """A page in a context of its own, with what it asked for and complained of."""

    def __init__(self, browser, path: Path, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.resolve().as_uri())

    def too_wide(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


@pytest.fixture(scope="module")
def report(browser, hostile_run: Path) -> Iterator[Seen]:
    seen = Seen(browser, hostile_run / "report.html", viewport={"width": 1200, "height": 900})
    yield seen
    seen.context.close()


def test_page_loads_nothing_and_logs_no_error(report: Seen, hostile_run: Path) -> None:
    outside = [url for url in report.requests if not url.startswith("data:")]
    assert outside == [(hostile_run / "report.html").resolve().as_uri()]
    assert report.complaints == []
    assert not report.too_wide()


def test_hostile_ids_do_not_run(report: Seen) -> None:
    assert report.page.get_by_text(SCRIPT_ID).count() > 0
    assert report.page.evaluate("window.hacked") is None
    assert report.page.locator("img").count() == 0


def test_click_on_a_head_sorts_both_ways(report: Seen) -> None:
    report.page.get_by_text("Rows with the largest weights").first.click()  # unfolds it
    table = report.page.get_by_role("table", name="Rows with the largest weights")
    weights = table.locator("tbody td:nth-child(4)")

    def column() -> list[float]:
        return [float(text) for text in weights.all_inner_texts()]

    assert column() == sorted(column(), reverse=True)
    table.get_by_role("button", name="Sort by weight").click()
    assert column() == sorted(column())
    assert table.locator("th[aria-sort=ascending]").count() == 1
    table.get_by_role("button", name="Sort by weight").click()
    assert column() == sorted(column(), reverse=True)


def test_hover_shows_the_tooltip(report: Seen) -> None:
    figure = report.page.locator("figure", has=report.page.get_by_text("Love plot"))
    mark = figure.locator("circle.mark").first
    mark.scroll_into_view_if_needed()
    mark.hover()
    readout = figure.locator("output")
    assert readout.is_visible()
    assert readout.inner_text() == mark.get_attribute("data-tip")
    report.page.mouse.move(0, 0)
    assert not readout.is_visible()


def test_arrow_keys_step_through_marks(report: Seen) -> None:
    figure = report.page.locator("figure", has=report.page.get_by_text("Calibration", exact=True))
    figure.locator("svg").focus()
    report.page.keyboard.press("ArrowRight")
    first = figure.locator("output").inner_text()
    report.page.keyboard.press("ArrowRight")
    assert first != figure.locator("output").inner_text() != ""


def test_chart_zooms_in_and_back(report: Seen) -> None:
    figure = report.page.locator("figure").first
    chart = figure.locator("svg")
    whole = chart.get_attribute("viewBox")
    figure.get_by_role("button", name="Zoom in").click()
    assert float(chart.get_attribute("viewBox").split()[2]) < float(whole.split()[2])
    figure.get_by_role("button", name="Show all").click()
    assert chart.get_attribute("viewBox") == whole


def test_term_links_to_its_definition(report: Seen) -> None:
    link = report.page.locator("#weights a.term").first
    target = link.get_attribute("href")
    link.click()
    assert report.page.locator(f"{target}:target").is_visible()


@pytest.fixture(scope="module")
def pages(hostile_run: Path, hostile_folder: Path) -> dict[str, Path]:
    """Reports of a run with a uniform test, of ones judged by a hold-out, of one without a test, and of two."""
    log, found = str(hostile_folder / "train.csv"), {"uniform": hostile_run / "report.html"}
    clicks = ["--holdout", "0.3", "--feedback", "clicks", "--threshold", "1"]
    for name, extra in (("holdout", ["--holdout", "0.3"]), ("no-test", []), ("clicks", clicks)):
        run = hostile_folder / name
        assert main(["fit", log, "--epochs", "20", "--out", str(run), "--report", "--quiet", *extra]) == 0
        found[name] = run / "report.html"
    compare([hostile_folder / "holdout", hostile_folder / "holdout"], out=hostile_folder / "compared.html")
    return found | {"compared": hostile_folder / "compared.html"}


WIDTHS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
CUT_OFF = """() => [...document.querySelectorAll('.scroll, figure, .glossary, .headline li, nav ul')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label') || e.className)"""
TOOLS_OFF = """() => [...document.querySelectorAll('figure')].filter(f => f.clientWidth).filter(f => {
    const [tools, frame] = [f.querySelector('.tools'), f].map(e => e.getBoundingClientRect());
    return Math.abs(tools.top - frame.top) > 10 || Math.abs(tools.right - frame.right) > 10;
}).map(f => f.innerText.slice(0, 40))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS)
@pytest.mark.parametrize("name", ["uniform", "holdout", "no-test", "clicks", "compared"])
def test_every_page_fits_every_screen(
    name: str, device: str, scheme: str, browser, pages: dict[str, Path], screenshots
) -> None:
    phone = device == "phone"
    seen = Seen(browser, pages[name], viewport=WIDTHS[device], is_mobile=phone, color_scheme=scheme)
    screenshots(seen.page, f"report-{name}-{device}-{scheme}")
    assert seen.complaints == []
    assert not seen.too_wide()
    chart = seen.page.locator("svg.chart").first
    assert chart.count() == 0 or chart.bounding_box()["width"] > 300
    if phone:
        seen.page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert seen.page.evaluate(CUT_OFF) == [], "columns that a reader must look for"
    off = seen.page.evaluate(TOOLS_OFF)
    assert off == [], "buttons that are not on their chart"
    seen.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdict_is_the_first_line_and_has_contrast(scheme: str, browser, pages: dict[str, Path]) -> None:
    for name, words in (("no-test", "No test: cannot tell"), ("uniform", "plain MF"), ("holdout", "plain MF")):
        seen = Seen(browser, pages[name], color_scheme=scheme)
        verdict = seen.page.locator("h1 + p")
        assert words in verdict.inner_text()
        script = "e => getComputedStyle(e).{}.match(/[0-9]+/g).slice(0, 3).map(Number)"
        paper = luminance(seen.page.locator("body").evaluate(script.format("backgroundColor")))
        coloured = [verdict, *seen.page.locator("td.good, td.warn, td.unclear").all()]
        for place in coloured:
            ink = luminance(place.evaluate(script.format("color")))
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5
        for cell in coloured[1:]:
            assert cell.text_content()[:1] in "▲▼≈–", "colour must not be the only sign"
        seen.context.close()


def test_dark_and_light_pages_have_contrast(browser, hostile_run: Path) -> None:
    for scheme, dark in (("dark", True), ("light", False)):
        seen = Seen(browser, hostile_run / "report.html", color_scheme=scheme)
        script = "e => getComputedStyle(e).{}.match(/[0-9]+/g).slice(0, 3).map(Number)"
        paper, ink, soft = (
            luminance(seen.page.locator(place).first.evaluate(script.format(what)))
            for place, what in (("body", "backgroundColor"), ("body", "color"), ("figcaption", "color"))
        )
        assert (paper < 0.1) == dark
        for words in (ink, soft):
            assert (max(words, paper) + 0.05) / (min(words, paper) + 0.05) > 4.5  # the contrast that WCAG AA asks for
        seen.context.close()


def luminance(colour: list[float]) -> float:
    """Relative luminance of sRGB values 0 to 255 (WCAG 2)."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_tables_and_charts_work_without_scripts(browser, hostile_run: Path) -> None:
    seen = Seen(browser, hostile_run / "report.html", java_script_enabled=False)
    charts, tables = seen.page.locator("svg.chart"), seen.page.locator("div.block > .scroll table")
    assert charts.count() >= 8
    shown = [chart for chart in charts.all() if chart.is_visible()]
    assert len(shown) >= 8
    assert all(chart.bounding_box()["height"] > 50 for chart in shown)
    assert tables.count() >= 5
    assert all(table.is_visible() for table in tables.all())
    assert charts.first.locator("circle.mark > title").count() == 9  # what a pointer shows without scripts
    assert seen.page.locator("button").count() == 0
    seen.context.close()


def opens_quietly(browser, path: Path) -> Seen:
    seen = Seen(browser, path, viewport={"width": 1200, "height": 900})
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [path.resolve().as_uri()]
    assert not seen.too_wide()
    return seen


def test_report_of_the_demo_opens(browser, tmp_path: Path) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo"), "--quiet"]) == 0
    seen = opens_quietly(browser, tmp_path / "demo" / "report.html")
    assert seen.page.get_by_role("table", name="Loss on the log and on all pairs").is_visible()
    seen.context.close()


def test_report_of_coat_opens(browser, coat_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "coat"
    fit = ["fit", "coat", "--path", str(coat_folder), "--epochs", "20", "--out", str(run), "--report", "--quiet"]
    assert main(fit) == 0
    seen = opens_quietly(browser, run / "report.html")
    assert seen.page.get_by_role("heading", name="counterpoise on coat").is_visible()
    assert seen.page.get_by_role("heading", name="Exposure coefficients").is_visible()
    seen.context.close()


def test_comparison_opens(browser, hostile_run: Path, tmp_path: Path) -> None:
    compare([hostile_run, hostile_run], out=tmp_path / "compared.html")
    seen = Seen(browser, tmp_path / "compared.html", viewport={"width": 375, "height": 800})
    assert seen.complaints == []
    assert not seen.too_wide()
    seen.context.close()
