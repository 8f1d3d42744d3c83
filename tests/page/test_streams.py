"""The page of streams in a real Chromium, against an API server with made streams, below the path of a proxy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from playwright.sync_api import Browser, BrowserContext, Route, expect

from dev.ports import LOOPBACK, free_ports
from tests.page.conftest import Ui, enter, new_context
from tests.support.airflow_home import CHECKOUT, settings
from tests.support.broker import poll_until

USERS = {"vera": "viewer", "uma": "user", "ada": "admin"}
# The page itself is what is tried; a script of anybody else's, or one in the page, would not run.
POLICY = "script-src 'self'"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment of an Airflow with one stream of each kind."""
    home, [port] = tmp_path_factory.mktemp("streams"), free_ports(1)
    (home / "written").mkdir()
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in USERS}))
    url = f"http://{LOOPBACK}:{port}/behind/a/path"
    environment = {
        **os.environ,
        **settings(home),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.support.picky_auth.PickyAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API__BASE_URL": url,
        "PYTHONPATH": str(CHECKOUT),
    }
    run_python(environment, "-m", "airflow", "db", "migrate")
    run_python(environment, "-c", "from tests.support.page_answers import make; make()")
    return environment


def run_python(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], env=environment, cwd=CHECKOUT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def server(environment: dict[str, str]) -> Iterator[str]:
    """Give the address of an API server, whose Airflow has nothing else."""
    home, url = Path(environment["AIRFLOW_HOME"]), environment["AIRFLOW__API__BASE_URL"]
    port = str(urlsplit(url).port)
    command = [sys.executable, "-m", "airflow", "api-server", "--host", LOOPBACK, "--port", port, "--apps", "core"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, "--workers", "1"], env=environment, cwd=CHECKOUT, stdout=log, stderr=log)
        try:
            poll_until(lambda: _answers(process, url, home / "server.log"), "the API server to answer", 180, every=1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _answers(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        return requests.get(f"{url}/api/v2/version", timeout=5).ok
    except requests.RequestException:
        return False


class Visit:
    """A person who is logged in, and the addresses that the browser has asked."""

    def __init__(self, context: BrowserContext, url: str, user: str) -> None:
        self.ui = Ui(context.new_page(), url)
        self.asked: list[str] = []
        self.page = self.ui.page
        self.page.on("request", lambda request: self.asked.append(request.url))
        enter(self.ui, user, user, self.page.get_by_role("link", name="Lakestream"))
        self.page.route("**/*", self._with_policy)

    def _with_policy(self, route: Route) -> None:
        if route.request.resource_type != "document":
            return route.continue_()
        answer = route.fetch()
        return route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})

    def list(self) -> None:
        """Open the list by its address."""
        self.ui.open("/plugin/lakestream-streams")
        expect(self.page.get_by_role("heading", name="Streams", exact=True)).to_be_visible()
        expect(self.page.get_by_role("link", name="orders → lake.lands")).to_be_visible()

    def look(self, name: str) -> None:
        """Take a picture for people who look at the page; the documentation has none of it."""
        self.page.screenshot(path=CHECKOUT / ".dev" / "pictures" / f"{name}.png", animations="disabled")

    def is_within(self) -> bool:
        """Whether nothing is wider than the window."""
        wide = "() => { const e = document.querySelector('.ls'); return [e.scrollWidth, e.clientWidth, innerWidth]; }"
        inner, outer, window = self.page.evaluate(wide)
        return bool(inner <= outer and outer <= window)


@pytest.fixture
def visit(server: str, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Give a visit of the user that the test names, or an admin's."""
    user, scheme = getattr(request, "param", ("ada", "light"))
    with new_context(browser, server, user, scheme) as context:
        context.set_default_timeout(60_000)
        visit = Visit(context, server, user)
        yield visit
        visit.ui.faults.check()
        assert [url for url in visit.asked if not url.startswith((f"http://{LOOPBACK}:", "data:", "blob:"))] == []


def test_the_worst_comes_first_and_links_stay_in_airflow(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("link", name="Lakestream").first.click()
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(10)
    expect(page.get_by_role("paragraph").get_by_role("link", name="supervises")).to_be_visible()
    # A template is no name.
    expect(rows.nth(1)).to_contain_text("land → lake.fails")
    expect(page.get_by_text("{{")).to_have_count(0)
    # Nor is Python's None a schedule.
    expect(page.get_by_role("cell", name="None", exact=True)).to_have_count(0)
    expect(rows.nth(2)).to_contain_text("1,234")
    expect(page.get_by_role("img", name="35 rows in the last day, at most 7 in an hour")).to_be_visible()
    visit.ui.picture("streams", height=720)
    page.get_by_role("searchbox").fill("orders lands")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="orders → lake.lands").click()
    expect(page.get_by_text("orders[0] 0 to 160. Hole: 100 to 120. Lost: 150 to 160.")).to_be_visible()
    expect(page.get_by_text("column added: city string")).to_be_visible()
    visit.ui.picture("one-stream", height=900)
    page.get_by_role("link", name="manual__2026-11-01T12:05:00+00:00").click()
    page.wait_for_url("**/dags/lands/runs/manual__2026-11-01T12*/tasks/land")


def test_what_to_do_stands_beside_the_cause(visit: Visit) -> None:
    visit.list()
    visit.page.get_by_role("link", name="slow → lake.behind").click()
    expect(visit.page.get_by_text("Not fresh: nothing was landed for 2 h.")).to_be_visible()
    expect(visit.page.get_by_text("Is the DAG paused? Unpause it.")).to_be_visible()
    link = visit.page.get_by_role("link", name="More in the runbook").first
    assert link.get_attribute("href") == "/behind/a/path/lakestream/docs/runbook.html#nothing-lands"


@pytest.mark.parametrize("visit", [("vera", "light")], indirect=True, ids=["viewer"])
def test_a_viewer_sees_no_secret_dag_and_is_told_what_is_not_allowed(visit: Visit) -> None:
    for refused in ("POST .*/dags/lands/dagRuns", "POST .*/backfills/dry_run", "GET .*/presses/(audit|replay)"):
        visit.ui.faults.expect(f"403 {refused}")
    visit.list()
    expect(visit.page.get_by_role("link", name="secret")).to_have_count(0)
    visit.page.get_by_role("button", name="Run lands now").click()
    expect(visit.page.get_by_role("status")).to_contain_text("You may not start runs of lands")
    visit.page.get_by_role("link", name="orders → lake.lands").click()
    visit.page.get_by_role("button", name="Which runs?").click()
    expect(visit.page.get_by_text("You may not backfill lands: your role has no permission")).to_be_visible()
    # By the page itself, before anything is asked of the bundled DAGs.
    for button, what in (("Audit", "audit"), ("Replay rejects", "replay rejected records of")):
        with visit.page.expect_response("**/presses/*") as answer:
            visit.page.get_by_role("button", name=button, exact=True).click()
        assert answer.value.status == 403
        said = f"You may not {what} lake.lands: your role has no permission to start runs of lands."
        expect(visit.page.get_by_text(said)).to_be_visible()


@pytest.mark.parametrize("visit", [("uma", "dark")], indirect=True, ids=["user"])
def test_a_user_starts_a_run_by_keyboard_alone(visit: Visit) -> None:
    visit.list()
    page = visit.page
    page.get_by_role("searchbox").focus()
    page.keyboard.type("lake.lands")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(2)
    button = page.get_by_role("button", name="Run lands now")
    for _ in range(40):
        page.keyboard.press("Tab")
        if button.evaluate("(one) => one === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("A run of lands is started: manual__")
    colors = "() => { const s = getComputedStyle(document.querySelector('.ls')); return s.color; }"
    dark = page.evaluate(colors)
    visit.look("streams-dark")
    page.evaluate("() => document.documentElement.classList.replace('dark', 'light')")
    assert page.evaluate(colors) != dark


@pytest.mark.parametrize("visit", [("uma", "light")], indirect=True, ids=["user"])
def test_a_run_of_a_dag_with_params_has_their_form(visit: Visit) -> None:
    visit.list()
    page = visit.page
    # A run into another table is a stream of its own, which a run is told again.
    for row, table in (("forms → lake.by_form", "lake.by_form"), ("forms → lake.elsewhere", "lake.elsewhere")):
        page.get_by_role("row").filter(has=page.get_by_role("link", name=row)).get_by_role("button").click()
        # A field can be found before its form is shown, and Escape would come too early then.
        expect(page.get_by_role("dialog")).to_be_visible()
        expect(page.get_by_label("Table")).to_have_value(table)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    button = page.get_by_role("row").filter(has=page.get_by_role("link", name="forms → lake.by_form"))
    button.get_by_role("button").click()
    form = page.get_by_role("dialog", name="Run by_form")
    expect(form.get_by_text("Where it lands.")).to_be_visible()
    visit.look("run-form")
    form.get_by_label("Table").fill("lake.third")
    form.get_by_label("Record limit").fill("5")
    with page.expect_response("**/api/v2/dags/by_form/dagRuns") as answer:
        form.get_by_role("button", name="Start the run").click()
    assert (answer.value.status, answer.value.json()["conf"]) == (200, {"table": "lake.third", "limit": 5})
    expect(page.get_by_role("status")).to_contain_text("A run of by_form is started: manual__")
    # What Airflow refuses is said, and the form stays.
    visit.ui.faults.expect("400 POST .*/by_form/dagRuns")
    button.get_by_role("button").click()
    form.get_by_label("Record limit").fill("0")
    form.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert").filter(has_text="by_form was not started")).to_be_visible()


def test_times_are_those_of_airflows_own_pages(visit: Visit) -> None:
    page = visit.page
    page.evaluate("() => localStorage.setItem('timezone', JSON.stringify('America/New_York'))")
    visit.list()
    page.get_by_role("link", name="orders → lake.lands").click()
    at = "2026-11-01 07:05:00"
    expect(page.get_by_role("cell", name=at, exact=True)).to_be_visible()
    visit.ui.open("/dags/lands/runs/manual__2026-11-01T12:05:00+00:00/details")
    expect(page.get_by_text(at).first).to_be_visible()


def test_a_telephone_shows_all_of_it(visit: Visit) -> None:
    visit.list()
    visit.page.set_viewport_size({"width": 390, "height": 844})
    expect(visit.page.get_by_role("row").nth(2)).to_be_visible()
    assert visit.is_within()
    visit.look("streams-narrow")
    visit.page.get_by_role("link", name="orders → lake.lands").click()
    expect(visit.page.get_by_role("heading", name="Landings")).to_be_visible()
    assert visit.is_within()


def test_a_dag_has_the_streams_of_its_own_in_a_tab(visit: Visit) -> None:
    visit.ui.open("/dags/lands/plugin/streams")
    expect(visit.page.get_by_role("link", name="orders → lake.lands")).to_be_visible()
    expect(visit.page.get_by_role("table").get_by_role("row")).to_have_count(2)
    visit.page.get_by_role("link", name="orders → lake.lands").click()
    expect(visit.page.get_by_role("heading", name="Landings")).to_be_visible()


@pytest.mark.parametrize("visit", [("uma", "light")], indirect=True, ids=["user"])
def test_a_backfill_says_first_which_runs_it_starts(visit: Visit) -> None:
    visit.list()
    page = visit.page
    page.get_by_role("link", name="slow → lake.behind").click()
    expect(page.get_by_text("No backfill: Each run lands what is not landed yet")).to_be_visible()
    page.get_by_role("link", name="All streams").click()
    page.get_by_role("link", name="orders → lake.lands").click()
    page.get_by_label("From (UTC)").fill("2026-10-31T01:00")
    page.get_by_label("Until (UTC)").fill("2026-10-31T03:00")
    page.get_by_role("button", name="Which runs?").click()
    expect(page.get_by_text("3 runs would be started, with these logical dates:")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="2026-10-31 02:00:00 UTC")).to_be_visible()
    visit.look("backfill")
    page.get_by_role("button", name="Start 3 runs").click()
    expect(page.get_by_text("A backfill of lands is started: 3 runs.")).to_be_visible()
    # They are there now, and it is on.
    page.get_by_role("button", name="Which runs?").click()
    expect(page.get_by_text("No run would be started")).to_be_visible()


@pytest.mark.parametrize("visit", [("uma", "light")], indirect=True, ids=["user"])
def test_a_user_audits_a_table_and_replays_its_rejects(visit: Visit) -> None:
    visit.list()
    page = visit.page
    page.get_by_role("link", name="orders → lake.lands").click()
    page.get_by_label("Audit reads every row").check()
    told = {}
    for button, dag, done in (("Audit", "lake_audit", "An audit"), ("Replay rejects", "lake_replay", "A replay of")):
        with page.expect_response(f"**/api/v2/dags/{dag}/dagRuns") as answer:
            page.get_by_role("button", name=button, exact=True).click()
        said = page.get_by_role("status").filter(has_text=done)
        expect(said).to_contain_text(f"It waits: {dag} is paused.")
        expect(said.get_by_role("link", name=dag, exact=True)).to_be_visible()
        assert answer.value.status == 200
        told[dag] = answer.value.json()
    asked = {"table": "lake.lands", "consumer_group": "orders_group", "full": True}
    assert {name: told["lake_audit"]["conf"][name] for name in asked} == asked
    assert told["lake_replay"]["conf"]["schema"] == "id bigint, n120 bigint"
    assert {run["state"] for run in told.values()} == {"queued"}
    page.get_by_role("link", name=told["lake_replay"]["dag_run_id"]).click()
    page.wait_for_url("**/dags/lake_replay/runs/manual__*")
    # The one DAG may be started by this user, and the stream's may not.
    visit.ui.faults.expect("403 GET .*/no_outlet/land/presses/audit")
    visit.list()
    page.get_by_role("link", name="plain → lake.no_outlet").click()
    with page.expect_response("**/presses/audit*") as refused:
        page.get_by_role("button", name="Audit", exact=True).click()
    assert refused.value.status == 403
    expect(page.get_by_text("your role has no permission to start runs of no_outlet.")).to_be_visible()


@pytest.mark.parametrize("visit", [("vera", "light")], indirect=True, ids=["viewer"])
def test_what_a_table_holds_is_shown_and_whatever_records_hold_is_text(visit: Visit) -> None:
    visit.list()
    page = visit.page
    page.get_by_role("link", name="slow → lake.behind").click()
    expect(page.get_by_text(re.compile("As seen by supervises .* ago"))).to_be_visible()
    expect(page.get_by_text("12 rejected records count. Of the newest 7 these are the reasons:")).to_be_visible()
    sample = page.get_by_role("listitem").filter(has_text="slow[0] offset 7")
    expect(sample).to_contain_text('<img src="https://elsewhere.invalid/x" onerror="globalThis.taken=1"><script>')
    assert sample.locator("img, script").count() == 0
    assert page.evaluate("() => globalThis.taken") is None
    expect(page.get_by_text("1 more reasons: lakestream rejects show lists all.")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    assert visit.is_within()
    visit.look("contents-narrow")
    page.get_by_role("link", name="All streams").click()
    page.get_by_role("link", name="orders → lake.lands").click()
    expect(page.get_by_text("nothing has looked into this table yet")).to_be_visible()


@pytest.fixture
def unreadable(environment: dict[str, str]) -> Iterator[None]:
    """Give a stream with reports that can't be read; the other tests count the streams, so it goes afterwards."""
    run_python(environment, "-c", "from tests.support.page_answers import make_unreadable; make_unreadable()")
    yield
    for dag in ("unreadable", "watches"):
        run_python(environment, "-m", "airflow", "dags", "delete", "--yes", dag)


@pytest.mark.usefixtures("unreadable")
def test_a_report_that_could_not_be_read_has_no_figures(visit: Visit) -> None:
    visit.list()
    page = visit.page
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="odd → lake.unreadable"))
    expect(row).to_contain_text("could not be read")
    # No 0 of the landing: nobody knows. The open ones are the table's.
    expect(row.locator('[data-label="Rejected then"]')).to_have_text("12 open")
    visit.look("unreadable-list")
    page.get_by_role("link", name="odd → lake.unreadable").click()
    problem = "rejected is 'many', not a number of 64 bits"
    expect(page.get_by_role("cell", name=f"could not be read: {problem}")).to_be_visible()
    expect(page.get_by_text("No landing has reported offsets that can be read.")).to_be_visible()
    expect(page.locator(".ls").get_by_role("img")).to_have_count(0)
    contents = r"The report of watches .* ago could not be read: files is 'three', not a mapping\."
    expect(page.get_by_text(re.compile(contents))).to_be_visible()
    visit.look("unreadable")
