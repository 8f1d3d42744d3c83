"""A real Flink, a topic, a table, and drivers of a landing between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.driver.detached import kill_process
from airflow_lakestream.driver.lease import read_lease, request_stop
from airflow_lakestream.driver.lease_record import LeaseRecord, LeaseState
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import JobNote, JobSeries
from airflow_lakestream.flink.landing_job import LandingJobSeries
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.flink.script.config import ScriptConfig
from dev.service import CHECKOUT
from dev.services.flink import Flink
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import Connections
from tests.support.broker import poll_until
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.table_formats import sqlite_catalog

PATIENCE = 180.0
COLUMNS = "id bigint, name string, score double"


@pytest.fixture
def flink(stack: Stack) -> Flink:
    """Give the Flink of this test session; what another test has killed of it is started again."""
    return stack.up_flink()


@pytest.fixture
def flink_connected(flink: Flink, connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default connections lead to the real parts."""
    told = {"conn_type": "http", "host": flink.gateway.url, "extra": {"jobmanager_url": flink.manager.url}}
    monkeypatch.setenv("AIRFLOW_CONN_FLINK_DEFAULT", json.dumps(told))


def kill(pid: int) -> None:
    """Kill a process of the cluster, and wait until nothing is left of it."""
    os.kill(pid, signal.SIGKILL)
    poll_until(lambda: not psutil.pid_exists(pid), "the process to be gone")


@dataclass
class FlinkLanding:
    """One stream: its drivers, as an operator launches them, and what can be seen of it.

    :param properties: of the lake's catalog; None: it is in the lake's folder.
    :param elsewhere: the checkpoint's location; empty: in the lake's folder.
    :param through: Python's arguments before the driver's program, if another program runs it.
    """

    lake: Lake
    topic: str
    flink: Flink
    config: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] | None = None
    elsewhere: str = ""
    through: Sequence[str] = ()
    _drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def location(self) -> str:
        return self.elsewhere or str(self.lake.folder / "checkpoint")

    @property
    def places(self) -> dict[str, Any]:
        """What every job of Flink's is told."""
        properties = self.properties or sqlite_catalog(self.lake.folder)
        return {
            "catalog": {"name": "iceberg_default", "properties": properties},
            "kafka": self.lake.kafka,
            "gateway": {"url": self.flink.gateway.url},
            "manager": {"url": self.flink.manager.url},
            "checkpoint_location": self.location,
            "checkpoint_interval": 1.0,
        }

    def configured(self, **config: Any) -> FlinkConfig:
        landing = {"topic": self.topic, "table": TABLE, "consumer_group": GROUP, "columns": COLUMNS}
        return FlinkConfig(**(self.places | landing | {"publish_interval": 2.0} | self.config | config))

    @property
    def arguments(self) -> dict[str, Any]:
        """What the stream's operator is given."""
        return {
            "topic": self.topic,
            "table": TABLE,
            "columns": COLUMNS,
            "consumer_group": GROUP,
            "checkpoint_location": self.location,
            "checkpoint_interval": "1s",
            "publish_interval": "2s",
            "driver_folder": str(self.lake.folder / "drivers"),
            "poll_interval": "0.5s",
            "retry_delay": timedelta(0),
        }

    def start(self, **config: Any) -> subprocess.Popen[bytes]:
        """Start a driver; its log is in the folder."""
        file = self.lake.folder / f"app-{len(self._drivers)}.json"
        file.write_text(json.dumps(self.configured(**config).to_dict()))
        with (self.lake.folder / f"driver-{len(self._drivers)}.log").open("wb") as log:
            command = [sys.executable, *self.through, "-m", "airflow_lakestream.flink.program", "--config", str(file)]
            driver = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)
        self._drivers.append(driver)
        return driver

    @property
    def log(self) -> str:
        """What the newest driver has said."""
        return (self.lake.folder / f"driver-{len(self._drivers) - 1}.log").read_text()

    def all_told(self) -> str:
        """Return what driver and cluster say: the newest driver's log, the cluster's, what its API tells of the job."""
        note = self.note
        assert note is not None
        job = f"{self.flink.manager.url}/jobs/{note.job}"
        pages = [job + part for part in ("", "/plan", "/config", "/checkpoints", "/checkpoints/config", "/exceptions")]
        told = [self.log]
        for page in pages:
            with urllib.request.urlopen(page, timeout=30) as answer:
                told.append(answer.read().decode())
        for daemon in (self.flink.manager, self.flink.worker, self.flink.gateway):
            told.append((Path(daemon.folder) / "service.log").read_text(errors="replace"))
        return "\n".join(told)

    @property
    def lease(self) -> LeaseRecord | None:
        return read_lease(self.location, self.properties)

    @property
    def jobs(self) -> LandingJobSeries:
        return LandingJobSeries(self.configured())

    @property
    def note(self) -> JobNote | None:
        return self.jobs.note()

    def await_running(self) -> str:
        """Wait until the job runs, and return its id."""

        def runs() -> bool:
            note = self.note
            return note is not None and self.jobs.manager.state(note.job) is FlinkJobState.RUNNING

        self.until(runs, "a running job")
        note = self.note
        assert note is not None
        return note.job

    def await_landed(self, ends: dict[int, int]) -> None:
        """Wait until the ledger reaches these offsets without a hole."""
        wanted = {p: [(0, end)] for p, end in ends.items() if end}

        def landed() -> bool:
            return bool(self.lake.snapshots()) and self.lake.landed(self.topic) == wanted

        self.until(landed, f"{wanted} to be landed")

    def until(self, done: Any, what: str) -> None:
        """Wait until something is so, or the driver has ended, which is an error."""
        driver = self._drivers[-1]
        try:
            poll_until(lambda: done() or driver.poll() is not None, what, PATIENCE, every=0.2)
        except TimeoutError as e:
            raise AssertionError(f"{e}\n{self.log}") from None
        assert done(), f"the driver ended before {what}\n{self.log}"

    def stop(self) -> None:
        """Ask the driver to end, and wait until it has."""
        driver = self._drivers[-1]
        self.until(lambda: request_stop(self.location, "the test", self.properties), "a lease")
        assert driver.wait(PATIENCE) == 0, self.log

    def await_nothing_left(self, ends: dict[int, int]) -> None:
        """Assert that the ledger reaches these offsets."""
        assert self.lake.landed(self.topic) == {p: [(0, end)] for p, end in ends.items() if end}

    def forget_process(self) -> None:
        """Let the lease of a killed driver be over at once: it would be after its heartbeats are late."""
        lease = self.lease
        assert lease is not None
        poll_until(lambda: lease.state() is not LeaseState.HELD, "the lease to be free", 180)

    def drop_newest(self) -> None:
        """Forget the newest driver, which has ended."""
        self._drivers.pop()

    def kill_driver(self) -> None:
        self._drivers[-1].kill()
        self._drivers[-1].wait()
        self.forget_process()

    def submit_by_hand(self, state: str) -> None:
        """Submit the stream's job from a state that nobody has checked."""
        columns = self.lake.table().schema().column_names
        self.jobs.submit({0: 0, 1: 0}, state, columns)

    def drop_branch(self) -> None:
        self.lake.table().manage_snapshots().remove_branch(self.configured().on_branch).commit()

    def end(self) -> None:
        """Kill what is left of drivers and jobs."""
        for driver in self._drivers:
            if driver.poll() is None:
                driver.kill()
                driver.wait()
        # One that an operator has launched.
        if self.lease is not None and self.lease.outcome is None:
            kill_process(self.lease.process)
        if (note := self.note) is not None and not note.savepoint:
            self.jobs.cancel(note.job)

    def assert_once(self, rows: dict[int, list[int]]) -> None:
        """Assert that the table has these offsets, once each, and that the full audit finds nothing."""
        assert self.lake.offsets() == [(p, o) for p in sorted(rows) for o in rows[p]]
        audit = self.lake.audit(topic=self.topic)
        assert audit.verdict is AuditVerdict.CLEAN, str(audit)


class FlinkScriptRun(FlinkLanding):
    """One script, and its drivers."""

    script = ""

    def configured(self, **config: Any) -> ScriptConfig:  # type: ignore[override]  # another driver by the same hands
        return ScriptConfig(**(self.places | {"name": "dag.task", "script": self.script} | self.config | config))

    @property
    def jobs(self) -> JobSeries:  # type: ignore[override]  # a script has no landing's jobs
        return JobSeries(self.configured())

    def rows(self, table: str = TABLE) -> list[dict[str, Any]]:
        catalog = self.lake.catalog()
        return catalog.load_table(table).scan().to_arrow().to_pylist() if catalog.table_exists(table) else []


@pytest.fixture
def landing(tmp_path: Path, kafka: Kafka, topic: Any, flink: Flink) -> Iterator[FlinkLanding]:
    """Give a stream of a new topic with two partitions, and the session's Flink."""
    made = FlinkLanding(Lake(tmp_path, kafka.client_config()), topic(2), flink)
    try:
        yield made
    finally:
        made.end()
