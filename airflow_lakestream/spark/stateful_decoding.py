"""Decoding of a stream's records in tasks: our decoders make rows, and each record's outcome is reported.

Sent to the executors by pickle. Reports return by an accumulator. Spark may run a task twice, and a query that joins a
stream with itself reads the stream twice; so tasks count nothing: they report offsets, and the driver counts the union.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.landing.batch import decode
from airflow_lakestream.core.ledger import Counts, union
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.core.records import TIMESTAMP_TYPES, RawBatch, RecordPart
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.tables.coordinates import COORDINATES

if TYPE_CHECKING:
    from pyspark import Accumulator

_, _PARTITION, _OFFSET = COORDINATES
# The columns of Spark's source that are always read.
PARTITION, OFFSET, TIMESTAMP, VALUE = COLUMNS = ("partition", "offset", "timestamp", "value")


def _timestamp_types(column: pa.Array) -> pa.Array:
    # Java's numbers of the types begin with -1.
    return pa.array(TIMESTAMP_TYPES).take(pc.add(column, 1))


# The source's column of a part, and its conversion.
PART_COLUMNS: Mapping[RecordPart, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    RecordPart.KEY: ("key", methodcaller("cast", pa.binary())),
    RecordPart.HEADERS: ("headers", methodcaller("cast", HEADERS)),
    RecordPart.TIMESTAMP_TYPE: ("timestampType", _timestamp_types),
}


@dataclass(frozen=True)
class BatchReport:
    """Report about a batch of records. `rowless` are the offsets of records without a row."""

    read: RangeSet
    rowless: RangeSet = RangeSet()
    bad: BadRecords = BadRecords()
    rejected: pa.Table | None = None
    use: ColumnUse = ColumnUse()


# By partition, first offset and end: a repeated report of the same records has the same key.
TaskReports = dict[tuple[int, int, int], "BatchReport | ChildFailure"]


class ReportParam:
    """Accumulator of the tasks' reports; see `pyspark.AccumulatorParam`."""

    def zero(self, value: TaskReports) -> TaskReports:
        """Return the empty start value of a task."""
        return {}

    def addInPlace(self, one: TaskReports, other: TaskReports) -> TaskReports:  # noqa: N802  # the name is Spark's
        """Return both values as a single value."""
        one.update(other)
        return one


@dataclass(frozen=True)
class DecodeTask:
    """A task for decoding the records of Spark's source into rows.

    :param columns: columns of the rows, metadata columns included.
    """

    decoders: RowDecoderFactory
    topic: str
    columns: pa.Schema
    reports: Accumulator[TaskReports]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode all batches. Our own errors end the task, and reach the driver, so that nothing is landed."""
        decoder = self.decoders(self.columns, None)
        assert decoder is not None, "there are columns"
        for batch in batches:
            for part in _parts(batch):
                raw = self._raw(part)
                covers = OffsetRange(self.topic, raw.partition, raw.offsets[0], raw.offsets[-1] + 1)
                key = raw.partition, covers.from_offset, covers.until_offset
                try:
                    decoded = decode(decoder, RecordChunk(covers, raw, 0))
                except LakestreamError as e:
                    # If raised here, Spark would retry the task and bring back only the error's text.
                    self.reports.add({key: ChildFailure(e)})
                    return
                outcome = decoded.outcome
                assert outcome is not None, "there are records"
                rowless = _ranges(self.topic, raw.partition, outcome.rowless)
                read = _ranges(self.topic, raw.partition, part.column(OFFSET))
                self.reports.add({key: BatchReport(read, rowless, outcome.bad, outcome.rejected, outcome.use)})
                yield from outcome.rows.select(self.columns.names).cast(self.columns).to_batches()

    def _raw(self, records: pa.RecordBatch) -> RawBatch:
        offsets = records.column(OFFSET).to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        millis = np.floor_divide(records.column(TIMESTAMP).cast(pa.int64()).to_numpy(), 1000)
        columns = {part: PART_COLUMNS[part] for part in self.decoders.parts}
        return RawBatch(
            topic=self.topic,
            partition=records.column(PARTITION)[0].as_py(),
            offsets=range(first, last + 1) if last - first + 1 == len(records) else array("q", offsets.tolist()),
            timestamps=array("q", millis.tolist()),
            values=records.column(VALUE).cast(pa.binary()),
            **{part: convert(records.column(name)) for part, (name, convert) in columns.items()},
        )


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of each partition; Spark may give a task several partitions in sequence."""
    partitions = batch.column(PARTITION).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(batch)]
    return (batch.slice(start, end - start) for start, end in itertools.pairwise(cuts) if end > start)


def _ranges(topic: str, partition: int, offsets: pa.Array | None) -> RangeSet:
    """Return rising offsets as ranges."""
    if offsets is None or not len(offsets):
        return RangeSet()
    numbers: npt.NDArray[np.int64] = offsets.to_numpy()
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return RangeSet(OffsetRange(topic, partition, int(part[0]), int(part[-1]) + 1) for part in parts)


@dataclass(frozen=True)
class RecordSums:
    """Counts, rejects and column use of the records in ranges."""

    counts: Mapping[int, Counts] = field(default_factory=dict)
    bad: BadRecords = BadRecords()
    rejected: tuple[pa.Table, ...] = ()
    use: ColumnUse = ColumnUse()


def sums_of(reports: TaskReports, ranges: RangeSet) -> RecordSums:
    """Return the sums of the reports about records in ranges; a record in several reports counts once.

    Raises the first reported error, if any.
    """
    for one in reports.values():
        if isinstance(one, ChildFailure):
            raise one.error
    chunks = [one for _, one in sorted(reports.items(), key=_key) if isinstance(one, BatchReport) and one.read & ranges]
    rowless = union(chunk.rowless for chunk in chunks) & ranges
    rejected = _distinct([chunk.rejected for chunk in chunks if chunk.rejected is not None], ranges)
    read, bad, use = RangeSet(), BadRecords(), ColumnUse()
    for chunk in chunks:
        # Two sources may have cut the same records into different batches.
        bad += BadRecords() if chunk.read & read else chunk.bad
        use += chunk.use
        read |= chunk.read
    read &= ranges
    counts = {key[1]: _counts(key, read, rowless, rejected) for key in read.partitions}
    return RecordSums(counts, bad, tuple(rejected), use)


def reports_after(reports: TaskReports, ranges: RangeSet) -> TaskReports:
    """Return the reports about records behind ranges, for a later batch: one of two sources was ahead."""
    ends = {partition: ranges.intervals(topic, partition)[-1][1] for topic, partition in ranges.partitions}
    return {key: one for key, one in reports.items() if isinstance(one, BatchReport) and key[2] > ends.get(key[0], 0)}


def _key(item: tuple[tuple[int, int, int], Any]) -> tuple[int, int, int]:
    return item[0]


def _counts(key: PartitionKey, read: RangeSet, rowless: RangeSet, rejected: Iterable[pa.Table]) -> Counts:
    """Return a partition's counts: records never have their own rows, so good records count as filtered."""
    read_, without = read.of_partition(*key).width, rowless.of_partition(*key).width
    bad = sum(pc.sum(pc.equal(rows[_PARTITION], key[1])).as_py() or 0 for rows in rejected)
    return Counts(read=read_, rejected=bad, skipped=without - bad, filtered=read_ - without)


def _distinct(tables: list[pa.Table], ranges: RangeSet) -> list[pa.Table]:
    """Return rejected records in ranges, each once, though two sources may have reported the same record."""
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for rows in tables:
        places = []
        for place, at in enumerate(zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True)):
            topic, partition, offset = at
            if at not in seen and ranges & RangeSet.of(topic, partition, offset, offset + 1):
                seen.add(at)
                places.append(place)
        if places:
            kept.append(rows.take(pa.array(places, pa.int64())))
    return kept
