"""What audit and ledger show say of the tables of a fan-out, which are not what their ledgers alone would tell."""

from __future__ import annotations

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


def test_ledger_show_says_what_the_table_is(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("lake.a") == 0
    assert home in capsys.readouterr().err
    assert show(home) == 0
    shown = capsys.readouterr()
    assert "lake.a, lake.b" in shown.err
    assert "[0,2)" in shown.out


def show(table: str) -> int:
    return run(["ledger", "show", "--table", table, "--group", "g"])
