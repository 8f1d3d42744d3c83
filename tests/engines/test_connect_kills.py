"""Connect's worker, the task's process and the triggerer killed at random: each record is on main once.

`make soak-engines ONLY=connect KILLS=50 SEED=0`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf
from tests.support.connecting import Sinks, sink_config
from tests.support.engine_kills.by_connect import OPERATOR, ConnectUnderKills
from tests.support.engine_kills.play import Play
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.lake import GROUP, Lake, events
from tests.support.sensing import triggerer_of

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

# The short play of this seed kills the worker between its data and the commit, and the task in a publication.
SEED = int(os.environ.get("LAKESTREAM_SEED", "60"))
KILLS = int(os.environ.get("LAKESTREAM_KILLS", "2"))
_FIRST = 5


def test_each_record_is_on_main_once_whatever_is_killed(
    airflow: AirflowHome,
    connections: Connections,
    connected: None,
    stack: Stack,
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
        sinks = Sinks(Lake(folder, kafka.client_config()), stack, stack.up_connect())
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
