"""Before they show, an engine's records are decoded again, and its rows are compared with ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import TimestamptzType

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.publish import RowlessMeaning
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsUnseen
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.run.publication import DecodingProof, sample
from tests.support.fault_log import Kind, ModelReader, Shape
from tests.support.publishing import BRANCH, GROUP, TABLE, TOPIC, World

COLUMNS = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])


def proven(world: World, begins: Mapping[int, int] = MappingProxyType({}), **job: Any) -> Any:
    return world.publish(proof=proof_of(world, begins), **job)


def proof_of(world: World, begins: Mapping[int, int] = MappingProxyType({}), **given: Any) -> DecodingProof:
    # What no column is for makes a record bad, too.
    def decoder(table: pa.Schema) -> JsonDecoder:
        return JsonDecoder(pa.schema([*table, *(one for one in COLUMNS if one.name not in table.names)]))

    return DecodingProof(reader=ModelReader(world.log, 7), decoder=decoder, begins=begins, **given)


def spoil(world: World, partition: int, offset: int) -> None:
    world.log.partitions[partition].entries[offset].shape = Shape.BAD


def test_records_that_ours_takes_are_published_and_tombstones_are_none(world: World) -> None:
    world.produce(0, Kind.TOMBSTONE, Kind.ABORTED, Kind.MARKER, Kind.DATA)
    world.step()
    counts = proven(world).counts
    assert (counts.read, counts.written, counts.skipped) == (25, 24, 1)
    world.assert_main_has_it_all()


@pytest.mark.parametrize("rowless", list(RowlessMeaning))
def test_a_record_that_the_engine_has_read_over_is_named_and_nothing_shows(
    world: World, rowless: RowlessMeaning
) -> None:
    world.step()
    proven(world)
    world.records(1, 5)
    spoil(world, 1, 5)
    # Also where the engine has left it out: those behind it may be spoilt.
    world.write([one for one in world.read() if one != (1, 5)])
    head, there = world.heads(), world.rows(BRANCH)
    with pytest.raises(RecordDoubted, match=rf"{TOPIC}\[1\] offset 5: .*Run KafkaExtractOperator once"):
        proven(world, rowless=rowless)
    assert (world.heads(), world.rows(BRANCH)) == (head, there)


def test_what_the_engine_has_not_read_is_not_looked_at(world: World) -> None:
    spoil(world, 0, 3)
    world.at = {0: 4, 1: 0}
    world.step()
    with pytest.raises(RecordDoubted):
        proven(world)
    proven(world, {0: 4}, rowless=RowlessMeaning.FILTERED)
    assert world.rows() == [(0, o) for o in range(4, 20)] + [(1, o) for o in range(3)]


def test_rows_of_records_that_have_left_kafka_are_taken_only_if_somebody_says_so(world: World) -> None:
    world.step()
    world.log.partitions[0].low = 12
    with pytest.raises(RowsUnseen, match=r"\[0,12\) have left Kafka"):
        proven(world)
    assert world.entry().counts.written == 0
    proven(world, on_data_loss=OnDataLoss.RECORD)
    assert world.rows() == world.expected()


def numbers(world: World, changed: Mapping[tuple[int, int], int | None]) -> tuple[list[tuple[int, int]], pa.Array]:
    """Let the engine read all, and make other numbers of some records."""
    read = world.read()
    made = [changed.get(one, one[0] * 1_000_000 + one[1]) for one in read]
    return read, pa.array(made, pa.int64())


@pytest.mark.parametrize("value", [None, 7, -(2**63)])
def test_another_value_is_named_by_its_place_and_column_and_nothing_shows(world: World, value: int | None) -> None:
    world.step()
    proven(world)
    world.records(0, 30)
    world.records(1, 5)
    read, n = numbers(world, {(0, 33): value, (1, 4): value})
    # In another order than Kafka's, and in two files.
    back = pa.array(range(len(read) - 1, 9, -1))
    world.write([read[i] for i in back.to_pylist()], n=n.take(back))
    world.write(read[:10], n=n.slice(0, 10))
    head = world.heads()
    with pytest.raises(RowsDiffer, match="2 rows have other values than the extract") as differ:
        proven(world)
    assert world.heads() == head
    assert [str(one) for one in differ.value.named] == [f"{TOPIC}[0] offset 33: n", f"{TOPIC}[1] offset 4: n"]
    assert differ.value.ranges == RangeSet.of(TOPIC, 0, 33, 34) | RangeSet.of(TOPIC, 1, 4, 5)
    assert "Run KafkaExtractOperator once with the same group" in str(differ.value)


def test_each_of_many_is_told_and_the_first_ones_are_named(world: World) -> None:
    read, n = numbers(world, {(0, o): 1 for o in range(3, 20)})
    world.write(read, n=n)
    with pytest.raises(RowsDiffer) as differ:
        proven(world)
    assert differ.value.ranges == RangeSet.of(TOPIC, 0, 3, 20)
    assert [one.offset for one in differ.value.named] == [3, 4, 5, 6, 7]


def test_a_timestamp_that_no_column_holds_is_a_bad_record(world: World) -> None:
    world.log.partitions[0].entries[5].at_ms = 2**63 - 1
    world.step()
    with pytest.raises(RecordDoubted, match=rf"{TOPIC}\[0\] offset 5: the record's timestamp .* is out of range"):
        proven(world)


@pytest.mark.parametrize("wrong", [1_700_000_000_001_000, 2**62, -(2**63), 253_402_300_800_000_000, None])
def test_another_time_of_kafka_s_is_named_also_one_that_python_has_no_name_for(
    tmp_path: Path, wrong: int | None
) -> None:
    world = World(tmp_path)
    world.begin()
    with world.table().update_schema() as change:
        change.add_column("_kafka_timestamp", TimestamptzType())
    with world.table().transaction() as transaction:
        # Bounds of such times PyIceberg does not write, other engines do.
        transaction.set_properties({"write.metadata.metrics.column._kafka_timestamp": "none"})
    world.records(0, 9)
    kind, right = pa.timestamp("us", "UTC"), 1_700_000_000_000_000
    read = world.read()
    world.write(read[:5], _kafka_timestamp=pa.array([right] * 5, kind))
    proven(world)
    world.write(read[5:], _kafka_timestamp=pa.array([right, wrong, right, right], kind))
    with pytest.raises(RowsDiffer) as differ:
        proven(world)
    assert [str(one) for one in differ.value.named] == [f"{TOPIC}[0] offset 6: _kafka_timestamp"]


def test_the_ledger_says_whose_values_nobody_has_compared(world: World) -> None:
    world.step()
    proven(world)
    assert world.entry().unproven == RangeSet()
    for job in ({}, {"proof": proof_of(world, compares=False)}, {"proof": proof_of(world, share=0.5)}):
        first = len(world.log.partitions[0].entries)
        before = world.entry().unproven
        world.records(0, 10)
        world.step()
        world.publish(**job)
        assert world.entry().unproven == before | RangeSet.of(TOPIC, 0, first, first + 10)
    world.records(0, 10)
    world.step()
    proven(world)
    assert world.entry().unproven == RangeSet.of(TOPIC, 0, 20, 50)
    # What nobody can compare any more is told, too.
    world.records(0, 10)
    world.step()
    world.log.partitions[0].low = 65
    proven(world, on_data_loss=OnDataLoss.RECORD)
    assert world.entry().unproven == RangeSet.of(TOPIC, 0, 20, 50) | RangeSet.of(TOPIC, 0, 60, 65)
    audit = Audit(table=TABLE, consumer_group=GROUP).run(world.catalog())
    assert audit.verdict is AuditVerdict.CLEAN
    assert [note for note in audit.notes if "their values are not proven" in note] == [
        f"{world.entry().unproven}: rows of Flink's or Kafka Connect's, not each of which was compared with what the "
        "extract makes of its record: their values are not proven."
    ]


def test_of_a_share_whole_stretches_are_looked_at_and_what_differs_there_is_found(world: World) -> None:
    world.records(0, 9_980)
    looked_at = sample(RangeSet.of(TOPIC, 0, 0, 10_000), 0.5)
    assert 2_000 <= looked_at.width <= 8_000
    inside, outside = looked_at, RangeSet.of(TOPIC, 0, 0, 10_000) - looked_at
    (first, _), *_ = inside.intervals(TOPIC, 0)
    (other, _), *_ = outside.intervals(TOPIC, 0)
    read, n = numbers(world, {(0, first + 7): 1, (0, other + 7): 1})
    world.write(read, n=n)
    with pytest.raises(RowsDiffer) as differ:
        world.publish(proof=proof_of(world, share=0.5))
    assert differ.value.ranges == RangeSet.of(TOPIC, 0, first + 7, first + 8)
    assert sample(looked_at, 1.0) == looked_at


def test_without_records_beyond_rows_only_those_of_rows_are_decoded(world: World) -> None:
    spoil(world, 0, 5)
    world.write([one for one in world.read() if one != (0, 5)])
    world.publish(proof=proof_of(world, beyond_rows=False))
    assert world.entry().unproven == RangeSet()
    assert world.entry().held == RangeSet.of(TOPIC, 0, 0, 20) - RangeSet.of(TOPIC, 0, 5, 6) | RangeSet.of(
        TOPIC, 1, 0, 3
    )
