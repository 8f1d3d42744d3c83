"""Records of the landed ranges still readable in Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan
from airflow_lakestream.core.ledger import TopicIdentity, union
from airflow_lakestream.core.ports import OffsetsGone, RecordReader, TopicSource
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Transient

# Reading a small hole costs less than the further consumer that each further range of a partition needs.
_BRIDGE = 100_000
_TRIES = 10


class AuditStopped(LakestreamError, Transient):
    """The audit was asked to stop."""

    def __init__(self) -> None:
        super().__init__("the audit was stopped before it had read the topic; nothing was changed.")


@dataclass
class LogRecords:
    """Records of landed ranges still readable in Kafka.

    `readable` counts the offsets that have a record; `shown` are the landed ranges that were read; `damaged` are the
    unreadable landed ranges, whose batches are damaged.
    """

    identity: TopicIdentity
    readable: dict[PartitionKey, OffsetTally] = field(default_factory=dict)
    shown: RangeSet = RangeSet()
    damaged: RangeSet = RangeSet()


def read_log(
    landed_of: Callable[[TopicIdentity], RangeSet], source: TopicSource, reader: RecordReader, stop: threading.Event
) -> LogRecords:
    """Read the records of the landed ranges that Kafka still has.

    If retention removes offsets while they are read, the topic is queried again, and the result lacks these offsets;
    after ten tries OffsetsGone is raised. Damaged batches are left out, too; the result names them.

    :param landed_of: returns the landed ranges of an incarnation; it gets the incarnation that Kafka has.
    :param stop: once it is set, AuditStopped is raised.

    Raises the errors of source and reader, too.
    """
    done, damaged = RangeSet(), RangeSet()
    found: LogRecords | None = None
    tries = 0
    while True:
        state = source.look()
        topic = state.identity.topic
        found = found or LogRecords(state.identity)
        landed = landed_of(found.identity)
        # Watermarks of each attempt: `left` are the landed ranges that the log still has.
        left = landed & union(RangeSet.of(topic, p, marks.low, marks.end) for p, marks in state.marks.items())
        try:
            for chunk in reader.read(Plan(state, RangeSet(bridge_holes(left - done)) - damaged), stop):
                covers = chunk.covers
                found.readable.setdefault((topic, covers.partition), OffsetTally()).add_offsets(chunk.batch.offsets)
                done |= RangeSet([covers])
            if stop.is_set():
                raise AuditStopped
            found.shown, found.damaged = done & landed, damaged & landed
            return found
        except DamagedBatch as e:
            damaged |= e.ranges
        except OffsetsGone:
            tries += 1
            if tries == _TRIES:
                raise


def bridge_holes(ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the ranges, joined if only a small hole separates them.

    A reader of the joined ranges also reads the records in the hole: the caller ignores them.
    """
    last: OffsetRange | None = None
    for r in ranges:
        if last is not None and _are_near(last, r):
            last = OffsetRange(r.topic, r.partition, last.from_offset, r.until_offset)
            continue
        if last is not None:
            yield last
        last = r
    if last is not None:
        yield last


def _are_near(first: OffsetRange, second: OffsetRange) -> bool:
    same = (first.topic, first.partition) == (second.topic, second.partition)
    return same and second.from_offset - first.until_offset <= _BRIDGE
