"""Tasks for a function: readers of staged rows, decoders of a stream's records, and writers of the result.

Sent to the executors by pickle. No pyspark and no catalog here. Reports of decoded records return by an accumulator.
Spark may run a task twice, and a query that joins a stream with itself reads the stream twice; so these tasks count
nothing: they report offsets, and the driver counts the union.
"""

from __future__ import annotations

import itertools
import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.landing.batch import decode
from airflow_lakestream.core.ledger import Counts, TopicIdentity, union
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.ports import RecordChunk, RowsNotWritable, or_discard
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.core.records import TIMESTAMP_TYPES, RawBatch
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.lakes import LakeFormat
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark.executors import settle
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.design import TableDesign

if TYPE_CHECKING:
    from pyspark import Accumulator


_Numbers: TypeAlias = npt.NDArray[np.int64]
# Starts and ends, half open, by partition.
Intervals = Mapping[PartitionKey, tuple[_Numbers, _Numbers]]


class NotOnce(ValueError):
    """Error of a row without a position, or of a record with several rows."""


@dataclass
class ResultPositions:
    """The positions of a task's rows."""

    _offsets: dict[PartitionKey, list[_Numbers]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the positions of rows. Raises NotOnce for a row with a NULL in its position."""
        there = pa.table([rows.column(name) for name in COORDINATES], COORDINATES)
        if any(column.null_count for column in there.columns):
            raise NotOnce(f"it returned rows with NULL in {' or '.join(COORDINATES)}")
        for topic in pc.unique(there[TOPIC]).to_pylist():
            of_topic = there.filter(pc.equal(there[TOPIC], topic))
            for partition in pc.unique(of_topic[PARTITION]).to_pylist():
                mine = of_topic.filter(pc.equal(of_topic[PARTITION], partition))[OFFSET]
                self._offsets.setdefault((topic, partition), []).append(mine.to_numpy())

    def intervals(self) -> Intervals:
        """Return the offsets as intervals. Raises NotOnce for a repeated offset."""
        return {key: _intervals(key, np.sort(np.concatenate(parts))) for key, parts in self._offsets.items()}


def joined(parts: Iterable[Intervals]) -> Intervals:
    """Return the intervals of all tasks, by partition, in the order of offsets.

    Raises NotOnce for an offset of two tasks.
    """
    by_key: dict[PartitionKey, list[tuple[_Numbers, _Numbers]]] = {}
    for part in parts:
        for key, found in part.items():
            by_key.setdefault(key, []).append(found)
    complete = {}
    for key, several in by_key.items():
        starts, ends = (np.concatenate([one[side] for one in several]) for side in (0, 1))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        again = np.flatnonzero(starts[1:] < ends[:-1])
        if len(again):
            raise _several_rows_error(key, int(starts[1:][again[0]]))
        complete[key] = (starts, ends)
    return complete


def count(found: tuple[Any, Any] | None) -> int:
    """Return the number of offsets in intervals."""
    return 0 if found is None else int((found[1] - found[0]).sum())


def offsets_of(found: tuple[_Numbers, _Numbers] | None) -> _Numbers:
    """Return the offsets in intervals, rising."""
    if found is None or not len(found[0]):
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(start, end) for start, end in zip(*found, strict=True)])


def _intervals(key: PartitionKey, offsets: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the starts and the ends of the intervals of consecutive offsets. Raises an error for a repeated offset.

    :param offsets: rising.
    """
    steps = np.diff(offsets)
    if len(again := np.flatnonzero(steps == 0)):
        raise _several_rows_error(key, int(offsets[again[0]]))
    cuts = np.flatnonzero(steps != 1) + 1
    starts = offsets[np.concatenate([[0], cuts])]
    ends = offsets[np.concatenate([cuts - 1, [len(offsets) - 1]])] + 1
    return starts, ends


def _several_rows_error(key: PartitionKey, offset: int) -> NotOnce:
    return NotOnce(f"it returned several rows for the record {key[0]}[{key[1]}] offset {offset}")


# The column of a writing task's answer, as Spark's DDL.
RESULT = "result binary"


@dataclass(frozen=True)
class StagedRowsTask:
    """A task for reading staged files; the input is the numbers of the files.

    :param outline: outline of the staging table; `lake` is its format.
    """

    outline: Any
    lake: LakeFormat
    files: Sequence[Mapping[str, Any]]
    columns: pa.Schema

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files, in batches of Parquet's own size.

        :param numbers: batches with a single column, the indexes of the files to read.
        """
        settle()
        open_file = self.lake.part("staging").open_file
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            with open_file(self.outline, self.files[number]) as stream:
                for rows in pq.ParquetFile(stream).iter_batches():
                    yield rows.select(self.columns.names).cast(self.columns)


@dataclass(frozen=True)
class WriteTaskResult:
    """Result of a writing task: the handover, and the rows' positions, if the rows keep any."""

    files: Mapping[str, Any]
    rows: int
    positions: Intervals


@dataclass(frozen=True)
class WriteTask:
    """A task for writing a part of a result, with the handover as its answer.

    :param target: the outline of the table, as it is or is going to be; `lake` is its format.
    :param design: the table's design; the table has all columns already.
    :param folder: folder of the files, below the table's data.
    :param keeps_positions: each row is the row of a record.
    """

    target: Any
    lake: LakeFormat
    table: str
    consumer_group: str
    design: TableDesign
    run_id: str
    folder: str
    identity: TopicIdentity
    keeps_positions: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches; yield a row with a pickled `WriteTaskResult`, or with a `ChildFailure` of our error."""
        settle()
        try:
            result: WriteTaskResult | ChildFailure = self._write(batches)
        except LakestreamError as e:
            # If raised here, Spark would retry the task and bring back only the error's text.
            result = ChildFailure(e)
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

    def _write(self, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
        sink = self.lake.part("sink")(
            self.target, self.table, self.consumer_group, self.design, allow_group_overlap=True
        )
        # Rows of a function are not records that could be rejected one by one.
        sink.takes_records = False
        positions, count = ResultPositions(), 0
        try:
            with or_discard(sink):
                sink.load(self.run_id)
                sink.write_below(self.folder)
                for batch in batches:
                    if self.keeps_positions:
                        positions.add(batch)
                    sink.write(pa.Table.from_batches([batch]), self.identity)
                    count += len(batch)
                return WriteTaskResult(sink.hand_over(), count, positions.intervals())
        except NotOnce as e:
            raise RowsNotWritable(self.table, str(e), None) from None


_, _PARTITION, _OFFSET = COORDINATES
# The columns of Spark's source that are always read.
PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP, VALUE = COLUMNS = ("partition", "offset", "timestamp", "value")


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
                read = _ranges(self.topic, raw.partition, part.column(OFFSET_COLUMN))
                self.reports.add({key: BatchReport(read, rowless, outcome.bad, outcome.rejected, outcome.use)})
                yield from outcome.rows.select(self.columns.names).cast(self.columns).to_batches()

    def _raw(self, records: pa.RecordBatch) -> RawBatch:
        offsets = records.column(OFFSET_COLUMN).to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        millis = np.floor_divide(records.column(TIMESTAMP).cast(pa.int64()).to_numpy(), 1000)
        columns = {part: PART_COLUMNS[part] for part in self.decoders.parts}
        return RawBatch(
            topic=self.topic,
            partition=records.column(PARTITION_COLUMN)[0].as_py(),
            offsets=range(first, last + 1) if last - first + 1 == len(records) else array("q", offsets.tolist()),
            timestamps=array("q", millis.tolist()),
            values=records.column(VALUE).cast(pa.binary()),
            **{part: convert(records.column(name)) for part, (name, convert) in columns.items()},
        )


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of each partition; Spark may give a task several partitions in sequence."""
    partitions = batch.column(PARTITION_COLUMN).to_numpy()
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
    """Return a partition's counts: no row of the function belongs to a single record, so good records are filtered."""
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
