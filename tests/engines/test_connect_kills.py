"""Processes of Connect, of the task, of the triggerer killed at chosen and random times: each record lands once.

`make soak-engines ONLY=connect KILLS=50 SEED=0`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.connect.publishing import EventType
from airflow_lakestream.driver.supervisor import DriverState, SupervisorAction
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.connecting import PATIENCE, Sinks, one_look, sink_config
from tests.support.engine_kills.by_connect import OPERATOR, ConnectUnderKills
from tests.support.engine_kills.play import Play
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.lake import GROUP, Lake, events
from tests.support.sensing import triggerer_of

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.own_parts]

# The short play of this seed kills the task in a publication. Another test kills the worker before its commit.
SEED = int(os.environ.get("LAKESTREAM_SEED", "65"))
KILLS = int(os.environ.get("LAKESTREAM_KILLS", "1"))
_FIRST = 5


@pytest.fixture(scope="module")
def connect(own_stack: Stack, kafka: Kafka) -> Connect:
    """Give a worker of Kafka Connect that the tests of this file may kill."""
    return own_stack.up_connect(kafka.bootstrap)


@pytest.fixture
def sinks(lake: Lake, own_stack: Stack, connect: Connect) -> Iterator[Sinks]:
    made = Sinks(lake, own_stack, connect)
    yield made
    made.end()


def test_a_worker_killed_between_its_first_data_and_its_first_commit_loses_nothing(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    driving = sinks.driving(topic, **{"iceberg_control_commit_timeout-ms": "15000"})
    driving.begin()
    sinks.await_running()
    # The task of the other partition has no record, and does not answer the first round: it stays open for a while.
    produce(topic, 0, events(0, 5, 400))

    def kinds() -> list[int]:
        return [one.kind for one in sinks.events(topic)]

    poll_until(lambda: EventType.DATA_COMPLETE in kinds(), "the first data", PATIENCE)
    sinks.kill_the_worker()
    assert EventType.COMMIT_TO_TABLE not in kinds()
    # Nothing answers: the state is unknown, and nothing is created again.
    look = one_look(driving)
    assert (look.sight.driver, look.decision.action) == (DriverState.UNKNOWN, SupervisorAction.WAIT)
    sinks.start_the_worker_again()
    made = sinks.driving(topic, run_id="another", **{"iceberg_control_commit_timeout-ms": "15000"})
    made.begin()
    sinks.follow_until(made, lambda _: len(lake.offsets()) >= 410)
    assert lake.offsets() == [*((0, n) for n in range(405)), *((1, n) for n in range(5))]
    assert lake.landed(topic) == {0: [(0, 405)], 1: [(0, 5)]}
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_each_record_is_on_main_once_whatever_is_killed(
    airflow: AirflowHome,
    connections: Connections,
    connected: None,
    own_stack: Stack,
    connect: Connect,
    kafka: Kafka,
    topic_of: TopicOf,
    produce: Producing,
    tmp_path: Path,
) -> None:
    @contextmanager
    def begin(number: int) -> Iterator[ConnectUnderKills]:
        folder = tmp_path / f"from-{number}"
        folder.mkdir()
        connections.lake_in(folder)
        topic = topic_of(*(events(p, 0, _FIRST) for p in (0, 1)))
        sinks = Sinks(Lake(folder, kafka.client_config()), own_stack, connect)
        # It makes the table.
        sinks.extract(topic)
        arguments = {
            "connector": sinks.name,
            "config": sink_config(sinks.lake, topic),
            "consumer_group": GROUP,
            "publish_interval": "2s",
            "stall_timeout": "60s",
            "poll_interval": "0.5s",
            "retry_delay": timedelta(0),
        }
        try:
            with (
                triggerer_of(folder) as triggerer,
                StreamTask(airflow, triggerer, f"killed_connect_{number}", OPERATOR, folder, arguments) as task,
            ):
                yield ConnectUnderKills(sinks, topic, {0: _FIRST, 1: _FIRST}, task)
        finally:
            sinks.end()

    Play("connect", SEED, KILLS, produce, begin).run()
