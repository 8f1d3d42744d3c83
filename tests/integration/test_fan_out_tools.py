"""What audit and ledger show say of the tables of a fan-out, which are not what their ledgers alone would tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.audit.run import Audit
from airflow_lakestream.cli.app import run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.iceberg.fan_out.books import PartOfFanOut
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import TopicOf

pytestmark = pytest.mark.integration


PIPELINE = """\
metadata: {{name: g}}
sources: {{events: {{type: kafka, topic: {topic}}}}}
sinks: {{lake: {{type: iceberg, table: "lake.{{event}}"}}}}
orchestration: {{engine: extract}}
"""


@pytest.fixture
def home(connections: Connections, kafka: Kafka, topic_of: TopicOf) -> str:
    """Give the home of a fan-out into lake.a and lake.b."""
    name = topic_of(['{"event":"a"}', '{"event":"b"}'])
    config = ExtractConfig(topic=name, table="lake.{event}", consumer_group="g", new_tables="create")
    job = build_job(config, kafka.client_config(), connections.catalog, run_id="r")
    land(job)
    return job.table


def test_an_audit_of_a_target_or_a_home_is_refused_by_name(connections: Connections, home: str) -> None:
    with pytest.raises(PartOfFanOut, match=home):
        Audit(table="lake.a", consumer_group="g").run(connections.catalog)
    with pytest.raises(PartOfFanOut, match=r"lake\.a, lake\.b"):
        Audit(table=home, consumer_group="g").run(connections.catalog)


def test_an_audit_of_the_home_is_one_of_all_its_tables(
    connections: Connections, kafka: Kafka, topic_of: TopicOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [json.dumps({"event": event, "n": n}) for n, event in enumerate(["a", "b", "a", "!", "b", "a"])]
    name = topic_of(values)
    config = ExtractConfig(topic=name, table="lake.{event}", consumer_group="g", new_tables="create")
    job = build_job(config, kafka.client_config(), connections.catalog, run_id="r")
    land(job)

    def audited(code: int, *options: str, table: str = "lake.{event}") -> dict[str, Any]:
        command = ["audit", "--table", table, "--topic", name, "--group", "g", "--json", *options]
        capsys.readouterr()
        ended, printed = run(command), capsys.readouterr()
        assert ended == code, printed
        return dict(json.loads(printed.out or "{}"))

    assert audited(0)["table"] == job.table
    clean = audited(0, "--full")
    assert (clean["findings"], clean["notes"]) == ([], [])
    assert [(one["rows"], one["rejected"], one["readable"]) for one in clean["partitions"]] == [(5, 1, 6)]
    assert "were not compared with the tables" in audited(0, "--full", table=job.table)["notes"][0]
    file = tmp_path / "events.yaml"
    file.write_text(PIPELINE.format(topic=name))
    assert run(["audit", "--full", "--pipeline", str(file)]) == 0, capsys.readouterr()

    a, b = (connections.catalog.load_table(table) for table in ("lake.a", "lake.b"))
    moved = a.scan("_kafka_offset = 2").to_arrow()
    a.delete("_kafka_offset in (0, 2)")
    b.append(moved)
    found = audited(1, "--full")
    assert [one["missing"] for one in found["partitions"]] == [[[0, 1]]]
    assert found["findings"] == [f"misplaced: lake.b has rows of {name}[0] [2,3), whose values name lake.a"]
    [lacking] = [one for one in audited(1)["counts"] if one["expected"] != one["found"]]
    assert lacking["expected"] - lacking["found"] == 1
    assert audited(2, "--repair", table=job.table) == {}


def test_ledger_show_says_what_the_table_is(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("lake.a") == 0
    assert home in capsys.readouterr().err
    assert show(home) == 0
    shown = capsys.readouterr()
    assert "lake.a, lake.b" in shown.err
    assert "[0,2)" in shown.out


def show(table: str) -> int:
    return run(["ledger", "show", "--table", table, "--group", "g"])
