"""maintain_iceberg on mirrors, on what they remember of deleted rows, and on tables of rejected records."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts
from airflow_lakestream.spark import readers
from airflow_lakestream.spark.maintenance.work import own_session
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import Producing, Topics
from tests.support.cdc import change, mirror_config, mirrored
from tests.support.lake import GROUP, TABLE, Lake, events
from tests.support.maintaining import AT_ONCE, assert_every_snapshot_reads, maintained, maintenance

pytestmark = pytest.mark.integration

MIRROR = "lake.orders"
ALL = {"compact": {"options": {"rewrite-all": True}}, "rewrite_manifests": True, "expire": AT_ONCE}


@pytest.mark.parametrize("mode", [MergeMode.COPY_ON_WRITE, MergeMode.MERGE_ON_READ])
def test_a_mirror_and_its_memory_go_on_right_after_maintenance(
    mode: MergeMode,
    lake: Lake,
    topic: Topics,
    produce: Producing,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Executors work on the smallest files.
    monkeypatch.setattr(readers, "LEAST_BYTES", 1)
    name = topic(1)
    config = mirror_config(lake, name, tmp_path, merge_mode=str(mode))

    def land(*changes: tuple[str, int, str, int]) -> None:
        """Land changes in one batch: what, of which key, its value, and its place in the source."""
        values: list[bytes | str | None] = []
        for op, key, text, place in changes:
            values.append(change(op, {"id": key} if op == "d" else {"id": key, "name": text}, place))
        produce(name, 0, values, keys=['{"id":1}'] * len(values))
        kafka_to_iceberg(config, spark)

    land(*(("c", key, "first", key) for key in range(1, 7)))
    land(("u", 1, "second", 11), ("d", 2, "", 12))
    land(("u", 3, "second", 13), ("d", 4, "", 14))
    rows = mirrored(lake, "id, name")
    assert read_by_spark(spark, lake) == rows
    ledger = read_ledger(lake.table(MIRROR), GROUP)

    reports = maintained(lake, spark, f"{MIRROR}*", **ALL)

    assert {report.table for report in reports} == {MIRROR, MIRROR + SUFFIX}
    assert all(report.expired for report in reports)
    assert ReadCounts.of(lake.table(MIRROR)) == ReadCounts(1, 0, most=0, shared=0, needless=0)
    # What it remembers stays in files of its own.
    assert [report.after.files for report in reports] == [1, 2]
    assert mirrored(lake, "id, name") == read_by_spark(spark, lake) == rows
    assert read_ledger(lake.table(MIRROR), GROUP) == ledger
    # Late ones: older than what they would change, of rows that are there, and of rows that are gone.
    land(("u", 1, "late", 5), ("u", 2, "late", 6), ("u", 4, "late", 7))
    assert mirrored(lake, "id, name") == rows
    # New ones: also of a row that was deleted, and is there again.
    land(("u", 1, "third", 21), ("c", 2, "again", 22), ("d", 5, "", 23))
    live = {key: row[1] for key, row in mirrored(lake, "id, name").items()}
    assert live == {1: "third", 2: "again", 3: "second", 6: "first"}
    assert read_by_spark(spark, lake) == mirrored(lake, "id, name")
    for report in maintained(lake, spark, f"{MIRROR}*", **ALL):
        assert_every_snapshot_reads(lake.table(report.table))


def read_by_spark(spark: SparkSession, lake: Lake) -> dict[int, tuple[int, str]]:
    """Return the mirror's rows by their id, as Iceberg's own library reads them."""
    session = own_session(maintenance(lake, MIRROR, **ALL), spark)
    return {row.id: (row.id, row.name) for row in session.table(f"iceberg_default.{MIRROR}").collect()}


def test_a_mirror_that_keeps_deleted_rows_is_compacted(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, tmp_path: Path
) -> None:
    name = topic(1)
    config = mirror_config(lake, name, tmp_path, soft_delete=True)
    for place, op in enumerate("cd", start=1):
        produce(name, 0, [change(op, {"id": 1, "name": "first"}, place)], keys=['{"id":1}'])
        kafka_to_iceberg(config, spark)

    [report] = maintained(lake, spark, MIRROR, **ALL)

    assert report.after.files == 1
    assert mirrored(lake, "id, name, _is_deleted") == {1: (1, "first", True)}


def test_rejected_records_stay_and_a_replace_afterwards_finds_them(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name, rejects = topic(1), f"{TABLE}__rejected"
    for number in range(3):
        produce(name, 0, [*events(0, 2 * number, 1), f"bad {number}"])
        lake.land(name)
    before = lake.table(rejects).scan().to_arrow().sort_by("_kafka_offset")

    [of_table, of_rejects] = maintained(lake, spark, f"{TABLE}*", **ALL, remove_orphans=True)

    assert (of_table.after.files, of_rejects.after.files) == (1, 1)
    assert lake.table(rejects).scan().to_arrow().sort_by("_kafka_offset").equals(before)
    # The rejects of the range are replaced with its rows, though their files have become one.
    lake.land(name, mode="ranges", ranges=[[0, 2, 4]], replace=True)
    after = lake.table(rejects).scan().to_arrow().sort_by("_kafka_offset")
    assert after["value"].to_pylist() == before["value"].to_pylist()
    assert after["_kafka_offset"].to_pylist() == [1, 3, 5]
    assert lake.table().scan().to_arrow()["_kafka_offset"].to_pylist().count(2) == 1
    assert lake.land(name).counts.read == 0
