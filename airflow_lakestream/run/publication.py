"""Parts of a publication: looks at single offsets in Kafka, and a second decoding of an engine's records."""

from __future__ import annotations

import threading
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

# A reader opens one stretch after the other; to read over this many unwanted offsets is faster.
NEAR = 10_000
# Offsets of a block are in the sample together, or not at all.
_BLOCK = 1_000
# The columns of a record's place do not belong to its payload.
_BESIDE = frozenset(metadata_schema(METADATA_NAMES).names)
_TIMESTAMP = "_kafka_timestamp"


class KafkaLogView:
    """`core.publishing.branch.TopicLogView` by a reader of the topic."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> LogContents:
        """Return Kafka's contents at these offsets. Raises Stopped, DamagedBatch, and Conflict.

        Damage at other offsets does not matter. Conflict if the log loses offsets meanwhile.
        """
        gone = ranges & _below(state)
        there = ranges - gone
        try:
            return self._read(ranges, Plan(state, RangeSet(_stretches(there))), gone, stop)
        except DamagedBatch as damaged:
            if damaged.ranges & there:
                raise
            # The damage is between the offsets that were asked for.
            return self._read(ranges, Plan(state, there), gone, stop)

    def _read(self, ranges: RangeSet, plan: Plan, gone: RangeSet, stop: threading.Event) -> LogContents:
        values: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        empty: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        with closing(self._reader.read(plan, stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                key, offsets = (batch.topic, batch.partition), np.asarray(batch.offsets, np.int64)
                without = pc.is_null(batch.values).to_numpy(zero_copy_only=False)
                values.setdefault(key, []).append(offsets[~without])
                empty.setdefault(key, []).append(offsets[without])
        if stop.is_set():
            raise Stopped
        valued, bare = (
            union(ranges_of(key, np.concatenate(some)) for key, some in by.items()) for by in (values, empty)
        )
        return LogContents(valued & ranges, bare & ranges, gone)


@dataclass(frozen=True, kw_only=True)
class DecodingProof:
    """`core.publishing.branch.RowProof` by our own decoder.

    :param decoder: makes a decoder for the columns of a table.
    :param begins: by partition, the engine's first offset; it has read nothing below.
    :param tombstones: records without a value are rows, too.
    :param beyond_rows: records without a row are decoded, too: the engine's decoder may read over them.
    :param compares: rows are compared; else records are decoded alone.
    :param share: the share of the records that are checked, 1 for all. If it is less, no row counts as compared.
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

        Offsets below the log's start, and below the engine's beginning, are left out. Raises BadRecord for a record bad
        by our decoder, Stopped, and Conflict if the log loses offsets meanwhile.
        """
        topic = state.identity.topic
        payload = pa.schema([one for one in written.columns if one.name not in _BESIDE])
        decoder = self.decoder(payload)
        theirs = EngineRows(written.rows if self.compares else lambda: iter(()), topic, _compared(decoder.schema))
        wanted = (ranges if self.beyond_rows else RangeSet()) | theirs.positions
        wanted -= _below(state) | union(RangeSet.of(topic, p, 0, o) for p, o in self.begins.items())
        asked = sample(wanted, self.share)
        offsets: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        with closing(self.reader.read(Plan(state, asked), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                if batch.values.null_count and not self.tombstones:
                    batch = pick(batch, np.flatnonzero(batch.values.is_valid().to_numpy(zero_copy_only=False)))
                if len(batch):
                    theirs.compare(batch.partition, batch.offsets, _row(decoder, batch))
                    offsets.setdefault((batch.topic, batch.partition), []).append(np.asarray(batch.offsets, np.int64))
        if stop.is_set():
            raise Stopped
        # Offsets outside the sample were not to be checked: they count as seen.
        checked = union(ranges_of(key, np.concatenate(some)) for key, some in offsets.items()) | (wanted - asked)
        return ProofResult(checked, theirs.equal if asked == wanted else RangeSet(), theirs.different, theirs.named())


def sample(ranges: RangeSet, share: float) -> RangeSet:
    """Return a share of the offsets in whole blocks, the same blocks each time: a hash chooses the blocks."""
    if share >= 1:
        return ranges
    return ranges & RangeSet(
        OffsetRange(topic, p, block * _BLOCK, (block + 1) * _BLOCK)
        for topic, p in ranges.partitions
        for start, end in ranges.intervals(topic, p)
        for block in range(start // _BLOCK, (end - 1) // _BLOCK + 1)
        if crc32(f"{topic}/{p}/{block}".encode()) < share * 2**32
    )


def _compared(payload: pa.Schema) -> list[str]:
    return [*payload.names, _TIMESTAMP]


def _row(decoder: PayloadDecoder, batch: RawBatch) -> pa.Table:
    """Return the extract's rows of records.

    Raises BadRecord for the first record that the extract would reject: for the timestamp, the payload, or a value
    beyond the column's range.
    """
    timed = bad_timestamps(batch)
    decoded = decoder.decode(batch)
    places = all_but(len(batch), [row.index for row in decoded.bad])
    beyond = [BadRow(int(places[at]), reason) for at, reason in out_of_range(decoded.rows).items()]
    bad = sorted([*timed, *decoded.bad, *beyond], key=lambda row: row.index)
    rows = DecoderResult(decoded.rows, bad).whole(batch)
    return rows.append_column(_TIMESTAMP, metadata_columns(batch, ["timestamp"])[0])


def _below(state: TopicState) -> RangeSet:
    """Return the offsets below the log's start."""
    return union(RangeSet.of(state.identity.topic, p, 0, marks.low) for p, marks in state.marks.items())


def _stretches(ranges: RangeSet) -> Iterator[OffsetRange]:
    """Yield the ranges to read: ranges with at most NEAR offsets between them are joined."""
    for key in ranges.partitions:
        for start, end in coalesce((start, end + NEAR) for start, end in ranges.intervals(*key)):
            yield OffsetRange(*key, start, end - NEAR)
