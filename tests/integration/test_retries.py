"""LakestreamRetryPolicy on a real Airflow: how often tasks of all kinds are tried."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.sdk import DAG, task
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_lakestream.exceptions import BadRecord, LakestreamError, Transient
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.retries import LakestreamRetryPolicy
from tests.support.airflow_home import AirflowHome, Connections, Run

pytestmark = [pytest.mark.integration, pytest.mark.airflow]


class Away(LakestreamError, Transient):
    pass


def reasons(run: Run, task_id: str) -> list[str | None]:
    """Return why the tries were followed by another one."""
    key = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id}
    with create_session() as session:
        found = [
            list(session.scalars(select(kind.retry_reason).filter_by(**key)))
            for kind in (TaskInstanceHistory, TaskInstance)
        ]
    return [reason for one in found for reason in one if reason]


def test_tasks_are_tried_again_where_that_can_help(airflow: AirflowHome, connections: Connections, topic_of) -> None:
    policy = LakestreamRetryPolicy(delay=0, max_delay=0)
    bad = topic_of(["not JSON"])
    # `dag.test()` runs tasks in this process, and counts their tries now so, now so.
    tries: Counter[str] = Counter()
    with DAG(
        "retried_by_policy", default_args={"retries": 2, "retry_delay": timedelta(0), "retry_policy": policy}
    ) as dag:

        @task
        def terminal() -> None:
            tries["terminal"] += 1
            raise BadRecord("orders", 3, 17, "no JSON")

        @task
        def transient() -> None:
            tries["transient"] += 1
            raise Away("the broker is away")

        @task
        def foreign() -> None:
            tries["foreign"] += 1
            raise ValueError("neither")

        terminal()
        transient()
        foreign()
        KafkaExtractOperator(task_id="land", topic=bad, table="lake.t", schema="n bigint", on_error="fail")
    run = airflow.run(dag)
    assert tries == {"terminal": 1, "transient": 3, "foreign": 3}
    assert run.task("land").tries == 1
    assert {run.task(name).state for name in (*tries, "land")} == {"failed"}
    assert set(reasons(run, "transient")) == {"Away: the broker is away"}
