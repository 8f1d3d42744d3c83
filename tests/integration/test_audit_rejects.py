"""The audit knows of the reject table: what stands there is not missing, what ought to stand there is."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.tables.rejects.settlement import rejects_of
from tests.support.broker import Producing, TopicOf
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.lake_reading import numbers

pytestmark = pytest.mark.integration

SCHEMA = "n bigint not null"
REJECTS = rejects_of(TABLE)
# Offsets 1 and 3 are bad, 5 is a tombstone.
VALUES = ['{"n": 0}', "bad", '{"n": 2}', "bad", '{"n": 4}', None, '{"n": 6}']
CLEAN, DAMAGE = AuditVerdict.CLEAN, AuditVerdict.DAMAGE


@pytest.fixture
def name(topic_of: TopicOf) -> str:
    return topic_of(VALUES)


def both_ways(lake: Lake) -> tuple[AuditVerdict, AuditVerdict]:
    """Return what the quick and the full audit say."""
    return lake.audit(full=False).verdict, lake.audit().verdict


@EACH_FORMAT
def test_rejected_records_are_not_missing(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA, tombstones="reject")
    result = lake.audit()
    assert (result.verdict, lake.audit(full=False).verdict) == (CLEAN, CLEAN)
    [found] = result.partitions
    assert (found.rows, found.rejected, found.readable) == (4, 3, 7)
    assert result.to_dict()["partitions"][0]["rejected"] == 3
    assert "4 rows, 3 rejected, 7 records in Kafka" in result.render()
    assert result.to_dict()["not_verifiable_by_count"] == []


def test_skipped_records_are_known_by_count_only_and_said_so(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA, tombstones="skip")
    for result in (lake.audit(), lake.audit(full=False)):
        assert result.verdict is CLEAN
        assert result.to_dict()["not_verifiable_by_count"] == [{"topic": name, "skipped": 1, "filtered": 0}]
        assert f"not verifiable: {name}: 1 skipped records" in result.render()
    [found] = lake.audit().partitions
    assert found.not_verifiable == RangeSet.of(name, 0, 5, 6)
    assert not found.missing


def test_beside_skipped_records_a_missing_row_is_still_found(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA, tombstones="skip")
    lake.table().delete("_kafka_offset = 4")
    result = lake.audit()
    assert result.verdict is DAMAGE
    assert result.partitions[0].missing == RangeSet.of(name, 0, 4, 6)
    assert any("1 records are certainly missing" in note for note in result.notes)


def test_beside_skipped_records_one_too_many_without_a_row_is_damage(lake: Lake, name: str, produce: Producing) -> None:
    lake.land(name, schema=SCHEMA, on_error="skip", tombstones="skip")
    # A row out, another row in: by the counts alone nothing is missing.
    row = lake.table().scan(row_filter="_kafka_offset = 4").to_arrow()
    lake.table().delete("_kafka_offset = 4")
    assert lake.audit().verdict is DAMAGE
    moved = row.set_column(row.column_names.index("_kafka_offset"), row.schema.field("_kafka_offset"), [[5]])
    lake.table().append(moved)
    assert both_ways(lake) == (CLEAN, CLEAN), "as many without a row as were skipped: not to be told"


def test_a_rejected_record_that_is_gone_is_missing(lake: Lake, name: str, admin: AdminClient) -> None:
    lake.land(name, schema=SCHEMA)
    lake.table(REJECTS).delete("_kafka_offset = 3")
    result = lake.audit()
    assert (result.verdict, lake.audit(full=False).verdict) == (DAMAGE, DAMAGE)
    assert result.partitions[0].missing == RangeSet.of(name, 0, 3, 4)
    assert f"{name}, reject table: the ledger counts 3 rejected records, found were 2: 1 missing." in result.damages

    lake.catalog().drop_table(REJECTS)
    assert both_ways(lake) == (DAMAGE, DAMAGE)
    # Also where Kafka does not show them any more.
    admin.delete_records([TopicPartition(name, 0, 7)])[TopicPartition(name, 0, 7)].result(30)
    result = lake.audit()
    assert result.verdict is DAMAGE
    assert not result.partitions[0].missing


def test_a_row_beside_its_rejected_record_is_found(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA, tombstones="reject")
    row = lake.table().scan(row_filter="_kafka_offset = 4").to_arrow()
    moved = row.set_column(row.column_names.index("_kafka_offset"), row.schema.field("_kafka_offset"), [[3]])
    lake.table().append(moved)
    again = lake.table(REJECTS).scan(row_filter="_kafka_offset = 5").to_arrow()
    lake.table(REJECTS).append(again)

    result = lake.audit()

    assert result.verdict is DAMAGE
    [found] = result.partitions
    assert found.both == RangeSet.of(name, 0, 3, 4)
    assert found.rejected_twice == RangeSet.of(name, 0, 5, 6)
    assert not found.missing
    text = result.render()
    assert "a row, and rejected as well: [3,4)" in text
    assert "rejected more than once: [5,6)" in text
    as_json = result.to_dict()["partitions"][0]
    assert (as_json["both"], as_json["rejected_twice"]) == ([[3, 4]], [[5, 6]])


def test_what_was_rolled_back_does_not_count(lake: Lake, name: str, produce: Producing) -> None:
    lake.land(name, schema=SCHEMA, max_records=1)
    lake.land(name, schema=SCHEMA)
    lake.roll_back(lake.snapshots()[0])
    quick, full = lake.audit(full=False), lake.audit()
    assert (quick.verdict, full.verdict) == (CLEAN, CLEAN)
    assert full.partitions[0].rejected == 0
    assert any("has 3 records, of which 0 count" in note for note in quick.notes)


def test_two_groups_in_one_table(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA)
    lake.land(name, consumer_group="other", allow_group_overlap=True)
    assert both_ways(lake) == (CLEAN, CLEAN)
    lake.table(REJECTS).delete("consumer_group = 'other' and _kafka_offset = 1")
    for group in (GROUP, "other"):
        assert lake.audit(group=group).partitions[0].missing == RangeSet.of(name, 0, 1, 2)


def test_no_bad_records_no_reject_table(lake: Lake, topic_of: TopicOf) -> None:
    made = topic_of(numbers(3))
    lake.land(made)
    assert both_ways(lake) == (CLEAN, CLEAN)
