"""Decision about the partitions (hours or days) to emit, and to emit again: pure values and arithmetic.

A partition is emitted when it is complete, and never before. Late rows, which land after that with a time in the
partition, let the partition be emitted again, marked, as soon as it is complete again. Each event contains the whole
state: the newest event is enough to continue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.ledger import Ledger, TopicEntry, union
from airflow_lakestream.core.ranges import Interval, RangeSet, coalesce, overlapping

# Most partitions that a run emits; the next runs emit more. Airflow writes a run's events in one transaction.
MOST_EMITTED = 240
# Topic and topic id.
Incarnation = tuple[str, str]


class PartitionLength(StrEnum):
    """Length of an emitted partition."""

    HOUR = "hour"
    DAY = "day"

    @property
    def width_ms(self) -> int:
        """Length in milliseconds; days are UTC days."""
        return 3_600_000 if self is PartitionLength.HOUR else 86_400_000

    def key(self, start_ms: int) -> str:
        """Return the partition key, in the form of Airflow's time mappers."""
        return datetime.fromtimestamp(start_ms / 1000, UTC).strftime(
            "%Y-%m-%dT%H:%M:%S" if self is PartitionLength.HOUR else "%Y-%m-%d"
        )

    def between(self, since_ms: int, until_ms: int) -> list[Interval]:
        """Return the whole partitions within a time, in order.

        A partition that begins before `since_ms`, or ends after `until_ms`, is left out.
        """
        width = self.width_ms
        # The first multiple of the width at or after `since_ms`.
        first = -(-since_ms // width) * width
        return [(start, start + width) for start in range(first, until_ms - width + 1, width)]


class GroupBeginning(NamedTuple):
    """A time, in milliseconds since the epoch, by which a group had begun to land, with the group's origin as text.

    After a rollback to before its first landing the group begins again, with another origin. The time is then invalid.
    """

    at_ms: int
    origin: str

    @classmethod
    def first_of(cls, spans: Iterable[Interval], entry: TopicEntry) -> GroupBeginning | None:
        """Return the group's beginning by the start of the first span, or None without spans."""
        first_start = min((start for start, _ in spans), default=None)
        return None if first_start is None else cls(first_start, cls.text_of(entry))

    def holds(self, span: Interval, entry: TopicEntry) -> bool:
        """Return whether this beginning proves that the group had begun by a span's start."""
        return self.at_ms <= span[0] and self.origin == self.text_of(entry)

    @staticmethod
    def text_of(entry: TopicEntry) -> str:
        """Return the origin as text."""
        return ",".join(f"{partition}:{offset}" for partition, offset in sorted(entry.origin.items()))


@dataclass(frozen=True)
class EmittedPartitions:
    """State after an emission: all partitions that were emitted.

    :param number: the number of emissions.
    :param spans: the times of the emitted partitions, as (start, end) in milliseconds since the epoch.
    :param landed: by topic, the offsets that the table had at the emission.
    :param waiting: by the start of an emitted partition, the number of late rows that were not emitted yet.
    :param begun: by topic, a time by which the group had begun, observed while Kafka still had records of that time.
    """

    number: int = 0
    spans: tuple[Interval, ...] = ()
    landed: Mapping[Incarnation, RangeSet] = field(default_factory=dict)
    waiting: Mapping[int, int] = field(default_factory=dict)
    begun: Mapping[Incarnation, GroupBeginning] = field(default_factory=dict)

    def has(self, span: Interval) -> bool:
        """Return whether a partition was emitted."""
        return any(start <= span[0] and span[1] <= end for start, end in overlapping(self.spans, *span))

    def unseen(self, ledger: Ledger) -> RangeSet:
        """Return the offsets landed since the last emission; none before the first, when no row can be late."""
        if not self.spans:
            return RangeSet()
        return union(ranges - self.landed.get(key, RangeSet()) for key, ranges in landed_of(ledger).items())

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "number": self.number,
            "spans": [list(span) for span in self.spans],
            "landed": [[*key, encode_ranges(ranges, key[0])] for key, ranges in self.landed.items()],
            "waiting": [list(item) for item in self.waiting.items()],
            "begun": [[*key, *beginning] for key, beginning in self.begun.items()],
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> EmittedPartitions:
        """Return the state with the values of `to_json`."""
        return cls(
            int(value["number"]),
            tuple((start, end) for start, end in value["spans"]),
            {(topic, topic_id): decode_ranges(text, topic) for topic, topic_id, text in value["landed"]},
            dict(value["waiting"]),
            {(topic, topic_id): GroupBeginning(at_ms, origin) for topic, topic_id, at_ms, origin in value["begun"]},
        )


@dataclass(frozen=True)
class PartitionEmission:
    """The partitions to emit now.

    `new` are the starts of partitions that were never emitted. `reopened` has by start the number of late rows of each
    partition to emit again. `after` is the state after the emission.
    """

    new: tuple[int, ...]
    reopened: Mapping[int, int]
    after: EmittedPartitions

    @property
    def starts(self) -> list[int]:
        """Starts of all partitions to emit, sorted."""
        return sorted([*self.new, *self.reopened])


def landed_of(ledger: Ledger) -> dict[Incarnation, RangeSet]:
    """Return a table's landed offsets, by topic."""
    return {
        (identity.topic, identity.topic_id): entry.landed for identity, entry in ledger.topics.items() if entry.landed
    }


def late_of(before: EmittedPartitions, new_rows: Mapping[int, int]) -> dict[int, int]:
    """Return the late rows still to be emitted, by the partition's start.

    :param before: the last state, with the late rows that earlier looks have found.
    :param new_rows: by the partition's start, the number of late rows that this look has found.
    """
    starts = sorted({*before.waiting, *new_rows})
    return {start: before.waiting.get(start, 0) + new_rows.get(start, 0) for start in starts}


def emission_candidates(
    before: EmittedPartitions, every: PartitionLength, since_ms: int, until_ms: int, late: Iterable[int]
) -> list[Interval]:
    """Return the candidates for an emission, in order.

    Candidates are the whole partitions from `since_ms` until `until_ms` that were not emitted yet, and the emitted
    partitions with late rows.

    :param late: the starts of partitions with late rows.
    """
    pending = [span for span in every.between(since_ms, until_ms) if not before.has(span)]
    return sorted({*pending, *((start, start + every.width_ms) for start in late)})


def plan_emission(
    before: EmittedPartitions,
    ledger: Ledger,
    late: Mapping[int, int],
    complete: Collection[Interval],
    by_origin: Mapping[Incarnation, Collection[Interval]] | None = None,
) -> PartitionEmission | None:
    """Return the emission of the oldest complete partitions, `MOST_EMITTED` at most, or None without any.

    The state after the emission has the late rows of partitions that are not emitted now.

    :param late: see `late_of`.
    :param complete: the candidates that are complete.
    :param by_origin: by topic, the candidates that are complete because the group had begun by then.
    """
    spans = sorted(complete)[:MOST_EMITTED]
    if not spans:
        return None
    reopened = {start: late[start] for start, _ in spans if start in late}
    after = EmittedPartitions(
        before.number + 1,
        coalesce([*before.spans, *spans]),
        landed_of(ledger),
        {start: rows for start, rows in late.items() if start not in reopened},
        {**before.begun, **_new_beginnings(before, ledger, by_origin or {}, spans)},
    )
    return PartitionEmission(tuple(start for start, _ in spans if start not in late), reopened, after)


def _new_beginnings(
    before: EmittedPartitions,
    ledger: Ledger,
    by_origin: Mapping[Incarnation, Collection[Interval]],
    spans: Collection[Interval],
) -> dict[Incarnation, GroupBeginning]:
    """Return by topic the group's beginnings to add to the state.

    A topic has a beginning if a partition to emit is complete because the group had begun by then. A known beginning is
    kept, unless the group has another origin now.

    :param spans: the partitions to emit.
    """
    beginnings = {}
    for identity, entry in ledger.topics.items():
        key = identity.topic, identity.topic_id
        proving = [span for span in spans if span in by_origin.get(key, ())]
        beginning = GroupBeginning.first_of(proving, entry)
        known = before.begun.get(key)
        if beginning is not None and (known is None or known.origin != beginning.origin):
            beginnings[key] = beginning
    return beginnings
