"""DAG files with a supervised stream, and what a test sees of its driver."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lakestream.driver.detached import kill_process
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseRecord
from airflow_lakestream.driver.progress import DriverProgress, read_progress
from tests.support import spark_stand_in
from tests.support.airflow_home import DAGS, AirflowHome, Run, TaskProcess
from tests.support.broker import poll_until

# A machine that does many things at once starts a task in minutes.
PATIENCE = 400.0
# Takes what the real one takes, and runs the program that stands behind all options, without a JVM.
_STAND_IN = f"""#!/bin/sh
printf '%s\\n' "$@" > arguments.txt
while [ "$1" != "{spark_stand_in.__file__}" ]; do shift; done
shift
cd "{DAGS.parent}" && exec "{sys.executable}" -m tests.support.spark_stand_in "$@"
"""
_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG({dag_id!r}, schedule=None) as dag:
    SparkStreamingSubmitOperator(task_id="stream", **{arguments!r})
"""


@dataclass
class Streams:
    """Makes DAGs of streams in one folder; `location` is the checkpoint's."""

    airflow: AirflowHome
    folder: Path
    location: Path = field(init=False)

    def __post_init__(self) -> None:
        self.location = self.folder / "checkpoint"

    def write(self, dag_id: str, app_config: dict[str, Any] | None = None, **arguments: Any) -> tuple[Run, Path]:
        """Write a DAG of one stream, and start a run of it."""
        file = self.airflow.write(dag_id, self._text(dag_id, app_config, arguments))
        return self.airflow.start(self.airflow.dag(file)), file

    def run(self, dag_id: str, app_config: dict[str, Any] | None = None, *, more: str = "", **arguments: Any) -> Run:
        """Run such a DAG in this process, all tries of its task included; `more` is code at the end of its file."""
        file = self.airflow.write(dag_id, self._text(dag_id, app_config, arguments) + more)
        return self.airflow.run(self.airflow.dag(file))

    def _text(self, dag_id: str, app_config: dict[str, Any] | None, arguments: dict[str, Any]) -> str:
        given: dict[str, Any] = {
            "application": spark_stand_in.__file__,
            "app_config": app_config or {},
            "checkpoint_location": str(self.location),
            "driver_folder": str(self.folder / "drivers"),
            "poll_interval": "0.2s",
            "restart_backoff": "100ms",
            "retry_delay": timedelta(0),
            "kafka_conn_id": None,
            "iceberg_conn_id": None,
        }
        return _DAG.format(dag_id=dag_id, arguments=given | arguments)

    def await_end(self, process: TaskProcess) -> None:
        """Wait until the try is over; where it hangs, the error is its log."""
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(process.log) from None

    @property
    def lease(self) -> LeaseRecord | None:
        """The newest lease."""
        return read_lease(str(self.location))

    @property
    def progress(self) -> DriverProgress:
        """What the drivers have reported."""
        return read_progress(str(self.location))

    @property
    def drivers(self) -> list[int]:
        """The pids of the drivers that run."""
        return spark_stand_in.drivers(self.location)

    def folders(self) -> list[Path]:
        """Return the folders of the drivers, in order."""
        return sorted((self.folder / "drivers").glob("*/*"))

    def await_batches(self, count: int) -> None:
        """Wait until so many batches are done."""
        poll_until(lambda: self.progress.batches >= count, f"{count} batches", PATIENCE)

    def await_no_driver(self) -> None:
        """Wait until no driver runs."""
        poll_until(lambda: not self.drivers, "the drivers to end", PATIENCE)


def xcom(run: Run, key: str, task_id: str = "stream") -> Any:
    """Return what a task has pushed by now; None where it has not."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, key=key)
    with create_session() as session:
        found = session.scalars(wanted).one_or_none()
    if found is None or not isinstance(found.value, str):
        return None if found is None else found.value
    try:
        return json.loads(found.value)
    except ValueError:
        # A text is stored as it is.
        return found.value


def mark(run: Run, state: str, task_id: str = "stream") -> None:
    """Do to a running task what the buttons of the UI do."""
    from airflow.models.taskinstance import TaskInstance, clear_task_instances
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = select(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id)
        if state == "cleared":
            clear_task_instances(list(session.scalars(wanted)), session)
        else:
            session.scalars(wanted).one().state = state


def kill_the_worker(process: TaskProcess) -> None:
    """Kill the supervisor and the task below it, as a node that is lost does."""
    below = psutil.Process(process.supervisor.pid).children()
    for pid in [process.supervisor.pid, *(child.pid for child in below)]:
        os.kill(pid, signal.SIGKILL)
    process.wait(PATIENCE)


@pytest.fixture
def streams(airflow: AirflowHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    """Give streams whose `spark-submit` starts the stand-in; their drivers end with the test."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(_STAND_IN)
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    given = Streams(airflow, tmp_path)
    yield given
    runs = (tmp_path / "drivers" / "runs").glob("*.drivers/[0-9]*")
    for path in (*Path(f"{given.location}.drivers").glob("[0-9]*"), *runs):
        if not path.suffix:
            kill_process(spark_stand_in.ProcessIdentity.parse(json.loads(path.read_text())))
