"""Alarm for a consumer with enough unread records for a run."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.watching.asking import LookConnections, LookQuestion, NotThere
from airflow_lakestream.watching.books import ConsumerProgress
from airflow_lakestream.watching.lag.check import ConsumerLag
from airflow_lakestream.watching.source import ConsumerSource

# A step of a look: asks questions, and returns a result.
Step = Generator[LookQuestion, Any, Any]


@dataclass(frozen=True, slots=True)
class UnreadLevel:
    """Unread offsets of a consumer.

    `reached`: the unread offsets are enough for a run. `seconds`: age of the oldest unread record seen, or None.
    `partitions`: number of unread offsets by topic and partition, as text.
    """

    reached: bool
    ranges: RangeSet
    records: int
    seconds: float | None
    partitions: dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class LevelWatch(ConsumerSource):
    """A consumer, with the level: `min_records` unread records, or an unread record of `min_wait` seconds."""

    min_records: int | None = None
    min_wait: float | None = None

    def look(self, connections: LookConnections) -> Step:
        """Look once. Returns `UnreadLevel`; raises the errors of `ConsumerSource`.

        For a consumer that has not begun, all records of the given topics are unread.
        """
        progress = yield from self._read(connections)
        now = time.time()
        before_ms = None if self.min_wait is None else int((now - self.min_wait) * 1000)
        unread = []
        for topic_look, ranges, lost in (yield from self.unread_ranges(connections, progress)):
            unread.append((yield from topic_look.waiting(ranges, lost, before_ms)))
        lags = [one for one in ConsumerLag(progress, unread, now).partitions if one.records]
        partitions: dict[str, dict[str, int]] = {}
        for lag in lags:
            partitions.setdefault(lag.topic, {})[str(lag.partition)] = lag.records
        records = sum(lag.records for lag in lags)
        enough = self.min_records is not None and records >= self.min_records
        return UnreadLevel(
            reached=enough or (self.min_wait is not None and any(one.overdue for one in unread)),
            ranges=union(one.ranges for one in unread),
            records=records,
            seconds=max((lag.seconds for lag in lags if lag.seconds is not None), default=None),
            partitions=partitions,
        )

    def _read(self, connections: LookConnections) -> Step:
        try:
            return (yield from self.read_progress(connections))
        except NotThere:
            if not self.topics:
                raise
            # Before the first run all records of the given topics are unread.
            return ConsumerProgress("a consumer that has not begun", self.topics, positions={})


@dataclass
class LevelAlarm:
    """Alarm for unread records: fires when the level is reached.

    Then the alarm is silent until all records for which it fired are read, or `again_after` seconds have passed.
    """

    again_after: float
    fired_for: RangeSet | None = None
    fired_at: float = 0.0

    def fires(self, waiting: UnreadLevel, now: float) -> bool:
        """Return whether to fire, and remember the ranges and the time of a firing.

        :param waiting: the level now.
        :param now: seconds since the epoch.
        """
        if self.fired_for is not None:
            is_done = not self.fired_for & waiting.ranges
            if not is_done and now - self.fired_at < self.again_after:
                return False
            self.fired_for = None
        if not waiting.reached:
            return False
        self.fired_for, self.fired_at = waiting.ranges, now
        return True
