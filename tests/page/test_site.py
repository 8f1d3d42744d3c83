"""The documentation's site in a real Chromium: the search knows other words, and no code block is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from tests.page.conftest import Faults
from tests.support.airflow_home import CHECKOUT

SITE = CHECKOUT / ".site"
# The first word of each row, and the page that its first link leads to.
WORDS = re.findall(
    r"^\| ([^|,]+?)[,|][^|]*.*?\]\(([\w/-]+)\.md",
    (CHECKOUT / "docs" / "words.md").read_text().partition("|---|---|\n")[2],
    re.MULTILINE,
)
BEST = 3


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_search_leads_from_other_words_to_the_subject(browser: Browser, address: str) -> None:
    assert len(WORDS) > 30
    page = browser.new_page()
    missed = {}
    for word, name in WORDS:
        page.goto(f"{address}/index.html?q={quote(word.strip())}")
        results = page.locator(".md-search-result__list a")
        expect(results.first).to_be_attached()
        links = results.evaluate_all("all => all.map(one => new URL(one.href).pathname.slice(1))")
        if f"{name}.html" not in links[:BEST]:
            missed[word] = links[:BEST]
    assert missed == {}


def test_no_code_block_is_cut_at_its_right_edge(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, faults, cut = context.new_page(), Faults(context), {}
    for file in sorted(SITE.rglob("*.html")):
        page.goto(f"{address}/{file.relative_to(SITE)}")
        wide = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText.slice(0, 80))"
        if found := page.locator("pre > code").evaluate_all(wide):
            cut[file.name] = found
    assert cut == {}
    faults.check()
