"""`lakestream status` of what a real Spark lands: status_after from the extract's landings, running, and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import pytest
from pyspark.sql import SparkSession

from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delta_lake import DELTA
from tests.support.lake import TABLE, Lake, events
from tests.support.spark import SparkRun
from tests.support.status import DAY, KEPT, LONG, StatusCommand, causes, engines, old

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]


def test_each_landing_says_which_engine_it_is_of(
    lake: Lake, topic_of: TopicOf, spark: SparkSession, status_after: StatusCommand
) -> None:
    name = topic_of(events(0, 0, 20), timestamps=[DAY + 1000 * n for n in range(20)], **KEPT)
    by_spark = SparkRun(lake, name)
    by_spark.run(spark, mode="interval", interval_start=DAY, interval_end=DAY + 5000)
    _, [stream] = status_after(LONG)
    assert (stream["engine"], engines(stream)) == ("spark", ["spark"])
    lake.land(name, mode="ranges", ranges=[[0, 10, 12]])
    _, [stream] = status_after(LONG)
    assert (stream["engine"], engines(stream)) == ("extract", ["extract", "spark"])
    by_spark.run(spark, mode="ranges", ranges=[[0, 10, 12]], replace=True)
    _, [stream] = status_after(LONG)
    assert (stream["engine"], engines(stream)) == ("spark", ["spark", "extract", "spark"])


def test_the_tables_of_a_fan_out_say_it_too(
    lake: Lake, topic_of: TopicOf, spark: SparkSession, status_after: StatusCommand
) -> None:
    name = topic_of([json.dumps({"n": n, "event": "click"}) for n in range(4)])
    SparkRun(lake, name, {"table": "lake.{event}", "schema": "n bigint, event string", "new_tables": "create"}).run(
        spark
    )
    _, [stream] = status_after(LONG, "--table", "lake.click")
    assert (stream["engine"], [one["rows"] for one in stream["landings"]]) == ("spark", [4])


def test_a_query_is_landing_while_it_runs_and_stalled_once_it_was_killed(
    lake: Lake, topic: Topics, produce: Producing, status_after: StatusCommand
) -> None:
    name = topic(2, **KEPT)
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 5), timestamps=old(5))
    query = SparkRun(lake, name, {"schema": "id bigint, name string, score double"})
    driver, look = query.start(trigger="200 milliseconds"), ("--checkpoint", str(query.checkpoint))
    try:
        poll_until(lambda: lake.catalog().table_exists(TABLE), "the first batch", 200)
        code, [stream] = status_after(LONG, *look)
        assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "held")
        assert (stream["lag"], engines(stream), stream["reasons"]) == (0, ["spark"], [])
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
    # Of long ago, so overdue at once.
    produce(name, 0, events(0, 5, 5), timestamps=old(5))
    code, [stream] = status_after(LONG, *look)
    assert (code, stream["state"], stream["driver"], stream["overdue"]) == (1, "behind", "vanished", 5)
    assert causes(stream) == ["vanished Spark query", "late partition"]
    landed_at = max(one["at_ms"] for one in stream["landings"]) / 1000
    poll_until(lambda: time.time() - landed_at > 1.5, "a landing that is older than --max-age", 180)
    code, [stream] = status_after("1s", *look)
    assert (code, stream["state"], stream["engine"]) == (1, "stalled", "spark")
    assert f"{name}[0] [5,10)" in stream["reasons"][0]["text"]


@DELTA
def test_a_query_into_delta_is_found_by_its_checkpoint(
    lake: Lake, old_topic: str, produce: Producing, status_after: StatusCommand, spark: SparkSession
) -> None:
    produce(old_topic, 0, events(0, 0, 5), timestamps=old(5))
    checkpoint = lake.folder / "checkpoint"
    SparkRun(lake, old_topic).run(spark)
    code, [stream] = status_after(LONG, "--checkpoint", str(checkpoint))
    assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "released")
    assert (stream["table"], stream["checkpoint"]) == (lake.name, str(checkpoint))
    # Without the checkpoint the landing says so itself; and then the extract's does.
    shutil.rmtree(checkpoint)
    assert status_after(LONG)[1][0]["engine"] == "spark"
    produce(old_topic, 0, events(0, 5, 5))
    lake.land(old_topic)
    [stream] = status_after(LONG)[1]
    assert (stream["engine"], engines(stream)) == ("extract", ["extract", "spark"])
