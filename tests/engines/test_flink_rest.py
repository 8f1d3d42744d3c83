"""A landing by Flink in a REST catalog, whose token both sides fetch, and the SQL Gateway killed in its midst."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.services.flink import Flink
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing
from tests.support.catalogs import CatalogLake
from tests.support.flink import FlinkLanding, kill
from tests.support.lake import TABLE, events
from tests.support.table_formats import Place

pytestmark = pytest.mark.integration


@pytest.fixture
def landing(tmp_path: Path, kafka: Kafka, topic: Any, flink: Flink, stack: Stack) -> Iterator[FlinkLanding]:
    properties = stack.up_rest_catalog().properties
    lake = CatalogLake(Place(tmp_path, {"catalog": properties}), kafka.client_config())
    catalog = {"catalog": {"name": "iceberg_default", "properties": properties}}
    made = FlinkLanding(lake, topic(2), flink, catalog)
    try:
        yield made
    finally:
        made.end()
        lake.catalog().drop_table(TABLE)


def test_a_job_needs_the_gateway_for_its_start_alone(landing: FlinkLanding, produce: Producing, stack: Stack) -> None:
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
    landing.flink = stack.up_flink()
    produce(landing.topic, 0, events(0, 300, 100))
    landing.start()
    landing.await_landed({0: 400, 1: 200})
    landing.stop()
    landing.assert_once({0: [*range(400)], 1: [*range(200)]})
