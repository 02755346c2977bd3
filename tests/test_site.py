"""The documentation builds without a warning and loads nothing from the network; its pictures can be drawn again."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pages import PAGES, ROOT

NAMED = r"link(?![^>]*rel=\"?(?:canonical|next|prev))"  # links that only name other pages load nothing
BROKEN_LIST = re.compile(r"<p>(?:(?!</p>)[\s\S])*\n[-*] ")  # what follows a block inside needs four spaces
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
    docs = ROOT / "docs"
    for page in (*docs.rglob("*.md"), *docs.rglob("*.ipynb")):
        built = site / page.relative_to(docs).with_suffix(".html")
        assert built.is_file(), page
        html = built.read_text(encoding="utf-8")
        assert not LOADED.search(html), page
        assert page.suffix != ".md" or not BROKEN_LIST.search(html), f"{page}: a list that goes on as a paragraph"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:|//)", style.read_text(encoding="utf-8")), style


def test_search_finds_pages_and_the_api(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "choosing.html" in index
    assert "KernelBalancer" in index


SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
PICTURED = sorted(
    path.relative_to(ROOT / "docs").with_suffix("").as_posix()
    for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"))
)


class Quiet(SimpleHTTPRequestHandler):
    """Answers without a line for each request."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The URL of the site: its search reads a file, which browsers let no script do without a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", SCREENS)
def test_pages_are_readable_at_desktop_and_phone_width(
    device: str, scheme: str, served: str, browser: Any, screenshots: Callable[[Any, str], Path]
) -> None:
    context = browser.new_context(viewport=SCREENS[device], is_mobile=device == "phone", color_scheme=scheme)
    page, complaints, requests = context.new_page(), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    for name in PICTURED:
        page.goto(f"{served}/{name}.html")
        page.wait_for_load_state()
        assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), name
        paper, ink = (
            sum(map(int, page.evaluate(f"getComputedStyle(document.body).{what}.match(/[0-9]+/g).slice(0, 3)")))
            for what in ("backgroundColor", "color")
        )
        assert (paper < ink) == (scheme == "dark"), name
        broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
        page.evaluate("document.querySelectorAll('img').forEach(i => { i.loading = 'eager'; })")
        page.wait_for_timeout(100)
        assert page.evaluate(broken) == [], name
        screenshots(page, f"docs-{name.replace('/', '-')}-{device}-{scheme}")
    assert complaints == []
    assert [url for url in requests if not url.startswith((served, "data:", "blob:"))] == []
    context.close()


def test_the_pictures_are_there_and_the_page_states_what_they_show(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    facts = pictures.draw(tmp_path)
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in tmp_path.glob("*.svg"):
        assert (ROOT / "docs" / "figures" / picture.name).is_file(), picture.name
        assert f"figures/{picture.name}" in shown, picture.name
        drawn = picture.read_text(encoding="utf-8")
        background = re.search(r"id=\"patch_1\">\s*<path[^>]*style=\"fill: (\S+?)[;\"]", drawn)
        assert background is None or background[1] == "none", "a white background on dark pages"
    stated = {
        ("selection", "log"): (0.77, 0.01),
        ("selection", "all pairs"): (0.39, 0.01),
    }
    for (picture, name), (value, margin) in stated.items():
        assert facts[picture][name] == pytest.approx(value, abs=margin), (picture, name)
