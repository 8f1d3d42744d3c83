"""A table with a time of day, for which Spark has no type: maintained as far as Spark goes, and told what is left."""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from tests.support.broker import Producing, Topics
from tests.support.lake import Lake
from tests.support.lake_reading import at
from tests.support.maintaining import AT_ONCE, maintained

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("column", "inside"), [("time", "at"), ("list<time>", "at.element")])
def test_orphans_go_and_what_spark_can_t_do_is_told(
    lake: Lake,
    topic: Topics,
    produce: Producing,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    column: str,
    inside: str,
) -> None:
    name = topic(partitions=1)
    value = '"10:00:00"' if column == "time" else '["10:00:00"]'
    for number in range(2):
        produce(name, 0, [f'{{"id": "{number}", "at": {value}}}'])
        lake.land(name, schema=f"id string, at {column}")
    orphan = lake.folder / "warehouse" / "lake" / "events" / "data" / "attempt.parquet"
    orphan.write_text("")
    os.utime(orphan, (0, 0))
    work = {"compact": True, "rewrite_manifests": True, "expire": AT_ONCE, "remove_orphans": True}

    [report] = maintained(lake, spark, **work)

    assert not orphan.exists()
    assert (report.before.files, report.after.files, report.expired, report.orphans) == (2, 2, 0, 1)
    said = "lake.events: it was not compacted, its manifests were not rewritten and no snapshot expired."
    assert f"{said} Spark has no type for a time of day, and {inside} is one." in caplog.text
    assert lake.offsets() == at(0, range(2))
