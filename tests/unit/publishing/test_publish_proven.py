"""Where an engine's decoder notices less than ours, its records are decoded again before their rows show."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.publish import Rowless
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsUnseen
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.run.publication import DecodedAgain
from tests.support.fault_log import Kind, ModelReader, Shape
from tests.support.publishing import BRANCH, TOPIC, World

COLUMNS = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])


def proven(world: World, begins: Mapping[int, int] = MappingProxyType({}), **job: Any) -> Any:
    proof = DecodedAgain(ModelReader(world.log, 7), JsonDecoder(COLUMNS).decode, begins, tombstones=False)
    return world.publish(proof=proof, **job)


def spoil(world: World, partition: int, offset: int) -> None:
    world.log.partitions[partition].entries[offset].shape = Shape.BAD


def test_records_that_ours_takes_are_published_and_tombstones_are_none(world: World) -> None:
    world.produce(0, Kind.TOMBSTONE, Kind.ABORTED, Kind.MARKER, Kind.DATA)
    world.step()
    counts = proven(world).counts
    assert (counts.read, counts.written, counts.skipped) == (25, 24, 1)
    world.assert_main_has_it_all()


@pytest.mark.parametrize("rowless", list(Rowless))
def test_a_record_that_the_engine_has_read_over_is_named_and_nothing_shows(world: World, rowless: Rowless) -> None:
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
    proven(world, {0: 4}, rowless=Rowless.FILTERED)
    assert world.rows() == [(0, o) for o in range(4, 20)] + [(1, o) for o in range(3)]


def test_rows_of_records_that_have_left_kafka_are_taken_only_if_somebody_says_so(world: World) -> None:
    world.step()
    world.log.partitions[0].low = 12
    with pytest.raises(RowsUnseen, match=r"\[0,12\) have left Kafka"):
        proven(world)
    assert world.entry().counts.written == 0
    proven(world, on_data_loss=OnDataLoss.RECORD)
    assert world.rows() == world.expected()
