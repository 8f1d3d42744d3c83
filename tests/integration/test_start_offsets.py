"""Where a group begins, that its ledger decides from then on, and the mirror of its progress in Kafka."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.exceptions import InvalidArgument
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.lake import Lake
from tests.support.lake_reading import at, numbers

pytestmark = pytest.mark.integration

SCHEMA = "n bigint"
NOON = 1_763_640_000_000
Committed = Callable[[str, str], dict[int, int]]


@pytest.fixture
def group() -> str:
    """Give a group of this test alone: Kafka's groups outlive tests."""
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def committed(admin: AdminClient) -> Committed:
    """Return a group's committed offsets in Kafka, by partition."""

    def ask(group: str, topic: str) -> dict[int, int]:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        return {tp.partition: tp.offset for tp in answer.topic_partitions if tp.topic == topic and tp.offset >= 0}

    return ask


def commit(admin: AdminClient, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets, as the tool would have that was used before."""
    targets = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, targets)]
    for tp in admin.alter_consumer_group_offsets(request)[group].result(30).topic_partitions:
        assert tp.error is None


def minutes_from_noon(minutes: Iterable[int]) -> list[int]:
    return [NOON + minute * 60_000 for minute in minutes]


# Where a group begins


def test_earliest_lands_all(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(numbers(4))

    lake.land(name, start_offset="earliest")

    assert lake.offsets() == at(0, range(4))
    assert lake.entry(name).origin == {0: 0}


def test_latest_lands_only_what_comes_after_the_first_run(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=2)
    produce(name, 0, numbers(4))

    first = lake.land(name, schema=SCHEMA, start_offset="latest")
    produce(name, 0, numbers(2, 4))
    produce(name, 1, numbers(1))
    lake.land(name, start_offset="latest")

    assert first.counts.read == 0
    assert lake.offsets() == at(0, (4, 5)) + at(1, (0,))
    assert lake.entry(name).origin == {0: 4, 1: 0}


@pytest.mark.parametrize(
    "start",
    [NOON + 120_000, str(NOON + 120_000), datetime(2025, 11, 20, 12, 2, tzinfo=UTC), "2025-11-20T13:02:00+01:00"],
    ids=["milliseconds", "text of milliseconds", "datetime", "ISO 8601"],
)
def test_timestamp_begins_at_the_first_record_at_or_after_it(
    lake: Lake, topic: Topics, produce: Producing, start: Any
) -> None:
    name = topic(partitions=3, retention_ms=-1)
    produce(name, 0, numbers(4), timestamps=minutes_from_noon(range(4)))
    # A late record behind the boundary belongs to what comes after it, for its offset does.
    produce(name, 1, numbers(4), timestamps=minutes_from_noon([0, 3, 1, 5]))
    produce(name, 2, numbers(2), timestamps=minutes_from_noon([0, 1]))

    lake.land(name, start_offset="timestamp", start_timestamp=start)

    assert lake.offsets() == at(0, (2, 3)) + at(1, (1, 2, 3))
    # No record at or after it means the end, never the beginning.
    assert lake.entry(name).origin == {0: 2, 1: 1, 2: 2}


def test_committed_takes_over_from_another_tool(lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str) -> None:
    name = topic_of(*(numbers(4) for partition in range(3)))
    commit(admin, group, name, {0: 3, 1: 4})

    lake.land(name, consumer_group=group, start_offset="committed")

    # A partition without a committed offset begins at the log's start.
    assert lake.offsets() == at(0, (3,)) + at(2, range(4))
    assert lake.entry(name, group).origin == {0: 3, 1: 4, 2: 0}


def test_committed_without_any_committed_offset_is_refused_with_the_remedy(
    lake: Lake, topic_of: TopicOf, group: str
) -> None:
    name = topic_of(numbers(1))

    with pytest.raises(InvalidArgument, match=rf"^start_offset: .*{group}.*{name}.*earliest") as caught:
        lake.land(name, consumer_group=group, start_offset="committed")

    assert caught.value.argument == "start_offset"
    assert lake.has_nothing()


# From then on the ledger decides


@pytest.mark.parametrize(
    "later",
    [
        {"start_offset": "latest"},
        {"start_offset": "earliest"},
        {"start_offset": "committed"},
        {"start_offset": "timestamp", "start_timestamp": NOON},
    ],
    ids=lambda later: later["start_offset"],
)
def test_after_the_first_run_the_ledger_decides(
    lake: Lake, topic_of: TopicOf, produce: Producing, admin: AdminClient, group: str, later: dict[str, Any]
) -> None:
    name = topic_of(numbers(2))
    lake.land(name, consumer_group=group, schema=SCHEMA, start_offset="latest")
    produce(name, 0, numbers(4, 2))
    commit(admin, group, name, {0: 5})

    lake.land(name, consumer_group=group, **later)

    assert lake.offsets() == at(0, range(2, 6))
    assert lake.entry(name, group).origin == {0: 2}


# The mirror


def test_the_groups_committed_offsets_are_the_first_holes(
    lake: Lake, topic: Topics, produce: Producing, group: str, committed: Committed
) -> None:
    name = topic(partitions=3)
    produce(name, 0, numbers(5))
    produce(name, 1, numbers(2))

    lake.land(name, consumer_group=group)
    assert committed(group, name) == {0: 5, 1: 2, 2: 0}

    produce(name, 0, numbers(5, 5))
    report = lake.land(name, consumer_group=group, max_records=2)
    assert committed(group, name) == {0: 7, 1: 2, 2: 0}
    assert report.remaining_lag == 3


def test_a_run_with_nothing_to_land_sets_the_mirror_right(
    lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str, committed: Committed
) -> None:
    name = topic_of(numbers(5))
    lake.land(name, consumer_group=group)
    commit(admin, group, name, {0: 1})

    assert lake.land(name, consumer_group=group).snapshot_ids == []
    assert committed(group, name) == {0: 5}


def test_a_group_in_use_by_a_subscriber_only_warns(
    lake: Lake, kafka: Kafka, topic_of: TopicOf, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic_of(numbers(3))
    settings = {"group.id": group, "enable.auto.commit": False, "log_level": 2}
    subscriber = Consumer({**kafka.client_config(), **settings})
    subscriber.subscribe([name])

    def joined() -> bool:
        subscriber.poll(0.1)
        return bool(subscriber.assignment())

    try:
        poll_until(joined, "the subscriber to have joined its group")
        with caplog.at_level(logging.WARNING, "airflow_lakestream"):
            lake.land(name, consumer_group=group)
    finally:
        subscriber.close()

    assert lake.offsets() == at(0, range(3))
    assert f"committed offsets of group {group!r}" in caplog.text
    assert "Nothing is lost" in caplog.text
