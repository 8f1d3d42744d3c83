"""Commands that take what they need from a task of a DAG, and `plan` of tables of both formats, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import run
from tests.support.broker import Producing, TopicOf
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import TABLE, Lake, events

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.usefixtures("connections")]

SQL = "SELECT json_value(value, '$.id')::BIGINT AS id FROM {{ input }}\n"
DAGS = """
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

TOLD = dict(table={table!r}, table_format={table_format!r}, consumer_group="g")
with DAG("alone", schedule=None):
    KafkaExtractOperator(task_id="land", topic={topic!r}, sql="rows.sql", **TOLD)
with DAG("several", schedule=None):
    kafka_extract_group("land", topic={topic!r}, schema="id bigint, at timestamp from epoch_ms", tasks=2, **TOLD)
    KafkaExtractOperator(task_id="rendered", topic="{{{{ params.topic }}}}", **TOLD)
    told = dict(topic={topic!r}, table={table!r}, consumer_group="g", schema="id bigint")
    SparkStreamingSubmitOperator(
        task_id="stream", app="kafka_to_{table_format}", app_config=told, checkpoint_location="/c/{{{{ dag.dag_id }}}}"
    )
"""
Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Give `said(code, *arguments)`: what a command prints that has to end with this code."""

    def go(code: int, *arguments: str) -> str:
        capsys.readouterr()
        ended, printed = run([*arguments]), capsys.readouterr()
        assert ended == code, printed
        return printed.out if code == 0 else printed.err

    return go


@pytest.fixture
def name(topic_of: TopicOf) -> str:
    return topic_of(events(0, 0, 4), events(1, 0, 1))


PIPELINE = """\
metadata: {{name: g}}
sources: {{events: {{type: kafka, topic: {topic}}}}}
sinks: {{lake: {{type: {table_format}, table: {table}, schema: "id bigint, more string", schema_evolution: add}}}}
"""


@EACH_FORMAT
def test_plan_says_what_the_next_run_lands(
    lake: Lake, name: str, produce: Producing, said: Said, tmp_path: Path
) -> None:
    plan = ("plan", "--table", lake.name, "--group", "g", "--topic", name, "--json")
    assert json.loads(said(0, *plan))["ranges"] == [[0, 0, 4], [1, 0, 1]]
    assert lake.has_nothing()
    lake.land(name)
    assert json.loads(said(0, *plan))["records_at_most"] == 0
    produce(name, 0, events(0, 4, 3))
    found = json.loads(said(0, "plan", "--table", lake.name, "--topic", name, "--json"))
    assert (found["table"], found["ranges"], found["commits_at_least"]) == (lake.name, [[0, 4, 7]], 1)
    # Another group would land the same rows once more.
    file = tmp_path / "g.yaml"
    table_format = "iceberg" if lake.name == TABLE else "delta"
    file.write_text(PIPELINE.format(topic=name, table_format=table_format, table=lake.name))
    planned = json.loads(said(0, "pipeline", "plan", str(file), "--json"))
    assert planned["ranges"] == [[0, 4, 7]]
    assert planned["columns"] == [f"{lake.name} is there; it lacks more, and schema_evolution is add"]
    assert "consumer group 'g' has already landed" in said(2, *plan[:3], "--group", "h", *plan[5:])


@EACH_FORMAT
def test_a_task_says_what_commands_need(lake: Lake, name: str, tmp_path: Path, said: Said) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "rows.sql").write_text(SQL)
    table_format = "iceberg" if lake.name == TABLE else "delta"
    (folder / "told.py").write_text(DAGS.format(table=lake.name, table_format=table_format, topic=name))
    lake.land(name, sql=SQL)
    alone = ("--dag", "alone", "--dag-folder", str(folder))
    assert json.loads(said(0, "plan", *alone, "--json"))["records_at_most"] == 0
    shown = json.loads(said(0, "preview", *alone, "--json"))
    assert (shown["columns"], shown["decoding"]["sql"]) == ("id bigint", SQL)
    assert lake.name in said(0, "audit", *alone, "--full")
    # Without the task's statement there is no replay: the table's rows are a statement's.
    assert json.loads(said(0, "rejects", "replay", *alone, "--json"))["table"] == lake.name
    typed = (name, "--json", "--sql")
    assert json.loads(said(0, "preview", *typed, str(folder / "rows.sql")))["decoding"]["sql"] == SQL
    assert "--sql: 'no.sql' can't be read (No such file or directory)" in said(2, "preview", *typed, "no.sql")
    several = ("--dag", "several", "--dag-folder", str(folder / "told.py"))
    of_group = json.loads(said(0, "preview", *several, "--task", "land", "--json"))
    assert of_group["columns"] == "id bigint, at timestamp"
    assert json.loads(said(0, "preview", *several, "--task", "stream", "--json"))["columns"] == "id bigint"
    for wrong, words in (
        (several, "--task: several has the tasks land, rendered, stream. Say which one."),
        ((*several, "--task", "no"), "--task: several has no task 'no' that lands; there is land, rendered, stream."),
        ((*several, "--task", "rendered"), "topic: '{{ params.topic }}' is a template, and only a task"),
        (("--dag", "no", *several[2:]), "--dag: there is no DAG 'no' in "),
        (("--task", "land"), "--task goes with --dag."),
        ((*alone, "--pipeline", str(folder / "told.py")), "--dag: does not go with --pipeline."),
    ):
        assert words in said(2, "plan", *wrong)
    # What is given goes before what the task says.
    assert json.loads(said(0, "plan", *several, "--task", "rendered", "--topic", name, "--json"))["topic"] == name
    (folder / "wrong.py").write_text("from airflow.sdk import DAG\nDAG(\n")
    assert "These files can't be loaded: " in said(2, "plan", "--dag", "no", "--dag-folder", str(folder))
