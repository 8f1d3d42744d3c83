"""The audit finds what is wrong with a table, exactly that, and nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.table import Table

from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.audit.compare import DoubledRange
from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.audit.rows import NoPositions, UnreadableRows
from airflow_lakestream.audit.run import Audit, TableMissing
from airflow_lakestream.core import codec
from airflow_lakestream.core.lineage import UndecidedLedger
from airflow_lakestream.core.ranges import RangeSet
from dev.services.kafka import Kafka
from tests.integration.test_log_semantics import Transaction, readable
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake, events
from tests.support.lake_reading import numbers

pytestmark = pytest.mark.integration

CLEAN, DAMAGE, BLIND = AuditVerdict.CLEAN, AuditVerdict.DAMAGE, AuditVerdict.COULD_NOT_LOOK


def verdicts(lake: Lake) -> tuple[AuditVerdict, AuditVerdict]:
    """Return what the quick and the full audit say."""
    return lake.audit(full=False).verdict, lake.audit().verdict


def found(result: AuditResult, kind: str) -> RangeSet:
    """Return what the result says of one kind, all partitions together."""
    return RangeSet(r for one in result.partitions for r in getattr(one, kind))


def nothing_but(result: AuditResult, *kinds: str) -> bool:
    rest = {"missing", "unexpected"} - set(kinds)
    doubled = any(one.doubled for one in result.partitions) and "doubled" not in kinds
    return not doubled and not any(found(result, kind) for kind in rest)


# Clean tables


@EACH_FORMAT
def test_a_table_as_it_was_landed_is_clean(lake: Lake, landed: str) -> None:
    result = lake.audit()
    assert result.verdict is CLEAN
    assert [(p.partition, p.rows, p.readable) for p in result.partitions] == [(0, 30, 30), (1, 10, 10)]
    assert not found(result, "not_verifiable")
    assert lake.audit(full=False).verdict is CLEAN


@EACH_FORMAT
def test_compaction_and_foreign_rows_are_no_damage(lake: Lake, landed: str) -> None:
    lake.compact()
    lake.append_foreign(3)
    for result in (lake.audit(), lake.audit(full=False)):
        assert result.verdict is CLEAN
        assert any("3 rows have no Kafka" in note for note in result.notes)
    lake.roll_back(lake.snapshots()[0])
    result = lake.audit(topic=landed)
    assert (result.verdict, sum(one.rows for one in result.partitions)) == (CLEAN, 30)


def test_markers_and_aborted_records_are_no_damage(
    lake: Lake, kafka: Kafka, admin: AdminClient, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=1)
    transaction = Transaction(kafka, admin)
    transaction.begin(name, 0, numbers(3))
    transaction.abort()
    transaction.begin(name, 0, numbers(4))
    transaction.commit()
    produce(name, 0, numbers(2))
    transaction.begin(name, 0, numbers(2))
    transaction.abort()
    lake.land(name)

    result = lake.audit()

    assert lake.landed(name) == {0: [(0, 14)]}
    assert (result.verdict, result.partitions[0].readable) == (CLEAN, 6)
    assert lake.audit(full=False).verdict is CLEAN


def test_what_compaction_of_the_topic_took_is_no_damage(
    lake: Lake, kafka: Kafka, topic_of: TopicOf, produce: Producing
) -> None:
    settings = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.001, "min_compaction_lag_ms": 0}
    name = topic_of(numbers(60), keys=[f"k{n % 5}" for n in range(60)], cleanup_policy="compact", **settings)
    lake.land(name)
    rows = len(lake.offsets())

    def compacted() -> bool:
        produce(name, 0, numbers(1, 1000), keys=["roll"])
        return len([offset for offset in readable(kafka, name) if offset < 60]) < rows

    poll_until(compacted, "the topic to be compacted", 180)

    result = lake.audit()

    assert result.verdict is CLEAN
    assert result.partitions[0].readable < rows == result.partitions[0].rows


def test_what_retention_took_is_not_verifiable_but_counted(lake: Lake, landed: str, admin: AdminClient) -> None:
    trim(admin, landed, 0, 12)

    result = lake.audit()
    assert result.verdict is CLEAN
    assert found(result, "not_verifiable") == RangeSet.of(landed, 0, 0, 12)

    lake.table().delete("_kafka_partition = 0 and _kafka_offset in (3, 15)")

    result = lake.audit()
    assert result.verdict is DAMAGE
    assert found(result, "missing") == RangeSet.of(landed, 0, 15, 16)
    [count] = result.counts
    assert (count.expected, count.found) == (40, 39)


def test_a_receipt_of_a_loss_is_shown_and_is_no_damage(
    lake: Lake, landed: str, admin: AdminClient, produce: Producing
) -> None:
    produce(landed, 1, events(1, 10, 10))
    trim(admin, landed, 1, 14)
    lake.land(landed, on_data_loss="record")

    result = lake.audit()

    assert result.verdict is CLEAN
    assert found(result, "lost") == RangeSet.of(landed, 1, 10, 14)


def test_a_table_without_rows_is_clean(lake: Lake, topic: Topics) -> None:
    lake.land(topic(partitions=2), schema="id bigint, name string, score double")
    assert verdicts(lake) == (CLEAN, CLEAN)
    assert [p.partition for p in lake.audit().partitions] == [0, 1]


def test_several_topics_and_groups_in_one_table(lake: Lake, landed: str, topic_of: TopicOf) -> None:
    second = topic_of(events(0, 0, 5))
    lake.land(second)
    lake.land(landed, consumer_group="other", allow_group_overlap=True)

    assert verdicts(lake) == (CLEAN, CLEAN)
    assert {p.topic for p in lake.audit().partitions} == {landed, second}
    assert {p.topic for p in lake.audit(topic=second).partitions} == {second}
    # Landed by two groups means two rows: one of them gone is a row missing.
    rows = lake.table().scan(row_filter=f"_kafka_topic = '{landed}' and _kafka_partition = 1").to_arrow()
    lake.table().delete(f"_kafka_topic = '{landed}' and _kafka_partition = 1")
    lake.table().append(rows.slice(1))
    for group in (GROUP, "other"):
        result = lake.audit(group=group)
        assert found(result, "missing") == RangeSet.of(landed, 1, *one(rows["_kafka_offset"][0].as_py()))
        assert nothing_but(result, "missing")


# Damage


@EACH_FORMAT
def test_a_deleted_row_is_missing(lake: Lake, landed: str) -> None:
    lake.table().delete("_kafka_partition = 1 and _kafka_offset = 4")

    result = lake.audit()

    assert result.verdict is DAMAGE
    assert found(result, "missing") == RangeSet.of(landed, 1, 4, 5)
    assert nothing_but(result, "missing")
    assert not any(count.problem for count in result.counts)
    quick = lake.audit(full=False)
    assert quick.verdict is DAMAGE
    assert [(c.expected, c.found) for c in quick.counts] == [(40, 39)]


def test_a_removed_data_file_is_missing(lake: Lake, landed: str) -> None:
    table = lake.table()
    [last] = [f for f in data_files(table) if f.record_count == 10]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        producer.delete_data_file(last)

    result = lake.audit()

    assert found(result, "missing") == RangeSet.of(landed, 0, 20, 30)
    assert nothing_but(result, "missing")
    assert verdicts(lake) == (DAMAGE, DAMAGE)


def test_a_file_added_twice_is_doubled(lake: Lake, landed: str) -> None:
    table = lake.table()
    [last] = [f for f in data_files(table) if f.record_count == 10]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        producer.append_data_file(last)

    for result in (lake.audit(), lake.audit(full=False)):
        assert result.verdict is DAMAGE
        assert result.partitions[0].doubled == (DoubledRange(20, 30, 2),)
        assert nothing_but(result, "doubled")
    assert any(last.file_path in finding for finding in lake.audit(full=False).findings)


@EACH_FORMAT
def test_rows_appended_again_are_doubled_by_how_often(lake: Lake, landed: str) -> None:
    offset = pc.field("_kafka_offset")
    again = lake.scan().filter((pc.field("_kafka_partition") == 0) & (offset >= 5) & (offset < 8))
    lake.append(again)
    lake.append(again.filter(offset == 6))

    result = lake.audit()

    assert result.partitions[0].doubled == (DoubledRange(5, 6, 2), DoubledRange(6, 7, 3), DoubledRange(7, 8, 2))
    assert nothing_but(result, "doubled")
    assert verdicts(lake) == (DAMAGE, DAMAGE)


@EACH_FORMAT
def test_rows_from_nowhere_are_unexpected(lake: Lake, landed: str) -> None:
    append_rows(lake, landed, 0, [30, 31])
    append_rows(lake, landed, 7, [0])
    append_rows(lake, "never-landed", 0, [3])

    result = lake.audit()

    stranger = RangeSet.of("never-landed", 0, 3, 4)
    assert found(result, "unexpected") == RangeSet.of(landed, 0, 30, 32) | RangeSet.of(landed, 7, 0, 1) | stranger
    assert nothing_but(result, "unexpected")
    assert verdicts(lake) == (DAMAGE, DAMAGE)


def test_a_row_at_a_marker_is_seen_by_the_count(lake: Lake, kafka: Kafka, admin: AdminClient, topic: Topics) -> None:
    name = topic(partitions=1)
    transaction = Transaction(kafka, admin)
    transaction.begin(name, 0, numbers(4))
    transaction.commit()
    lake.land(name)
    row = lake.table().scan(row_filter="_kafka_offset = 3").to_arrow()
    lake.table().append(row.set_column(row.schema.get_field_index("_kafka_offset"), "_kafka_offset", pa.array([4])))

    result = lake.audit()

    assert result.verdict is DAMAGE
    assert [(c.expected, c.found) for c in result.counts] == [(4, 5)]


def test_as_many_missing_as_doubled_escape_the_counts_but_not_the_full_audit(lake: Lake, landed: str) -> None:
    first = lake.table().scan(row_filter="_kafka_partition = 0 and _kafka_offset = 1").to_arrow()
    lake.table().delete("_kafka_partition = 0 and _kafka_offset = 2")
    lake.table().append(first)

    result = lake.audit()

    assert result.partitions[0].doubled == (DoubledRange(1, 2, 2),)
    assert found(result, "missing") == RangeSet.of(landed, 0, 2, 3)


# The ledger


def test_without_its_property_the_ledger_is_read_from_the_snapshots(lake: Lake, landed: str) -> None:
    remove_property(lake)
    result = lake.audit()
    assert result.verdict is CLEAN
    assert any("property is gone" in note for note in result.notes)


def test_an_undecided_ledger_is_no_verdict(lake: Lake, landed: str) -> None:
    lake.compact()
    lake.table().maintenance.expire_snapshots().by_ids(lake.snapshots()[:-1]).commit()
    table = lake.table()
    for entry in table.metadata.metadata_log:
        table.io.delete(entry.metadata_file)

    for full in (False, True):
        with pytest.raises(UndecidedLedger):
            lake.audit(full=full)


@EACH_FORMAT
def test_a_group_that_landed_nothing_is_named_with_those_that_did(lake: Lake, landed: str) -> None:
    with pytest.raises(NoLedger, match=rf"'nobody' has no ledger on {lake.name}. Groups with a ledger there: {GROUP}"):
        lake.audit(group="nobody")
    with pytest.raises(NoLedger, match="no offsets of topic 'else'"):
        lake.audit(topic="else")


# What can't be looked at


def test_a_topic_that_is_gone_leaves_the_missing_rows_open(lake: Lake, landed: str, topic: Topics) -> None:
    topic.delete(landed)
    result = lake.audit()
    assert result.verdict is BLIND
    assert any(landed in reason for reason in result.blind)
    assert found(result, "not_verifiable").width == 40

    topic(partitions=2, name=landed)
    result = lake.audit()
    assert result.verdict is BLIND
    assert any("another topic now" in reason for reason in result.blind)

    append_rows(lake, landed, 0, [99])
    assert lake.audit().verdict is DAMAGE


def test_delete_files_make_the_quick_audit_say_that_it_can_not_count(lake: Lake, landed: str) -> None:
    [last] = [f for f in data_files(lake.table()) if f.record_count == 10]
    delete_positions(lake.table(), last.file_path, [4])

    quick = lake.audit(full=False)

    assert quick.verdict is BLIND
    assert "1 delete files" in quick.blind[0]
    assert lake.audit().verdict is DAMAGE
    assert found(lake.audit(), "missing") == RangeSet.of(landed, 0, 24, 25)


def test_equality_deletes_are_said_to_be_in_the_way(lake: Lake, landed: str) -> None:
    delete_equal(lake.table(), "id", [3])

    assert lake.audit(full=False).verdict is BLIND
    with pytest.raises(UnreadableRows, match=r"equality deletes.* rewrite the data files"):
        lake.audit()


def test_a_table_without_positions_or_no_table_at_all(lake: Lake, landed: str, topic: Topics) -> None:
    with pytest.raises(TableMissing, match=r"lake\.none"):
        Audit(table="lake.none", consumer_group=GROUP).run(lake.catalog())
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("_kafka_offset")
    for full in (False, True):
        with pytest.raises(NoPositions, match="_kafka_offset"):
            lake.audit(full=full)


def test_nothing_is_changed_by_looking(lake: Lake, landed: str) -> None:
    before = lake.table().metadata_location, sorted(lake.files()), lake.committed_offsets(landed)
    verdicts(lake)
    assert (lake.table().metadata_location, sorted(lake.files()), lake.committed_offsets(landed)) == before


# How tables are broken


def one(offset: int) -> tuple[int, int]:
    return offset, offset + 1


def trim(admin: AdminClient, topic: str, partition: int, below: int) -> None:
    for done in admin.delete_records([TopicPartition(topic, partition, below)]).values():
        assert done.result(30).low_watermark == below


def data_files(table: Table) -> list:
    return [task.file for task in table.scan().plan_files()]


def append_rows(lake: Lake, topic: str, partition: int, offsets: Iterable[int]) -> None:
    rows = [
        {"id": 1, "name": "x", "score": 0.0, "_kafka_topic": topic, "_kafka_partition": partition, "_kafka_offset": o}
        for o in offsets
    ]
    lake.append(pa.Table.from_pylist(rows, schema=lake.columns()))


def remove_property(lake: Lake) -> None:
    with lake.table().transaction() as transaction:
        transaction.remove_properties(codec.property_key(GROUP))
