"""The batches of a query with a function of a stream: Spark keeps the state, and each batch is a commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.modes import StreamBatchMode
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import FunctionRows, StreamBatch, union
from airflow_lakestream.core.policies import StateStore, choose, is_given
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import RecordPart
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.run.topics import RunReport, job_of
from airflow_lakestream.spark.causes import cause_of, query_failed
from airflow_lakestream.spark.checkpoint import QueryCheckpoint
from airflow_lakestream.spark.frames.columns import columns_of, spark_schema
from airflow_lakestream.spark.frames.crew import FrameReaders
from airflow_lakestream.spark.frames.function import FrameFunction, TransformFailed, TransformRefused
from airflow_lakestream.spark.micro_batch import WHERE, MicroBatches, function_of
from airflow_lakestream.spark.settings.kafka import for_executors
from airflow_lakestream.spark.stateful import decoding
from airflow_lakestream.spark.stateful.aligning import align
from airflow_lakestream.spark.stateful.decoding import DecodeTask, ReportParam, TaskReports, reports_after, sums_of

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)


@dataclass
class StreamReaders(FrameReaders):
    """`FrameReaders` of a streaming query with a function.

    :param reports: the tasks' reports about the records that they decode.
    """

    reports: Accumulator[TaskReports] = field(kw_only=True)
    # The current batch, as Spark has planned it, and whether it was run.
    _batch: DataFrame | None = None
    _ran: bool = False

    def begin(self, batch: DataFrame) -> None:
        """Set the next batch."""
        self._batch, self._ran = batch, False

    def finish(self, ranges: RangeSet) -> None:
        """End a batch: run the batch if `read` has not run it, and drop the reports about its records.

        A batch that the table has already is run for its state and watermark, and its rows are dropped. Raises the
        errors of Spark and of a decoder: a state that lacks records must not stay.
        """
        if not self._ran and self._batch is not None:
            log.info("The table has this batch already: it is run for its state, and its rows are dropped")
            self._batch.write.format("noop").mode("overwrite").save()
            sums_of(self.reports.value, ranges)
        self._batch, self.reports.value = None, reports_after(self.reports.value, ranges)

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Run the batch, and write the rows; return a single piece with the plan's offsets.

        `done` and `most` are unused, since Spark determines the batch. Raises TransformFailed, and the errors of a
        decoder.
        """
        assert self._batch is not None, "a batch has begun"
        metadata, keeps = self._hold(job, self._batch, plan.ranges)
        self._ran = True
        try:
            written = self._write(job, plan, self._batch, metadata, plan.ranges, keeps_positions=keeps)
        except TransformFailed:
            # Perhaps for lack of the rows that a decoder refused to make: the decoder's error explains more.
            sums_of(self.reports.value, plan.ranges)
            raise
        sums, rows = sums_of(self.reports.value, plan.ranges), sum(one.rows for one in written)
        for rejected in sums.rejected:
            assert job.rejects is not None, "every table has a reject table"
            job.rejects.reject(rejected)
        log.info("%s made %s rows in %s", self.function.name, rows, plan.streamed)
        made = FunctionRows(self.function.name, rows)
        return [SharePiece(plan.state.identity, plan.ranges, sums.counts, plan.epochs, {}, sums.bad, made, sums.use)]

    def _keeps(self, metadata: pa.Schema) -> bool:
        # A row made by a state is not a record's row, even if it looks so.
        return False


PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_OF_STATE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    StateStore.MEMORY: f"{_OF_STATE}.HDFSBackedStateStoreProvider",
    StateStore.ROCKSDB: f"{_OF_STATE}.RocksDBStateStoreProvider",
}


@dataclass
class StatefulBatches(MicroBatches):
    """`MicroBatches` of a query whose batches only Spark can repeat, because Spark has the state."""

    @cached_property
    def crew(self) -> StreamReaders:
        """The remote readers of a batch."""
        common = self.spark, self.extract, for_executors(self.config.kafka), WHERE
        return StreamReaders(*common, function=self._function, reports=self._reports)

    @cached_property
    def source_options(self) -> Mapping[str, str]:
        """The options of Spark's source; since the records go into the state, no record may be missing."""
        has_headers = RecordPart.HEADERS in self._decoders.parts
        named = {"groupIdPrefix": self.extract.consumer_group, "includeHeaders": str(has_headers)}
        return {**self.options, **named, "failOnDataLoss": "true"}

    @cached_property
    def _frames(self) -> FrameConfig:
        assert isinstance(self.extract, FrameConfig), "mirrors have no function"
        return self.extract

    @cached_property
    def _function(self) -> FrameFunction:
        function = function_of(self.extract)
        assert function is not None, "that is why the query has a state"
        return function

    @cached_property
    def _reports(self) -> Accumulator[TaskReports]:
        return self.spark.sparkContext.accumulator({}, ReportParam())  # type: ignore[arg-type]  # it has both methods

    @cached_property
    def _decoders(self) -> RowDecoderFactory:
        topic = self.extract.topic
        job = job_of(self.extract, topic, [topic], self.config.kafka, self.catalog, "start", WHERE)
        assert isinstance(job.decoders, RowDecoderFactory), "that is what build_job makes"
        return job.decoders

    def catch_up(self, checkpoint: QueryCheckpoint | None) -> bool:
        """Bring table and checkpoint to the same batch; return whether the checkpoint changed. Raises as `align`."""
        config = self.extract
        location = str(self.config.checkpoint_location)
        self._check_state_store(checkpoint)
        now = KafkaSource(self.config.kafka, config.topic, config.consumer_group, config.start, WHERE).look()
        _, entry = self._job_and_entry(config.topic, [config.topic], now)
        return align(checkpoint, entry, config.table, config.consumer_group, location)

    def rows(self, records: DataFrame) -> DataFrame:
        """Return the function's result for the stream of decoded rows. Raises TransformRefused.

        Executors decode the records by our own decoders, and report counts and rejects.
        """
        decoded = self._frames.decoded
        assert decoded is not None, "there is a function"
        columns = pa.schema([*decoded, *metadata_schema(self.extract.metadata_columns)])
        asked = [*decoding.COLUMNS, *(decoding.PART_COLUMNS[part][0] for part in sorted(self._decoders.parts))]
        decode = DecodeTask(self._decoders, self.extract.topic, columns, self._reports)
        stream = records.select(*asked).mapInArrow(decode.__call__, spark_schema(columns))
        result = self._function.of(stream, self.spark, self.extract.table, RangeSet())
        try:
            columns_of(result, self._function.argument)
        except InvalidArgument as e:
            raise self._refused(f"{e}") from e
        return result

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query. Raises TransformRefused for a result that Spark can't land by appending."""
        from pyspark.errors import AnalysisException

        with self._state_store():
            try:
                return super().start(writer.outputMode("append"))
            except AnalysisException as e:
                raise self._refused(cause_of(e)) from e

    def land_batch(self, checkpoint: QueryCheckpoint, batch_id: int, frame: DataFrame) -> RunReport:
        """Run a batch, and land the result, unless the table has the batch already. Raises the errors of a landing.

        :param checkpoint: the query's checkpoint, with the offsets of the batch.
        :param frame: the batch of the function's rows, which this method runs once.
        """
        starts, ends = checkpoint.starts(batch_id), checkpoint.ends(batch_id)
        ranges = union(RangeSet.of(*key, starts.get(key, 0), end) for key, end in ends.items())
        batch = StreamBatchMode(
            StreamBatch(checkpoint.query_id, batch_id, checkpoint.watermark(batch_id)),
            {partition: offset for (_, partition), offset in checkpoint.starts(0).items()} if batch_id == 0 else {},
            ranges,
            self.extract.consumer_group,
        )
        self.crew.begin(frame)
        report = self.land(f"{checkpoint.query_id}/{batch_id}", mode=batch)
        try:
            self.crew.finish(ranges)
        except LakestreamError:
            raise
        except Exception as e:  # any error of Spark and of its bridge to the JVM
            raise query_failed(str(self.config.checkpoint_location), e) from e
        return report

    def _refused(self, cause: str) -> TransformRefused:
        return TransformRefused(self._function.name, self.extract.table, RangeSet(), cause)

    @property
    def _provider(self) -> str | None:
        given = self._frames.state_store
        return _PROVIDERS[choose(StateStore, "state_store", given)] if is_given(given) else None

    def _check_state_store(self, checkpoint: QueryCheckpoint | None) -> None:
        """Refuse another state store than the checkpoint's, since Spark would ignore the setting.

        Raises InvalidArgument.
        """
        known = checkpoint.setting(checkpoint.planned[-1], PROVIDER) if checkpoint and checkpoint.planned else None
        if known is not None and self._provider is not None and known != self._provider:
            problem = f"is {self._frames.state_store!r}, and the checkpoint's state is kept by {known}."
            raise InvalidArgument("state_store", problem, "A query keeps the one that it began with.")

    @contextmanager
    def _state_store(self) -> Iterator[None]:
        """Set the state store while a query starts: the query takes a copy of the session's settings."""
        if self._provider is None:
            yield
            return
        before = self.spark.conf.get(PROVIDER, None)
        self.spark.conf.set(PROVIDER, self._provider)
        try:
            yield
        finally:
            if before is None:
                self.spark.conf.unset(PROVIDER)
            else:
                self.spark.conf.set(PROVIDER, before)
