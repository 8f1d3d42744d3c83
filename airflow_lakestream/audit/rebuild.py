"""A ledger made from a table's rows, after the metadata with the landings is gone."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from airflow_lakestream.audit.log import read_log
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.core.ledger import Counts, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import RecordReader, TopicSource
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal

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
