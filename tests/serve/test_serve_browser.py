"""The page at / in a browser: a form, two lists; no id is executed, nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import polars as pl
import pytest
from conftest import IMAGE_ID, SCRIPT_ID

import counterpoise as cp
from counterpoise import Dataset

uvicorn = pytest.importorskip("uvicorn", reason="serving is not installed: pip install -e '.[serve]'")
pytest.importorskip("fastapi", reason="serving is not installed: pip install -e '.[serve]'")

from counterpoise.serve.app import make_app  # noqa: E402
from counterpoise.serve.connections import address, open_socket  # noqa: E402
from counterpoise.serve.guard import Guard  # noqa: E402
from counterpoise.serve.model import ServedRun  # noqa: E402

pytestmark = pytest.mark.slow  # starts a browser
USER = f"{SCRIPT_ID}7"
TITLE = "The extraordinary adventures of a counterweight, and of what happened to it later"


@pytest.fixture(scope="module")
def run(hostile_run: Path) -> ServedRun:
    return ServedRun.load(hostile_run)


@pytest.fixture(scope="module")
def url(browser, run: ServedRun) -> Iterator[str]:
    with serving(run) as found:
        yield found


@contextmanager
def serving(run: ServedRun) -> Iterator[str]:
    """The URL of a server in a thread."""
    config = uvicorn.Config(Guard(make_app(lambda: run)), lifespan="off", log_level="error")
    server, listening = uvicorn.Server(config), open_socket("127.0.0.1", 0)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield address(listening)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def titled_url(browser, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose items have titles, some of them long."""
    names = pl.DataFrame({"item_id": range(50), "title": [f"{TITLE} {item}" for item in range(50)]})
    folder = tmp_path_factory.mktemp("titled") / "run"
    cp.make("skb-ips", epochs=5).fit(dataset.train, item_names=names).save(folder, fit={"method": "skb-ips"})
    with serving(ServedRun.load(folder)) as found:
        yield found


class Visit:
    """A page in a context of its own, with its requests and its messages."""

    def __init__(self, browser, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests, self.messages = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))

    def too_wide(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")

    def outside(self, url: str) -> list[str]:
        return [asked for asked in self.requests if not asked.startswith((url, "data:"))]


@pytest.fixture(params=[{}, {"java_script_enabled": False, "viewport": {"width": 375, "height": 800}}], ids=str)
def visit(browser, request) -> Iterator[Visit]:
    opened = Visit(browser, **request.param)
    yield opened
    opened.context.close()


def test_page_shows_two_lists_for_a_user(visit: Visit, url: str, run: ServedRun) -> None:
    visit.page.goto(url)
    visit.page.get_by_label("User").fill(USER)
    visit.page.get_by_label("Items").fill("4")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.get_by_role("heading", name=f"Recommendations for {USER}").wait_for()
    assert visit.page.get_by_label("User").input_value() == USER
    own = visit.page.get_by_role("table", name="Debiased: skb-ips")
    expected = run.recommend(USER, 4)["items"]
    assert own.locator("tbody th").all_inner_texts() == [row["item_id"] for row in expected]
    assert all(row["item_id"].startswith(IMAGE_ID) for row in expected)
    popular = visit.page.get_by_role("table", name="Most rated, not seen yet")
    ratings = [int(text) for text in popular.locator("tbody td").all_inner_texts()]
    assert ratings == sorted(ratings, reverse=True)
    assert len(ratings) == 4
    own.get_by_role("link").first.click()  # similar items
    visit.page.get_by_role("heading", name=f"Items like {expected[0]['item_id']}").wait_for()
    similar = visit.page.get_by_role("table", name="Similar items").locator("tbody th").all_inner_texts()
    assert similar == [row["item_id"] for row in run.similar(expected[0]["item_id"], 4)["items"]]
    visit.page.get_by_role("link", name="Back to the recommendations").click()
    visit.page.get_by_role("heading", name=f"Recommendations for {USER}").wait_for()
    assert visit.messages == []
    assert visit.outside(url) == []
    assert not visit.too_wide()
    assert visit.page.evaluate("typeof window.hacked") == "undefined"  # no id was executed


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 375])
def test_page_is_readable_at_once(browser, titled_url: str, screenshots, width: int, scheme: str) -> None:
    visit = Visit(browser, viewport={"width": width, "height": 800}, color_scheme=scheme)
    for path, heading in (("", "Recommendations for"), (f"?item=1&user={USER}", f"Items like {TITLE}")):
        visit.page.goto(f"{titled_url}/{path}")
        assert visit.page.get_by_role("heading", name=heading).is_visible()
        assert visit.page.get_by_role("table").first.get_by_role("link").count() == 10
        assert not visit.too_wide()
        for table in visit.page.locator(".scroll").all():
            assert table.evaluate("e => e.scrollWidth <= e.clientWidth"), "columns are hidden"
        screenshots(visit.page, f"served-{'similar' if path else 'example'}-{width}-{scheme}")
    assert (luminance(visit.page, "backgroundColor") < luminance(visit.page, "color")) == (scheme == "dark")
    assert visit.messages == []
    visit.context.close()


def luminance(page, name: str) -> float:
    """How bright a colour of the page is, 0 to 255."""
    return page.evaluate(f"getComputedStyle(document.body).{name}.match(/[0-9]+/g).map(Number)[1]")


def test_page_names_an_unknown_user(visit: Visit, url: str) -> None:
    visit.page.goto(f"{url}/?user=nobody")
    assert "unknown user 'nobody'" in visit.page.get_by_role("alert").inner_text()


def test_report_opens_from_page_in_a_sandbox(browser, url: str) -> None:
    visit = Visit(browser)
    visit.page.goto(url)
    visit.page.get_by_role("link", name="The report of this run").click()
    visit.page.get_by_role("heading", name="Summary", exact=True).wait_for()
    assert visit.messages == []
    assert visit.outside(url) == []
    assert visit.page.locator("th button").count() > 0  # its script has run
    assert visit.page.evaluate("window.origin") == "null"
    visit.context.close()
