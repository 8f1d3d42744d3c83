"""Tasks for a function: readers of staged rows, and writers of the result as files of the table.

Sent to the executors by pickle. No pyspark and no catalog here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RowsNotWritable
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.lakes import LakeFormat
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark.crew.executors import settle
from airflow_lakestream.spark.frames.positions import Intervals, NotOnce, ResultPositions
from airflow_lakestream.tables.design import TableDesign

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
