"""FlinkSqlOperator in a real Airflow, over a real Flink: two tasks have one job, and a stop is an orderly one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.lease_record import DriverOutcome
from tests.support.airflow_home import AirflowHome, TaskProcess
from tests.support.broker import Producing, poll_until
from tests.support.flink import FlinkLanding
from tests.support.lake import events
from tests.support.spark_stream import PATIENCE, kill_the_worker, mark

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator

with DAG({dag_id!r}, schedule=None) as dag:
    FlinkSqlOperator(task_id="stream", **{arguments!r})
"""


def test_two_tasks_have_one_job_and_a_mark_stops_it_with_a_savepoint(
    landing: FlinkLanding,
    produce: Producing,
    airflow: AirflowHome,
    flink_connected: None,
) -> None:
    produce(landing.topic, 0, events(0, 0, 400))
    file = airflow.write("flink_stream", _DAG.format(dag_id="flink_stream", arguments=landing.arguments))
    dag = airflow.dag(file)
    run, other = airflow.start(dag), airflow.start(dag)
    with airflow.process(run, file, "stream") as process:
        await_(process, lambda: landing.lake.snapshots() and landing.lake.landed(landing.topic) == {0: [(0, 400)]})
        note = landing.note
        assert note is not None
        # A task of another run finds the driver, and with it the job.
        with airflow.process(other, file, "stream") as second:
            await_(second, lambda: "Found the driver" in second.log)
            kill_the_worker(second)
        assert landing.note == note
        produce(landing.topic, 1, events(1, 0, 100))
        await_(process, lambda: landing.lake.landed(landing.topic) == {0: [(0, 400)], 1: [(0, 100)]})
        mark(run, "failed")
        process.wait(PATIENCE)
    assert "the driver was asked to end" in process.log
    poll_until(lambda: landing.lease is not None and landing.lease.outcome is not None, "the driver to end", PATIENCE)
    assert landing.lease is not None
    assert landing.lease.outcome is DriverOutcome.STOPPED
    assert landing.note is not None
    assert landing.note.savepoint
    landing.assert_once({0: [*range(400)], 1: [*range(100)]})

    # The next run goes on from there, and is reported when somebody asks the stream to end.
    produce(landing.topic, 0, events(0, 400, 50))
    last = airflow.start(dag)
    with airflow.process(last, file, "stream") as process:
        await_(process, lambda: landing.lake.landed(landing.topic) == {0: [(0, 450)], 1: [(0, 100)]})
        assert request_stop(landing.location, "the test")
        process.wait(PATIENCE)
    task = last.task("stream")
    assert task.state == "success", process.log
    assert (task.xcom["read"], task.xcom["rows"], task.xcom["restarts"]) == (50, 50, 0)
    assert task.xcom["ranges"] == [[0, 400, 450]]
    landing.assert_once({0: [*range(450)], 1: [*range(100)]})


def await_(process: TaskProcess, done: Callable[[], object]) -> None:
    """Wait, and show the task's log where it takes too long."""
    try:
        poll_until(lambda: bool(done()), "the task", PATIENCE, every=0.3)
    except TimeoutError as e:
        raise AssertionError(process.log) from e
