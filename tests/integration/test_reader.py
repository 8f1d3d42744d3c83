"""What the reader hands on: every record once and in order, whatever its size, and never more held than it may."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.kafka import reader
from airflow_lakestream.kafka.reader import ConsumerPositions
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import Lake
from tests.support.transactions import Transaction

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
    job = Lake(tmp_path, kafka.client_config()).job(name)
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
    kafka: Kafka, tmp_path: Path, topic_of: TopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Asked(Consumer):
        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            asked.append(num_messages)
            return super().consume(num_messages, timeout)

    monkeypatch.setattr(reader, "Consumer", Asked)
    monkeypatch.setattr(reader, "CONSUME", 400)
    name = topic_of([b"%d" % n for n in range(RECORDS)])
    job = Lake(tmp_path, kafka.client_config()).job(name)
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
    job = Lake(tmp_path, kafka.client_config()).job(name)

    chunks = list(job.reader.read(Plan(job.source.look(), RangeSet([OffsetRange(name, 0, 0, len(sizes))])), Event()))

    assert [len(value) for chunk in chunks for value in chunk.batch.values.to_pylist()] == sizes
    assert [offset for chunk in chunks for offset in chunk.batch.offsets] == list(range(len(sizes)))


def test_a_limit_of_bytes_per_second_is_kept_and_its_chunks_are_small(
    kafka: Kafka, tmp_path: Path, topic_of: TopicOf
) -> None:
    name = topic_of([bytes(10_000)] * 150)
    job = Lake(tmp_path, kafka.client_config()).job(name, max_bytes_per_second="1MiB")
    plan = Plan(job.source.look(), RangeSet([OffsetRange(name, 0, 0, 150)]))

    began = time.monotonic()
    chunks = list(job.reader.read(plan, Event()))

    # Never faster, on any machine.
    assert time.monotonic() - began >= 150 * 10_000 / 2**20
    assert [offset for chunk in chunks for offset in chunk.batch.offsets] == list(range(150))
    assert len(chunks) > 1


def test_a_slow_read_ends_as_soon_as_it_is_stopped(kafka: Kafka, tmp_path: Path, topic_of: TopicOf) -> None:
    # At this speed the read takes a day.
    name, stop = topic_of([bytes(10_000)] * 10), Event()
    job = Lake(tmp_path, kafka.client_config()).job(name, max_bytes_per_second=1)
    chunks = job.reader.read(Plan(job.source.look(), RangeSet([OffsetRange(name, 0, 0, 10)])), stop)

    assert len(next(chunks).batch)
    stop.set()
    assert list(chunks) == []


def test_records_are_of_the_partition_that_they_were_written_to_however_the_fetches_mix(
    kafka: Kafka,
    tmp_path: Path,
    topic: Topics,
    produce: Producing,
    admin: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without asking each message, where only one partition's position has moved; markers and aborts move it too."""
    name, number = topic(partitions=3), 0
    transaction = Transaction(kafka, admin)
    for end in (transaction.commit, transaction.abort, transaction.commit, transaction.abort):
        for partition in range(3):
            produce(name, partition, [b"%d" % partition] * (40 + number % 7))
            transaction.begin(name, partition, [b"%d" % partition] * (1 + number % 3))
            end()
            number += 1
    for partition in range(3):
        produce(name, partition, [b"%d" % partition] * 500)
    answers: list[int | None] = []

    class Asked(ConsumerPositions):
        def only_moved_partition(self, count: int) -> int | None:
            answers.append(super().only_moved_partition(count))
            return answers[-1]

    monkeypatch.setattr(reader, "ConsumerPositions", Asked)
    monkeypatch.setattr(reader, "CONSUME", 100)
    job = Lake(tmp_path, {**kafka.client_config(), "max.partition.fetch.bytes": "4000"}).job(name)
    state = job.source.look()
    plan = Plan(state, RangeSet(OffsetRange(name, p, 0, marks.end) for p, marks in state.marks.items()))

    offsets = defaultdict(list)
    for chunk in job.reader.read(plan, Event()):
        offsets[chunk.covers.partition] += chunk.batch.offsets
        assert set(chunk.batch.values.to_pylist()) <= {b"%d" % chunk.covers.partition}

    for partition, found in offsets.items():
        assert found == sorted(set(found))
        # All but the markers and the aborted ones, of which there are two each.
        assert len(found) == 500 + sum(40 + n % 7 for n in range(partition, 12, 3)) + sum(
            1 + n % 3 for n in range(partition, 12, 6)
        )
    assert {type(answer) for answer in answers} == {int, type(None)}, "both ways were taken"
