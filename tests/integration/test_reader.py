"""What the reader hands on: every record once and in order, whatever its size, and never more held than it may."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Consumer, Message

from airflow_lakestream.core.plan import Plan
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.kafka import reader
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.lake_reading import OpenLake

pytestmark = pytest.mark.integration

PARTITIONS, RECORDS = 8, 600


def test_many_partitions_together_hold_no_more_than_they_may(
    kafka: Kafka, tmp_path: Path, topic: Topics, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(name, partition, [b"%d" % n + bytes(1000) for n in range(RECORDS)])
    monkeypatch.setattr(reader, "HELD_BYTES", 20_000)
    monkeypatch.setattr(reader, "CONSUME", 200)
    job = OpenLake(tmp_path, kafka.client_config()).job(name)
    plan = Plan(job.source.look(), RangeSet(OffsetRange(name, p, 0, RECORDS) for p in range(PARTITIONS)))

    offsets, chunks = defaultdict(list), defaultdict(int)
    for chunk in job.reader.read(plan, Event()):
        offsets[chunk.covers.partition] += chunk.batch.offsets
        chunks[chunk.covers.partition] += 1
        for offset, value in zip(chunk.batch.offsets, chunk.batch.values.to_pylist(), strict=True):
            assert value.rstrip(b"\0") == b"%d" % offset

    assert dict(offsets) == {p: list(range(RECORDS)) for p in range(PARTITIONS)}
    # What 200 records at once bring is handed on; else each would be one chunk, full at 4 MiB only.
    assert min(chunks.values()) > 1


def test_no_more_records_are_asked_for_than_are_left(
    kafka: Kafka, tmp_path: Path, topic: Topics, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Asked(Consumer):
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            asked.append(num_messages)
            return super().consume(num_messages, timeout)

    monkeypatch.setattr(reader, "Consumer", Asked)
    monkeypatch.setattr(reader, "CONSUME", 400)
    name = topic(partitions=1)
    produce(name, 0, [b"%d" % n for n in range(RECORDS)])
    job = OpenLake(tmp_path, kafka.client_config()).job(name)
    # Behind the range the log goes on, as it does for the share of one of several processes.
    plan = Plan(job.source.look(), RangeSet([OffsetRange(name, 0, 0, RECORDS - 50)]))

    assert sum(len(chunk.batch) for chunk in job.reader.read(plan, Event())) == RECORDS - 50
    # Waiting for more than there is takes a tenth of a second each time.
    assert asked[0] == 400
    assert asked[-1] <= RECORDS - 50 - 400 < 400


def test_records_whose_sizes_change_from_small_to_large_and_back(
    kafka: Kafka, tmp_path: Path, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=1)
    sizes = [10] * 1500 + [600_000] * 30 + [0] * 1500
    produce(name, 0, [bytes(size) for size in sizes])
    job = OpenLake(tmp_path, kafka.client_config()).job(name)

    chunks = list(job.reader.read(Plan(job.source.look(), RangeSet([OffsetRange(name, 0, 0, len(sizes))])), Event()))

    assert [len(value) for chunk in chunks for value in chunk.batch.values.to_pylist()] == sizes
    assert [offset for chunk in chunks for offset in chunk.batch.offsets] == list(range(len(sizes)))
