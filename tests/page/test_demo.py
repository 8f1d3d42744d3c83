"""A walk through the demo in a real Chromium: what a person sees who runs `make demo` and clicks."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from dev.demo import NEEDING_POSTGRES
from tests.page.conftest import SECONDS, Demo, Ui, log_in
from tests.support.airflow_home import CHECKOUT
from tests.support.broker import poll_until

DAGS = sorted(path.stem for path in (CHECKOUT / "dags").glob("*.py") if path.name not in NEEDING_POSTGRES)
FIELDS = {
    "Topic": "Kafka topic to read.",
    "Table": "Iceberg table to land in, as namespace.table; created when missing.",
    "Record limit": "Stop after so many records, and leave the rest to the next run; empty for all there are.",
    "Bytes per commit": "Commit at the latest after so many bytes",
    "When records are gone": "What to do when Kafka's retention removed records before they were landed.",
}
LANDED = re.compile(r"Landed [\d,]+ rows \(0 rejected, 0 skipped, 0 filtered\) of clickstream in lake\.clickstream")


def test_a_wrong_password_is_refused_and_the_printed_one_opens(demo: Demo, stranger: Ui) -> None:
    stranger.faults.expect("401 POST .*/auth/token")
    log_in(stranger, "admin", "wrong")
    expect(stranger.page.get_by_text("Invalid credentials")).to_be_visible()


def test_the_list_has_all_dags_and_none_is_broken(ui: Ui) -> None:
    page = ui.page
    page.get_by_role("link", name="Dags", exact=True).first.click()
    expect(page.get_by_role("heading", name=f"{len(DAGS)} Dags")).to_be_visible()
    for dag in DAGS:
        expect(page.get_by_role("link", name=dag, exact=True)).to_be_visible()
    expect(page.get_by_text("Import Error")).to_have_count(0)
    ui.picture("dags")


def test_a_dag_says_what_it_is_for(ui: Ui) -> None:
    ui.dag("clickstream_streaming")
    ui.page.get_by_role("button", name="Dag Docs").click()
    expect(ui.page.get_by_role("dialog")).to_contain_text("To stop it for good, first pause the DAG")


def test_a_run_tells_what_it_landed(demo: Demo, ui: Ui) -> None:
    demo.wait_for("demo: 3 runs have landed rows", 400)
    ui.dag("clickstream_to_lake")
    expect(ui.page.get_by_text(re.compile(r"^\d+ Asset Events$"))).to_be_visible()
    ui.picture("runs")
    ui.newest_run()
    ui.task("land")
    expect(ui.page.get_by_text(LANDED)).to_be_visible()
    # Long lines are wrapped.
    ui.page.keyboard.press("w")
    ui.picture("log", height=640)
    # Airflow's page parses SQL by a program that its wheel lacks, and goes on without.
    parser = "/static/wasm/sqlparser_rs_wasm.js"
    ui.faults.expect(f"404 GET .*{parser}")
    with ui.page.expect_response(f"**{parser}"):
        ui.tab("Rendered Templates")
    expect(ui.page.get_by_role("cell", name="lake.clickstream")).to_be_visible()


def test_the_form_explains_each_field_and_starts_a_run(ui: Ui) -> None:
    ui.dag("clickstream_to_lake")
    form = ui.trigger_form()
    for field, meaning in FIELDS.items():
        expect(form.get_by_role("group").filter(has_text=meaning)).to_contain_text(field)
    ui.picture("trigger-form", height=1180)
    form.get_by_role("spinbutton").fill("1000")
    ui.trigger(form)
    ui.task("land")
    expect(ui.page.get_by_text("Landed 1,000 rows")).to_be_visible()
    expect(ui.page.get_by_text("since max_records=1000 are read: the next run goes on")).to_be_visible()


def test_a_wrong_table_is_refused_by_the_form(ui: Ui) -> None:
    ui.dag("clickstream_to_lake")
    form = ui.trigger_form()
    form.get_by_role("textbox").nth(1).fill("clickstream")
    # Airflow checks the values after the form is sent.
    ui.faults.expect("400 POST .*/dags/clickstream_to_lake/dagRuns")
    form.get_by_role("button", name="Trigger", exact=True).click()
    expect(ui.page.get_by_text(re.compile("'clickstream' does not match"))).to_be_visible()


def test_the_table_is_an_asset_whose_events_say_what_came(demo: Demo, ui: Ui) -> None:
    demo.wait_for("demo: 3 runs have landed rows", 400)
    page = ui.page
    page.get_by_role("link", name="Assets", exact=True).click()
    page.get_by_role("link", name="lake.clickstream").first.click()
    expect(page.get_by_role("link", name="clickstream_to_lake").first).to_be_visible()
    expect(page.get_by_text(re.compile(r"^\d+ Asset Events$"))).to_be_visible()
    # The graph has the table, and what writes it and is scheduled by it.
    for name in ("lake.clickstream", "clickstream_to_lake"):
        expect(page.locator(".react-flow__node").filter(has_text=name).first).to_be_visible()
    ui.picture("asset")


def test_the_page_of_streams_names_each_and_leads_on(demo: Demo, ui: Ui) -> None:
    demo.wait_for("demo: 3 runs have landed rows", 400)
    page = ui.page
    page.get_by_role("link", name="Lakestream", exact=True).first.click()
    first = page.get_by_role("row").filter(has=page.get_by_role("link", name="clickstream_to_lake", exact=True))
    expect(first.get_by_role("link", name="clickstream → lake.clickstream")).to_be_visible()
    expect(first.get_by_text("landing", exact=True)).to_be_visible()
    expect(first.get_by_text("start here", exact=True)).to_be_visible()
    expect(page.get_by_text("{{")).to_have_count(0)
    page.get_by_role("paragraph").get_by_role("link", name="supervise_lakestream").click()
    expect(page.get_by_role("heading", name="supervise_lakestream")).to_be_visible()
    page.go_back()
    expect(first.get_by_text("landing", exact=True)).to_be_visible()
    # What runs comes before what is paused.
    expect(page.get_by_role("table").get_by_role("row").nth(1)).to_contain_text("start here")
    ui.picture("demo-streams", height=900)


def test_the_supervision_says_of_each_stream_that_it_is_well(demo: Demo, ui: Ui) -> None:
    demo.wait_for("demo: 3 runs have landed rows", 400)
    ui.dag("supervise_lakestream")
    form = ui.trigger_form()
    expect(form.get_by_text('Such as [{"table": "lake.clickstream"')).to_be_visible()
    # The field takes a list in JSON, and it is empty: the demo's variable names the streams.
    expect(form.get_by_text("[]", exact=True)).to_be_visible()
    ui.trigger(form)
    for task in ("is_fresh", "keeps_up", "loses_nothing", "looks_inside"):
        row = ui.page.get_by_role("row").filter(has_text=task).filter(has_text="lake.clickstream")
        expect(row.get_by_text("Success")).to_be_visible()
    expect(ui.page.get_by_text("Running", exact=True)).to_have_count(0)
    ui.picture("supervision")


def test_a_stream_on_spark_links_to_its_pages_and_is_stopped_for_good(ui: Ui) -> None:
    page = ui.page
    ui.dag("clickstream_streaming")
    switch = page.locator("[data-scope=switch][data-part=control]").first
    switch.click()
    ui.tab("Runs")
    expect(page.get_by_role("table").get_by_text("Running")).to_be_visible()
    ui.newest_run()
    ui.task("stream")
    expect(page.get_by_text("first pause the DAG, then mark this task failed")).to_be_visible()
    # The first batch comes minutes after the driver where the machine is busy.
    expect(page.get_by_text(re.compile(r"batch 0: [\d,]+ records in"))).to_be_visible(timeout=4000 * SECONDS)

    ui.tab("Details")
    expect(page.get_by_role("link", name="Driver log")).to_be_visible()
    # Not of the log, which has paths of this machine.
    ui.picture("stream", height=640)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Spark UI").click()
    opened.value.get_by_role("link", name="Structured Streaming").click()
    expect(opened.value.get_by_text("Active Streaming Queries (1)")).to_be_visible()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Driver log").click()
    expect(opened.value.get_by_text(re.compile("Driver log|stderr|driver")).first).to_be_visible()

    switch.click()
    page.get_by_role("button", name="Mark Task Instance as...").click()
    page.get_by_role("menuitem", name="Failed").click()
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible()
    # The driver's port is gone: its links lead to the task's log.
    log = f"{ui.url}/dags/clickstream_streaming/runs/"

    def lead_to_the_log() -> bool:
        page.reload()
        links = [page.get_by_role("link", name=name) for name in ("Spark UI", "Driver log")]
        return all((link.get_attribute("href") or "").startswith(log) for link in links)

    poll_until(lead_to_the_log, "the links to lead to the log", SECONDS, every=2)


def test_the_documentation_is_in_the_menu(ui: Ui) -> None:
    page = ui.page
    page.get_by_role("button", name="Docs").click()
    with page.context.expect_page() as opened:
        page.get_by_role("menuitem", name="Lakestream").click()
    docs = opened.value
    docs.get_by_role("link", name="Start", exact=True).first.click()
    expect(docs.get_by_text("from a clone of the repository, and read the table in three ways")).to_be_visible()
    docs.get_by_role("textbox", name="Search").fill("replace an interval")
    expect(docs.get_by_role("link", name=re.compile("ackfill|nterval")).first).to_be_visible()
