"""Search for a snapshot of the whole table in a topic, by Debezium's marks of the first and the last row."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.columns import OP, READ, RECORD_KEY, SOURCE
from airflow_lakestream.cdc.design import key_of
from airflow_lakestream.cdc.events.log_state import BINLOG_FIELDS, BINLOG_FILE, binlog_places
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.values.outcome import DecoderResult
from airflow_lakestream.exceptions import InvalidArgument

# Without the row, which may have any columns.
_COLUMNS = pa.schema(
    [
        (OP, pa.string()),
        (
            SOURCE,
            pa.struct(
                [("lsn", pa.int64()), ("txId", pa.int64()), ("snapshot", pa.string()), *BINLOG_FIELDS]
                + [(name, pa.string()) for name in ("name", "db", "schema", "table")]
            ),
        ),
    ]
)
_FIRST, _LAST = ("first", "first_in_data_collection"), ("last", "last_in_data_collection")


@dataclass(frozen=True)
class ConnectorTable:
    """Origin of events: the connector's topic.prefix, and the table's name as a regular expression for a signal."""

    prefix: str
    collection: str


@dataclass
class DebeziumSnapshot:
    """Snapshot: rows that Debezium has read in one transaction.

    :param rows: the number of rows.
    :param starts: by partition, the offset of the first row.
    :param ends: by partition, the offset after the last row.
    :param key: the columns of the last row's key, or None if unknown.
    :param has_first: whether the row marked as the first was seen.
    :param has_last: whether the row marked as the last was seen.
    """

    rows: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    has_first: bool = False
    has_last: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the table were seen. A single row is marked as the last."""
        return self.has_last and (self.has_first or self.rows == 1)


@dataclass
class SnapshotSearch:
    """Search through a topic, reading each offset once.

    :param payload: the format of the values; not `EventPayload`, which would look for columns in the rows.
    :param found: the snapshots seen until now, by log position and transaction.
    :param origin: the origin of the last event seen, or None if no event has shown the origin.
    """

    payload: PayloadFormats
    reader: RecordReader
    # By partition: the offset at which the search continues.
    at: dict[int, int]
    found: dict[tuple[int, int], DebeziumSnapshot] = field(default_factory=dict)
    origin: ConnectorTable | None = None

    def look(self, state: TopicState, stop: threading.Event) -> DebeziumSnapshot | None:
        """Search up to the topic's current end; return the last complete snapshot of all searches, or None.

        :param stop: ends the reading.
        """
        topic = state.identity.topic
        starts = {partition: max(self.at.get(partition, 0), marks.low) for partition, marks in state.marks.items()}
        ranges = RangeSet(
            OffsetRange(topic, partition, starts[partition], marks.end)
            for partition, marks in state.marks.items()
            if starts[partition] < marks.end
        )
        if ranges:
            decoder = self.payload.decoder(_COLUMNS)
            with closing(self.reader.read(Plan(state, ranges), stop)) as chunks:
                for chunk in chunks:
                    if len(chunk.batch):
                        self._take(chunk.batch, decoder.decode(chunk.batch))
                    self.at[chunk.covers.partition] = chunk.covers.until_offset
        return next((snapshot for snapshot in reversed(self.found.values()) if snapshot.is_whole), None)

    @property
    def rows(self) -> int:
        """The number of snapshot rows seen."""
        return sum(snapshot.rows for snapshot in self.found.values())

    def _take(self, batch: RawBatch, decoded: DecoderResult) -> None:
        """Add the snapshot rows of a batch to the snapshots found so far."""
        rows, bad = decoded.rows, [row.index for row in decoded.bad]
        places = np.delete(np.arange(len(batch)), bad)
        sources, ops = rows[SOURCE].to_pylist(), rows[OP].to_pylist()
        in_binlog = binlog_places(rows[SOURCE].combine_chunks()).to_pylist()
        for place, op, source, position in zip(places.tolist(), ops, sources, in_binlog, strict=True):
            if not source:
                continue
            if source["name"] and source["table"]:
                self.origin = _origin(source)
            position = source["lsn"] if position is None else position
            if op != READ or position is None or source["snapshot"] == "incremental":
                continue
            snapshot = self.found.setdefault((position, source["txId"] or 0), DebeziumSnapshot())
            snapshot.rows += 1
            snapshot.starts.setdefault(batch.partition, batch.offsets[place])
            snapshot.ends[batch.partition] = batch.offsets[place] + 1
            snapshot.has_first |= source["snapshot"] in _FIRST
            if source["snapshot"] in _LAST:
                snapshot.has_last, snapshot.key = True, _key(batch, place)


def origin_of_topic(topic: str) -> ConnectorTable:
    """Return the origin of a topic's events by the topic's name, prefix.schema.table.

    Raises InvalidArgument for a name with fewer than three parts.
    """
    parts = topic.split(".")
    if len(parts) < 3:
        raise InvalidArgument(
            "topic", f"{topic!r} is not prefix.schema.table, and has no event that names its table.", "Change a row."
        )
    return ConnectorTable(".".join(parts[:-2]), re.escape(".".join(parts[-2:])))


def _origin(source: Mapping[str, str]) -> ConnectorTable:
    # MySQL's and MariaDB's databases have no schemas, and signals name the database.
    space = source["schema"] or (source["db"] if source[BINLOG_FILE] else None)
    return ConnectorTable(source["name"], re.escape(".".join(part for part in (space, source["table"]) if part)))


def _key(batch: RawBatch, index: int) -> tuple[str, ...] | None:
    """Return the columns of a record's key, or None if unknown."""
    if batch.keys is None:
        return None
    try:
        return key_of(pa.table({RECORD_KEY: batch.keys[index : index + 1]}), batch.topic)
    except InvalidArgument:
        return None
