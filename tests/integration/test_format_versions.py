"""Tables of format version 3, as Spark makes them of others: whatever writes refuses them first, what reads goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.iceberg.fitness import FormatVersionTooNew
from airflow_lakestream.iceberg.ledger_store import FormatVersionTooOld
from airflow_lakestream.iceberg.upkeep import expiry, ledger_edit
from airflow_lakestream.run.maintenance.upkeep import TableNotMaintained
from airflow_lakestream.run.repair import TableRepair
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.spark.maintenance.work import own_session
from airflow_lakestream.tables.rejects.settlement import rejects_of
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.watching.streams.landings import look_back
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.faults import InterposedReader
from tests.support.lake import GROUP, TABLE, Lake, assert_landed_once, events
from tests.support.maintaining import AT_ONCE, maintained, maintenance
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

TOO_NEW = r"format version 3, and PyIceberg, .* version 2 only.*land in another one"


def upgrade(lake: Lake, spark: SparkSession, table: str = TABLE) -> None:
    session = own_session(maintenance(lake, compact=True), spark)
    session.sql(f"ALTER TABLE iceberg_default.{table} SET TBLPROPERTIES ('format-version' = '3')")
    assert lake.table(table).format_version == 3


class Untouched:
    """A reader that nobody is to ask."""

    def read(self, *what: Any) -> Any:
        raise AssertionError("records were read")


def lands(lake: Lake, topic: str, **config: Any) -> None:
    land(replace(lake.job(topic, **config), reader=Untouched()))


def lands_with_processes(lake: Lake, topic: str) -> None:
    config = ExtractConfig(topic=topic, table=TABLE, consumer_group=GROUP, parallelism=2)
    land_run(config, lake.kafka, lake.catalog(), run_id="two")


def fans_out(lake: Lake, topic: str) -> None:
    config = ExtractConfig(
        topic=topic, table="lake.{name}", consumer_group="other", new_tables="create", home_table=TABLE
    )
    land_run(config, lake.kafka, lake.catalog(), run_id="fan")


WRITERS: dict[str, Callable[[Lake, str], object]] = {
    "landing": lands,
    "landing by processes": lands_with_processes,
    "replace": lambda lake, topic: lands(lake, topic, mode="ranges", ranges=[[0, 0, 4]], replace=True),
    "repair": lambda lake, topic: TableRepair(
        audit=Audit(table=TABLE, consumer_group=GROUP, topic=topic, full=True, kafka=lake.kafka)
    ).run(lake.catalog()),
    "fan-out": fans_out,
    "ledger edit": lambda lake, topic: ledger_edit.restate_ledgers(lake.catalog(), TABLE, lambda table: {}),
    "expiry": lambda lake, topic: expiry.prepare(lake.catalog(), TABLE, expiry.ExpiryRule(older_than=0)),
}


def test_version_3_is_refused_first_by_all_that_writes_and_read_by_the_rest(
    lake: Lake, topic_of: TopicOf, produce: Producing, spark: SparkSession
) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name, mode="ranges", ranges=[[0, 0, 5]])
    lake.land(name)
    ledger = lake.ledger()
    upgrade(lake, spark)
    produce(name, 0, events(0, 10, 2))
    before = lake.table().metadata_location, set(lake.files())

    for writer in WRITERS.values():
        with pytest.raises(FormatVersionTooNew, match=rf"lake\.events .*{TOO_NEW}"):
            writer(lake, name)
    with pytest.raises(FormatVersionTooNew, match=TOO_NEW):
        SparkRun(lake, name).run(spark)
    with pytest.raises(TableNotMaintained, match=TOO_NEW):
        maintained(lake, spark, expire=AT_ONCE)
    assert (lake.table().metadata_location, {f for f in lake.files() if "/checkpoint/" not in f}) == before

    assert lake.ledger() == ledger
    assert sum(seen.landing is not None for seen in look_back(lake.table(), GROUP).recent) == 2
    look = Audit(table=TABLE, consumer_group=GROUP, topic=name, full=True, kafka=lake.kafka)
    assert look.run(lake.catalog()).verdict is AuditVerdict.CLEAN
    # Rows that another writer deletes with a deletion vector are gone for the audit, too.
    session = own_session(maintenance(lake, compact=True), spark)
    session.sql(f"ALTER TABLE iceberg_default.{TABLE} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    session.sql(f"DELETE FROM iceberg_default.{TABLE} WHERE id = 7")
    damaged = look.run(lake.catalog())
    assert damaged.verdict is AuditVerdict.DAMAGE
    assert [str(one.missing) for one in damaged.partitions] == [f"{name}[0] [7,8)"]


def test_a_reject_table_of_version_3_is_refused_before_its_table_is_landed_in(
    lake: Lake, topic_of: TopicOf, spark: SparkSession
) -> None:
    name = topic_of([*events(0, 0, 10), "no JSON"])
    lake.land(name)
    upgrade(lake, spark, rejects_of(TABLE))
    with pytest.raises(FormatVersionTooNew, match=rf"lake\.events__rejected .*{TOO_NEW}"):
        lands(lake, name)


def test_a_table_that_becomes_one_of_version_3_while_records_are_read_keeps_whole(
    lake: Lake, topic_of: TopicOf, produce: Producing, spark: SparkSession
) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name)
    produce(name, 0, events(0, 10, 10))
    job = lake.job(name)
    with pytest.raises(FormatVersionTooNew, match=TOO_NEW):
        land(replace(job, reader=InterposedReader(job.reader, lambda: upgrade(lake, spark))))
    assert_landed_once(lake, name, {0: 10})
    lake.assert_whole()


def test_a_table_of_version_1_is_refused_before_a_record_is_read(lake: Lake, topic: Topics) -> None:
    catalog = lake.catalog()
    catalog.create_namespace("lake")
    catalog.create_table(TABLE, parse_schema("id bigint"), properties={"format-version": "1"})
    with pytest.raises(FormatVersionTooOld, match=r'lake\.events .*version 1.*"format-version" = "2"'):
        lands(lake, topic(1), metadata_columns=[])
