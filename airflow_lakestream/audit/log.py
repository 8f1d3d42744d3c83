"""Records of the landed ranges still readable in Kafka, and a ledger made from these and a table's rows.

The ledger is made after the metadata with the landings is gone.
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
    """Return a topic's ledger entry, rebuilt from the rows, without `others`, the offsets landed by other groups.

    :param rows: the table's rows by position; other topics are ignored.
    :param claimed: offsets that another tool has read: they count as landed if Kafka shows no record, even outside the
        rows' first and last offsets.

    The entry never doubles a record, since every offset with a row is landed. It never loses a record, since an offset
    with a record in Kafka and no row is not landed. Raises CannotRebuild if the rows go beyond the end of the log, and
    the errors of source and reader.
    """
    found = {key: tally for key, tally in rows.tallies.items() if key[0] == topic}
    with_rows = RangeSet(
        OffsetRange(*key, start, end) for key, tally in found.items() for start, end in tally.intervals()
    )
    own = with_rows - others
    # Offsets to decide by Kafka's records: left if there is a record, lost if the log begins above, otherwise landed.
    holes = (own.gaps() | claimed) - own - others
    log = read_log(lambda _: holes, source, reader, stop)
    state = source.look()
    for partition, intervals in ((p, own.intervals(topic, p)) for _, p in own.partitions):
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
    low = union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
    lost = holes & low
    # The group begins at its first row; in a partition without rows, at the beginning of the log.
    origin = {p: marks.low for p, marks in state.marks.items()}
    origin |= {partition: own.intervals(topic, partition)[0][0] for _, partition in own.partitions}
    entry = TopicEntry(
        landed=own | (holes - left - lost),
        lost=lost,
        counts=Counts(read=own.width, written=own.width),
        origin=origin,
    )
    return RebuiltEntry(log.identity, entry, left)
