"""Flink's processes, the driver, the task's and the triggerer killed at random: each record is on main once.

`make soak-engines ONLY=flink KILLS=50 SEED=0`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dev.services.flink import Flink
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf
from tests.support.catalogs import CatalogLake
from tests.support.engine_kills.by_flink import OPERATOR, FlinkUnderKills
from tests.support.engine_kills.play import Play
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.flink import FlinkLanding, kill
from tests.support.lake import TABLE, Lake, events
from tests.support.sensing import triggerer_of
from tests.support.table_formats import Place

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.own_parts]

# The short play of this seed kills the TaskManager between a checkpoint and its commit.
SEED = int(os.environ.get("LAKESTREAM_SEED", "62"))
KILLS = int(os.environ.get("LAKESTREAM_KILLS", "1"))
_FIRST = 5


@pytest.fixture
def flink(own_stack: Stack) -> Flink:
    """Give a Flink that the tests of this file may kill; what was killed is started again."""
    return own_stack.up_flink()


@pytest.fixture
def landing(tmp_path: Path, kafka: Kafka, topic: Any, flink: Flink, stack: Stack) -> Iterator[FlinkLanding]:
    """Give a stream into a table of a REST catalog, whose token both sides fetch."""
    properties = stack.up_rest_catalog().properties
    lake = CatalogLake(Place(tmp_path, {"catalog": properties}), kafka.client_config())
    catalog = {"catalog": {"name": "iceberg_default", "properties": properties}}
    made = FlinkLanding(lake, topic(2), flink, catalog)
    try:
        yield made
    finally:
        made.end()
        lake.catalog().drop_table(TABLE)


def test_a_job_needs_the_gateway_for_its_start_alone(
    landing: FlinkLanding, produce: Producing, own_stack: Stack
) -> None:
    produce(landing.topic, 0, events(0, 0, 300))
    landing.start()
    landing.await_landed({0: 300})
    kill(landing.flink.gateway.pid)
    produce(landing.topic, 1, events(1, 0, 200))
    landing.await_landed({0: 300, 1: 200})
    landing.stop()
    # Nothing can be submitted meanwhile, and the error says where nobody answers.
    without = landing.start()
    assert without.wait(120) != 0
    assert f"Flink at {landing.flink.gateway.url} does not answer" in landing.log
    landing.flink = own_stack.up_flink()
    produce(landing.topic, 0, events(0, 300, 100))
    landing.start()
    landing.await_landed({0: 400, 1: 200})
    landing.stop()
    landing.assert_once({0: [*range(400)], 1: [*range(200)]})


def test_each_record_is_on_main_once_whatever_is_killed(
    airflow: AirflowHome,
    connections: Connections,
    flink_connected: None,
    own_stack: Stack,
    flink: Flink,
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
        landing = FlinkLanding(Lake(folder, kafka.client_config()), topic, flink)
        try:
            with (
                triggerer_of(folder) as triggerer,
                StreamTask(airflow, triggerer, f"killed_flink_{number}", OPERATOR, folder, landing.arguments) as task,
            ):
                yield FlinkUnderKills(landing, {0: _FIRST, 1: _FIRST}, task, own_stack)
        finally:
            landing.end()

    Play("flink", SEED, KILLS, produce, begin).run()
