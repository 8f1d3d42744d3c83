"""Tasks for a function: readers of staged rows, and writers of the result as files of the table.

Sent to the executors by pickle. No pyspark and no catalog here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RowsNotWritable
from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.lakes import LakeFormat
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark.crew.executors import settle
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.design import TableDesign

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
            sink.load(self.run_id)
            sink.write_below(self.folder)
            for batch in batches:
                if self.keeps_positions:
                    positions.add(batch)
                sink.write(pa.Table.from_batches([batch]), self.identity)
                count += len(batch)
            return WriteTaskResult(sink.hand_over(), count, positions.intervals())
        except NotOnce as e:
            sink.discard()
            raise RowsNotWritable(self.table, str(e), None) from None
        except BaseException:
            sink.discard()
            raise
