"""Flink's processes, the driver, the task's and the triggerer killed at random: each record is on main once.

`make soak-engines ONLY=flink KILLS=50 SEED=0`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf
from tests.support.engine_kills.by_flink import OPERATOR, FlinkUnderKills
from tests.support.engine_kills.play import Play
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.flink import FlinkLanding
from tests.support.lake import Lake, events
from tests.support.sensing import triggerer_of

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

# The short play of this seed kills the JobManager, and the TaskManager between a checkpoint and its commit.
SEED = int(os.environ.get("LAKESTREAM_SEED", "60"))
KILLS = int(os.environ.get("LAKESTREAM_KILLS", "2"))
_FIRST = 5


def test_each_record_is_on_main_once_whatever_is_killed(
    airflow: AirflowHome,
    connections: Connections,
    flink_connected: None,
    stack: Stack,
    kafka: Kafka,
    topic_of: TopicOf,
    produce: Producing,
    tmp_path: Path,
) -> None:
    @contextmanager
    def begin(number: int) -> Iterator[FlinkUnderKills]:
        folder = tmp_path / f"from-{number}"
        folder.mkdir()
        connections.lake_in(folder)
        topic = topic_of(*(events(p, 0, _FIRST) for p in (0, 1)))
        landing = FlinkLanding(Lake(folder, kafka.client_config()), topic, stack.up_flink())
        try:
            with (
                triggerer_of(folder) as triggerer,
                StreamTask(airflow, triggerer, f"killed_flink_{number}", OPERATOR, folder, landing.arguments) as task,
            ):
                yield FlinkUnderKills(landing, {0: _FIRST, 1: _FIRST}, task, stack)
        finally:
            landing.end()

    Play("flink", SEED, KILLS, produce, begin).run()
