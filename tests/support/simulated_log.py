"""One partition as Kafka keeps it, and a consumer that lands it by runs: a model in which whole days pass in a moment.

Records come in ticks. Segments are removed as brokers do it: a whole one at a time from the front, once its newest
record is too old, or as long as the log without it is still as large as `retention.bytes`.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_lakestream.core.landing.plan import PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.kafka.watch import FirstRecord, TopicRetention
from airflow_lakestream.watching.asking import LookOutcome, Verdict
from airflow_lakestream.watching.lag.risk import RetentionRisk, TopicSettings, every_of, partition_risks, window_of
from airflow_lakestream.watching.lag.waiting import UnreadOffsets
from airflow_lakestream.watching.source import ConsumerProgress, PastCommit

TOPIC = TopicIdentity("orders", "id", "cluster")
# Seconds; the models are about spans of time, not about dates.
BEGIN = 1_800_000_000.0


@dataclass
class Segment:
    """Offsets [first, end), the newest timestamp, the bytes."""

    first: int
    end: int
    newest: float
    size: float


@dataclass
class Log:
    """The partition. `compression` is how many times smaller records are in the log than they were sent."""

    retention: TopicRetention
    record_size: int
    compression: float
    low: int = 0
    end: int = 0
    segments: list[Segment] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)

    def produce(self, at: float, count: int) -> None:
        """Write records of one moment."""
        if not count:
            return
        self.ticks.append(at)
        self.firsts.append(self.end)
        size = count * self.record_size / self.compression
        if not self.segments or self.segments[-1].size + size > self.retention.segment_size:
            self.segments.append(Segment(self.end, self.end, at, 0.0))
        last = self.segments[-1]
        last.end, last.newest, last.size = self.end + count, at, last.size + size
        self.end += count

    def clean(self, now: float) -> None:
        """Remove what retention says."""
        while self.segments and self._goes(now):
            self.low = self.segments.pop(0).end

    def _goes(self, now: float) -> bool:
        by_time, by_size = self.retention.milliseconds, self.retention.size
        if by_time is not None and self.segments[0].newest + by_time / 1000 < now:
            return True
        held = sum(segment.size for segment in self.segments)
        return by_size is not None and held - self.segments[0].size >= by_size

    def timestamp(self, offset: int) -> float:
        """Return when a record was written."""
        return self.ticks[bisect_right(self.firsts, offset) - 1]

    def offset_at(self, at: float) -> int:
        """Return the first offset of a time or later."""
        tick = bisect_left(self.ticks, at)
        return max(self.low, self.firsts[tick] if tick < len(self.firsts) else self.end)


@dataclass
class World:
    """A log, what is written to it and what a consumer lands: functions of the tick."""

    log: Log
    tick: float
    produced: Callable[[int], int]
    landed: Callable[[int], int]
    position: int = 0
    steps: list[PastCommit] = field(default_factory=list)

    def advance(self, n: int) -> None:
        """Let a tick pass."""
        now = BEGIN + n * self.tick
        self.log.produce(now, self.produced(n))
        count = min(self.landed(n), self.log.end - max(self.position, self.log.low))
        if count > 0:
            self.position = max(self.position, self.log.low) + count
            self.steps.insert(0, PastCommit(now, str(n), {("orders", 0): count}))
        self.log.clean(now)

    @property
    def has_lost(self) -> bool:
        """Whether an unread record is gone."""
        return self.log.low > self.position

    def look(self, n: int, wanted: float) -> Verdict:
        """Look as the sensor does, by what a broker and a ledger would tell of this world."""
        now, log = BEGIN + n * self.tick, self.log
        state = TopicState(TOPIC, {0: PartitionWatermarks(log.low, log.end)})
        begin = max(self.position, log.low)
        ranges, lost = RangeSet.of("orders", 0, begin, log.end), RangeSet.of("orders", 0, self.position, log.low)
        firsts = {0: FirstRecord(begin, int(log.timestamp(begin) * 1000), log.record_size)} if ranges else {}
        unread = UnreadOffsets(state, ranges, lost, firsts)
        books = ConsumerProgress(
            "table lake.orders", ("orders",), {"orders": {0: self.position}}, steps=tuple(self.steps[:20])
        )
        every = every_of(books)
        window = window_of(log.retention, every)
        settings = TopicSettings(log.retention, {0: log.end - log.offset_at(now - window)}, window)
        return RetentionRisk(books, [unread], partition_risks(unread, settings, books, every, now), every).judge(
            wanted, None, 0.0
        )


def traffic(seed: int, mean: float) -> Callable[[int], int]:
    """Return records by tick: a day's waves, noise, bursts, and lulls."""
    chance = random.Random(seed)
    swing, burst = chance.uniform(0, 0.5), chance.uniform(1, 5)
    phase = chance.uniform(0, 400)

    def produced(n: int) -> int:
        here = random.Random(seed * 100_003 + n)
        wave = 1 + swing * (((n + phase) % 400) / 200 - 1)
        factor = burst if here.random() < 0.02 else here.uniform(0.7, 1.3)
        return int(mean * wave * factor)

    return produced


def fired(verdict: Verdict) -> bool:
    """Whether the sensor fails."""
    return verdict.outcome is LookOutcome.FAILED
