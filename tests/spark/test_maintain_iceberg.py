"""maintain_iceberg on a real Spark, on tables that are landed into: small again, and the ledger reads as before."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.ledger import Counts, Ledger
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.upkeep.expiry import SUMMARY_EXPIRING
from airflow_lakestream.iceberg.upkeep.ledger_edit import forget
from airflow_lakestream.iceberg.write import parquet
from airflow_lakestream.run.maintenance.tables import NoIcebergTable
from airflow_lakestream.run.maintenance.upkeep import TableNotMaintained
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.spark.maintenance.work import own_session
from tests.support.broker import Producing
from tests.support.delete_files import delete_positions
from tests.support.lake import GROUP, QUICK_RETRIES, TABLE, Lake, assert_landed_once
from tests.support.landings import Landings
from tests.support.maintaining import AT_ONCE, assert_every_snapshot_reads, maintained, maintenance

pytestmark = pytest.mark.integration

EACH = 4
FORGETFUL = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}


@pytest.fixture
def name(landings: Landings) -> str:
    return landings.topic


@pytest.fixture
def land(landings: Landings) -> Landings:
    landings.each = EACH
    return landings


def ids(table: Table) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table.snapshots()}


def roll_back(table: Table, snapshot_id: int) -> None:
    with table.manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id=snapshot_id)


def test_small_files_become_one_and_the_next_run_lands_what_is_new(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(6)
    ledger = lake.ledger()
    [report] = maintained(lake, spark, compact=True, rewrite_manifests=True, expire=AT_ONCE)
    assert (report.before.files, report.after.files) == (6, 1)
    assert report.after.bytes < report.before.bytes
    # Six landings and the compaction; the manifests were in order, or one more.
    assert report.expired >= 6
    table = lake.table()
    assert lake.ledger() == ledger
    assert_landed_once(lake, name, {0: 6 * EACH})
    assert_every_snapshot_reads(table)
    assert lake.land(name).counts.read == 0
    assert_landed_once(lake, name, {0: land(1)})


def test_an_audit_by_statistics_sees_again_once_deletes_are_compacted(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(4)
    ledger = lake.ledger()
    for task in live_files(lake.table()):
        # Its file names no data file in its bounds: it may be of any.
        delete_positions(lake.table(), task.file.file_path, [0])
    assert lake.audit(full=False).verdict is AuditVerdict.COULD_NOT_LOOK

    [report] = maintained(lake, spark, compact=True)

    assert (report.before.deletes, report.after.deletes) == (4, 0)
    assert lake.ledger() == ledger
    assert [one.verdict for one in (lake.audit(full=False), lake.audit())] == [AuditVerdict.DAMAGE] * 2
    [identity] = ledger.topics
    gone = RangeSet(OffsetRange(name, 0, EACH * number, EACH * number + 1) for number in range(4))
    forget(lake.catalog(), TABLE, GROUP, identity, gone, Counts(4, 4))
    assert [one.verdict for one in (lake.audit(full=False), lake.audit())] == [AuditVerdict.CLEAN] * 2


def test_a_table_rolled_back_to_a_snapshot_that_was_kept_has_its_ledger_of_then(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    # Older metadata files would tell the parents that expiry takes away: here there are none.
    land.config = {"table_properties": QUICK_RETRIES | FORGETFUL}
    land(2)
    tagged = {}
    for number in range(3):
        landed = land(1)
        if number == 0:
            lake.land(name, consumer_group="other", allow_group_overlap=True)
        for _ in range(3):
            lake.compact()
        table = lake.table()
        head = lake.snapshots()[-1]
        with table.manage_snapshots() as manage:
            manage.create_tag(head, f"t{number}")
        # The other group has landed all once more, at the first tag.
        tagged[head] = landed
        land(1)
    for _ in range(8):
        lake.compact()
    before = {group: {at: _ledger_at(lake, at, group) for at in tagged} for group in (GROUP, "other")}
    [report] = maintained(lake, spark, expire=AT_ONCE)
    table = lake.table()
    assert len(table.metadata.metadata_log) <= 2
    # The tagged ones, main's head until then, and the one that carries the ledger.
    assert ids(table) >= set(tagged)
    assert len(table.snapshots()) == len(tagged) + 2
    assert report.expired > 20
    assert_every_snapshot_reads(table)
    for at, landed in tagged.items():
        roll_back(lake.table(), at)
        assert {group: read_ledger(lake.table(), group) for group in before} == {g: before[g][at] for g in before}
        assert lake.landed(name) == {0: [(0, landed)]}
    # On from the last one: what was landed after it lands again, once.
    lake.land(name)
    rows = lake.table().scan().to_arrow()
    own = rows["_kafka_offset"].to_pylist()
    assert set(own) == set(range(land(0)))
    assert lake.land(name).counts.read == 0


def test_orphans_go_and_what_is_young_or_in_use_stays(
    lake: Lake, name: str, land: Landings, spark: SparkSession, produce: Producing
) -> None:
    land(3)
    maintained(lake, spark, compact={"options": {"min-input-files": 2}}, rewrite_manifests=True)
    land(1)
    # Spark names files file:/..., PyIceberg file:///...: both are in this table.
    assert {path.split("/tmp")[0] for path in _data_files(lake.table())} >= {"file://"}
    folder = Path(lake.table().location().removeprefix("file://"))
    orphans = [folder / "data" / "attempt-00000-of-a-run.parquet", folder / "metadata" / "lost-m0.avro"]
    young = folder / "data" / "under-way.parquet"
    for path in [*orphans, young]:
        path.write_bytes(b"x")
    old = time.time() - 4 * 86_400
    for path in folder.rglob("*"):
        if path != young:
            os.utime(path, (old, old))
    [report] = maintained(lake, spark, remove_orphans=True)
    assert report.orphans == len(orphans)
    assert young.exists()
    assert not [path for path in orphans if path.exists()]
    young.unlink()
    assert_every_snapshot_reads(lake.table())
    assert_landed_once(lake, name, {0: land(1)})


def test_landings_and_a_compaction_at_once_lose_and_double_nothing(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(6)
    landed: list[int] = []
    thread = threading.Thread(target=lambda: landed.append(land(6)))
    thread.start()
    while thread.is_alive():
        maintained(lake, spark, compact={"options": {"rewrite-all": True}, "tries": 10})
    thread.join()
    assert_landed_once(lake, name, {0: landed[0]})
    assert lake.land(name).counts.read == 0


def test_all_tables_of_a_fan_out_and_rejected_records(
    lake: Lake, name: str, spark: SparkSession, produce: Producing
) -> None:
    catalog = lake.catalog()

    def land() -> None:
        values = ['{"n":1,"event":"click"}', '{"n":2,"event":"view"}', "broken"]
        produce(name, 0, values)
        config = ExtractConfig(topic=name, table="lake.{event}", consumer_group=GROUP, new_tables="create")
        land_run(config, lake.kafka, catalog, run_id=f"r{time.time_ns()}")

    for _ in range(3):
        land()
    tables = sorted(".".join(table) for table in catalog.list_tables("lake"))
    rows = {table: lake.table(table).scan().to_arrow().num_rows for table in tables}
    ledgers = {table: read_ledger(lake.table(table), GROUP) for table in tables}
    assert [table for table in tables if table.endswith("__rejected")]
    work: dict[str, Any] = {"compact": {"options": {"rewrite-all": True}}, "expire": AT_ONCE, "remove_orphans": True}
    reports = maintained(lake, spark, "lake.*", **work)
    assert sorted(report.table for report in reports) == tables
    assert {table: lake.table(table).scan().to_arrow().num_rows for table in tables} == rows
    assert {table: read_ledger(lake.table(table), GROUP) for table in tables} == ledgers
    land()
    assert lake.table("lake.click").scan().to_arrow().num_rows == 4
    with pytest.raises(NoIcebergTable, match=r"lake.none is not an Iceberg table of catalog 'iceberg_default'"):
        maintained(lake, spark, "lake.none", expire=True)


def test_a_landing_rolled_back_stays_until_a_later_one_has_noted_it(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(2)
    first, second = lake.snapshots()
    roll_back(lake.table(), first)
    maintained(lake, spark, expire=AT_ONCE)
    assert ids(lake.table()) == {first, second}
    lake.land(name)
    maintained(lake, spark, expire=AT_ONCE)
    assert not ids(lake.table()) & {second}
    assert_landed_once(lake, name, {0: 2 * EACH})


def test_a_table_with_nothing_to_expire_gets_no_snapshot(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(3)
    maintained(lake, spark, expire={"older_than": "5d"})
    assert len(lake.snapshots()) == 3
    maintained(lake, spark, expire={"older_than": "1ms", "retain_last": 3})
    assert len(lake.snapshots()) == 3
    maintained(lake, spark, expire=AT_ONCE)
    kept = lake.snapshots()
    assert len(kept) == 2
    maintained(lake, spark, expire=AT_ONCE)
    assert len(lake.snapshots()) == 2
    # What is left to go by then is the note itself, which has no files.
    newest = lake.table().current_snapshot()
    assert newest is not None
    assert SUMMARY_EXPIRING in newest.summary.additional_properties


def test_a_table_that_can_not_be_maintained_keeps_none_waiting(
    lake: Lake, name: str, land: Landings, spark: SparkSession
) -> None:
    land(2)
    lake.land(name, table="lake.other")
    aged = lake.table()
    head = aged.current_snapshot()
    assert head is not None
    with aged.manage_snapshots() as manage:
        manage.create_branch(head.snapshot_id, "aged", max_snapshot_age_ms=60_000)
    with pytest.raises(TableNotMaintained, match=f"{TABLE} .*branch aged has a maximal age") as caught:
        maintained(lake, spark, TABLE, "lake.other", expire=AT_ONCE, rewrite_manifests=True)
    assert list(caught.value.failed) == [TABLE]
    assert len(lake.snapshots()) >= 2
    nested = lake.table("lake.other")
    lake.catalog().create_table("lake.within", schema=nested.schema(), location=f"{nested.location()}/within")
    with pytest.raises(TableNotMaintained, match=r"lake\.within has its files in the same folder"):
        maintained(lake, spark, "lake.other", remove_orphans=True)


def test_rows_that_spark_skipped_for_wrong_bounds_are_found(
    lake: Lake, name: str, produce: Producing, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(name, 0, [b'{"s": "%s"}' % text for text in (b"z" * 5000, b"z" * 5000, b"a", b"b")])
    with monkeypatch.context() as before_this:
        before_this.setattr(parquet, "unbounded", lambda footer: {})
        lake.land(name, table_properties={"write.parquet.row-group-limit": "2"})

    def found() -> int:
        config = maintenance(lake, rewrite_manifests=True)
        session = own_session(config, spark)
        session.sql(f"REFRESH TABLE {config.catalog_name}.{TABLE}")
        return session.table(f"{config.catalog_name}.{TABLE}").where("s > 'p'").count()

    ledger = lake.ledger()
    assert found() == 0
    [report] = maintained(lake, spark, rewrite_manifests=True)
    assert str(report).endswith(", wrong bounds of 1 file mended")
    assert (found(), lake.ledger()) == (2, ledger)
    [report] = maintained(lake, spark, compact=True, expire=AT_ONCE)
    assert (report.mended, found()) == (0, 2)
    assert lake.audit(full=False).verdict is AuditVerdict.CLEAN


def test_spark_finds_each_uuid_that_a_filter_asks_for(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    # Iceberg's Java takes the greater half for negative.
    uuids = [f"{digit}0000000-0000-0000-{digit}000-00000000000{digit}" for digit in "0178f"]
    for some in (uuids, uuids[:2], uuids[3:]):
        produce(name, 0, [json.dumps({"u": one}) for one in some])
        lake.land(name, schema="u uuid", table_properties={"write.parquet.row-group-limit": "2"})
    config = maintenance(lake, rewrite_manifests=True)
    table = own_session(config, spark).table(f"{config.catalog_name}.{TABLE}")
    for one in uuids:
        assert table.where(f"u = '{one}'").count() == 1 + (one != uuids[2])
    assert table.where(table.u.isin(uuids[1:4])).count() == 5
    assert table.where(f"u != '{uuids[2]}'").count() == 8


def test_a_table_of_renamed_fields_is_read_and_compacted(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    for number in range(2):
        produce(name, 0, [b'{"id": %d, "_file": "f", "_pos": %d}' % (number, number)])
        lake.land(name, rename_columns={"_file": "file", "_pos": "place"})
    config = maintenance(lake, compact=True)
    table = own_session(config, spark).table(f"{config.catalog_name}.{TABLE}")
    assert sorted((row["id"], row["file"], row["place"]) for row in table.collect()) == [(0, "f", 0), (1, "f", 1)]
    [report] = maintained(lake, spark, compact={"options": {"min-input-files": 2}})
    assert (report.before.files, report.after.files) == (2, 1)


def _data_files(table: Table) -> list[str]:
    return [task.file.file_path for task in table.scan().plan_files()]


def _ledger_at(lake: Lake, snapshot_id: int, group: str) -> Ledger:
    table = lake.table()
    head = table.current_snapshot()
    assert head is not None
    roll_back(table, snapshot_id)
    found = read_ledger(lake.table(), group)
    roll_back(lake.table(), head.snapshot_id)
    return found
