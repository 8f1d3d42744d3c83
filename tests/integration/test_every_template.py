"""A run of a DAG with a template for each argument of each operator and sensor, as Airflow's database has it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG

from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import TopicOf
from tests.support.every_template import KINDS, accepted, arguments, defaults, made, templated

TABLE = "lake.every_template"
# What the templates of these become lets them do their work; each other one wants something that is not there.
WORKING: dict[str, dict[str, str]] = {
    "KafkaExtractOperator": {"schema": "n bigint", "max_records": "7", "checks": "n"},
    "LakestreamAuditOperator": {},
    "LakestreamReplayOperator": {"schema": "n bigint"},
    "TableContentsOperator": {},
    "CheckpointLagSensor": {"max_lag_records": "5"},
    "IcebergSnapshotFreshnessSensor": {"max_age": "1d"},
    "RetentionRiskSensor": {},
}
# An audit compares them with the log.
RECORD = ("topic", "partition", "offset")


def test_no_template_is_left_in_the_arguments_of_a_run_in_airflows_database(
    airflow: AirflowHome, connections: Connections, topic_of: TopicOf
) -> None:
    names = {"topic": topic_of([b'{"n":%d}' % n for n in range(10)]), "table": TABLE, "consumer_group": "every"}
    given = {name: {**defaults(KINDS[name]), **names, **own} for name, own in WORKING.items()}
    with DAG("every_template", schedule=None, params={"given": given}) as dag:
        tasks = {name: made(kind, templates(name)) for name, kind in KINDS.items()}
        for name in WORKING.keys() - {"KafkaExtractOperator"}:
            tasks["KafkaExtractOperator"] >> tasks[name]
    run = airflow.run(dag, logical_date=datetime(2026, 1, 1, tzinfo=UTC))
    for name in KINDS:
        rendered = run.task(name).rendered
        assert templates(name).keys() <= rendered.keys(), name
        # Of SQL, the input is put in later.
        assert "{{" not in json.dumps(rendered).replace("{{ input }}", ""), name
        assert (TABLE if name in WORKING else "2026-01-01") in json.dumps(rendered), name
    assert {name: run.task(name).state for name in WORKING} == dict.fromkeys(WORKING, "success"), run.errors
    rows = connections.catalog.load_table(TABLE).scan().to_arrow()
    assert rows["n"].to_pylist() == list(range(7))


def templates(name: str) -> dict[str, Any]:
    """Return a template for each argument of a class that takes one."""
    found = accepted(KINDS[name])
    if name not in WORKING:
        return found
    kinds = arguments(KINDS[name])
    texts = {one: f"{{{{ params.given.{name}.{one} }}}}" for one in found}
    items: dict[str, Any] = {
        "checks": {"not_null": texts.get("checks")},
        "metadata_columns": [f"{{{{ '{one}' }}}}" for one in RECORD],
    }
    return {one: items.get(one, templated(one, kinds[one], text)) for one, text in texts.items()}
