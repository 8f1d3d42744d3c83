"""lake_audit and lake_replay, as the buttons of the page start them: by `dag.test()` on a real broker and catalog."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk.exceptions import ParamValidationError

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
    counts = {key: value for key, value in replay.xcom.items() if key != "snapshot_ids"}
    assert counts == {
        **NAMES,
        "replayed": 2,
        "rows": 1,
        "still_rejected": 1,
        "skipped": 0,
        "filtered": 0,
        "empty_columns": [],
    }
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


@pytest.mark.parametrize("dag_id", ["lake_audit", "lake_replay"])
@pytest.mark.parametrize(
    ("variables", "fits", "others"),
    [
        ({}, ["lake.t", "lake.a.b"], ["other.t", "lake", "xlake.t", "/srv/lake/t"]),
        ({"tables": ["lake.t", "s3://lake/t+1"]}, ["lake.t", "s3://lake/t+1"], ["lake.u", "lakext", "s3://lake/tt1"]),
        ({"tables": ["raw.click*", "lake.t"]}, ["raw.clicks", "lake.t"], ["raw.orders", "lake.tt"]),
        ({"streams": [{"table": "shop.a", "consumer_group": "g"}]}, ["shop.a"], ["lake.t"]),
    ],
    ids=["none", "names", "patterns", "streams"],
)
def test_form_and_task_take_the_tables_of_the_deployment(
    airflow: AirflowHome,
    dag_id: str,
    variables: dict[str, Any],
    fits: list[str],
    others: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_LAKESTREAM_{name.upper()}", json.dumps(value))
    dag = airflow.dag(DAGS / f"{dag_id}.py")
    [task] = dag.tasks
    # What Airflow calls before the task's own work.
    hook: Any = task._pre_execute_hook
    assert hook is not None
    for table in fits:
        dag.params.get_param("table").resolve(table)
        hook({"params": {"table": table}})
    for table in others:
        with pytest.raises(ParamValidationError):
            dag.params.get_param("table").resolve(table)
        with pytest.raises(
            AirflowFailException, match=f"^table: '{re.escape(table)}' is not one of .*lakestream_tables"
        ):
            hook({"params": {"table": table}})


def test_a_list_of_tables_that_is_none_is_named_by_the_parse(
    airflow: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_LAKESTREAM_TABLES", '"lake.t"')
    with pytest.raises(AssertionError, match="lakestream_tables: the Airflow variable is not a list of tables"):
        airflow.dag(DAGS / "lake_audit.py")
