"""Parts of a publication: reads of single offsets in Kafka, and the proof of an engine's rows by our own decoder."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.publishing.branch import EngineOutput, LogContents, ProofResult
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet, coalesce
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.keys import ColumnDecoder as PayloadDecoder
from airflow_lakestream.decode.metadata import METADATA_NAMES, bad_timestamps, metadata_columns, metadata_schema
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, all_but, pick
from airflow_lakestream.run.comparing import EngineRows
from airflow_lakestream.tables.coordinates import ranges_of
from airflow_lakestream.tables.schema.value_ranges import out_of_range

# Greatest number of unwanted offsets between two ranges that are read, too: a further seek would take longer.
NEAR = 10_000
# Number of offsets of a block. A sample has all offsets of a block or none.
_BLOCK = 1_000
# The columns of a record's metadata, which are not in its payload.
_METADATA_COLUMNS = frozenset(metadata_schema(METADATA_NAMES).names)
_TIMESTAMP = "_kafka_timestamp"


class KafkaLogView:
    """`core.publishing.branch.TopicLogView` by a reader of the topic."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> LogContents:
        """Return the log's contents at these offsets.

        Raises Stopped, DamagedBatch for damage at these offsets, and Conflict if the log loses offsets meanwhile.
        """
        gone = ranges & _below(state)
        in_kafka = ranges - gone
        try:
            return self._read(ranges, Plan(state, RangeSet(_read_ranges(in_kafka))), gone, stop)
        except DamagedBatch as damaged:
            if damaged.ranges & in_kafka:
                raise
            # The damage is at unwanted offsets, which are left out now.
            return self._read(ranges, Plan(state, in_kafka), gone, stop)

    def _read(self, ranges: RangeSet, plan: Plan, gone: RangeSet, stop: threading.Event) -> LogContents:
        """Read a plan; return the contents of the log at `ranges`, of which `gone` are not in Kafka."""
        values, tombstones = _OffsetsByPartition(list), _OffsetsByPartition(list)
        with closing(self._reader.read(plan, stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                key, offsets = (batch.topic, batch.partition), np.asarray(batch.offsets, np.int64)
                is_null = pc.is_null(batch.values).to_numpy(zero_copy_only=False)
                values[key].append(offsets[~is_null])
                tombstones[key].append(offsets[is_null])
        if stop.is_set():
            raise Stopped
        return LogContents(_joined(values) & ranges, _joined(tombstones) & ranges, gone)


_OffsetsByPartition = defaultdict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]]


def _joined(by_partition: _OffsetsByPartition) -> RangeSet:
    return union(ranges_of(key, np.concatenate(arrays)) for key, arrays in by_partition.items())


@dataclass(frozen=True, kw_only=True)
class DecodingProof:
    """`core.publishing.branch.RowProof` by our own decoder.

    :param decoder: makes a decoder for the columns of a table.
    :param begins: by partition, the first offset that the engine has read.
    :param tombstones: whether records without a value are rows, too.
    :param beyond_rows: whether records without a row are decoded, too, since the engine's decoder may skip bad records.
    :param compares: whether rows are compared; otherwise records are only decoded.
    :param share: the share of the records that are checked, from 0 to 1. Below 1 no row counts as equal.
    """

    reader: RecordReader
    decoder: Callable[[pa.Schema], PayloadDecoder]
    begins: Mapping[int, int] = field(default_factory=dict)
    tombstones: bool = False
    beyond_rows: bool = True
    compares: bool = True
    share: float = 1.0

    def check(self, ranges: RangeSet, written: EngineOutput, state: TopicState, stop: threading.Event) -> ProofResult:
        """Decode the records at these offsets and at the rows' offsets, and compare the rows.

        Offsets below the log's start, and below the engine's beginning, are left out. Raises BadRecord for a record
        that our decoder rejects, Stopped, and Conflict if the log loses offsets meanwhile.
        """
        topic = state.identity.topic
        payload = pa.schema([column for column in written.columns if column.name not in _METADATA_COLUMNS])
        decoder = self.decoder(payload)
        read_rows = written.rows if self.compares else lambda: iter(())
        engine_rows = EngineRows(read_rows, topic, [*decoder.schema.names, _TIMESTAMP])
        wanted = (ranges if self.beyond_rows else RangeSet()) | engine_rows.positions
        wanted -= _below(state) | union(RangeSet.of(topic, p, 0, begin) for p, begin in self.begins.items())
        sampled = sample(wanted, self.share)
        offsets = _OffsetsByPartition(list)
        with closing(self.reader.read(Plan(state, sampled), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                if batch.values.null_count and not self.tombstones:
                    batch = pick(batch, np.flatnonzero(batch.values.is_valid().to_numpy(zero_copy_only=False)))
                if len(batch):
                    engine_rows.compare(batch.partition, batch.offsets, _extract_rows(decoder, batch))
                    offsets[batch.topic, batch.partition].append(np.asarray(batch.offsets, np.int64))
        if stop.is_set():
            raise Stopped
        # Offsets outside of the sample count as checked.
        checked = _joined(offsets) | (wanted - sampled)
        equal = engine_rows.equal if sampled == wanted else RangeSet()
        return ProofResult(checked, equal, engine_rows.different, engine_rows.named())


def sample(ranges: RangeSet, share: float) -> RangeSet:
    """Return a share of the offsets in whole blocks, the same blocks each time: a hash chooses the blocks."""
    if share >= 1:
        return ranges
    blocks = []
    for topic, partition in ranges.partitions:
        for start, end in ranges.intervals(topic, partition):
            for block in range(start // _BLOCK, (end - 1) // _BLOCK + 1):
                if crc32(f"{topic}/{partition}/{block}".encode()) < share * 2**32:
                    blocks.append(OffsetRange(topic, partition, block * _BLOCK, (block + 1) * _BLOCK))
    return ranges & RangeSet(blocks)


def _extract_rows(decoder: PayloadDecoder, batch: RawBatch) -> pa.Table:
    """Return the rows that the extract makes of records.

    Raises BadRecord for the first record that the extract would reject: for the timestamp, the payload, or a value
    beyond the column's range.
    """
    decoded = decoder.decode(batch)
    # By row, the number of its record in the batch.
    record_numbers = all_but(len(batch), [bad.index for bad in decoded.bad])
    beyond = [BadRow(int(record_numbers[row]), reason) for row, reason in out_of_range(decoded.rows).items()]
    bad = sorted([*bad_timestamps(batch), *decoded.bad, *beyond], key=lambda bad_row: bad_row.index)
    rows = DecoderResult(decoded.rows, bad).whole(batch)
    return rows.append_column(_TIMESTAMP, metadata_columns(batch, ["timestamp"])[0])


def _below(state: TopicState) -> RangeSet:
    """Return the offsets below the log's start."""
    return union(RangeSet.of(state.identity.topic, p, 0, marks.low) for p, marks in state.marks.items())


def _read_ranges(ranges: RangeSet) -> Iterator[OffsetRange]:
    """Yield the ranges to read: ranges with at most NEAR offsets between them are joined."""
    for key in ranges.partitions:
        for start, end in coalesce((start, end + NEAR) for start, end in ranges.intervals(*key)):
            yield OffsetRange(*key, start, end - NEAR)
