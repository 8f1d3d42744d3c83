"""Iceberg's sink on a real Connect, looked after as a task does it, into a table of a test's lake."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.connect.client import ConnectClient, ConnectUnknown, ConnectWorkers, NoSuchConnector
from airflow_lakestream.connect.configuration import IcebergConnector, complete_config
from airflow_lakestream.connect.connector import ConnectorKind, ConnectorSpec
from airflow_lakestream.connect.driving import ConnectorSupervision
from airflow_lakestream.connect.publishing import BranchPublisher, ControlEvent, parse_event
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.driver.supervisor import DriverLook, SupervisionDecision, SupervisionLimits, SupervisorAction
from airflow_lakestream.kafka.groups import KafkaGroups
from dev.service import ServiceFolder
from dev.services.connect import Connect
from dev.stack import Stack
from tests.support.airflow_home import Connections
from tests.support.broker import poll_until
from tests.support.lake import GROUP, TABLE, Lake

SCHEMA = "id bigint, name string, score double"
# A machine that does many things at once: what takes seconds may take minutes.
PATIENCE = 180.0


def sink_config(lake: Lake, topic: str, **settings: str) -> dict[str, str]:
    """Return what a user writes for a sink, with further settings, whose points are underscores."""
    return {
        "topics": topic,
        "iceberg.tables": TABLE,
        "tasks.max": "2",
        "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "iceberg.catalog.uri": f"jdbc:sqlite:{lake.folder}/catalog.db?busy_timeout=30000",
        "iceberg.catalog.warehouse": f"file://{lake.folder}/warehouse",
        "iceberg.catalog.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        # A killed worker's members are missed after so long.
        "consumer.override.session.timeout.ms": "6000",
        "consumer.override.heartbeat.interval.ms": "2000",
        "iceberg.kafka.session.timeout.ms": "6000",
        "iceberg.kafka.heartbeat.interval.ms": "2000",
        # A task that has had no record yet answers no round: the first ones last so long.
        "iceberg.control.commit.timeout-ms": "4000",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


class Sinks:
    """One sink of a test: its connector, and tasks that look after it."""

    def __init__(self, lake: Lake, stack: Stack, connect: Connect) -> None:
        self.lake = lake
        self.stack = stack
        self.connect = connect
        self.name = f"sink-{uuid.uuid4().hex[:8]}"
        self.client = ConnectClient(ConnectWorkers([connect.url], timeout=10))
        self.groups = KafkaGroups(lake.kafka, "the broker")

    def sink(self, topic: str, interval: float = 2.0, **settings: str) -> IcebergConnector:
        """Return the sink's complete configuration."""
        return complete_config(self.name, sink_config(self.lake, topic, **settings), "iceberg_default", interval)

    def driving(
        self,
        topic: str,
        run_id: str = "",
        limits: Mapping[str, Any] | None = None,
        checks: Mapping[str, Any] | None = None,
        share: float = 1.0,
        **settings: Any,
    ) -> ConnectorSupervision:
        """Return what another task run has for the connector; `share` of its rows are compared."""
        sink = self.sink(topic, **settings)
        bounds = SupervisionLimits(**{"backoff": 0.2, "stall_timeout": 60.0, **(limits or {})})
        spec = ConnectorSpec(
            self.name, ConnectorKind.ICEBERG_SINK, sink.config, bounds, 0.3, 1.0, sink, sink.coordinator_group
        )
        run = run_id or uuid.uuid4().hex
        auditor = auditor_of({"checks": checks})
        publisher = BranchPublisher(
            sink, self.lake.catalog(), self.lake.kafka, "the broker", GROUP, run, auditor, share
        )
        return ConnectorSupervision(spec, self.client, self.groups, publisher, time.sleep)

    def follow_until(
        self, driving: ConnectorSupervision, done: Callable[[DriverLook], bool], patience: float = PATIENCE
    ) -> SupervisionDecision:
        """Look after the connector until something is so, and then stop it as a person does; return how that ended."""
        deadline, stopped = time.monotonic() + patience, False
        seen: list[str] = []

        def tell(look: DriverLook) -> None:
            nonlocal stopped
            seen.append(f"{look.sight.doing} {look.sight.error}")
            if not stopped and done(look):
                self.client.stop(self.name)
                stopped = True
            assert time.monotonic() < deadline, seen[-5:]

        decision = driving.follow(tell)
        while decision.action is SupervisorAction.RESTART:
            # What the operator does.
            print(f"restart {decision.history.restarts + 1}: it {decision.reason}")
            driving.pause(decision.at)
            driving.begin(decision.history.restarted(time.time()))
            decision = driving.follow(tell)
        assert decision.action is SupervisorAction.FINISH, decision.reason
        return decision

    def run(self, topic: str, rows: int, **driving: Any) -> ConnectorSupervision:
        """Let a task run until main has so many rows, and its connector is stopped."""
        made = self.driving(topic, **driving)
        made.begin()
        self.follow_until(made, lambda _: len(self.lake.offsets()) >= rows)
        return made

    def extract(self, topic: str) -> LandingReport:
        """Land what is there by the extract."""
        return self.lake.land(topic, schema=SCHEMA)

    def events(self, topic: str) -> list[ControlEvent]:
        """Return the events in the sink's control topic."""
        records = self.groups.records(self.sink(topic).control_topic)
        return [parse_event(m.partition() or 0, m.offset() or 0, m.value() or b"") for m in records]

    def tasks_made(self) -> int:
        """Return how often the worker has made a task of the connector, by its log."""
        log = (Path(self.connect.folder) / "service.log").read_text(errors="replace")
        return sum(f"Creating task {self.name}-" in line for line in log.splitlines())

    @property
    def worker_lives(self) -> bool:
        """Whether the worker's process is there."""
        return ServiceFolder("connect", Path(self.connect.folder)).running

    def kill_the_worker(self) -> None:
        """Kill the worker, which has no time to say anything."""
        worker = ServiceFolder("connect", Path(self.connect.folder)).process("service")
        assert worker is not None, "it is up"
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait_gone(30)

    def start_the_worker_again(self) -> None:
        """Start the worker that was killed."""
        self.connect = self.stack.restart_connect(self.connect)

    def await_running(self) -> None:
        """Wait until all tasks run."""

        def run() -> bool:
            try:
                return self.client.status(self.name).all_run
            except (NoSuchConnector, ConnectUnknown):
                # Not made yet, or just made, and without a status; or a worker that has much to do.
                return False

        poll_until(run, f"the tasks of {self.name}", PATIENCE, every=0.2)

    def end(self) -> None:
        """Take the connector away."""
        if self.client.config(self.name) is not None:
            self.connect.release(self.name)


def one_look(driving: ConnectorSupervision) -> DriverLook:
    """Return what a task sees first of a connector that it looks after."""
    looks: list[DriverLook] = []

    class Enough(Exception):
        pass

    def tell(look: DriverLook) -> None:
        looks.append(look)
        raise Enough

    with pytest.raises(Enough):
        driving.follow(tell)
    return looks[0]


@pytest.fixture
def sinks(lake: Lake, stack: Stack, connect: Connect) -> Iterator[Sinks]:
    """Give a sink of this test; its connector goes with it."""
    made = Sinks(lake, stack, connect)
    yield made
    made.end()


@pytest.fixture
def connected(connect: Connect, connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default connections lead to the real parts."""
    host, _, port = connect.url.removeprefix("http://").partition(":")
    told = {"conn_type": "http", "host": host, "port": int(port)}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_CONNECT_DEFAULT", json.dumps(told))
