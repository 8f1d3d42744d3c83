"""The demo, started as people start it, and a browser that is logged in to its Airflow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Response,
    StorageState,
    expect,
    sync_playwright,
)

from dev.browser import find_chromium
from tests.support.airflow_home import CHECKOUT
from tests.support.broker import poll_until

# The folder of the walk's pictures. `LAKESTREAM_PICTURES=docs/images make test SUITES=page` renews the documentation's.
PICTURES = CHECKOUT / os.environ.get("LAKESTREAM_PICTURES", ".dev/pictures")
UP = re.compile(r"airflow: up at (\S+) \(login (\S+), password (\S+)\)")
# Spark fetches its packages the first time, and the machine may be busy.
SECONDS = 180

# What a browser keeps of a login, by address and user: a user logs in once, and the next tests go on with it.
_LOGINS: dict[tuple[str, str], StorageState] = {}

# Faults of Airflow's and Spark's own pages that a test can't mend: (a pattern, the reason).
KNOWN_FAULTS: tuple[tuple[str, str], ...] = (
    (
        r"401 GET \S+/ui/config$",
        "Airflow asks for its settings before anybody is logged in; the answer leads to the login",
    ),
    (
        r"console Creating a worker from 'blob:",
        "Airflow's editor of code, where a test sends a policy; it goes on without",
    ),
)

expect.set_options(timeout=SECONDS * 1000)


@dataclass
class Demo:
    """A running demo, and what it has printed so far."""

    output: Path
    process: subprocess.Popen[bytes]

    @property
    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str | re.Pattern[str], seconds: float = SECONDS) -> None:
        """Wait until the demo has printed something."""

        def there() -> bool:
            assert self.process.poll() is None, self.said[-3000:]
            return re.search(text, self.said) is not None

        poll_until(there, f"the demo to print {text}", seconds, every=1)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Give `make demo`; Ctrl-C ends it."""
    output = tmp_path_factory.mktemp("demo") / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "dev", "demo"],
            cwd=CHECKOUT,
            stdout=out,
            stderr=out,
            # In the background of a shell Ctrl-C would be ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running = Demo(output, process)
        try:
            running.wait_for(UP, 420)
            yield running
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)
    assert "nothing is left running" in running.said
    assert process.returncode == 0, running.said[-3000:]


class Faults:
    """What goes wrong in all pages of a browser: answers of 400 and more, errors of scripts and of the console."""

    def __init__(self, context: BrowserContext) -> None:
        self._found: list[str] = []
        self._expected: list[str] = []
        context.on("response", self._answer)
        context.on("console", self._message)
        context.on("weberror", lambda error: self._found.append(f"error {error.error}"))

    def _answer(self, answer: Response) -> None:
        if answer.status >= 400:
            self._found.append(f"{answer.status} {answer.request.method} {answer.url}")

    def _message(self, message: ConsoleMessage) -> None:
        # Of an answer there is a line of its own.
        if message.type == "error" and "the server responded with a status of" not in message.text:
            self._found.append(f"console {message.text} ({message.location['url']})")

    def expect(self, pattern: str) -> None:
        """Let the test provoke faults such as `401 POST .*/auth/token`."""
        self._expected.append(pattern)

    def check(self) -> None:
        """Fail at each fault that is neither known nor provoked, and where a provoked one did not come."""
        known = [*self._expected, *(pattern for pattern, _ in KNOWN_FAULTS)]
        assert [one for one in self._found if not any(re.match(pattern, one) for pattern in known)] == []
        missing = [pattern for pattern in self._expected if not any(re.match(pattern, one) for one in self._found)]
        assert missing == []


class Ui:
    """Airflow's pages, as a person reads them and clicks."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults = Faults(page.context)

    def open(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(self.url + path)

    def dag(self, name: str) -> None:
        """Go from the list of DAGs to one of them."""
        self.page.get_by_role("link", name="Dags", exact=True).first.click()
        # The page before may have links of that name, too.
        expect(self.page.get_by_role("heading", name=re.compile(r"^\d+ Dags$"))).to_be_visible()
        self.page.get_by_role("link", name=name, exact=True).first.click()
        expect(self.page.get_by_role("heading", name=name)).to_be_visible()

    def tab(self, name: str) -> None:
        """Go to a tab of the page."""
        self.page.get_by_role("link", name=name, exact=True).click()

    def trigger_form(self) -> Locator:
        """Open the DAG's trigger form."""
        self.page.get_by_role("button", name="Trigger Dag").click()
        form = self.page.get_by_role("dialog")
        expect(form.get_by_text("Run Parameters")).to_be_visible()
        return form

    def trigger(self, form: Locator) -> None:
        """Send the form; Airflow leads to the new run's page."""
        form.get_by_role("button", name="Trigger", exact=True).click()
        self.page.wait_for_url("**/runs/manual__*")

    def newest_run(self) -> None:
        """Go from a DAG's page to its newest run's."""
        self.tab("Runs")
        self.page.get_by_role("table").get_by_role("link", name=re.compile("__2[0-9]{3}-")).first.click()

    def task(self, name: str) -> None:
        """Go from a run's page to that of one of its tasks."""
        self.page.get_by_role("table").get_by_role("link", name=name).first.click()
        expect(self.page.get_by_role("heading", name=name)).to_be_visible()

    def picture(self, name: str, *, height: int = 800) -> None:
        """Take a picture of what is on the screen."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.set_viewport_size({"width": 1280, "height": height})
        self.page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Give the real browser."""
    with sync_playwright() as playwright:
        # In a container, or as root, Chromium can't make its sandbox; the pages are our own.
        yield playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])


def new_context(browser: Browser, url: str = "", user: str = "", scheme: Any = "light") -> BrowserContext:
    """Return a context of a browser, with the login of an earlier test if the user has been here."""
    return browser.new_context(
        viewport={"width": 1280, "height": 800},
        locale="en-US",
        timezone_id="UTC",
        color_scheme=scheme,
        storage_state=_LOGINS.get((url, user)),
    )


@pytest.fixture
def stranger(demo: Demo, browser: Browser) -> Iterator[Ui]:
    """Give a browser that nobody is logged in with."""
    found = UP.search(demo.said)
    assert found is not None
    with new_context(browser) as context:
        context.set_default_timeout(SECONDS * 1000)
        ui = Ui(context.new_page(), found[1])
        yield ui
        ui.faults.check()


@pytest.fixture
def ui(demo: Demo, browser: Browser) -> Iterator[Ui]:
    """Give a browser that the demo's user has logged in with."""
    found = UP.search(demo.said)
    assert found is not None
    with new_context(browser, found[1], found[2]) as context:
        context.set_default_timeout(SECONDS * 1000)
        ui = Ui(context.new_page(), found[1])
        enter(ui, found[2], found[3], ui.page.get_by_role("link", name="Dags", exact=True))
        yield ui
        ui.faults.check()


def enter(ui: Ui, username: str, password: str, link: Locator) -> None:
    """Open Airflow as a user, by the form the first time, and wait for a link that its pages have."""
    if is_new := (ui.url, username) not in _LOGINS:
        log_in(ui, username, password)
    else:
        ui.open("/")
    expect(link.first).to_be_visible()
    if is_new:
        _LOGINS[ui.url, username] = ui.page.context.storage_state()


def log_in(ui: Ui, username: str, password: str) -> None:
    """Fill the form of the login."""
    ui.open("/")
    ui.page.get_by_label("Username").fill(username)
    ui.page.get_by_label("Password").first.fill(password)
    ui.page.get_by_role("button", name="Sign in").click()
