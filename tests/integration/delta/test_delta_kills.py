"""kafka_to_delta in a process of its own, killed at random on a flowing topic."""

from __future__ import annotations

import pytest

from airflow_lakestream.spark.app_config import AppConfig
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP, live_files, versions
from tests.support.flowing import flowing, kill_at_random
from tests.support.lake import assert_landed_once
from tests.support.spark import SETTINGS, start_app

pytestmark = pytest.mark.integration


def test_a_driver_that_is_killed_at_random_over_a_flowing_topic_lands_each_record_once(
    lake: DeltaLake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=2)
    given = {
        "app": "kafka_to_delta",
        "kafka": lake.kafka,
        "checkpoint_location": str(lake.folder / "checkpoint"),
        "landing": {
            "topic": name,
            "table": lake.place,
            "consumer_group": GROUP,
            "schema": "id bigint, name string, score double",
        },
        "spark": SETTINGS | {"spark.local.dir": str(lake.folder)},
    }
    log = lake.folder / "driver.log"
    endless = AppConfig.parse({**given, "trigger": "200 milliseconds", "max_offsets_per_trigger": 2000})
    with flowing(produce, name) as counts:
        kill_at_random(lambda: start_app(endless, lake.folder), lambda: len(versions(lake.place)), log)
    assert start_app(AppConfig.parse(given), lake.folder).wait(300) == 0, log.read_text()[-3000:]
    assert_landed_once(lake, name, counts)
    assert all((lake.folder / "events" / path).is_file() for path in live_files(lake.place))
