"""After a repair a table holds the readable log, once each, and one snapshot more; or nothing was changed at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse

from airflow_lakestream.audit.result import AuditResult, AuditVerdict, RepairResult
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.iceberg.replace import repair as table_side
from airflow_lakestream.iceberg.replace.repair import DoublesDiffer
from airflow_lakestream.iceberg.upkeep.ledger_edit import forget
from airflow_lakestream.iceberg.write import parquet
from airflow_lakestream.run.repair import NotRepaired, RowsLost, RowsNowBad, TableRepair
from airflow_lakestream.run.replay import RejectReplay
from dev.services.kafka import Kafka
from tests.integration.test_audit import append_rows, data_files, remove_property, trim
from tests.integration.test_log_semantics import Transaction
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delete_files import delete_positions
from tests.support.faults import DyingCatalog, WatchedFileIO, WrappedCatalog, before
from tests.support.lake import GROUP, TABLE, Lake, assert_landed_once, events
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

CLEAN, DAMAGE = AuditVerdict.CLEAN, AuditVerdict.DAMAGE
Break = Callable[[Lake, str], object]


def repair(lake: Lake, catalog: Catalog | None = None, *, topic: str | None = None, **options: Any) -> AuditResult:
    look = Audit(table=TABLE, consumer_group=GROUP, topic=topic, kafka=lake.kafka)
    return TableRepair(audit=look, **options).run(catalog or lake.catalog())


def repaired(result: AuditResult) -> RepairResult:
    assert result.repaired is not None
    return result.repaired


def assert_repaired_in_one_snapshot(lake: Lake, topic: str, counts: dict[int, int]) -> RepairResult:
    """Repair; the table is as if nothing had ever been wrong, and a second repair finds nothing to do."""
    before = lake.snapshots()
    result = repair(lake)
    done = repaired(result)
    assert result.verdict is CLEAN, result.render()
    assert lake.snapshots() == [*before, done.snapshot_id]
    assert_landed_once(lake, topic, counts)
    [entry] = lake.ledger().topics.values()
    assert entry.counts == Counts(sum(counts.values()), sum(counts.values()))
    # Delete files stay in the table, and keep the quick audit from counting.
    assert lake.audit(full=False).verdict is not DAMAGE
    again = repaired(repair(lake))
    assert (again.snapshot_id, again.rows_in, again.rows_out) == (None, 0, 0)
    assert lake.snapshots() == [*before, done.snapshot_id]
    return done


def some(lake: Lake, where: str) -> pa.Table:
    return lake.table().scan(row_filter=where).to_arrow()


# How tables are broken; each leaves partition 0 with 30 records and partition 1 with 10 to be set right


def rows_deleted(lake: Lake, topic: str) -> None:
    lake.table().delete("_kafka_partition = 0 and _kafka_offset in (0, 7, 8, 29)")
    lake.table().delete("_kafka_partition = 1 and _kafka_offset = 4")


def file_dropped(lake: Lake, topic: str) -> None:
    [last, *_] = data_files(lake.table())
    with lake.table().transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        producer.delete_data_file(last)


def rows_doubled(lake: Lake, topic: str) -> None:
    lake.table().append(some(lake, "_kafka_partition = 0 and _kafka_offset >= 15 and _kafka_offset < 25"))
    lake.table().append(some(lake, "_kafka_offset = 3"))


def file_listed_twice(lake: Lake, topic: str) -> None:
    [last, *_] = data_files(lake.table())
    with lake.table().transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        producer.append_data_file(last)


def doubled_with_other_values(lake: Lake, topic: str) -> None:
    append_rows(lake, topic, 0, [10, 19, 19, 20])
    append_rows(lake, topic, 1, [9])


def as_many_missing_as_doubled(lake: Lake, topic: str) -> None:
    first = some(lake, "_kafka_partition = 0 and _kafka_offset = 1")
    lake.table().delete("_kafka_partition = 0 and _kafka_offset = 2")
    lake.table().append(first)


def deleted_by_delete_files(lake: Lake, topic: str) -> None:
    [last, *_] = data_files(lake.table())
    delete_positions(lake.table(), last.file_path, [0, 4])


def everything(lake: Lake, topic: str) -> None:
    for wrong in (rows_deleted, rows_doubled, doubled_with_other_values, as_many_missing_as_doubled):
        wrong(lake, topic)


@pytest.mark.parametrize(
    "wrong",
    [
        rows_deleted,
        file_dropped,
        rows_doubled,
        file_listed_twice,
        doubled_with_other_values,
        as_many_missing_as_doubled,
        deleted_by_delete_files,
    ],
)
def test_each_damage_is_repaired(lake: Lake, landed: str, wrong: Break) -> None:
    wrong(lake, landed)
    done = assert_repaired_in_one_snapshot(lake, landed, {0: 30, 1: 10})
    assert wrong is not file_listed_twice or done.rows_out == 2 * done.rows_in


@pytest.mark.parametrize(
    "design",
    [
        {"partition_by": ["bucket(3, id)"]},
        {"partition_by": ["_kafka_partition"], "sort_order": ["name desc"]},
        {"metadata_columns": ["topic", "partition", "offset", "timestamp", "key", "headers"]},
    ],
    ids=["bucketed", "partitioned and sorted", "all metadata columns"],
)
def test_all_damage_at_once_on_tables_of_other_designs(
    lake: Lake, topic: Topics, produce: Producing, design: dict[str, Any]
) -> None:
    name = topic(partitions=2)
    produce(name, 0, events(0, 0, 30), keys=[f"k{n}" for n in range(30)], headers=[("h", b"1")])
    produce(name, 1, events(1, 0, 10))
    lake.land(name, **design)
    before = in_order(lake)
    lake.compact()
    everything(lake, name)

    done = assert_repaired_in_one_snapshot(lake, name, {0: 30, 1: 10})

    assert done.landed == ranges_of(name, 0, 0, 2, 7, 8, 29) | ranges_of(name, 1, 4)
    assert in_order(lake) == before
    lake.assert_whole()


def in_order(lake: Lake) -> list[dict[str, Any]]:
    order = [("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")]
    return lake.table().scan().to_arrow().sort_by(order).to_pylist()


def ranges_of(topic: str, partition: int, *offsets: int) -> RangeSet:
    return RangeSet(r for offset in offsets for r in RangeSet.of(topic, partition, offset, offset + 1))


def test_rows_without_a_ledger_are_put_right_and_landed(lake: Lake, landed: str, produce: Producing) -> None:
    produce(landed, 0, events(0, 30, 5))
    append_rows(lake, landed, 0, [30, 31, 34])

    done = repaired(repair(lake))

    assert done.adopted == ranges_of(landed, 0, 30, 31, 34)
    assert (done.rows_out, done.rows_in) == (3, 3)
    assert lake.landed(landed) == {0: [(0, 32), (34, 35)], 1: [(0, 10)]}
    lake.land(landed)
    assert_landed_once(lake, landed, {0: 35, 1: 10})
    assert lake.audit().verdict is CLEAN


def test_rows_of_no_record_are_reported_and_left(
    lake: Lake, kafka: Kafka, admin: AdminClient, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=1)
    transaction = Transaction(kafka, admin)
    transaction.begin(name, 0, numbers(3))
    transaction.abort()
    produce(name, 0, numbers(4))
    lake.land(name)
    before = lake.records()
    lake.table().delete("_kafka_offset in (4, 6)")
    lake.table().append(some(lake, "_kafka_offset = 5"))
    strange = some(lake, "_kafka_offset = 7")
    field = strange.schema.get_field_index("_kafka_offset")
    for offset in (1, 99):
        lake.table().append(strange.set_column(field, "_kafka_offset", pa.array([offset])))

    result = repair(lake)

    assert result.verdict is DAMAGE
    # The log has nothing at 99 yet, so no record can be there; at 1 there was one, and was aborted.
    assert not any(p.unexpected for p in result.partitions)
    assert repaired(result).removed == (f"{name}[0] [99,100), where the log has no records yet",)
    assert [(c.expected, c.found) for c in result.counts] == [(4, 5)]
    assert [row for row in lake.records() if row["_kafka_offset"] != 1] == before
    assert lake.offsets() == at(0, [1, 4, 5, 6, 7])
    snapshots = lake.snapshots()
    assert repaired(repair(lake)).snapshot_id is None
    assert lake.snapshots() == snapshots


# What Kafka can't give again


def test_identical_rows_are_there_once_where_kafka_has_the_record_no_more(
    lake: Lake, landed: str, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_side, "OFFSETS_AT_ONCE", 3)
    lake.table().append(some(lake, "_kafka_partition = 0 and _kafka_offset >= 5 and _kafka_offset < 15"))
    lake.table().append(some(lake, "_kafka_partition = 0 and _kafka_offset = 8"))
    lake.table().delete("_kafka_partition = 0 and _kafka_offset = 25")
    trim(admin, landed, 0, 12)

    done = assert_repaired_in_one_snapshot(lake, landed, {0: 30, 1: 10})

    assert done.undoubled == RangeSet.of(landed, 0, 5, 15)
    assert (done.rows_out, done.rows_in) == (21 + 1, 11)


def test_rows_that_differ_are_refused_where_kafka_has_the_record_no_more(
    lake: Lake, landed: str, admin: AdminClient
) -> None:
    lake.table().append(some(lake, "_kafka_partition = 0 and _kafka_offset < 9"))
    append_rows(lake, landed, 0, [3, 7, 15])
    trim(admin, landed, 0, 12)
    before = lake.table().metadata_location, sorted(lake.files())

    with pytest.raises(DoublesDiffer, match=r"\[3,4\), .*\[7,8\).*Nothing was changed") as refused:
        repair(lake)

    assert refused.value.ranges == ranges_of(landed, 0, 3, 7)
    assert (lake.table().metadata_location, sorted(lake.files())) == before


def test_missing_rows_that_kafka_has_no_more_fail_or_become_a_receipt(
    lake: Lake, landed: str, admin: AdminClient
) -> None:
    lake.table().delete("_kafka_partition = 0 and _kafka_offset in (3, 4, 20)")
    trim(admin, landed, 0, 12)
    before = lake.snapshots()

    with pytest.raises(RowsLost, match=r"2 rows .*\[3,5\).*on_data_loss=.record.") as refused:
        repair(lake)
    assert refused.value.ranges == RangeSet.of(landed, 0, 3, 5)
    assert lake.snapshots() == before

    result = repair(lake, on_data_loss="record")
    done = repaired(result)
    assert result.verdict is CLEAN, result.render()
    assert (done.lost, done.landed) == (RangeSet.of(landed, 0, 3, 5), ranges_of(landed, 0, 20))
    assert lake.snapshots() == [*before, done.snapshot_id]
    assert repaired(repair(lake)).snapshot_id is None


def test_a_topic_that_is_gone_leaves_identical_rows_to_be_made_one(lake: Lake, landed: str, topic: Topics) -> None:
    rows_doubled(lake, landed)
    topic.delete(landed)
    done = repaired(repair(lake))
    assert (done.rows_out, done.rows_in) == (24, 12)
    assert_landed_once(lake, landed, {0: 30, 1: 10})


# Receipts, other groups, other rows


def test_what_was_deleted_on_purpose_does_not_come_back(lake: Lake, landed: str) -> None:
    lake.table().delete("_kafka_partition = 0 and _kafka_offset >= 5 and _kafka_offset < 9")
    [identity] = lake.ledger().topics
    forget(lake.catalog(), TABLE, GROUP, identity, RangeSet.of(landed, 0, 5, 8), Counts(3, 3))
    before = lake.snapshots()

    result = repair(lake)

    assert (result.verdict, repaired(result).landed) == (CLEAN, ranges_of(landed, 0, 8))
    offsets = some(lake, "_kafka_partition = 0")["_kafka_offset"].to_pylist()
    assert sorted(offsets) == [*range(5), *range(8, 30)]
    assert len(lake.snapshots()) == len(before) + 1
    assert repaired(repair(lake)).snapshot_id is None


def test_what_two_groups_landed_is_left_and_said(lake: Lake, landed: str) -> None:
    lake.land(landed, consumer_group="other", allow_group_overlap=True)
    lake.table().delete("_kafka_partition = 1 and _kafka_offset = 4")
    before = lake.snapshots()
    result = repair(lake)
    assert result.verdict is DAMAGE
    assert "another consumer group landed them" in repaired(result).left[0]
    assert lake.snapshots() == before


def test_several_topics_are_repaired_in_one_snapshot(
    lake: Lake, landed: str, topic: Topics, produce: Producing
) -> None:
    second = topic(partitions=2)
    produce(second, 1, events(1, 0, 8))
    lake.land(second)
    rows_deleted(lake, landed)
    lake.table().append(some(lake, f"_kafka_topic = '{second}' and _kafka_offset < 3"))
    before = lake.snapshots()

    result = repair(lake)

    assert result.verdict is CLEAN
    assert lake.snapshots() == [*before, repaired(result).snapshot_id]
    assert_landed_once(lake, landed, {0: 30, 1: 10})
    assert_landed_once(lake, second, {1: 8})


def test_one_topic_alone_is_repaired_when_asked(lake: Lake, landed: str, topic_of: TopicOf) -> None:
    second = topic_of(events(0, 0, 8))
    lake.land(second)
    lake.table().delete("_kafka_offset = 4")
    assert repair(lake, topic=second).verdict is CLEAN
    assert_landed_once(lake, second, {0: 8})
    assert lake.audit().verdict is DAMAGE


def test_foreign_rows_stay_and_stop_only_what_they_make_doubtful(lake: Lake, landed: str) -> None:
    lake.append_foreign(3)
    rows_doubled(lake, landed)
    lake.compact()
    assert repair(lake).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 30, 1: 10})
    assert pc.sum(lake.table().scan().to_arrow()["_kafka_offset"].is_null()).as_py() == 3

    lake.table().delete("_kafka_offset = 4")
    before = lake.snapshots()
    with pytest.raises(CannotReplace, match="whether they are the missing rows is unknown"):
        repair(lake)
    assert lake.snapshots() == before


def test_without_its_property_the_ledger_of_the_snapshots_is_repaired_by(lake: Lake, landed: str) -> None:
    remove_property(lake)
    rows_deleted(lake, landed)
    assert_repaired_in_one_snapshot(lake, landed, {0: 30, 1: 10})


# Beside others, and killed


def test_a_landing_between_audit_and_commit_stays(lake: Lake, landed: str, produce: Producing) -> None:
    rows_deleted(lake, landed)
    rows_doubled(lake, landed)
    produce(landed, 0, events(0, 30, 5))
    racing = lake.failing(before(lambda: lake.land(landed)))
    assert repair(lake, racing).verdict is CLEAN
    assert_landed_once(lake, landed, {0: 35, 1: 10})


def test_ranges_landed_between_audit_and_commit_make_the_repair_look_again(
    lake: Lake, landed: str, produce: Producing
) -> None:
    produce(landed, 0, events(0, 30, 5))
    append_rows(lake, landed, 0, [30, 31])
    racing = lake.failing(before(lambda: lake.land(landed)))
    result = repair(lake, racing)
    assert (result.verdict, repaired(result).undoubled) == (CLEAN, RangeSet.of(landed, 0, 30, 32))
    assert_landed_once(lake, landed, {0: 35, 1: 10})


def test_another_repair_in_between_leaves_nothing_to_do(lake: Lake, landed: str) -> None:
    everything(lake, landed)
    there = lake.snapshots()
    result = repair(lake, lake.failing(before(lambda: repair(lake))))
    assert (result.verdict, repaired(result).snapshot_id) == (CLEAN, None)
    assert len(lake.snapshots()) == len(there) + 1
    assert_landed_once(lake, landed, {0: 30, 1: 10})
    lake.assert_whole()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", [".parquet", "-m0.avro", "snap-"], ids=["data file", "manifest", "manifest list"])
def test_killed_before_the_commit_it_leaves_nothing(
    lake: Lake, landed: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(lake, landed)
    before = lake.table().metadata_location, sorted(lake.files())
    monkeypatch.setattr(WatchedFileIO, "watcher", lambda location: interrupt() if at in location else None)
    with pytest.raises(KeyboardInterrupt):
        repair(lake, lake.catalog(**{"py-io-impl": "tests.support.faults.WatchedFileIO"}))
    assert (lake.table().metadata_location, sorted(lake.files())) == before


def test_killed_in_the_commit_it_is_done_or_not_done_and_then_done_once(lake: Lake, landed: str) -> None:
    everything(lake, landed)
    there = lake.snapshots()
    with pytest.raises(KeyboardInterrupt):
        repair(lake, lake.failing(before(interrupt)))
    assert lake.snapshots() == there
    with pytest.raises(CommitOutcomeUnknown):
        repair(lake, DyingCatalog(lake.catalog(), applied=True))
    assert_landed_once(lake, landed, {0: 30, 1: 10})
    assert repaired(repair(lake)).snapshot_id is None
    assert len(lake.snapshots()) == len(there) + 1


def test_a_table_that_keeps_changing_is_not_repaired(lake: Lake, landed: str, produce: Producing) -> None:
    produce(landed, 0, events(0, 30, 1))
    append_rows(lake, landed, 0, [30])
    with pytest.raises(NotRepaired, match="5 times in a row"):
        repair(lake, Swapping(lake.catalog(), lake, landed))


class Swapping(WrappedCatalog):
    """Before each commit the ranges are landed by somebody else where they were not, and the other way round."""

    def __init__(self, catalog: Catalog, lake: Lake, topic: str) -> None:
        super().__init__(catalog)
        self._lake, self._topic = lake, topic
        self._landed: int | None = None

    def commit_table(self, *request: Any) -> CommitTableResponse:
        table = self._lake.table()
        if self._landed is None:
            self._landed = table.metadata.current_snapshot_id
            self._lake.land(self._topic)
        else:
            table.manage_snapshots().rollback_to_snapshot(self._landed).commit()
            self._landed = None
        return self.real.commit_table(*request)


def test_records_whose_fields_have_no_names_are_repaired_by_the_columns_that_they_were_landed_with(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=1)
    csv: dict[str, Any] = {"format": "csv", "csv_delimiter": ";"}
    produce(name, 0, ['"1";a', "2;b", "3;c"])
    lake.land(name, **csv, schema="id bigint, name string")
    produce(name, 0, [f"{chr(100 + n)};{n}" for n in range(4, 26)])
    lake.land(name, **csv, schema="name string, id bigint")
    before = lake.table().scan().to_arrow().sort_by("_kafka_offset")
    lake.table().delete("_kafka_offset >= 10")

    # The order of the table's columns is another one: nothing is repaired by it.
    with pytest.raises(RowsNowBad, match="the same format, and the same other arguments"):
        repair(lake, **csv)
    result = repair(lake, **csv, schema="name string, id bigint")

    assert result.verdict is CLEAN, result.render()
    assert lake.table().scan().to_arrow().sort_by("_kafka_offset") == before


def test_a_schema_goes_with_records_whose_fields_have_no_names_only(lake: Lake) -> None:
    with pytest.raises(InvalidArgument, match=r'schema: goes with sql_input="decoded" and format="csv"'):
        repair(lake, schema="id bigint")


def test_wrong_bounds_are_mended_beside_a_repair(
    lake: Lake, topic: Topics, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=1)
    texts = ["z" * 5000, "z" * 5000, "a", "b"]
    produce(name, 0, [b'{"s": "%s"}' % text.encode() for text in texts])
    with monkeypatch.context() as before_this:
        before_this.setattr(parquet, "unbounded", lambda footer: {})
        lake.land(name, table_properties={"write.parquet.row-group-limit": "2"})
    lake.table().delete("_kafka_offset = 3")
    result = repair(lake)
    assert result.verdict is CLEAN, result.render()
    assert repaired(result).rows_in == 1
    assert len(lake.table().scan(row_filter="s > 'p'").to_arrow()) == 2


def test_the_statement_of_a_replay_is_none_of_the_rows_that_were_landed_without_it(
    lake: Lake, topic_of: TopicOf
) -> None:
    lake.land(topic_of(['{"n": 0}', '{"n": 1}', '{"n": "two"}']), schema="n bigint")
    decoding = {"sql": "SELECT CAST(7 AS BIGINT) AS n FROM {{ input }}"}
    assert RejectReplay(table=TABLE, consumer_group=GROUP, decoding=decoding).run(lake.catalog()).counts.written == 1
    lake.table().delete("_kafka_offset = 1")
    assert repair(lake).verdict is CLEAN
    assert sorted(lake.column("n")) == [0, 1, 7]
