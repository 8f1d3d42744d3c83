"""Every command of docs/cli.md does what the page says, in its order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import app, run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import TopicOf
from tests.support.lake_reading import numbers

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = re.compile(r"^ {4,8}\$ lakestream (.*?)(?:\s+# exit code (\d).*)?$", re.MULTILINE)
GOES_ON = re.compile(r" \\\n +")
COMMANDS = {
    "init",
    "preview",
    "doctor",
    "audit",
    "plan",
    "status",
    "maintain",
    "show",
    "history",
    "rename",
    "forget",
    "rebuild",
    "reset",
    "replay",
    "resnapshot",
    "tag",
    "adopt",
    "hand_over",
    "validate",
    "render",
    "run",
    "schema",
}
PIPELINE = """\
metadata: {{name: orders-lake}}
sources: {{orders: {{type: kafka, topic: {topic}}}}}
sinks: {{lake: {{type: iceberg, table: lake.orders}}}}
"""
BY_KEY = """\
metadata: {{name: customers}}
sources: {{customers: {{type: kafka, topic: {topic}}}}}
sinks: {{lake: {{type: iceberg, table: lake.customers, mode: upsert, key: [id]}}}}
orchestration: {{engine: extract}}
"""


@pytest.mark.parametrize("page", ["cli.md", "runbook.md", "migrate.md"])
def test_every_documented_command_exits_as_documented(
    connections: Connections,
    kafka: Kafka,
    topic_of: TopicOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
) -> None:
    # A DAG file is written there.
    monkeypatch.chdir(tmp_path)
    name = topic_of([*numbers(300), "not JSON"])
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.yaml").write_text(PIPELINE.format(topic=name))
    config = ExtractConfig(topic=name, table="lake.orders", consumer_group="orders-lake")
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    customers = topic_of(['{"id": 1, "name": "a"}', '{"id": 1, "name": "b"}'])
    (tmp_path / "pipelines" / "customers.yaml").write_text(BY_KEY.format(topic=customers))
    by_key = {"topic": customers, "table": "lake.customers", "consumer_group": "customers"}
    config = MirrorConfig(**by_key, envelope=None, key=["id"])
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    text = GOES_ON.sub(" ", (DOCS / page).read_text())
    commands = [(shlex.split(line), int(code or 0)) for line, code in COMMAND.findall(text)]
    assert commands
    if page == "cli.md":
        assert {word.replace("-", "_") for line, _ in commands for word in line[:2]} >= COMMANDS
    if page == "migrate.md":
        # Rows that no ledger accounts for, as another tool leaves them.
        assert run(["ledger", "reset", "--table", "lake.orders", "--group", "orders-lake", "--yes"]) == 0

    for line, code in commands:
        if "--rows" in line:
            connections.catalog.load_table("lake.orders").delete("_kafka_offset >= 100 and _kafka_offset < 250")
        if "--repair" in line:
            connections.catalog.load_table("lake.orders").delete("_kafka_offset in (7, 8)")
        # The topic's own name is of this test: other tests have a topic `orders`, too.
        arguments = [re.sub(r"^orders(?=$|\[)", name, word) for word in line]
        assert run(arguments) == code, (arguments, capsys.readouterr())
    assert connections.catalog.load_table("lake.orders").scan("_kafka_offset in (7, 8)").count() == 2


def test_the_page_names_every_command() -> None:
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    names = {command.callback.__name__ for group in groups for command in group.registered_commands}
    assert names == COMMANDS
