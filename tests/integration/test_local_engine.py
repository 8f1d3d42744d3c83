"""An engine that is no Spark, by the same supervision: submitted, adopted, watched, stopped, restarted, fenced."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lakestream.driver.detached import kill_process
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, LeaseState
from airflow_lakestream.driver.progress import DriverProgress, read_progress
from tests.support.airflow_home import AirflowHome, Connections, Run, TaskProcess
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import events
from tests.support.spark_stream import PATIENCE, kill_the_worker, mark, xcom

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

_DAG = """
import datetime
from airflow.sdk import DAG
from tests.support.local_engine.landing_operator import LocalLandingOperator

with DAG({dag_id!r}, schedule=None) as dag:
    LocalLandingOperator(task_id="stream", **{arguments!r})
"""


@dataclass
class Local:
    """One stream of the local engine, from a topic to `lake.t`."""

    airflow: AirflowHome
    connections: Connections
    folder: Path
    topic: str
    location: str = field(init=False)

    def __post_init__(self) -> None:
        self.location = str(self.folder / "checkpoint")

    def file(self, dag_id: str, landing: dict[str, Any], **arguments: Any) -> Path:
        """Write a DAG of the stream."""
        columns = {"schema": "id bigint not null, name string, score double", "idle_timeout": 0}
        given = {
            "landing": {"topic": self.topic, "table": "lake.t", "max_records": 10, **columns, **landing},
            "checkpoint_location": self.location,
            "driver_folder": str(self.folder / "drivers"),
            "poll_interval": "0.2s",
            "restart_backoff": "100ms",
            "retry_delay": timedelta(0),
            **arguments,
        }
        return self.airflow.write(dag_id, _DAG.format(dag_id=dag_id, arguments=given))

    def run(self, dag_id: str, *, landing: dict[str, Any] | None = None, **arguments: Any) -> Run:
        """Run the stream in this process, all tries included."""
        return self.airflow.run(self.airflow.dag(self.file(dag_id, landing or {}, **arguments)))

    def start(self, dag_id: str, **arguments: Any) -> tuple[Run, Path]:
        """Make a run of a stream that follows its topic, for task processes."""
        file = self.file(dag_id, {}, pause=2.0, retries=3, **arguments)
        return self.airflow.start(self.airflow.dag(file)), file

    @property
    def lease(self) -> LeaseRecord:
        """The newest lease."""
        found = read_lease(self.location)
        assert found is not None
        return found

    @property
    def progress(self) -> DriverProgress:
        """What the drivers have reported."""
        return read_progress(self.location)

    @property
    def folders(self) -> list[Path]:
        """The folders of the drivers that were launched, in order."""
        return sorted((self.folder / "drivers").glob("*/*"))

    @property
    def landed(self) -> list[int]:
        """The offsets that the table has."""
        rows = self.connections.catalog.load_table("lake.t").scan().to_arrow()
        return sorted(rows["_kafka_offset"].to_pylist())

    def await_rows(self, count: int, process: TaskProcess | None = None) -> None:
        """Wait until the drivers have reported so many rows."""
        try:
            poll_until(lambda: self.progress.rows_out >= count, f"{count} rows", PATIENCE)
        except TimeoutError as e:
            raise AssertionError((process.log if process else "", [f.read_text() for f in self._logs])) from e

    @property
    def _logs(self) -> list[Path]:
        return [folder / "driver.log" for folder in self.folders]

    def log_of(self, number: int) -> str:
        """Return what a driver has logged."""
        return self._logs[number].read_text()


@pytest.fixture
def local(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing, tmp_path: Path
) -> Iterator[Local]:
    """Give a stream, whose topic has 30 records; its drivers end with the test."""
    given = Local(airflow, connections, tmp_path, topic(partitions=1))
    produce(given.topic, 0, events(0, 0, 30))
    yield given
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path / "drivers") in part for part in process.info["cmdline"] or ()):
            process.kill()


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_is_there_is_landed_and_reported(local: Local, deferrable: bool) -> None:
    run = local.run(f"local_ends_{deferrable}", deferrable=deferrable)
    assert (run.state, run.errors) == ("success", [])
    told = run.task("stream").xcom
    wanted = {"topic": local.topic, "table": "lake.t", "batches": 3, "read": 30, "rows": 30, "restarts": 0, "lag": 0}
    assert {name: told[name] for name in wanted} == wanted
    assert (told["ranges"], told["tables"]) == ([[0, 0, 30]], {"lake.t": 30})
    assert (local.landed, local.lease.outcome) == (list(range(30)), DriverOutcome.DONE)
    # The log is kept; what may hold secrets is not.
    [folder] = local.folders
    assert [file.name for file in folder.iterdir()] == ["driver.log"]


def test_a_driver_outlives_its_supervisor_is_adopted_and_ends_when_asked_to(local: Local, produce: Producing) -> None:
    run, file = local.start("local_adopted")
    with local.airflow.process(run, file, "stream") as process:
        local.await_rows(30, process)
        poll_until(lambda: (xcom(run, "progress") or {}).get("rows_out") == 30, "the progress", PATIENCE)
        driver = local.lease.process
        kill_the_worker(process)
    # Nobody watches it, and it lands on.
    produce(local.topic, 0, events(0, 30, 10))
    local.await_rows(40)
    with local.airflow.process(run, file, "stream") as process:
        poll_until(lambda: "The driver is running" in process.log, "the retry to watch the driver", PATIENCE)
        assert "Found the driver" in process.log
        mark(run, "failed")
        process.wait(PATIENCE)
    assert "The task is failed by now: the driver was asked to end after its current batch" in process.log
    poll_until(lambda: local.lease.state() is LeaseState.RELEASED, "the driver's end", PATIENCE)
    assert (local.lease.process, local.lease.outcome, len(local.folders)) == (driver, DriverOutcome.STOPPED, 1)
    assert local.landed == list(range(40))


def test_a_driver_that_was_killed_is_replaced_and_each_record_is_landed_once(local: Local, produce: Producing) -> None:
    run, file = local.start("local_killed")
    with local.airflow.process(run, file, "stream") as process:
        local.await_rows(30, process)
        kill_process(local.lease.process)
        produce(local.topic, 0, events(0, 30, 10))
        local.await_rows(40, process)
        assert "Restart 1, since the driver vanished without a word" in process.log
    assert (local.landed, local.lease.generation, len(local.folders)) == (list(range(40)), 2, 2)


def test_a_failure_says_its_reason_and_what_the_driver_logged_last(
    local: Local, produce: Producing, caplog: pytest.LogCaptureFixture
) -> None:
    produce(local.topic, 0, ["no JSON"])
    run = local.run("local_fails", landing={"on_error": "fail"}, retries=3)
    assert run.task("stream").state == "failed"
    assert f"{local.topic}[0] offset 30" in str(run.errors[0])
    assert f"failed: {local.lease.error}" in str(run.errors[0])
    [last] = [line for line in local.log_of(0).splitlines() if line.startswith("ERROR:__main__:")]
    assert f"driver: {last}" in caplog.text
    # It would come again: neither a restart nor a retry helps.
    assert (local.lease.terminal, len(local.folders), local.landed) == (True, 1, list(range(30)))


def test_a_driver_that_was_taken_over_while_it_was_away_lands_nothing_more(local: Local, produce: Producing) -> None:
    run, file = local.start("local_fenced")
    with local.airflow.process(run, file, "stream") as process:
        local.await_rows(30, process)
        zombie = _paused(local)
        kill_the_worker(process)
    _move_to_another_machine(local)
    with local.airflow.process(run, file, "stream") as process:
        poll_until(lambda: local.lease.generation == 2, "another driver", PATIENCE)
        successor = _paused(local)
        produce(local.topic, 0, events(0, 30, 10))
        # There is something to land, and its successor is not at it.
        zombie.send_signal(signal.SIGCONT)
        poll_until(lambda: "LeaseLost" in local.log_of(0), "the first driver's end", PATIENCE)
        assert local.landed == list(range(30))
        successor.send_signal(signal.SIGCONT)
        local.await_rows(40, process)
    assert (local.landed, len(local.folders)) == (list(range(40)), 2)


def _paused(local: Local) -> psutil.Process:
    """Stop the driver that holds the lease when it begins to wait for records."""
    before = local.progress.moves
    poll_until(lambda: local.progress.moves > before and "waiting" in local.progress.doing, "it to wait", PATIENCE)
    os.kill(local.lease.process.pid, signal.SIGSTOP)
    return psutil.Process(local.lease.process.pid)


def _move_to_another_machine(local: Local) -> None:
    """Let the newest lease be one of another machine, which was last heard of long ago."""
    [file] = Path(f"{local.location}.lakestream").glob("lease-*.json")
    content = json.loads(file.read_text())
    content["process"]["machine"] = "another"
    file.write_text(json.dumps(content | {"beat_at": 0.0}))
    assert local.lease.state() is LeaseState.VANISHED
