"""kafka_to_iceberg as a query, on a real Spark and a real broker: what lands, and that it lands once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

COUNTS = {0: 300, 1: 200}


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    name = topic(partitions=3)
    for partition, count in COUNTS.items():
        produce(name, partition, events(partition, 0, count))
    return name


def test_a_topic_lands_and_then_what_is_new(lake: Lake, name: str, produce: Producing, spark: SparkSession) -> None:
    run = SparkRun(lake, name)
    run.run(spark)
    assert_landed_once(lake, name, COUNTS)
    produce(name, 2, events(2, 0, 10))
    produce(name, 0, events(0, 300, 5))
    run.run(spark)
    assert_landed_once(lake, name, {0: 305, 1: 200, 2: 10})
    assert len(lake.snapshots()) == 2
