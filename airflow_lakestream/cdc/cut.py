"""One cut through the topics of a connector: a log position of the database below which all transactions are whole.

A topic's partition has the events of one connector in the order of commit, and the next transaction has a later
position. PostgreSQL: the last commit before the event's transaction, the same in all events of a transaction. Binary
logs: the event's own place; the events of a transaction are neighbours in the log, and have one GTID.

A partition has all events below a position if a later event shows this, or the connector's stored offset, which Kafka
Connect writes once all earlier records of all topics are in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import OP, READ, SOURCE
from airflow_lakestream.cdc.events.log_state import BINLOG_FIELDS, binlog_places
from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.values.outcome import DecoderResult

# Without the row, which may have any columns.
_TEXTS = tuple((name, pa.string()) for name in ("name", "sequence", "snapshot"))
EVENT_COLUMNS = pa.schema([(OP, pa.string()), (SOURCE, pa.struct([("lsn", pa.int64()), *_TEXTS, *BINLOG_FIELDS]))])
# The last commit before an event's transaction, in PostgreSQL.
_COMMIT = r'^\["(?P<commit>\d+)"'
_GTID = re.compile(r"(?P<source>.*)[-:](?P<number>\d+)")
# In a number, the file of a binary log (in PostgreSQL the upper half of the LSN) is above these 32 bits.
_BYTES = 2**32


@dataclass(frozen=True, slots=True)
class TransactionStart:
    """First event of a transaction in a partition.

    :param position: in the database's log, above those of all earlier transactions.
    :param transaction: the same in all topics; None without a GTID.
    """

    offset: int
    position: int
    transaction: str | None


@dataclass
class PartitionTransactions:
    """Transactions of a partition, from the records below the offset `at`.

    :param landed: the end of the offsets in the mirror.
    :param at: the first offset that was not read yet.
    :param starts: by offset, with rising positions. An event that the connector has sent again is not a start.
    :param alone_at: the greatest position of an event that shows no transaction: a row that a snapshot has read, or the
        first changes after a connector was made, which follow no commit.
    :param other_log: the first event of another binary log, which continues the first one at an earlier position.
    :param in_binlog: whether positions are places in a binary log.
    """

    topic: str
    partition: int
    landed: int
    at: int
    starts: list[TransactionStart] = field(default_factory=list)
    alone_at: int = -1
    other_log: int | None = None
    in_binlog: bool = False
    # The greatest position of an event in a transaction.
    _top: int = -1
    # By source of GTIDs, the greatest transaction number.
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def reach(self) -> int:
        """The position below which the partition has all events, as a later event shows; -1 if unknown."""
        return self.starts[-1].position if self.starts else -1

    def end(self, position: int) -> int:
        """Return the offset of the first transaction at or above a position; without such a transaction, `at`."""
        return next((start.offset for start in self.starts if start.position >= position), self.at)

    def is_ahead(self, position: int) -> bool:
        """Return whether the mirror has an event at or above a position, or a snapshot has read a row above it."""
        has_landed = any(start.offset < self.landed and start.position >= position for start in self.starts)
        return has_landed or self.alone_at > position

    def add(self, offset: int, position: int, transaction: str | None) -> None:
        """Add an event; events come in the order of offsets.

        :param position: the event's position in the database's log.
        :param transaction: the GTID of the event's transaction, or None.
        """
        is_new = self._is_new(transaction)
        if position < self._top:
            # The connector has sent the event again. But a new GTID at a lower position is of another binary log.
            if is_new and self.other_log is None:
                self.other_log = offset
            return
        # Without a GTID, all events of a transaction have one position.
        is_start = position > self._top if transaction is None else not self._has_last(transaction)
        self._top = position
        if is_start:
            self.starts.append(TransactionStart(offset, position, transaction))

    def _is_new(self, transaction: str | None) -> bool:
        """Return whether a GTID has a greater number than its source's earlier GTIDs, and note the number."""
        match = _GTID.fullmatch(transaction or "")
        if match is None or int(match["number"]) <= self._numbers.get(match["source"], -1):
            return False
        self._numbers[match["source"]] = int(match["number"])
        return True

    def _has_last(self, transaction: str) -> bool:
        """Return whether the last start is of a transaction: the transaction's further events are no starts."""
        return bool(self.starts) and self.starts[-1].transaction == transaction


@dataclass(frozen=True)
class DatabaseCut:
    """Log position of the database as number and text, and each partition's first offset at or above the position."""

    position: int
    text: str
    ends: Mapping[PartitionKey, int]


@dataclass(frozen=True)
class CutObstacle:
    """Reason why there is no cut yet, as text."""

    text: str


def take_events(partition: PartitionTransactions, batch: RawBatch, decoded: DecoderResult) -> set[str]:
    """Add a batch's decoded events to its partition; return the connectors' names (`topic.prefix`) in the events."""
    source, ops = decoded.rows[SOURCE].combine_chunks(), decoded.rows[OP].to_pylist()
    offsets = np.delete(np.asarray(batch.offsets), [*(row.index for row in decoded.bad), *decoded.filtered]).tolist()
    commits = pc.struct_field(pc.extract_regex(pc.struct_field(source, "sequence"), _COMMIT), "commit")
    in_binlog = binlog_places(source).to_pylist()
    values = {name: pc.struct_field(source, name).to_pylist() for name in ("lsn", "snapshot", "gtid", "name")}
    for index, (offset, commit, place) in enumerate(zip(offsets, commits.to_pylist(), in_binlog, strict=True)):
        is_read = ops[index] == READ and values["snapshot"][index] != "incremental"
        partition.in_binlog |= place is not None
        if is_read or (place is None and commit is None):
            position = values["lsn"][index] if place is None else place
            partition.alone_at = max(partition.alone_at, -1 if position is None else position)
        elif place is None:
            partition.add(offset, int(commit), commit)
        elif ops[index] != READ:
            # Rows of an incremental snapshot have the stream's place in a binary log, and no transaction.
            partition.add(offset, place, values["gtid"][index])
    return {name for name in values["name"] if name}


def find_cut(
    partitions: Sequence[PartitionTransactions], stored: int | None = None, floors: Mapping[str, int] | None = None
) -> DatabaseCut | CutObstacle:
    """Return the latest cut below which all transactions are whole and that no mirror has passed, or the obstacle.

    :param partitions: all partitions of all topics, each read up to an end seen after `stored`.
    :param stored: the position of the connector's stored offset; None if unknown.
    :param floors: the greatest position of a mirror's rows, by topic: the topic may have lost the row's event.
    """
    for partition in partitions:
        if partition.other_log is not None:
            log_start = f"{partition.topic}[{partition.partition}] offset {partition.other_log}"
            return CutObstacle(f"another binary log begins at {log_start}: land the mirrors past it")
    stored_position = -1 if stored is None else stored
    slowest = min(partitions, key=lambda partition: max(partition.reach, stored_position))
    place = f"{slowest.topic}[{slowest.partition}] up to offset {slowest.at}"
    if (position := max(slowest.reach, stored_position)) < 0:
        return CutObstacle(f"{place} has no transaction that shows a position")
    if slowest.reach > stored_position:
        if (last := slowest.starts[-1].transaction) is None:
            return CutObstacle(f"the last event of {place} has no GTID, so its transaction is unknown")
        # The transaction may have begun in another topic.
        starts = (start for partition in partitions for start in partition.starts)
        position = min(start.position for start in starts if start.transaction == last)
    text = _text_of(position, in_binlog=any(partition.in_binlog for partition in partitions))
    ahead = next((partition.topic for partition in partitions if partition.is_ahead(position)), None)
    if topic := next((name for name, floor in (floors or {}).items() if floor >= position), ahead):
        return CutObstacle(f"the mirror of {topic} is beyond position {text}, and {place} shows no later one")
    ends = {(partition.topic, partition.partition): partition.end(position) for partition in partitions}
    return DatabaseCut(position, text, ends)


def _text_of(position: int, *, in_binlog: bool) -> str:
    """Return a position as the database writes it: the file and the byte of a binary log, or PostgreSQL's LSN."""
    if in_binlog:
        return f"binary log {position // _BYTES}, byte {position % _BYTES}"
    return f"{position // _BYTES:X}/{position % _BYTES:X}"
