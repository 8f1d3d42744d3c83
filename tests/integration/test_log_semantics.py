"""What a Kafka log can look like: transactions, compaction, emptiness, growth. Runs end, and the books are right."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.faults import InterposedSource
from tests.support.lake import Lake
from tests.support.lake_reading import at, numbers
from tests.support.transactions import Transaction

pytestmark = pytest.mark.integration

SCHEMA = "n bigint"


@pytest.fixture
def transaction(kafka: Kafka, admin: AdminClient) -> Transaction:
    return Transaction(kafka, admin)


def readable(kafka: Kafka, topic: str, partition: int = 0) -> list[int]:
    """Return the offsets that a plain consumer gets from one partition, from its start to its end."""
    settings = {"group.id": "oracle", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 2}
    consumer = Consumer({**kafka.client_config(), **settings})
    found = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic}[{partition}] did not end"
            if (error := message.error()) is None:
                found.append(message.offset())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


# Transactions


def test_aborted_records_do_not_land_and_committed_ones_around_them_do(
    lake: Lake, topic_of: TopicOf, produce: Producing, transaction: Transaction
) -> None:
    name = topic_of(numbers(3))
    transaction.begin(name, 0, numbers(4, 100))
    transaction.abort()
    transaction.begin(name, 0, numbers(2, 200))
    transaction.commit()
    produce(name, 0, numbers(1, 300))

    report = lake.land(name)

    # 0-2 plain, 3-6 aborted, 7 marker, 8-9 committed, 10 marker, 11 plain.
    assert lake.offsets() == at(0, (0, 1, 2, 8, 9, 11))
    assert lake.column("n") == [0, 1, 2, 200, 201, 300]
    assert lake.landed(name) == {0: [(0, 12)]}
    assert report.counts.read == report.counts.written == 6
    assert report.remaining_lag == 0


def test_an_open_transaction_holds_back_what_comes_after_it_and_lands_after_its_commit(
    lake: Lake, topic_of: TopicOf, produce: Producing, transaction: Transaction
) -> None:
    name = topic_of(numbers(3), numbers(2))
    transaction.begin(name, 0, numbers(4, 100))
    produce(name, 0, numbers(2, 200))

    held_back = lake.land(name)

    assert lake.offsets() == at(0, range(3)) + at(1, range(2))
    assert lake.landed(name) == {0: [(0, 3)], 1: [(0, 2)]}
    # The ends are the last stable offsets: what is not stable yet is no lag of this run.
    assert held_back.remaining_lag == 0

    transaction.commit()
    lake.land(name)

    assert lake.offsets() == at(0, range(9)) + at(1, range(2))
    assert lake.landed(name) == {0: [(0, 10)], 1: [(0, 2)]}


def test_an_open_transaction_that_is_aborted_in_the_end_never_lands(
    lake: Lake, topic: Topics, produce: Producing, transaction: Transaction
) -> None:
    name = topic(partitions=1)
    transaction.begin(name, 0, numbers(4))
    produce(name, 0, numbers(2, 100))

    lake.land(name, schema=SCHEMA)
    assert lake.offsets() == []
    transaction.abort()
    lake.land(name, schema=SCHEMA)

    assert lake.offsets() == at(0, (4, 5))
    assert lake.landed(name) == {0: [(0, 7)]}


def test_a_range_that_ends_in_a_marker_ends_and_is_not_read_again(
    lake: Lake, topic: Topics, transaction: Transaction
) -> None:
    name = topic(partitions=1)
    transaction.begin(name, 0, numbers(3))
    transaction.commit()

    lake.land(name)
    snapshots = len(lake.snapshots())
    again = lake.land(name)

    assert lake.offsets() == at(0, range(3))
    assert lake.landed(name) == {0: [(0, 4)]}
    assert again.snapshot_ids == []
    assert len(lake.snapshots()) == snapshots


def test_many_markers_in_a_row_at_the_end_are_passed(lake: Lake, topic: Topics, transaction: Transaction) -> None:
    name = topic(partitions=1)
    transaction.begin(name, 0, numbers(1))
    transaction.commit()
    for start in range(3):
        transaction.begin(name, 0, numbers(2, 10 * start))
        transaction.abort()

    lake.land(name)

    assert lake.offsets() == at(0, (0,))
    assert lake.landed(name) == {0: [(0, 11)]}


def test_a_range_of_aborted_records_alone_is_covered_without_a_row(
    lake: Lake, topic: Topics, produce: Producing, transaction: Transaction
) -> None:
    name = topic(partitions=2)
    produce(name, 0, numbers(2))
    lake.land(name)
    transaction.begin(name, 1, numbers(5))
    transaction.abort()

    report = lake.land(name)

    assert lake.offsets() == at(0, range(2))
    assert lake.landed(name) == {0: [(0, 2)], 1: [(0, 6)]}
    assert report.counts.read == 0
    assert len(report.snapshot_ids) == 1


def test_aborted_records_alone_make_a_table_only_when_the_schema_is_given(
    lake: Lake, topic: Topics, transaction: Transaction
) -> None:
    name = topic(partitions=1)
    transaction.begin(name, 0, numbers(5))
    transaction.abort()

    assert lake.land(name).snapshot_ids == []
    assert lake.has_nothing()

    lake.land(name, schema=SCHEMA)
    assert lake.offsets() == []
    assert lake.landed(name) == {0: [(0, 6)]}


def test_read_uncommitted_comes_from_the_connection(
    lake: Lake, topic: Topics, produce: Producing, transaction: Transaction
) -> None:
    name = topic(partitions=1)
    transaction.begin(name, 0, numbers(2))
    transaction.abort()
    transaction.begin(name, 0, numbers(2, 100))
    produce(name, 0, numbers(1, 200))

    lake.land(name, kafka={"isolation.level": "read_uncommitted"})

    # 0-1 aborted, 2 marker, 3-4 open, 5 plain.
    assert lake.offsets() == at(0, (0, 1, 3, 4, 5))
    assert lake.landed(name) == {0: [(0, 6)]}
    transaction.abort()


# Compaction


def test_a_compacted_topic_lands_what_is_left_tombstones_included(
    lake: Lake, kafka: Kafka, topic: Topics, produce: Producing
) -> None:
    name = topic(
        partitions=1,
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.001,
        min_compaction_lag_ms=0,
        delete_retention_ms=3_600_000,
    )
    keys = [f"k{n % 5}" for n in range(60)]
    produce(name, 0, numbers(60), keys=keys)
    produce(name, 0, [None], keys=["k0"])

    def compacted() -> bool:
        # An append rolls the segment, and only closed segments are compacted.
        produce(name, 0, numbers(1, 1000), keys=["roll"])
        return len(readable(kafka, name)) < 20

    poll_until(compacted, "the topic to be compacted", 180)
    # Nothing may be compacted between the run and the oracle: what the run saw is what the oracle must see.
    before = readable(kafka, name)
    lake.land(name, metadata_columns=["topic", "partition", "offset", "timestamp", "key"])
    rows = lake.records()

    assert set(readable(kafka, name)) <= set(lake.column("_kafka_offset")) <= set(before)
    assert before[0] > 0, "compaction left no hole at the start"
    [(start, end)] = lake.landed(name)[0]
    assert (start, end) == (0, before[-1] + 1)
    tombstones = [row for row in rows if row["n"] is None]
    assert [(row["_kafka_offset"], row["_kafka_key"]) for row in tombstones] == [(60, b"k0")]
    assert all(row["n"] == row["_kafka_offset"] for row in rows if row["_kafka_offset"] < 60)


# Emptiness


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_an_empty_topic_with_a_schema_makes_the_table_and_records_the_origin(
    lake: Lake, topic: Topics, produce: Producing, start: str
) -> None:
    name = topic(partitions=2)

    lake.land(name, schema=SCHEMA, start_offset=start)
    assert lake.offsets() == []
    assert lake.entry(name).origin == {0: 0, 1: 0}

    produce(name, 1, numbers(3))
    lake.land(name, schema=SCHEMA, start_offset=start)
    assert lake.offsets() == at(1, range(3))


def test_an_empty_topic_without_a_schema_leaves_nothing_and_loses_nothing(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=2)

    assert lake.land(name).snapshot_ids == []
    assert lake.has_nothing()

    produce(name, 0, numbers(3))
    lake.land(name)
    assert lake.offsets() == at(0, range(3))


def test_latest_on_an_empty_topic_without_a_schema_is_refused(lake: Lake, topic: Topics) -> None:
    with pytest.raises(InvalidArgument, match=r"the offsets where the group begins.* Give a schema") as caught:
        lake.land(topic(partitions=2), start_offset="latest")
    assert caught.value.argument == "schema"
    assert lake.has_nothing()


def test_latest_on_a_full_topic_without_a_schema_is_refused(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=2)
    produce(name, 0, numbers(3))
    with pytest.raises(InvalidArgument, match="Give a schema"):
        lake.land(name, start_offset="latest")
    assert lake.has_nothing()


def test_an_empty_topic_into_an_existing_table_records_its_origin_once(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    full, empty = topic(partitions=1), topic(partitions=1)
    produce(full, 0, numbers(2))
    lake.land(full)

    lake.land(empty, start_offset="latest")
    snapshots = len(lake.snapshots())
    assert lake.land(empty, start_offset="latest").snapshot_ids == []
    assert len(lake.snapshots()) == snapshots
    assert lake.entry(empty).origin == {0: 0}

    produce(empty, 0, numbers(1, 7))
    lake.land(empty, start_offset="latest")
    assert sorted((row["_kafka_topic"] == empty, row["n"]) for row in lake.records()) == [
        (False, 0),
        (False, 1),
        (True, 7),
    ]


# Growth


def test_a_partition_added_later_begins_at_0_whatever_start_offset_says(
    lake: Lake, kafka: Kafka, topic_of: TopicOf, topic: Topics, produce: Producing
) -> None:
    name = topic_of(numbers(2))
    lake.land(name, schema=SCHEMA, start_offset="latest")
    topic.add_partitions(name, 2)
    # The session's producer knows the topic as it was.
    produce = Producing(kafka.client_config())
    produce(name, 1, numbers(3))
    produce(name, 0, numbers(1, 2))

    lake.land(name, schema=SCHEMA, start_offset="latest")

    assert lake.offsets() == at(0, (2,)) + at(1, range(3))
    assert lake.landed(name) == {0: [(2, 3)], 1: [(0, 3)]}


def test_a_partition_with_nothing_new_does_not_hold_up_a_run(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=3)
    produce(name, 0, numbers(2))
    produce(name, 1, numbers(2))
    lake.land(name)
    produce(name, 1, numbers(2, 2))

    report = lake.land(name)

    assert lake.offsets() == at(0, range(2)) + at(1, range(4))
    assert report.to_dict()["ranges"] == [[1, 2, 4]]


def test_a_run_lands_up_to_the_ends_at_its_start_however_the_topic_grows(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(numbers(5))
    job = lake.job(name)

    def grow() -> None:
        produce(name, 0, numbers(3, 5))

    # The second look is the one after the landing: what came by then is lag.
    report = land(replace(job, source=InterposedSource(job.source, grow, 2)))

    assert lake.offsets() == at(0, range(5))
    assert report.remaining_lag == 3


def test_holes_in_the_ledger_are_read_exactly(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(*(numbers(700) for partition in (0, 1)))
    job = lake.job(name)
    state = job.source.look()
    holes = [(0, 10), (20, 30), (400, 401), (600, 700)]
    ranges = RangeSet()
    for partition in (0, 1):
        for start, end in holes:
            ranges |= RangeSet.of(name, partition, start, end)

    chunks = list(job.reader.read(Plan(state, ranges), Event()))

    read = sorted((chunk.covers.partition, offset) for chunk in chunks for offset in chunk.batch.offsets)
    assert read == sorted((r.partition, offset) for r in ranges for offset in range(r.from_offset, r.until_offset))
    assert RangeSet(chunk.covers for chunk in chunks) == ranges


# What a record carries


def test_keys_headers_and_null_keys_land(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=1)
    headers = [("trace", b"\x00\xff"), ("trace", None), ("é", b"")]
    produce(name, 0, numbers(3), keys=[b"a\xff", None, b""], headers=[headers, [], [("x", b"1")]])

    lake.land(name, metadata_columns=["offset", "partition", "key", "headers"])

    rows = lake.records()
    assert lake.column("_kafka_key") == [b"a\xff", None, b""]
    assert rows[0]["_kafka_headers"] == [{"key": key, "value": value} for key, value in headers]
    assert rows[1]["_kafka_headers"] in (None, [])
    assert rows[2]["_kafka_headers"] == [{"key": "x", "value": b"1"}]


def test_timestamps_of_the_producer_land_to_the_millisecond(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=1, retention_ms=-1)
    times = [1_700_000_000_123, 1, 1_700_000_000_122]
    produce(name, 0, numbers(3), timestamps=times)

    lake.land(name)

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert lake.column("_kafka_timestamp") == [epoch + timedelta(milliseconds=t) for t in times]


def test_log_append_time_is_the_brokers(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=1, message_timestamp_type="LogAppendTime")
    before = datetime.now(UTC) - timedelta(seconds=1)
    produce(name, 0, numbers(2), timestamps=[1_000, 2_000])

    lake.land(name)

    assert all(before < row["_kafka_timestamp"] < before + timedelta(minutes=2) for row in lake.records())
