"""A query of a real Spark whose checkpoint and table lie in HDFS, killed and started anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseState
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.spark.checkpoint import read_checkpoint
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import TopicOf, poll_until
from tests.support.lake import assert_landed_once, events
from tests.support.spark import SparkRun
from tests.support.stores import StoreLake, place_of_its_own

pytestmark = pytest.mark.integration

EACH = 10


def test_a_query_killed_with_its_checkpoint_in_hdfs_goes_on_from_there(
    stack: Stack, kafka: Kafka, tmp_path: Path, topic_of: TopicOf
) -> None:
    store = place_of_its_own("HDFS", stack)
    lake, place = StoreLake(store, tmp_path, kafka.client_config()), store.checkpoint
    lake.catalog()
    name = topic_of(events(0, 0, EACH), events(1, 0, EACH))
    run = SparkRun(lake, name, settings={"checkpoint_location": place, "max_offsets_per_trigger": 10})
    catalog = run.config().catalog
    there = {**store.properties, "warehouse": f"{store.location}/warehouse"}
    run.settings["catalog"] = {**catalog, "properties": catalog["properties"] | there}
    with run.start(trigger="1 seconds") as driver:
        poll_until(lambda: read_progress(place).batches >= 1, "a batch", 300)
        os.killpg(driver.pid, signal.SIGKILL)
    killed = read_lease(place)
    assert killed is not None
    assert (killed.generation, killed.state()) == (1, LeaseState.VANISHED)
    checkpoint = read_checkpoint(place)
    assert checkpoint is not None
    assert checkpoint.planned

    with run.start() as driver:
        assert driver.wait(300) == 0, (lake.folder / "driver.log").read_text()[-3000:]

    assert_landed_once(lake, name, {0: EACH, 1: EACH})
    lake.assert_whole(leftovers_of_a_kill=True)
    after = read_checkpoint(place)
    assert after is not None
    # It went on in the same query, and did not begin anew.
    assert after.query_id == checkpoint.query_id
    assert after.committed[-1] >= checkpoint.planned[-1]
