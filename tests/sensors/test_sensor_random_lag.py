"""CheckpointLagSensor and `status` against a look at every unread record, over random topics of the real broker.

`LAKESTREAM_TOPICS=500` plays as many; what they hold comes from the seed in the test's name.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.watching.asking import LookOutcome
from airflow_lakestream.watching.streams.looking import StreamSearch
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import GROUP, Lake
from tests.support.sensing import commit, look
from tests.support.transactions import Transaction

pytestmark = pytest.mark.integration

TOPICS = int(os.environ.get("LAKESTREAM_TOPICS", "20"))
# Seconds. Ages are well off it on both sides, so that it matters to no one how long a test takes.
LIMIT = 7200
YOUNG, OLD, FUTURE = (0, 600, 3000), (12_000, 20_000, 10_000_000), (-3_600, -300_000_000)
KEPT = {"retention_ms": -1, "message_timestamp_after_max_ms": 2**63 - 1}
# A log of which compaction leaves the newest record of each key, within a second or two.
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": 100,
    "min_cleanable_dirty_ratio": 0.01,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 100,
}


@dataclass
class Played:
    """A topic, and what its consumer has read: a group up to its positions, or a table what its ledger holds."""

    name: str
    partitions: int
    is_compacted: bool
    group: str = field(default_factory=lambda: f"g-{uuid.uuid4().hex[:8]}")
    table: str | None = None
    read: RangeSet = RangeSet()

    @property
    def consumer(self) -> dict[str, str]:
        """The arguments of a sensor."""
        return {"group_id": self.group} if self.table is None else {"table": self.table, "consumer_group": GROUP}


@dataclass
class Player:
    """Makes random topics of the real broker, and reads parts of them."""

    random: Random
    lake: Lake
    topic: Topics
    produce: Producing
    transaction: Transaction
    admin: AdminClient

    def play(self) -> Played:
        random = self.random
        compacted = random.random() < 0.15
        count = random.randint(1, 3)
        made = Played(self.topic(count, **{**KEPT, **(COMPACTED if compacted else {})}), count, compacted)
        # What most records are; a few are otherwise.
        usual, odd = random.choice([YOUNG, YOUNG, OLD]), random.choice([0.0, 0.0, 0.1, 0.4])
        ends = {p: self._fill(made, p, usual, odd) for p in range(count)}
        if sum(ends.values()) and random.random() < 0.3:
            self._land(made, ends)
        else:
            positions = {p: random.randint(0, end) for p, end in ends.items() if p == 0 or random.random() < 0.8}
            commit(self.admin, made.group, made.name, positions)
            for p, position in positions.items():
                made.read |= RangeSet.of(made.name, p, 0, position)
        return made

    def _land(self, made: Played, ends: dict[int, int]) -> None:
        """Land the beginning, and parts of what is behind it: what is between them is unread."""
        made.table = f"lake.{made.name.replace('-', '_')}"
        self.lake.land(made.name, table=made.table, format="raw", max_records=self.random.randint(1, 5))
        ranges = []
        for p, end in ends.items():
            cuts = sorted(self.random.sample(range(end + 1), min(end + 1, 4)))
            ranges += [[p, start, until] for start, until in zip(cuts[::2], cuts[1::2], strict=False)]
        if ranges:
            self.lake.land(made.name, table=made.table, format="raw", mode="ranges", ranges=ranges)
        if not self.lake.catalog().table_exists(made.table):
            # Of a log with nothing but aborted transactions no table is made.
            made.table = None
            commit(self.admin, made.group, made.name, dict.fromkeys(ends, 0))
            return
        for entry in read_ledger(self.lake.table(made.table), GROUP).topics.values():
            made.read |= entry.held

    def _fill(self, made: Played, p: int, usual: tuple[int, ...], odd: float) -> int:
        end = 0
        for _ in range(self.random.randint(0, 4)):
            stamps = self._stamps(self.random.randint(1, 12), usual, odd)
            if self.random.random() < 0.3 and not made.is_compacted:
                self.transaction.begin(made.name, p, [b"t"] * len(stamps), stamps)
                self.transaction.abort() if self.random.random() < 0.5 else self.transaction.commit()
                end += len(stamps) + 1
                continue
            keys = [str(self.random.randrange(4)) for _ in stamps]
            end = max(self.produce(made.name, p, ["v"] * len(stamps), keys=keys, timestamps=stamps)) + 1
        return end

    def _stamps(self, count: int, usual: tuple[int, ...], odd: float) -> list[int]:
        now = time.time()
        ages = [self.random.choice(OLD + FUTURE + YOUNG if self.random.random() < odd else usual) for _ in range(count)]
        stamps = [int((now - age) * 1000) for age in ages]
        # Now and then one that says no time at all: -1.
        return [-1 if self.random.random() < odd / 20 else stamp for stamp in stamps]


def unread_of(kafka: Kafka, one: Played) -> list[int]:
    """Return the timestamps of all unread records, read as any consumer would."""
    settings = {"group.id": "brute", "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 2}
    consumer = Consumer({**kafka.client_config(), **settings, "enable.partition.eof": True})
    found, left = [], set(range(one.partitions))
    try:
        consumer.assign([TopicPartition(one.name, p, 0) for p in left])
        while left:
            message = consumer.poll(10)
            assert message is not None, f"{one.name} is not at its end after 10 s"
            p, offset = message.partition(), message.offset()
            assert p is not None
            assert offset is not None
            if message.error() is not None:
                left.discard(p)
            elif not one.read & RangeSet.of(one.name, p, offset, offset + 1):
                found.append(int(message.timestamp()[1]))
    finally:
        consumer.close()
    return found


def once_compacted(kafka: Kafka, one: Played) -> list[int]:
    """Return the same once compaction leaves it alone."""
    stamps = unread_of(kafka, one)

    def same() -> bool:
        nonlocal stamps
        before, stamps = stamps, unread_of(kafka, one)
        return before == stamps

    if one.is_compacted:
        poll_until(same, f"compaction of {one.name} to end", every=0.5)
    return stamps


@dataclass
class _OneLake:
    """`watching.streams.looking.Lakes` of one lake."""

    lake: Lake

    def catalog(self) -> Any:
        return self.lake.catalog()

    def storage(self) -> Any:
        raise AssertionError("there is no Delta table to look at")

    def properties(self, location: str) -> None:
        return None


def test_no_alarm_is_false_and_none_is_missed(
    lake: Lake, topic: Topics, produce: Producing, kafka: Kafka, admin: AdminClient
) -> None:
    seed = int(os.environ.get("LAKESTREAM_SEED", "0"))
    player = Player(Random(seed), lake, topic, produce, Transaction(kafka, admin), admin)
    watch = KafkaWatch(lake.kafka, "the broker")
    wrong, alarms = [], 0
    for one in [player.play() for _ in range(TOPICS)]:
        now, stamps = time.time(), once_compacted(kafka, one)
        age = max((now - at / 1000 for at in stamps), default=0.0)
        alarms += age > LIMIT
        told = f"{one}: the oldest of {len(stamps)} unread records is {age:.0f} s old, but"
        verdict = look(lake, "checkpoint_lag", **one.consumer, topic=one.name, max_lag_seconds=LIMIT)
        if verdict.outcome is not (LookOutcome.WAITING if age > LIMIT else LookOutcome.DONE):
            wrong.append(f"{told} the sensor says: {verdict.text}")
        # What the metric lag_seconds is set to, also by a sensor that has no limit of age.
        value = look(lake, "checkpoint_lag", **one.consumer, topic=one.name, max_lag_records=10**9).value
        if value is None or (value["seconds"] or 0.0) != pytest.approx(max(0.0, age), abs=120):
            wrong.append(f"{told} {value} is measured")
        if one.table is not None:
            [stream] = StreamSearch(_OneLake(lake), watch, tables=(one.table,)).streams(int(now * 1000), LIMIT)
            if bool(stream.overdue) is not (age > LIMIT):
                wrong.append(f"{told} status says {stream.overdue} are overdue")
    assert not wrong, "\n".join(wrong)
    assert 0 < alarms < TOPICS
