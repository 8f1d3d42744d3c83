"""Lag of a consumer, compared with limits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.policies import MissingPolicy, is_given
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.watching.asking import LookConnections, Looking, LookOutcome, NotThere, Step, Verdict
from airflow_lakestream.watching.causes import StreamCause, StreamReason, span
from airflow_lakestream.watching.lag.waiting import UnreadOffsets, reasons_lost, reasons_unknown
from airflow_lakestream.watching.source import ConsumerProgress, ConsumerSource


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of a partition.

    `records` is the number of unread offsets, holes of the log included. `seconds` is the age of the oldest unread
    record that the look has read, or None without a timestamp. `unknown`: a look does not read that many records, so
    that there may be an older one.
    """

    topic: str
    partition: int
    records: int
    seconds: float | None
    unknown: bool = False

    def __str__(self) -> str:
        first_or_oldest = "first" if self.unknown else "oldest"
        age = "" if self.seconds is None else f", the {first_or_oldest} {span(self.seconds)} old"
        return f"{self.topic}[{self.partition}] with {self.records:,} unread{age}"


@dataclass(frozen=True)
class LagLimits:
    """The allowed lag; None is unlimited. Ages are seconds.

    `records` limits the unread offsets of each partition, or of all partitions together if `per_partition` is False.
    """

    records: int | None = None
    age: float | None = None
    batch_age: float | None = None
    per_partition: bool = True

    def far(self, lags: Iterable[PartitionLag]) -> list[PartitionLag]:
        """Return the partitions over a limit of records or age.

        If the sum of all partitions is limited, and over the limit, all partitions with lag are returned.
        """
        behind = [lag for lag in lags if lag.records]
        total = sum(lag.records for lag in behind)
        return [lag for lag in behind if self._too_many(lag, total) or self._too_old(lag)]

    def _too_many(self, lag: PartitionLag, total: int) -> bool:
        counted = lag.records if self.per_partition else total
        return self.records is not None and counted > self.records

    def _too_old(self, lag: PartitionLag) -> bool:
        return self.age is not None and lag.seconds is not None and lag.seconds > self.age


@dataclass(frozen=True)
class ConsumerLag:
    """A consumer's lag at a moment; `now` is in seconds since the epoch."""

    progress: ConsumerProgress
    unread: Sequence[UnreadOffsets]
    now: float

    @property
    def partitions(self) -> list[PartitionLag]:
        """All partitions, also without lag."""
        lags = []
        for topic in self.unread:
            for p in sorted(topic.state.marks):
                oldest = topic.oldest.get(p)
                age = None if oldest is None else max(0.0, self.now - oldest / 1000)
                lags.append(PartitionLag(topic.state.identity.topic, p, topic.records(p), age, p in topic.unknown))
        return lags

    @property
    def batch_age(self) -> float | None:
        """Seconds since the consumer last made progress, or None if unknown."""
        return None if self.progress.newest_at is None else max(0.0, self.now - self.progress.newest_at)

    def judge(self, limits: LagLimits, *, fail: bool) -> Verdict:
        """Compare the lag with the limits.

        A consumer without unread records is done. For a consumer with unread records `batch_age` is compared, too; an
        unknown age then counts as too old.

        :param fail: whether a consumer over a limit fails the sensor; False: the sensor waits.
        """
        lags = self.partitions
        behind = [lag for lag in lags if lag.records]
        more = [*reasons_lost(self.unread), *self._unknown_reasons(limits)]
        if not behind:
            return Verdict(LookOutcome.DONE, (self._caught_up_reason(limits), *more), self._value(lags, None))
        worst = max(behind, key=lambda lag: (lag.seconds or 0.0, lag.records))
        over_limit = limits.far(lags)
        is_old = limits.batch_age is not None and (self.batch_age is None or self.batch_age > limits.batch_age)
        value = self._value(lags, worst)
        if not over_limit and not is_old:
            within = StreamReason(
                StreamCause.CAUGHT_UP, f"{self.progress.name} is within the limits, {self._lag_text(behind, worst)}"
            )
            return Verdict(LookOutcome.DONE, (within, *more), value)
        outcome = LookOutcome.FAILED if fail else LookOutcome.WAITING
        # A partition that never had a record does not count for the comparison.
        used = sum(marks.end > 0 for topic in self.unread for marks in topic.state.marks.values())
        # Single partitions are late if others have no lag at all.
        late = 0 < len(over_limit) < used and len(behind) < used
        return Verdict(outcome, (*self._behind_reasons(behind, worst, is_old, late), *more), value)

    def _behind_reasons(
        self, behind: list[PartitionLag], worst: PartitionLag, is_old: bool, late: bool
    ) -> list[StreamReason]:
        """Return the reasons for a consumer over a limit, the consumer's own state first."""
        text = f"{self.progress.name} is {self._lag_text(behind, worst)}"
        if self.progress.reasons:
            first, *more_reasons = self.progress.reasons
            return [StreamReason(first.cause, f"{text}; {first.text}"), *more_reasons]
        if is_old:
            cause = StreamCause.STOPPED_CONSUMER if self.progress.ledger is not None else StreamCause.STOPPED_QUERY
            return [StreamReason(cause, text)]
        return [StreamReason(StreamCause.LATE_PARTITION if late else StreamCause.SLOW_CONSUMER, text)]

    def _unknown_reasons(self, limits: LagLimits) -> list[StreamReason]:
        if limits.age is None:
            return []
        return [reason for topic in self.unread for reason in reasons_unknown(topic, limits.age)]

    def _lag_text(self, behind: list[PartitionLag], worst: PartitionLag) -> str:
        """Return the lag in words: records and partitions behind, the worst partition, the last progress."""
        total = sum(lag.records for lag in behind)
        count = sum(len(topic.state.marks) for topic in self.unread)
        newest = "" if self.batch_age is None else f"; it last advanced {span(self.batch_age)} ago"
        return f"{total:,} records behind in {len(behind)} of {count} partitions, worst is {worst}{newest}"

    def _caught_up_reason(self, limits: LagLimits) -> StreamReason:
        topics = ", ".join(topic.state.identity.topic for topic in self.unread)
        if limits.batch_age is not None and self.batch_age is not None and self.batch_age > limits.batch_age:
            ago = span(self.batch_age)
            return StreamReason(
                StreamCause.IDLE_TOPIC,
                f"{self.progress.name} last advanced {ago} ago, and nothing came to {topics} since",
            )
        return StreamReason(StreamCause.CAUGHT_UP, f"{self.progress.name} has read all of {topics}")

    def _value(self, lags: list[PartitionLag], worst: PartitionLag | None) -> dict[str, Any]:
        """Return the sensor's XCom value; `worst` is the partition with the oldest unread record, or None."""
        partitions: dict[str, dict[str, int]] = {}
        for lag in lags:
            partitions.setdefault(lag.topic, {})[str(lag.partition)] = lag.records
        return {
            "lag": sum(lag.records for lag in lags),
            "partitions": partitions,
            "worst": worst and {"topic": worst.topic, "partition": worst.partition, "lag": worst.records},
            # Without a timestamp of unread records the greatest age is unknown, and without unread records it is 0.
            "seconds": max((lag.seconds for lag in lags if lag.seconds is not None), default=None if worst else 0.0),
            "batch_age": self.batch_age,
            "lost": sum(topic.lost.width for topic in self.unread),
        }


@dataclass(frozen=True, kw_only=True)
class LagCheck(ConsumerSource):
    """The check of `CheckpointLagSensor`, whose arguments are the fields: a consumer is near the end of its topics.

    Without a limit no record may be unread. Raises InvalidArgument.
    """

    max_lag_records: SettingField[int | None] = SettingField(None)
    max_lag_seconds: SettingField[float | None] = SettingField(None)
    max_batch_age: SettingField[float | None] = SettingField(None)
    per_partition: SettingField[bool] = SettingField(True)
    fail_when_behind: SettingField[bool] = SettingField(False)
    missing: SettingField[MissingPolicy] = SettingField(MissingPolicy.FAIL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batch_age is not None and is_given(self.group_id):
            raise InvalidArgument(
                "max_batch_age", "does not go with group_id.", "Kafka does not report when a group committed."
            )

    @property
    def limits(self) -> LagLimits:
        """The allowed lag."""
        limits = self.max_lag_records, self.max_lag_seconds, self.max_batch_age
        records, age, batch_age = (0, None, None) if limits == (None, None, None) else limits
        return LagLimits(records, age, batch_age, self.per_partition)

    def look(self, connections: LookConnections, waited: float) -> Looking:
        """Look once; see `watching.asking.LookCheck`."""
        progress = yield from self.read_progress(connections)
        age, now = self.limits.age, time.time()
        before_ms = None if age is None else int((now - age) * 1000)
        unread = []
        for topic_look, ranges, lost in (yield from self.unread_ranges(connections, progress)):
            unread.append((yield from topic_look.waiting(ranges, lost, before_ms)))
        return ConsumerLag(progress, unread, now).judge(self.limits, fail=self.fail_when_behind)


@dataclass(frozen=True, slots=True)
class UnreadLevel:
    """Unread offsets of a consumer.

    `reached` is True if they are enough to start a run. `records` is their number. `seconds` is the age of the oldest
    unread record that the look has read, or None. `partitions` has the number of unread offsets by topic, and by
    partition as text.
    """

    reached: bool
    ranges: RangeSet
    records: int
    seconds: float | None
    partitions: dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class LevelWatch(ConsumerSource):
    """A consumer, and the level of unread records that starts a run.

    The level is `min_records` unread records, or an unread record that is older than `min_wait` seconds.
    """

    min_records: int | None = None
    min_wait: float | None = None

    def look(self, connections: LookConnections) -> Step:
        """Look once. Returns `UnreadLevel`; raises the errors of `ConsumerSource`."""
        progress = yield from self._read(connections)
        now = time.time()
        before_ms = None if self.min_wait is None else int((now - self.min_wait) * 1000)
        unread = []
        for topic_look, ranges, lost in (yield from self.unread_ranges(connections, progress)):
            unread.append((yield from topic_look.waiting(ranges, lost, before_ms)))
        lags = [lag for lag in ConsumerLag(progress, unread, now).partitions if lag.records]
        partitions: dict[str, dict[str, int]] = {}
        for lag in lags:
            partitions.setdefault(lag.topic, {})[str(lag.partition)] = lag.records
        records = sum(lag.records for lag in lags)
        enough = self.min_records is not None and records >= self.min_records
        return UnreadLevel(
            reached=enough or (self.min_wait is not None and any(topic.overdue for topic in unread)),
            ranges=union(topic.ranges for topic in unread),
            records=records,
            seconds=max((lag.seconds for lag in lags if lag.seconds is not None), default=None),
            partitions=partitions,
        )

    def _read(self, connections: LookConnections) -> Step:
        """Return the progress of the consumer, also of a consumer that has not begun to read given topics."""
        try:
            return (yield from self.read_progress(connections))
        except NotThere:
            if not self.topic:
                raise
            # Before the first run all records of the given topics are unread.
            return ConsumerProgress("a consumer that has not begun", self.topic, positions={})


@dataclass
class LevelAlarm:
    """Alarm for unread records: fires when the level is reached.

    After that the alarm is silent until all these records are read, or `again_after` seconds have passed. `fired_for`
    has the unread ranges of the last firing, `fired_at` its time in seconds since the epoch.
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
            are_read = not self.fired_for & waiting.ranges
            if not are_read and now - self.fired_at < self.again_after:
                return False
            self.fired_for = None
        if not waiting.reached:
            return False
        self.fired_for, self.fired_at = waiting.ranges, now
        return True
