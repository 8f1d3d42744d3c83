"""A query of a real Spark whose checkpoint lies on S3, killed and started anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseState
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.spark.checkpoint import read_checkpoint
from dev.services.s3 import S3
from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import SparkRun, checkpoint_on_s3

pytestmark = pytest.mark.integration

EACH = 40


place = checkpoint_on_s3


@pytest.fixture
def filled(topic_of: TopicOf) -> str:
    return topic_of(events(0, 0, EACH), events(1, 0, EACH))


def test_a_query_killed_with_its_checkpoint_on_s3_goes_on_from_there(
    s3: S3, place: str, lake: Lake, filled: str, produce: Producing
) -> None:
    run = SparkRun(lake, filled, settings={"checkpoint_location": place, "max_offsets_per_trigger": 10})
    catalog = run.config().catalog
    run.settings["catalog"] = {**catalog, "properties": catalog["properties"] | s3.properties()}
    with run.start(trigger="1 seconds") as driver:
        poll_until(lambda: read_progress(place, s3.properties()).batches >= 2, "two batches", 300)
        os.killpg(driver.pid, signal.SIGKILL)
    killed = read_lease(place, s3.properties())
    assert killed is not None
    assert (killed.generation, killed.state()) == (1, LeaseState.VANISHED)
    checkpoint = read_checkpoint(place, s3.properties())
    assert checkpoint is not None
    assert checkpoint.planned

    with run.start() as driver:
        assert driver.wait(300) == 0, (lake.folder / "driver.log").read_text()[-3000:]

    assert_landed_once(lake, filled, {0: EACH, 1: EACH})
    after = read_checkpoint(place, s3.properties())
    assert after is not None
    # It went on in the same query, and did not begin anew.
    assert after.query_id == checkpoint.query_id
    assert after.committed[-1] >= checkpoint.planned[-1]
    assert_no_secret(s3, lake.folder / "driver.log", *_all(s3, place))


def _all(s3: S3, place: str) -> list[Path]:
    """Return all files below the bucket: to this server an object is a file in its own format."""
    return [
        path
        for path in Path(s3.folder, "data", place.removeprefix("s3a://").split("/")[0]).rglob("*")
        if path.is_file()
    ]


def assert_no_secret(s3: S3, *files: Path) -> None:
    for file in files:
        content = file.read_bytes()
        assert s3.secret_key.encode() not in content, file
        assert s3.access_key.encode() not in content, file
