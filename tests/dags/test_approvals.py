"""lake_repairs: nothing is written before a person has agreed, and then what was shown, and no more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.iceberg.ledger_store import read_ledger
from tests.support.airflow_home import DAGS, AirflowHome, Connections, Run
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, events

TABLE, GROUP = "lake.clickstream", "clickstream_to_lake"
DAY = 1_763_596_800_000
MINUTE = 60_000


class Repairs:
    """A run of the DAG, task by task, in this process."""

    def __init__(self, airflow: AirflowHome, conf: dict[str, Any]) -> None:
        self.dag = airflow.dag(DAGS / "lake_repairs.py")
        self.airflow = airflow
        self.run: Run = airflow.start(self.dag, conf)

    def go(self, task_id: str) -> str:
        """Run a task until it ends or waits; return its state."""
        self.airflow.run_task(self.dag, self.run, task_id)
        return self.state(task_id)

    def state(self, task_id: str) -> str:
        return self.run.task(task_id).state

    def answer(self, option: str) -> str:
        """Answer as a person does in the UI, and let the task go on; return what was asked."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.trigger import handle_event_submit
        from airflow.triggers.base import TriggerEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            key = {"dag_id": self.run.dag_id, "run_id": self.run.run_id, "task_id": "approve"}
            ti = session.scalars(select(TaskInstance).filter_by(**key)).one()
            asked = session.scalars(select(HITLDetail).filter_by(ti_id=ti.id)).one()
            asked.responded_by = {"id": "1", "name": "ada"}
            asked.responded_at = datetime.now(UTC)
            asked.chosen_options, asked.params_input = [option], {}
            handle_event_submit(TriggerEvent(asked.as_resume_event_payload()), task_instance=ti, session=session)
            text = str(asked.body)
        self.go("approve")
        return text


@pytest.fixture
def topic_name(topic: Topics, produce: Producing) -> str:
    name = topic(1, retention_ms=-1)
    produce(name, 0, events(0, 0, 10), timestamps=[DAY + n * MINUTE for n in range(10)])
    return name


def conf(topic: str, change: str, **more: str) -> dict[str, Any]:
    return {"topic": topic, "change": change, **more}


def test_lost_records_are_written_down_once_a_person_agrees(
    airflow: AirflowHome, connections: Connections, lake: Lake, topic_name: str, admin: AdminClient
) -> None:
    lake.land(topic_name, table=TABLE, consumer_group=GROUP, max_records=3)

    def lose(until: int) -> None:
        gone = TopicPartition(topic_name, 0, until)
        admin.delete_records([gone])[gone].result(30)

    def held() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        [entry] = read_ledger(lake.table(TABLE), GROUP).topics.values()
        return list(entry.landed.intervals(topic_name, 0)), list(entry.lost.intervals(topic_name, 0))

    lose(5)
    rejected = Repairs(airflow, conf(topic_name, "loss"))
    assert rejected.go("look") == "success"
    assert rejected.go("approve") == "awaiting_input"
    assert "[3,5)" in rejected.answer("Reject")
    assert (rejected.state("approve"), rejected.state("write")) == ("success", "skipped")
    assert held() == ([(0, 3)], [])

    agreed = Repairs(airflow, conf(topic_name, "loss"))
    agreed.go("look")
    agreed.go("approve")
    # What is lost while the person thinks was not shown, and is not written.
    lose(7)
    agreed.answer("Approve")
    assert agreed.go("write") == "success"
    assert held() == ([(0, 3)], [(3, 5)])


def test_the_rows_of_a_time_are_replaced_once_a_person_agrees(
    airflow: AirflowHome, connections: Connections, lake: Lake, topic_name: str
) -> None:
    lake.land(topic_name, table=TABLE, consumer_group=GROUP)
    times = {"interval_start": "2025-11-20T00:02:00Z", "interval_end": "2025-11-20T00:06:00Z"}
    run = Repairs(airflow, conf(topic_name, "replace", **times))
    run.go("look")
    run.go("approve")
    snapshots = len(lake.table(TABLE).snapshots())
    assert "holds 4 offsets" in run.answer("Approve")
    assert len(lake.table(TABLE).snapshots()) == snapshots
    assert run.go("write") == "success"
    table = lake.table(TABLE)
    assert len(table.snapshots()) == snapshots + 1
    assert sorted(table.scan().to_arrow()["_kafka_offset"].to_pylist()) == list(range(10))
    assert run.run.task("write").xcom["ranges"] == [[0, 2, 6]]


def test_where_nothing_is_lost_nobody_is_asked(
    airflow: AirflowHome, connections: Connections, lake: Lake, topic_name: str
) -> None:
    lake.land(topic_name, table=TABLE, consumer_group=GROUP)
    run = Repairs(airflow, conf(topic_name, "loss"))
    assert run.go("look") == "skipped"
