"""A repair where records are bad: what is missing and does not fit is rejected, and the counts are the truth again."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.run.repair import RowsLost, RowsNowBad, TableRepair
from airflow_lakestream.tables.rejects.settlement import rejects_of
from dev.services.registry import Registry
from tests.support.broker import TopicOf
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

REJECTS = rejects_of(TABLE)
# Offsets 1 and 3 are bad, 5 is a tombstone.
VALUES = ['{"n": 0}', "bad", '{"n": 2}', "bad", '{"n": 4}', None, '{"n": 6}']
WHOLE = Counts(read=7, written=4, rejected=3)
ROWS, REJECTED = at(0, [0, 2, 4, 6]), [1, 3, 5]


@pytest.fixture
def name(lake: Lake, topic_of: TopicOf) -> str:
    made = topic_of(VALUES)
    lake.land(made, schema="n bigint", tombstones="reject")
    return made


def repair(lake: Lake, **options: str) -> AuditResult:
    audit = Audit(table=TABLE, consumer_group=GROUP, kafka=lake.kafka)
    return TableRepair(audit=audit, tombstones="reject", **options).run(lake.catalog())


def rejected(lake: Lake) -> list[int]:
    return sorted(lake.table(REJECTS).scan().to_arrow()["_kafka_offset"].to_pylist())


def assert_whole(lake: Lake, name: str) -> None:
    assert lake.offsets() == ROWS
    assert rejected(lake) == REJECTED
    assert lake.entry(name).counts == WHOLE


@pytest.mark.parametrize("drop", [False, True], ids=["a record is gone", "the table is gone"])
def test_rejected_records_that_are_gone_are_rejected_again(lake: Lake, name: str, drop: bool) -> None:
    if drop:
        lake.catalog().drop_table(REJECTS)
    else:
        lake.table(REJECTS).delete("_kafka_offset = 3")
    lake.table().delete("_kafka_offset = 2")

    result = repair(lake)

    assert result.verdict is AuditVerdict.CLEAN
    assert result.repaired is not None
    assert (result.repaired.rows_in, result.repaired.rejected) == (1, 3 if drop else 1)
    assert_whole(lake, name)
    assert repair(lake).repaired.snapshot_id is None


def test_a_row_beside_its_rejected_record_goes(lake: Lake, name: str) -> None:
    row = lake.table().scan(row_filter="_kafka_offset = 4").to_arrow()
    moved = row.set_column(row.column_names.index("_kafka_offset"), row.schema.field("_kafka_offset"), [[3]])
    lake.table().append(moved)
    lake.table(REJECTS).append(lake.table(REJECTS).scan(row_filter="_kafka_offset = 5").to_arrow())

    result = repair(lake)

    assert result.verdict is AuditVerdict.CLEAN
    assert_whole(lake, name)


def test_what_is_right_can_not_be_told_once_kafka_has_lost_it(lake: Lake, name: str, admin: AdminClient) -> None:
    row = lake.table().scan(row_filter="_kafka_offset = 4").to_arrow()
    moved = row.set_column(row.column_names.index("_kafka_offset"), row.schema.field("_kafka_offset"), [[3]])
    lake.table().append(moved)
    admin.delete_records([TopicPartition(name, 0, 7)])[TopicPartition(name, 0, 7)].result(30)

    result = repair(lake)

    assert result.verdict is AuditVerdict.DAMAGE
    assert result.repaired is not None
    assert result.repaired.snapshot_id is None
    assert "Kafka no longer has the record" in result.repaired.left[0]


def test_rejected_records_that_nobody_has_any_more_are_lost_by_receipt(
    lake: Lake, name: str, admin: AdminClient
) -> None:
    lake.table(REJECTS).delete("_kafka_offset = 3")
    admin.delete_records([TopicPartition(name, 0, 7)])[TopicPartition(name, 0, 7)].result(30)
    with pytest.raises(RowsLost):
        repair(lake)
    result = repair(lake, on_data_loss="record")
    assert result.verdict is AuditVerdict.CLEAN
    assert lake.entry(name).counts == Counts(read=6, written=4, rejected=2)
    assert rejected(lake) == [1, 5]


def test_missing_rows_beside_skipped_ones_are_left_alone(lake: Lake, topic_of: TopicOf) -> None:
    made = topic_of(VALUES)
    lake.land(made, schema="n bigint", tombstones="skip")
    lake.table().delete("_kafka_offset = 2")
    result = repair(lake)
    assert result.verdict is AuditVerdict.DAMAGE
    assert result.repaired is not None
    assert result.repaired.snapshot_id is None
    assert any("skipped or filtered" in line for line in result.repaired.left)


def test_a_repair_by_another_format_does_not_turn_rows_into_rejected_records(
    lake: Lake, topic_of: TopicOf, registry: Registry
) -> None:
    made = topic_of(numbers(40))
    lake.land(made, schema="n bigint")
    lake.table().delete("_kafka_offset < 12")
    lake.table().append(lake.table().scan(row_filter="_kafka_offset >= 30").to_arrow())
    before = lake.snapshots()
    with pytest.raises(RowsNowBad, match=r"22 of the 22 records .* counts only 0 of them .* the values look like JSON"):
        repair(lake, format="avro", schema_registry=registry.url)
    assert lake.snapshots() == before
    assert repair(lake).verdict is AuditVerdict.CLEAN
    assert lake.offsets() == at(0, range(40))


def test_records_that_were_rejected_before_may_all_be_rejected_again(lake: Lake, topic_of: TopicOf) -> None:
    made = topic_of(["bad"] * 40)
    lake.land(made, schema="n bigint", max_rejected=1.0)
    lake.table(REJECTS).delete("_kafka_offset < 30")
    assert repair(lake).verdict is AuditVerdict.CLEAN
    assert rejected(lake) == list(range(40))
