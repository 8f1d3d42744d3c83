"""Executors for a landing with a function: they stage decoded rows, and write the function's result.

Reads from Kafka and rejects of records are final before the function gets a row. Staged files are in the run's own
folder below the table's data, in no snapshot; they are deleted when the result is written, or with the folder's other
leftovers when a batch is repeated.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import Counts, FunctionRows, add_counts, union
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import RowsNotWritable
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.parallel import folder_of
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.frames.function import (
    FrameFunction,
    TransformFailed,
    TransformRefused,
    columns_of,
    spark_schema,
)
from airflow_lakestream.spark.frames.tasks import (
    RESULT,
    Intervals,
    NotOnce,
    ResultPositions,
    StagedRowsTask,
    WriteTask,
    WriteTaskResult,
    count,
    joined,
    offsets_of,
)
from airflow_lakestream.spark.readers import SparkReaders
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.rejects.sink import RejectingSink
from airflow_lakestream.tables.sink import TableSink
from airflow_lakestream.tables.transformed import TransformNote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# Dates before 1582 are read as written, and no file is left out, even if a session's settings allow either.
_READ_OPTIONS = {"datetimeRebaseMode": "CORRECTED", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
# Spark takes the excluded characters of a path for a pattern, and leaves out files whose names begin with _ or a dot.
_PLAIN_PATH, _PLAIN_FILE = re.compile(r"[^*?\[\]{}\\%]+"), re.compile(r"[^_.][^/]*")
# Checks of the types that Spark reads from Python's files without a change of values.
_PLAIN_TYPES = (
    *(arrow.is_boolean, arrow.is_int32, arrow.is_int64, arrow.is_float32, arrow.is_float64, arrow.is_date32),
    *(arrow.is_string, arrow.is_large_string, arrow.is_binary, arrow.is_large_binary, arrow.is_decimal128),
)


def read_by_spark(spark: SparkSession, columns: pa.Schema, schema: Any, paths: Sequence[str]) -> DataFrame | None:
    """Return a frame by which Spark itself reads Parquet files that Python wrote.

    Return None without files, if Spark might misread the files, or if the session does not reach their store.

    :param columns: the columns of the files.
    :param schema: Spark's schema (a StructType) of the same columns.
    """
    if not paths or not _are_plain(list(columns)):
        return None
    # Hadoop's client for S3 has another scheme.
    hadoop_paths = [re.sub("^s3:", "s3a:", path) for path in paths]
    path_by_store = {urlsplit(path)[:2]: path for path in hadoop_paths}
    if not all(map(_is_plain_path, hadoop_paths)):
        return None
    if not all(_reaches(spark, path) for path in path_by_store.values()):
        return None
    return spark.read.options(**_READ_OPTIONS).schema(schema).parquet(*hadoop_paths)


def _are_plain(fields: Sequence[pa.Field]) -> bool:
    """Return whether Spark reads fields, nested fields included, without a change of names and values."""
    names = [field.name.lower() for field in fields]
    # Spark compares names without regard to case, unless a session is configured otherwise.
    return (
        len(set(names)) == len(names)
        and all(re.fullmatch(r"\w+", name) for name in names)
        and all(map(_is_plain_type, (field.type for field in fields)))
    )


def _is_plain_type(kind: pa.DataType) -> bool:
    if arrow.is_timestamp(kind):
        return bool(kind.unit == "us")
    if arrow.is_struct(kind):
        return _are_plain(list(kind))
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        return _is_plain_type(kind.value_type)
    if arrow.is_map(kind):
        return _is_plain_type(kind.key_type) and _is_plain_type(kind.item_type)
    return any(is_type(kind) for is_type in _PLAIN_TYPES)


def _is_plain_path(path: str) -> bool:
    return bool(_PLAIN_PATH.fullmatch(path) and _PLAIN_FILE.fullmatch(path.rpartition("/")[2]))


def _reaches(spark: SparkSession, path: str) -> bool:
    """Return whether Spark's own client of a store finds a file there."""
    from py4j.protocol import Py4JJavaError

    jvm = spark.sparkContext._jvm
    assert jvm is not None, "the session runs"
    try:
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        file_system = hadoop_path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        return bool(file_system.exists(hadoop_path))
    except Py4JJavaError as e:
        log.info("Spark does not reach %s, so staged rows come through Python: %s", path, cause_of(e))
        return False


@contextmanager
def temporary_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set a session's settings for a while, and set them back at the end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


_BYTES, _RECORDS = (f"spark.sql.execution.arrow.{name}PerBatch" for name in ("maxBytes", "maxRecords"))
# Java's greatest integer means no limit.
_WITHOUT_LIMIT = str(2**31 - 1)
# Rows: with fewer, a batch costs more than the sums of bytes that are saved; Spark's default of the most.
_FEWEST_ROWS, _MOST_ROWS = 1_000, 10_000


@contextmanager
def counted_batches(spark: SparkSession, staged: Sequence[int]) -> Iterator[None]:
    """Limit Spark's Arrow batches by rows and not by bytes, for results with at most a row for each staged row.

    By default, Spark adds up a batch's bytes again for each row: a third of the JVM's CPU time for a join. A staged
    file holds at most `tables.row_buffer`, 64 MiB, so a batch with as many rows as the smallest file has holds at most
    the bytes of two files. If a session has its own limit of bytes, or a file has few rows, the limits stay.

    :param staged: the number of rows of each staged file; without files the limits stay.
    """
    fewest, conf = min(staged, default=0), spark.conf
    if fewest < _FEWEST_ROWS or conf.get(_BYTES, None) is not None:
        yield
        return
    # For Spark, None or less than one means no limit.
    limit = int(conf.get(_RECORDS, None) or 0)
    most_rows = min(fewest, limit if limit > 0 else _MOST_ROWS)
    with temporary_settings(spark, {_BYTES: _WITHOUT_LIMIT, _RECORDS: str(most_rows)}):
        yield


@dataclass
class FrameReaders(SparkReaders):
    """`SparkReaders` of a landing with a function.

    :param function: the function that makes the table's rows.
    """

    function: FrameFunction = field(kw_only=True)
    # Whether a result's row with topic, partition and offset of a record counts as the row of this record.
    makes_records: ClassVar[bool] = True
    # The staged files of the current landing, and the outline of their staging table.
    _staged: list[Mapping[str, Any]] = field(default_factory=list)
    _outline: Any = None

    def can_read(self, job: LandingJob, plan: Plan) -> bool:
        """Return True: executors always read, since rows from the driver's own decoder would bypass the function."""
        return True

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Stage the rows of the plan's records except `done`, and write the function's result for the rows.

        See `core.landing.job.RemoteReaders`. The staged files are deleted at the end, also after an error. Raises
        TransformFailed.
        """
        self._staged, self._outline = [], self._sink(job).staging_outline(self._columns)
        try:
            staged = super().read(job, plan, done, most)
            return self._apply_function(job, plan, staged)
        finally:
            for path in self.config.lake.part("staging").delete(self._outline, self._staged):
                log.warning("A staged file could not be deleted: %s", path)

    @property
    def _columns(self) -> pa.Schema:
        """The columns of staged rows."""
        decoded = self.config.decoded
        assert decoded is not None, "there is a function"
        return pa.schema([*decoded, *metadata_schema(self.config.metadata_columns)])

    def _sink(self, job: LandingJob) -> TableSink[Any]:
        """Return the sink of the function's rows."""
        assert isinstance(job.shared, RejectingSink), "the landing has a reject table"
        assert isinstance(job.shared.inner, TableSink), "a function's rows are landed in a single table"
        return job.shared.inner

    def target(self, job: LandingJob) -> Any:
        """Return the outline of the staging table."""
        return self._outline

    def take(self, job: LandingJob, piece: SharePiece) -> None:
        """Keep an executor's staged files, and hand over its rejected records."""
        self._staged += piece.files["files"]
        job.shared.take_over({**piece.files, "files": []})

    def _apply_function(self, job: LandingJob, plan: Plan, staged: Sequence[SharePiece]) -> list[SharePiece]:
        """Write the function's result for staged rows; return the result as a single piece, or [] without staged rows.

        Without staged rows the function gets an empty frame: its result still sets the table's columns.
        """
        ranges = union(piece.ranges for piece in staged)
        staged_counts: Mapping[int, Counts] = {}
        for piece in staged:
            staged_counts = add_counts(staged_counts, piece.by_partition)
        frame = self._frame()
        result = self.function.of(frame, self.spark, job.table, ranges)
        metadata, keeps_positions = self._set_columns(job, result, ranges)
        if not staged:
            return []
        written = self._write(job, plan, result, metadata, ranges, keeps_positions=keeps_positions)
        rows = sum(task_result.rows for task_result in written)
        positions = self._positions_in_result(job, written, ranges, staged_counts) if keeps_positions else {}
        if job.replaces:
            self._pass_over(job, plan, frame, positions)
        topic = plan.state.identity.topic
        # A record without its own row in the result counts as filtered. Without positions, `made` counts the rows.
        counts = {
            partition: _with_filtered(staged_count, staged_count.written - count(positions.get((topic, partition))))
            for partition, staged_count in staged_counts.items()
        }
        records = sum(staged_count.written for staged_count in staged_counts.values())
        log.info("%s made %s rows of %s records", self.function.name, rows, records)
        bad = sum((piece.bad for piece in staged), BadRecords())
        use = sum((piece.use for piece in staged), ColumnUse())
        made = None if keeps_positions else FunctionRows(self.function.name, rows)
        return [SharePiece(plan.state.identity, ranges, counts, plan.epochs, {}, bad, made, use)]

    def _set_columns(self, job: LandingJob, result: DataFrame, ranges: RangeSet) -> tuple[pa.Schema, bool]:
        """Set the sink's columns from a result.

        Return the metadata columns, and whether the rows keep the positions (topic, partition, offset) of records.
        Raises TransformRefused.
        """
        try:
            payload, metadata = columns_of(result, self.function.argument)
            keeps_positions = self.makes_records and set(COORDINATES) <= set(metadata.names)
            note = TransformNote(self.function.name, self.function.fingerprint, keeps_positions)
            self._sink(job).hold_to(payload, metadata, note)
        except InvalidArgument as e:
            raise TransformRefused(self.function.name, job.table, ranges, f"{e}") from e
        return metadata, keeps_positions

    def _frame(self) -> DataFrame:
        """Return the staged rows, read by Spark itself if possible, else by Python in the executors."""
        staging, schema = self.config.lake.part("staging"), spark_schema(self._columns)
        paths = [staging.uri(self._outline, file) for file in self._staged]
        if (rows := read_by_spark(self.spark, self._columns, schema, paths)) is not None:
            return rows
        task = StagedRowsTask(self._outline, self.config.lake, tuple(self._staged), self._columns)
        # A partition of Spark for each file.
        files = len(self._staged)
        file_numbers = self.spark.range(0, files, 1, max(1, files))
        return file_numbers.mapInArrow(task.__call__, schema)

    def _write(
        self,
        job: LandingJob,
        plan: Plan,
        result: DataFrame,
        metadata: pa.Schema,
        ranges: RangeSet,
        *,
        keeps_positions: bool,
    ) -> list[WriteTaskResult]:
        """Have the executors write the result, and take over the files. Raises TransformFailed.

        :param ranges: the offsets of the batch, for errors.
        :param keeps_positions: whether each row is the row of a record.
        """
        config = self.config.of_topic(plan.state.identity.topic)
        design = replace(config.table_design, metadata=metadata, evolution=SchemaEvolution.NONE)
        folder = folder_of(job.run_id)
        self._used_folders.add(folder)
        writing = WriteTask(
            target=job.shared.outline(),
            lake=config.lake,
            table=job.table,
            consumer_group=job.consumer_group,
            design=design,
            run_id=job.run_id,
            folder=folder,
            identity=plan.state.identity,
            keeps_positions=keeps_positions,
        )
        rows_in = self.config.lake.part("staging").rows_in
        # A result without positions may have rows of any size, such as lists of all values of a key.
        staged = [rows_in(file) for file in self._staged] if keeps_positions else []
        try:
            with counted_batches(self.spark, staged):
                rows = result.mapInArrow(writing.__call__, RESULT).collect()
        except Exception as e:  # errors of Spark and Py4J have no common base; each is raised again by name
            if job.stop.is_set():
                raise Stopped from e
            raise TransformFailed(self.function.name, job.table, ranges, cause_of(e)) from e
        answers: list[WriteTaskResult | ChildFailure] = [pickle.loads(row.result) for row in rows]  # noqa: S301  # our own tasks' answers
        task_results = [answer for answer in answers if isinstance(answer, WriteTaskResult)]
        for task_result in task_results:
            # The sink deletes the files with its own if the landing is not committed.
            job.shared.take_over(task_result.files)
        for answer in answers:
            if isinstance(answer, ChildFailure):
                raise self._refusal(job, ranges, answer.error)
        return task_results

    def _refusal(self, job: LandingJob, ranges: RangeSet, error: BaseException) -> BaseException:
        """Return the error for a failed batch: TransformRefused, with the offsets, for rows unfit for the table."""
        if isinstance(error, RowsNotWritable | InvalidArgument):
            return TransformRefused(self.function.name, job.table, ranges, f"{str(error).rstrip('.')}.")
        return error

    def _positions_in_result(
        self, job: LandingJob, written: Sequence[WriteTaskResult], ranges: RangeSet, counts: Mapping[int, Counts]
    ) -> Intervals:
        """Return the positions of the result's rows.

        Raises TransformRefused for a position outside of the batch, or for several rows with one position.

        :param written: the results of the writing tasks.
        :param ranges: the offsets of the batch.
        :param counts: the counts of the staged records by partition.
        """
        remedy = "Drop the position columns from the result where a row is not one record."
        try:
            positions = joined(task_result.positions for task_result in written)
        except NotOnce as e:
            raise TransformRefused(self.function.name, job.table, ranges, f"{e}. {remedy}") from None
        # Each interval has to be within a range of the batch, and no partition may have more rows than records.
        for (topic, partition), (starts, ends) in positions.items():
            batch_intervals = ranges.intervals(topic, partition)
            lows = np.array([low for low, _ in batch_intervals], np.int64)
            highs = np.array([high for _, high in batch_intervals], np.int64)
            # The number of the last range that begins at or before each interval; -1 without such a range.
            numbers = np.searchsorted(lows, starts, side="right") - 1
            is_outside = not len(lows) or bool((numbers < 0).any() or (ends > highs[numbers]).any())
            if is_outside or count((starts, ends)) > counts.get(partition, Counts()).written:
                cause = f"it returned rows at offsets of {topic}[{partition}] that are not the batch's. {remedy}"
                raise TransformRefused(self.function.name, job.table, ranges, cause)
        return positions

    def _pass_over(self, job: LandingJob, plan: Plan, frame: DataFrame, made: Intervals) -> None:
        """Let the sink remove the rows of staged records for which the function has made no row.

        Only for a landing that replaces rows.

        :param frame: the staged rows.
        :param made: the positions of the result's rows.
        """
        identity = plan.state.identity
        rows = frame.select(*COORDINATES).mapInArrow(positions_in, RESULT).collect()
        staged = joined(pickle.loads(row.result) for row in rows)  # noqa: S301  # our own tasks' answers
        for key, intervals in staged.items():
            without_row = np.setdiff1d(offsets_of(intervals), offsets_of(made.get(key)), assume_unique=True)
            if len(without_row):
                job.sink.pass_over(identity, key[1], pa.array(without_row, pa.int64()))


def positions_in(batches: Any) -> Any:
    """Yield a single row with the pickled `Intervals` of a task's rows, by partition.

    :param batches: batches with the columns of a position.
    """
    positions = ResultPositions()
    for batch in batches:
        positions.add(batch)
    yield pa.record_batch([pa.array([pickle.dumps(positions.intervals())], pa.binary())], ["result"])


def _with_filtered(counts: Counts, filtered: int) -> Counts:
    """Return counts in which `filtered` of the written records count as filtered."""
    return replace(counts, written=counts.written - filtered, filtered=counts.filtered + filtered)
