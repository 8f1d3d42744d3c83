"""Risk of losing unread records to retention, and the size of a run for catching up."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.policies import MissingPolicy, is_given, seconds
from airflow_lakestream.kafka.watch import TopicRetention
from airflow_lakestream.watching.asking import LookConnections, Looking, LookOutcome, LookQuestion, Step, Verdict
from airflow_lakestream.watching.causes import StreamCause, StreamReason, span
from airflow_lakestream.watching.lag.waiting import UnreadOffsets, reasons_lost
from airflow_lakestream.watching.source import ConsumerProgress, ConsumerSource, ask_kafka

# In the last quarter of the wanted time no rate is trusted: a consumer may stop at any moment.
LAST_PART = 4


@dataclass(frozen=True, slots=True)
class PartitionView:
    """State of a partition at a moment.

    :param unread: the number of unread records.
    :param first_at: the timestamp of the first unread record in seconds since the epoch, or None if unknown.
    :param retention: seconds for which Kafka keeps a record; None: for ever.
    :param capacity: the number of records that fit into the log; None: its size is not limited, or unknown.
    """

    unread: int
    first_at: float | None
    produced_per_second: float
    landed_per_second: float
    retention: float | None
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds until the first unread record leaves the log; infinite for never.

    `going_on` holds if the consumer goes on at its present rate, `stopped` if it stops reading now.
    """

    going_on: float = math.inf
    stopped: float = math.inf

    def is_short(self, wanted: float) -> bool:
        """Return whether less time is left than wanted.

        :param wanted: seconds that have to be left at the present rates. If reading stops, a quarter must be left.
        """
        return self.going_on < wanted or self.stopped < wanted / LAST_PART


def time_left(view: PartitionView, now: float) -> TimeLeft:
    """Return the time until the first unread record leaves the log, by age or by size: the shorter of both.

    :param now: seconds since the epoch.
    """
    if not view.unread:
        return TimeLeft()
    by_time, by_size = _by_time(view, now), _by_size(view)
    return TimeLeft(min(by_time.going_on, by_size.going_on), min(by_time.stopped, by_size.stopped))


def _by_time(view: PartitionView, now: float) -> TimeLeft:
    """Return the time until the first unread record is too old to be kept."""
    if view.retention is None or view.first_at is None:
        return TimeLeft()
    stopped = max(0.0, view.first_at + view.retention - now)
    # The unread records were written at `density` records per second. After `density` more landed records the first
    # unread record is a second younger, so the consumer has gained a second.
    density = view.unread / max(1.0, now - view.first_at)
    gained_per_second = view.landed_per_second / density
    return TimeLeft(going_on=stopped / (1 - gained_per_second) if gained_per_second < 1 else math.inf, stopped=stopped)


def _by_size(view: PartitionView) -> TimeLeft:
    """Return the time until new records displace the first unread record from a log of limited size."""
    if view.capacity is None or view.produced_per_second <= 0:
        return TimeLeft()
    room = max(0.0, view.capacity - view.unread)
    growth = view.produced_per_second - view.landed_per_second
    return TimeLeft(going_on=room / growth if growth > 0 else math.inf, stopped=room / view.produced_per_second)


def rate_to_catch_up(view: PartitionView, left: TimeLeft) -> float:
    """Return the rate, in records per second, that reads all unread records within half of `left.stopped`.

    If no unread record ever leaves the log, the rate at which records are produced is enough.
    """
    if not view.unread:
        return 0.0
    available = left.stopped / 2
    if not math.isfinite(available):
        return view.produced_per_second
    return view.produced_per_second + view.unread / max(1.0, available)


# Seconds over which rates are measured; at most a quarter of Kafka's retention.
_WINDOW = 900.0
_PARTS_OF_RETENTION = 4
_RUNS = 3  # for a consumer that lands by runs, the rate is measured over this many runs at least
_OVERHEAD_BYTES = 10  # bytes of a record in the log in addition to key and value
_RETENTION_SHARED = 60.0  # seconds for which sensors share the answer about a topic's retention


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Retention of a topic, and by partition the number of records produced in the last `window` seconds."""

    retention: TopicRetention
    produced: Mapping[int, int]
    window: float


@dataclass(frozen=True, slots=True)
class PartitionRisk:
    """A partition with the time until the first unread record leaves the log."""

    topic: str
    partition: int
    view: PartitionView
    left: TimeLeft

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] with {self.view.unread:,} unread"


@dataclass(frozen=True)
class RetentionRisk:
    """Risk of all partitions of a consumer at a moment.

    `every` is the usual number of seconds between the consumer's runs, or None if unknown.
    """

    progress: ConsumerProgress
    unread: Sequence[UnreadOffsets]
    partitions: Sequence[PartitionRisk]
    every: float | None

    def judge(self, wanted: float, watch_for: float | None, waited: float) -> Verdict:
        """Return the verdict: failed if too little time is left, or if records are lost; otherwise waiting or done.

        :param wanted: seconds that have to be left.
        :param watch_for: seconds for which the sensor goes on watching before it is done; None: it is done at once.
        :param waited: seconds since the task began.
        """
        short = [partition for partition in self.partitions if partition.left.is_short(wanted)]
        reasons = [*self._expiring_reasons(short, wanted), *reasons_lost(self.unread)]
        if reasons:
            return Verdict(LookOutcome.FAILED, (*reasons, *self.progress.reasons), self._value())
        outcome = LookOutcome.WAITING if watch_for is not None and waited < watch_for else LookOutcome.DONE
        least = min(self.partitions, key=lambda partition: partition.left.going_on, default=None)
        text = f"no unread record of {self.progress.name} leaves within {span(wanted)}"
        if least is not None and math.isfinite(least.left.going_on):
            text += f"; the first one does in {span(least.left.going_on)}, of {least}"
        return Verdict(outcome, (StreamReason(StreamCause.CAUGHT_UP, text),), self._value())

    @property
    def rate(self) -> float:
        """The rate (records per second) needed to catch up."""
        return sum(rate_to_catch_up(partition.view, partition.left) for partition in self.partitions)

    @property
    def max_records(self) -> int | None:
        """The records per run needed to catch up, or None if the time between runs is unknown."""
        return None if self.every is None else math.ceil(self.rate * self.every)

    def _expiring_reasons(self, short: Sequence[PartitionRisk], wanted: float) -> list[StreamReason]:
        """Return a list with the reason for partitions with too little time left, or an empty list."""
        if not short:
            return []
        worst = min(short, key=lambda partition: (partition.left.going_on, partition.left.stopped))
        at_rates = "at today's rates" if math.isfinite(worst.left.going_on) else "if it stops reading"
        left = worst.left.going_on if math.isfinite(worst.left.going_on) else worst.left.stopped
        caveat = "" if self.progress.steps is not None else " (how fast it reads is not known)"
        text = (
            f"in {span(left)} {at_rates}{caveat} Kafka removes what {self.progress.name} has not read of {worst}, in "
            f"{len(short)} of {len(self.partitions)} partitions within {span(wanted)}. {self._remedy()}"
        )
        return [StreamReason(StreamCause.EXPIRING_RECORDS, text)]

    def _remedy(self) -> str:
        if self.max_records is None:
            return f"To catch up in half of that time it has to read {math.ceil(self.rate)} records/s."
        return (
            f"To catch up in half of that time its runs, every {span(self.every or 0)}, need max_records="
            f"{self.max_records}."
        )

    def _value(self) -> dict[str, Any]:
        partitions: dict[str, dict[str, int | None]] = {}
        for partition in self.partitions:
            partitions.setdefault(partition.topic, {})[str(partition.partition)] = _whole_seconds(
                partition.left.going_on
            )
        return {
            "time_left": _whole_seconds(
                min((partition.left.going_on for partition in self.partitions), default=math.inf)
            ),
            "time_left_if_stopped": _whole_seconds(
                min((partition.left.stopped for partition in self.partitions), default=math.inf)
            ),
            "partitions": partitions,
            "unread": sum(partition.view.unread for partition in self.partitions),
            "lost": sum(topic.lost.width for topic in self.unread),
            "records_per_second": math.ceil(self.rate),
            "max_records": self.max_records,
        }


def _seconds_or_hour(argument: str, value: object) -> float:
    """Return a time in seconds; an hour if the value is missing or 0."""
    given_seconds = seconds(argument, value) if is_given(value) else 0.0
    return given_seconds or 3600.0


@dataclass(frozen=True, kw_only=True)
class RiskCheck(ConsumerSource):
    """The check of `RetentionRiskSensor`, whose arguments are the fields: it fails before unread records are lost."""

    min_time_left: SettingField[float] = SettingField("1h", _seconds_or_hour)
    watch_for: SettingField[float | None] = SettingField(None)
    run_interval: SettingField[float | None] = SettingField(None)
    missing: SettingField[MissingPolicy] = SettingField(MissingPolicy.FAIL)

    def look(self, connections: LookConnections, waited: float) -> Looking:
        """Look once; see `watching.asking.LookCheck`."""
        progress = yield from self.read_progress(connections, with_steps=True)
        unread = yield from self.unread(connections, progress)
        now = time.time()
        every = self.run_interval or every_of(progress)
        partitions = []
        for topic in unread:
            settings = yield from self._settings(connections, topic, every, now)
            partitions += partition_risks(topic, settings, progress, every, now)
        return RetentionRisk(progress, unread, partitions, every).judge(self.min_time_left, self.watch_for, waited)

    def _settings(self, connections: LookConnections, unread: UnreadOffsets, every: float | None, now: float) -> Step:
        """Return the `TopicSettings` of a topic, by two questions to Kafka."""
        watch = yield ask_kafka(connections, self.kafka_conn_id)
        state = unread.state
        topic = state.identity.topic
        retention = yield LookQuestion(
            ("retention", self.kafka_conn_id, topic), lambda: watch.retention(topic), share_seconds=_RETENTION_SHARED
        )
        window = window_of(retention, every)
        since_ms = int((now - window) * 1000)
        # Rounded to the second: sensors that look at the same moment share the answer.
        key = ("offsets at", self.kafka_conn_id, state.identity, since_ms // 1000)
        starts = yield LookQuestion(key, lambda: watch.offsets_at(state, since_ms))
        produced = {p: max(0, marks.end - starts[p]) for p, marks in state.marks.items() if p in starts}
        return TopicSettings(retention, produced, window)


def every_of(progress: ConsumerProgress) -> float | None:
    """Return the usual number of seconds between the consumer's runs, or None if unknown.

    The number is the median of the gaps between the first commits of the last runs.
    """
    first_commits: dict[str, float] = {}
    for step in progress.steps or ():
        first_commits[step.run] = min(step.at, first_commits.get(step.run, step.at))
    gaps = [later - earlier for earlier, later in pairwise(sorted(first_commits.values()))]
    return max(1.0, median(gaps)) if gaps else None


def partition_risks(
    unread: UnreadOffsets, settings: TopicSettings, progress: ConsumerProgress, every: float | None, now: float
) -> list[PartitionRisk]:
    """Return the risk of each partition of a topic.

    :param every: seconds between the consumer's runs, or None if unknown.
    :param now: seconds since the epoch.
    """
    topic = unread.state.identity.topic
    window = _landing_window(settings, progress, every, now)
    recent = [step for step in progress.steps or () if step.at > now - window]
    retention = settings.retention
    sizes = [first.size + _OVERHEAD_BYTES for first in unread.firsts.values()]
    result = []
    for p, marks in sorted(unread.state.marks.items()):
        first = unread.firsts.get(p)
        view = PartitionView(
            unread=unread.records(p),
            first_at=None if first is None else first.timestamp_ms / 1000,
            produced_per_second=settings.produced.get(p, 0) / settings.window,
            landed_per_second=sum(step.offsets.get((topic, p), 0) for step in recent) / window,
            retention=None if retention.milliseconds is None else retention.milliseconds / 1000,
            capacity=_capacity(retention, sizes, marks.end - marks.low),
        )
        result.append(PartitionRisk(topic, p, view, time_left(view, now)))
    return result


def window_of(retention: TopicRetention, every: float | None) -> float:
    """Return the seconds over which the rate of producers is measured.

    :param every: seconds between the consumer's runs, or None if unknown.
    """
    most = math.inf if retention.milliseconds is None else retention.milliseconds / 1000 / _PARTS_OF_RETENTION
    return min(max(_WINDOW, _RUNS * (every or 0.0)), most)


def _landing_window(settings: TopicSettings, progress: ConsumerProgress, every: float | None, now: float) -> float:
    """Return the seconds over which the consumer's rate is measured."""
    window = max(settings.window, _RUNS * (every or 0.0))
    if every is None or not progress.steps:
        return window
    # A new consumer has a shorter window: from one interval before its first commit, whose records that commit has.
    return min(window, now - min(step.at for step in progress.steps) + every)


def _capacity(retention: TopicRetention, sizes: Sequence[int], offsets: int) -> float | None:
    """Return the least number of records that fills a partition's log, or None if its size is unlimited or unknown.

    :param sizes: the bytes of a few records.
    :param offsets: the number of offsets in the log now.
    """
    if retention.size is None or not sizes:
        return None
    # The log is compressed, and these sizes are not: more records may fit. At least those that the log has now fit, if
    # the segment that Kafka removes next is left out.
    share = retention.size / (retention.size + retention.segment_size)
    return max(retention.size / (sum(sizes) / len(sizes)), offsets * share)


def _whole_seconds(value: float) -> int | None:
    """Return whole seconds for JSON; None means forever, since JSON has no infinity."""
    return int(value) if math.isfinite(value) else None
