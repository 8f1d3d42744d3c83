"""Sensors in DAGs of their own, in each way of waiting: in this process, in task processes, in a real triggerer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.watching.asking import Verdict, look_now, look_safely, make_check
from tests.support.airflow_home import CHECKOUT, AirflowHome, Run
from tests.support.broker import poll_until
from tests.support.lake import Lake

# A machine that does many things at once starts a triggerer in minutes.
PATIENCE = 300.0
TASK = "sense"
_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.sensors.{module} import {kind}

with DAG({dag_id!r}, schedule=None) as dag:
    {kind}(task_id="sense", **{arguments!r})
"""
_LAG = ("checkpoint_lag", "CheckpointLagSensor")


@dataclass
class Triggerer:
    """Airflow's own triggerer; the triggers of one that was killed go to the next within seconds."""

    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start one, with the connections that the environment has now."""
        quick = {
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
        }
        command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
        with self.log.open("ab") as log:
            environment = {**os.environ, **quick}
            self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        """Kill it as the kernel does; the process that ran its triggers sees that and ends."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@dataclass
class Sensing:
    """Makes DAGs of one sensor, and moves their task along as scheduler and executor do."""

    airflow: AirflowHome
    triggerer: Triggerer

    def write(self, dag_id: str, sensor: tuple[str, str] = _LAG, **arguments: Any) -> tuple[Run, Path]:
        """Write a DAG, and start a run of it."""
        file = self._file(dag_id, sensor, arguments)
        return self.airflow.start(self.airflow.dag(file)), file

    def run(self, dag_id: str, sensor: tuple[str, str] = _LAG, **arguments: Any) -> Run:
        """Run such a DAG in this process; a trigger runs in line."""
        return self.airflow.run(self.airflow.dag(self._file(dag_id, sensor, arguments)))

    def schedule(self, run: Run) -> str:
        """Do what the scheduler does with a new run; return the task's state after it."""
        from airflow.models.dagbag import DBDagBag
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            found = session.scalars(select(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id)).one()
            found.dag = DBDagBag().get_latest_version_of_dag(run.dag_id, session=session)
            due = found.task_instance_scheduling_decisions(session=session).schedulable_tis
            found.schedule_tis(due, session=session)
        return self.state(run)

    def work(self, run: Run, file: Path) -> str:
        """Let a worker run the task as far as it goes; return what it logged."""
        with self.airflow.process(run, file, TASK) as process:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise AssertionError(process.log) from None
            return process.log

    def state(self, run: Run) -> str:
        """The task's state."""
        return run.task(TASK).state

    def await_state(self, run: Run, *states: str) -> str:
        """Wait until the task is in one of these states."""
        poll_until(lambda: self.state(run) in states, f"{run.dag_id} to be {states}", PATIENCE, every=0.2)
        return self.state(run)

    def defer(self, run: Run, file: Path) -> None:
        """Defer a task from a worker, or from the scheduler where it starts in a trigger."""
        if self.schedule(run) != "deferred":
            self.work(run, file)
            assert self.state(run) == "deferred"

    def through_triggerer(self, run: Run, file: Path, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Defer a task, and end it in a worker."""
        self.defer(run, file)
        meanwhile()
        self.await_state(run, "scheduled")
        return self.work(run, file)

    def _file(self, dag_id: str, sensor: tuple[str, str], arguments: dict[str, Any]) -> Path:
        module, kind = sensor
        given = {"poke_interval": 0.5, "timeout": 200, **arguments}
        return self.airflow.write(dag_id, _DAG.format(dag_id=dag_id, module=module, kind=kind, arguments=given))


@contextmanager
def triggerer_of(folder: Path) -> Iterator[Triggerer]:
    """Give a triggerer, not started yet; it is gone afterwards."""
    given = Triggerer(folder / "triggerer.log")
    try:
        yield given
    finally:
        given.kill()


@pytest.fixture
def sensing(airflow: AirflowHome, tmp_path: Path) -> Iterator[Sensing]:
    """Give sensors, and a triggerer that a test may start."""
    with triggerer_of(tmp_path) as triggerer:
        yield Sensing(airflow, triggerer)


def commit(admin: AdminClient, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets as a consumer of the group would."""
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p, offset) for p, offset in offsets.items()])

    def committed() -> bool:
        # The first one of a broker finds no coordinator yet, and each partition says so for itself.
        answer = admin.alter_consumer_group_offsets([request])[group].result(30)
        return all(one.error is None for one in answer.topic_partitions)

    poll_until(committed, f"the offsets of {group}")


@dataclass
class LakePlaces:
    """`watching.asking.Places` of one lake and its broker, whatever the connections are called."""

    lake: Lake

    def kafka(self, conn_id: str) -> tuple[dict[str, Any], str]:
        return self.lake.kafka, f"Kafka connection {conn_id!r}"

    def catalog(self, conn_id: str) -> Any:
        return self.lake.catalog()

    def store_properties(self, conn_id: str | None) -> dict[str, str] | None:
        return None

    def delta(self, conn_id: str | None) -> Any:
        from airflow_lakestream.delta.storage import DeltaStorage

        return DeltaStorage()


def look(lake: Lake, check: str, **arguments: Any) -> Verdict:
    """Look once, in this thread, as a sensor does."""
    return look_now(look_safely(make_check(check, arguments), LakePlaces(lake), 0.0))
