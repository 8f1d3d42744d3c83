"""What the buttons of a stream start, and what they say where they can start nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.ui.page.presses import (
    ButtonAction,
    ButtonStream,
    NotPossible,
    buttons_of,
    conf_of,
    copy_command,
)
from airflow_lakestream.ui.page.streams import SUPERVISION
from airflow_lakestream.ui.page.tasks import find_streams
from tests.support.airflow_home import DAGS
from tests.unit.page.test_tasks import dag

BUNDLED = {"lake_audit": False, "lake_replay": True}


class Database:
    """Stands for Airflow's: the bundled DAGs with whether they are paused, and what a run has rendered."""

    def __init__(self, rendered: dict[str, Any] | None = None, dags: dict[str, bool] = BUNDLED) -> None:
        self.rendered, self.dags = rendered, dags

    def execute(self, _: Any) -> list[tuple[str, bool]]:
        return list(self.dags.items())

    def scalars(self, _: Any) -> list[dict[str, Any] | None]:
        """Return what the newest run of all was given, which was told another table, and that of the stream's."""
        return [{**(self.rendered or {}), "table": "lake.other", "sql": "of another table"}, self.rendered]


def pressed(table: str | None = "lake.t", **given: Any) -> ButtonStream:
    [task] = find_streams(dag({"task_id": "land", "task_type": "KafkaExtractOperator", **given})).streams
    return ButtonStream(("d", "land"), task, table, "g")


def conf(database: Any, press: ButtonAction = ButtonAction.REPLAY, **given: Any) -> dict[str, Any]:
    told = conf_of(database, press, pressed(**given), set(BUNDLED))
    assert (told["dag_id"], told["paused"]) == (press.dag_id, BUNDLED[press.dag_id])
    return dict(told["conf"])


@pytest.mark.parametrize(
    ("given", "audit", "replay"),
    [
        ({}, None, None),
        ({"table": None}, "No run has reported", "No run has reported"),
        ({"table": "lake.{key}"}, "several tables", "several tables"),
        ({"table": "s3://bucket/t"}, None, "Delta"),
        ({"_is_mapped": True}, "is mapped", "is mapped"),
        ({"task_type": "CommitPiecesOperator"}, None, None),
        ({"task_type": "KafkaMirrorOperator"}, None, "by its form"),
        ({"task_type": "SparkStreamingSubmitOperator", "app": "cdc_to_iceberg"}, None, "by its form"),
        ({"task_type": "SparkStreamingSubmitOperator", "app": "kafka_to_iceberg"}, None, "by its form"),
        ({"task_type": "FlinkSqlOperator"}, None, "by its form"),
    ],
    ids=["a table", "a template", "fan-out", "delta", "mapped", "group", "mirror", "mirror on spark", "spark", "flink"],
)
def test_a_button_says_why_it_can_not(given: dict[str, Any], audit: str | None, replay: str | None) -> None:
    shown = buttons_of(Database(), pressed(**given), set(BUNDLED))  # type: ignore[arg-type]  # stands in for Airflow's session
    for press, expected in ((ButtonAction.AUDIT, audit), (ButtonAction.REPLAY, replay)):
        why = shown[press]["why_not"]
        assert why is None if expected is None else expected in why, why


@pytest.mark.parametrize(("dags", "readable"), [({}, set(BUNDLED)), ({}, set())], ids=["not there", "not readable"])
def test_a_bundled_dag_that_is_not_there_is_named(dags: dict[str, bool], readable: set[str]) -> None:
    database: Any = Database(dags=dags)
    shown = buttons_of(database, pressed(), readable)
    for press in ButtonAction:
        assert shown[press]["why_not"].endswith(f"add it to your DAGs: {copy_command(press.dag_id)}")
        with pytest.raises(NotPossible, match=f"{press.dag_id}.py"):
            conf_of(database, press, pressed(), readable)


@pytest.mark.parametrize("dag_id", [*(press.dag_id for press in ButtonAction), SUPERVISION])
def test_the_printed_command_adds_the_bundled_dag(dag_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "my dags").mkdir()
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    subprocess.run(copy_command(dag_id), shell=True, check=True)
    assert (folder / f"{dag_id}.py").read_bytes() == (DAGS / f"{dag_id}.py").read_bytes()


def test_what_is_written_out_is_as_the_dag_file_has_it() -> None:
    names = {"table": "lake.t", "consumer_group": "g"}
    given = {
        "format": "csv",
        "csv_delimiter": "\t",
        "kafka_conn_id": "k",
        "storage_conn_id": "s",
        "iceberg_conn_id": "i",
    }
    given |= {"writer_schemas": ["{}"], "schema_registry": {"url": "http://r"}, "topic": "t"}
    told = conf(Database({"format": "of a run"}), **given)
    assert told == {
        **names,
        "format": "csv",
        "csv_delimiter": "\t",
        "kafka_conn_id": "k",
        "iceberg_conn_id": "i",
        "writer_schemas": ["{}"],
        "schema_registry": '{"url": "http://r"}',
    }
    told = conf(Database(), ButtonAction.AUDIT, **given)
    assert told == {**names, "kafka_conn_id": "k", "iceberg_conn_id": "i", "storage_conn_id": "s"}


def test_a_template_and_a_file_are_as_a_run_has_rendered_them() -> None:
    given = {"sql": "rows.sql", "format": "{{ params.format }}", "schema": "{{ params.schema }}"}
    rendered = {"sql": "select 1 from {{ input }}", "format": "avro", "schema": "None"}
    told = conf(Database(rendered), **given)
    assert told == {"table": "lake.t", "consumer_group": "g", "sql": rendered["sql"], "format": "avro"}
    one = '{"type": "int"}'
    told = conf(Database({"writer_schemas": json.dumps([one])}), writer_schemas="{{ params.x | tojson }}")
    assert told["writer_schemas"] == [one]
    assert conf(Database(), writer_schemas=one)["writer_schemas"] == [one]
    with pytest.raises(NotPossible, match="sql is a template, and no run has rendered it yet"):
        conf(Database(), sql="select 1 from {{ input }}")


@pytest.mark.parametrize("kept", ["Truncated. You can remove this behaviour", "select '***' from {{ input }}"])
def test_what_airflow_does_not_keep_whole_is_asked_for_by_the_form(kept: str) -> None:
    with pytest.raises(NotPossible, match=r"The argument sql .*: start the DAG by its form"):
        conf(Database({"sql": kept}), sql="select 1 from {{ input }}")


def test_a_schema_that_is_an_object_is_asked_for_by_the_form() -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    with pytest.raises(NotPossible, match="The argument schema is not a text"):
        conf(Database(), schema=str(Schema(NestedField(1, "id", LongType()))))
