"""kafka_extract_group in real Airflow runs: what its tasks hand each other, and what a failure of one means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.upkeep.compaction import SUMMARY_COMPACTED
from airflow_lakestream.kafka.errors import ReadFailed
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.maintenance import after_landing
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome, Connections, Run
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import assert_files_are_whole, events

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

COUNTS = {0: 70_000, 1: 15_000, 2: 500}
DAG_FILE = """
import pendulum
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

with DAG("{dag_id}", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), default_args={defaults}) as dag:
    land = kafka_extract_group("land", {arguments})
    {more}
"""


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic of which one partition holds most."""
    made = topic(3)
    for partition, count in COUNTS.items():
        produce(made, partition, events(partition, 0, count))
    return made


class Written:
    """Writes and runs DAGs of one group."""

    def __init__(self, airflow: AirflowHome, connections: Connections) -> None:
        self._airflow, self._connections = airflow, connections

    def dag(self, dag_id: str, defaults: dict[str, Any] | None = None, more: str = "pass", **arguments: Any) -> Any:
        text = ", ".join(f"{key}={value!r}" for key, value in ({"table": "lake.events"} | arguments).items())
        # As repr() would have it, so that a duration can be given by name.
        words = repr(defaults or {"retries": 0})
        source = DAG_FILE.format(dag_id=dag_id, defaults=words, arguments=text, more=more)
        return self._airflow.dag(self._airflow.write(dag_id, source))

    def run(self, dag: Any) -> Run:
        return self._airflow.run(dag)

    @property
    def catalog(self) -> Catalog:
        return self._connections.catalog

    def table(self) -> Table:
        return self.catalog.load_table("lake.events")


@pytest.fixture
def written(airflow: AirflowHome, connections: Connections) -> Written:
    return Written(airflow, connections)


def states(run: Run, task_id: str) -> list[str]:
    """Return the states of a task's instances, by map index."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = select(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id)
        return [str(ti.state) for ti in sorted(session.scalars(wanted), key=lambda ti: ti.map_index)]


def handed_over(run: Run, task_id: str = "land.read") -> list[str]:
    """Return what a task's instances put into XCom, as text."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = select(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, key="return_value")
        return [json.dumps(xcom.value) for xcom in session.scalars(wanted)]


def keys(table: Table) -> list[tuple[int, int]]:
    rows = table.scan(selected_fields=("_kafka_partition", "_kafka_offset")).to_arrow()
    return sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


ALL = [(partition, offset) for partition, count in COUNTS.items() for offset in range(count)]


def test_four_tasks_read_and_one_commits(written: Written, name: str) -> None:
    run = written.run(written.dag("group_lands", topic=name, tasks=4))
    assert (run.state, run.errors) == ("success", [])
    assert states(run, "land.read") == ["success"] * 4
    report = run.task("land.commit").xcom
    assert (report["rows"], report["remaining_lag"], report["consumer_group"]) == (85_500, 0, "group_lands")
    table = written.table()
    assert [str(s.snapshot_id) for s in table.snapshots()][1:] == report["snapshot_ids"]
    assert len(report["snapshot_ids"]) == 1
    assert keys(table) == ALL
    assert_files_are_whole(table)
    # Metadata of files, not rows.
    assert all(len(text) < 2000 for text in handed_over(run))
    assert all("/lakestream-" in task.file.file_path for task in table.scan().plan_files())


def test_the_commit_task_ends_with_a_compaction(
    written: Written, topic: Topics, produce: Producing, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_landing, "LEAST_FILES", 5)
    monkeypatch.setattr(after_landing, "FURTHER_FILES", 1)
    name = topic(1)
    arguments: dict[str, Any] = {"table": "lake.events", "consumer_group": "g", "schema": "n bigint"}
    produce(name, 0, [f'{{"n": {n}}}' for n in range(4)])
    for n in range(4):
        config = ExtractConfig(topic=name, max_records=1, **arguments)
        land(build_job(config, kafka.client_config(), written.catalog, run_id=f"run {n}"))
    produce(name, 0, ['{"n": 4}'])
    run = written.run(written.dag("group_compacts", topic=name, maintain="auto", **arguments))
    assert (run.state, run.errors) == ("success", [])
    assert run.task("land.commit").xcom["rows"] == 1
    table = written.table()
    [file] = table.scan().plan_files()
    assert file.file.record_count == 5
    assert keys(table) == [(0, n) for n in range(5)]
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert SUMMARY_COMPACTED in head.summary.additional_properties
    assert_files_are_whole(table)


def test_a_read_task_that_fails_for_good_lands_nothing(written: Written, topic_of: TopicOf) -> None:
    name = topic_of([*events(0, 0, 50_000), '{"id": "no number"}'])
    run = written.run(
        written.dag("group_fails", topic=name, schema="id bigint, name string, score double", on_error="fail")
    )
    assert run.state == "failed"
    assert sorted(states(run, "land.read")) == ["failed", "success"]
    assert states(run, "land.commit") == ["upstream_failed"]
    assert keys(written.table()) == []
    assert "offset 50000" in str(run.errors[0])


class FailsOnce:
    """Breaks the first reading of a range that begins at 0, when some of it was read."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, reader: KafkaReader, plan: Plan, cancelled: Event) -> Iterator[RecordChunk]:
        for chunk in READ(reader, plan, cancelled):
            yield chunk
            if chunk.covers.from_offset == 0 and plan.ranges.width > 20_000 and not self.failed:
                self.failed += 1
                raise ReadFailed(chunk.covers.topic, chunk.covers.partition, 0, "broken by the test")


READ = KafkaReader.read


def test_a_read_task_that_fails_once_is_retried(written: Written, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailsOnce()
    monkeypatch.setattr(KafkaReader, "read", lambda self, plan, cancelled: failing(self, plan, cancelled))
    arguments = {"topic": name, "tasks": 2, "schema": "id bigint, name string, score double"}
    run = written.run(written.dag("group_retries", {"retries": 2, "retry_delay": 0}, **arguments))
    assert (run.state, failing.failed, len(run.errors)) == ("success", 1, 1)
    assert keys(written.table()) == ALL
    assert_files_are_whole(written.table())


def test_default_args_can_not_loosen_the_rules_inside(written: Written, topic_of: TopicOf) -> None:
    name = topic_of(['{"id": 1}', '{"id": "no number"}'])
    defaults = {"retries": 0, "trigger_rule": "all_done"}
    run = written.run(written.dag("group_rules", defaults, topic=name, schema="id bigint", on_error="fail"))
    assert states(run, "land.commit") == ["upstream_failed"]
    assert written.table().scan().to_arrow().num_rows == 0


def test_nothing_to_land_skips_when_told(written: Written, topic: Topics) -> None:
    run = written.run(written.dag("group_empty", topic=topic(1), on_empty="skip"))
    assert run.errors == []
    assert states(run, "land.read") == ["skipped"]
    assert states(run, "land.commit") == ["skipped"]


def test_a_group_that_is_skipped_is_skipped_whole(written: Written, name: str) -> None:
    more = """
    @task
    def never():
        raise AirflowSkipException

    never() >> land
    """
    run = written.run(written.dag("group_skipped", topic=name, more=more.strip()))
    assert [states(run, f"land.{step}") for step in ("plan", "read", "commit")] == [["skipped"]] * 3
    assert written.catalog.list_namespaces() == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        # From a form; what stands in the DAG file is refused where it is parsed.
        ({"idle_timeout": "{{ 5 }}"}, "idle_timeout"),
        ({"mode": "ranges", "ranges": [[0, 0, 5]], "replace": "{{ True }}"}, "replace"),
        ({"topic": "{{ '^orders-.*' }}"}, "topic"),
    ],
    ids=["idle_timeout", "replace", "regex"],
)
def test_what_belongs_to_one_task_fails_the_plan(
    written: Written, topic: Topics, arguments: dict[str, Any], what: str
) -> None:
    run = written.run(written.dag(f"group_refuses_{what}", **{"topic": topic(1)} | arguments))
    assert states(run, "land.plan") == ["failed"]
    [error] = run.errors
    assert str(error).startswith(f"{what}: ")
    assert "KafkaExtractOperator" in str(error)


@pytest.mark.parametrize("tasks", [0, -1, True, "4"])
def test_a_number_of_tasks_that_is_none_is_refused(tasks: Any) -> None:
    from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

    with pytest.raises(InvalidArgument, match="tasks"):
        kafka_extract_group("land", tasks=tasks, topic="t", table="lake.t")


def test_a_schema_of_pyarrow_is_one_that_airflow_can_keep(airflow: AirflowHome, connections: Connections) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    source = DAG_FILE.replace("import pendulum", "import pendulum\nimport pyarrow as pa", 1)
    arguments = 'topic="t", table="lake.t", schema=pa.schema([("id", pa.int64())])'
    texts = []
    for _ in range(2):
        text = source.format(dag_id="group_schema", defaults={}, arguments=arguments, more="pass")
        dag = airflow.dag(airflow.write("group_schema", text))
        texts.append(json.dumps(DagSerialization.to_dict(dag), sort_keys=True, default=str))
    assert texts[0] == texts[1]
    assert " at 0x" not in texts[0]
