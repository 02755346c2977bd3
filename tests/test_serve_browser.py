"""The page at / as a browser shows it: type a user, see two lists; nothing in an id runs, nothing is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import IMAGE_ID, SCRIPT_ID
from serving_process import Server

pytest.importorskip("uvicorn", reason="serving is not installed: pip install -e '.[serve]'")
pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
NAMES = ("chromium", "chromium-browser", "google-chrome")
USER = f"{SCRIPT_ID}7"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)} was found")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(browser, hostile_run: Path) -> Iterator[Server]:
    with Server(hostile_run) as started:
        yield started


class Visit:
    """A page in a context of its own, with what it asked for and complained of."""

    def __init__(self, browser, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def too_wide(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")

    def outside(self, server: Server) -> list[str]:
        return [url for url in self.requests if not url.startswith((server.url, "data:"))]


@pytest.fixture(params=[{}, {"java_script_enabled": False, "viewport": {"width": 375, "height": 800}}], ids=str)
def visit(browser, request) -> Iterator[Visit]:
    opened = Visit(browser, **request.param)
    yield opened
    opened.context.close()


def test_a_user_is_typed_and_two_lists_stand_side_by_side(visit: Visit, server: Server) -> None:
    visit.page.goto(server.url)
    visit.page.get_by_label("User").fill(USER)
    visit.page.get_by_label("Items").fill("4")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.get_by_role("heading", name=f"Recommendations for {USER}").wait_for()
    assert visit.page.get_by_label("User").input_value() == USER
    own = visit.page.get_by_role("table", name="Debiased: skb-ips")
    expected = server.get("/recommend?k=4&user=%3Cscript%3Ewindow.hacked%3D1%3C/script%3E7")[1]["items"]
    assert own.locator("tbody th").all_inner_texts() == [row["item_id"] for row in expected]
    assert all(row["item_id"].startswith(IMAGE_ID) for row in expected)
    popular = visit.page.get_by_role("table", name="Most rated, not seen yet")
    ratings = [int(text) for text in popular.locator("tbody td").all_inner_texts()]
    assert ratings == sorted(ratings, reverse=True)
    assert len(ratings) == 4
    assert visit.complaints == []
    assert visit.outside(server) == []
    assert not visit.too_wide()
    if visit.page.evaluate("typeof window.hacked") != "undefined":
        pytest.fail("an id was run")


def test_an_unknown_user_is_named(visit: Visit, server: Server) -> None:
    visit.page.goto(f"{server.url}/?user=nobody")
    assert "unknown user 'nobody'" in visit.page.get_by_role("alert").inner_text()


def test_the_report_opens_from_the_page_and_works_apart_from_it(browser, server: Server) -> None:
    visit = Visit(browser)
    visit.page.goto(server.url)
    visit.page.get_by_role("link", name="The report of this run").click()
    visit.page.get_by_role("heading", name="Summary", exact=True).wait_for()
    assert visit.complaints == []
    assert visit.outside(server) == []
    assert visit.page.locator("th button").count() > 0  # its script has run
    assert visit.page.evaluate("window.origin") == "null"
    visit.context.close()
