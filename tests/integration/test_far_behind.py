"""Looks at streams that are far behind, on a real broker: one record of a partition is read, whatever is behind it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_lakestream.kafka.watch import FirstRecord, KafkaWatch
from airflow_lakestream.watching.asking import LookOutcome
from airflow_lakestream.watching.causes import StreamCause
from airflow_lakestream.watching.lag.waiting import MOST_READ
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, events
from tests.support.sensing import look
from tests.support.status import AT_ONCE, DAY, KEPT, LONG, StatusCommand, causes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]

PARTITIONS, LANDED, BACKLOG = 4, 5, 175_000
# As large as brokers take a batch by default.
BATCH = 1_000_000
MANY, OF_MANY, RECORD = 500, 200, 1_000


def produce_batches(
    kafka: Kafka, topic: str, of_partition: Mapping[int, Iterable[str]], begin: int = DAY, **settings: int
) -> None:
    """Write values into partitions, in batches that are as large as can be; by default they are years old."""
    # Idempotent: a batch that is sent again stays in its order.
    large = {
        "enable.idempotence": True,
        "batch.size": BATCH,
        "batch.num.messages": 1_000_000,
        "linger.ms": 2_000,
        **settings,
    }
    producer = Producer({**kafka.client_config(), **large, "queue.buffering.max.messages": 2_000_000, "log_level": 2})
    for p, values in of_partition.items():
        for n, value in enumerate(values):
            producer.produce(topic, value, partition=p, timestamp=begin + n)
    assert producer.flush(120) == 0


@dataclass
class Traffic:
    """What the clients of a watch have got from the broker, by librdkafka's own account."""

    received: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> None:
        statistics = json.loads(text)
        self.received[statistics["name"]] = statistics["rxmsg_bytes"]

    @property
    def bytes(self) -> int:
        """Bytes of records, of all clients together."""
        return sum(self.received.values())

    def watched(self, kafka: Kafka) -> dict[str, Any]:
        """Return the settings of clients that tell it."""
        return {**kafka.client_config(), "statistics.interval.ms": 500, "stats_cb": self}


@pytest.fixture(scope="module")
def far_behind(topic: Topics, kafka: Kafka) -> str:
    """Give a topic whose partitions have so many records in large batches, behind the few that a test lands."""
    name = topic(PARTITIONS, **KEPT)
    produce_batches(kafka, name, {p: events(p, 0, LANDED + BACKLOG) for p in range(PARTITIONS)})
    return name


@pytest.fixture
def landed(lake: Lake, far_behind: str) -> str:
    """Give the topic, of whose partitions the test's table has the first few records."""
    ranges = [[p, 0, LANDED] for p in range(PARTITIONS)]
    lake.land(far_behind, mode="ranges", ranges=ranges)
    return far_behind


def test_a_burst_pages_nobody_and_older_records_behind_its_first_are_said_not_to_be_known(
    lake: Lake, topic: Topics, kafka: Kafka, produce: Producing, status_after: StatusCommand
) -> None:
    name = topic(3)
    for p in range(3):
        produce(name, p, events(p, 0, LANDED))
    lake.land(name)
    now = int(time.time() * 1000)
    produce_batches(kafka, name, dict.fromkeys((0, 2), events(0, LANDED, MOST_READ + 1)), begin=now)
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], causes(stream)) == (0, "landing", ["unknown age"]), stream
    assert (stream["lag"], stream["overdue"]) == (2 * MOST_READ + 2, None)
    assert f"wait for more than 60 min in {name}[0, 2] is not known" in stream["reasons"][0]["text"]
    code, [stream] = status_after(AT_ONCE)
    assert (code, causes(stream)) == (1, ["stopped consumer", "late partition"]), stream
    assert f"{stream['overdue']:,} offsets wait for more than" in stream["reasons"][0]["text"]
    assert f"only {name}[0, 2] have overdue offsets: " in stream["reasons"][1]["text"]


@pytest.mark.parametrize(("count", "overdue"), [(LANDED, 2 * LANDED), (MOST_READ + 1, None)])
def test_old_records_that_come_after_young_ones_are_all_overdue_or_at_least_the_first(
    lake: Lake, topic: Topics, kafka: Kafka, produce: Producing, status_after: StatusCommand, count: int, overdue: int
) -> None:
    name = topic(2, **KEPT)
    for p in range(2):
        produce(name, p, events(p, 0, LANDED))
    lake.land(name)
    produce_batches(kafka, name, {p: events(p, LANDED, count) for p in range(2)})
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], causes(stream)) == (1, "behind", ["slow consumer"]), stream
    assert (stream["lag"], stream["overdue"]) == (2 * count, overdue)
    assert stream["reasons"][0]["text"].startswith("at least " if overdue is None else f"{overdue} offsets wait for")


def test_status_answers_for_a_stream_that_is_far_behind(lake: Lake, landed: str, status_after: StatusCommand) -> None:
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], causes(stream)) == (1, "behind", ["slow consumer"]), stream
    assert (stream["lag"], stream["overdue"]) == (PARTITIONS * BACKLOG, PARTITIONS * BACKLOG)
    one = {"end": LANDED + BACKLOG, "lag": BACKLOG, "overdue": BACKLOG}
    assert stream["partitions"] == {str(p): one for p in range(PARTITIONS)}


def test_the_sensors_of_lag_and_of_retention_answer_for_it(lake: Lake, landed: str) -> None:
    lag = look(lake, "checkpoint_lag", table=lake.name, consumer_group="g", max_lag_seconds="1h")
    assert (lag.outcome, lag.value and lag.value["lag"]) == (LookOutcome.WAITING, PARTITIONS * BACKLOG), lag
    risk = look(lake, "retention_risk", table=lake.name, consumer_group="g", min_time_left="1h")
    assert risk.outcome is LookOutcome.DONE, risk
    assert risk.value is not None
    assert risk.value["unread"] == PARTITIONS * BACKLOG
    assert risk.reasons[0].cause is StreamCause.CAUGHT_UP


def test_of_each_partition_no_more_comes_than_its_first_batches(kafka: Kafka, far_behind: str) -> None:
    traffic = Traffic()
    watch = KafkaWatch(traffic.watched(kafka), "the test's broker")
    state = watch.topic(far_behind)
    found = watch.firsts(state, dict.fromkeys(range(PARTITIONS), LANDED))
    assert {p: first and (first.offset, first.timestamp_ms) for p, first in found.items()} == dict.fromkeys(
        range(PARTITIONS), (LANDED, DAY + LANDED)
    )
    # Those that have answered send nothing more: else the others would wait behind all of their records.
    assert traffic.bytes < 4 * PARTITIONS * BATCH


def test_hundreds_of_partitions_answer_by_a_batch_each(topic: Topics, kafka: Kafka) -> None:
    name = topic(MANY, **KEPT)
    value, a_batch = "x" * RECORD, 50 * RECORD
    produce_batches(kafka, name, dict.fromkeys(range(MANY), [value] * OF_MANY), **{"batch.size": a_batch})
    traffic = Traffic()
    watch = KafkaWatch(traffic.watched(kafka), "the test's broker")
    state = watch.topic(name)
    found = watch.firsts(state, dict.fromkeys(range(MANY), 1))
    assert found == {p: FirstRecord(1, DAY + 1, RECORD) for p in range(MANY)}
    assert traffic.bytes < 3 * MANY * a_batch < MANY * OF_MANY * RECORD
