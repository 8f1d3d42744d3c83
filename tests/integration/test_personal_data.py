"""docs/maintenance.md, "Delete personal data": rows that were deleted on purpose stay away, and are no damage."""

from __future__ import annotations

import json

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import TopicOf

pytestmark = pytest.mark.integration

PERSON = "c1"


def test_a_person_is_deleted_for_good(
    connections: Connections, kafka: Kafka, topic_of: TopicOf, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic_of([json.dumps({"id": n, "customer": f"c{n % 3}"}) for n in range(30)])
    config = ExtractConfig(topic=name, table="lake.people", schema="id bigint, customer string", consumer_group="g")
    assert land(build_job(config, kafka.client_config(), connections.catalog, run_id="r")).counts.written == 30

    connections.catalog.load_table("lake.people").delete(f"customer = '{PERSON}'")
    audit = ["audit", "--table", "lake.people", "--group", "g", "--full"]
    assert run(audit) == 1
    assert run(["ledger", "forget", "--table", "lake.people", "--group", "g", "--missing"]) == 0
    assert run(audit) == 0, capsys.readouterr()
    assert run([*audit, "--repair"]) == 0
    assert land(build_job(config, kafka.client_config(), connections.catalog, run_id="s")).counts.read == 0
    customers = connections.catalog.load_table("lake.people").scan().to_arrow()["customer"].to_pylist()
    assert len(customers) == 20
    assert PERSON not in customers
