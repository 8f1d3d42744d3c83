"""A stream's program of each format, killed at random on a flowing topic."""

from __future__ import annotations

import pytest

from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.flowing import flowing, kill_at_random
from tests.support.lake import Lake, assert_landed_once
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration


@EACH_FORMAT
def test_a_driver_that_is_killed_at_random_over_a_flowing_topic_lands_each_record_once(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=2)
    run, log = SparkRun(lake, name, {"schema": "id bigint, name string, score double"}), lake.folder / "driver.log"
    with flowing(produce, name) as counts:
        kill_at_random(
            lambda: run.start(trigger="200 milliseconds", max_offsets_per_trigger=2000),
            lambda: len(lake.snapshots()),
            log,
        )
    assert run.start().wait(300) == 0, log.read_text()[-3000:]
    assert_landed_once(lake, name, counts)
    lake.assert_whole(leftovers_of_a_kill=True)
