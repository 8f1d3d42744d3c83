"""`lakestream status` of what a real Spark lands: told from the extract's landings, running, and killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cli.app import run
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import TABLE, Lake, events
from tests.support.spark import SparkRun

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]

START = 1_700_000_000_000
KEPT = {"retention_ms": -1}

Told = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Give `told(*arguments)`: the exit code, and what the JSON says of the one stream."""

    def go(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(["status", "--json", *arguments])
        printed = capsys.readouterr()
        assert printed.out, printed.err
        [stream] = json.loads(printed.out)["streams"]
        return code, stream

    return go


def engines(stream: dict[str, Any]) -> list[str | None]:
    return [one["engine"] for one in stream["landings"]]


def test_each_landing_says_which_engine_it_is_of(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, told: Told
) -> None:
    name = topic(1, **KEPT)
    produce(name, 0, events(0, 0, 20), timestamps=[START + 1000 * n for n in range(20)])
    by_spark = SparkRun(lake, name)
    by_spark.run(spark, mode="interval", interval_start=START, interval_end=START + 5000)
    _, stream = told("--table", TABLE)
    assert (stream["engine"], engines(stream)) == ("spark", ["spark"])
    lake.land(name, mode="ranges", ranges=[[0, 10, 12]])
    _, stream = told("--table", TABLE)
    assert (stream["engine"], engines(stream)) == ("extract", ["extract", "spark"])
    by_spark.run(spark, mode="ranges", ranges=[[0, 10, 12]], replace=True)
    _, stream = told("--table", TABLE)
    assert (stream["engine"], engines(stream)) == ("spark", ["spark", "extract", "spark"])


def test_the_tables_of_a_fan_out_say_it_too(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, told: Told
) -> None:
    name = topic(1)
    produce(name, 0, [json.dumps({"n": n, "event": "click"}) for n in range(4)])
    SparkRun(lake, name, {"table": "lake.{event}", "schema": "n bigint, event string", "new_tables": "create"}).run(
        spark
    )
    _, stream = told("--table", "lake.click")
    assert (stream["engine"], [one["rows"] for one in stream["landings"]]) == ("spark", [4])


def test_a_query_is_landing_while_it_runs_and_stalled_once_it_was_killed(
    lake: Lake, topic: Topics, produce: Producing, told: Told
) -> None:
    name = topic(2, **KEPT)
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 5), timestamps=[START + n for n in range(5)])
    query = SparkRun(lake, name, {"schema": "id bigint, name string, score double"})
    driver, look = query.start(trigger="200 milliseconds"), ("--checkpoint", str(query.checkpoint))
    try:
        poll_until(lambda: lake.catalog().table_exists(TABLE), "the first batch", 200)
        code, stream = told(*look, "--max-age", "1h")
        assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "held")
        assert (stream["lag"], engines(stream), stream["reasons"]) == (0, ["spark"], [])
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
    # Of long ago, so overdue at once.
    produce(name, 0, events(0, 5, 5), timestamps=[START + n for n in range(5)])
    code, stream = told(*look, "--max-age", "1h")
    assert (code, stream["state"], stream["driver"], stream["overdue"]) == (1, "behind", "vanished", 5)
    assert [one["cause"] for one in stream["reasons"]] == ["vanished Spark query", "late partition"]
    landed_at = max(one["at_ms"] for one in stream["landings"]) / 1000
    poll_until(lambda: time.time() - landed_at > 1.5, "a landing that is older than --max-age", 60)
    code, stream = told(*look, "--max-age", "1s")
    assert (code, stream["state"], stream["engine"]) == (1, "stalled", "spark")
    assert f"{name}[0] [5,10)" in stream["reasons"][0]["text"]
