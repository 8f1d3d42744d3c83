"""Records of landed ranges that Kafka still has; and a ledger rebuilt from such records and a table's rows.

A ledger is rebuilt if the metadata with the landings is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan
from airflow_lakestream.core.ledger import Counts, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import OffsetsGone, RecordReader, TopicSource
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

# The greatest hole, in offsets, that is read: that costs less than a further consumer for a further range.
_BRIDGE = 100_000
# Attempts to read a log whose first offsets retention removes meanwhile.
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
    read_ranges, damaged = RangeSet(), RangeSet()
    records: LogRecords | None = None
    tries = 0
    while True:
        state = source.look()
        topic = state.identity.topic
        records = records or LogRecords(state.identity)
        landed = landed_of(records.identity)
        # The landed ranges that the log still has, by the watermarks of this attempt.
        left = landed & union(
            RangeSet.of(topic, partition, marks.low, marks.end) for partition, marks in state.marks.items()
        )
        try:
            for chunk in reader.read(Plan(state, RangeSet(bridge_holes(left - read_ranges)) - damaged), stop):
                covers = chunk.covers
                records.readable.setdefault((topic, covers.partition), OffsetTally()).add_offsets(chunk.batch.offsets)
                read_ranges |= RangeSet([covers])
            if stop.is_set():
                raise AuditStopped
            records.shown, records.damaged = read_ranges & landed, damaged & landed
            return records
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
    for current in ranges:
        if last is not None and _are_near(last, current):
            last = OffsetRange(current.topic, current.partition, last.from_offset, current.until_offset)
            continue
        if last is not None:
            yield last
        last = current
    if last is not None:
        yield last


def _are_near(first: OffsetRange, second: OffsetRange) -> bool:
    """Return whether two ranges are of one partition, with a hole of at most `_BRIDGE` offsets between them."""
    in_one_partition = (first.topic, first.partition) == (second.topic, second.partition)
    return in_one_partition and second.from_offset - first.until_offset <= _BRIDGE


_NOTHING = RangeSet()


class CannotRebuild(LakestreamError, Terminal):
    """The rows are not enough to rebuild a ledger."""


@dataclass(frozen=True, slots=True)
class RebuiltEntry:
    """Ledger entry of a topic, made from the rows.

    `left` are offsets without a row at which Kafka has a record: they are not in the ledger, so the next run lands
    them. Offsets without a row and without a record in Kafka (markers, aborted or compacted records) count as landed;
    offsets that Kafka no longer shows count as lost, by receipt.
    """

    identity: TopicIdentity
    entry: TopicEntry
    left: RangeSet


def rebuild_topic(
    topic: str,
    rows: RowPositions,
    others: RangeSet,
    source: TopicSource,
    reader: RecordReader,
    stop: threading.Event,
    claimed: RangeSet = _NOTHING,
) -> RebuiltEntry:
    """Return a topic's ledger entry, rebuilt from the rows.

    :param rows: the table's rows by position; other topics are ignored.
    :param others: the offsets landed by other groups, which are left out.
    :param claimed: offsets that another tool has read: they count as landed if Kafka shows no record, even outside the
        rows' first and last offsets.

    The entry never doubles a record, since every offset with a row is landed. It never loses a record, since an offset
    with a record in Kafka and no row is not landed. Raises CannotRebuild if the rows go beyond the end of the log, and
    the errors of source and reader.
    """
    tallies = {key: tally for key, tally in rows.tallies.items() if key[0] == topic}
    with_rows = RangeSet(
        OffsetRange(*key, start, end) for key, tally in tallies.items() for start, end in tally.intervals()
    )
    own_ranges = with_rows - others
    # Offsets to decide by Kafka's records: left if there is a record, lost if the log begins above, otherwise landed.
    holes = (own_ranges.gaps() | claimed) - own_ranges - others
    log = read_log(lambda _: holes, source, reader, stop)
    state = source.look()
    for _, partition in own_ranges.partitions:
        intervals = own_ranges.intervals(topic, partition)
        marks = state.marks.get(partition)
        if marks is None or marks.end < intervals[-1][1]:
            raise CannotRebuild(
                f"{topic}[{partition}]: rows go up to offset {intervals[-1][1]}, but the log ends at "
                f"{marks.end if marks else 'nothing: there is no such partition'}. The rows belong to another topic of "
                "the same name, so they prove nothing about this topic."
            )
    records = RangeSet(
        OffsetRange(*key, start, end) for key, tally in log.readable.items() for start, end in tally.intervals()
    )
    left = holes & records
    below_log = union(RangeSet.of(topic, partition, 0, marks.low) for partition, marks in state.marks.items())
    lost = holes & below_log
    # The group begins at its first row; in a partition without rows, at the beginning of the log.
    origin = {partition: marks.low for partition, marks in state.marks.items()}
    origin |= {partition: own_ranges.intervals(topic, partition)[0][0] for _, partition in own_ranges.partitions}
    entry = TopicEntry(
        landed=own_ranges | (holes - left - lost),
        lost=lost,
        counts=Counts(read=own_ranges.width, written=own_ranges.width),
        origin=origin,
    )
    return RebuiltEntry(log.identity, entry, left)
