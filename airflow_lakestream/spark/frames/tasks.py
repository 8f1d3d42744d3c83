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
from operator import itemgetter, methodcaller
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
from airflow_lakestream.spark.executors import answer_of, settle
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.design import TableDesign

if TYPE_CHECKING:
    from pyspark import Accumulator


_Offsets: TypeAlias = npt.NDArray[np.int64]
# By partition, the starts of intervals of offsets, and their ends, which are not in the intervals.
Intervals = Mapping[PartitionKey, tuple[_Offsets, _Offsets]]


class NotOnce(ValueError):
    """Error of a row without the position (topic, partition, offset) of a record, or of a record with several rows."""


@dataclass
class ResultPositions:
    """The positions (topic, partition, offset) of the rows of a task."""

    _offsets: dict[PartitionKey, list[_Offsets]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the positions of rows. Raises NotOnce for a row with a NULL in its position."""
        positions = pa.table([rows.column(name) for name in COORDINATES], COORDINATES)
        if any(column.null_count for column in positions.columns):
            raise NotOnce(f"it returned rows with NULL in {' or '.join(COORDINATES)}")
        for topic in pc.unique(positions[TOPIC]).to_pylist():
            of_topic = positions.filter(pc.equal(positions[TOPIC], topic))
            for partition in pc.unique(of_topic[PARTITION]).to_pylist():
                offsets = of_topic.filter(pc.equal(of_topic[PARTITION], partition))[OFFSET]
                self._offsets.setdefault((topic, partition), []).append(offsets.to_numpy())

    def intervals(self) -> Intervals:
        """Return the offsets as intervals. Raises NotOnce for a repeated offset."""
        return {key: _intervals(key, np.sort(np.concatenate(arrays))) for key, arrays in self._offsets.items()}


def joined(parts: Iterable[Intervals]) -> Intervals:
    """Return the intervals of all tasks by partition, in the order of offsets.

    Raises NotOnce for an offset that two tasks have.

    :param parts: the intervals of each task.
    """
    by_partition: dict[PartitionKey, list[tuple[_Offsets, _Offsets]]] = {}
    for part in parts:
        for key, intervals in part.items():
            by_partition.setdefault(key, []).append(intervals)
    complete = {}
    for key, of_tasks in by_partition.items():
        starts = np.concatenate([task_starts for task_starts, _ in of_tasks])
        ends = np.concatenate([task_ends for _, task_ends in of_tasks])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        overlaps = np.flatnonzero(starts[1:] < ends[:-1])
        if len(overlaps):
            raise _several_rows_error(key, int(starts[1:][overlaps[0]]))
        complete[key] = (starts, ends)
    return complete


def count(intervals: tuple[Any, Any] | None) -> int:
    """Return the number of offsets in a partition's intervals; 0 for None."""
    if intervals is None:
        return 0
    starts, ends = intervals
    return int((ends - starts).sum())


def offsets_of(intervals: tuple[_Offsets, _Offsets] | None) -> _Offsets:
    """Return the rising offsets in a partition's intervals; none for None."""
    if intervals is None or not len(intervals[0]):
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(start, end) for start, end in zip(*intervals, strict=True)])


def _intervals(key: PartitionKey, offsets: _Offsets) -> tuple[_Offsets, _Offsets]:
    """Return the starts and the ends of the intervals of consecutive offsets. Raises NotOnce for a repeated offset.

    :param offsets: a partition's offsets, sorted; at least one.
    """
    steps = np.diff(offsets)
    if len(repeated := np.flatnonzero(steps == 0)):
        raise _several_rows_error(key, int(offsets[repeated[0]]))
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
    """A task for reading staged files.

    :param outline: outline of the staging table; `lake` is its format.
    :param files: the handed over files of the landing, from which each task reads a few.
    :param columns: columns of the rows.
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
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with open_file(self.outline, self.files[number]) as stream:
                    for rows in pq.ParquetFile(stream).iter_batches():
                        yield rows.select(self.columns.names).cast(self.columns)


@dataclass(frozen=True)
class WriteTaskResult:
    """Result of a writing task: the handover of the files, the number of rows, and the positions that the rows keep."""

    files: Mapping[str, Any]
    rows: int
    positions: Intervals


@dataclass(frozen=True)
class WriteTask:
    """A task for writing a part of a function's result, with the handover as its answer.

    :param target: the outline of the table with all columns of the result; `lake` is its format.
    :param design: the table's design, without schema evolution: executors change no columns.
    :param folder: folder of the files, below the table's data.
    :param keeps_positions: whether each row has the position of the record from which it was made.
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
        result = answer_of(lambda: self._write(batches))
        yield pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], ["result"])

    def _write(self, batches: Iterable[pa.RecordBatch]) -> WriteTaskResult:
        """Write rows into data files; return the files for the driver's commit. Raises RowsNotWritable."""
        sink = self.lake.part("sink")(
            self.target, self.table, self.consumer_group, self.design, allow_group_overlap=True
        )
        # Rows of a function are not records that could be rejected one by one.
        sink.takes_records = False
        positions, rows = ResultPositions(), 0
        try:
            with or_discard(sink):
                sink.load(self.run_id)
                sink.write_below(self.folder)
                for batch in batches:
                    if self.keeps_positions:
                        positions.add(batch)
                    sink.write(pa.Table.from_batches([batch]), self.identity)
                    rows += len(batch)
                return WriteTaskResult(sink.hand_over(), rows, positions.intervals())
        except NotOnce as e:
            raise RowsNotWritable(self.table, str(e), None) from None


_, _PARTITION, _OFFSET = COORDINATES
# The columns of Spark's source that are always read.
PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP, VALUE = COLUMNS = ("partition", "offset", "timestamp", "value")


def _timestamp_types(column: pa.Array) -> pa.Array:
    """Return the names of Java's numbers of timestamp types, which begin with -1."""
    return pa.array(TIMESTAMP_TYPES).take(pc.add(column, 1))


# By the part of a record, the column of Spark's source, and the conversion of its values.
PART_COLUMNS: Mapping[RecordPart, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    RecordPart.KEY: ("key", methodcaller("cast", pa.binary())),
    RecordPart.HEADERS: ("headers", methodcaller("cast", HEADERS)),
    RecordPart.TIMESTAMP_TYPE: ("timestampType", _timestamp_types),
}


@dataclass(frozen=True)
class BatchReport:
    """Report about a decoded batch of records.

    :param read: the offsets of all records.
    :param rowless: the offsets of the records without a row.
    """

    read: RangeSet
    rowless: RangeSet = RangeSet()
    bad: BadRecords = BadRecords()
    rejected: pa.Table | None = None
    use: ColumnUse = ColumnUse()


# By (partition, first offset, offset after the last): a repeated report of the same records has the same key.
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
        """Yield the rows of all batches, and report each batch.

        Our own errors end the task and reach the driver as reports, so that nothing is landed.
        """
        decoder = self.decoders(self.columns, None)
        assert decoder is not None, "there are columns"
        for batch in batches:
            for records in _by_partition(batch):
                raw = self._raw(records)
                offset_range = OffsetRange(self.topic, raw.partition, raw.offsets[0], raw.offsets[-1] + 1)
                key = raw.partition, offset_range.from_offset, offset_range.until_offset
                try:
                    decoded = decode(decoder, RecordChunk(offset_range, raw, 0))
                except LakestreamError as e:
                    # If raised here, Spark would retry the task and bring back only the error's text.
                    self.reports.add({key: ChildFailure(e)})
                    return
                outcome = decoded.outcome
                assert outcome is not None, "there are records"
                rowless = _ranges(self.topic, raw.partition, outcome.rowless)
                read = _ranges(self.topic, raw.partition, records.column(OFFSET_COLUMN))
                self.reports.add({key: BatchReport(read, rowless, outcome.bad, outcome.rejected, outcome.use)})
                yield from outcome.rows.select(self.columns.names).cast(self.columns).to_batches()

    def _raw(self, records: pa.RecordBatch) -> RawBatch:
        """Return the records of a partition, from rows of Spark's source, as our decoders read them."""
        offsets = records.column(OFFSET_COLUMN).to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        # From Spark's microseconds.
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


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of each partition; Spark may give a task several partitions in sequence."""
    partitions = batch.column(PARTITION_COLUMN).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(batch)]
    return (batch.slice(start, end - start) for start, end in itertools.pairwise(cuts) if end > start)


def _ranges(topic: str, partition: int, offsets: pa.Array | None) -> RangeSet:
    """Return rising offsets as ranges."""
    if offsets is None or not len(offsets):
        return RangeSet()
    numbers: npt.NDArray[np.int64] = offsets.to_numpy()
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return RangeSet(OffsetRange(topic, partition, int(run[0]), int(run[-1]) + 1) for run in runs)


@dataclass(frozen=True)
class RecordSums:
    """Sums of reports: counts by partition, bad and rejected records, and the use of columns."""

    counts: Mapping[int, Counts] = field(default_factory=dict)
    bad: BadRecords = BadRecords()
    rejected: tuple[pa.Table, ...] = ()
    use: ColumnUse = ColumnUse()


def sums_of(reports: TaskReports, ranges: RangeSet) -> RecordSums:
    """Return the sums of the reports about records in ranges; a record in several reports counts once.

    Raises the first reported error, if any.
    """
    for report in reports.values():
        if isinstance(report, ChildFailure):
            raise report.error
    ordered = [report for _, report in sorted(reports.items(), key=itemgetter(0)) if isinstance(report, BatchReport)]
    in_ranges = [report for report in ordered if report.read & ranges]
    rowless = union(report.rowless for report in in_ranges) & ranges
    rejected = _distinct([report.rejected for report in in_ranges if report.rejected is not None], ranges)
    read, bad, use = RangeSet(), BadRecords(), ColumnUse()
    for report in in_ranges:
        # Two sources may have cut the same records into different batches.
        bad += BadRecords() if report.read & read else report.bad
        use += report.use
        read |= report.read
    read &= ranges
    counts = {key[1]: _counts(key, read, rowless, rejected) for key in read.partitions}
    return RecordSums(counts, bad, tuple(rejected), use)


def reports_after(reports: TaskReports, ranges: RangeSet) -> TaskReports:
    """Return the reports about records behind ranges: of two sources of a query, one may be ahead of the batch."""
    range_ends = {partition: ranges.intervals(topic, partition)[-1][1] for topic, partition in ranges.partitions}
    return {
        (partition, first, end): report
        for (partition, first, end), report in reports.items()
        if isinstance(report, BatchReport) and end > range_ends.get(partition, 0)
    }


def _counts(key: PartitionKey, read: RangeSet, rowless: RangeSet, rejected: Iterable[pa.Table]) -> Counts:
    """Return a partition's counts.

    Records with a decoded row count as filtered, since no row of a stateful function belongs to a single record.
    """
    read_count, rowless_count = read.of_partition(*key).width, rowless.of_partition(*key).width
    rejected_count = sum(pc.sum(pc.equal(rows[_PARTITION], key[1])).as_py() or 0 for rows in rejected)
    return Counts(
        read=read_count,
        rejected=rejected_count,
        skipped=rowless_count - rejected_count,
        filtered=read_count - rowless_count,
    )


def _distinct(tables: list[pa.Table], ranges: RangeSet) -> list[pa.Table]:
    """Return rejected records in ranges, each once, though two sources may have reported the same record."""
    seen: set[tuple[Any, ...]] = set()
    distinct = []
    for rows in tables:
        row_numbers = []
        positions = zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True)
        for row_number, position in enumerate(positions):
            topic, partition, offset = position
            if position not in seen and ranges & RangeSet.of(topic, partition, offset, offset + 1):
                seen.add(position)
                row_numbers.append(row_number)
        if row_numbers:
            distinct.append(rows.take(pa.array(row_numbers, pa.int64())))
    return distinct
