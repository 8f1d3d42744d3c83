"""lake_audit and lake_replay, as the buttons of the page start them: by `dag.test()` on a real broker and catalog."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.airflow_home import DAGS, AirflowHome, Connections, Run
from tests.support.broker import TopicOf
from tests.support.lake import GROUP, TABLE, Lake

NAMES = {"table": TABLE, "consumer_group": GROUP}
# With unknown_fields="fail" 1, 3 and 4 are bad; with "ignore" only 3 is.
VALUES = ['{"n": 0}', '{"n": 1, "x": 1}', '{"n": 2}', "broken", '{"n": 4, "y": 1}']


@pytest.fixture
def landed(lake: Lake, topic_of: TopicOf, connections: Connections) -> str:
    name = topic_of(VALUES)
    lake.land(name, **NAMES, schema="n bigint", unknown_fields="fail")
    return name


def start(airflow: AirflowHome, dag_id: str, **conf: Any) -> Run:
    return airflow.run(airflow.dag(DAGS / f"{dag_id}.py"), {**NAMES, **conf})


def test_rejected_records_are_landed_again_and_the_audit_finds_each_once(
    airflow: AirflowHome, lake: Lake, landed: str
) -> None:
    run = start(airflow, "lake_replay", reason="x", limit=1)
    assert (run.state, run.errors) == ("success", [])
    assert run.task("replay").xcom["rows"] == 1

    replay = start(airflow, "lake_replay", reason=None, limit=None).task("replay")
    told = {key: value for key, value in replay.xcom.items() if key != "snapshot_ids"}
    assert told == {**NAMES, "replayed": 2, "rows": 1, "still_rejected": 1, "skipped": 0, "filtered": 0}
    assert replay.xcom["snapshot_ids"] == [str(lake.table().metadata.current_snapshot_id)]
    assert sorted(lake.table().scan().to_arrow()["n"].to_pylist()) == [0, 1, 2, 4]

    audit = start(airflow, "lake_audit", full=True)
    assert (audit.state, audit.task("audit").xcom["verdict"]) == ("success", "clean")
    lake.table().delete("n == 2")
    damaged = start(airflow, "lake_audit", full=False)
    assert (damaged.state, damaged.task("audit").xcom["verdict"]) == ("failed", "damage")
    assert TABLE in str(damaged.errors[0])


def test_the_form_says_how_records_are_decoded(airflow: AirflowHome, landed: str) -> None:
    run = start(airflow, "lake_replay", format="xml")
    assert run.state == "failed"
    assert "format: 'xml' is not one of 'json'" in str(run.errors[0])
    record = '{"type": "record", "name": "%s", "fields": [{"name": "n", "type": "long"}]}'
    run = start(airflow, "lake_replay", format="avro", writer_schemas=[record % "A", record % "B"])
    assert (run.state, run.errors) == ("success", [])
    # None of them is Avro; the list of schemas was read as one.
    assert run.task("replay").xcom["still_rejected"] == 3
